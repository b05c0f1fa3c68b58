//! Requests to other nodes to copy into their files.
//!
//! A request contains two ids and ranges, but no bytes: the serving node reads the source as any
//! node does (`serve/copy.rs`).

use super::Range;
use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::peers::{Bytes, PeerRequest};
use crate::views::FileData;
use forebay_store::{NodeId, ObjectId, Result};
use std::collections::BTreeMap;

impl<'a> FileData<'a> {
    /// Makes another node copy from an open file to one of that node's files. Returns the number of
    /// bytes, at least one.
    ///
    /// # Errors
    /// ENODATA: the first file ends before `at`. Also the errors of reading and of writing.
    pub(crate) fn copy_remote(
        &self,
        (from, at): (u32, u64),
        (home, id): (NodeId, ObjectId),
        to_at: u64,
        len: usize,
    ) -> Result<usize> {
        let ranges = List(vec![(at, to_at, len as u64)]);
        let arguments = (
            self.store().content().live_id(from),
            id,
            None::<u64>,
            ranges,
        );
        let done: u64 = self.cluster.ask(home, request::COPY, &arguments)?;
        Ok(done as usize)
    }

    /// Makes several nodes copy, at the same time, from an open file to their parts of a striped
    /// file. The striped file was truncated `cuts` times. Returns the number of bytes that each
    /// node has copied, counted over its ranges in their order.
    pub(crate) fn ask_copies(
        &self,
        from: u32,
        id: ObjectId,
        cuts: u64,
        ranges: BTreeMap<NodeId, Vec<Range>>,
    ) -> Result<BTreeMap<NodeId, Result<usize>>> {
        let from = self.store().content().live_id(from);
        let head = |ranges| request::COPY.encode(&(from, id, Some(cuts), List(ranges)));
        let (nodes, heads): (Vec<NodeId>, Vec<Vec<u8>>) = ranges
            .into_iter()
            .map(|(node, ranges)| (node, head(ranges)))
            .unzip();
        let ask = |(&node, head)| PeerRequest {
            node,
            kind: request::COPY.number(),
            head,
            bytes: Bytes::None,
        };
        let heads = heads.iter().map(Vec::as_slice);
        let requests: Vec<PeerRequest<'_>> = nodes.iter().zip(heads).map(ask).collect();
        // SAFETY: without bytes, no address has to be valid.
        let answers = unsafe { self.cluster.other_nodes()?.ask_all(&requests) };
        let done = answers
            .into_iter()
            .map(|answer| Ok(request::COPY.decode(&answer?.head)? as usize));
        Ok(nodes.into_iter().zip(done).collect())
    }
}

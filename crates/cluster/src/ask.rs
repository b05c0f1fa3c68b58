//! Asking other nodes: a request goes out, its reply is decoded, refusals that pass are retried.
//!
//! - EAGAIN of the asked node means that others are changing the same thing. The asking side waits
//!   and asks again ([`Backoff`]); the asked node never does.
//! - ESTALE means that the nodes' epochs of names differ. The asked node's epoch is fetched before
//!   the error is passed on, so that the caller resolves its path again with the later one.

use crate::Cluster;
use crate::backoff::Backoff;
use crate::peers::messages::Wire;
use crate::peers::requests::{Signature, kind, request};
use crate::peers::{Bytes, CAPACITY, Peers};
use forebay_placement::NodeId;
use forebay_store::{Errno, ObjectId, Result};

impl<'a> Cluster<'a> {
    /// The other nodes. To be called where something is away.
    pub(crate) fn other_nodes(&self) -> Result<&'a dyn Peers> {
        self.peers().ok_or(Errno::NODEV)
    }

    /// Asks `node` for what needs no bytes besides.
    pub(crate) fn ask<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Result<R> {
        // SAFETY: there are no bytes.
        unsafe { self.ask_with(node, request, arguments, Bytes::None) }.map(|(reply, _)| reply)
    }

    /// Asks these nodes the same at once: their replies, in the same order. EAGAIN is a reply.
    pub(crate) fn ask_each<A, R: Wire>(
        &self,
        nodes: &[NodeId],
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Vec<Result<R>> {
        let others = match self.other_nodes() {
            Ok(others) => others,
            Err(e) => return nodes.iter().map(|_| Err(e)).collect(),
        };
        let (kind, head) = request.message(arguments);
        let told = others.ask_each(nodes, kind, &head);
        told.into_iter()
            .map(|told| request.decode(&told?.head))
            .collect()
    }

    /// As [`Cluster::ask`], but says EAGAIN where that would wait for others who are at it.
    pub(crate) fn ask_once<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Result<R> {
        let (kind, head) = request.message(arguments);
        // SAFETY: there are no bytes.
        let told = unsafe { self.other_nodes()?.ask(node, kind, &head, Bytes::None) }?;
        request.decode(&told.head)
    }

    /// Asks `node`; the answer, and how many bytes came with it.
    ///
    /// # Safety
    /// `bytes` are the caller's to read, or to write.
    pub(crate) unsafe fn ask_with<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
        bytes: Bytes,
    ) -> Result<(R, usize)> {
        let (kind, head) = request.message(arguments);
        forebay_trace::event!(CLUSTER_ASK, node.0, kind);
        let mut backoff = None;
        let told = loop {
            // SAFETY: passed on.
            match unsafe { self.other_nodes()?.ask(node, kind, &head, bytes) } {
                // Others are at it, and it doesn't wait for them: we do.
                Err(Errno::AGAIN) => backoff.get_or_insert_with(Backoff::new).wait()?,
                told => break told,
            }
        };
        let told = match told {
            Err(Errno::STALE) if kind != kind::EPOCH => {
                // It may know of a change of names that we don't.
                let theirs = self.ask(node, request::EPOCH, &())?;
                self.names().raise_epoch(theirs);
                return Err(Errno::STALE);
            }
            other => other?,
        };
        Ok((request.decode(&told.head)?, told.received))
    }

    /// The next message of `node`'s origin service about a request that this node knows by `number`;
    /// None: there is none yet. With its bytes, the request begins.
    ///
    /// # Errors
    /// ENOTCONN: the service doesn't run, or doesn't know the number. EHOSTDOWN.
    pub fn ask_origin(&self, node: NodeId, number: u64, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        self.ask(node, request::ORIGIN, &(number, bytes))
    }

    /// Whether any process of the pool has the file open.
    ///
    /// # Errors
    /// ETIMEDOUT; EHOSTDOWN.
    pub fn is_open(&self, id: ObjectId) -> Result<bool> {
        match self.object_away(id) {
            Some(home) => self.ask(home, request::IS_OPEN, &id),
            None => self.objects().is_open(id),
        }
    }

    /// The size of the pool's media and how much of them is used, on all nodes together; as they
    /// were a moment ago, elsewhere. None in a pool of one node, or if nobody can tell.
    pub fn capacity_of_all(&self) -> Option<(u64, u64)> {
        let e = self.peers()?;
        // SAFETY: there are no bytes.
        let told = unsafe { e.ask(e.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let (size, used) = told.head.split_first_chunk::<8>()?;
        let used = used.first_chunk::<8>()?;
        Some((u64::from_le_bytes(*size), u64::from_le_bytes(*used)))
    }

    /// The nodes with the most room, and their free bytes, as they were a moment ago: the largest
    /// first. None if nobody can tell.
    pub fn rooms(&self) -> Option<Vec<(NodeId, u64)>> {
        let others = self.peers()?;
        // SAFETY: there are no bytes.
        let told = unsafe { others.ask(others.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let list = told.head.get(16..)?;
        let room = |one: &[u8]| -> Option<(NodeId, u64)> {
            let (node, free) = one.split_first_chunk::<4>()?;
            let free = u64::from_le_bytes(*free.first_chunk::<8>()?);
            Some((NodeId(u32::from_le_bytes(*node)), free))
        };
        list.chunks_exact(12).map(room).collect()
    }
}

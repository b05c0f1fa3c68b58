//! Copies that other nodes carry out: a question names two files and ranges, and none of their
//! bytes passes through who asks.
//!
//! The node on which the bytes are to lie is asked. It has both files open as long as it is at it;
//! what doesn't lie there it reads as any node does. It answers soon, done or not, with at least
//! something done.

use super::messages::{List, decode, encode, kind};
use super::parts::{check_size, part_here};
use super::serve::{Reply, Server, home, parts, told};
use super::{Bytes, PeerRequest};
use crate::Cluster;
use crate::{COPIED_AT_ONCE, Range, Source, Target};
use forebay_store::controls::Opener;
use forebay_store::parts::CHANGED;
use forebay_store::{NewOpen, NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;

impl<'a> Cluster<'a> {
    /// Has another node copy from an open file to one of its own: how many bytes, at least one.
    ///
    /// # Errors
    /// ENODATA: the first file ends there; as for reading and writing.
    pub(crate) fn copy_away(
        &self,
        (from, at): (u32, u64),
        (home, id): (NodeId, ObjectId),
        to_at: u64,
        len: usize,
    ) -> Result<usize> {
        let ranges = List(vec![(at, to_at, len as u64)]);
        let question = (self.live_id(from), id, None::<u64>, ranges);
        let done: u64 = self.ask(home, kind::COPY, &question)?;
        Ok(done as usize)
    }

    /// Has nodes copy, all at once, from an open file to what they have of a striped one, which was
    /// cut so many times: how many bytes each has, of its ranges in their order.
    pub(crate) fn ask_copies(
        &self,
        from: u32,
        id: ObjectId,
        cuts: u64,
        ranges: BTreeMap<NodeId, Vec<Range>>,
    ) -> Result<BTreeMap<NodeId, Result<usize>>> {
        let from = self.live_id(from);
        let (nodes, heads): (Vec<NodeId>, Vec<Vec<u8>>) = ranges
            .into_iter()
            .map(|(node, ranges)| (node, encode(&(from, id, Some(cuts), List(ranges)))))
            .unzip();
        let ask = |(&node, head)| PeerRequest {
            node,
            kind: kind::COPY,
            head,
            bytes: Bytes::None,
        };
        let heads = heads.iter().map(Vec::as_slice);
        let questions: Vec<PeerRequest<'_>> = nodes.iter().zip(heads).map(ask).collect();
        // SAFETY: there are no bytes.
        let answers = unsafe { self.other_nodes()?.ask_all(&questions) };
        let done = answers.into_iter().map(|answer| {
            let done: u64 = decode(&answer?.head).ok_or(Errno::PROTO)?;
            Ok(done as usize)
        });
        Ok(nodes.into_iter().zip(done).collect())
    }
}

impl Server {
    /// Carries a copy out for `asker`.
    pub(super) fn copy(&self, store: &Cluster<'_>, asker: NodeId, head: &[u8]) -> Result<Reply> {
        type Asked = (ObjectId, ObjectId, Option<u64>, List<Range>);
        let (from, to, cuts, List(ranges)): Asked = parts(head)?;
        check_ranges(&ranges)?;
        let (to, target) = match cuts {
            None => (home(store, to)?, Target::File(Some(asker))),
            Some(cuts) if home(store, to).is_ok() => (to, Target::Behind(cuts)),
            Some(cuts) => {
                let id = part_here(store, to)?;
                self.parts.with_part(store, id, true, |_| Ok(()))?;
                (id.part(), Target::Part(cuts))
            }
        };
        let done = with_open(store, to, |to| {
            let done = with_source(store, from, |source| {
                store.copy_in(source, to, &ranges, target)
            });
            match done {
                // It may grow on other nodes: who asks goes on with those.
                Err(Errno::NOSPC) if cuts.is_none() && store.spill_here(to)? => Err(CHANGED),
                done => done,
            }
        });
        told(done? as u64)
    }

    /// Moves what this node has of a file from memory, for a while.
    pub(super) fn to_files(&self, store: &Cluster<'_>, head: &[u8]) -> Result<Reply> {
        let (id, from): (ObjectId, u64) = parts(head)?;
        let id = match home(store, id) {
            Ok(id) => id,
            Err(_) => part_here(store, id)?.part(),
        };
        told(with_open(store, id, |live| store.to_files(live, from))?)
    }
}

/// EPROTO for what nobody asks for.
fn check_ranges(ranges: &[Range]) -> Result<()> {
    let mut all = 0u64;
    for &(at, to_at, len) in ranges {
        check_size(at.saturating_add(len))?;
        check_size(to_at.saturating_add(len))?;
        all = all.saturating_add(len);
    }
    let sound = ranges.iter().all(|r| r.2 > 0) && (1..=COPIED_AT_ONCE).contains(&all);
    sound.then_some(()).ok_or(Errno::PROTO)
}

/// Calls `f` with the source of a copy.
fn with_source<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(Source) -> Result<T>,
) -> Result<T> {
    if id.is_part() || id.is_view() {
        return Err(Errno::PROTO);
    }
    match store.object_away(id) {
        Some(home) if id.stripe().is_none() => f(Source::On(home, id)),
        _ => with_open(store, id, |live| f(Source::Open(live))),
    }
}

/// Calls `f` with an object that is open meanwhile. By a description: for a use alone that takes
/// longer, a process has few places.
pub(crate) fn with_open<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T>,
) -> Result<T> {
    let (live, held) = store.live_acquire_held(id).map_err(|e| match e {
        // Who asks has it open. This node has lost it, by a death.
        Errno::NOENT => Errno::STALE,
        e => e,
    })?;
    // Whoever asks has it open himself.
    let opener = Opener::Kept(store.node());
    let new = NewOpen::new(id, libc::S_IFREG, libc::O_RDWR as u32).by(opener);
    let open = store
        .open_create_held(&new, Some((live, Some(held))))
        .inspect_err(|_| _ = store.live_release(live))?;
    let done = f(live);
    store.open_release(open).and(done)
}

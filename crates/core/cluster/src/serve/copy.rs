//! Copies that other nodes request. A request names two files and ranges, and carries no bytes.
//!
//! The request goes to the node that is to store the copied bytes. That node keeps both files open
//! during the copy, and reads bytes of other nodes as any node does. The node replies within about
//! half a second, but after at least one byte ([`crate::copy_range`]).

use super::{Call, check_size};
use crate::Cluster;
use crate::copy_range::{COPIED_AT_ONCE, Range, Source, Target};
use crate::live::with_open;
use crate::peers::messages::List;
use crate::peers::requests::Copying;
use forebay_store::stripe_units::CHANGED;
use forebay_store::{ObjectId, Result};
use rustix::io::Errno;

impl Copying for Call<'_> {
    fn copy(
        &self,
        source: ObjectId,
        id: ObjectId,
        cuts: Option<u64>,
        List(ranges): List<Range>,
    ) -> Result<u64> {
        let cluster = &self.cluster;
        let store = self.store();
        check_ranges(&ranges)?;
        let (to, target) = match cuts {
            None => (self.home(id)?, Target::File(Some(self.from))),
            Some(cuts) if self.home(id).is_ok() => (id, Target::Behind(cuts)),
            Some(cuts) => {
                let id = self.part_here(id)?;
                self.server.parts.with_part(self, id, true, |_| Ok(()))?;
                (id.part(), Target::Part(cuts))
            }
        };
        let done = with_open(cluster, to, |to| {
            let done = with_source(cluster, source, |source| {
                cluster.data().copy_in(source, to, &ranges, target)
            });
            match done {
                // The target was marked as spilled: the requesting process continues the copy on
                // other nodes.
                Err(Errno::NOSPC) if cuts.is_none() && store.parts().spill_here(to)? => {
                    Err(CHANGED)
                }
                done => done,
            }
        });
        Ok(done? as u64)
    }

    /// Moves this node's bytes of a file to its `files` media for about half a second. Returns the
    /// chunk with which the next request must begin; None if all bytes are moved.
    fn to_files(&self, id: ObjectId, chunk: u64) -> Result<Option<u64>> {
        let cluster = &self.cluster;
        let store = self.store();
        let id = match self.home(id) {
            Ok(id) => id,
            Err(_) => self.part_here(id)?.part(),
        };
        with_open(cluster, id, |live| store.content().to_files(live, chunk))
    }
}

/// Returns EPROTO for ranges that no node sends.
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

/// Calls `f` with the source of a copy. The source is opened on this node, unless it is a file of
/// another node and not striped.
fn with_source<T>(
    cluster: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(Source) -> Result<T>,
) -> Result<T> {
    if id.is_part() || id.is_view() {
        return Err(Errno::PROTO);
    }
    match cluster.remote_home(id) {
        Some(home) if id.stripe().is_none() => f(Source::On(home, id)),
        _ => with_open(cluster, id, |live| f(Source::Open(live))),
    }
}

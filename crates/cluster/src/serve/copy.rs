//! Copies that other nodes ask for. A request names two files and ranges, and carries no bytes.
//!
//! The node on which the bytes are to lie is asked. It keeps both files open during the copy, and
//! reads what lies on other nodes as any node does. It replies soon, with at least one byte copied
//! ([`crate::copy`]).

use super::parts::{check_size, part_here};
use super::{Reply, Server, home, parts, told};
use crate::Cluster;
use crate::copy::{COPIED_AT_ONCE, Range, Source, Target};
use crate::live::with_open;
use crate::peers::messages::List;
use forebay_store::parts::CHANGED;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;

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
                Err(Errno::NOSPC) if cuts.is_none() && store.parts().spill_here(to)? => {
                    Err(CHANGED)
                }
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
        told(with_open(store, id, |live| {
            store.content().to_files(live, from)
        })?)
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

//! Writes back stores through mappings that don't map the file's own bytes: mappings of a node's
//! shadow copy of a remote file, or of the kernel's pages of a mount.
//!
//! Only changed bytes are written. If others have changed the same bytes meanwhile, the conflict is
//! recorded in the pool's list of violations and reported on standard error, at most once a minute
//! for each file.

use crate::Fs;
use forebay_client::Violation;
use forebay_cluster::Conflict;
use forebay_store::controls::{Change, declared};
use forebay_store::now;
use forebay_store::process::write_notice;
use rustix::io::Result;
use std::hash::Hasher;
use std::sync::atomic::Ordering::*;
use twox_hash::XxHash3_64;

/// Maximum number of bytes of a path that a message shows.
const SHOWN: usize = 80;
/// Hash seed of conflicts, which differs from the seeds of other violations.
const SEED: u64 = 100;

impl Fs {
    /// Writes those bytes of a range of an open file that differ between `before` and `now`. The
    /// file doesn't become longer. If others have changed the same bytes meanwhile, their changes
    /// are overwritten and the conflict is reported.
    ///
    /// # Errors
    /// As for [`Fs::write`]. Some of the changes may have been written.
    pub fn merge(
        &self,
        open: u32,
        offset: u64,
        before: &[u8],
        now: &[u8],
    ) -> Result<Option<Conflict>> {
        let live = self.live_of(open)?;
        if before == now {
            return Ok(None);
        }
        let cluster = self.cluster();
        let merge = || cluster.mappings().merge(live, offset, before, now);
        let controls = self.controls();
        let merge = || controls.changing(open, live, Change::From(Some(offset)), merge);
        let conflict = cluster.namespace().with_room_of_the_removed(merge)?;
        self.notify_bytes(open, now.len(), libc::IN_MODIFY);
        Ok(conflict)
    }

    /// Adds a conflict to the list of violations: others have changed bytes of an open file that
    /// were also stored through a mapping here. Reports it on standard error, too, at most once a
    /// minute for each file.
    pub fn report_conflict(&self, open: u32, conflict: &Conflict) {
        let mut hash = XxHash3_64::with_seed(SEED);
        hash.write_u64(self.store().objects().open_file(open).id.load(Relaxed));
        let mut sentence = String::new();
        let noted = self.pool().note_violation(hash.finish(), || {
            let path = self.path_of_open(open).unwrap_or_else(|_| b"?".to_vec());
            let path = String::from_utf8_lossy(&path).into_owned();
            let what = what(self.store().peers().node_of_several(), conflict);
            let mount = String::from_utf8_lossy(self.mount());
            let end = path.floor_char_boundary(SHOWN);
            sentence = format!(
                "{mount}{}: {what}; what was written last stays",
                &path[..end]
            );
            let word = self
                .live_of(open)
                .map_or(0, |live| self.store().declared().controls(live));
            Violation {
                time: now() / 1_000_000_000,
                pid: self.controls().works_for(),
                path,
                control: format!(
                    "consistency = \"{}\"",
                    declared(word).0.resolve().consistency
                ),
                what,
                refused: false,
            }
        });
        if noted {
            write_notice(format_args!("{sentence}"));
        }
    }
}

fn what(me: Option<u32>, conflict: &Conflict) -> String {
    let (from, to) = (conflict.range.start, conflict.range.end);
    let here = me.map_or(String::new(), |node| format!(" on node {node}"));
    let there = match conflict.with {
        Some(node) => format!("on node {node}"),
        None => "by another program".into(),
    };
    format!(
        "the same bytes ({from} to {to}) were stored through a mapping{here} and changed {there}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_nodes_are_named() {
        let with = |with| Conflict { range: 5..9, with };
        let says = |me, other| what(me, &with(other));
        assert_eq!(
            says(Some(1), Some(0)),
            "the same bytes (5 to 9) were stored through a mapping on node 1 and changed on node 0"
        );
        assert!(says(Some(1), None).ends_with(" on node 1 and changed by another program"));
        assert!(says(None, None).ends_with(" mapping and changed by another program"));
    }
}

//! Changes of the origin by other processes of this host, reported by the kernel (inotify(7)).
//!
//! The service watches each directory whose entries are in the pool. An event names an entry, which
//! is then compared as in a turn of [`crate::external_changes`]. So a change is seen after
//! [`GATHER`] rather than after a turn. Names that the service is making, and open files, are
//! compared again after [`RETRY`].
//!
//! Events are hints. The turns find changes that the kernel doesn't report: those by other hosts,
//! in directories beyond the kernel's limit of watches, or after an overflow of its queue.

use crate::external_changes::ExternalChanges;
use crate::listing::Listing;
use crate::shared::Shared;
use crate::side::below;
use crate::tree::Tree;
use crate::watches::{Pending, Watches};
use forebay_posix::ObjectId;
use forebay_store::OriginState;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, Result};
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which events are gathered before their entries are compared.
const GATHER: Duration = Duration::from_millis(20);
/// Interval between two comparisons of a name that the service is making, or whose file is open.
const RETRY: Duration = Duration::from_millis(250);
/// Divisor: comparing takes at most one part in `SHARE` of a thread's time.
const SHARE: u32 = 10;

/// Compares the entries that the kernel's events name.
pub struct Notices {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub listing: Arc<Listing>,
    pub external: Arc<ExternalChanges>,
    pub watches: Arc<Watches>,
}

impl Notices {
    /// Compares the entries that the kernel's events name, until the pool is removed.
    pub fn notice_for_ever(&self) {
        let Some(queue) = &self.watches.queue else {
            return;
        };
        let mut pending = Pending::new();
        while self.shared.is_there() {
            let rest = Timespec::try_from(if pending.is_empty() {
                Duration::from_secs(1)
            } else {
                RETRY
            });
            let mut polled = [PollFd::new(queue, PollFlags::IN)];
            if poll(&mut polled, rest.ok().as_ref()).is_ok_and(|n| n > 0) {
                std::thread::sleep(GATHER);
                self.watches.take(queue, &mut pending);
            }
            let began = Instant::now();
            // The deepest directories first: a removed directory can be removed from the pool only
            // after its entries.
            let depth = |dir: &ObjectId| self.tree.relative_of(*dir).map_or(0, |at| at.len());
            let mut dirs: Vec<ObjectId> = pending.keys().copied().collect();
            dirs.sort_by_cached_key(|dir| Reverse(depth(dir)));
            for dir in dirs {
                let mut names = pending.remove(&dir).unwrap_or_default();
                // After a failure, the next turn compares the directory.
                if self.compare_names(dir, &mut names).is_ok() && !names.is_empty() {
                    pending.insert(dir, names);
                }
            }
            std::thread::sleep((began.elapsed() * SHARE).min(Duration::from_secs(60)));
        }
    }

    /// Compares entries of a directory. Leaves in `names` those that have to be compared again.
    fn compare_names(&self, dir: ObjectId, names: &mut HashSet<Vec<u8>>) -> Result<()> {
        if self.shared.inode(dir)?.origin.state != OriginState::Archived {
            names.clear();
            return Ok(());
        }
        for name in std::mem::take(names) {
            let (_held, at) = self.tree.path_held(dir)?;
            let path = below(&at, &name);
            let entry = self.shared.cluster().namespace().lookup(dir, &name)?;
            let there = self.shared.side.look(&path)?;
            match (entry, there) {
                (None, None) => {}
                (Some(entry), Some(_)) if self.shared.is_origin_only(&path, entry.kind) => {}
                (Some(entry), Some(_)) => {
                    if !self.external.compare((dir, &name), entry, &path, there)? {
                        names.insert(name);
                    }
                }
                _ if self.tree.pending_creates().is_made(dir, &name) => {
                    names.insert(name);
                }
                (None, Some(_)) => self.listing.add_entry(dir, &at, &name)?,
                (Some(entry), None) => match self.shared.inode(entry.id) {
                    Err(Errno::NOENT) => {}
                    object => self.external.is_gone(dir, &name, entry, &object?, &path)?,
                },
            }
            self.shared.advance();
        }
        Ok(())
    }
}

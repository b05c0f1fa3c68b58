//! The files that this node, as their home, keeps open for other nodes, whether a request of those
//! opened or created them.
//!
//! Each of the other nodes numbers its uses of files, so that repeating an open or a close changes
//! nothing. This node asks them periodically which uses still exist, and closes a use that is
//! missing from two replies in a row. When a node is declared dead, all of its uses are closed.

use super::{Call, Server, home, lock};
use crate::Cluster;
use crate::peers::messages::{List, Record};
use crate::peers::requests::{Opened, request};
use forebay_placement::NodeId;
use forebay_store::controls::Opener;
use forebay_store::remote_opens::UNKNOWN_USE;
use forebay_store::{Held, NewOpen, ObjectId};
use rustix::io::Errno;
use std::time::Duration;

/// The time between two calls of [`Server::check_open`], at least.
pub const BETWEEN_CHECKS: Duration = Duration::from_secs(5);
/// Number of files that one request asks about.
const MAX_FILES_PER_REQUEST: usize = 500;

/// A file that a node has open.
pub(super) struct OpenThere {
    /// The numbers by which the node knows its uses: usually one, more while one replaces another.
    /// Opening or closing the same use twice changes nothing.
    uses: Vec<u64>,
    /// Our open file description that keeps it.
    open: u32,
    /// Numbers that the node didn't know when it was asked last.
    doubted: Vec<u64>,
}

impl OpenThere {
    fn note(&mut self, number: u64) {
        if !self.uses.contains(&number) {
            self.uses.push(number);
        }
    }
}

impl Opened<Call<'_>> for Server {
    fn open(&self, call: &Call<'_>, id: ObjectId, usage: u64) -> Result<Record, Errno> {
        // The node has no use of the file now: a process that had it open there has closed it.
        let id = home(&call.store, id)?;
        self.fences.lift(&call.store, call.from, id)?;
        self.keep_open(&call.store, call.from, id, usage)?;
        Ok(Record(call.store.stat(id)?, Vec::new()))
    }

    fn reopen(&self, call: &Call<'_>, id: ObjectId, usage: u64) -> Result<(), Errno> {
        self.keep_open(&call.store, call.from, id, usage)
    }

    fn close(&self, call: &Call<'_>, id: ObjectId, usage: u64) -> Result<(), Errno> {
        self.end_use(&call.store, call.from, id, usage)
    }

    /// The uses of this node: the asker is the home of the objects.
    fn uses(&self, call: &Call<'_>, List(ids): List<ObjectId>) -> Result<List<u64>, Errno> {
        let uses = ids.iter().map(|&id| call.store.names().use_of(id));
        uses.collect::<Result<_, _>>().map(List)
    }
}

impl Server {
    /// A file is open on `node`: it must not be removed with its last name.
    pub(super) fn keep_open(
        &self,
        store: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
        number: u64,
    ) -> Result<(), Errno> {
        if self.fences.has(store, node, home(store, id)?) {
            return Err(Errno::OWNERDEAD);
        }
        if let Some(there) = lock(&self.open).get_mut(&(node, id)) {
            there.note(number);
            return Ok(());
        }
        self.keep(store, (node, id, number), store.live_acquire_held(id)?)
    }

    /// Keeps a file open for a node that has opened it by this number.
    pub(super) fn keep(
        &self,
        store: &Cluster<'_>,
        (node, id, number): (NodeId, ObjectId, u64),
        (live, held): (u32, Held<'_>),
    ) -> Result<(), Errno> {
        let new = NewOpen::new(id, libc::S_IFREG, libc::O_RDWR as u32).by(Opener::Kept(node));
        let open = store
            .objects()
            .open_create_held(&new, Some((live, Some(held))))
            .inspect_err(|_| _ = store.objects().live_release(live))?;
        let mut all = lock(&self.open);
        let there = all.entry((node, id)).or_insert(OpenThere {
            uses: Vec::new(),
            open,
            doubted: Vec::new(),
        });
        there.note(number);
        let twice = there.open != open;
        drop(all);
        if twice {
            store.objects().open_release(open)?;
        }
        Ok(())
    }

    /// A use of `node` has ended. The file is given up with its last use.
    pub(super) fn end_use(
        &self,
        store: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
        number: u64,
    ) -> Result<(), Errno> {
        let mut all = lock(&self.open);
        let Some(there) = all.get_mut(&(node, id)) else {
            return Ok(());
        };
        there.uses.retain(|n| *n != number);
        if !there.uses.is_empty() {
            return Ok(());
        }
        let open = there.open;
        all.remove(&(node, id));
        drop(all);
        store.objects().open_release(open)
    }

    /// Files are kept open here for other nodes. Asks these nodes whether they still have the files
    /// open: if a process there is killed at the wrong instant, no close is sent. A use that its
    /// node doesn't know at two calls in a row, at least [`BETWEEN_CHECKS`] apart, is given up.
    pub fn check_open(&self, store: &Cluster<'_>) {
        let mut all: Vec<(NodeId, ObjectId)> = lock(&self.open).keys().copied().collect();
        all.sort_unstable_by_key(|(node, id)| (node.0, id.0));
        for of_node in all.chunk_by(|a, b| a.0 == b.0) {
            for some in of_node.chunks(MAX_FILES_PER_REQUEST) {
                let ids = List(some.iter().map(|(_, id)| *id).collect());
                let known: Vec<Vec<u64>> = {
                    let open = lock(&self.open);
                    let uses = |key| open.get(key).map_or(Vec::new(), |o| o.uses.clone());
                    some.iter().map(uses).collect()
                };
                let Ok(List(reply)) = store.ask(some[0].0, request::USES, &ids) else {
                    // If the node stays unreachable, all its uses will be given up at once.
                    break;
                };
                for ((key, known), now) in some.iter().zip(known).zip(reply) {
                    self.doubt(store, *key, known, now);
                }
            }
        }
    }

    /// The node has an object open by a number of at most `now`; of its uses, those in `known` were
    /// known here before the node was asked.
    fn doubt(&self, store: &Cluster<'_>, key: (NodeId, ObjectId), mut known: Vec<u64>, now: u64) {
        if now == UNKNOWN_USE {
            return;
        }
        known.retain(|&number| number != now);
        let lost = {
            let mut open = lock(&self.open);
            let Some(there) = open.get_mut(&key) else {
                return;
            };
            let lost: Vec<u64> = known
                .iter()
                .copied()
                .filter(|number| there.doubted.contains(number))
                .collect();
            there.doubted = known;
            lost
        };
        for number in lost {
            // Records that can't be written back are tried again by the next repair.
            let _ = self.end_use(store, key.0, key.1, number);
        }
    }

    /// Releases all that is kept for `node`: its daemon has ended, or is cut off. Its programs may
    /// live on: they can no longer change what they had locked (`fences.rs`). Waits for the
    /// requests that the node sent before.
    pub fn gone(&self, store: &Cluster<'_>, node: NodeId) {
        self.fences.raise(store, node);
        self.fences.release(store, node);
        let mut left = Vec::new();
        lock(&self.open).retain(|key, there| {
            if key.0 == node {
                left.push(there.open);
            }
            key.0 != node
        });
        for open in left {
            // Records that can't be written back are tried again by the next repair.
            let _ = store.objects().open_release(open);
        }
    }
}

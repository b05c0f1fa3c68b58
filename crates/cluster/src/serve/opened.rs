//! The files that this node keeps open for other nodes, whether it made them for those or not.
//!
//! A node knows each of its uses by a number, so that opening or closing twice changes nothing.
//! This node asks now and then which uses still exist, and gives up a use that two answers in a row
//! don't know. When a node is given up, all of its uses end.

use super::{Call, Server, home, lock};
use crate::Cluster;
use crate::peers::messages::{List, Record};
use crate::peers::requests::{Opened, request};
use forebay_placement::NodeId;
use forebay_store::controls::Opener;
use forebay_store::foreign::UNKNOWN_USE;
use forebay_store::{Held, NewOpen, ObjectId};
use rustix::io::Errno;
use std::time::Duration;

/// The time between two calls of [`Server::check_open`], at least.
pub const BETWEEN_CHECKS: Duration = Duration::from_secs(5);
/// So many files are asked about at once.
const AT_ONCE: usize = 500;

/// A file that a node has open.
pub(super) struct OpenThere {
    /// By what numbers it knows its uses: one most of the time, more while one takes the place of
    /// another. To open or close the same twice changes nothing.
    uses: Vec<u64>,
    /// Our open file description that keeps it.
    open: u32,
    /// Of these numbers the node knew nothing when it was asked last.
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
        // The node has no use of the file now: whoever had it open there has closed it.
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
    /// A file is open on `node`: it must not go with its last name.
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

    /// Asks the nodes for which files are kept open whether they still have them open. Whoever dies
    /// at the wrong instant, there, can't say that it hasn't. What a node knows nothing of at two
    /// calls in a row is given up; these are at least [`BETWEEN_CHECKS`] apart.
    pub fn check_open(&self, store: &Cluster<'_>) {
        let mut all: Vec<(NodeId, ObjectId)> = lock(&self.open).keys().copied().collect();
        all.sort_unstable_by_key(|(node, id)| (node.0, id.0));
        for of_node in all.chunk_by(|a, b| a.0 == b.0) {
            for some in of_node.chunks(AT_ONCE) {
                let ids = List(some.iter().map(|(_, id)| *id).collect());
                let known: Vec<Vec<u64>> = {
                    let open = lock(&self.open);
                    let uses = |key| open.get(key).map_or(Vec::new(), |o| o.uses.clone());
                    some.iter().map(uses).collect()
                };
                let Ok(List(told)) = store.ask(some[0].0, request::USES, &ids) else {
                    // If it stays away, it will be given up as a whole.
                    break;
                };
                for ((key, known), now) in some.iter().zip(known).zip(told) {
                    self.doubt(store, *key, known, now);
                }
            }
        }
    }

    /// The node has an object open by the number `now` at most; of its uses, those in `known` were
    /// known here before it was asked.
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
            // What can't be written back is tried again when all is put in order.
            let _ = self.end_use(store, key.0, key.1, number);
        }
    }

    /// Gives up all that is kept for `node`: its daemon has ended, or is cut off. Its programs may
    /// live on: what they had locked they can't change any more (`fences.rs`). Waits for what
    /// it has asked before.
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
            // What can't be written back is tried again when all is put in order.
            let _ = store.objects().open_release(open);
        }
    }
}

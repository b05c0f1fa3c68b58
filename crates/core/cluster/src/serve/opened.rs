//! The files of this node that it keeps open for other nodes.
//!
//! Each of the other nodes numbers its uses of files, so that repeating an open or a close changes
//! nothing. This node periodically asks the others which uses still exist, and ends a use that is
//! missing from two replies in a row. When a node is declared dead, all of its uses are ended.

use super::{Call, Server, home, lock};
use crate::Cluster;
use crate::peers::messages::{List, Record};
use crate::peers::requests::{Opened, request};
use forebay_placement::NodeId;
use forebay_store::controls::Opener;
use forebay_store::remote_opens::UNKNOWN_USE;
use forebay_store::{Held, NewOpen, ObjectId};
use rustix::io::{Errno, Result};
use std::time::Duration;

/// Minimum time between two calls of [`Server::check_open`].
pub const BETWEEN_CHECKS: Duration = Duration::from_secs(5);
/// Maximum number of files in one request.
const MAX_FILES_PER_REQUEST: usize = 500;

/// A file that a node has open.
pub(super) struct OpenThere {
    /// The numbers that the node has given its uses of the file: usually one, more while one use
    /// replaces another. Opening or closing the same use twice changes nothing.
    uses: Vec<u64>,
    /// The daemon's open file description that keeps the file open.
    open: u32,
    /// Uses that were missing from the node's last reply.
    doubted: Vec<u64>,
}

impl OpenThere {
    fn note(&mut self, number: u64) {
        if !self.uses.contains(&number) {
            self.uses.push(number);
        }
    }
}

impl Opened for Call<'_> {
    fn open(&self, id: ObjectId, usage: u64) -> Result<Record> {
        // The node sends this request only if it has no use of the file: all earlier descriptors
        // there are closed.
        let id = self.home(id)?;
        self.server.fences.lift(&self.cluster, self.from, id)?;
        self.server.keep_open(&self.cluster, self.from, id, usage)?;
        Ok(Record(self.cluster.namespace().stat(id)?, Vec::new()))
    }

    fn reopen(&self, id: ObjectId, usage: u64) -> Result<()> {
        self.server.keep_open(&self.cluster, self.from, id, usage)
    }

    fn close(&self, id: ObjectId, usage: u64) -> Result<()> {
        self.server.end_use(&self.cluster, self.from, id, usage)
    }

    /// Unlike other handlers, this one doesn't check that this node is the home: the requesting
    /// node is the home of the objects, and the uses are this node's.
    fn uses(&self, List(ids): List<ObjectId>) -> Result<List<u64>> {
        let uses = ids.iter().map(|&id| self.store().names().use_of(id));
        uses.collect::<Result<_>>().map(List)
    }
}

impl Server {
    /// Keeps the file `id` open for `node`, so that the file isn't deleted with its last name.
    pub(super) fn keep_open(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
        number: u64,
    ) -> Result<()> {
        if self.fences.has(cluster, node, home(cluster, id)?) {
            return Err(Errno::OWNERDEAD);
        }
        if let Some(there) = lock(&self.open).get_mut(&(node, id)) {
            there.note(number);
            return Ok(());
        }
        self.keep(
            cluster,
            (node, id, number),
            cluster.opens().live_acquire_held(id)?,
        )
    }

    /// Records a node's use `number` of an object, and keeps the object open.
    pub(super) fn keep(
        &self,
        cluster: &Cluster<'_>,
        (node, id, number): (NodeId, ObjectId, u64),
        (live, held): (u32, Held<'_>),
    ) -> Result<()> {
        let new = NewOpen::new(id, libc::S_IFREG, libc::O_RDWR as u32).by(Opener::Kept(node));
        let open = cluster
            .store()
            .objects()
            .open_create_held(&new, Some((live, Some(held))))
            .inspect_err(|_| _ = cluster.store().objects().live_release(live))?;
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
            cluster.store().objects().open_release(open)?;
        }
        Ok(())
    }

    /// Ends a use of `node`. With the node's last use, this node closes the file.
    pub(super) fn end_use(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
        number: u64,
    ) -> Result<()> {
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
        cluster.store().objects().open_release(open)
    }

    /// Asks the other nodes whether they still have the files open that this node keeps open for
    /// them: a process that is killed at the wrong instant sends no close. Ends a use that its node
    /// doesn't know at two calls in a row, at least [`BETWEEN_CHECKS`] apart.
    pub fn check_open(&self, cluster: &Cluster<'_>) {
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
                let Ok(List(reply)) = cluster.ask(some[0].0, request::USES, &ids) else {
                    // If the node stays unreachable, `gone` ends all its uses.
                    break;
                };
                for ((key, known), now) in some.iter().zip(known).zip(reply) {
                    self.doubt(cluster, *key, known, now);
                }
            }
        }
    }

    /// Compares a node's reply with the uses recorded for it. `now`: the number of the node's
    /// present use of the object. `known`: the uses that were recorded before the request. Ends the
    /// uses that are missing from this reply and were missing from the one before.
    fn doubt(&self, cluster: &Cluster<'_>, key: (NodeId, ObjectId), mut known: Vec<u64>, now: u64) {
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
            let _ = self.end_use(cluster, key.0, key.1, number);
        }
    }

    /// Releases the locks and closes the files of `node` after its daemon has ended or was cut off.
    /// Programs of `node` may still run, but can no longer change what they had locked
    /// (`fences.rs`). Waits for requests of `node` that are in progress.
    pub fn gone(&self, cluster: &Cluster<'_>, node: NodeId) {
        self.fences.raise(cluster, node);
        self.fences.release(cluster, node);
        let mut left = Vec::new();
        lock(&self.open).retain(|key, there| {
            if key.0 == node {
                left.push(there.open);
            }
            key.0 != node
        });
        for open in left {
            // Records that can't be written back are tried again by the next repair.
            let _ = cluster.store().objects().open_release(open);
        }
    }
}

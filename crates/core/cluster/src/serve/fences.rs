//! Fences: what programs of a node that has lost its locks may no longer do.
//!
//! The home gives up a node that it can't reach for the pool's lease. It releases that node's
//! locks, and others get them. The node's programs may run on without knowing. So from that moment
//! the home refuses whatever they ask of a file that one of them had locked: EOWNERDEAD, which the
//! asking side turns into EIO and a sentence. A fence ends when the node opens the file again,
//! which it does only after all earlier descriptors there are closed.
//!
//! The order when a node is given up:
//!
//! 1. The fences are set.
//! 2. The home waits until the lease is over on the lost node itself, whose programs then leave its
//!    own part alone (`locks/leases.rs`).
//! 3. Requests of that node that are in progress come to their end.
//! 4. The other nodes with parts of the file are told, by a cut where the file ends
//!    (`Stripes::notify_parts_without`).
//! 5. The locks are released.
//!
//! The lock table keeps the fences, so that a later daemon knows them.

use super::{Server, lock};
use crate::Cluster;
use crate::locks::Standing;
use crate::peers::requests::{Declared, Fence, kind};
use forebay_placement::NodeId;
use forebay_store::ObjectId;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Requests that a lost node sent before are waited for; after each such interval, the log says so.
/// Longer than anything waits for a lock of the store (30 s).
const LOG_INTERVAL: Duration = Duration::from_secs(40);

/// The fences of a node's daemon.
#[derive(Default)]
pub(super) struct Fences {
    all: OnceLock<Mutex<HashSet<(NodeId, ObjectId)>>>,
    /// Requests that are being carried out, by asking node.
    at_work: Mutex<HashMap<NodeId, usize>>,
    ended: Condvar,
    /// Time of the last reply to a node that locks of its programs hold. Locked while `all` is.
    renewed: Mutex<HashMap<NodeId, Instant>>,
    /// Nodes that were given up and still have locks here, since other nodes with parts of the
    /// files couldn't be reached.
    late: Mutex<HashSet<NodeId>>,
    lease: OnceLock<Duration>,
}

/// A requested change that has passed the fences. It is in progress until this is dropped.
pub(super) struct Passed<'a>(&'a Fences, NodeId);

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        let mut at_work = lock(&self.0.at_work);
        if let Some(count) = at_work.get_mut(&self.1) {
            assert!(*count > 0, "a request that ends was counted");
            *count -= 1;
            if *count == 0 {
                at_work.remove(&self.1);
                self.0.ended.notify_all();
            }
        }
    }
}

/// The objects whose bytes or locks a request concerns.
fn objects(fence: Fence, head: &[u8]) -> [Option<ObjectId>; 2] {
    let at = |i: usize| {
        let bytes = head.get(8 * i..)?.first_chunk()?;
        Some(ObjectId(u64::from_le_bytes(*bytes)))
    };
    match fence {
        Fence::Free => [None, None],
        Fence::Looks | Fence::Changes => [at(0), None],
        Fence::Both => [at(0), at(1)],
    }
}

impl Fences {
    fn all(&self, store: &Cluster<'_>) -> &Mutex<HashSet<(NodeId, ObjectId)>> {
        let load = || Mutex::new(store.locks().fences().into_iter().collect());
        self.all.get_or_init(load)
    }

    /// Whether the node is fenced off from the object.
    pub(super) fn has(&self, store: &Cluster<'_>, node: NodeId, id: ObjectId) -> bool {
        lock(self.all(store)).contains(&(node, id))
    }

    /// Lets a request pass, or refuses it with EOWNERDEAD.
    pub(super) fn pass(
        &self,
        store: &Cluster<'_>,
        from: NodeId,
        request: &Declared,
        head: &[u8],
    ) -> Result<Option<Passed<'_>>, Errno> {
        let [Some(first), second] = objects(request.fence, head) else {
            return Ok(None);
        };
        // Counted before the check: a process that fences a node waits for all requests counted
        // until then.
        let passed = (request.fence != Fence::Looks).then(|| {
            *lock(&self.at_work).entry(from).or_insert(0) += 1;
            Passed(self, from)
        });
        let all = lock(self.all(store));
        if request.number == kind::LOCK {
            lock(&self.renewed).insert(from, Instant::now());
        }
        let fenced = |id: ObjectId| all.contains(&(from, id));
        if !all.is_empty() && (fenced(first) || second.is_some_and(fenced)) {
            Err(Errno::OWNERDEAD)
        } else {
            Ok(passed)
        }
    }

    /// Whether a node's programs still have their locks on each of these objects. Locks that they
    /// still have are valid for one more lease from now on.
    pub(super) fn renew(
        &self,
        store: &Cluster<'_>,
        node: NodeId,
        ids: &[ObjectId],
    ) -> Vec<Standing> {
        let all = lock(self.all(store));
        // `raise` adds its fences under the same lock before it reads this time: a node that is
        // told here that its locks hold keeps them for a whole lease.
        lock(&self.renewed).insert(node, Instant::now());
        store.standing(node, ids, |id| all.contains(&(node, id)))
    }

    /// Fences a node off from the objects that its programs have locked here. Waits until its
    /// earlier requests are done, and until its lease has ended, which the node notices by itself.
    pub(super) fn raise(&self, store: &Cluster<'_>, node: NodeId) {
        self.lift_lost(store);
        let locked = store.locks().locked_by(node);
        if locked.is_empty() {
            return;
        }
        let mut all = lock(self.all(store));
        all.extend(locked.into_iter().map(|id| (node, id)));
        let renewed = lock(&self.renewed).get(&node).copied();
        drop(all);
        if let (Some(renewed), Some(lease)) = (renewed, self.lease.get()) {
            // Longer than the lease: a write that the node began in time may still be in progress.
            let until = renewed + *lease + *lease / 8;
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        let mut next_log = Instant::now() + LOG_INTERVAL;
        let mut at_work = lock(&self.at_work);
        while at_work.contains_key(&node) {
            let left = next_log.saturating_duration_since(Instant::now());
            if left.is_zero() {
                eprintln!(
                    "forebay keeper: changes that node {} has asked for before it was lost take more \
                     than {} s: its locks stay until they are done",
                    node.0,
                    LOG_INTERVAL.as_secs()
                );
                next_log = Instant::now() + LOG_INTERVAL;
            }
            let waited = self.ended.wait_timeout(at_work, left);
            at_work = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives up the locks of a node that is fenced off from them. Where other nodes have parts of
    /// the file, these are told first (a cut more, of which the fenced one doesn't know and can't
    /// ask); if one can't be, the locks stay for now: [`Server::release_late`].
    pub(super) fn release(&self, store: &Cluster<'_>, node: NodeId) {
        let locked = store.locks().locked_by(node);
        let fenced = locked.into_iter().filter(|&id| self.has(store, node, id));
        let notified = fenced.filter(|&id| match store.stripes().notify_parts_without(id, node) {
            Ok(()) | Err(Errno::NOENT) => true,
            Err(e) => {
                eprintln!(
                    "forebay keeper: locks of node {} on a file ({:x}) stay: not all nodes with parts \
                     of it can be notified: {e}",
                    node.0, id.0
                );
                false
            }
        });
        let notified: HashSet<ObjectId> = notified.collect();
        // Meanwhile the node may have come back, closed a file, and locked it again.
        let all = lock(self.all(store));
        let ended = store.locks().end_node_locks(node, |id| {
            notified.contains(&id) && all.contains(&(node, id))
        });
        if let Err(e) = ended {
            eprintln!(
                "forebay keeper: can't release the locks of node {}: {e}",
                node.0
            );
        }
        let left = store.locks().locked_by(node);
        if left.iter().any(|&id| all.contains(&(node, id))) {
            lock(&self.late).insert(node)
        } else {
            lock(&self.late).remove(&node)
        };
    }

    /// Objects that were removed need no fence.
    fn lift_lost(&self, store: &Cluster<'_>) {
        let all: Vec<_> = lock(self.all(store)).iter().copied().collect();
        for (node, id) in all {
            if store.stat(id).is_err_and(|e| e == Errno::NOENT) {
                // If not now, then the next time.
                let _ = self.lift(store, node, id);
            }
        }
    }

    /// The node opens the object again: no program there has it open from before.
    pub(super) fn lift(
        &self,
        store: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
    ) -> Result<(), Errno> {
        let mut all = lock(self.all(store));
        if all.contains(&(node, id)) {
            store.locks().lift_fence(node, id)?;
            all.remove(&(node, id));
        }
        Ok(())
    }
}

impl Server {
    /// Sets the time after which nodes that can't be reached are given up. A node that was told
    /// that its locks hold keeps them for this long.
    pub fn set_lease(&self, lease: Duration) {
        let _ = self.fences.lease.set(lease);
    }

    /// Releases the locks of nodes that were given up before, where a node with parts of the file
    /// couldn't be reached then.
    pub fn release_late(&self, store: &Cluster<'_>) {
        let late = lock(&self.fences.late).clone();
        late.iter().for_each(|&n| self.fences.release(store, n));
    }

    /// How many objects nodes are fenced off from, of those that are still there.
    pub fn fences(&self, store: &Cluster<'_>) -> usize {
        lock(self.fences.all(store)).len()
    }
}

//! Fences: records by which the home refuses requests of a node that has lost its locks.
//!
//! The home gives up a node that it can't reach for the pool's lease. The home releases that node's
//! locks, and other nodes get them. The lost node's programs may still run, and don't know that
//! their locks are lost. So from that moment the home refuses their requests about any file that
//! one of them had locked, with EOWNERDEAD. The requesting side turns this into EIO and a message.
//! A fence ends when the lost node opens the file again. A node opens a file again only after all
//! its programs have closed the file.
//!
//! The steps by which a node is given up:
//!
//! 1. The fences are set.
//! 2. The home waits until the lease has expired on the lost node, too. From then on its programs
//!    don't change that node's own part (`locks/leases.rs`).
//! 3. The home waits until requests of that node that are in progress have ended.
//! 4. The file is truncated to its present size, so that the other nodes with parts refuse the lost
//!    node (`Stripes::notify_parts_without`).
//! 5. The locks are released.
//!
//! The fences are entries of the lock table, so that a later daemon knows them.

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

/// Interval at which the daemon logs that it still waits for earlier requests of a lost node.
/// Longer than any wait for a lock of the store (30 s).
const LOG_INTERVAL: Duration = Duration::from_secs(40);

/// The fences of a node's daemon.
#[derive(Default)]
pub(super) struct Fences {
    all: OnceLock<Mutex<HashSet<(NodeId, ObjectId)>>>,
    /// Number of changes in progress for each requesting node.
    at_work: Mutex<HashMap<NodeId, usize>>,
    ended: Condvar,
    /// For each node, the time of the last reply that its programs' locks are valid. Locked after
    /// `all`.
    renewed: Mutex<HashMap<NodeId, Instant>>,
    /// Nodes that were given up and whose locks aren't released yet, since other nodes with parts
    /// of the files couldn't be reached.
    late: Mutex<HashSet<NodeId>>,
    lease: OnceLock<Duration>,
}

/// A request for a change that has passed the fences. The request counts as in progress until this
/// value is dropped.
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
    fn all(&self, cluster: &Cluster<'_>) -> &Mutex<HashSet<(NodeId, ObjectId)>> {
        let load = || Mutex::new(cluster.store().locks().fences().into_iter().collect());
        self.all.get_or_init(load)
    }

    /// Whether a fence refuses the node's requests about the object.
    pub(super) fn has(&self, cluster: &Cluster<'_>, node: NodeId, id: ObjectId) -> bool {
        lock(self.all(cluster)).contains(&(node, id))
    }

    /// Refuses a request with EOWNERDEAD if there is a fence for one of its objects. Counts a
    /// change as in progress until the returned value is dropped.
    pub(super) fn pass(
        &self,
        cluster: &Cluster<'_>,
        from: NodeId,
        request: &Declared,
        head: &[u8],
    ) -> Result<Option<Passed<'_>>, Errno> {
        let [Some(first), second] = objects(request.fence, head) else {
            return Ok(None);
        };
        // Counted before the check: `raise` sets its fences, then waits for all counted requests.
        // So each request of the node is refused or waited for.
        let passed = (request.fence != Fence::Looks).then(|| {
            *lock(&self.at_work).entry(from).or_insert(0) += 1;
            Passed(self, from)
        });
        let all = lock(self.all(cluster));
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

    /// Returns, for each of these objects, whether the node's programs still have their locks.
    /// These locks are valid for one more lease from now on.
    pub(super) fn renew(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        ids: &[ObjectId],
    ) -> Vec<Standing> {
        let all = lock(self.all(cluster));
        // `raise` adds its fences under the same lock before it reads this time: so a node that is
        // told that its locks are valid has them for a whole lease.
        lock(&self.renewed).insert(node, Instant::now());
        cluster
            .locks()
            .standing(node, ids, |id| all.contains(&(node, id)))
    }

    /// Sets fences for a node and all objects of this node that its programs have locked. Waits
    /// until the node's lease has expired and until its earlier requests have ended.
    pub(super) fn raise(&self, cluster: &Cluster<'_>, node: NodeId) {
        self.lift_lost(cluster);
        let locked = cluster.store().locks().locked_by(node);
        if locked.is_empty() {
            return;
        }
        let mut all = lock(self.all(cluster));
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

    /// Releases the fenced locks of a lost node. If other nodes have parts of a file, first makes
    /// them refuse the lost node: the file is cut, and the lost node can't learn the new number of
    /// cuts. If a node with a part can't be reached, the file's locks stay until
    /// [`Server::release_late`].
    pub(super) fn release(&self, cluster: &Cluster<'_>, node: NodeId) {
        let locked = cluster.store().locks().locked_by(node);
        let fenced = locked.into_iter().filter(|&id| self.has(cluster, node, id));
        let notified = fenced.filter(|&id| match cluster.stripes().notify_parts_without(id, node) {
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
        // Only where the fence still exists: the node may have come back meanwhile, closed a file,
        // opened it again, and locked it.
        let all = lock(self.all(cluster));
        let ended = cluster.store().locks().end_node_locks(node, |id| {
            notified.contains(&id) && all.contains(&(node, id))
        });
        if let Err(e) = ended {
            eprintln!(
                "forebay keeper: can't release the locks of node {}: {e}",
                node.0
            );
        }
        let left = cluster.store().locks().locked_by(node);
        if left.iter().any(|&id| all.contains(&(node, id))) {
            lock(&self.late).insert(node)
        } else {
            lock(&self.late).remove(&node)
        };
    }

    /// Removes the fences of objects that were removed.
    fn lift_lost(&self, cluster: &Cluster<'_>) {
        let all: Vec<_> = lock(self.all(cluster)).iter().copied().collect();
        for (node, id) in all {
            if cluster
                .namespace()
                .stat(id)
                .is_err_and(|e| e == Errno::NOENT)
            {
                // After a failure, the next call of `lift_lost` tries again.
                let _ = self.lift(cluster, node, id);
            }
        }
    }

    /// Removes the fence for a node that opens the object again: no program of the node still has
    /// the object open from before.
    pub(super) fn lift(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        id: ObjectId,
    ) -> Result<(), Errno> {
        let mut all = lock(self.all(cluster));
        if all.contains(&(node, id)) {
            cluster.store().locks().lift_fence(node, id)?;
            all.remove(&(node, id));
        }
        Ok(())
    }
}

impl Server {
    /// Sets the time after which unreachable nodes are given up. For this time, a node's locks are
    /// valid after each reply that confirms them.
    pub fn set_lease(&self, lease: Duration) {
        let _ = self.fences.lease.set(lease);
    }

    /// Releases locks of nodes that were given up earlier, when a node with parts of the file
    /// couldn't be reached.
    pub fn release_late(&self, cluster: &Cluster<'_>) {
        let late = lock(&self.fences.late).clone();
        late.iter().for_each(|&n| self.fences.release(cluster, n));
    }
}

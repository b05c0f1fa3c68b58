//! Locks on files that lie on another node.
//!
//! The home's lock table contains these locks; the home's daemon sets them for the requesting
//! process. A waiting process repeats its request in growing intervals, up to
//! [`MAX_POLL_INTERVAL`]. Before the first request, this node records the owner and the file, so
//! that the locks are released when the owner ends. The home may miss the end of an owner, so it
//! periodically asks the owners' nodes which locks the owners still have
//! ([`Locks::check_lock_owners`]).

use super::leases::clock;
use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::Locks;
use forebay_store::locks::{InTheWay, LockType, Owner, Request, Sort, Waited, Waiting};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::time::Duration;

/// Maximum pause between two requests for a lock that another owner holds.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of owners in one request.
const MAX_OWNERS_PER_REQUEST: usize = 500;

impl<'a> Locks<'a> {
    pub(crate) fn lock_there(&self, home: NodeId, request: &Request, wait: bool) -> Result<()> {
        self.check_lease_of(request.object)?;
        self.store()
            .locks()
            .locks_of(request.object)?
            .note(request.owner)?;
        let relied_on = request.sort != Sort::Use && request.want != LockType::Unlocked;
        let search = |mine: &Waited, ask| self.is_deadlock(mine, ask);
        let mut waiting: Option<Waiting<'_>> = None;
        let mut step = Duration::from_micros(100);
        loop {
            let asked_at = clock();
            let other: Option<InTheWay> = self.cluster.ask(home, request::LOCK, request)?;
            if other.is_none() {
                return if relied_on {
                    self.lease_from(request.object, asked_at)
                } else {
                    Ok(())
                };
            }
            if !wait {
                return Err(Errno::AGAIN);
            }
            let waiting =
                waiting.get_or_insert_with(|| Waiting::new(self.store(), request, home, &search));
            let most = waiting.check()?;
            let backoff = rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: step.min(most.max(Duration::from_micros(50))).as_nanos() as _,
            };
            step = (step * 2).min(MAX_POLL_INTERVAL);
            if let rustix::thread::NanosleepRelativeResult::Interrupted(_) =
                rustix::thread::nanosleep(&backoff)
            {
                waiting.interrupted()?;
            }
        }
    }

    pub(crate) fn lock_in_the_way_there(
        &self,
        home: NodeId,
        request: &Request,
    ) -> Result<Option<InTheWay>> {
        self.check_lease_of(request.object)?;
        self.cluster.ask(home, request::LOCK_TEST, request)
    }

    pub(crate) fn end_locks_there(
        &self,
        home: NodeId,
        object: ObjectId,
        owner: Owner,
    ) -> Result<()> {
        if forebay_placement::planted("lock-kept") {
            return Ok(());
        }
        match self.cluster.ask(home, request::END_LOCKS, &(object, owner)) {
            // When the home can be reached again, its check of lock owners releases the locks.
            Err(Errno::HOSTDOWN) => Ok(()),
            reply => reply,
        }
    }

    /// Asks the other nodes whether the owners of locks in this node's table still have these
    /// locks, and releases the locks of those that don't. (A node whose daemon is restarted may
    /// miss the end of a process; and a request that was in progress when its sender was killed may
    /// be carried out after the sender's locks were released.)
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn check_lock_owners(&self) -> Result<()> {
        let mut remote = self.store().locks().remote_locks();
        remote.sort_unstable_by_key(|f| f.owner.node.0);
        for of_node in remote.chunk_by(|a, b| a.owner.node == b.owner.node) {
            let node = of_node[0].owner.node;
            for some in of_node.chunks(MAX_OWNERS_PER_REQUEST) {
                let arguments = List(some.iter().map(|f| (f.object, f.owner)).collect());
                let Ok(reply) = self.cluster.ask(node, request::HOLDS, &arguments) else {
                    // If the node stays unreachable, all its locks will be released.
                    break;
                };
                for (remote, holds) in some.iter().zip(reply.0) {
                    if !holds {
                        self.store().locks().drop_remote_lock(remote)?;
                    }
                }
            }
        }
        Ok(())
    }
}

//! Locks on files that lie on another node.
//!
//! The home's table has them; its daemon sets them for the asking process. A waiting process asks
//! again in growing steps, up to [`LONGEST`]. This node notes each owner and file before the first
//! request. By that note the locks are given up at the end of the owner. The home asks now and then
//! whether the owners still have locks ([`Cluster::check_lock_owners`]), because it may have missed
//! an end.

use super::leases::clock;
use crate::Cluster;
use crate::peers::messages::List;
use crate::peers::requests::request;
use forebay_store::locks::{InTheWay, LockType, Owner, Request, Sort, Waited, Waiting};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::time::Duration;

/// Longest step between two questions.
const LONGEST: Duration = Duration::from_millis(5);
/// Owners that one question is about, at most.
const AT_ONCE: usize = 500;

impl<'a> Cluster<'a> {
    pub(crate) fn lock_there(&self, home: NodeId, request: &Request, wait: bool) -> Result<()> {
        self.check_lease_of(request.object)?;
        self.locks().locks_of(request.object)?.note(request.owner)?;
        let relied_on = request.sort != Sort::Use && request.want != LockType::Unlocked;
        let search = |mine: &Waited, ask| self.is_deadlock(mine, ask);
        let mut waiting: Option<Waiting<'_>> = None;
        let mut step = Duration::from_micros(100);
        loop {
            let asked = clock();
            let other: Option<InTheWay> = self.ask(home, request::LOCK, request)?;
            if other.is_none() {
                return match relied_on {
                    true => self.lease_from(request.object, asked),
                    false => Ok(()),
                };
            }
            if !wait {
                return Err(Errno::AGAIN);
            }
            let waiting = waiting.get_or_insert_with(|| Waiting::new(self, request, home, &search));
            let most = waiting.check()?;
            let backoff = rustix::thread::Timespec {
                tv_sec: 0,
                tv_nsec: step.min(most.max(Duration::from_micros(50))).as_nanos() as _,
            };
            step = (step * 2).min(LONGEST);
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
        self.ask(home, request::LOCK_TEST, request)
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
        match self.ask(home, request::END_LOCKS, &(object, owner)) {
            // Should it come back, it will find out.
            Err(Errno::HOSTDOWN) => Ok(()),
            told => told,
        }
    }

    /// Asks the other nodes whether those who have locks here still have them, and gives up the
    /// others'. (A node whose daemon is started anew may miss the end of a process; and a question
    /// that was under way when its asker was killed may be carried out after what that one had was
    /// given up.)
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn check_lock_owners(&self) -> Result<()> {
        let mut foreign = self.locks().foreign_locks();
        foreign.sort_unstable_by_key(|f| f.owner.node.0);
        for of_node in foreign.chunk_by(|a, b| a.owner.node == b.owner.node) {
            let node = of_node[0].owner.node;
            for some in of_node.chunks(AT_ONCE) {
                let question = List(some.iter().map(|f| (f.object, f.owner)).collect());
                let Ok(told) = self.ask(node, request::HOLDS, &question) else {
                    // If it stays away, it will be given up as a whole.
                    break;
                };
                for (foreign, holds) in some.iter().zip(told.0) {
                    if !holds {
                        self.locks().drop_foreign(foreign)?;
                    }
                }
            }
        }
        Ok(())
    }
}

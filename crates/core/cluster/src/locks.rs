//! Locks of programs on files of any node, and the search for deadlocks.
//!
//! The lock table of a file's home contains all locks on the file. This module waits until
//! conflicting locks are released.
//!
//! A deadlock is a circle of processes, on any nodes, that wait for each other's locks. Each
//! waiting process searches for such a circle in growing intervals, at first without requests to
//! other nodes, later on all nodes. The searching process finds the processes that hold the lock it
//! wants, then the locks for which these processes wait, the holders of these locks, and so on,
//! until it finds itself. The replies come from different moments. But a waiting process releases
//! no locks: so if at the end all members still wait for the same locks, the circle existed at one
//! moment. A search follows only processes that began to wait earlier than the searching process.
//! So only the process that closed the circle finds it, and gets EDEADLK.
//!
//! As in Linux, the search covers locks of processes only (F_SETLKW), and assumes that no other
//! thread of a waiting process releases a lock.

mod leases;
mod remote;

use crate::peers::requests::request;
use crate::views::Locks;
use forebay_runtime::atomics::futex;
use forebay_store::locks::{
    Counted, HOLDER_CHECK_INTERVAL, InTheWay, LockType, Owner, Request, Sort, TO_THE_END, Waited,
    Waiting,
};
use forebay_store::{ObjectId, Result};
pub(crate) use leases::Standing;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// Maximum number of processes that one search examines.
const MAX_SEARCHED_PROCESSES: usize = 64;

/// The path so far of the search for a circle: the owners that wait, and the lock for which each
/// waits.
type Path = Vec<(Owner, u64)>;

impl<'a> Locks<'a> {
    /// Returns a lock that conflicts with the lock `want` on a range; None if no lock does.
    ///
    /// # Errors
    /// EHOSTDOWN.
    pub fn range_in_the_way(
        &self,
        open: u32,
        of_description: bool,
        want: LockType,
        range: (u64, u64),
    ) -> Result<Option<InTheWay>> {
        let request = self.range_request(open, of_description, want, range)?;
        match self.cluster.remote_home(request.object) {
            Some(home) => self.lock_in_the_way_there(home, &request),
            None => self.store().locks().lock_in_the_way(&request),
        }
    }

    /// Sets a lock on an object of any node.
    pub(crate) fn lock(&self, request: &Request, wait: bool) -> Result<()> {
        match self.cluster.remote_home(request.object) {
            Some(home) => self.lock_there(home, request, wait),
            None => self.lock_here(request, wait),
        }
    }

    fn lock_here(&self, request: &Request, wait: bool) -> Result<()> {
        let Some(first) = self.store().locks().lock_now(request)? else {
            return Ok(());
        };
        let mut other = first;
        if !self
            .store()
            .locks()
            .forget_if_dead(request.object, other.owner)?
            && !wait
        {
            return Err(Errno::AGAIN);
        }
        let chain = self.store().control.lock_chain(request.object.0);
        let _counted = Counted::new(chain);
        let search = |mine: &Waited, ask| self.is_deadlock(mine, ask);
        let mut waiting = Waiting::new(self.store(), request, self.store().peers().node(), &search);
        loop {
            let seen = chain.changes.load(Acquire);
            match self.store().locks().lock_now(request)? {
                None => return Ok(()),
                Some(_) if !wait => return Err(Errno::AGAIN),
                Some(o) => other = o,
            }
            let turn = waiting.check()?.min(HOLDER_CHECK_INTERVAL);
            match futex::wait(&chain.changes, seen, turn) {
                Err(Errno::INTR) => waiting.interrupted()?,
                Err(Errno::TIMEDOUT) => {
                    _ = self
                        .store()
                        .locks()
                        .forget_if_dead(request.object, other.owner)?
                }
                _ => {}
            }
        }
    }

    /// Carries out flock(2) for the description `open`. With `wait`, waits for conflicting locks.
    ///
    /// # Errors
    /// EAGAIN if another lock conflicts and `wait` is false; EINTR if a signal arrived while
    /// waiting; ENOLCK if the lock table is full; EHOSTDOWN.
    pub fn flock(&self, open: u32, want: LockType, wait: bool) -> Result<()> {
        if want == LockType::Unlocked
            && self.store().objects().open_file(open).locker.load(Acquire) == 0
        {
            return Ok(());
        }
        let request = Request {
            object: ObjectId(self.store().objects().open_file(open).id.load(Acquire)),
            owner: self.store().locks().lock_owner_description(open),
            sort: Sort::Whole,
            want,
            start: 0,
            end: TO_THE_END,
        };
        self.lock(&request, wait)
    }

    /// Sets fcntl's lock on a range of the file that `open` has open. The lock's owner is this
    /// process, or the description if `of_description`.
    ///
    /// # Errors
    /// As for [`Locks::flock`]; EDEADLK if processes would wait for each other in a circle.
    pub fn lock_range(
        &self,
        open: u32,
        of_description: bool,
        want: LockType,
        (start, end): (u64, u64),
        wait: bool,
    ) -> Result<()> {
        let request = self.range_request(open, of_description, want, (start, end))?;
        let any = if of_description {
            &self.store().objects().open_file(open).locker
        } else {
            &self
                .store()
                .control
                .process(request.owner.slot as usize)
                .locked
        };
        if want == LockType::Unlocked && any.load(Acquire) == 0 {
            return Ok(());
        }
        if !of_description {
            // Set before the lock exists: a process that releases the locks of this process reads
            // this flag.
            any.store(1, Release);
        }
        self.lock(&request, wait)
    }

    fn range_request(
        &self,
        open: u32,
        of_description: bool,
        want: LockType,
        (start, end): (u64, u64),
    ) -> Result<Request> {
        Ok(Request {
            object: ObjectId(self.store().objects().open_file(open).id.load(Acquire)),
            owner: if of_description {
                self.store().locks().lock_owner_description(open)
            } else {
                self.store().locks().lock_owner_process()?
            },
            sort: Sort::Range,
            want,
            start,
            end,
        })
    }

    /// Whether the process that waits for `mine` must give up because of a deadlock. Without `ask`,
    /// examines only what this node knows.
    pub(crate) fn is_deadlock(&self, mine: &Waited, ask: bool) -> Result<bool> {
        let ask = ask && self.store().remote.is_some();
        let (mut path, mut seen) = (Path::new(), Vec::new());
        let found = self.leads_back(mine, mine, ask, &mut path, &mut seen);
        Ok(found && path.iter().all(|(o, s)| self.still_waits(*o, *s, ask)))
    }

    fn leads_back(
        &self,
        wait: &Waited,
        to: &Waited,
        ask: bool,
        path: &mut Path,
        seen: &mut Vec<Owner>,
    ) -> bool {
        for owner in self.blockers(wait, ask) {
            if owner == to.request.owner {
                return true;
            }
            if seen.contains(&owner) || seen.len() >= MAX_SEARCHED_PROCESSES {
                continue;
            }
            seen.push(owner);
            for wait in self.waits(owner, ask) {
                if wait.since() > to.since() {
                    continue;
                }
                path.push((owner, wait.stamp));
                if self.leads_back(&wait, to, ask, path, seen) {
                    return true;
                }
                path.pop();
            }
        }
        false
    }

    /// Returns the processes whose locks conflict with `wait`. An unreachable node counts as having
    /// no locks, so no deadlock through such a node is found.
    fn blockers(&self, wait: &Waited, ask: bool) -> Vec<Owner> {
        if wait.home == self.store().peers().node() {
            let locks = self.store().locks().locks_of(wait.request.object);
            return locks.map_or(Vec::new(), |l| l.blockers(&wait.request));
        }
        if !ask {
            return Vec::new();
        }
        let reply = self
            .cluster
            .ask(wait.home, request::BLOCKERS, &wait.request);
        reply.map_or(Vec::new(), |list| list.0)
    }

    fn waits(&self, owner: Owner, ask: bool) -> Vec<Waited> {
        if owner.node == self.store().peers().node() {
            return self.store().locks().waits_here(owner);
        }
        if !ask {
            return Vec::new();
        }
        let reply = self.cluster.ask(owner.node, request::WAITS, &owner);
        reply.map_or(Vec::new(), |waits| waits.0)
    }

    fn still_waits(&self, owner: Owner, stamp: u64, ask: bool) -> bool {
        self.waits(owner, ask).iter().any(|w| w.stamp == stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{TestStore, store};
    use forebay_store::NodeId;
    use forebay_store::control_region::slot_state;
    use forebay_store::locks::WHO;

    fn range(object: ObjectId, owner: Owner, want: LockType, start: u64, end: u64) -> Request {
        Request {
            object,
            owner,
            sort: Sort::Range,
            want,
            start,
            end,
        }
    }

    #[test]
    fn locks_of_the_dead_are_no_obstacle_and_are_found() {
        let s = store("locks-dead");
        let object = s.make("f");
        let mut sleep = std::process::Command::new("sleep");
        let mut child = sleep.arg("60").spawn().unwrap();
        let word = forebay_store::process::word_running(child.id()).unwrap();
        assert_eq!(forebay_store::process::state_of(word), slot_state::USED);
        child.kill().unwrap();
        child.wait().unwrap();
        let dead = Owner {
            node: NodeId(0),
            number: word & WHO,
            slot: 9,
        };
        let mine = s.locks().lock_owner_process().unwrap();
        let all = |owner| range(object, owner, LockType::Exclusive, 0, TO_THE_END);
        assert_eq!(s.locks().lock_now(&all(dead)), Ok(None));
        assert!(
            forebay_store::fsck::check(&s)
                .unwrap()
                .iter()
                .any(|f| f.contains("locked by"))
        );
        assert_eq!(s.cluster().locks().lock_here(&all(mine), false), Ok(()));
        assert_eq!(
            s.locks()
                .locks_of(object)
                .unwrap()
                .conflict(&all(dead))
                .unwrap()
                .owner,
            mine
        );
        s.control()
            .process(mine.slot as usize)
            .locked
            .store(1, Relaxed);
        s.locks().end_process_locks(object).unwrap();
        // The dead process's lock is released although no process waits for it.
        assert_eq!(s.locks().lock_now(&all(dead)), Ok(None));
        s.control().header().leaks.store(1, Relaxed);
        assert_eq!(s.recovery().put_in_order(), Ok(true));
        assert_eq!(s.locks().linked_locks().unwrap().len(), 0);
        assert_eq!(forebay_store::fsck::check(&s), Ok(vec![]));
    }

    /// Records that another process waits for a lock.
    fn let_wait(s: &TestStore, slot: u32, stamp: u64, request: &Request) {
        let wait = &s.control().process(slot as usize).waits[0];
        wait.object.store(request.object.0, Relaxed);
        wait.start.store(request.start, Relaxed);
        wait.end.store(request.end, Relaxed);
        wait.home.store(0, Relaxed);
        wait.kind.store(request.want as u32, Relaxed);
        wait.stamp.store(stamp, Release);
    }

    #[test]
    fn a_circle_is_a_deadlock_for_the_last_of_it() {
        let s = store("locks-circle");
        let object = s.make("f");
        let mine = s.locks().lock_owner_process().unwrap();
        // A second living owner: a child in a slot of its own.
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let slot = forebay_store::process::attach(s.control()).unwrap();
        let word = forebay_store::process::word_running(child.id()).unwrap();
        s.control()
            .process(slot as usize)
            .owner
            .store(word, Release);
        let other = s.locks().lock_owner_slot(slot);
        let byte = |owner, at| range(object, owner, LockType::Exclusive, at, at);
        assert_eq!(s.locks().lock_now(&byte(mine, 0)), Ok(None));
        assert_eq!(s.locks().lock_now(&byte(other, 1)), Ok(None));
        let waits = |stamp| Waited {
            stamp,
            home: NodeId(0),
            request: byte(mine, 1),
        };
        assert_eq!(
            s.cluster().locks().is_deadlock(&waits(100), true),
            Ok(false),
            "it waits for nothing"
        );
        let_wait(&s, slot, 50, &byte(other, 2));
        assert_eq!(
            s.cluster().locks().is_deadlock(&waits(100), true),
            Ok(false),
            "nobody has that"
        );
        let_wait(&s, slot, 50, &byte(other, 0));
        assert_eq!(s.cluster().locks().is_deadlock(&waits(100), true), Ok(true));
        assert_eq!(
            s.cluster().locks().is_deadlock(&waits(40), true),
            Ok(false),
            "the other one gives in"
        );
        assert_eq!(
            s.cluster().locks().lock_here(&byte(mine, 1), true),
            Err(Errno::DEADLK)
        );
        assert!(s.locks().waits_of(mine).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            s.cluster().locks().lock_here(&byte(mine, 1), true),
            Ok(()),
            "the dead hold nothing"
        );
    }
}

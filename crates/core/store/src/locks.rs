//! Locks on files: flock(2), fcntl's ranges of a process, and those of an open file description.
//!
//! All locks on an object lie in one table ([`table`]), in the control region of the object's home.
//! Processes of the home set them there directly. Processes of other nodes send requests to the
//! home's daemon. So locks survive any daemon. A lock belongs to a process or to a description
//! ([`Owner`]). A process's lock ends when the process closes the file or dies, a description's
//! lock with its last descriptor. An owner of locks on other nodes has a record in its own node's
//! table, by which these locks are released (`locks/remote.rs` of the crate `cluster`).
//!
//! A waiter sleeps on the chain's count of releases, or repeats its request if the lock lies on
//! another node ([`wait`]). The cluster finds deadlocks. Requests and owners are defined in
//! `lock_request.rs`.

mod table;
#[cfg(test)]
mod tests;
mod wait;

pub use crate::lock_request::*;
pub(crate) use table::Locks;
pub use wait::{Waiting, handler_begins, interruptible, stamp};

use crate::ObjectId;
use crate::control_region::LockChain;
use crate::process::{self, state_of};
use crate::views::LockTable;
use forebay_runtime::atomics::Ordering::*;
use rustix::io::Result;
use std::time::Duration;

/// Maximum time after which a waiter notices that the holder of a lock has died.
pub const HOLDER_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl LockTable<'_> {
    /// This process, as an owner of locks.
    ///
    /// # Errors
    /// EAGAIN if it can't attach.
    pub fn lock_owner_process(&self) -> Result<Owner> {
        self.store
            .process_slot()
            .map(|slot| self.lock_owner_slot(slot))
    }

    /// The process in `slot`, as an owner of locks. The process may have died.
    pub fn lock_owner_slot(&self, slot: u32) -> Owner {
        Owner {
            node: self.store.peers().node(),
            number: self
                .store
                .control
                .process(slot as usize)
                .owner
                .load(Acquire)
                & WHO,
            slot,
        }
    }

    /// An open file description, as an owner of locks. The description gets its number when it
    /// first needs one.
    pub fn lock_owner_description(&self, open: u32) -> Owner {
        let header = self.store.control.header();
        let place = &self.store.objects().open_file(open).locker;
        let mut locker = place.load(Acquire);
        if locker == 0 {
            let new = header.lockers.fetch_add(1, AcqRel) + 1;
            locker = match place.compare_exchange(0, new, AcqRel, Acquire) {
                Ok(_) => new,
                Err(other) => other,
            };
        }
        self.owner_of_locker(locker)
    }

    /// Whether `owner` is the description `open` of this node.
    pub fn description_owns(&self, open: u32, owner: Owner) -> bool {
        let locker = self.store.objects().open_file(open).locker.load(Acquire);
        locker != 0 && self.owner_of_locker(locker) == owner
    }

    fn owner_of_locker(&self, locker: u32) -> Owner {
        let born = u64::from(self.store.control.header().born.load(Relaxed));
        Owner {
            node: self.store.peers().node(),
            number: DESCRIPTION | (born << 33 >> 1) | u64::from(locker),
            slot: 0,
        }
    }

    /// A lock that conflicts with `request`, on an object of this node.
    pub fn lock_in_the_way(&self, request: &Request) -> Result<Option<InTheWay>> {
        loop {
            let found = self.locks_of(request.object)?.conflict(request);
            match found {
                Some(other) if self.forget_if_dead(request.object, other.owner)? => {}
                found => return Ok(found),
            }
        }
    }

    /// If the owner is a process of this node that has died, releases its locks on the object and
    /// returns true. (The keeper would release the locks within about a second.)
    pub fn forget_if_dead(&self, object: ObjectId, owner: Owner) -> Result<bool> {
        let dead = self.is_dead(owner);
        if dead {
            self.locks_of(object)?.remove(owner);
        }
        Ok(dead)
    }

    fn is_dead(&self, owner: Owner) -> bool {
        owner.node == self.store.peers().node()
            && owner.pid().is_some()
            && !process::runs(owner.number)
    }

    /// The waits of a process of this node for locks.
    pub fn waits_here(&self, owner: Owner) -> Vec<Waited> {
        if self.is_dead(owner) {
            Vec::new()
        } else {
            self.waits_of(owner)
        }
    }

    /// Whether an owner of this node may have locks on an object of another node.
    pub fn holds(&self, object: ObjectId, owner: Owner) -> Result<bool> {
        Ok(self.locks_of(object)?.has_note(owner) && !self.is_dead(owner))
    }

    /// Whether the process in `owner.slot` is still this owner.
    fn is_in_its_slot(&self, owner: Owner) -> bool {
        let there = (owner.slot as usize) < crate::control_region::MAX_PROCESSES;
        there && {
            let word = self
                .store
                .control
                .process(owner.slot as usize)
                .owner
                .load(Acquire);
            state_of(word) != 0 && word & WHO == owner.number
        }
    }

    /// Releases all locks of this process on ranges of `object`. POSIX requires that when the
    /// process closes any descriptor of the object.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn end_process_locks(&self, object: ObjectId) -> Result<()> {
        // A process that hasn't needed a slot has no locks.
        let Some(slot) = self.store.attachment.attached_slot() else {
            return Ok(());
        };
        if self
            .store
            .control
            .process(slot as usize)
            .locked
            .load(Acquire)
            == 0
        {
            return Ok(());
        }
        self.end_locks(object, self.lock_owner_slot(slot))
    }

    /// Releases the locks of a description whose last descriptor is being closed.
    pub(crate) fn end_description_locks(&self, open: u32) {
        let o = self.store.objects().open_file(open);
        let locker = o.locker.load(Acquire);
        if locker != 0 {
            let object = ObjectId(o.id.load(Acquire));
            // If the locks can't be released now, the next repair finds and releases them.
            let _ = self.end_locks(object, self.owner_of_locker(locker));
            o.locker.store(0, Release);
        }
    }

    /// Releases all locks of the process in `slot`, which has ended or is ending.
    pub(crate) fn end_all_locks(&self, slot: u32) -> Result<()> {
        let locked = &self.store.control.process(slot as usize).locked;
        if locked.load(Acquire) == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for (object, owner) in self.locked_from(slot) {
            result = self.end_locks(object, owner).and(result);
        }
        if result.is_ok() {
            locked.store(0, Release);
        }
        result
    }

    fn end_locks(&self, object: ObjectId, owner: Owner) -> Result<()> {
        let noted = self.locks_of(object)?.remove(owner);
        match &self.store.remote {
            Some(remote) if noted && self.store.peers().is_object_remote(object) => {
                remote.unlocked(self.store, object, owner)
            }
            _ => Ok(()),
        }
    }
}

/// Counts a waiter of a chain, as long as this value exists.
pub struct Counted<'a>(&'a LockChain);

impl Counted<'_> {
    pub fn new(chain: &LockChain) -> Counted<'_> {
        chain.waiters.fetch_add(1, AcqRel);
        Counted(chain)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, AcqRel);
    }
}

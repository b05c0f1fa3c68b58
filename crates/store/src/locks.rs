//! Locks on files: flock(2), fcntl's ranges of a process, and those of an open file description.
//!
//! All are in one table of the control region ([`table`]), in that of the node that keeps the
//! object; its own processes set them there themselves, those of other nodes ask its daemon to. So
//! they outlive any daemon. A lock belongs to a process or to a description ([`Owner`]) and goes
//! with it: with the close of the file, with the last descriptor, with a death. For its locks on
//! other nodes an owner has a note in the table of its own node, by which they are given up
//! (`peers/locks.rs`).
//!
//! Who waits sleeps on the chain's count of releases, or asks again and again if the lock is
//! another node's ([`wait`]); circles of processes that wait for each other are found by
//! [`deadlock`].

mod deadlock;
mod table;
#[cfg(test)]
mod tests;
mod wait;

pub use deadlock::Waits;
pub(crate) use table::Locks;
pub use wait::{Waited, Waiting, stamp};
pub use wait::{handler_begins, interruptible};

use crate::control::{LockChain, lock_kind};
use crate::process::{self, state_of};
use crate::{NodeId, ObjectId, Store};
use forebay_media::atomics::Ordering::*;
use rustix::io::Result;
use std::time::Duration;

/// What one has of a file, or wants of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LockType {
    Unlocked = 0,
    Shared = 1,
    Exclusive = 2,
}

impl LockType {
    /// By its number in messages.
    pub(crate) fn of(number: u32) -> Option<LockType> {
        match number {
            0 => Some(LockType::Unlocked),
            1 => Some(LockType::Shared),
            2 => Some(LockType::Exclusive),
            _ => None,
        }
    }

    fn of_kind(kind: u32) -> LockType {
        match kind & lock_kind::EXCLUSIVE {
            0 => LockType::Shared,
            _ => LockType::Exclusive,
        }
    }

    fn kind(self) -> u32 {
        match self {
            LockType::Unlocked => 0,
            LockType::Shared => lock_kind::SHARED,
            LockType::Exclusive => lock_kind::EXCLUSIVE,
        }
    }
}

/// In the number of an owner: an open file description, no process.
const DESCRIPTION: u64 = 1 << 63;
/// Of the owner word of a process: its id and start time.
pub const WHO: u64 = (1 << 62) - 1;

/// Whose a lock is. No two ever have the same number on one node, but for what a process has before
/// and after exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub node: NodeId,
    pub number: u64,
    /// Of a process: its slot.
    pub slot: u32,
}

impl Owner {
    /// The id of the process on its node; None if it is a description.
    pub fn pid(&self) -> Option<u32> {
        (self.number & DESCRIPTION == 0).then(|| process::pid_of(self.number))
    }
}

/// Last byte of a range without end.
pub const TO_THE_END: u64 = i64::MAX as u64;

/// What is asked for: a lock on a range, or that it be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub object: ObjectId,
    pub owner: Owner,
    pub sort: Sort,
    pub want: LockType,
    /// The first byte; of a use, for whom.
    pub start: u64,
    /// The last byte; of a use, for what.
    pub end: u64,
}

/// Sorts of locks, which have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sort {
    /// fcntl(2)'s, on ranges.
    Range = 0,
    /// flock(2)'s.
    Whole = lock_kind::WHOLE,
    /// That a description uses a file with controls (`controls.rs`).
    Use = lock_kind::USE,
}

impl Sort {
    /// By its number in messages.
    pub(crate) fn of(number: u32) -> Option<Sort> {
        [Sort::Range, Sort::Whole, Sort::Use]
            .into_iter()
            .find(|s| *s as u32 == number)
    }

    fn of_kind(kind: u32) -> Sort {
        match kind & (lock_kind::WHOLE | lock_kind::USE) {
            lock_kind::WHOLE => Sort::Whole,
            lock_kind::USE => Sort::Use,
            _ => Sort::Range,
        }
    }
}

/// A lock that another has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTheWay {
    pub owner: Owner,
    pub has: LockType,
    pub start: u64,
    pub end: u64,
}

/// A holder that died is noticed after at most this long.
pub const TURN: Duration = Duration::from_millis(50);

impl Store {
    /// This process, as an owner of locks.
    ///
    /// # Errors
    /// EAGAIN if it can't attach.
    pub fn lock_owner_process(&self) -> Result<Owner> {
        self.process_slot().map(|slot| self.lock_owner_slot(slot))
    }

    /// The process in `slot`, which may have died.
    pub fn lock_owner_slot(&self, slot: u32) -> Owner {
        Owner {
            node: self.node(),
            number: self.control.process(slot as usize).owner.load(Acquire) & WHO,
            slot,
        }
    }

    /// An open file description, as an owner of locks. It gets its number when it first needs one.
    pub fn lock_owner_description(&self, open: u32) -> Owner {
        let header = self.control.header();
        let place = &self.open_file(open).locker;
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

    /// Whether a description of this node is that owner.
    pub fn description_owns(&self, open: u32, owner: Owner) -> bool {
        let locker = self.open_file(open).locker.load(Acquire);
        locker != 0 && self.owner_of_locker(locker) == owner
    }

    fn owner_of_locker(&self, locker: u32) -> Owner {
        let born = u64::from(self.control.header().born.load(Relaxed));
        Owner {
            node: self.node(),
            number: DESCRIPTION | (born << 33 >> 1) | u64::from(locker),
            slot: 0,
        }
    }

    /// What is in the way of a lock on an object of this node.
    pub fn lock_in_the_way(&self, request: &Request) -> Result<Option<InTheWay>> {
        loop {
            let found = self.locks_of(request.object)?.conflict(request);
            match found {
                Some(other) if self.forget_if_dead(request.object, other.owner)? => {}
                found => return Ok(found),
            }
        }
    }

    /// If the owner is a process of this node that has died: gives up what it has of the object.
    /// (The keeper would do so within about a second.)
    pub fn forget_if_dead(&self, object: ObjectId, owner: Owner) -> Result<bool> {
        let dead = self.is_dead(owner);
        if dead {
            self.locks_of(object)?.remove(owner);
        }
        Ok(dead)
    }

    fn is_dead(&self, owner: Owner) -> bool {
        owner.node == self.node() && owner.pid().is_some() && !process::runs(owner.number)
    }

    /// What a process of this node waits for.
    pub fn waits_here(&self, owner: Owner) -> Vec<wait::Waited> {
        match self.is_dead(owner) {
            true => Vec::new(),
            false => self.waits_of(owner),
        }
    }

    /// Whether an owner of this node may have locks on an object of another one.
    pub fn holds(&self, object: ObjectId, owner: Owner) -> Result<bool> {
        Ok(self.locks_of(object)?.has_note(owner) && !self.is_dead(owner))
    }

    /// Whether the process in `owner.slot` is still this owner.
    fn is_in_its_slot(&self, owner: Owner) -> bool {
        let there = (owner.slot as usize) < crate::control::MAX_PROCESSES;
        there && {
            let word = self
                .control
                .process(owner.slot as usize)
                .owner
                .load(Acquire);
            state_of(word) != 0 && word & WHO == owner.number
        }
    }

    /// When this process has closed a descriptor of `object`: POSIX drops all its locks on ranges
    /// of it.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn end_process_locks(&self, object: ObjectId) -> Result<()> {
        // One that hasn't needed a slot has no locks.
        let Some(slot) = self.attached_slot() else {
            return Ok(());
        };
        if self.control.process(slot as usize).locked.load(Acquire) == 0 {
            return Ok(());
        }
        self.end_locks(object, self.lock_owner_slot(slot))
    }

    /// With the last descriptor of a description.
    pub(crate) fn end_description_locks(&self, open: u32) {
        let o = self.open_file(open);
        let locker = o.locker.load(Acquire);
        if locker != 0 {
            let object = ObjectId(o.id.load(Acquire));
            // What can't be done now is found when all is put in order.
            let _ = self.end_locks(object, self.owner_of_locker(locker));
            o.locker.store(0, Release);
        }
    }

    /// All locks of the process in `slot`, which has ended or is ending.
    pub(crate) fn end_all_locks(&self, slot: u32) -> Result<()> {
        let locked = &self.control.process(slot as usize).locked;
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
        match &self.foreign {
            Some(foreign) if noted && self.is_object_away(object) => {
                foreign.unlocked(self, object, owner)
            }
            _ => Ok(()),
        }
    }
}

/// Counts one who waits in a chain.
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

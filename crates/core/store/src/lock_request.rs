//! Requests to the table of locks: owners, sorts and types of locks, requests, and waits for them.
//!
//! Plain values, and their encoding in messages between nodes. The search for deadlocks ([`Waits`])
//! goes over all nodes.

use crate::codec::{List, Wire, fields};
use crate::control_region::lock_kind;
use crate::process;
use crate::{NodeId, ObjectId};

/// The type of a lock that an owner has, or wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LockType {
    Unlocked = 0,
    Shared = 1,
    Exclusive = 2,
}

impl LockType {
    /// The lock type for which a number in a message stands.
    pub(crate) fn of(number: u32) -> Option<LockType> {
        match number {
            0 => Some(LockType::Unlocked),
            1 => Some(LockType::Shared),
            2 => Some(LockType::Exclusive),
            _ => None,
        }
    }

    pub(crate) fn of_kind(kind: u32) -> LockType {
        match kind & lock_kind::EXCLUSIVE {
            0 => LockType::Shared,
            _ => LockType::Exclusive,
        }
    }

    pub(crate) fn kind(self) -> u32 {
        match self {
            LockType::Unlocked => 0,
            LockType::Shared => lock_kind::SHARED,
            LockType::Exclusive => lock_kind::EXCLUSIVE,
        }
    }
}

/// Bit of [`Owner::number`]: the owner is an open file description, not a process.
pub(crate) const DESCRIPTION: u64 = 1 << 63;
/// The bits of a process's owner word that identify it: process id and start time.
pub const WHO: u64 = (1 << 62) - 1;

/// The owner of a lock. Two owners of one node never have the same number, except a process before
/// and after exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub node: NodeId,
    pub number: u64,
    /// Process slot of the owner; 0 for a description.
    pub slot: u32,
}

impl Owner {
    /// The process id of the owner, on its node; None if the owner is a description.
    pub fn pid(&self) -> Option<u32> {
        (self.number & DESCRIPTION == 0).then(|| process::pid_of(self.number))
    }
}

/// Last byte of a range without end.
pub const TO_THE_END: u64 = i64::MAX as u64;

/// A request: to set a lock on a range, or to release it ([`LockType::Unlocked`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub object: ObjectId,
    pub owner: Owner,
    pub sort: Sort,
    pub want: LockType,
    /// First byte of the range; for a use ([`Sort::Use`]), the party.
    pub start: u64,
    /// Last byte of the range; for a use, its bits ([`crate::declared::WRITES`]).
    pub end: u64,
}

/// Sorts of locks. Locks of different sorts never conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sort {
    /// Locks of fcntl(2), on ranges.
    Range = 0,
    /// Locks of flock(2), on whole files.
    Whole = lock_kind::WHOLE,
    /// The use of a file with controls by a description (`controls.rs`).
    Use = lock_kind::USE,
}

impl Sort {
    /// The sort for which a number in a message stands.
    pub(crate) fn of(number: u32) -> Option<Sort> {
        [Sort::Range, Sort::Whole, Sort::Use]
            .into_iter()
            .find(|s| *s as u32 == number)
    }

    pub(crate) fn of_kind(kind: u32) -> Sort {
        match kind & (lock_kind::WHOLE | lock_kind::USE) {
            lock_kind::WHOLE => Sort::Whole,
            lock_kind::USE => Sort::Use,
            _ => Sort::Range,
        }
    }
}

/// Another owner's lock that conflicts with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTheWay {
    pub owner: Owner,
    pub has: LockType,
    pub start: u64,
    pub end: u64,
}

/// The wait of a process for a lock, as other processes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    pub stamp: u64,
    pub home: NodeId,
    pub request: Request,
}

impl Waited {
    /// A value that orders waits: a wait with a greater value began later. No two waits have the
    /// same value.
    pub fn since(&self) -> (u64, u32, u64) {
        let owner = self.request.owner;
        (self.stamp, owner.node.0, owner.number)
    }
}

impl Wire for Owner {
    type Owned = Owner;

    fn put(&self, to: &mut Vec<u8>) {
        (self.node.0, self.number, self.slot).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Owner> {
        let (node, number, slot) = Wire::take(from)?;
        Some(Owner {
            node: NodeId(node),
            number,
            slot,
        })
    }
}

impl Wire for LockType {
    type Owned = LockType;

    fn put(&self, to: &mut Vec<u8>) {
        (*self as u32).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<LockType> {
        LockType::of(u32::take(from)?)
    }
}

impl Wire for Request {
    type Owned = Request;

    fn put(&self, to: &mut Vec<u8>) {
        (
            self.object,
            self.owner,
            self.sort as u32,
            self.want,
            self.start,
            self.end,
        )
            .put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Request> {
        let (object, owner, sort, want, start, end): (ObjectId, _, _, _, _, _) = Wire::take(from)?;
        let sort = Sort::of(sort)?;
        let fits = match sort {
            Sort::Use => end <= crate::declared::ALL,
            // A message may hold any numbers.
            _ => start <= end && end <= TO_THE_END,
        };
        fits.then_some(Request {
            object,
            owner,
            sort,
            want,
            start,
            end,
        })
    }
}

fields! {
    InTheWay { owner, has, start, end }
}

/// All waits of a process for locks.
pub struct Waits(pub Vec<Waited>);

impl Wire for Waits {
    type Owned = Waits;

    fn put(&self, to: &mut Vec<u8>) {
        let waits = self.0.iter().map(|w| (w.stamp, w.home.0, w.request));
        List(waits.collect()).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Waits> {
        let List(waits) = Wire::take(from)?;
        let waits = waits.into_iter().map(|(stamp, home, request)| Waited {
            stamp,
            home: NodeId(home),
            request,
        });
        Some(Waits(waits.collect()))
    }
}

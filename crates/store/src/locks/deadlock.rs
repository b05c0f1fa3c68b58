//! What nodes tell each other of locks and of who waits for them (the search for deadlocks:
//! [`crate::cluster`]).

use super::wait::Waited;
use super::{InTheWay, LockType, Owner, Request, Sort};
use crate::codec::{List, Wire, fields};
use crate::{NodeId, ObjectId};

impl Waited {
    /// Greater: began later. No two are equal.
    pub fn since(&self) -> (u64, u32, u64) {
        let owner = self.request.owner;
        (self.stamp, owner.node.0, owner.number)
    }
}

impl Wire for Owner {
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
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u32).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<LockType> {
        LockType::of(u32::take(from)?)
    }
}

impl Wire for Request {
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
            Sort::Use => end <= crate::controls::ALL,
            // What comes from outside is no range, else.
            _ => start <= end && end <= super::TO_THE_END,
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

/// What a process waits for.
pub struct Waits(pub Vec<Waited>);

impl Wire for Waits {
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

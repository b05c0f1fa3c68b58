//! Deadlocks: processes that wait for each other's locks in a circle, on whatever nodes.
//!
//! Who waits looks itself, at first where nobody else must be asked, later on all nodes, in growing
//! intervals: who is in my way, what do they wait for, who is in their way, and so on, back to me. What
//! is told at different moments is true at one if at the end all of the circle still wait for the same as when
//! they were found: a process that waits gives nothing up. Each follows only those who began to wait before it
//! did. So a circle is found by one of its members, the one that closed it, and that one gives in (EDEADLK).
//!
//! As in Linux, only locks of processes (F_SETLKW) are looked at, and of a process with several threads it is
//! taken that none of them will release what one waits for.

use super::wait::Waited;
use super::{InTheWay, LockType, Owner, Request, Sort};
use crate::elsewhere::messages::{List, Part, fields, kind};
use crate::{NodeId, ObjectId, Store};
use rustix::io::Result;

/// Most processes that one search looks at.
const MOST: usize = 64;

/// The circle so far: those who wait, and for what.
type Path = Vec<(Owner, u64)>;

impl Store {
    /// Whether who waits for `mine` is to give in. Without `ask` only what this node knows is looked at.
    pub(crate) fn is_deadlock(&self, mine: &Waited, ask: bool) -> Result<bool> {
        let ask = ask && self.elsewhere.is_some();
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
            if seen.contains(&owner) || seen.len() >= MOST {
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

    /// The processes that are in the way. A node that can't be asked has none: no deadlock is found
    /// as long as it can't.
    fn blockers(&self, wait: &Waited, ask: bool) -> Vec<Owner> {
        if wait.home == self.node() {
            let locks = self.locks_of(wait.request.object);
            return locks.map_or(Vec::new(), |l| l.blockers(&wait.request));
        }
        if !ask {
            return Vec::new();
        }
        let told = self.ask::<List<Owner>>(wait.home, kind::BLOCKERS, &wait.request);
        told.map_or(Vec::new(), |list| list.0)
    }

    fn waits(&self, owner: Owner, ask: bool) -> Vec<Waited> {
        if owner.node == self.node() {
            return self.waits_here(owner);
        }
        if !ask {
            return Vec::new();
        }
        let told = self.ask::<Waits>(owner.node, kind::WAITS, &owner);
        told.map_or(Vec::new(), |waits| waits.0)
    }

    fn still_waits(&self, owner: Owner, stamp: u64, ask: bool) -> bool {
        self.waits(owner, ask).iter().any(|w| w.stamp == stamp)
    }
}

impl Waited {
    /// Greater: began later. No two are equal.
    fn since(&self) -> (u64, u32, u64) {
        let owner = self.request.owner;
        (self.stamp, owner.node.0, owner.number)
    }
}

impl Part for Owner {
    fn put(&self, to: &mut Vec<u8>) {
        (self.node.0, self.number, self.slot).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Owner> {
        let (node, number, slot) = Part::take(from)?;
        Some(Owner {
            node: NodeId(node),
            number,
            slot,
        })
    }
}

impl Part for LockType {
    fn put(&self, to: &mut Vec<u8>) {
        (*self as u32).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<LockType> {
        LockType::of(u32::take(from)?)
    }
}

impl Part for Request {
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
        let (object, owner, sort, want, start, end): (ObjectId, _, _, _, _, _) = Part::take(from)?;
        let sort = Sort::of(sort)?;
        let fits = match sort {
            Sort::Use => end <= crate::uses::ALL,
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
pub struct Waits(pub(crate) Vec<Waited>);

impl Part for Waits {
    fn put(&self, to: &mut Vec<u8>) {
        let waits = self.0.iter().map(|w| (w.stamp, w.home.0, w.request));
        List(waits.collect()).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Waits> {
        let List(waits) = Part::take(from)?;
        let waits = waits.into_iter().map(|(stamp, home, request)| Waited {
            stamp,
            home: NodeId(home),
            request,
        });
        Some(Waits(waits.collect()))
    }
}

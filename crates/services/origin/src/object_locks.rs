//! Locks on objects. A thread holds an object's lock while it writes back the object, fetches it or
//! changes its mark.
//!
//! A thread that locks several objects takes them in the order of their ids.

use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The locks of all objects.
#[derive(Default)]
pub struct ObjectLocks {
    held: Mutex<Held>,
    ended: Condvar,
}

/// The locks that are held.
#[derive(Default)]
struct Held {
    /// By the object's id: the number of the lock that is held on it.
    numbers: HashMap<u64, u64>,
    /// The number of the next lock. Numbers increase, so a later lock has a higher one.
    next: u64,
}

/// The lock on an object; released when it is dropped.
pub struct Working<'b> {
    object_locks: &'b ObjectLocks,
    id: u64,
}

impl ObjectLocks {
    /// Locks an object, after waiting until no other thread has it locked.
    pub fn begin(&self, id: ObjectId) -> Working<'_> {
        let mut held = lock(&self.held);
        while held.numbers.contains_key(&id.0) {
            let waited = self.ended.wait(held);
            held = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let number = held.next;
        held.next += 1;
        held.numbers.insert(id.0, number);
        Working {
            object_locks: self,
            id: id.0,
        }
    }

    /// Waits until each lock that is held now has been released, or `timeout` has passed. Later
    /// locks on the same objects aren't waited for. Returns false if no lock is held at the call.
    pub fn wait_for_current(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut held = lock(&self.held);
        let (later, was_any) = (held.next, !held.numbers.is_empty());
        while held.numbers.values().any(|number| *number < later) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        was_any
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let was = lock(&self.object_locks.held).numbers.remove(&self.id);
        assert!(was.is_some(), "an object that is released was worked on");
        self.object_locks.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_is_worked_on_is_waited_for() {
        let locks = ObjectLocks::default();
        assert!(!locks.wait_for_current(Duration::from_secs(10)));
        let working = locks.begin(ObjectId(1));
        assert!(locks.wait_for_current(Duration::from_millis(5)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                (
                    locks.wait_for_current(Duration::from_secs(20)),
                    begun.elapsed(),
                )
            });
            std::thread::sleep(Duration::from_millis(20));
            drop(working);
            let (was_any, waited) = waiting.join().unwrap();
            assert!(was_any && waited < Duration::from_secs(10), "{waited:?}");
        });
    }
    #[test]
    fn locks_that_begin_later_are_not_waited_for() {
        let locks = ObjectLocks::default();
        let (first, second) = (locks.begin(ObjectId(1)), locks.begin(ObjectId(2)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                locks.wait_for_current(Duration::from_secs(20));
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(20));
            // At each moment, one of the two objects is locked.
            drop(first);
            let _first = locks.begin(ObjectId(1));
            drop(second);
            let _second = locks.begin(ObjectId(2));
            let waited = waiting.join().unwrap();
            assert!(waited < Duration::from_secs(10), "{waited:?}");
        });
    }
}

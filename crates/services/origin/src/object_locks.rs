//! Locks on objects. A thread holds one while it writes an object back, fetches it or changes its
//! mark.
//!
//! A thread that locks several objects takes them in the order of their ids.

use forebay_posix::ObjectId;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The ids of all locked objects.
#[derive(Default)]
pub struct ObjectLocks {
    ids: Mutex<HashSet<u64>>,
    ended: Condvar,
}

/// The lock on an object; released when it is dropped.
pub struct Working<'b> {
    object_locks: &'b ObjectLocks,
    id: u64,
}

impl ObjectLocks {
    /// Locks an object, after waiting until no other thread has it locked.
    pub fn begin(&self, id: ObjectId) -> Working<'_> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        while !ids.insert(id.0) {
            ids = self.ended.wait(ids).unwrap_or_else(PoisonError::into_inner);
        }
        Working {
            object_locks: self,
            id: id.0,
        }
    }

    /// Waits until none of the objects that are locked now is locked, or `timeout` has passed.
    /// Returns false if no object is locked at the call.
    pub fn wait_for_current(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let current = ids.clone();
        while !ids.is_disjoint(&current) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(ids, left);
            ids = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !current.is_empty()
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut ids = self
            .object_locks
            .ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let was = ids.remove(&self.id);
        assert!(was, "an object that is released was worked on");
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
}

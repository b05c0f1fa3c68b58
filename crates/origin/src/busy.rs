//! Objects that a thread works on: no other one does at the same time.
//!
//! Nobody holds two objects at once but a rename, which takes them in the order of their ids.

use forebay_posix::ObjectId;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// The objects that are worked on.
#[derive(Default)]
pub struct Busy {
    ids: Mutex<HashSet<u64>>,
    ended: Condvar,
}

/// An object that this thread works on, until this is dropped.
pub struct Working<'b> {
    busy: &'b Busy,
    id: u64,
}

impl Busy {
    /// Waits until nobody works on an object, and begins.
    pub fn begin(&self, id: ObjectId) -> Working<'_> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        while !ids.insert(id.0) {
            ids = self.ended.wait(ids).unwrap_or_else(PoisonError::into_inner);
        }
        Working {
            busy: self,
            id: id.0,
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut ids = self.busy.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.remove(&self.id);
        self.busy.ended.notify_all();
    }
}

//! Names that the service makes by renaming and linking: the origin has them first, then the pool. A
//! look at the origin that finds such a name in between doesn't take it for that of others.

use forebay_posix::ObjectId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A name in a directory of the pool.
type Name = (u64, Vec<u8>);

/// The names, each with the number of threads that make it.
#[derive(Default)]
pub struct Making {
    names: Mutex<HashMap<Name, usize>>,
    /// How many threads make one: mostly none, and then nobody has to look for one.
    count: AtomicUsize,
}

/// A name that is being made, until this is dropped.
pub struct Made<'m> {
    making: &'m Making,
    name: Name,
}

impl Making {
    fn names(&self) -> MutexGuard<'_, HashMap<Name, usize>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a name is being made. It is in the pool, or not at the origin, when the result
    /// is dropped.
    pub fn begin(&self, dir: ObjectId, name: &[u8]) -> Made<'_> {
        let name = (dir.0, name.to_vec());
        self.count.fetch_add(1, SeqCst);
        *self.names().entry(name.clone()).or_default() += 1;
        Made { making: self, name }
    }

    /// Whether a name is being made.
    pub fn is_made(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.count.load(SeqCst) > 0 && self.names().contains_key(&(dir.0, name.to_vec()))
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let mut names = self.making.names();
        if let Some(count) = names.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.name);
            }
        }
        self.making.count.fetch_sub(1, SeqCst);
    }
}

//! Names that the service makes by renaming and linking, first at the origin, then in the pool. If
//! a check of the origin meets such a name before the pool has it, the check doesn't take it for a
//! name made by others.

use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The id of a directory of the pool, and a name in it.
type Name = (u64, Vec<u8>);

/// The names that are being made, each with the number of threads that make it.
#[derive(Default)]
pub struct PendingCreates {
    names: Mutex<HashMap<Name, usize>>,
    /// Number of threads that make a name. Usually 0: then `names` needn't be searched.
    count: AtomicUsize,
}

/// A name that is being made until this is dropped.
pub struct Made<'m> {
    pending_creates: &'m PendingCreates,
    name: Name,
}

impl PendingCreates {
    /// Records that a name is being made. The caller drops the result once the pool has the name,
    /// too, or making it has failed.
    pub fn begin(&self, dir: ObjectId, name: &[u8]) -> Made<'_> {
        let name = (dir.0, name.to_vec());
        self.count.fetch_add(1, SeqCst);
        *lock(&self.names).entry(name.clone()).or_default() += 1;
        Made {
            pending_creates: self,
            name,
        }
    }

    /// Whether a name is being made.
    pub fn is_made(&self, dir: ObjectId, name: &[u8]) -> bool {
        self.count.load(SeqCst) > 0 && lock(&self.names).contains_key(&(dir.0, name.to_vec()))
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let mut names = lock(&self.pending_creates.names);
        if let Some(count) = names.get_mut(&self.name) {
            assert!(*count > 0, "a name that has been made was counted");
            *count -= 1;
            if *count == 0 {
                names.remove(&self.name);
            }
        }
        let before = self.pending_creates.count.fetch_sub(1, SeqCst);
        assert!(before > 0, "a name that has been made was counted");
    }
}

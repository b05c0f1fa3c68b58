//! A process's per-file cache: [`FILES`] values by file id, each used by one thread at a time.
//!
//! If all slots are in use, a further file gets none, and the caller works without one.

use crate::guarded::{Guard, Guarded};
use forebay_store::ObjectId;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Maximum number of files in the cache.
const FILES: usize = 32;

/// The cache; see the module.
pub(crate) struct PerFileCache<T> {
    /// Number of slots in use. The number is usually 0, and a look-up needs no search then.
    taken: AtomicU32,
    slots: [Slot<T>; FILES],
    /// Held by the thread that takes a slot.
    taking: Guarded<()>,
}

#[derive(Default)]
struct Slot<T> {
    /// The file's id; 0: the slot is free.
    file: AtomicU64,
    value: Guarded<T>,
}

/// A file's slot, held by this thread.
pub(crate) struct Held<'a, T> {
    all: &'a PerFileCache<T>,
    slot: &'a Slot<T>,
    value: Guard<'a, T>,
}

impl<T: Default> PerFileCache<T> {
    /// An empty cache.
    pub fn new() -> PerFileCache<T> {
        PerFileCache {
            taken: AtomicU32::new(0),
            slots: Default::default(),
            taking: Guarded::default(),
        }
    }

    /// The slot of a file, if it has one.
    pub fn of(&self, id: ObjectId) -> Option<Held<'_, T>> {
        if self.taken.load(Acquire) == 0 {
            return None;
        }
        let slot = self.slots.iter().find(|p| p.is_of(id))?;
        let value = slot.value.hold();
        // The slot may have been given to another file meanwhile.
        slot.is_of(id).then_some(Held {
            all: self,
            slot,
            value,
        })
    }

    /// As [`PerFileCache::of`], but takes a slot for a file that has none. None if all are in use.
    pub fn make(&self, id: ObjectId) -> Option<Held<'_, T>> {
        if let Some(found) = self.of(id) {
            return Some(found);
        }
        let _one = self.taking.hold();
        // Another thread may have taken a slot for the file meanwhile.
        let find = |id| self.slots.iter().find(|p| p.is_of(id));
        let slot = find(id).or_else(|| find(ObjectId(0)))?;
        let value = slot.value.hold();
        if slot.file.swap(id.0, AcqRel) == 0 {
            self.taken.fetch_add(1, AcqRel);
        }
        Some(Held {
            all: self,
            slot,
            value,
        })
    }

    /// The files that are in the cache.
    pub fn files(&self) -> impl Iterator<Item = ObjectId> {
        let any = self.taken.load(Acquire) > 0;
        let slots = self.slots.iter().filter(move |_| any);
        let ids = slots.map(|p| ObjectId(p.file.load(Acquire)));
        ids.filter(|id| id.0 != 0)
    }

    /// Empties the cache. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        self.taken.store(0, Release);
        for slot in &self.slots {
            slot.value.begin_anew(T::default());
            slot.file.store(0, Release);
        }
        self.taking.begin_anew(());
    }
}

impl<T> Slot<T> {
    fn is_of(&self, id: ObjectId) -> bool {
        self.file.load(Acquire) == id.0
    }
}

impl<T> Held<'_, T> {
    /// Frees the slot for other files. The value stays as it is.
    pub fn free(self) {
        self.slot.file.store(0, Release);
        let before = self.all.taken.fetch_sub(1, AcqRel);
        assert!(before > 0, "a slot that is given back was counted");
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_slot_until_it_is_given_back() {
        let all: PerFileCache<u32> = PerFileCache::new();
        assert!(all.of(ObjectId(7)).is_none());
        *all.make(ObjectId(7)).unwrap() = 1;
        assert_eq!(all.of(ObjectId(7)).map(|held| *held), Some(1));
        let others = (100..).map_while(|i| all.make(ObjectId(i)).map(drop));
        assert_eq!(others.count(), FILES - 1);
        assert_eq!(all.files().count(), FILES);
        all.of(ObjectId(7)).unwrap().free();
        assert!(all.of(ObjectId(7)).is_none() && all.make(ObjectId(8)).is_some());
        all.begin_anew();
        assert!(all.files().next().is_none() && all.of(ObjectId(100)).is_none());
    }

    #[test]
    fn threads_take_turns() {
        let all: PerFileCache<u64> = PerFileCache::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..20_000 {
                        let mut held = all.make(ObjectId(1 + i % 3)).unwrap();
                        *held += 1;
                        if i % 7 == 0 {
                            held.free();
                        }
                    }
                });
            }
        });
        let sum: u64 = all.slots.iter().map(|p| *p.value.hold()).sum();
        assert_eq!(sum, 80_000);
    }
}

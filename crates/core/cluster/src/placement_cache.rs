//! A cache of the placements of spilled files' chunks, for one process.
//!
//! The cache is a table of [`REMEMBERED`] entries, indexed by a hash of file, number of cuts and
//! chunk; a new entry replaces the old one at its index. The table has no lock: each entry has a
//! checksum, which doesn't match while another thread is writing the entry. Memory is allocated
//! with the first entry.

use forebay_store::placements::Placed;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use twox_hash::XxHash3_64;

/// Number of placements that a process caches.
const REMEMBERED: usize = 2048;

/// The table, allocated with the first entry. The table has no lock: an entry read while another
/// thread wrote it has a wrong checksum.
#[derive(Default)]
pub(crate) struct PlacementCache(AtomicPtr<[Remembered; REMEMBERED]>);

#[derive(Default)]
struct Remembered {
    /// Words of an entry: file, number of truncations, chunk, placement.
    words: [AtomicU64; 4],
    sum: AtomicU64,
}

fn sum(words: &[u64; 4]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    XxHash3_64::oneshot_with_seed(0x70_6c_61_63_65, &bytes) | 1
}

impl PlacementCache {
    pub(crate) const fn new() -> PlacementCache {
        PlacementCache(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn place(&self, key: [u64; 3], make: bool) -> Option<&Remembered> {
        let mut all = self.0.load(Acquire);
        if all.is_null() {
            if !make {
                return None;
            }
            let new: Vec<Remembered> = (0..REMEMBERED).map(|_| Remembered::default()).collect();
            let new: Box<[Remembered; REMEMBERED]> = new.into_boxed_slice().try_into().ok()?;
            let new = Box::into_raw(new);
            match self.0.compare_exchange(all, new, AcqRel, Acquire) {
                Ok(_) => all = new,
                Err(other) => {
                    all = other;
                    // SAFETY: `new` comes from `Box::into_raw`, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                }
            }
        }
        let n = sum(&[key[0], key[1], key[2], 0]) >> 8;
        // SAFETY: the table is freed only when `self` is dropped, so it outlives the reference.
        Some(unsafe { &(*all)[n as usize % REMEMBERED] })
    }

    pub(crate) fn get(&self, key: [u64; 3]) -> Option<Placed> {
        let place = self.place(key, false)?;
        let words = [0, 1, 2, 3].map(|i: usize| place.words[i].load(Acquire));
        let known = words[..3] == key && place.sum.load(Acquire) == sum(&words);
        Placed::decode(&words[3].to_le_bytes()).filter(|_| known)
    }

    pub(crate) fn put(&self, key: [u64; 3], placed: Placed) {
        let Some(place) = self.place(key, true) else {
            return;
        };
        let words = [key[0], key[1], key[2], u64::from_le_bytes(placed.encode())];
        debug_assert_eq!(Placed::decode(&placed.encode()), Some(placed));
        place.sum.store(0, Release);
        for (at, word) in place.words.iter().zip(words) {
            at.store(word, Release);
        }
        place.sum.store(sum(&words), Release);
    }
}

impl Drop for PlacementCache {
    fn drop(&mut self) {
        let all = self.0.load(Acquire);
        if !all.is_null() {
            // SAFETY: the table comes from `Box::into_raw`, and no thread uses it any more.
            drop(unsafe { Box::from_raw(all) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::{NodeId, PAGE};

    #[test]
    fn what_is_remembered_is_that_of_the_file_the_cut_and_the_chunk() {
        let memory = PlacementCache::default();
        let placed = |n: u32| Placed {
            node: NodeId(n),
            from: n % 7 * PAGE as u32,
        };
        assert_eq!(memory.get([1, 0, 5]), None);
        for n in 0..100u32 {
            memory.put([u64::from(n % 3), 1, u64::from(n)], placed(n));
        }
        assert_eq!(memory.get([99 % 3, 1, 99]), Some(placed(99)));
        assert_eq!(memory.get([99 % 3, 2, 99]), None, "it was cut since");
        assert_eq!(memory.get([(99 + 1) % 3, 1, 99]), None, "another file");
    }
}

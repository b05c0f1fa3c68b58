//! The extents of recently used chunks, per process. The cache saves a look-up in the records at
//! each access to a file of more than one chunk.
//!
//! Entries are read and replaced without locks. Each entry has a version, which is odd while the
//! entry is written.

use crate::record::{ChunkMap, FEW_EXTENTS};
use forebay_media::Extent;
use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::sync::atomic::AtomicPtr;

/// Extents of recently used chunks, per process. An entry is valid for one use of a live
/// entry (`index`) at one value of its `moved` counter.
pub(crate) struct ExtentCache {
    /// Allocated with the first entry: a short-lived process does without these 80 KiB.
    entries: AtomicPtr<Entries>,
}

type Entries = [CacheEntry; CACHE_ENTRIES];

const CACHE_ENTRIES: usize = 1024;

#[derive(Default)]
struct CacheEntry {
    /// Odd while the entry is written.
    version: AtomicU32,
    index: AtomicU32,
    id: AtomicU64,
    chunk: AtomicU64,
    moved: AtomicU64,
    extents: [AtomicU64; FEW_EXTENTS],
}

impl Drop for ExtentCache {
    fn drop(&mut self) {
        let made = *self.entries.get_mut();
        if !made.is_null() {
            // SAFETY: `make` has allocated the entries as a box, and no thread uses them any more.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl ExtentCache {
    pub fn new() -> ExtentCache {
        ExtentCache {
            entries: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn entries(&self) -> Option<&Entries> {
        // SAFETY: the pointer is null, or `make` has set it to entries that live as long as the
        // cache.
        unsafe { self.entries.load(Acquire).as_ref() }
    }

    #[cold]
    fn make(&self) -> Option<&Entries> {
        let made: Vec<CacheEntry> = (0..CACHE_ENTRIES).map(|_| CacheEntry::default()).collect();
        let made: Box<Entries> = made.try_into().ok()?;
        let made = Box::into_raw(made);
        let none = std::ptr::null_mut();
        if (self.entries.compare_exchange(none, made, AcqRel, Acquire)).is_err() {
            // SAFETY: `made` was just allocated, and no other thread has it: another thread's
            // entries were stored first.
            drop(unsafe { Box::from_raw(made) });
        }
        self.entries()
    }

    fn place(entries: &Entries, id: u64, chunk: u64) -> &CacheEntry {
        let h =
            (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &entries[(h >> 40) as usize % CACHE_ENTRIES]
    }

    /// The extents of a chunk, if they are known and still valid.
    pub fn get(&self, id: u64, index: u32, chunk: u64, moved: u64) -> Option<ChunkMap> {
        let e = Self::place(self.entries()?, id, chunk);
        let version = e.version.load(Acquire);
        if !version.is_multiple_of(2)
            || e.id.load(Relaxed) != id
            || e.index.load(Relaxed) != index
            || e.chunk.load(Relaxed) != chunk
            || e.moved.load(Relaxed) != moved
        {
            return None;
        }
        let mut map = ChunkMap::default();
        for extent in &e.extents {
            match Extent(extent.load(Relaxed)) {
                Extent::NONE => break,
                extent => _ = map.push(extent),
            }
        }
        fence(Acquire);
        (e.version.load(Relaxed) == version).then_some(map)
    }

    /// Records the extents of a chunk.
    pub fn put(&self, id: u64, index: u32, chunk: u64, moved: u64, map: &ChunkMap) {
        let Some(entries) = self.entries().or_else(|| self.make()) else {
            return;
        };
        let e = Self::place(entries, id, chunk);
        let version = e.version.load(Relaxed);
        // Nothing is recorded if another thread is writing this entry (that thread's data are as
        // useful), or if the chunk is fragmented (its extents don't fit into an entry).
        if map.extents().len() > FEW_EXTENTS
            || !version.is_multiple_of(2)
            || e.version
                .compare_exchange(version, version + 1, AcqRel, Relaxed)
                .is_err()
        {
            return;
        }
        // A reader that sees any of the stores below sees the odd version, too.
        fence(Release);
        e.id.store(id, Relaxed);
        e.index.store(index, Relaxed);
        e.chunk.store(chunk, Relaxed);
        e.moved.store(moved, Relaxed);
        for i in 0..FEW_EXTENTS {
            let extent = map.extents().get(i).copied().unwrap_or(Extent::NONE);
            e.extents[i].store(extent.0, Relaxed);
        }
        e.version.store(version + 2, Release);
    }
}

//! The extents of recently used chunks, per process: a look-up in the records saved for
//! each access to a file of more than one chunk.
//!
//! Entries are read and replaced without locks, each guarded by a version that is odd
//! while it is written.

use crate::record::{ChunkMap, FEW_EXTENTS};
use forebay_media::Extent;
use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*, fence};

/// Extents of recently used chunks, per process. An entry is valid for one use of a live
/// entry (`index`) at one value of its `moved` counter.
pub(crate) struct ExtentCache {
    entries: Box<[CacheEntry]>,
}

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

impl ExtentCache {
    pub fn new() -> ExtentCache {
        ExtentCache {
            entries: (0..CACHE_ENTRIES).map(|_| CacheEntry::default()).collect(),
        }
    }

    fn place(&self, id: u64, chunk: u64) -> &CacheEntry {
        let h =
            (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.entries[(h >> 40) as usize % CACHE_ENTRIES]
    }

    /// The extents of a chunk, if they are known and still valid.
    pub fn get(&self, id: u64, index: u32, chunk: u64, moved: u64) -> Option<ChunkMap> {
        let e = self.place(id, chunk);
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

    /// Notes the extents of a chunk.
    pub fn put(&self, id: u64, index: u32, chunk: u64, moved: u64, map: &ChunkMap) {
        let e = self.place(id, chunk);
        let version = e.version.load(Relaxed);
        // Somebody else writes this entry: theirs is as good. A splintered chunk's extents
        // don't fit.
        if map.extents().len() > FEW_EXTENTS
            || !version.is_multiple_of(2)
            || e.version
                .compare_exchange(version, version + 1, AcqRel, Relaxed)
                .is_err()
        {
            return;
        }
        // Who sees anything of what follows sees the odd version, too.
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

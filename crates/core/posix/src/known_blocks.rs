//! The blocks of files fetched by ranges (`ranges.rs`) that this process knows to be in the pool.
//! The table has [`FILES`] slots with one file each: a file replaces another one with the same
//! hash.

use crate::guarded::Guarded;
use forebay_store::ObjectId;

/// Maximum number of files whose blocks are recorded at one time.
const FILES: usize = 64;
/// Maximum number of blocks of a file that are recorded: those of its first 32 TiB.
const BLOCKS: u64 = 1 << 22;

/// The blocks of one file that this process knows to be in the pool.
#[derive(Default)]
struct Known {
    id: u64,
    fill: u32,
    /// One bit for each block.
    blocks: Vec<u64>,
}

/// The cache of known blocks; see the module.
pub(crate) struct RangeCache(Box<[Guarded<Known>]>);

impl Known {
    fn has(&self, (first, end): (u64, u64)) -> bool {
        let has = |block: u64| {
            let word = self.blocks.get((block / 64) as usize);
            word.is_some_and(|word| word & 1 << (block % 64) != 0)
        };
        end <= BLOCKS && (first..end).all(has)
    }

    fn note(&mut self, (first, end): (u64, u64)) {
        let end = end.min(BLOCKS);
        if first >= end {
            return;
        }
        let words = (end as usize).div_ceil(64);
        if self.blocks.len() < words {
            self.blocks.resize(words, 0);
        }
        for block in first..end {
            self.blocks[(block / 64) as usize] |= 1 << (block % 64);
        }
    }
}

impl RangeCache {
    /// An empty cache. For a pool without an origin it has no slots, and must not be used.
    pub fn new(has_origin: bool) -> RangeCache {
        let files = if has_origin { FILES } else { 0 };
        RangeCache((0..files).map(|_| Guarded::default()).collect())
    }

    fn slot(&self, id: ObjectId) -> &Guarded<Known> {
        let hash = id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[hash as usize % FILES]
    }

    /// Whether these blocks of a file (the first, and one more than the last) are known to be in
    /// the pool.
    pub fn has(&self, id: ObjectId, fill: u32, range: (u64, u64)) -> bool {
        let known = self.slot(id).hold();
        (known.id, known.fill) == (id.0, fill) && known.has(range)
    }

    /// Records that these blocks of a file are in the pool.
    pub fn note(&self, id: ObjectId, fill: u32, range: (u64, u64)) {
        let mut known = self.slot(id).hold();
        if (known.id, known.fill) != (id.0, fill) {
            *known = Known {
                id: id.0,
                fill,
                blocks: Vec::new(),
            };
        }
        known.note(range);
    }

    /// Empties the cache. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        for slot in &self.0 {
            slot.begin_anew(Known::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::origin::BLOCK;

    fn blocks(at: u64, len: u64) -> (u64, u64) {
        (at / BLOCK, at.saturating_add(len).div_ceil(BLOCK))
    }

    #[test]
    fn blocks_are_known_for_one_fill() {
        let cache = RangeCache::new(true);
        let (id, other) = (ObjectId(7), ObjectId(8));
        assert!(!cache.has(id, 1, blocks(0, 1)));
        cache.note(id, 1, blocks(BLOCK - 1, 2));
        assert!(cache.has(id, 1, blocks(0, 2 * BLOCK)));
        assert!(!cache.has(id, 1, blocks(0, 2 * BLOCK + 1)));
        assert!(!cache.has(id, 2, blocks(0, 1)) && !cache.has(other, 1, blocks(0, 1)));
        cache.note(id, 2, blocks(200 * BLOCK, BLOCK));
        assert!(cache.has(id, 2, (200, 201)) && !cache.has(id, 2, (199, 201)));
        assert!(!cache.has(id, 1, (0, 1)));
        // Blocks beyond the maximum aren't recorded.
        cache.note(id, 2, blocks(u64::MAX - 5, 5));
        assert!(!cache.has(id, 2, blocks(u64::MAX - 5, 5)));
        cache.begin_anew();
        assert!(!cache.has(id, 2, (200, 201)));
    }
}

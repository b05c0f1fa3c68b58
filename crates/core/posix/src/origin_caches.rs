//! A process's caches of its pool's origin: the modes of paths, and the blocks of files that are in
//! the pool. [`OriginGate`](crate::OriginGate) uses them.

use crate::known_blocks::RangeCache;
use crate::off::Off;
use forebay_client::Pool;

/// A process's caches of its pool's origin; see the module.
pub(crate) struct OriginCaches {
    /// Whether files whose bytes are at the pool's origin only are fetched before they are used.
    pub has_origin: bool,
    /// The origin's modes, if some paths are at the origin only.
    pub off: Option<Off>,
    /// Which blocks of files at the origin are in the pool.
    pub blocks: RangeCache,
}

impl OriginCaches {
    /// Empty caches. `of_origin`: for the origin service itself, which fetches nothing.
    pub fn new(pool: &Pool, of_origin: bool) -> OriginCaches {
        let has_origin = pool.config().origin.is_some() && !of_origin;
        OriginCaches {
            has_origin,
            off: Off::of(pool).filter(|_| !of_origin),
            blocks: RangeCache::new(has_origin),
        }
    }

    /// Empties the caches. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        self.blocks.begin_anew();
        if let Some(off) = &self.off {
            off.begin_anew();
        }
    }
}

//! The extents of one chunk of a file: the content of 'X' records, and of the tail of an inode.

use forebay_media::Extent;
use smallvec::SmallVec;

/// Maximum number of extents of a chunk.
pub const MAX_EXTENTS: usize = forebay_media::CELL_PAGES;

/// The extents of one chunk of a file, from the chunk's start on, without gaps. Usually a few; up
/// to one per page where the medium is fragmented.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct ChunkMap(SmallVec<[Extent; FEW_EXTENTS]>);

/// Number of extents that a map has space for without an allocation.
pub const FEW_EXTENTS: usize = if cfg!(loom) { 2 } else { 16 };

impl ChunkMap {
    /// Returns the map of these extents.
    ///
    /// # Panics
    /// If there are more than [`MAX_EXTENTS`].
    #[inline]
    pub fn of(extents: impl Iterator<Item = Extent>) -> ChunkMap {
        let map = ChunkMap(extents.collect());
        assert!(map.0.len() <= MAX_EXTENTS);
        map
    }

    /// The extents in order.
    #[inline]
    pub fn extents(&self) -> &[Extent] {
        &self.0
    }

    /// Number of pages that the extents cover.
    #[inline]
    pub fn pages(&self) -> usize {
        self.extents().iter().map(|e| e.pages()).sum()
    }

    /// Appends an extent; false if the map has [`MAX_EXTENTS`] already.
    #[inline]
    pub fn push(&mut self, e: Extent) -> bool {
        if self.0.len() == MAX_EXTENTS {
            return false;
        }
        self.0.push(e);
        true
    }

    /// Keeps the first `pages` pages; calls `gone` with the removed extents.
    pub fn truncate(&mut self, pages: usize, mut gone: impl FnMut(Extent)) {
        let mut kept = ChunkMap::default();
        let mut at = 0;
        for &e in self.extents() {
            if at >= pages {
                gone(e);
            } else {
                let (keep, rest) = e.split(pages - at);
                kept.push(keep);
                rest.into_iter().for_each(&mut gone);
            }
            at += e.pages();
        }
        debug_assert!(
            kept.pages() <= pages,
            "a map that is cut has {pages} pages at most"
        );
        *self = kept;
    }

    /// Encodes the extents: the value of 'X', or the tail of an inode.
    pub fn encode(&self) -> SmallVec<[u8; 8 * FEW_EXTENTS]> {
        debug_assert!(
            self.pages() <= forebay_media::CELL_PAGES,
            "the extents of a chunk cover it once"
        );
        debug_assert!(
            self.extents().iter().all(|e| e.is_sound()),
            "extents lie in their media"
        );
        self.extents()
            .iter()
            .flat_map(|e| e.0.to_le_bytes())
            .collect()
    }

    pub fn decode(bytes: &[u8]) -> Option<ChunkMap> {
        if !bytes.len().is_multiple_of(8) || bytes.len() / 8 > MAX_EXTENTS {
            return None;
        }
        let mut map = ChunkMap::default();
        for e in bytes.chunks_exact(8) {
            let e = Extent(u64::from_le_bytes(e.try_into().expect("8 bytes")));
            if !e.is_sound() {
                return None;
            }
            map.push(e);
        }
        (map.pages() <= forebay_media::CELL_PAGES).then_some(map)
    }
}

//! Extents: runs of pages in one medium, packed into 64 bits.

/// Number of pages of a cell, and so the maximum of an extent.
pub const CELL_PAGES: usize = 256;

/// A run of 1 to 256 pages inside one cell of one medium.
///
/// Packed as medium (8 bits), pages - 1 (8 bits), first page (48 bits).
/// All ones ([`Extent::NONE`]) is no extent; a page number of 2^48 - 1 can't occur.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent(pub u64);

impl Extent {
    /// No extent.
    pub const NONE: Extent = Extent(u64::MAX);

    /// `pages` (1..=256) pages of `medium` from page `start` on.
    pub fn new(medium: u8, start: u64, pages: usize) -> Extent {
        debug_assert!((1..=256).contains(&pages) && start < (1 << 48) - 1);
        Extent(u64::from(medium) << 56 | (pages as u64 - 1) << 48 | start)
    }

    /// Whether the run lies inside one cell. An extent read from a file may hold anything.
    pub fn is_sound(self) -> bool {
        self.start() as usize % CELL_PAGES + self.pages() <= CELL_PAGES
    }

    /// Index of the medium in the pool's list of media.
    pub fn medium(self) -> usize {
        (self.0 >> 56) as usize
    }

    /// Number of pages.
    pub fn pages(self) -> usize {
        ((self.0 >> 48) & 0xff) as usize + 1
    }

    /// First page in the medium's segment.
    pub fn start(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }

    /// Returns the first `pages` pages, and the rest if there is any.
    pub fn split(self, pages: usize) -> (Extent, Option<Extent>) {
        if pages >= self.pages() {
            return (self, None);
        }
        let medium = self.medium() as u8;
        (
            Extent::new(medium, self.start(), pages),
            Some(Extent::new(
                medium,
                self.start() + pages as u64,
                self.pages() - pages,
            )),
        )
    }
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == Extent::NONE {
            return write!(f, "none");
        }
        write!(f, "{}:{}+{}", self.medium(), self.start(), self.pages())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_splits() {
        let e = Extent::new(3, 123_456_789, 256);
        assert_eq!((e.medium(), e.start(), e.pages()), (3, 123_456_789, 256));
        let (a, b) = e.split(100);
        assert_eq!((a.start(), a.pages()), (123_456_789, 100));
        let b = b.unwrap();
        assert_eq!((b.medium(), b.start(), b.pages()), (3, 123_456_889, 156));
        assert_eq!(e.split(256), (e, None));
    }
}

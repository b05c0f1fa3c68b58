//! Parking: giving the room of unused cells back to the file system, and reserving that room again.
//!
//! In a *parked* cell all pages are marked as in use, without an owner, and its room may have been
//! given back. So a search for free pages skips the cell without any extra check. Two bitmaps over
//! the cells give the state:
//!
//! - *holes*: the cell may have no room. The bit is set before the room is released, and cleared
//!   after room was reserved again.
//! - *parked*: no process is parking or unparking the cell. A process that clears this bit owns the
//!   cell, and is the only one to reserve its room.
//!
//! Steps of parking: take all pages; set *holes*; release the room; set *parked*. Steps of
//! unparking: clear *parked*; reserve room; clear *holes*; free all pages.
//!
//! Both happen in operations in flight of the store. If a process dies in between, the pages have
//! no owner. At the next quiescence, [`Cells::recount`] parks each cell in *holes* again; the pages
//! of any other cell are found to be lost and become free.

use crate::CELL_PAGES;
use crate::cells::{Cells, take_words};
use forebay_runtime::atomics::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

fn bit(i: usize) -> u64 {
    1 << (i % 64)
}

impl Cells {
    /// Whether the cell may have no room.
    pub(crate) fn is_hole(&self, i: usize) -> bool {
        self.holes(i / 64).load(Acquire) & bit(i) != 0
    }

    /// Number of cells with reserved room.
    pub fn backed(&self) -> usize {
        let holes = |word: usize| self.holes(word).load(Relaxed).count_ones() as usize;
        let holes: usize = (0..self.count().div_ceil(64)).map(holes).sum();
        self.reserved().saturating_sub(holes)
    }

    /// Returns the last cell below `end` that seems to have room and no page in use.
    pub(crate) fn last_empty(&self, end: usize) -> Option<usize> {
        let end = end.min(self.reserved());
        (0..end)
            .rev()
            .find(|&i| self.busy(i / 64).load(Relaxed) & bit(i) == 0)
    }

    /// Begins parking: takes all pages of the cell. False if one of them is in use or durable. The
    /// caller then releases the room, and calls [`Cells::end_parking`].
    pub(crate) fn begin_parking(&self, i: usize) -> bool {
        let cell = self.cell(i);
        if i >= self.reserved() || !take_words(&cell.used, CELL_PAGES) {
            return false;
        }
        self.busy(i / 64).fetch_or(bit(i), AcqRel);
        self.full(i / 64).fetch_or(bit(i), SeqCst);
        let durable = || (self.pending(i).durable.iter()).any(|w| w.load(Acquire) != 0);
        if self.tracks() && durable() {
            self.free_all(i);
            return false;
        }
        cell.init.iter().for_each(|w| w.store(0, Release));
        self.parked(i / 64).fetch_and(!bit(i), SeqCst);
        self.holes(i / 64).fetch_or(bit(i), SeqCst);
        true
    }

    /// Ends parking. If the room wasn't given back, the cell can be used again.
    pub(crate) fn end_parking(&self, i: usize, given_back: bool) {
        debug_assert!(
            self.is_hole(i),
            "a cell that is parked has begun to be: {i}"
        );
        if given_back {
            self.parked(i / 64).fetch_or(bit(i), SeqCst);
        } else {
            self.end_unparking(i, true);
        }
    }

    /// Begins unparking the first parked cell. The caller reserves its room and calls
    /// [`Cells::end_unparking`].
    pub(crate) fn begin_unparking(&self) -> Option<usize> {
        for word in 0..self.count().div_ceil(64) {
            let mut candidates = self.parked(word).load(Relaxed);
            while candidates != 0 {
                let i = word * 64 + candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                if self.begin_unparking_of(i) {
                    return Some(i);
                }
            }
        }
        None
    }

    /// As [`Cells::begin_unparking`], for cell `i`. False if the cell isn't parked.
    pub(crate) fn begin_unparking_of(&self, i: usize) -> bool {
        // In a damaged map, *parked* alone proves nothing: the cell may have pages in use.
        i < self.count()
            && self.is_hole(i)
            && self.parked(i / 64).fetch_and(!bit(i), SeqCst) & bit(i) != 0
    }

    /// Ends unparking. If `has_room` is false, the cell is parked again.
    pub(crate) fn end_unparking(&self, i: usize, has_room: bool) {
        debug_assert!(self.is_hole(i), "a cell that is unparked was parked: {i}");
        if has_room {
            self.holes(i / 64).fetch_and(!bit(i), SeqCst);
            self.free_all(i);
        } else {
            self.parked(i / 64).fetch_or(bit(i), SeqCst);
        }
    }

    fn free_all(&self, i: usize) {
        self.cell(i).used.iter().for_each(|w| w.store(0, SeqCst));
        self.note_freed(i);
    }

    /// Parks a cell of *holes* again, in whatever state a process left it when it died. Only while
    /// no other thread works on the cell.
    pub(crate) fn park_again(&self, i: usize) {
        let used = &self.cell(i).used;
        used.iter().for_each(|w| w.store(u64::MAX, Release));
        for bitmap in [self.full(i / 64), self.busy(i / 64), self.parked(i / 64)] {
            bitmap.fetch_or(bit(i), SeqCst);
        }
    }

    /// Clears the cell's bits *holes* and *parked*, without a check whether the cell has room. Only
    /// while no other process uses the medium.
    pub(crate) fn forget_hole(&self, i: usize) {
        self.parked(i / 64).fetch_and(!bit(i), SeqCst);
        self.holes(i / 64).fetch_and(!bit(i), SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Region;

    fn cells(n: usize, name: &str) -> (Cells, std::path::PathBuf) {
        let name = format!("forebay-parking-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let region = Region::create(&path, Cells::map_len(n, false), true).unwrap();
        Cells::format(&region, n);
        let c = Cells::open(region, 0, n).unwrap();
        c.set_reserved(n);
        (c, path)
    }

    #[test]
    fn a_parked_cell_is_nobodys_and_comes_back() {
        let (c, path) = cells(70, "one");
        let taken = c.alloc(10, false).unwrap();
        let first = taken.start() as usize / CELL_PAGES;
        assert!(!c.begin_parking(first), "it has pages in use");
        assert_eq!(c.used_pages(), 10);
        for i in (0..70).filter(|&i| i != first) {
            assert!(c.begin_parking(i));
            c.end_parking(i, true);
        }
        assert_eq!((c.backed(), c.used_pages()), (1, 10));
        assert_eq!(c.last_empty(70), None);
        assert_eq!(c.alloc(CELL_PAGES, false), None);
        // Neither a recount nor a comparison with the records counts the pages of parked cells.
        c.recount();
        let bits = c.used_bits();
        let used: u32 = bits.iter().map(|w| w.count_ones()).sum();
        assert_eq!((used, c.used_pages(), c.wrongly_full()), (10, 10, 0));
        assert_eq!(c.rebuild(&bits), 0);
        assert_eq!(c.backed(), 1);
        // A cell for which there is no room stays parked.
        let i = c.begin_unparking().unwrap();
        c.end_unparking(i, false);
        assert_eq!(c.alloc(CELL_PAGES, false), None);
        while let Some(i) = c.begin_unparking() {
            c.end_unparking(i, true);
        }
        assert_eq!(c.backed(), 70);
        c.free(taken);
        assert_eq!(
            (0..70).filter_map(|_| c.alloc(CELL_PAGES, false)).count(),
            70
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn whoever_dies_on_the_way_leaves_a_cell_parked_or_free() {
        let (c, path) = cells(3, "death");
        // A death before the cell's room was given back, and before the cell was marked as parked.
        assert!(c.begin_parking(0));
        c.recount();
        assert_eq!((c.begin_unparking(), c.backed()), (Some(0), 2));
        // A death before the cell's room was reserved again.
        c.recount();
        assert_eq!(c.begin_unparking(), Some(0));
        // A death when half of the cell's pages were free.
        c.holes(0).fetch_and(!1, SeqCst);
        c.cell(0).used[0].store(0, SeqCst);
        c.recount();
        let lost: u32 = c.used_bits().iter().map(|w| w.count_ones()).sum();
        assert_eq!(
            lost as usize,
            CELL_PAGES - 64,
            "a look at the records frees these"
        );
        c.forget_reserved();
        assert_eq!(c.backed(), 0);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_stray_mark_frees_nothing() {
        let (c, path) = cells(2, "stray");
        let taken = [c.alloc(CELL_PAGES, false), c.alloc(CELL_PAGES, false)];
        c.parked(0).store(u64::MAX, SeqCst);
        assert_eq!(c.begin_unparking(), None);
        assert_eq!(c.alloc(1, false), None);
        c.free(taken[1].unwrap());
        let free = if taken[1].unwrap().start() == 0 { 0 } else { 1 };
        assert!(c.begin_parking(free));
        assert_eq!(
            c.begin_unparking(),
            None,
            "its room is just being given back"
        );
        c.end_parking(free, true);
        assert_eq!(c.begin_unparking(), Some(free));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn threads_park_and_allocate_and_nothing_is_lost() {
        let (c, path) = cells(4, "threads");
        std::thread::scope(|s| {
            for t in 0..2 {
                let c = &c;
                s.spawn(move || {
                    for round in 0..20_000 {
                        if let Some(i) = c.last_empty(4).filter(|_| t == 0 && round % 2 == 0)
                            && c.begin_parking(i)
                        {
                            c.end_parking(i, round % 3 != 0);
                        } else if let Some(i) = c.begin_unparking() {
                            c.end_unparking(i, true);
                        }
                        if let Some(e) = c.alloc(1 + round * 7 % 256, true) {
                            c.free(e);
                        }
                    }
                });
            }
        });
        while let Some(i) = c.begin_unparking() {
            c.end_unparking(i, true);
        }
        assert_eq!((c.used_pages(), c.backed()), (0, 4));
        assert_eq!((0..4).filter_map(|_| c.alloc(CELL_PAGES, false)).count(), 4);
        std::fs::remove_file(path).unwrap();
    }
}

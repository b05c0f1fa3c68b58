//! The page allocator of a medium: which pages of a segment are in use. All processes share it.
//!
//! Each cell of 256 pages has two bitmaps in the medium's map: `used` and `init`. Pages are taken
//! and freed by compare-and-swap on words of `used`; there are no locks. A run of up to 64 pages
//! lies inside one word; a longer run starts at a word. Two summary bitmaps over the cells (`full`,
//! `busy`) shorten the search. The summaries are hints: before the medium counts as full, every
//! cell is examined.
//!
//! Two more bitmaps over the cells mark the cells whose room was given back to the file system: see
//! [`crate::parking`].
//!
//! Layout of the map file: one page of [`Header`], the bitmaps over the cells, then 64 bytes per
//! cell. In a pool that survives a loss of power, the data of [`crate::pending`] follows.

use crate::CELL_PAGES;
use crate::{Extent, PAGE, Region};
use forebay_runtime::atomics::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

const MAGIC: u64 = 0x3250_414d_5942_4546; // "FEBYMAP2"

/// Durability bits of one cell, in a pool that survives a loss of power: see [`crate::pending`].
#[repr(C, align(32))]
pub(crate) struct Pending {
    pub(crate) durable: [AtomicU64; 4],
    pub(crate) limbo: [AtomicU64; 4],
    pub(crate) fresh: [AtomicU64; 4],
}

/// Number of bitmaps over the cells: full, busy, holes, parked.
const BITMAPS: usize = 4;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    cells: AtomicU64,
    used_pages: AtomicU64,
    /// Number of cells, counted from cell 0, that have reserved room. Parked cells are counted, but
    /// have no room.
    reserved: AtomicU64,
    limbo_pages: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct Cell {
    pub(crate) used: [AtomicU64; 4],
    pub(crate) init: [AtomicU64; 4],
}

/// The map of one medium.
pub struct Cells {
    region: Region,
    medium: u8,
    cells: usize,
    /// Whether the map tracks which pages are durable.
    tracks: bool,
    /// The cell from which this process takes small extents.
    hint: AtomicUsize,
}

impl Cells {
    /// Returns the size of a map for `cells` cells in bytes. `tracks`: whether it has durability
    /// bits.
    pub fn map_len(cells: usize, tracks: bool) -> usize {
        let pending = Cells::summary_len(cells) + cells * size_of::<Pending>();
        Cells::pending_at(cells) + if tracks { pending } else { 0 }
    }

    fn pending_at(cells: usize) -> usize {
        PAGE + BITMAPS * Cells::summary_len(cells) + cells * size_of::<Cell>()
    }

    fn summary_len(cells: usize) -> usize {
        (cells.div_ceil(64) * 8).next_multiple_of(64)
    }

    /// Writes the header of a new, zeroed map.
    pub fn format(region: &Region, cells: usize) {
        // SAFETY: Header is made of atomics and the region is longer than a page.
        let h: &Header = unsafe { region.at(0) };
        h.cells.store(cells as u64, Relaxed);
        h.magic.store(MAGIC, Release);
    }

    /// Opens the map in `region`.
    ///
    /// # Errors
    /// A sentence, if `region` doesn't contain a map of `cells` cells.
    pub fn open(region: Region, medium: u8, cells: usize) -> Result<Cells, String> {
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        let h: &Header = unsafe { region.at(0) };
        if h.magic.load(Acquire) != MAGIC || h.cells.load(Relaxed) != cells as u64 {
            return Err("not the map of a medium of this size".into());
        }
        // No hint yet: this process takes its first small extent from an empty cell. So processes
        // seldom change bits in the same cache line.
        let hint = AtomicUsize::new(usize::MAX);
        let tracks = region.len() >= Cells::map_len(cells, true);
        Ok(Cells {
            region,
            medium,
            cells,
            tracks,
            hint,
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(0) }
    }

    pub(crate) fn cell(&self, i: usize) -> &Cell {
        let offset = PAGE + BITMAPS * Cells::summary_len(self.cells) + i * size_of::<Cell>();
        // SAFETY: atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(offset) }
    }

    fn bitmap(&self, which: usize, word: usize) -> &AtomicU64 {
        let at = PAGE + which * Cells::summary_len(self.cells) + word * 8;
        // SAFETY: atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(at) }
    }

    pub(crate) fn full(&self, word: usize) -> &AtomicU64 {
        self.bitmap(0, word)
    }

    pub(crate) fn busy(&self, word: usize) -> &AtomicU64 {
        self.bitmap(1, word)
    }

    pub(crate) fn holes(&self, word: usize) -> &AtomicU64 {
        self.bitmap(2, word)
    }

    pub(crate) fn parked(&self, word: usize) -> &AtomicU64 {
        self.bitmap(3, word)
    }

    /// Whether the map tracks which pages are durable.
    pub fn tracks(&self) -> bool {
        self.tracks
    }

    pub(crate) fn pending(&self, i: usize) -> &Pending {
        let at = Cells::pending_at(self.cells) + Cells::summary_len(self.cells);
        // SAFETY: atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(at + i * size_of::<Pending>()) }
    }

    pub(crate) fn limbo_summary(&self, word: usize) -> &AtomicU64 {
        // SAFETY: atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(Cells::pending_at(self.cells) + word * 8) }
    }

    pub(crate) fn limbo_pages(&self) -> &AtomicU64 {
        &self.header().limbo_pages
    }

    pub(crate) fn medium(&self) -> u8 {
        self.medium
    }

    /// The cells with pages in use.
    pub(crate) fn busy_cells(&self) -> impl Iterator<Item = usize> {
        (0..self.cells).filter(|i| self.busy(i / 64).load(Acquire) >> (i % 64) & 1 == 1)
    }

    /// Number of cells.
    pub fn count(&self) -> usize {
        self.cells
    }

    /// Number of pages in use.
    pub fn used_pages(&self) -> u64 {
        self.header().used_pages.load(Relaxed)
    }

    /// Number of cells, counted from cell 0, that have reserved room. Parked cells are counted, but
    /// have no room.
    pub fn reserved(&self) -> usize {
        self.header().reserved.load(Acquire) as usize
    }

    /// Records that room is reserved for the first `cells` cells.
    pub fn set_reserved(&self, cells: usize) {
        assert!(
            cells <= self.cells,
            "{cells} of {} cells are reserved",
            self.cells
        );
        self.header().reserved.fetch_max(cells as u64, AcqRel);
    }

    /// Takes a run of `want` pages in cells with reserved room. If no run of that length is free
    /// and `any` is set, takes the longest free run whose length is a power of two.
    pub fn alloc(&self, want: usize, any: bool) -> Option<Extent> {
        let want = want.clamp(1, CELL_PAGES);
        if let Some(e) = self.alloc_run(want) {
            return Some(e);
        }
        if any {
            let mut n = want.next_power_of_two() / 2;
            while n >= 1 {
                if let Some(e) = self.alloc_run(n) {
                    return Some(e);
                }
                n /= 2;
            }
        }
        None
    }

    fn alloc_run(&self, want: usize) -> Option<Extent> {
        let reserved = self.reserved().min(self.cells);
        if want < CELL_PAGES {
            let hint = self.hint.load(Relaxed);
            if hint < reserved
                && let Some(e) = self.alloc_in(hint, want)
            {
                return Some(e);
            }
        }
        // First look for an empty cell: for a whole extent, or as this process's next cell for
        // small extents. Then try any cell that isn't full.
        for summary in [true, false] {
            for word in 0..reserved.div_ceil(64) {
                let taken = if summary {
                    self.busy(word)
                } else {
                    self.full(word)
                };
                let mut candidates = !taken.load(Relaxed);
                while candidates != 0 {
                    let i = word * 64 + candidates.trailing_zeros() as usize;
                    candidates &= candidates - 1;
                    if i >= reserved {
                        break;
                    }
                    if let Some(e) = self.alloc_in(i, want) {
                        if want < CELL_PAGES {
                            self.hint.store(i, Relaxed);
                        }
                        return Some(e);
                    }
                    if want <= 1 && !summary {
                        self.note_full(i);
                    }
                }
            }
        }
        None
    }

    /// Marks the cell full unless it has a free page.
    fn note_full(&self, i: usize) {
        let bit = 1 << (i % 64);
        // The operations here and in `free` are sequentially consistent, so that one of the two
        // sees the other's change.
        self.full(i / 64).fetch_or(bit, SeqCst);
        if self.cell(i).used.iter().any(|w| w.load(SeqCst) != u64::MAX) {
            self.full(i / 64).fetch_and(!bit, AcqRel);
        }
    }

    fn alloc_in(&self, i: usize, want: usize) -> Option<Extent> {
        let cell = self.cell(i);
        let first = if want <= 64 {
            (0..4).find_map(|w| take_run(&cell.used[w], want).map(|bit| w * 64 + bit))
        } else {
            let words = want.div_ceil(64);
            (0..=4 - words)
                .find(|&w| take_words(&cell.used[w..w + words], want))
                .map(|w| w * 64)
        }?;
        let bit = 1u64 << (i % 64);
        if self.busy(i / 64).load(Relaxed) & bit == 0 {
            self.busy(i / 64).fetch_or(bit, AcqRel);
        }
        for (word, mask) in masks(first, want) {
            cell.init[word].fetch_and(!mask, Relaxed);
            if self.tracks {
                self.pending(i).fresh[word].fetch_and(!mask, SeqCst);
            }
        }
        debug_assert!(
            first + want <= CELL_PAGES,
            "a run of pages lies in its cell"
        );
        self.header().used_pages.fetch_add(want as u64, Relaxed);
        Some(Extent::new(
            self.medium,
            (i * CELL_PAGES + first) as u64,
            want,
        ))
    }

    /// Frees the pages of `e`. Durable pages can't be reused at once: see [`crate::pending`].
    pub fn free(&self, e: Extent) {
        let i = e.start() as usize / CELL_PAGES;
        debug_assert!(e.is_sound(), "pages that are freed lie in one cell: {e:?}");
        let cell = self.cell(i);
        let mut freed = 0;
        for (word, mask) in masks(e.start() as usize % CELL_PAGES, e.pages()) {
            let now = if self.tracks {
                self.to_limbo(i, word, mask)
            } else {
                mask
            };
            let old = cell.used[word].fetch_and(!now, SeqCst);
            freed += u64::from((old & mask).count_ones());
        }
        debug_assert_eq!(freed, e.pages() as u64, "{e:?} was not in use");
        self.header().used_pages.fetch_sub(freed, Relaxed);
        self.note_freed(i);
    }

    /// Corrects the summaries `full` and `busy` after pages of cell `i` have become free.
    pub(crate) fn note_freed(&self, i: usize) {
        let cell = self.cell(i);
        let bit = 1u64 << (i % 64);
        if self.full(i / 64).load(SeqCst) & bit != 0 {
            self.full(i / 64).fetch_and(!bit, AcqRel);
        }
        if cell.used.iter().all(|w| w.load(Acquire) == 0) {
            self.busy(i / 64).fetch_and(!bit, AcqRel);
            if cell.used.iter().any(|w| w.load(Acquire) != 0) {
                self.busy(i / 64).fetch_or(bit, AcqRel);
            }
        }
    }

    /// Whether page `page` of the segment is initialised.
    pub fn is_init(&self, page: u64) -> bool {
        let (i, p) = (page as usize / CELL_PAGES, page as usize % CELL_PAGES);
        self.cell(i).init[p / 64].load(Acquire) >> (p % 64) & 1 == 1
    }

    /// Whether all `pages` pages from `page` on, inside one cell, are initialised.
    pub fn all_init(&self, page: u64, pages: usize) -> bool {
        let cell = self.cell(page as usize / CELL_PAGES);
        masks(page as usize % CELL_PAGES, pages)
            .all(|(word, mask)| cell.init[word].load(Acquire) & mask == mask)
    }

    /// Marks pages inside one cell as initialised (after writing them) or as uninitialised.
    pub fn set_init(&self, page: u64, pages: usize, init: bool) {
        let cell = self.cell(page as usize / CELL_PAGES);
        debug_assert!(
            page as usize % CELL_PAGES + pages <= CELL_PAGES,
            "pages that are marked lie in one cell"
        );
        for (word, mask) in masks(page as usize % CELL_PAGES, pages) {
            if !init {
                cell.init[word].fetch_and(!mask, AcqRel);
            } else if cell.init[word].load(Relaxed) & mask != mask {
                cell.init[word].fetch_or(mask, AcqRel);
            } else {
                // The bits are set already; they must still not be seen before the written bytes.
                fence(Release);
            }
        }
    }

    /// Replaces the in-use bits by `used` (4 words per cell) and rebuilds the summaries. Returns
    /// the number of pages whose bits differed. Only while no other process uses the medium.
    pub fn rebuild(&self, used: &[u64]) -> u64 {
        let (mut differed, mut total) = (0, 0);
        for word in 0..self.cells.div_ceil(64) {
            self.full(word).store(0, Relaxed);
            self.busy(word).store(0, Relaxed);
        }
        for i in 0..self.cells {
            let new = &used[i * 4..i * 4 + 4];
            if self.is_hole(i) && new.iter().all(|&w| w == 0) {
                self.park_again(i);
                continue;
            }
            self.forget_hole(i);
            for (w, &bits) in self.cell(i).used.iter().zip(new) {
                differed += u64::from((w.swap(bits, AcqRel) ^ bits).count_ones());
                total += u64::from(bits.count_ones());
            }
            if new.iter().any(|&w| w != 0) {
                self.busy(i / 64).fetch_or(1 << (i % 64), Relaxed);
            }
            if self.tracks {
                self.rebuild_pending(i, new);
            }
        }
        self.limbo_pages().store(0, Relaxed);
        self.header().used_pages.store(total, Relaxed);
        differed
    }

    /// Recounts the pages in use, and corrects the summaries. Only while no process takes or frees
    /// pages.
    pub fn recount(&self) {
        let mut total = 0;
        for i in 0..self.cells {
            if self.is_hole(i) {
                // The cell is parked, or a process was parking or unparking it when it died.
                self.park_again(i);
                continue;
            }
            let used = self.cell(i).used.iter().map(|w| w.load(Acquire));
            let pages: u32 = used.map(u64::count_ones).sum();
            total += u64::from(self.used_in(i).map(u64::count_ones).iter().sum::<u32>());
            let bit = 1 << (i % 64);
            if pages == 0 {
                self.busy(i / 64).fetch_and(!bit, Relaxed);
            } else {
                self.busy(i / 64).fetch_or(bit, Relaxed);
            }
            if pages < CELL_PAGES as u32 {
                self.full(i / 64).fetch_and(!bit, Relaxed);
            }
        }
        if self.used_pages() != total {
            self.header().used_pages.store(total, Relaxed);
        }
        self.recount_limbo();
    }

    /// Number of cells that are marked as full but have free pages.
    pub fn wrongly_full(&self) -> usize {
        let marked = |i: usize| self.full(i / 64).load(Relaxed) >> (i % 64) & 1 == 1;
        let free = |i: usize| {
            let mut words = self.cell(i).used.iter();
            words.any(|w| w.load(Relaxed) != u64::MAX)
        };
        (0..self.cells).filter(|&i| marked(i) && free(i)).count()
    }

    /// Forgets which cells have reserved room. Only while no other process uses the medium.
    pub(crate) fn forget_reserved(&self) {
        for i in (0..self.cells).filter(|&i| self.is_hole(i)) {
            self.forget_hole(i);
            self.cell(i).used.iter().for_each(|w| w.store(0, Release));
            self.note_freed(i);
        }
        self.header().reserved.store(0, Release);
    }

    /// Index of the last cell in use, plus one.
    pub fn used_cells(&self) -> usize {
        let used = |i: &usize| self.cell(*i).used.iter().any(|w| w.load(Acquire) != 0);
        (0..self.cells).rev().find(used).map_or(0, |i| i + 1)
    }

    /// Returns the in-use bits, 4 words per cell, without the pages in limbo.
    pub fn used_bits(&self) -> Vec<u64> {
        (0..self.cells).flat_map(|i| self.used_in(i)).collect()
    }

    fn used_in(&self, i: usize) -> [u64; 4] {
        if self.is_hole(i) {
            return [0; 4];
        }
        // The order matters: a page whose limbo ends meanwhile is free by the time `used` is read.
        let limbo = self.limbo_in(i);
        std::array::from_fn(|w| self.cell(i).used[w].load(Acquire) & !limbo[w])
    }
}

/// Returns the (word, mask) pairs that cover `pages` pages from `first` on inside a cell.
pub(crate) fn masks(first: usize, pages: usize) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(
        first + pages <= CELL_PAGES,
        "pages lie in one cell: {pages} from {first}"
    );
    let end = first + pages;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let lo = first.max(word * 64) - word * 64;
        let hi = end.min(word * 64 + 64) - word * 64;
        let mask = if hi - lo == 64 {
            u64::MAX
        } else {
            ((1 << (hi - lo)) - 1) << lo
        };
        (word, mask)
    })
}

/// Takes `n` (1..=64) consecutive free bits from `word`. Returns the first one's index.
fn take_run(word: &AtomicU64, n: usize) -> Option<usize> {
    let mut used = word.load(Relaxed);
    loop {
        // Bit i of `run` is set if bits i..i+len are free; len doubles in each step.
        let mut run = !used;
        let mut len = 1;
        while len < n && run != 0 {
            let step = len.min(n - len);
            run &= run >> step;
            len += step;
        }
        if run == 0 {
            return None;
        }
        let bit = run.trailing_zeros() as usize;
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1 << n) - 1) << bit
        };
        match word.compare_exchange_weak(used, used | mask, AcqRel, Relaxed) {
            Ok(_) => return Some(bit),
            Err(now) => used = now,
        }
    }
}

/// Takes the first `n` bits of `words`: whole words except the last. Takes all of them or none.
pub(crate) fn take_words(words: &[AtomicU64], n: usize) -> bool {
    for (k, word) in words.iter().enumerate() {
        let bits = (n - k * 64).min(64);
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        let mut used = word.load(Relaxed);
        loop {
            if used & mask != 0 {
                for earlier in &words[..k] {
                    earlier.fetch_and(0, AcqRel);
                }
                return false;
            }
            match word.compare_exchange_weak(used, used | mask, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => used = now,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn cells(n: usize) -> (Cells, std::path::PathBuf) {
        use std::sync::atomic::AtomicU32;
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!(
            "forebay-cells-{}-{}",
            std::process::id(),
            SERIAL.fetch_add(1, Relaxed)
        ));
        let region = Region::create(&path, Cells::map_len(n, false), true).unwrap();
        Cells::format(&region, n);
        let c = Cells::open(region, 0, n).unwrap();
        c.set_reserved(n);
        (c, path)
    }

    #[test]
    fn extents_never_overlap_and_all_come_back() {
        let (c, path) = cells(4);
        let mut taken: Vec<Extent> = Vec::new();
        let mut pages: HashSet<u64> = HashSet::new();
        let mut seed = 12345u64;
        for round in 0..5000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let r = (seed >> 33) as usize;
            if round % 3 != 0 || taken.is_empty() {
                let want = [1, 1, 2, 7, 64, 65, 128, 200, 256][r % 9];
                if let Some(e) = c.alloc(want, r.is_multiple_of(2)) {
                    for p in e.start()..e.start() + e.pages() as u64 {
                        assert!(pages.insert(p), "page {p} handed out twice");
                    }
                    assert_eq!(e.start() / 256, (e.start() + e.pages() as u64 - 1) / 256);
                    taken.push(e);
                }
            } else {
                let e = taken.swap_remove(r % taken.len());
                for p in e.start()..e.start() + e.pages() as u64 {
                    pages.remove(&p);
                }
                c.free(e);
            }
            assert_eq!(c.used_pages(), pages.len() as u64);
        }
        for e in taken {
            c.free(e);
        }
        assert_eq!(c.used_pages(), 0);
        for _ in 0..4 {
            assert_eq!(c.alloc(256, false).unwrap().pages(), 256);
        }
        assert!(c.alloc(1, true).is_none());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn threads_share_every_page_exactly_once() {
        let (c, path) = cells(8);
        let got: Vec<Extent> = std::thread::scope(|s| {
            let workers: Vec<_> = (0..4)
                .map(|_| s.spawn(|| std::iter::from_fn(|| c.alloc(3, true)).collect::<Vec<_>>()))
                .collect();
            workers
                .into_iter()
                .flat_map(|w| w.join().unwrap())
                .collect()
        });
        assert_eq!(got.iter().map(|e| e.pages()).sum::<usize>(), 8 * 256);
        let bits = c.used_bits();
        assert!(bits.iter().all(|&w| w == u64::MAX));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn masks_cover_the_run() {
        for (first, pages) in [(0, 1), (63, 2), (0, 256), (10, 200), (64, 64)] {
            let n: u32 = masks(first, pages).map(|(_, m)| m.count_ones()).sum();
            assert_eq!(n as usize, pages);
        }
    }
}

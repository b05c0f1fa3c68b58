//! Tracks which pages of a medium would survive a loss of power: three more bits per page, in pools
//! with durable records.
//!
//! - *durable*: the journal records that the page is initialised, and the page's bytes are on
//!   stable storage. After a loss of power, every other page reads as zero.
//! - *limbo*: the page is durable and was freed, but the journal on stable storage doesn't yet
//!   record that it is free. If the page were reused now, a loss of power could show the new bytes
//!   in the file that had the page before. So the page stays in use until the journal is written.
//! - *fresh*: the page is initialised, and being written to stable storage now (`sync_all`).
//!
//! A page that isn't durable may be reused at once: after a loss of power, it would read as zero in
//! the file that had it before.

use crate::CELL_PAGES;
use crate::Extent;
use crate::cells::{Cells, masks};
use forebay_runtime::atomics::Ordering::*;

/// A set of pages: some bits of one word of a cell's bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    pub cell: u32,
    pub word: u32,
    pub mask: u64,
}

impl Bits {
    /// Calls `each` with the runs of pages, as extents of `medium`.
    fn runs(self, medium: u8, each: &mut impl FnMut(Extent)) {
        let base = self.cell as u64 * CELL_PAGES as u64 + u64::from(self.word) * 64;
        let mut mask = self.mask;
        while mask != 0 {
            let first = mask.trailing_zeros();
            let len = (!(mask >> first)).trailing_zeros().min(64 - first);
            each(Extent::new(medium, base + u64::from(first), len as usize));
            mask &= !(if len == 64 {
                u64::MAX
            } else {
                ((1 << len) - 1) << first
            });
        }
    }
}

/// The durability changes that a file's pages need, at the moment of [`Cells::lacking`].
#[derive(Default, Debug)]
pub struct Lacking {
    /// Pages that are initialised, but not durable.
    pub written: Vec<Bits>,
    /// Pages that are no longer initialised, but still durable.
    pub cleared: Vec<Bits>,
}

/// Changes for the caller to record in the journal.
#[derive(Default, Debug)]
pub struct Changes {
    pub durable: Vec<Extent>,
    pub cleared: Vec<Extent>,
}

impl Cells {
    /// Collects the durability changes that the pages of `e` need.
    pub fn lacking(&self, e: Extent, lacking: &mut Lacking) {
        let i = e.start() as usize / CELL_PAGES;
        let (cell, pending) = (self.cell(i), self.pending(i));
        for (word, mask) in masks(e.start() as usize % CELL_PAGES, e.pages()) {
            let init = cell.init[word].load(Acquire);
            let durable = pending.durable[word].load(Acquire);
            let bits = |mask| Bits {
                cell: i as u32,
                word: word as u32,
                mask,
            };
            if init & !durable & mask != 0 {
                lacking.written.push(bits(init & !durable & mask));
            }
            if !init & durable & mask != 0 {
                lacking.cleared.push(bits(!init & durable & mask));
            }
        }
    }

    /// Sets the durable bits of `lacking.written`, whose bytes have been written to stable storage,
    /// and clears those of `lacking.cleared`. Adds to `changes` the pages that still need a journal
    /// record; the caller writes these records. Only one caller at a time. The pages must still
    /// belong to the same file.
    pub fn make_durable(&self, lacking: &Lacking, changes: &mut Changes) {
        for &b in &lacking.written {
            let init = self.cell(b.cell as usize).init[b.word as usize].load(Acquire);
            let durable = &self.pending(b.cell as usize).durable[b.word as usize];
            let mask = b.mask & init & !durable.load(Acquire);
            if mask != 0 {
                durable.fetch_or(mask, SeqCst);
                Bits { mask, ..b }.runs(self.medium(), &mut |e| changes.durable.push(e));
            }
        }
        for &b in &lacking.cleared {
            let init = self.cell(b.cell as usize).init[b.word as usize].load(Acquire);
            let durable = &self.pending(b.cell as usize).durable[b.word as usize];
            let mask = b.mask & !init & durable.load(Acquire);
            if mask != 0 {
                durable.fetch_and(!mask, SeqCst);
                Bits { mask, ..b }.runs(self.medium(), &mut |e| changes.cleared.push(e));
            }
        }
    }

    /// Marks all pages that are initialised but not durable as fresh. False if there are none and
    /// no other page needs a journal record. One process at a time.
    pub fn mark_fresh(&self) -> bool {
        let mut any = false;
        for i in self.busy_cells() {
            let (cell, pending) = (self.cell(i), self.pending(i));
            for w in 0..4 {
                let durable = pending.durable[w].load(Acquire);
                let now = || {
                    cell.used[w].load(SeqCst)
                        & cell.init[w].load(SeqCst)
                        & !pending.limbo[w].load(SeqCst)
                };
                let mask = now() & !durable;
                if mask != pending.fresh[w].load(Relaxed) {
                    pending.fresh[w].store(mask, SeqCst);
                    // Pages may have been freed, and perhaps taken again, before the mark was set.
                    pending.fresh[w].fetch_and(now(), SeqCst);
                }
                any |= mask != 0 || self.stale(i, w) != 0;
            }
        }
        any
    }

    /// Returns the pages in use that are durable but no longer initialised.
    fn stale(&self, i: usize, w: usize) -> u64 {
        let (cell, pending) = (self.cell(i), self.pending(i));
        pending.durable[w].load(Acquire)
            & cell.used[w].load(Acquire)
            & !cell.init[w].load(Acquire)
            & !pending.limbo[w].load(Acquire)
    }

    /// Marks fresh pages as durable, after their bytes have been written to stable storage. Pages
    /// that are no longer fresh were freed meanwhile, and are left out. Adds to `changes` what the
    /// caller must record in the journal. Only one caller at a time.
    pub fn make_fresh_durable(&self, changes: &mut Changes) {
        for i in self.busy_cells() {
            let pending = self.pending(i);
            for w in 0..4 {
                let fresh = pending.fresh[w].load(SeqCst);
                let bits = |mask| Bits {
                    cell: i as u32,
                    word: w as u32,
                    mask,
                };
                if fresh != 0 {
                    let new = fresh & !pending.durable[w].fetch_or(fresh, SeqCst);
                    // A process that frees pages first clears *fresh*, then reads *durable*: so one
                    // of the two sides sees the other's change.
                    let still = pending.fresh[w].swap(0, SeqCst);
                    pending.durable[w].fetch_and(!(new & !still), SeqCst);
                    bits(new & still).runs(self.medium(), &mut |e| changes.durable.push(e));
                }
                let stale = self.stale(i, w);
                if stale != 0 {
                    pending.durable[w].fetch_and(!stale, SeqCst);
                    bits(stale).runs(self.medium(), &mut |e| changes.cleared.push(e));
                }
            }
        }
    }

    /// Calls `each` with the runs of durable pages.
    pub fn durable(&self, mut each: impl FnMut(Extent)) {
        for i in self.busy_cells() {
            for (w, word) in self.pending(i).durable.iter().enumerate() {
                let bits = Bits {
                    cell: i as u32,
                    word: w as u32,
                    mask: word.load(Acquire),
                };
                bits.runs(self.medium(), &mut each);
            }
        }
    }

    /// Sets or clears the durable bits of `e`. False if `e` isn't inside one cell of the medium.
    pub fn set_durable(&self, e: Extent, durable: bool) -> bool {
        let i = e.start() as usize / CELL_PAGES;
        if i >= self.count() || e.start() as usize % CELL_PAGES + e.pages() > CELL_PAGES {
            return false;
        }
        for (word, mask) in masks(e.start() as usize % CELL_PAGES, e.pages()) {
            let place = &self.pending(i).durable[word];
            if durable {
                place.fetch_or(mask, SeqCst);
            } else {
                place.fetch_and(!mask, SeqCst);
            }
        }
        true
    }

    /// Makes durable pages, and only these, initialised. Called after a loss of power.
    pub fn init_from_durable(&self) {
        for i in 0..self.count() {
            for (init, durable) in self.cell(i).init.iter().zip(&self.pending(i).durable) {
                init.store(durable.load(Acquire), Release);
            }
        }
    }

    /// Marks pages that are in use and initialised as durable. The caller writes their bytes and
    /// their records.
    pub fn durable_from_init(&self) {
        for i in 0..self.count() {
            let (cell, pending) = (self.cell(i), self.pending(i));
            for w in 0..4 {
                let used = cell.used[w].load(Acquire) & !pending.limbo[w].load(Acquire);
                pending.durable[w].store(used & cell.init[w].load(Acquire), SeqCst);
            }
        }
    }

    /// Calls `each` with the runs of durable pages that aren't in `used` (4 words per cell).
    pub fn durable_beside(&self, used: &[u64], mut each: impl FnMut(Extent)) {
        for i in 0..self.count() {
            for w in 0..4 {
                let mask = self.pending(i).durable[w].load(Acquire) & !used[i * 4 + w];
                let bits = Bits {
                    cell: i as u32,
                    word: w as u32,
                    mask,
                };
                bits.runs(self.medium(), &mut each);
            }
        }
    }

    // ---- giving back ----

    /// Puts the durable pages of `mask` into limbo. Returns the other pages of `mask`.
    pub(crate) fn to_limbo(&self, i: usize, word: usize, mask: u64) -> u64 {
        let pending = self.pending(i);
        pending.fresh[word].fetch_and(!mask, SeqCst);
        let durable = pending.durable[word].load(SeqCst) & mask;
        if durable != 0 {
            pending.limbo[word].fetch_or(durable, SeqCst);
            self.limbo_summary(i / 64).fetch_or(1 << (i % 64), SeqCst);
            self.limbo_pages()
                .fetch_add(u64::from(durable.count_ones()), Relaxed);
        }
        mask & !durable
    }

    /// Number of pages in limbo.
    pub fn in_limbo(&self) -> u64 {
        if self.tracks() {
            self.limbo_pages().load(Relaxed)
        } else {
            0
        }
    }

    /// Returns the pages in limbo now, and clears the summary of limbo. The caller passes each page
    /// to [`Cells::release`] or [`Cells::keep_in_limbo`].
    pub fn limbo(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        for word in 0..self.count().div_ceil(64) {
            let mut cells = self.limbo_summary(word).swap(0, SeqCst);
            while cells != 0 {
                let i = word * 64 + cells.trailing_zeros() as usize;
                cells &= cells - 1;
                for (w, limbo) in self.pending(i).limbo.iter().enumerate() {
                    let bits = Bits {
                        cell: i as u32,
                        word: w as u32,
                        mask: limbo.load(SeqCst),
                    };
                    bits.runs(self.medium(), &mut |e| extents.push(e));
                }
            }
        }
        extents
    }

    /// Puts pages that couldn't be released back into the summary of limbo.
    pub fn keep_in_limbo(&self, extents: &[Extent]) {
        for e in extents {
            let i = e.start() as usize / CELL_PAGES;
            self.limbo_summary(i / 64).fetch_or(1 << (i % 64), SeqCst);
        }
    }

    /// Ends the limbo of pages that are free according to the journal on stable storage.
    pub fn release(&self, extents: &[Extent]) {
        for e in extents {
            let i = e.start() as usize / CELL_PAGES;
            for (word, mask) in masks(e.start() as usize % CELL_PAGES, e.pages()) {
                let old = self.pending(i).limbo[word].fetch_and(!mask, SeqCst);
                let gone = u64::from((old & mask).count_ones());
                let before = self.limbo_pages().fetch_sub(gone, Relaxed);
                debug_assert!(before >= gone, "pages that leave limbo were counted");
                self.cell(i).used[word].fetch_and(!(old & mask), SeqCst);
            }
            self.note_freed(i);
        }
    }

    /// The limbo bits of a cell.
    pub(crate) fn limbo_in(&self, i: usize) -> [u64; 4] {
        if self.tracks() {
            self.pending(i).limbo.each_ref().map(|w| w.load(Acquire))
        } else {
            [0; 4]
        }
    }

    /// Part of [`Cells::recount`]: corrects the summary of limbo, which a process may have cleared
    /// before it died.
    pub(crate) fn recount_limbo(&self) {
        let mut total = 0;
        for i in self.busy_cells().filter(|_| self.tracks()) {
            let pages: u32 = self.limbo_in(i).map(u64::count_ones).iter().sum();
            if pages > 0 {
                self.limbo_summary(i / 64).fetch_or(1 << (i % 64), SeqCst);
            }
            total += u64::from(pages);
        }
        self.limbo_pages().store(total, Relaxed);
    }

    /// Part of [`Cells::rebuild`]: in cell `i`, clears the durable bits of the pages that aren't in
    /// `used`, and the limbo and fresh bits of all pages.
    pub(crate) fn rebuild_pending(&self, i: usize, used: &[u64]) {
        let pending = self.pending(i);
        for (w, &bits) in used.iter().enumerate() {
            pending.durable[w].fetch_and(bits, SeqCst);
            pending.limbo[w].store(0, SeqCst);
            pending.fresh[w].store(0, SeqCst);
        }
        self.limbo_summary(i / 64)
            .fetch_and(!(1 << (i % 64)), SeqCst);
    }
}

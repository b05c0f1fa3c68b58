//! Files that are read once (`temporality = "once"`): the kernel's cached pages of such files on
//! `files` media are dropped after the reader has passed them (the kernel reads ahead by itself).
//! So a pass over more data than fits into memory doesn't evict data that are read again.
//!
//! The pages are dropped by chunks: a process that reads the last byte of a chunk has passed it.
//! Parts of striped files on other nodes than the home don't know the declared controls: their
//! pages stay cached.

use super::*;
use crate::declared::declared;
use crate::views::Content;
use forebay_controls::Temporality;
use std::ops::Range;

impl Content<'_> {
    /// Records a read of `len` bytes of an open file.
    #[inline]
    pub(super) fn passed(&self, live: &Live, index: u32, offset: u64, len: usize, size: u64) {
        let word = live.controls.load(Relaxed);
        if word != 0 && declared(word).0.temporality == Some(Temporality::Once) {
            self.pass(index, offset, offset + len as u64, size);
        }
    }

    #[cold]
    fn pass(&self, index: u32, from: u64, to: u64, size: u64) {
        // Index after the last chunk that was read to its end.
        let end = if to == size {
            to.div_ceil(CHUNK)
        } else {
            to / CHUNK
        };
        let first = from / CHUNK;
        if end == first {
            return;
        }
        // The kernel may cache up to two chunks as one unit, and drops a unit only as a whole: so
        // the dropped range begins one chunk before `first`.
        for (medium, start, pages) in self.runs(index, first.saturating_sub(1)..end) {
            self.store.media()[medium].let_go(start, pages);
        }
    }

    /// The runs of pages in which chunks lie: medium, first page, number of pages. Chunks whose
    /// extents can't be determined are left out. The omission is harmless: the result only tells
    /// the kernel which cached pages it may drop.
    fn runs(&self, index: u32, chunks: Range<u64>) -> Vec<(usize, u64, usize)> {
        let moved = self.store.objects().live(index).moved.load(Relaxed);
        let mut runs: Vec<(usize, u64, usize)> = Vec::new();
        for chunk in chunks {
            let map = self.chunk_map(index, chunk, moved, 0).unwrap_or_default();
            for e in map
                .extents()
                .iter()
                .filter(|e| e.medium() < self.store.media().len())
            {
                match runs.last_mut() {
                    Some((medium, start, pages))
                        if *medium == e.medium() && *start + *pages as u64 == e.start() =>
                    {
                        *pages += e.pages();
                    }
                    _ => runs.push((e.medium(), e.start(), e.pages())),
                }
            }
        }
        runs
    }
}

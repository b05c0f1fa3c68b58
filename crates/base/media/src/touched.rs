//! Tracks which pages of a segment this process has touched.
//!
//! The first touch of a page costs a fault, even if the page exists and only the process's page
//! table lacks it. If the first touch is a write, the kernel maps this page alone. If the first
//! touch is a read, the kernel maps the neighbouring pages, too; in a shared writable mapping these
//! pages are writable. So each group of pages is read once before it is first written.

use crate::{CELL_PAGES, PAGE};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Size of the group of pages that the kernel maps around a fault (`fault_around_bytes`). Bytes.
const GROUP: usize = 16 * PAGE;
const CELL: usize = CELL_PAGES * PAGE;

/// One bit per group of pages, one word per cell: whether the process has touched the group.
pub(crate) struct Touched(Box<[AtomicU16]>);

impl Touched {
    pub fn new(cells: usize) -> Touched {
        Touched((0..cells).map(|_| AtomicU16::new(0)).collect())
    }

    /// Calls `touch` with the start of each group that overlaps `len` bytes at `offset` (all in one
    /// cell) and wasn't touched before.
    #[inline]
    pub fn first_time(&self, offset: usize, len: usize, touch: impl FnMut(usize)) {
        let word = &self.0[offset / CELL];
        let (first, last) = (offset % CELL / GROUP, (offset + len - 1) % CELL / GROUP);
        let wanted = (u16::MAX >> (15 - last)) & (u16::MAX << first);
        let missing = wanted & !word.load(Relaxed);
        if missing != 0 {
            word.fetch_or(missing, Relaxed);
            each_bit(missing)
                .map(|group| offset / CELL * CELL + group * GROUP)
                .for_each(touch);
        }
    }
}

fn each_bit(bits: u16) -> impl Iterator<Item = usize> {
    (0..16).filter(move |i| bits >> i & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_is_touched_once() {
        let t = Touched::new(2);
        let first = |offset, len| {
            let mut groups = Vec::new();
            t.first_time(offset, len, |at| groups.push(at));
            groups
        };
        assert_eq!(first(CELL + GROUP + 5, 1), [CELL + GROUP]);
        assert_eq!(first(CELL + GROUP, GROUP + 1), [CELL + 2 * GROUP]);
        assert_eq!(first(CELL, CELL).len(), 14);
        assert!(first(CELL, CELL).is_empty());
        assert_eq!(first(CELL - 1, 1), [CELL - GROUP]);
    }
}

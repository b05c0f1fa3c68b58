//! The page allocator under the model checker: see docs/internals/testing.md.

use crate::cells::Cells;
use crate::{Extent, Region};
use forebay_runtime::atomics::loom::{self, thread};
use std::collections::HashSet;
use std::sync::Arc;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(f);
}

/// A map of one cell.
fn cells() -> Arc<Cells> {
    let len = Cells::map_len(1, false);
    let fd = rustix::fs::memfd_create("forebay-model", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    let region = Region::map(&fd, 0, len).unwrap();
    Cells::format(&region, 1);
    let cells = Arc::new(Cells::open(region, 0, 1).unwrap());
    cells.set_reserved(1);
    // loom requires that each atomic is used once before there are several threads.
    let all = cells.alloc(1, false).unwrap();
    cells.free(all);
    cells.set_init(0, 256, false);
    cells.recount();
    cells
}

fn all_different(extents: &[Option<Extent>]) -> usize {
    let mut seen = HashSet::new();
    for e in extents.iter().flatten() {
        for page in e.start()..e.start() + e.pages() as u64 {
            assert!(
                seen.insert(page),
                "page {page} handed out twice: {extents:?}"
            );
        }
    }
    seen.len()
}

/// Checks, while no thread is at work, that marks, counters and pages in use agree.
fn is_whole(cells: &Cells, in_use: usize) {
    let bits: u32 = cells.used_bits().iter().map(|w| w.count_ones()).sum();
    assert_eq!((bits as usize, cells.used_pages()), (in_use, in_use as u64));
    assert_eq!(cells.wrongly_full(), 0, "free pages that nobody finds");
}

#[test]
fn runs_of_a_word_and_of_several_words_never_meet() {
    check(|| {
        let c = cells();
        let other = c.clone();
        let t = thread::spawn(move || other.alloc(40, false));
        let mine = c.alloc(130, false);
        let theirs = t.join().unwrap();
        let taken = all_different(&[mine, theirs]);
        is_whole(&c, taken);
        assert!(theirs.is_some());
    });
}

#[test]
fn two_that_want_the_last_page() {
    check(|| {
        let c = cells();
        c.alloc(64, false).unwrap();
        c.alloc(64, false).unwrap();
        c.alloc(64, false).unwrap();
        c.alloc(63, false).unwrap();
        let other = c.clone();
        let t = thread::spawn(move || other.alloc(1, false));
        let mine = c.alloc(1, false);
        let theirs = t.join().unwrap();
        assert_eq!(all_different(&[mine, theirs]), 1);
        is_whole(&c, 256);
    });
}

#[test]
fn a_page_that_is_freed_while_its_cell_is_found_full_is_found_again() {
    check(|| {
        let c = cells();
        let all = c.alloc(256, false).unwrap();
        let (last, _) = all.split(1);
        let other = c.clone();
        let t = thread::spawn(move || other.alloc(1, false));
        c.free(last);
        let theirs = t.join().unwrap();
        is_whole(&c, 255 + theirs.map_or(0, Extent::pages));
        assert!(theirs.is_some() || c.alloc(1, false).is_some());
    });
}

#[test]
fn the_last_page_is_freed_while_another_is_taken() {
    check(|| {
        let c = cells();
        let first = c.alloc(1, false).unwrap();
        let other = c.clone();
        let t = thread::spawn(move || other.alloc(1, false).unwrap());
        c.free(first);
        let theirs = t.join().unwrap();
        is_whole(&c, 1);
        c.free(theirs);
        assert_eq!(c.alloc(256, false).map(Extent::pages), Some(256));
    });
}

//! Memory for a mount's server when the system gives it no more.
//!
//! Rust ends a process that can't allocate. A mount would then say ENOTCONN for ever, so a server
//! at its limit of addresses (RLIMIT_AS), or on a system that overcommits nothing, must answer
//! ENOMEM and go on.
//!
//! - [`hold`] maps [`SIZE`] bytes ahead. They cost addresses, and no memory until they are used.
//! - [`Allocator`], the program's global allocator, gives from them what malloc can't give.
//! - [`is_short`]: a request is refused before it is carried out if what is left might not suffice
//!   for it.
//! - Threads are started only where there is room for their beginning ([`forebay_store::threads`]).
//!
//! The reserve is a bitmap of units of [`UNIT`] bytes under a mutex. It is only used without
//! memory, so a search from the beginning is fast enough. What was taken from it goes back when it
//! is freed.

use forebay_store::threads::has_room;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Bytes of the reserve.
pub const SIZE: usize = 64 << 20;
/// Bytes that one request may take while it is answered, at most: copies of the largest write, and
/// its answer.
const PER_REQUEST: usize = 4 << 20;
/// Bytes of a unit; it is the largest alignment, too.
const UNIT: usize = 256;
const UNITS: usize = SIZE / UNIT;

/// Where the reserve is mapped; 0: nowhere.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of it that are in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The system had no memory when it was asked last, by who looks ([`is_short`]) or by who needed
/// some.
static IS_LACKING: AtomicBool = AtomicBool::new(false);
static TAKEN: Mutex<Bitmap> = Mutex::new(Bitmap([0; UNITS / 64]));

/// Maps the reserve. Once is enough for a process.
///
/// # Errors
/// ENOMEM.
pub fn hold() -> io::Result<()> {
    if BASE.load(Acquire) == 0 {
        let base = mapped(SIZE)?;
        if BASE.compare_exchange(0, base, AcqRel, Acquire).is_err() {
            unmapped(base, SIZE);
        }
    }
    Ok(())
}

/// Whether a request had better be refused: `busy` others are being answered, the system gives no
/// memory, and the reserve might not suffice for them all.
pub fn is_short(busy: usize) -> bool {
    if !IS_LACKING.load(Relaxed) {
        return false;
    }
    let wanted = busy.saturating_add(1).saturating_mul(PER_REQUEST);
    if USED.load(Relaxed).saturating_add(wanted) <= SIZE {
        return false;
    }
    let is_lacking = !has_room(PER_REQUEST);
    IS_LACKING.store(is_lacking, Relaxed);
    is_lacking
}

fn mapped(len: usize) -> io::Result<usize> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, where the kernel likes.
    let at = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE)? };
    Ok(at.expose_provenance())
}

fn unmapped(at: usize, len: usize) {
    // SAFETY: a mapping of ours that nobody else knows.
    let _ = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(at), len) };
}

/// Which units are in use.
struct Bitmap([u64; UNITS / 64]);

impl Bitmap {
    fn is_set(&self, unit: usize) -> bool {
        self.0[unit / 64] >> (unit % 64) & 1 != 0
    }

    fn flip(&mut self, first: usize, n: usize) {
        for unit in first..first + n {
            self.0[unit / 64] ^= 1 << (unit % 64);
        }
    }

    /// Takes the first `n` units in a row that are free.
    fn take(&mut self, n: usize) -> Option<usize> {
        let mut first = 0;
        while first + n <= UNITS {
            if first % 64 == 0 && self.0[first / 64] == u64::MAX {
                first += 64;
                continue;
            }
            match (first..first + n).rev().find(|&unit| self.is_set(unit)) {
                Some(unit) => first = unit + 1,
                None => {
                    self.flip(first, n);
                    return Some(first);
                }
            }
        }
        None
    }

    fn give(&mut self, first: usize, n: usize) {
        debug_assert!((first..first + n).all(|unit| self.is_set(unit)));
        self.flip(first, n);
    }
}

fn units(layout: Layout) -> usize {
    layout.size().max(1).div_ceil(UNIT)
}

/// From the reserve; null if that has nothing left, or isn't held.
fn take(layout: Layout) -> *mut u8 {
    IS_LACKING.store(true, Relaxed);
    let base = BASE.load(Acquire);
    if base == 0 || layout.align() > UNIT || layout.size() > SIZE {
        return null_mut();
    }
    let n = units(layout);
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take(n);
    let Some(first) = taken else {
        return null_mut();
    };
    USED.fetch_add(n * UNIT, Relaxed);
    std::ptr::with_exposed_provenance_mut(base + first * UNIT)
}

/// Whether this is in the reserve.
fn is_ours(p: *mut u8) -> bool {
    let base = BASE.load(Relaxed);
    base != 0 && p.addr().wrapping_sub(base) < SIZE
}

fn give(p: *mut u8, layout: Layout) {
    let (first, n) = ((p.addr() - BASE.load(Relaxed)) / UNIT, units(layout));
    TAKEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .give(first, n);
    USED.fetch_sub(n * UNIT, Relaxed);
}

/// The system's allocator, and the reserve where that has nothing.
pub struct Allocator;

// SAFETY: what the system's allocator gives goes back to it; units of the reserve belong to one
// allocation at a time, are as large as asked for and aligned to UNIT. Nothing here allocates or
// unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        let p = unsafe { System.alloc(layout) };
        if p.is_null() { take(layout) } else { p }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        let p = unsafe { System.alloc_zeroed(layout) };
        if !p.is_null() {
            return p;
        }
        let p = take(layout);
        if let Some(p) = NonNull::new(p) {
            // SAFETY: so many bytes were taken.
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        match is_ours(p) {
            true => give(p, layout),
            // SAFETY: it came from there.
            false => unsafe { System.dealloc(p, layout) },
        }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_ours = is_ours(p);
        if !is_ours {
            // SAFETY: it came from there.
            let moved = unsafe { System.realloc(p, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller says that this size is one for a layout; both are different
        // allocations, of these sizes at least; the old one is freed once, where it came from.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(p, layout.size().min(size));
                self.dealloc(p, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_once_and_come_back() {
        let mut bits = Box::new(Bitmap([0; UNITS / 64]));
        let one = bits.take(1).unwrap();
        let many = bits.take(200).unwrap();
        let more = bits.take(3).unwrap();
        assert_eq!((one, many, more), (0, 1, 201));
        bits.give(many, 200);
        // What fits is put in between.
        assert_eq!(bits.take(201), Some(204));
        assert_eq!(bits.take(200), Some(1));
        assert_eq!(bits.take(UNITS), None);
        let rest = UNITS - 405;
        assert_eq!(bits.take(rest), Some(405));
        assert_eq!(bits.take(1), None);
        bits.give(one, 1);
        assert_eq!(bits.take(1), Some(0));
    }

    #[test]
    fn what_the_system_lacks_comes_from_the_reserve() {
        hold().unwrap();
        let layout = Layout::from_size_align(1000, 64).unwrap();
        let p = take(layout);
        assert!(is_ours(p) && p.addr().is_multiple_of(64));
        assert_eq!(USED.load(Relaxed), 1024);
        // SAFETY: by the layouts they were made with, once each.
        unsafe {
            p.write_bytes(7, 1000);
            // It goes back to the system's, which has memory here.
            let p = Allocator.realloc(p, layout, 3000);
            assert!(!is_ours(p) && (0..1000).all(|n| *p.add(n) == 7));
            assert_eq!(USED.load(Relaxed), 0);
            Allocator.dealloc(p, Layout::from_size_align(3000, 64).unwrap());
        }
        assert!(take(Layout::from_size_align(SIZE + 1, 1).unwrap()).is_null());
        assert!(take(Layout::from_size_align(1, 2 * UNIT).unwrap()).is_null());
        assert!(!is_short(1000), "there is memory");
    }
}

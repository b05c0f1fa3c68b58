//! Reserves memory for a mount's server, for when the system gives it no more.
//!
//! Rust aborts a process that can't allocate, and the mount would then answer ENOTCONN for ever. So
//! if a server reaches its limit of address space (RLIMIT_AS), or runs on a system without
//! overcommit, it must answer ENOMEM and continue.
//!
//! - [`hold`] maps [`SIZE`] bytes in advance. These bytes use address space, but no memory until
//!   they are touched.
//! - [`Allocator`], the program's global allocator, uses these bytes when malloc fails.
//! - [`is_short`] tells when to refuse a request before it is carried out, because the rest of the
//!   reserve might not suffice for it.
//! - Threads are started only if there is space for their start ([`forebay_runtime::threads`]).
//!
//! The reserve is a bitmap of units of [`UNIT`] bytes under a mutex. The reserve is used only when
//! memory is short, so a linear search is fast enough. Units return to the reserve when they are
//! freed.

use forebay_runtime::threads::{has_room, lock};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Size of the reserve. Bytes.
pub const SIZE: usize = 64 << 20;
/// Maximum number of bytes allocated while one request is answered: copies of the largest write's
/// data, and the reply.
const PER_REQUEST: usize = 4 << 20;
/// Size of a unit, and the largest alignment of an allocation. Bytes.
const UNIT: usize = 256;
const UNITS: usize = SIZE / UNIT;

/// Address of the reserve; 0 if it isn't mapped.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Number of bytes of the reserve in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Whether the last attempt, by [`is_short`] or by an allocation, found the system without memory.
static IS_LACKING: AtomicBool = AtomicBool::new(false);
static TAKEN: Mutex<Bitmap> = Mutex::new(Bitmap([0; UNITS / 64]));

/// Maps the reserve, once in a process.
///
/// # Errors
/// ENOMEM if it can't be mapped.
pub fn hold() -> io::Result<()> {
    if BASE.load(Acquire) == 0 {
        let base = mapped(SIZE)?;
        if BASE.compare_exchange(0, base, AcqRel, Acquire).is_err() {
            unmapped(base, SIZE);
        }
    }
    Ok(())
}

/// Whether a further request should be refused while `busy` others are being answered: the system
/// has no memory, and the reserve might not suffice for all of them.
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
    // SAFETY: the kernel chooses an unused address, so the new mapping replaces no other.
    let at = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE)? };
    Ok(at.expose_provenance())
}

fn unmapped(at: usize, len: usize) {
    // SAFETY: this process made the mapping, and no other thread knows its address.
    let _ = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(at), len) };
}

/// Bitmap of the units in use.
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

    /// Takes the first `n` consecutive free units. Returns the number of the first one.
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

/// Allocates from the reserve; null if it is used up or not mapped.
fn take(layout: Layout) -> *mut u8 {
    IS_LACKING.store(true, Relaxed);
    let base = BASE.load(Acquire);
    if base == 0 || layout.align() > UNIT || layout.size() > SIZE {
        return null_mut();
    }
    let n = units(layout);
    let taken = lock(&TAKEN).take(n);
    let Some(first) = taken else {
        return null_mut();
    };
    USED.fetch_add(n * UNIT, Relaxed);
    std::ptr::with_exposed_provenance_mut(base + first * UNIT)
}

/// Whether this address is in the reserve.
fn is_ours(p: *mut u8) -> bool {
    let base = BASE.load(Relaxed);
    base != 0 && p.addr().wrapping_sub(base) < SIZE
}

fn give(p: *mut u8, layout: Layout) {
    let (first, n) = ((p.addr() - BASE.load(Relaxed)) / UNIT, units(layout));
    lock(&TAKEN).give(first, n);
    USED.fetch_sub(n * UNIT, Relaxed);
}

/// The system's allocator, which falls back to the reserve when the system has no memory.
pub struct Allocator;

// SAFETY: memory of the system's allocator returns to it. A unit of the reserve belongs to one
// allocation at a time; an allocation has as many units as it requested, aligned to UNIT. Nothing
// here allocates or unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `alloc`.
        let p = unsafe { System.alloc(layout) };
        if p.is_null() { take(layout) } else { p }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        let p = unsafe { System.alloc_zeroed(layout) };
        if !p.is_null() {
            return p;
        }
        let p = take(layout);
        if let Some(p) = NonNull::new(p) {
            // SAFETY: the allocation has this many bytes.
            unsafe { p.write_bytes(0, layout.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if is_ours(p) {
            give(p, layout)
        } else {
            // SAFETY: the memory came from the system's allocator, with this layout.
            unsafe { System.dealloc(p, layout) }
        }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let is_ours = is_ours(p);
        if !is_ours {
            // SAFETY: the memory came from the system's allocator, with this layout.
            let moved = unsafe { System.realloc(p, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller promises a valid size for a layout. The old and the new allocation
        // don't overlap, and both have the number of bytes copied. The old one is freed once, to
        // its allocator.
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
        // The gap of 200 units is used for an allocation that fits.
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
        // SAFETY: each block is freed once, with the layout of its allocation.
        unsafe {
            p.write_bytes(7, 1000);
            // The block moves to the system's allocator. Here that allocator has memory.
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

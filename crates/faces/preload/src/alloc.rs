//! The library's own allocator: the program's malloc is never called.
//!
//! Rust code uses it as the global allocator. The C code linked in (LMDB) uses it because the
//! linker redirects LMDB's malloc, calloc, realloc, free and strdup here (`--wrap`, see build.rs).

use dlmalloc::Dlmalloc;
use forebay_store::process::Critical;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// dlmalloc behind a lock that can be held over a fork.
struct Allocator {
    locked: AtomicBool,
    heap: UnsafeCell<Dlmalloc>,
}

// SAFETY: the heap is only used with the lock held.
unsafe impl Sync for Allocator {}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator {
    locked: AtomicBool::new(false),
    heap: UnsafeCell::new(Dlmalloc::new()),
};

impl Allocator {
    fn lock(&self) {
        while self
            .locked
            .compare_exchange_weak(false, true, Acquire, Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        // A signal handler that interrupted this code while it holds the lock would wait for the
        // lock for ever, or jump away (longjmp) with the lock held.
        let _critical = Critical::enter();
        self.lock();
        // SAFETY: the lock is held, so no other reference to the heap exists.
        let result = f(unsafe { &mut *self.heap.get() });
        self.locked.store(false, Release);
        result
    }
}

// SAFETY: dlmalloc fulfils GlobalAlloc's contract, and is called under a lock.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller passes a layout that isn't empty; `with` holds the lock.
        self.with(|h| unsafe { h.malloc(l.size(), l.align()) })
    }

    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        self.with(|h| unsafe { h.calloc(l.size(), l.align()) })
    }

    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a block of this allocator, with its layout.
        self.with(|h| unsafe { h.realloc(p, l.size(), l.align(), size) })
    }

    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: the caller passes a block of this allocator, with its layout.
        self.with(|h| unsafe { h.free(p, l.size(), l.align()) });
    }
}

/// Locks the heap while the process forks: the child must not inherit it half changed by another
/// thread. No code may allocate until [`after_fork`].
pub fn before_fork() {
    ALLOCATOR.lock();
}

/// Unlocks the heap after a fork, in parent and child.
pub fn after_fork() {
    ALLOCATOR.locked.store(false, Release);
}

/// Size of the header before each block that C code gets. The header holds the block's size, and
/// the length of its mapping (0: the block lies in the heap). 16 keeps the blocks' alignment.
/// Bytes.
const HEAD: usize = 16;

/// Size from which zeroed blocks get a separate mapping. Bytes. The heap would write zeros, so each
/// page would take memory and a page fault; but LMDB hardly uses its zeroed tables (128 KiB per
/// shard).
const MAPPED: usize = 64 << 10;

/// Returns a zeroed block of `size` bytes in a separate mapping; null if there is no memory.
fn mapped(size: usize) -> *mut c_void {
    let Some(len) = (HEAD + size).checked_next_multiple_of(4096) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
    let made = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(block) = made else {
        return std::ptr::null_mut();
    };
    // SAFETY: the mapping has HEAD bytes more than `size`.
    unsafe {
        block.cast::<[usize; 2]>().write([size, len]);
        block.cast::<u8>().add(HEAD).cast()
    }
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEAD)?, 16).ok()
}

/// # Safety
/// As malloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_malloc(size: usize) -> *mut c_void {
    let Some(l) = layout(size) else {
        return std::ptr::null_mut();
    };
    // SAFETY: the layout isn't empty.
    let block = unsafe { ALLOCATOR.alloc(l) };
    if block.is_null() {
        return block.cast();
    }
    // SAFETY: the block has HEAD bytes more than `size`.
    unsafe {
        block.cast::<[usize; 2]>().write([size, 0]);
        block.add(HEAD).cast()
    }
}

/// # Safety
/// As calloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(l) = count.checked_mul(size).and_then(layout) else {
        return std::ptr::null_mut();
    };
    let size = l.size() - HEAD;
    if size >= MAPPED {
        return mapped(size);
    }
    // SAFETY: the layout isn't empty, and the block has HEAD bytes more than the caller gets.
    unsafe {
        let block = ALLOCATOR.alloc_zeroed(l);
        if block.is_null() {
            return block.cast();
        }
        block.cast::<[usize; 2]>().write([size, 0]);
        block.add(HEAD).cast()
    }
}

/// # Safety
/// As realloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        // SAFETY: malloc accepts every size.
        return unsafe { __wrap_malloc(size) };
    }
    // SAFETY: `old` was allocated by these functions, with its header in front.
    unsafe {
        let block = old.cast::<u8>().sub(HEAD);
        let [before, mapping] = block.cast::<[usize; 2]>().read();
        if mapping > 0 {
            let new = __wrap_malloc(size);
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), before.min(size));
                __wrap_free(old);
            }
            return new;
        }
        let (Some(from), Some(to)) = (layout(before), layout(size)) else {
            return std::ptr::null_mut();
        };
        let new = ALLOCATOR.realloc(block, from, to.size());
        if new.is_null() {
            return new.cast();
        }
        new.cast::<[usize; 2]>().write([size, 0]);
        new.add(HEAD).cast()
    }
}

/// # Safety
/// As free(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_free(old: *mut c_void) {
    if old.is_null() {
        return;
    }
    // SAFETY: `old` was allocated by these functions, with its header in front.
    unsafe {
        let block = old.cast::<u8>().sub(HEAD);
        match block.cast::<[usize; 2]>().read() {
            [size, 0] => {
                if let Some(l) = layout(size) {
                    ALLOCATOR.dealloc(block, l);
                }
            }
            [_, mapping] => _ = munmap(block.cast(), mapping),
        }
    }
}

/// # Safety
/// As strdup(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_strdup(text: *const std::ffi::c_char) -> *mut std::ffi::c_char {
    // SAFETY: the caller passes a C string; the copy has room for it.
    unsafe {
        let len = std::ffi::CStr::from_ptr(text).to_bytes_with_nul().len();
        let copy = __wrap_malloc(len).cast::<std::ffi::c_char>();
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(text, copy, len);
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of a block's bytes.
    fn sum(block: *mut c_void, size: usize) -> u64 {
        // SAFETY: the block has `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), size) };
        bytes.iter().map(|&b| u64::from(b)).sum()
    }

    #[test]
    fn zeroed_blocks_are_zero_and_keep_their_bytes_when_they_grow_or_shrink() {
        for size in [1, 1000, MAPPED - 1, MAPPED, MAPPED + 4096, 1 << 20] {
            // SAFETY: the blocks are written within their sizes, and each is freed once.
            unsafe {
                let block = __wrap_calloc(size, 1);
                assert!(!block.is_null() && block.addr().is_multiple_of(16));
                assert_eq!(sum(block, size), 0, "{size}");
                block.cast::<u8>().write_bytes(3, size);
                let block = __wrap_realloc(block, 2 * size);
                assert_eq!(sum(block, size), 3 * size as u64, "{size}, grown");
                let block = __wrap_realloc(block, size.div_ceil(2));
                let left = size.div_ceil(2);
                assert_eq!(sum(block, left), 3 * left as u64, "{size}, smaller");
                __wrap_free(block);
            }
        }
        // SAFETY: no memory is passed; both sizes are refused.
        unsafe {
            assert!(__wrap_calloc(usize::MAX, 2).is_null());
            assert!(__wrap_calloc(usize::MAX - 64, 1).is_null());
        }
    }
}

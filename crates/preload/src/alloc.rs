//! The library's own allocator: the program's malloc is never called.
//!
//! Rust code gets it as the global allocator; the C code linked in (LMDB) because the
//! linker redirects its malloc, calloc, realloc and free here (`--wrap`, see build.rs).

use dlmalloc::GlobalDlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

/// Bytes before each block that C gets, which hold its size. Keeps 16-byte alignment.
const HEAD: usize = 16;

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEAD)?, 16).ok()
}

/// # Safety
/// As malloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_malloc(size: usize) -> *mut c_void {
    let Some(l) = layout(size) else { return std::ptr::null_mut() };
    // SAFETY: the layout isn't empty.
    let block = unsafe { ALLOCATOR.alloc(l) };
    if block.is_null() {
        return block.cast();
    }
    // SAFETY: the block has HEAD bytes more than asked for.
    unsafe {
        block.cast::<usize>().write(size);
        block.add(HEAD).cast()
    }
}

/// # Safety
/// As calloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(l) = count.checked_mul(size).and_then(layout) else { return std::ptr::null_mut() };
    // SAFETY: as in __wrap_malloc.
    unsafe {
        let block = ALLOCATOR.alloc_zeroed(l);
        if block.is_null() {
            return block.cast();
        }
        block.cast::<usize>().write(l.size() - HEAD);
        block.add(HEAD).cast()
    }
}

/// # Safety
/// As realloc(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        // SAFETY: passed on.
        return unsafe { __wrap_malloc(size) };
    }
    // SAFETY: `old` came from here, with its size in front.
    unsafe {
        let block = old.cast::<u8>().sub(HEAD);
        let before = block.cast::<usize>().read();
        let (Some(from), Some(to)) = (layout(before), layout(size)) else {
            return std::ptr::null_mut();
        };
        let new = ALLOCATOR.realloc(block, from, to.size());
        if new.is_null() {
            return new.cast();
        }
        new.cast::<usize>().write(size);
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
    // SAFETY: `old` came from here, with its size in front.
    unsafe {
        let block = old.cast::<u8>().sub(HEAD);
        if let Some(l) = layout(block.cast::<usize>().read()) {
            ALLOCATOR.dealloc(block, l);
        }
    }
}

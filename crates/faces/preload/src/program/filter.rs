//! The descriptor filter, one byte for each descriptor number: whether calls on it reach the
//! library.
//!
//! The trampoline tests the byte of a call's descriptor ([`FILTER`]) before anything else. While a
//! vfork child runs in this memory, bytes are only set, never cleared: calls on the parent's
//! descriptors must still reach the library.

use crate::program::process;
use forebay_store::MAX_FDS;
use std::sync::atomic::{AtomicU8, Ordering::*};

/// One byte per descriptor; nonzero: calls on the descriptor reach the library.
pub static FILTER: [AtomicU8; MAX_FDS] = [const { AtomicU8::new(0) }; MAX_FDS];

/// Value in [`FILTER`] of an inotify descriptor.
const INOTIFY: u8 = 2;

/// Makes calls on `fd` reach the library.
pub fn watch(fd: i32) {
    mark(fd, 1);
}

fn mark(fd: i32, what: u8) {
    if let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n)) {
        f.store(what, Relaxed);
    }
}

/// Like [`watch`], for an inotify descriptor: the kernel handles all calls except reads.
pub fn watch_inotify(fd: i32) {
    mark(fd, INOTIFY);
}

/// Whether `fd` was an inotify descriptor at the last check.
#[inline]
pub fn is_inotify(fd: i32) -> bool {
    let n = usize::try_from(fd).ok();
    n.and_then(|n| FILTER.get(n))
        .is_some_and(|f| f.load(Relaxed) == INOTIFY)
}

/// Makes calls on `fd` go to the kernel again; no effect while a vfork child runs in this memory.
pub fn unwatch(fd: i32) {
    if !process::has_vfork_child()
        && let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n))
    {
        f.store(0, Relaxed);
    }
}

/// Whether calls on `fd` reach the library.
#[inline]
pub fn watched(fd: i32) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|n| FILTER.get(n))
        .is_some_and(|f| f.load(Relaxed) != 0)
}

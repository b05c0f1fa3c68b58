//! One byte for each descriptor number: whether calls on it reach the library at all.
//!
//! The trampoline tests it ([`FILTER`]) before anything else. While a vfork child runs in this
//! memory, bytes are only ever set, never cleared: the parent's descriptors stay the library's.

use crate::program::process;
use forebay_store::MAX_FDS;
use std::sync::atomic::{AtomicU8, Ordering::*};

/// Not zero: calls on this number are handled by us.
pub static FILTER: [AtomicU8; MAX_FDS] = [const { AtomicU8::new(0) }; MAX_FDS];

/// In [`FILTER`]: an inotify descriptor.
const INOTIFY: u8 = 2;

/// Makes calls on `fd` go through our handler.
pub fn watch(fd: i32) {
    mark(fd, 1);
}

fn mark(fd: i32, what: u8) {
    if let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n)) {
        f.store(what, Relaxed);
    }
}

/// As [`watch`], for an inotify descriptor: the kernel handles all calls except reads.
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

/// Calls on `fd` go to the kernel again.
pub fn unwatch(fd: i32) {
    if !process::has_vfork_child()
        && let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n))
    {
        f.store(0, Relaxed);
    }
}

/// Whether calls on `fd` concern us.
#[inline]
pub fn watched(fd: i32) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|n| FILTER.get(n))
        .is_some_and(|f| f.load(Relaxed) != 0)
}

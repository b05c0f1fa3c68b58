//! Two flags: whether the threads and processes in this memory may have different credentials,
//! because a thread or a vfork child may have changed its own; and whether any of them has become
//! another user. `served/credentials.rs` sets them.

use crate::program::{process, shared_vm_clones};
use forebay_store::process::thread_ids::thread_count;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Whether threads or processes in this memory may have different credentials.
static DIFFER: AtomicBool = AtomicBool::new(false);

/// Whether a thread of this process, or of one that it was forked from, has become another user.
static CHANGED_USER: AtomicBool = AtomicBool::new(false);

/// Whether a thread of this process, or of one that it was forked from, has become another user
/// since the program's start.
pub fn has_changed_user() -> bool {
    CHANGED_USER.load(Acquire)
}

/// Records that a thread becomes another user.
pub fn note_changed_user() {
    CHANGED_USER.store(true, Release);
}

/// Whether threads or processes in this memory may have different credentials.
pub fn differ() -> bool {
    DIFFER.load(Acquire)
}

/// Records whether threads or processes in this memory may have different credentials.
pub fn note_differ(differ: bool) {
    DIFFER.store(differ, Release);
}

/// Whether another thread, or the parent of a vfork child, runs in this memory.
pub fn is_shared() -> bool {
    process::in_vfork_child()
        || process::has_vfork_child()
        || shared_vm_clones::any()
        || thread_count() > 1
}

//! A flag: whether the threads and processes in this memory may have different credentials, because
//! a thread or a vfork child may have changed its own. `served/credentials.rs` sets it.

use crate::program::{process, shared_vm_clones};
use forebay_store::process::thread_ids::thread_count;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Whether threads or processes in this memory may have different credentials.
static DIFFER: AtomicBool = AtomicBool::new(false);

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

//! The kernel's table of descriptors and the one in the process's area change together. A thread
//! that makes a child copies both, and waits until no change is in progress.
//!
//! Two counters: a change announces itself in `CHANGES` unless `COPIES` isn't zero; a copy
//! announces itself in `COPIES` and waits, for a bounded time, until `CHANGES` is zero.

use crate::program::process;
use forebay_store::process::Critical;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// How many threads are about to change the kernel's table of descriptors and ours.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// How many threads are making a child that gets a copy of both.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// A change of the kernel's table of descriptors and ours, which belong together: no child is
/// made in between.
pub struct TableChange(Option<Critical>);

/// Begins a change; short, since a thread that forks waits for it.
pub fn begin() -> TableChange {
    // A vfork child has tables of its own, and one thread. A thread that is making a child changes
    // tables itself meanwhile, and would wait for the end of its own copy.
    if process::in_vfork_child() || COPYING.with(Cell::get) {
        return TableChange(None);
    }
    let critical = Critical::enter();
    loop {
        while COPIES.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        CHANGES.fetch_add(1, SeqCst);
        if COPIES.load(SeqCst) == 0 {
            break;
        }
        CHANGES.fetch_sub(1, SeqCst);
    }
    TableChange(Some(critical))
}

impl Drop for TableChange {
    fn drop(&mut self) {
        if self.0.is_some() {
            CHANGES.fetch_sub(1, SeqCst);
        }
    }
}

thread_local! {
    /// Between [`begin_copy`] and [`end_copy`].
    static COPYING: Cell<bool> = const { Cell::new(false) };
}

/// Waits until no change is in progress, and keeps new ones from beginning. Not for ever: a
/// change that hangs must not keep the program from forking.
pub fn begin_copy() {
    COPIES.fetch_add(1, SeqCst);
    COPYING.with(|c| c.set(true));
    for turn in 0..10_000 {
        if CHANGES.load(SeqCst) == 0 {
            return;
        }
        if turn < 100 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}

/// Lets changes begin again, if this thread has prevented them.
pub fn end_copy() {
    if COPYING.with(|c| c.replace(false)) {
        COPIES.fetch_sub(1, SeqCst);
    }
}

/// In a forked child: its only thread neither changes nor copies anything.
pub fn after_fork_in_child() {
    COPIES.store(0, SeqCst);
    CHANGES.store(0, SeqCst);
    COPYING.set(false);
}

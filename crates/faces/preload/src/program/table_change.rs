//! Keeps the kernel's table of descriptors and the one in the process's area in agreement: both
//! change together. A thread that makes a child copies both tables, and first waits until no change
//! is in progress.
//!
//! Two counters: a change announces itself in `CHANGES` unless `COPIES` isn't zero; a copy
//! announces itself in `COPIES` and waits, for a bounded time, until `CHANGES` is zero.

use crate::program::process;
use forebay_store::process::Critical;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Number of threads that are about to change the kernel's table of descriptors and this library's.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Number of threads that are making a child that gets a copy of both tables.
static COPIES: AtomicU32 = AtomicU32::new(0);

/// A change of the kernel's table of descriptors and this library's, which must agree. No child is
/// made while it exists.
pub struct TableChange(Option<Critical>);

/// Begins a change. The change must be short: a thread that forks waits for its end.
pub fn begin() -> TableChange {
    // A vfork child has its own tables and one thread, so it needs no lock. A thread that is making
    // a child changes tables, too; such a thread would wait for the end of its own copy.
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
    /// Whether this thread is between [`begin_copy`] and [`end_copy`].
    static COPYING: Cell<bool> = const { Cell::new(false) };
}

/// Waits until no change is in progress, and prevents new ones. The wait is bounded (about 1 s): a
/// change that hangs must not prevent the program from forking.
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

/// Allows changes again, if this thread has prevented them.
pub fn end_copy() {
    if COPYING.with(|c| c.replace(false)) {
        COPIES.fetch_sub(1, SeqCst);
    }
}

/// Resets the counters in a forked child: its only thread neither changes nor copies tables.
pub fn after_fork_in_child() {
    COPIES.store(0, SeqCst);
    CHANGES.store(0, SeqCst);
    COPYING.set(false);
}

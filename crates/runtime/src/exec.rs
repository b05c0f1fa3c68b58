//! Threads that are about to execute another program.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Threads of this process that are about to execute another program.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is one of them.
    static EXECUTES: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, no other thread of this process takes a slot: see [`begin_exec`].
pub struct Executing(());

/// This thread is about to execute another program. The program takes over the slot that its
/// environment names. A slot that another thread took after that was written down would stay
/// behind, with the locks that the thread held, and its owner, this process, would go on living.
pub fn begin_exec() -> Executing {
    EXECUTES.with(|e| e.set(true));
    EXECUTING.fetch_add(1, SeqCst);
    Executing(())
}

impl Drop for Executing {
    fn drop(&mut self) {
        EXECUTING.fetch_sub(1, SeqCst);
        EXECUTES.with(|e| e.set(false));
    }
}

/// In a forked child: only the thread that forked is there.
pub fn forget_exec() {
    EXECUTING.store(0, SeqCst);
    EXECUTES.with(|e| e.set(false));
}

/// Whether another thread is about to execute a program.
#[inline]
pub fn others_execute() -> bool {
    EXECUTING.load(SeqCst) != 0 && !EXECUTES.with(Cell::get)
}

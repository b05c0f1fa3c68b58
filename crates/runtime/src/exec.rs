//! Threads that are about to execute another program.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Threads of this process that are about to execute another program.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is about to execute another program.
    static EXECUTES: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, no other thread of this process takes a process slot: see [`begin_exec`].
pub struct Executing(());

/// Declares that this thread is about to execute another program, which takes over the slot that
/// its environment names. If another thread took a slot after that environment was written, that
/// slot would stay behind with the locks held there, and its owner, this process, would go on
/// living.
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

/// Forgets all of this in a forked child, which has only the thread that forked.
pub fn forget_exec() {
    EXECUTING.store(0, SeqCst);
    EXECUTES.with(|e| e.set(false));
}

/// Whether another thread is about to execute a program.
#[inline]
pub fn others_execute() -> bool {
    EXECUTING.load(SeqCst) != 0 && !EXECUTES.with(Cell::get)
}

//! Marks threads that are about to execute another program.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Number of threads of this process that are about to execute another program.
static EXECUTING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Whether this thread is about to execute another program.
    ///
    /// This has to be a thread-local. A thread in exec still uses the pool: the thread closes
    /// descriptors and writes back files, by the same functions as all other threads. Each of these
    /// functions may need the process's slot. Only where the process takes the slot does it matter
    /// which thread calls. An argument would have to go through every operation of the store.
    static EXECUTES: Cell<bool> = const { Cell::new(false) };
}

/// While a value of this type exists, no other thread of this process takes a process slot: see
/// [`begin_exec`].
pub struct Executing(());

/// Declares that this thread is about to execute another program. The new program takes over the
/// process slot that its environment names. So no other thread may take a slot after that
/// environment was written: the new program wouldn't know that slot. The slot and its locks would
/// never be freed, since its owner, this process, is still alive.
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

/// Forgets in a forked child which threads were about to execute a program: only the thread that
/// forked exists there.
pub fn forget_exec() {
    EXECUTING.store(0, SeqCst);
    EXECUTES.with(|e| e.set(false));
}

/// Whether another thread is about to execute a program.
#[inline]
pub fn others_execute() -> bool {
    EXECUTING.load(SeqCst) != 0 && !EXECUTES.with(Cell::get)
}

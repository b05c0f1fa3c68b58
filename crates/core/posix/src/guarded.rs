//! A value that one thread of a process uses at a time.
//!
//! Signal handlers don't run while a thread holds it. A forked child begins with a new value
//! ([`Guarded::begin_anew`]): the thread that held the old one may not exist in the child.

use forebay_store::process::{ProcessGuard, ProcessLock};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// A value with a lock; see the module.
#[derive(Default)]
pub(crate) struct Guarded<T> {
    lock: ProcessLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only with the lock held, or before there is another thread.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Exclusive access to the value for this thread. Signals are blocked meanwhile.
pub(crate) struct Guard<'a, T> {
    value: &'a mut T,
    _lock: ProcessGuard<'a>,
}

impl<T> Guarded<T> {
    /// Waits until no other thread holds the value, and holds it.
    pub fn hold(&self) -> Guard<'_, T> {
        let lock = self.lock.hold();
        // SAFETY: no other thread uses the value while the lock is held.
        let value = unsafe { &mut *self.value.get() };
        Guard { value, _lock: lock }
    }

    /// Sets a new value. Must be called first in a forked child. The former value isn't dropped,
    /// since it may be in any state.
    pub fn begin_anew(&self, value: T) {
        // SAFETY: the child has only this thread, and `write` doesn't drop the old value.
        unsafe { self.value.get().write(value) };
        self.lock.reset();
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

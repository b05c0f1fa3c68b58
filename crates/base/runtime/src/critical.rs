//! Critical sections, in which no signal handler of the program runs; and locks inside one process
//! whose holders are in such sections.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*, compiler_fence};

/// The state of a thread's critical sections.
struct Section {
    depth: Cell<u32>,
    /// Whether a signal arrived inside a section. Leaving the outermost section delivers the
    /// signal.
    owed: Cell<bool>,
}

thread_local! {
    static SECTION: Section = const {
        Section { depth: Cell::new(0), owed: Cell::new(false) }
    };
}

/// The function that delivers held-back signals, called when a thread that owes a signal leaves its
/// outermost section: a `fn()`, or null.
static ON_LEAVING: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// A section in which no signal handler of the program runs on this thread. The section is needed
/// while a lock is held, since a handler that used the pool would wait for its own thread. Sections
/// nest.
///
/// Signals aren't blocked, since that would take two system calls. Instead, handlers that may use
/// the pool are wrapped when they are installed. If [`is_critical`], the wrapper only notes the
/// signal and calls [`owe_signal`]. A signal without a handler kills as SIGKILL does, which the
/// store survives in any case.
pub struct Critical(std::marker::PhantomData<*const ()>);

impl Critical {
    /// Enters a section.
    #[inline]
    pub fn enter() -> Critical {
        SECTION.with(|s| s.depth.set(s.depth.get() + 1));
        compiler_fence(SeqCst);
        Critical(std::marker::PhantomData)
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        SECTION.with(|s| {
            debug_assert!(s.depth.get() > 0, "a section that ends has begun");
            s.depth.set(s.depth.get() - 1);
            compiler_fence(SeqCst);
            if s.owed.get() && s.depth.get() == 0 {
                deliver(s);
            }
        });
    }
}

#[cold]
fn deliver(section: &Section) {
    section.owed.set(false);
    let f = ON_LEAVING.load(Acquire);
    if !f.is_null() {
        // SAFETY: only `deliver_with` stores here, and it stores a fn().
        unsafe { std::mem::transmute::<*mut (), fn()>(f)() }
    }
}

/// Whether this thread is inside a critical section. For signal handlers.
#[inline]
pub fn is_critical() -> bool {
    SECTION.with(|s| s.depth.get() > 0)
}

/// Requests a call of the function given to [`deliver_with`] when this thread leaves its outermost
/// section. For signal handlers that run inside one.
#[inline]
pub fn owe_signal() {
    SECTION.with(|s| s.owed.set(true));
}

/// Sets the function that delivers held-back signals.
pub fn deliver_with(f: fn()) {
    ON_LEAVING.store(f as *mut (), Release);
}

/// Whether [`deliver_with`] was called: then all handlers of this program are wrapped.
#[inline]
pub fn delivers() -> bool {
    !ON_LEAVING.load(Acquire).is_null()
}

/// A lock inside one process. A forked child can reset it, since the thread that holds it may not
/// exist in the child.
pub struct ProcessLock(AtomicU32);

/// The guard of a [`ProcessLock`]: holds the lock until dropped.
pub struct ProcessGuard<'a>(&'a ProcessLock, Critical);

impl ProcessLock {
    /// A free lock.
    pub const fn new() -> ProcessLock {
        ProcessLock(AtomicU32::new(0))
    }

    /// Waits for the lock and takes it. Holders keep the lock for short moments only, inside a
    /// critical section.
    #[inline]
    pub fn hold(&self) -> ProcessGuard<'_> {
        let critical = Critical::enter();
        self.seize();
        ProcessGuard(self, critical)
    }

    /// Takes the lock without a guard, to hold it over a fork. The caller must be in a critical
    /// section. The forked child resets its copy of the lock.
    #[inline]
    pub fn seize(&self) {
        let mut turns = 0;
        while self
            .0
            .compare_exchange_weak(0, 1, Acquire, Relaxed)
            .is_err()
        {
            turns += 1;
            match turns {
                ..1000 => std::thread::yield_now(),
                // After so many yields, the holder is probably waiting itself.
                _ => std::thread::sleep(std::time::Duration::from_micros(100)),
            }
        }
    }

    /// Frees the lock, whichever thread holds it.
    #[inline]
    pub fn reset(&self) {
        self.0.store(0, Release);
    }
}

impl Default for ProcessLock {
    fn default() -> ProcessLock {
        ProcessLock::new()
    }
}

impl Drop for ProcessGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let _ = &self.1;
        debug_assert!(self.0.0.load(Relaxed) == 1, "a lock that is freed was held");
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_sections_nest_and_deliver_once_at_the_end() {
        static DELIVERED: AtomicU32 = AtomicU32::new(0);
        deliver_with(|| {
            assert!(!is_critical());
            DELIVERED.fetch_add(1, Relaxed);
        });
        {
            let _a = Critical::enter();
            {
                let _b = Critical::enter();
                owe_signal();
            }
            assert!(is_critical());
            assert_eq!(DELIVERED.load(Relaxed), 0);
        }
        drop(Critical::enter());
        assert_eq!(DELIVERED.load(Relaxed), 1);
    }
}

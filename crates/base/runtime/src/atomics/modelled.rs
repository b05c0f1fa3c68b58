//! The types and functions of `atomics` under loom. Each atomic has the size of the plain one, so
//! that it can lie in a mapped region. The loom atomic that belongs to a plain one is found by the
//! plain one's address. The loom atomic is created at the first use, with the value of the plain
//! one, and lasts for one run of a model. loom requires that an atomic is created before it is
//! shared: so models use each atomic once before they start threads.
//!
//! loom has no single order of all SeqCst accesses, only of SeqCst fences. So each SeqCst access is
//! put between two fences here, which is a little stronger. (Miri checks the real atomics.)

pub use loom;
pub use loom::hint::spin_loop;
pub use loom::sync::atomic::{Ordering, fence};
pub use loom::thread::yield_now;

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

type Behind = Mutex<HashMap<usize, Arc<dyn Any + Send + Sync>>>;

loom::lazy_static! {
    static ref BEHIND: Behind = Mutex::new(HashMap::new());
}

fn behind<T: Any + Send + Sync>(at: usize, new: impl FnOnce() -> T) -> Arc<T> {
    let mut all = BEHIND.lock().expect("no panic inside");
    let found = all.entry(at).or_insert_with(|| Arc::new(new())).clone();
    drop(all);
    found.downcast().expect("one type at one address")
}

fn ordered<R>(order: Ordering, f: impl FnOnce() -> R) -> R {
    let strong = order == Ordering::SeqCst;
    if strong {
        fence(Ordering::SeqCst);
    }
    let result = f();
    if strong {
        fence(Ordering::SeqCst);
    }
    result
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name(UnsafeCell<$value>);

        // SAFETY: loom runs one thread at a time.
        unsafe impl Sync for $name {}
        // SAFETY: loom runs one thread at a time.
        unsafe impl Send for $name {}

        impl $name {
            pub const fn new(value: $value) -> $name {
                $name(UnsafeCell::new(value))
            }

            fn it(&self) -> Arc<loom::sync::atomic::$name> {
                // SAFETY: loom runs one thread at a time, so nothing writes the cell meanwhile.
                behind(self.0.get() as usize, || {
                    loom::sync::atomic::$name::new(unsafe { *self.0.get() })
                })
            }

            pub fn load(&self, order: Ordering) -> $value {
                ordered(order, || self.it().load(order))
            }

            pub fn store(&self, value: $value, order: Ordering) {
                ordered(order, || self.it().store(value, order));
                // Stored in the plain atomic, too, for a process that maps the same file later.
                // SAFETY: loom runs one thread at a time, and there is no reference into the cell.
                unsafe { *self.0.get() = value };
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().swap(value, order))
            }

            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                ordered(order, || {
                    self.it().compare_exchange(old, new, order, failed)
                })
            }

            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, order, failed)
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_add(value, order))
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_sub(value, order))
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_and(value, order))
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_or(value, order))
            }

            pub fn fetch_update(
                &self,
                order: Ordering,
                failed: Ordering,
                f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                ordered(order, || self.it().fetch_update(order, failed, f))
            }

            pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_min(value, order))
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                ordered(order, || self.it().fetch_max(value, order))
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
atomic!(AtomicI64, i64);
atomic!(AtomicUsize, usize);

/// Sleeping on a word. There are no spurious wakeups here. So a model that never wakes a sleeper
/// doesn't end, which loom reports, unless [`TIMEOUTS`](futex::TIMEOUTS) is set.
pub mod futex {
    use super::{AtomicU32, Ordering, behind, loom};
    use rustix::io::Errno;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// Whether every wait ends by its timeout.
    pub static TIMEOUTS: AtomicBool = AtomicBool::new(false);

    struct Sleepers {
        lock: loom::sync::Mutex<()>,
        woken: loom::sync::Condvar,
    }

    fn sleepers(word: &AtomicU32) -> Arc<Sleepers> {
        // Address plus 1: no atomic has the odd address, so the key is unique to the sleepers of
        // the word.
        behind(word as *const AtomicU32 as usize + 1, || Sleepers {
            lock: loom::sync::Mutex::new(()),
            woken: loom::sync::Condvar::new(),
        })
    }

    pub fn wait(word: &AtomicU32, value: u32, _most: Duration) -> Result<(), Errno> {
        if TIMEOUTS.load(Ordering::Relaxed) {
            loom::thread::yield_now();
            return Err(Errno::TIMEDOUT);
        }
        let s = sleepers(word);
        let guard = s.lock.lock().expect("no panic inside");
        if word.load(Ordering::SeqCst) != value {
            return Err(Errno::AGAIN);
        }
        drop(s.woken.wait(guard));
        Ok(())
    }

    pub fn wake(word: &AtomicU32, n: u32) {
        let s = sleepers(word);
        let _guard = s.lock.lock();
        match n {
            1 => s.woken.notify_one(),
            _ => s.woken.notify_all(),
        }
    }
}

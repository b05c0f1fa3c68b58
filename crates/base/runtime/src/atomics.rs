//! Atomics, fences and waits for data in shared memory. The definitions are those of the standard
//! library and the kernel; with `--cfg loom`, the same names mean those of the model checker loom.
//! So loom checks the code that is really used, over all orders of its steps and all values that a
//! load may see (`loom_models.rs` of the media and of the store).

#[cfg(not(loom))]
mod real {
    pub use std::hint::spin_loop;
    pub use std::sync::atomic::{
        AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub use std::thread::yield_now;

    /// Sleeping on a word in shared memory (futex).
    pub mod futex {
        use rustix::io::Errno;
        use rustix::thread::{Timespec, futex};
        use std::sync::atomic::AtomicU32;
        use std::time::Duration;

        /// Sleeps while `word` holds `value`, until woken or for at most `most`.
        ///
        /// # Errors
        /// EAGAIN if `word` holds another value, ETIMEDOUT after `most`, EINTR after a signal.
        pub fn wait(word: &AtomicU32, value: u32, most: Duration) -> Result<(), Errno> {
            let most = Timespec {
                tv_sec: most.as_secs() as i64,
                tv_nsec: i64::from(most.subsec_nanos()),
            };
            futex::wait(word, futex::Flags::empty(), value, Some(&most))
        }

        /// Wakes at most `n` threads that sleep on `word`.
        pub fn wake(word: &AtomicU32, n: u32) {
            let _ = futex::wake(word, futex::Flags::empty(), n);
        }
    }
}

#[cfg(not(loom))]
pub use real::*;

#[cfg(loom)]
mod modelled;

#[cfg(loom)]
pub use modelled::*;

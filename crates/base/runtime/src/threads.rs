//! Starts threads so that a lack of memory is an error, not the end of the process.
//!
//! A new thread allocates memory before its first function runs: Rust maps a signal stack, and ends
//! the process if it can't. So [`start`] first checks whether the process, which may be at its
//! limit of address space, has room for all threads that are about to begin. [`BEGINNING`] is
//! larger than a thread needs: the surplus is for what other threads map meanwhile.
//!
//! [`lock`], [`read_lock`] and [`write_lock`] take a lock even if a thread that held it has panicked.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Address space that must be free besides a thread's stack: for its signal stack and its first
/// allocations. Bytes.
const BEGINNING: usize = 2 << 20;
/// Size of the stack that Rust gives a thread by default. Bytes.
pub const STACK: usize = 2 << 20;
/// Size of the stack of a thread of [`watch`]. Bytes.
const WATCH_STACK: usize = 256 << 10;
/// Number of threads that were started and haven't begun yet.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// Starts a thread by `builder` with a stack of `stack` bytes. `more`: additional bytes of address
/// space that the thread's first steps may need.
///
/// # Errors
/// ENOMEM if there may not be enough address space for the thread to begin. Else those of starting
/// a thread.
pub fn start<T: Send + 'static>(
    builder: Builder,
    stack: usize,
    more: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let others = STARTED.fetch_add(1, AcqRel);
    let started = if has_room((others + 1) * (stack + more + BEGINNING)) {
        builder.stack_size(stack).spawn(move || {
            STARTED.fetch_sub(1, AcqRel);
            f()
        })
    } else {
        Err(Errno::NOMEM.into())
    };
    if started.is_err() {
        STARTED.fetch_sub(1, AcqRel);
    }
    started
}

/// Starts a thread that calls `look` repeatedly until it returns None.
///
/// # Errors
/// As for [`start`].
pub fn watch(name: &str, mut look: impl FnMut() -> Option<()> + Send + 'static) -> io::Result<()> {
    let watch = move || while look().is_some() {};
    start(Builder::new().name(name.into()), WATCH_STACK, 0, watch).map(drop)
}

/// Waits until all threads that [`start`] started have begun, at most 10 s. Afterwards, a lack of
/// memory at their beginning can't end the process any more.
pub fn have_begun() {
    let until = Instant::now() + Duration::from_secs(10);
    while STARTED.load(Acquire) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Locks a mutex. Data left by a thread that panicked is used as it is.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], for reading what a lock for readers and writers protects.
pub fn read_lock<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`read_lock`], for writing.
pub fn write_lock<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `len` bytes can be mapped now.
pub fn has_room(len: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
    unsafe {
        mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE)
            .is_ok_and(|at| munmap(at, len).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_started_if_there_is_room() {
        let thread = start(Builder::new(), 256 << 10, 0, || 7).unwrap();
        have_begun();
        assert_eq!(thread.join().unwrap(), 7);
        let none = start(Builder::new(), 256 << 10, 1 << 50, || 7);
        let error = none.unwrap_err().raw_os_error();
        assert_eq!(error, Some(Errno::NOMEM.raw_os_error()));
        have_begun();
    }
}

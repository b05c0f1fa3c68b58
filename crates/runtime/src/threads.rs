//! Starting threads where there may be no memory for them.
//!
//! A thread's beginning allocates where nothing can fail: Rust maps a stack for signals, and ends
//! the process if it can't. So a process at its limit of addresses is asked first whether there is
//! room for what threads take that are about to begin. What others map in that moment is covered by
//! [`BEGINNING`].

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of address space that must be left besides a thread's stack: for its signal stack and its
/// first allocations.
const BEGINNING: usize = 2 << 20;
/// Bytes of a stack as Rust gives it where nothing is said.
pub const STACK: usize = 2 << 20;
/// Bytes of the stack of a thread that only looks after something.
const WATCH_STACK: usize = 256 << 10;
/// Threads that were started, and haven't begun.
static STARTED: AtomicUsize = AtomicUsize::new(0);

/// Starts a thread by `builder`, which gets `stack` bytes of stack. It and what it does at first
/// may take `more` bytes.
///
/// # Errors
/// ENOMEM: there may be no room for its beginning. What starting a thread says.
pub fn start<T: Send + 'static>(
    builder: Builder,
    stack: usize,
    more: usize,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let others = STARTED.fetch_add(1, AcqRel);
    let started = match has_room((others + 1) * (stack + more + BEGINNING)) {
        true => builder.stack_size(stack).spawn(move || {
            STARTED.fetch_sub(1, AcqRel);
            f()
        }),
        false => Err(Errno::NOMEM.into()),
    };
    if started.is_err() {
        STARTED.fetch_sub(1, AcqRel);
    }
    started
}

/// Starts a thread that calls `look` again and again until it returns None.
///
/// # Errors
/// As for [`start`].
pub fn watch(name: &str, mut look: impl FnMut() -> Option<()> + Send + 'static) -> io::Result<()> {
    let watch = move || while look().is_some() {};
    start(Builder::new().name(name.into()), WATCH_STACK, 0, watch).map(drop)
}

/// Waits until all threads that were started here have begun, 10 s at most. From then on a lack of
/// memory doesn't end them.
pub fn have_begun() {
    let until = Instant::now() + Duration::from_secs(10);
    while STARTED.load(Acquire) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Whether so many bytes can be mapped now.
pub fn has_room(len: usize) -> bool {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping where the kernel likes, which nobody uses.
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

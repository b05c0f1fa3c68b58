//! What the process brings: forked children, and signals.
//!
//! A child has none of its parent's worker threads, and may have been forked while one of them held a lock. So
//! what the parent opened is refused in it, before any lock is touched. Each session notes the
//! generation it belongs to; a handler that the C library runs in every forked child begins a new one. A look at
//! it costs one load, which getpid(2) wouldn't.

use crate::{Error, Result};
use rustix::io::Errno;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}

impl Generation {
    /// This process's.
    pub fn now() -> Generation {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler changes an atomic and nothing else, which is allowed after a fork.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(failed, 0, "no memory to watch for forks");
        });
        Generation(GENERATION.load(Relaxed))
    }

    /// Whether this is still the process.
    pub fn is_now(self) -> bool {
        self.0 == GENERATION.load(Relaxed)
    }

    /// # Errors
    /// EPERM in a forked child.
    pub fn check(self) -> Result<()> {
        match self.is_now() {
            true => Ok(()),
            false => Err(Error::new(
                Errno::PERM,
                "this session was opened before the fork; open another one in the child",
            )),
        }
    }
}

/// Keeps signals away from this thread: they are for the program's own.
pub(crate) fn block_signals() {
    // SAFETY: a set of signals is plain data; the calls fill it and read it.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

//! Forked children, and signals, of the process that uses the verbs.
//!
//! A forked child has none of its parent's worker threads, and one of them may have held a lock at
//! the fork. So the child can't use sessions that the parent opened: they refuse before any lock is
//! touched. Each session records its generation; a handler that the C library runs in every forked
//! child begins a new one. Comparing generations costs one load, where getpid(2) would cost a
//! system call.

use crate::{Error, Result};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation, and so the process, in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}

impl Generation {
    /// This process's generation.
    pub fn now() -> Generation {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler changes an atomic and nothing else, which is allowed after a
            // fork.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(failed, 0, "no memory to watch for forks");
        });
        Generation(GENERATION.load(Relaxed))
    }

    /// Whether this process made it.
    pub fn is_now(self) -> bool {
        self.0 == GENERATION.load(Relaxed)
    }

    /// # Errors
    /// EPERM in a forked child.
    pub fn check(self) -> Result<()> {
        if self.is_now() {
            Ok(())
        } else {
            Err(Error::new(
                Errno::PERM,
                "this session was opened before the fork; open another one in the child",
            ))
        }
    }
}

/// How long to wait for another thread that holds a lock of all sessions. After a fork, the lock
/// may stay held for ever.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Takes a lock that another thread may have held when this process was forked.
///
/// # Errors
/// EDEADLK if the lock isn't available; `what` names the operation.
pub(crate) fn lock_in_time<'a, T>(lock: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(guard)) => return Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => {
                let text = format!(
                    "another thread has been {what} for 30 s, or was when this process was forked"
                );
                return Err(Error::new(Errno::DEADLK, text));
            }
        }
    }
}

/// Blocks all signals in this thread: they are for the program's own threads.
pub(crate) fn block_signals() {
    // SAFETY: a set of signals is plain data; the calls fill it and read it.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

//! Protects sessions from forked children, and the program's threads from signals.
//!
//! A forked child has none of its parent's worker threads, and one of them may have held a lock at
//! the fork. So the child can't use sessions that the parent opened: their methods fail before they
//! touch a lock. Each session records its process's generation; a handler that the C library runs
//! in every forked child increments the child's generation. Comparing generations costs one load,
//! where getpid(2) would cost a system call.

use crate::{Error, Result};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, TryLockError};
use std::time::{Duration, Instant};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Identifies the process, among a process and its forked descendants, in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
}

impl Generation {
    /// Returns this process's generation.
    pub fn now() -> Generation {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler only changes an atomic, which is allowed in a forked child.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(failed, 0, "no memory to watch for forks");
        });
        Generation(GENERATION.load(Relaxed))
    }

    /// Whether the generation is this process's.
    pub fn is_now(self) -> bool {
        self.0 == GENERATION.load(Relaxed)
    }

    /// Checks that this process made the object of this generation.
    ///
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

/// How long to wait for another thread that holds a process-wide lock. In a forked child, the lock
/// may stay held for ever.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Locks `lock`, which another thread may have held when this process was forked.
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

/// Blocks all signals in the calling thread, so that the kernel delivers them to the program's
/// threads.
pub(crate) fn block_signals() {
    // SAFETY: zeros are a valid sigset_t. The calls only fill and read `all`, and null for the old
    // mask is allowed.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

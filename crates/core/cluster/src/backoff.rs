//! Waits for other operations, in growing steps and for a bounded time.
//!
//! [`Backoff`] sleeps 20 microseconds at first, doubles this time up to 2 milliseconds, and gives
//! up after [`NAME_CHANGE_TIMEOUT`] with EHOSTDOWN. [`Backoff`] calls the kernel directly, because
//! it also runs inside programs.

use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

/// Maximum time that a caller waits for a change of a name by another operation.
const NAME_CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses between tries: each is longer than the last, for [`NAME_CHANGE_TIMEOUT`] in total.
pub(crate) struct Backoff {
    until: Instant,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff {
            until: Instant::now() + NAME_CHANGE_TIMEOUT,
            next: Duration::from_micros(20),
        }
    }

    /// # Errors
    /// EHOSTDOWN after [`NAME_CHANGE_TIMEOUT`].
    pub(crate) fn wait(&mut self) -> Result<()> {
        if Instant::now() >= self.until {
            return Err(Errno::HOSTDOWN);
        }
        // A direct system call, since this runs inside programs, too.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: self.next.as_nanos() as _,
        });
        self.next = (self.next * 2).min(Duration::from_millis(2));
        Ok(())
    }
}

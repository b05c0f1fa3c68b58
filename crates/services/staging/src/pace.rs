//! A limit on bytes per second, shared by all threads that copy.

use forebay_runtime::threads::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Maximum time by which copying may be ahead of the rate before a thread sleeps.
const AHEAD: Duration = Duration::from_millis(20);

/// A limiter that delays copies so that all threads together don't exceed a rate.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: u64,
    /// The time at which all bytes so far are permitted by the rate.
    due: Mutex<Instant>,
}

impl Pace {
    /// Returns a limiter of `rate` bytes per second (at least 1).
    pub fn new(rate: u64) -> Pace {
        Pace {
            rate: rate.max(1),
            due: Mutex::new(Instant::now()),
        }
    }

    /// Counts `bytes` and sleeps until the rate permits them. The sleep is at most the time that
    /// these bytes, and those of other threads before, need at this rate.
    pub fn take(&self, bytes: u64) {
        let now = Instant::now();
        let due = {
            let mut due = lock(&self.due);
            *due = (*due).max(now) + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
            *due
        };
        let early = due.saturating_duration_since(now);
        if early > AHEAD {
            std::thread::sleep(early);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_rate() {
        let (pace, began) = (Pace::new(10 << 20), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..8).for_each(|_| pace.take(64 << 10)));
            }
        });
        // 2 MiB at 10 MiB/s.
        assert!(began.elapsed() > Duration::from_millis(150));
    }
}

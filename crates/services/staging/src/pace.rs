//! A limit on bytes per second, shared by all threads that copy.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far copying may run ahead of the limit before it sleeps.
const AHEAD: Duration = Duration::from_millis(20);

/// Spaces copies so that all threads together copy no more than a rate.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: u64,
    /// When all bytes so far are due.
    due: Mutex<Instant>,
}

impl Pace {
    /// At most `rate` bytes per second, more than 0.
    pub fn new(rate: u64) -> Pace {
        Pace {
            rate: rate.max(1),
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits until this many bytes more are due. Blocks at most for the time that they take at this
    /// rate, after those of other threads.
    pub fn take(&self, bytes: u64) {
        let now = Instant::now();
        let due = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
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

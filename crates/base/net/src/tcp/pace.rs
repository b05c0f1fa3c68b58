//! A limit on bytes per second, in one direction, for all connections of a node.
//!
//! Bytes are counted when they are sent and received. A thread that moves bulk data faster than the
//! limit sleeps. Only bulk threads sleep, so messages without a body are never delayed; but their
//! bytes are counted, too.

use crate::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// After a pause, as many bytes as the limit allows in this time may be sent at once.
const AHEAD: Duration = Duration::from_millis(20);
/// Maximum delay that messages which don't wait can cause to later messages.
const DEBT: Duration = Duration::from_millis(200);

/// A bandwidth limit.
pub(super) struct Pace {
    /// Time per byte. Seconds.
    each: f64,
    /// The time by which all counted bytes would have been transferred at the limit.
    done: Mutex<Instant>,
}

impl Pace {
    /// A limit of `rate` bytes per second.
    pub fn new(rate: u64) -> Pace {
        Pace {
            each: 1.0 / rate.max(1) as f64,
            done: Mutex::new(Instant::now()),
        }
    }

    /// Counts `bytes`. Returns how long the caller has to wait.
    pub fn spend(&self, bytes: usize) -> Duration {
        self.spend_at(bytes, Instant::now())
    }

    fn spend_at(&self, bytes: usize, now: Instant) -> Duration {
        let mut done = lock(&self.done);
        let earliest = now.checked_sub(AHEAD).unwrap_or(now);
        let next = (*done).max(earliest) + Duration::from_secs_f64(bytes as f64 * self.each);
        *done = next.min(now + DEBT);
        done.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept() {
        let pace = Pace::new(100 << 20);
        let begin = Instant::now();
        let (mut now, mut gone) = (begin, 0);
        // Sends as fast as possible, with one pause; the time of the pause mustn't be made up for.
        while now < begin + Duration::from_secs(2) {
            now += pace.spend_at(256 << 10, now) + Duration::from_micros(50);
            gone += 256 << 10;
            if gone == 50 << 20 {
                now += Duration::from_secs(1);
            }
        }
        assert!((95 << 20..=107 << 20).contains(&gone), "{gone}");
        // Messages sent without waiting delay later ones, for a bounded time.
        for _ in 0..10_000 {
            pace.spend_at(1 << 20, now);
        }
        assert!(pace.spend_at(1, now) <= DEBT);
    }
}

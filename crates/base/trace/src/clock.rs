//! Ticks: the cheapest clock that all cores agree on.
//!
//! On x86-64 that is the time stamp counter, if the processor says that it is constant and never
//! stops. Elsewhere a tick is a nanosecond of CLOCK_MONOTONIC. The process that makes the shared
//! memory records in it which clock is used, and the time by both clocks ([`crate::shared::Head`]).
//! From this pair of times and a later one, a reader computes the length of a tick.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Whether ticks are those of the time stamp counter.
static COUNTER: AtomicBool = AtomicBool::new(false);

/// Sets the clock of this process. `counter`: whether it is the time stamp counter.
pub(crate) fn choose(counter: bool) {
    COUNTER.store(counter, Relaxed);
}

/// Returns the time by CLOCK_MONOTONIC. Nanoseconds.
pub fn monotonic() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the time of day. Nanoseconds since 1970.
pub fn real() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns the current time. Ticks.
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if COUNTER.load(Relaxed) {
        // SAFETY: every x86-64 processor has this instruction.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    monotonic()
}

/// Whether the processor's time stamp counter has a constant rate and never stops, so that it may
/// serve as a clock.
pub fn constant_counter() -> bool {
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| {
            let flags = text.lines().find(|l| l.starts_with("flags"));
            let has = |flag: &str| flags.is_some_and(|l| l.split_whitespace().any(|f| f == flag));
            has("constant_tsc") && has("nonstop_tsc")
        })
}

/// The same moment by three clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Ticks.
    pub ticks: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub monotonic: u64,
    /// Nanoseconds since 1970.
    pub real: u64,
}

impl Moment {
    /// Now, by this process's clock.
    pub fn now() -> Moment {
        Moment {
            ticks: now(),
            monotonic: monotonic(),
            real: real(),
        }
    }
}

/// Converts ticks to times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    begin: Moment,
    /// Length of a tick. Nanoseconds.
    tick: f64,
    /// Offset added to times of day, so that they agree with another node's clock. Nanoseconds.
    pub offset: i64,
}

impl Scale {
    /// Computes the scale from two moments of one machine, which should be as far apart as
    /// possible.
    pub fn between(begin: Moment, end: Moment) -> Scale {
        let ticks = end.ticks.wrapping_sub(begin.ticks) as f64;
        let time = end.monotonic.wrapping_sub(begin.monotonic) as f64;
        Scale {
            begin,
            tick: if ticks > 0.0 && time > 0.0 {
                time / ticks
            } else {
                1.0
            },
            offset: 0,
        }
    }

    /// Returns the time of day at a tick. Nanoseconds since 1970.
    pub fn time(&self, ticks: u64) -> u64 {
        let after = ticks.wrapping_sub(self.begin.ticks) as i64 as f64 * self.tick;
        (self.begin.real as i64 + after as i64 + self.offset).max(0) as u64
    }

    /// Returns a length of time that is given in ticks. Nanoseconds.
    pub fn length(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.tick) as u64
    }

    /// Returns the number of ticks in a length of time that is given in nanoseconds.
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        (nanoseconds as f64 / self.tick) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_converts_both_ways() {
        let begin = Moment {
            ticks: 1000,
            monotonic: 50,
            real: 1_000_000,
        };
        let end = Moment {
            ticks: 4000,
            monotonic: 1050,
            real: 1_001_000,
        };
        let scale = Scale::between(begin, end);
        assert_eq!(scale.length(3000), 1000);
        assert_eq!(scale.time(2500), 1_000_500);
        assert_eq!(scale.ticks(1000), 3000);
        // The two moments are equal, so a tick counts as a nanosecond.
        assert_eq!(Scale::between(begin, begin).length(7), 7);
    }
}

//! Limits on the lifetime of a pool that its user doesn't remove.
//!
//! There are two limits: a time to live, counted from the start, and an idle limit, counted from
//! the last use. Both are measured by CLOCK_BOOTTIME, which can't be set. A pool in use is never
//! removed: a pool whose time limit has passed is removed as soon as no process uses it.

use forebay_store::process;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A pool's limits, as in its `pool.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// Time to live. Seconds.
    #[serde(default)]
    pub ttl: Option<u64>,
    /// Maximum time without use. Seconds.
    #[serde(default)]
    pub idle: Option<u64>,
    /// Where the time to live comes from, in words: `--ttl`, `the end of job 7`.
    #[serde(default)]
    pub why: String,
    /// End of the time to live, on the clock of boot `boot`. Seconds.
    #[serde(default)]
    ends: Option<u64>,
    #[serde(default)]
    boot: u64,
}

/// Seconds since this host was started.
pub fn boot_clock() -> u64 {
    clock_gettime(ClockId::Boottime).tv_sec.max(0) as u64
}

impl Lifetime {
    /// Returns these limits, in seconds, for a lifetime that hasn't begun. `why`: where the time to
    /// live comes from, in words.
    pub fn new(ttl: Option<u64>, idle: Option<u64>, why: &str) -> Lifetime {
        Lifetime {
            ttl,
            idle,
            why: why.to_owned(),
            ..Lifetime::default()
        }
    }

    /// Whether any limit is set.
    pub fn any(&self) -> bool {
        self.ttl.is_some() || self.idle.is_some()
    }

    /// Returns the same limits, for a lifetime that begins now on this host.
    pub fn begun(&self) -> Lifetime {
        Lifetime {
            ends: self.ttl.map(|ttl| boot_clock().saturating_add(ttl)),
            boot: process::boot(),
            ..self.clone()
        }
    }

    /// Time left until the time limit. Seconds; 0 if it has passed. None without a time to live, or
    /// after a reboot.
    pub fn left(&self) -> Option<u64> {
        let boot = process::boot();
        let ends = self.ends.filter(|_| boot != 0 && self.boot == boot)?;
        Some(ends.saturating_sub(boot_clock()))
    }

    /// Time since the time limit passed. Seconds; 0 before that.
    pub fn over_for(&self) -> u64 {
        match (self.left(), self.ends) {
            (Some(0), Some(ends)) => boot_clock().saturating_sub(ends),
            _ => 0,
        }
    }

    /// Time until the idle limit is reached, for a last use at `used` ([`boot_clock`]; 0: unknown).
    /// Seconds. None without an idle limit.
    pub fn idle_left(&self, used: u64) -> Option<u64> {
        let idle = self.idle?;
        let unused = match used {
            0 => 0,
            used => boot_clock().saturating_sub(used),
        };
        Some(idle.saturating_sub(unused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_from_the_beginning() {
        let wanted = Lifetime {
            ttl: Some(100),
            idle: Some(10),
            ..Lifetime::default()
        };
        assert_eq!(wanted.left(), None, "it hasn't begun");
        let begun = wanted.begun();
        assert!((99..=100).contains(&begun.left().unwrap()));
        let text = serde_json::to_string(&begun).unwrap();
        assert_eq!(serde_json::from_str::<Lifetime>(&text).unwrap(), begun);
        let of_another_boot = Lifetime {
            boot: begun.boot ^ 1,
            ..begun.clone()
        };
        assert_eq!(of_another_boot.left(), None);
        let over = Lifetime {
            ends: Some(1),
            ..begun.clone()
        };
        assert_eq!(over.left(), Some(0));
        assert_eq!(begun.idle_left(0), Some(10), "unknown is in use");
        assert_eq!(begun.idle_left(boot_clock()), Some(10));
        let unused = begun.idle_left(boot_clock().saturating_sub(20).max(1));
        assert!(unused == Some(0) || boot_clock() < 30);
        assert_eq!(Lifetime::default().begun().left(), None);
    }
}

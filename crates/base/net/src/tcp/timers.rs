//! Deadlines of all sessions, on one kernel timer. The timer is armed only while there is a
//! deadline. The timer may still fire once for a request that has been answered meanwhile.

use super::local;
use crate::{Error, lock};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The owner of a deadline: a session's id, and the number of its request or stall timer.
pub(super) type Due = (u64, u64);

pub(super) struct Timers {
    fd: OwnedFd,
    set: Mutex<Set>,
}

#[derive(Default)]
struct Set {
    due: BTreeSet<(Instant, Due)>,
    armed: Option<Instant>,
}

impl Timers {
    pub fn new() -> Result<Timers, Error> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timers {
            fd: timerfd_create(TimerfdClockId::Monotonic, flags).map_err(local("timerfd"))?,
            set: Mutex::default(),
        })
    }

    pub fn add(&self, at: Instant, what: Due) {
        let mut set = lock(&self.set);
        set.due.insert((at, what));
        if set.armed.is_none_or(|armed| at < armed) {
            self.arm(&mut set, at);
        }
    }

    pub fn remove(&self, at: Instant, what: Due) {
        lock(&self.set).due.remove(&(at, what));
    }

    /// Removes and returns the deadlines that have passed.
    pub fn due(&self) -> Vec<Due> {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
        let now = Instant::now();
        let mut set = lock(&self.set);
        let mut due = Vec::new();
        while let Some(&(at, what)) = set.due.first() {
            if at > now {
                break;
            }
            set.due.pop_first();
            due.push(what);
        }
        debug_assert!(
            set.due.first().is_none_or(|(at, _)| *at > now),
            "all deadlines that have passed are due"
        );
        set.armed = None;
        if let Some(&(at, _)) = set.due.first() {
            self.arm(&mut set, at);
        }
        due
    }

    fn arm(&self, set: &mut Set, at: Instant) {
        // A time of zero would disarm the timer.
        let left = at
            .saturating_duration_since(Instant::now())
            .max(Duration::from_nanos(1));
        let none = Timespec::default();
        let value = Itimerspec {
            it_interval: none,
            it_value: Timespec::try_from(left).unwrap_or(none),
        };
        if timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value).is_ok() {
            set.armed = Some(at);
        }
    }
}

impl AsFd for Timers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

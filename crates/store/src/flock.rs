//! flock(2): locks on whole files that belong to open file descriptions.
//!
//! A description carries its lock (`Open::flock`), so that dup, fork and exec share it and
//! it goes with the last descriptor, however that one goes. Whether a file is locked is
//! found by looking at all descriptions: nothing is counted that a death could falsify.

use crate::Store;
use crate::process::{Critical, identity_lives};
use forebay_media::atomics::{Ordering::*, futex};
use rustix::io::{Errno, Result};
use std::time::Duration;

/// What a description holds, or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Flock {
    Unlocked = 0,
    Shared = 1,
    Exclusive = 2,
}

/// A holder that died is noticed after at most this long .
const TURN: Duration = Duration::from_millis(50);

impl Store {
    /// Changes the lock of description `open`, waiting for others if `wait`.
    ///
    /// # Errors
    /// EAGAIN if it would have to wait; EINTR if a signal came while it waited.
    pub fn flock(&self, open: u32, want: Flock, wait: bool) -> Result<()> {
        if let Some((home, id)) = self.open_away(open) {
            return self.flock_away(open, home, id, want, wait);
        }
        let header = self.control.header();
        loop {
            let seen = header.flock_changes.load(Acquire);
            {
                let _critical = Critical::enter();
                header.flock_lock.acquire(&self.control, self.me()?)?;
                let place = &self.open_file(open).flock;
                // As in Linux: a lock that is to be changed is given up first.
                let before = place.swap(0, AcqRel);
                let free = !self.in_conflict(open, want);
                if free {
                    place.store(want as u32, Release);
                }
                header.flock_lock.release();
                if before != 0 {
                    self.flock_changed();
                }
                if free {
                    return Ok(());
                }
            }
            if !wait {
                return Err(Errno::AGAIN);
            }
            match futex::wait(&header.flock_changes, seen, TURN) {
                Err(Errno::INTR) => return Err(Errno::INTR),
                _ => continue,
            }
        }
    }

    fn in_conflict(&self, open: u32, want: Flock) -> bool {
        let id = self.open_file(open).id.load(Acquire);
        want != Flock::Unlocked
            && (0..self
                .control
                .header()
                .free_open
                .end(crate::control::MAX_OPEN))
                .any(|i| {
                    let o = self.open_file(i);
                    let held = o.flock.load(Acquire);
                    i != open
                        && held != 0
                        && (held == Flock::Exclusive as u32 || want == Flock::Exclusive)
                        && o.id.load(Acquire) == id
                        && o.refs.load(Acquire) > 0
                })
    }

    /// Releases the locks of descriptions whose owner is dead: those that a daemon had for other
    /// nodes, which take them again from the next one.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn release_dead_flocks(&self) -> Result<()> {
        let header = self.control.header();
        let _critical = Critical::enter();
        header.flock_lock.acquire(&self.control, self.me()?)?;
        for i in 0..header.free_open.end(crate::control::MAX_OPEN) {
            let o = self.open_file(i);
            let owner = o.owner.load(Acquire);
            if owner != 0 && !identity_lives(&self.control, owner) {
                o.flock.store(0, Release);
            }
        }
        header.flock_lock.release();
        self.flock_changed();
        Ok(())
    }

    /// Wakes those who wait for a lock.
    pub(crate) fn flock_changed(&self) {
        let changes = &self.control.header().flock_changes;
        changes.fetch_add(1, AcqRel);
        futex::wake(changes, u32::MAX);
    }
}

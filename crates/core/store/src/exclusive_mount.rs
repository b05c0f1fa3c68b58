//! Sole use of a pool, by the process that serves a mount. Meanwhile no other process of the node
//! uses the pool, so the mount's kernel may cache names and attributes.
//!
//! A word in the control region holds the identity of the sole user. A process that attaches (takes
//! a process slot) looks at the word before its first operation. If there is a sole user, the
//! process requests the end of the sole use ([`WANTED`]) and waits for it. A process that wants the
//! sole use first stores its identity, then looks whether any other slot is taken. So at least one
//! of the two sees the other. The identity of a dead process is ignored.

use crate::Result;
use crate::control_region::MAX_PROCESSES;
use crate::process::{identity, identity_lives, slot_of};
use crate::views::SoleUse;
use forebay_runtime::atomics::futex;
use forebay_runtime::atomics::{AtomicU32, Ordering::*};
use rustix::io::Errno;
use std::time::Duration;

/// Bit of the word: another process waits for the end of the sole use.
const WANTED: u32 = 1 << 31;
/// How long an attaching process sleeps before it checks whether the holder still lives.
const HOLDER_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Number of intervals (30 s in all) after which attaching fails: the holder may be stopped.
const MAX_TURNS: u32 = 1500;

impl<'s> SoleUse<'s> {
    fn word(self) -> &'s AtomicU32 {
        &self.control.header().exclusive_user
    }

    /// Makes this process, in slot `me`, the sole user, if no other process is attached and nothing
    /// is left to be repaired. Returns whether it has become the sole user.
    pub fn take(self, me: u32) -> bool {
        let mine = identity(self.control, me);
        let before = self.word().load(Relaxed);
        if before != 0 && identity_lives(self.control, before & !WANTED) {
            return false;
        }
        if (self.word().compare_exchange(before, mine, SeqCst, Relaxed)).is_err() {
            return false;
        }
        let is_other = |slot: &usize| {
            *slot != me as usize && self.control.process(*slot).owner.load(SeqCst) != 0
        };
        let header = self.control.header();
        let is_alone = !(0..MAX_PROCESSES).any(|slot| is_other(&slot))
            && header.leaks.load(SeqCst) == 0
            && header.recover.load(SeqCst) == 0;
        if !is_alone {
            self.end();
        }
        is_alone
    }

    /// Waits, for `most` at most, until another process wants the end of this process's sole use.
    /// Returns whether one does.
    pub fn is_end_wanted(self, most: Duration) -> bool {
        let word = self.word().load(SeqCst);
        if word & WANTED == 0 {
            let _ = futex::wait(self.word(), word, most);
        }
        self.word().load(SeqCst) & WANTED != 0
    }

    /// Ends this process's sole use.
    pub fn end(self) {
        self.word().store(0, SeqCst);
        futex::wake(self.word(), i32::MAX as u32);
    }

    /// Ends the sole use of the pool by another process: requests the end, and waits for it. The
    /// caller has just taken process slot `slot`.
    ///
    /// # Errors
    /// ETIMEDOUT: the sole user doesn't end its sole use within 30 s.
    pub(crate) fn end_of_others(self, slot: u32) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let word = self.word().load(SeqCst);
            let holder = word & !WANTED;
            if word == 0 || slot_of(holder) == slot {
                return Ok(());
            }
            if !identity_lives(self.control, holder) {
                let _ = self.word().compare_exchange(word, 0, SeqCst, Relaxed);
                continue;
            }
            if word & WANTED == 0 {
                if (self
                    .word()
                    .compare_exchange(word, word | WANTED, SeqCst, Relaxed))
                .is_err()
                {
                    continue;
                }
                futex::wake(self.word(), i32::MAX as u32);
            }
            let _ = futex::wait(self.word(), holder | WANTED, HOLDER_CHECK_INTERVAL);
        }
        Err(Errno::TIMEDOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::process;
    use crate::repair::tests::store;

    /// As `end_of_others`, for a process that attaches. Returns its slot.
    fn attaches(s: &Store) -> u32 {
        let slot = process::attach(&s.control).unwrap();
        s.sole_use().end_of_others(slot).unwrap();
        slot
    }

    fn take(s: &Store) -> bool {
        s.sole_use().take(s.process_slot().unwrap())
    }

    #[test]
    fn whoever_attaches_waits_until_nobody_is_alone() {
        let s = store("sole-use");
        let other = attaches(&s);
        assert!(!take(&s));
        process::free(&s.control, other);
        assert!(take(&s));
        // A second time is refused.
        assert!(!take(&s));
        assert!(!s.sole_use().is_end_wanted(Duration::ZERO));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| attaches(&s));
            while !s.sole_use().is_end_wanted(HOLDER_CHECK_INTERVAL) {}
            assert!(!other.is_finished());
            s.sole_use().end();
            let slot = other.join().unwrap();
            assert!(!take(&s));
            process::free(&s.control, slot);
        });
        assert!(take(&s));
    }

    #[test]
    fn the_sole_use_of_a_dead_process_is_over() {
        let s = store("sole-use-dead");
        let me = s.process_slot().unwrap();
        let dead = process::attach(&s.control).unwrap();
        let owner = &s.control.process(dead as usize).owner;
        s.sole_use()
            .word()
            .store(identity(&s.control, dead), SeqCst);
        // No process has this start time, so the sole user counts as dead.
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
        s.sole_use().end_of_others(me).unwrap();
        assert_eq!(s.sole_use().word().load(SeqCst), 0);
        // The slot of the dead process hasn't been released yet.
        assert!(!take(&s));
    }
}

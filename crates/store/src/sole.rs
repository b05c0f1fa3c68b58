//! Sole use of a pool: while the process that serves a mount has it, no other process of the node
//! uses the pool, so that the mount's kernel may keep names and attributes.
//!
//! A word in the control region holds the identity of the sole user. Whoever attaches (takes a
//! process slot) looks at the word before its first operation; if there is a sole user, it asks for
//! the end of that ([`WANTED`]) and waits until the sole use has been given back. Whoever wants it
//! notes itself first, then looks whether any other slot is taken: so either of both sees the
//! other. That of a dead process counts for nothing.

use crate::Result;
use crate::control::MAX_PROCESSES;
use crate::process::{identity, identity_lives, slot_of};
use crate::views::DeclaredControls;
use forebay_media::atomics::futex;
use forebay_media::atomics::{AtomicU32, Ordering::*};
use rustix::io::Errno;
use std::time::Duration;

/// Somebody waits for the end of the sole use.
const WANTED: u32 = 1 << 31;
/// How long one that attaches sleeps before it looks whether the holder still lives.
const TURN: Duration = Duration::from_millis(20);
/// After so many turns (30 s) it fails: the holder is stopped, say.
const MAX_TURNS: u32 = 1500;

impl<'s> DeclaredControls<'s> {
    fn sole_user(self) -> &'s AtomicU32 {
        &self.0.control.header().sole_user
    }

    /// Makes this process the sole user, if no other process is attached and nothing is left to be
    /// put in order.
    ///
    /// # Errors
    /// As for attaching.
    pub fn take_sole_use(&self) -> Result<bool> {
        let me = self.process_slot()?;
        let mine = identity(&self.control, me);
        let before = self.sole_user().load(Relaxed);
        if before != 0 && identity_lives(&self.control, before & !WANTED) {
            return Ok(false);
        }
        if (self
            .sole_user()
            .compare_exchange(before, mine, SeqCst, Relaxed))
        .is_err()
        {
            return Ok(false);
        }
        let is_other = |slot: &usize| {
            *slot != me as usize && self.control.process(*slot).owner.load(SeqCst) != 0
        };
        let header = self.control.header();
        let is_alone = !(0..MAX_PROCESSES).any(|slot| is_other(&slot))
            && header.leaks.load(SeqCst) == 0
            && header.recover.load(SeqCst) == 0;
        if !is_alone {
            self.end_sole_use();
        }
        Ok(is_alone)
    }

    /// Waits until somebody wants the end of this process's sole use, for `most` at most; whether
    /// so.
    pub fn is_sole_use_wanted(&self, most: Duration) -> bool {
        let word = self.sole_user().load(SeqCst);
        if word & WANTED == 0 {
            let _ = futex::wait(self.sole_user(), word, most);
        }
        self.sole_user().load(SeqCst) & WANTED != 0
    }

    /// Ends this process's sole use.
    pub fn end_sole_use(&self) {
        self.sole_user().store(0, SeqCst);
        futex::wake(self.sole_user(), i32::MAX as u32);
    }

    /// This process has just taken `slot`: nobody else is the sole user from now on.
    ///
    /// # Errors
    /// ETIMEDOUT: its holder doesn't answer for 30 s.
    pub(crate) fn end_sole_use_of_others(&self, slot: u32) -> Result<()> {
        for _ in 0..MAX_TURNS {
            let word = self.sole_user().load(SeqCst);
            let holder = word & !WANTED;
            if word == 0 || slot_of(holder) == slot {
                return Ok(());
            }
            if !identity_lives(&self.control, holder) {
                let _ = self.sole_user().compare_exchange(word, 0, SeqCst, Relaxed);
                continue;
            }
            if word & WANTED == 0 {
                if (self
                    .sole_user()
                    .compare_exchange(word, word | WANTED, SeqCst, Relaxed))
                .is_err()
                {
                    continue;
                }
                futex::wake(self.sole_user(), i32::MAX as u32);
            }
            let _ = futex::wait(self.sole_user(), holder | WANTED, TURN);
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

    /// As `end_sole_use_of_others`, of a process that attaches; its slot.
    fn attaches(s: &Store) -> u32 {
        let slot = process::attach(&s.control).unwrap();
        s.declared().end_sole_use_of_others(slot).unwrap();
        slot
    }

    #[test]
    fn whoever_attaches_waits_until_nobody_is_alone() {
        let s = store("sole-use");
        let other = attaches(&s);
        assert_eq!(s.declared().take_sole_use(), Ok(false));
        process::free(&s.control, other);
        assert_eq!(s.declared().take_sole_use(), Ok(true));
        // Not twice.
        assert_eq!(s.declared().take_sole_use(), Ok(false));
        assert!(!s.declared().is_sole_use_wanted(Duration::ZERO));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| attaches(&s));
            while !s.declared().is_sole_use_wanted(TURN) {}
            assert!(!other.is_finished());
            s.declared().end_sole_use();
            let slot = other.join().unwrap();
            assert_eq!(s.declared().take_sole_use(), Ok(false));
            process::free(&s.control, slot);
        });
        assert_eq!(s.declared().take_sole_use(), Ok(true));
    }

    #[test]
    fn the_sole_use_of_a_dead_process_is_over() {
        let s = store("sole-use-dead");
        let me = s.process_slot().unwrap();
        let dead = process::attach(&s.control).unwrap();
        let owner = &s.control.process(dead as usize).owner;
        s.declared()
            .sole_user()
            .store(identity(&s.control, dead), SeqCst);
        // A start time that no process has: as good as dead.
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
        s.declared().end_sole_use_of_others(me).unwrap();
        assert_eq!(s.declared().sole_user().load(SeqCst), 0);
        // What it had isn't in order yet.
        assert_eq!(s.declared().take_sole_use(), Ok(false));
    }
}

//! Locks in shared memory that survive the death of their holder.
//!
//! A lock word holds the identity of the process that has the lock. A waiter sleeps on a futex for
//! 20 ms at a time and checks after each sleep whether the holder lives. The lock of a dead holder
//! passes to the first waiter that notices; `acquire` reports that, so that the waiter can repair
//! what the lock protects. The holder of a lock must be inside a [`crate::critical::Critical`]
//! section, so that no signal handler runs while the lock is held.
//!
//! A waiter that has waited for 1 s for a stopped process (SIGSTOP, or a debugger) reports that
//! process in one line on standard error, once for each such process.

use crate::atomics::{AtomicU32, Ordering::*, futex, spin_loop};
use crate::process::write_notice;
use crate::slots::{HELD, Table, identity, identity_lives, pid_of_identity, slot_of};
use rustix::io::Errno;
use std::time::Duration;

const WAITERS: u32 = 1 << 31;
/// Number of spins before sleeping. That many spins take less time than one futex call.
const SPINS: u32 = if cfg!(loom) { 1 } else { 60 };
const WAIT_INTERVAL: Duration = Duration::from_millis(20);
/// After this many waits for the same holder (30 s) the operation fails rather than hangs.
const MAX_TURNS: u32 = 1500;
/// After this many waits for the same holder (1 s) the waiter checks whether that holder is
/// stopped.
const STOPPED_CHECK_TURNS: u32 = 50;

/// Identity of the stopped holder that this process reported last.
static REPORTED: AtomicU32 = AtomicU32::new(0);

/// A futex word. 0: free. Else the holder's identity, and `WAITERS` if threads may be asleep.
#[repr(transparent)]
#[derive(Default)]
pub struct Lock(AtomicU32);

/// The state in which a lock was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The previous holder released the lock.
    Clean,
    /// The previous holder died with the lock: the protected data may be half changed.
    Abandoned,
}

impl Lock {
    /// Returns a free lock, which need not lie in shared memory.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock for process slot `me`, waiting if needed.
    ///
    /// # Errors
    /// ETIMEDOUT if one living holder (a stopped process, say) keeps the lock for 30 s.
    #[inline]
    pub fn acquire(&self, table: &impl Table, me: u32) -> Result<Acquired, Errno> {
        let mine = identity(table, me);
        debug_assert!(
            table.owner(me).load(Relaxed) != 0,
            "a process that takes a lock has its slot"
        );
        if self.0.compare_exchange(0, mine, Acquire, Relaxed).is_ok() {
            return Ok(Acquired::Clean);
        }
        self.acquire_slow(table, mine)
    }

    #[cold]
    fn acquire_slow(&self, table: &impl Table, mine: u32) -> Result<Acquired, Errno> {
        for _ in 0..SPINS {
            spin_loop();
            if self.0.load(Relaxed) == 0
                && self.0.compare_exchange(0, mine, Acquire, Relaxed).is_ok()
            {
                return Ok(Acquired::Clean);
            }
        }
        let waits_for = table.waits_for(slot_of(mine));
        let result = self.wait(table, mine, waits_for);
        if waits_for.load(Relaxed) != 0 {
            waits_for.store(0, Relaxed);
        }
        result
    }

    fn wait(
        &self,
        table: &impl Table,
        mine: u32,
        waits_for: &AtomicU32,
    ) -> Result<Acquired, Errno> {
        let mut turns = 0;
        let mut last = 0;
        loop {
            let word = self.0.load(Relaxed);
            if word == 0 {
                // Other threads may still sleep: keep the waiters bit.
                if self
                    .0
                    .compare_exchange(0, mine | WAITERS, Acquire, Relaxed)
                    .is_ok()
                {
                    return Ok(Acquired::Clean);
                }
                continue;
            }
            let waiting = word | WAITERS;
            if word != waiting
                && self
                    .0
                    .compare_exchange(word, waiting, Relaxed, Relaxed)
                    .is_err()
            {
                continue;
            }
            match futex::wait(&self.0, waiting, WAIT_INTERVAL) {
                Err(Errno::TIMEDOUT) => {
                    let holder = waiting & !WAITERS;
                    if !identity_lives(table, holder)
                        && self
                            .0
                            .compare_exchange(waiting, mine | WAITERS, Acquire, Relaxed)
                            .is_ok()
                    {
                        return Ok(Acquired::Abandoned);
                    }
                    // Counts per holder: a busy lock that changes hands isn't stuck.
                    turns = if holder == last { turns + 1 } else { 0 };
                    last = holder;
                    waits_for.store(holder, Relaxed);
                    if turns >= STOPPED_CHECK_TURNS && turns.is_multiple_of(STOPPED_CHECK_TURNS / 2)
                    {
                        report_if_stopped(table, holder);
                    }
                    if turns > MAX_TURNS {
                        report_timeout(table, holder);
                        return Err(Errno::TIMEDOUT);
                    }
                }
                _ => turns = turns.saturating_sub(1),
            }
        }
    }

    /// Takes the lock unless a living process holds it. Doesn't wait.
    pub fn try_acquire(&self, table: &impl Table, me: u32) -> bool {
        let word = self.0.load(Relaxed);
        (word == 0 || !identity_lives(table, word & !WAITERS))
            && self
                .0
                .compare_exchange(word, identity(table, me) | word & WAITERS, Acquire, Relaxed)
                .is_ok()
    }

    /// Releases the lock.
    #[inline]
    pub fn release(&self) {
        let word = self.0.swap(0, Release);
        assert!(word & HELD != 0, "a lock that is released was held");
        if word & WAITERS != 0 {
            futex::wake(&self.0, 1);
        }
    }

    /// Slot of the process that holds the lock now.
    #[inline]
    pub fn holder(&self) -> Option<u32> {
        self.holder_identity().map(slot_of)
    }

    /// Identity of the process that holds the lock now.
    #[inline]
    pub fn holder_identity(&self) -> Option<u32> {
        let word = self.0.load(Relaxed) & !WAITERS;
        (word & HELD != 0).then_some(word)
    }

    /// Whether no process holds the lock.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.0.load(SeqCst) == 0
    }

    /// Returns the holder's identity if that process no longer lives.
    pub fn stray(&self, table: &impl Table) -> Option<u32> {
        let holder = self.0.load(Acquire) & !WAITERS;
        (holder != 0 && !identity_lives(table, holder)).then_some(holder)
    }
}

/// Reports the process that holds the lock, if it is stopped.
#[cold]
fn report_if_stopped(table: &impl Table, holder: u32) {
    let pid = pid_of_identity(table, holder);
    if !crate::process::is_stopped(pid) || REPORTED.swap(holder, Relaxed) == holder {
        return;
    }
    let mut name = [0; 16];
    let name = crate::process::name(pid, &mut name);
    write_notice(format_args!(
        "waiting for a lock held by process {pid} ({name}), which is stopped; kill -CONT {pid} lets it go on"
    ));
}

/// Reports the process for whose lock the calling thread waited until the time limit.
#[cold]
fn report_timeout(table: &impl Table, holder: u32) {
    let pid = pid_of_identity(table, holder);
    let mut name = [0; 16];
    let name = crate::process::name(pid, &mut name);
    write_notice(format_args!(
        "process {pid} ({name}) has held a lock for 30 s: the operation that needs it fails with ETIMEDOUT; \
         if that process hangs, ending it frees the lock"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomics::AtomicU64;
    use crate::slots::{MAX_PROCESSES, attach};

    #[derive(Default)]
    struct Slot {
        owner: AtomicU64,
        generation: AtomicU32,
        waits_for: AtomicU32,
    }

    struct Slots(Vec<Slot>);

    impl Table for Slots {
        const RESERVED_SLOTS: usize = 4;
        const FIRST: usize = 4;

        fn owner(&self, slot: u32) -> &AtomicU64 {
            &self.0[slot as usize].owner
        }

        fn generation(&self, slot: u32) -> &AtomicU32 {
            &self.0[slot as usize].generation
        }

        fn waits_for(&self, slot: u32) -> &AtomicU32 {
            &self.0[slot as usize].waits_for
        }
    }

    fn slots() -> Slots {
        Slots((0..MAX_PROCESSES).map(|_| Slot::default()).collect())
    }

    #[test]
    fn threads_take_turns_and_none_is_forgotten() {
        let c = slots();
        let me = attach(&c).unwrap();
        let (lock, count) = (Lock::new(), AtomicU32::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..5_000 {
                        assert_eq!(lock.acquire(&c, me), Ok(Acquired::Clean));
                        let n = count.load(Relaxed);
                        std::hint::spin_loop();
                        count.store(n + 1, Relaxed);
                        lock.release();
                    }
                });
            }
        });
        assert_eq!((count.load(Relaxed), lock.holder()), (20_000, None));
    }

    #[test]
    fn the_lock_of_a_dead_owner_passes_on_even_if_its_slot_is_used_again() {
        let c = slots();
        let me = attach(&c).unwrap();
        // A slot whose process has ended: freed by a reaper, then taken by another process.
        let dead = attach(&c).unwrap();
        let lock = Lock::new();
        lock.acquire(&c, dead).unwrap();
        c.generation(dead).fetch_add(1, AcqRel);
        c.owner(dead).store(0, Release);
        assert_eq!(attach(&c).unwrap(), dead);
        let start = std::time::Instant::now();
        assert_eq!(lock.acquire(&c, me), Ok(Acquired::Abandoned));
        assert!(start.elapsed() < Duration::from_secs(1));
        lock.release();
        assert_eq!(lock.acquire(&c, me), Ok(Acquired::Clean));
    }
}

//! Sections, and moments at which none is under way.
//!
//! Some changes take several steps that only together make sense: pages are taken, then
//! noted; a reference is counted, then stored. A process that dies in between leaves
//! something that no trace leads to. Such changes are made inside a [`Section`], which is
//! counted in the process's slot. Two things follow:
//! - A process that died outside of all sections has lost nothing: [`Store::reap`] finds
//!   whatever it held.
//! - When no section is under way in any living process, everything can be counted anew:
//!   what is neither noted nor in the hands of anyone is lost and can be taken back.
//!   [`Store::quiet`] brings such a moment about, without asking anybody to leave.
//!
//! A section begins before any lock of a live entry, a shard or a bucket is taken, never
//! inside (sections nest, though): who asks for quiet would wait for those who wait for it.

use crate::Store;
use crate::control::{Control, MAX_PROCESSES, Process};
use crate::process::{self, Critical};
use forebay_media::atomics::{AtomicU32, Ordering::*, fence, yield_now};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::time::{Duration, Instant};

#[cfg(not(loom))]
thread_local! {
    /// Sections that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}
#[cfg(loom)]
forebay_media::atomics::loom::thread_local! {
    static DEPTH: Cell<u32> = Cell::new(0);
}

/// Several steps that only together make sense. See above.
pub struct Section<'a> {
    /// None in a section inside another.
    count: Option<&'a AtomicU32>,
    _critical: Critical,
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        DEPTH.with(|d| d.set(d.get() - 1));
        if let Some(count) = self.count {
            count.fetch_sub(1, Release);
        }
    }
}

/// A moment at which no section is under way; none begins before it is dropped.
pub(crate) struct Quiet<'a> {
    control: &'a Control,
    _critical: Critical,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.control.header().quiet.release();
    }
}

/// A vfork child may have died in a section, on this thread.
pub(crate) fn forget_sections() {
    DEPTH.with(|d| d.set(0));
}

impl Store {
    /// Begins a section, waiting for the end of a quiet moment if there is one.
    ///
    /// # Errors
    /// ETIMEDOUT if that doesn't end; EAGAIN if this process can't attach.
    pub fn section(&self) -> Result<Section<'_>> {
        let critical = Critical::enter();
        if DEPTH.with(Cell::get) > 0 {
            DEPTH.with(|d| d.set(d.get() + 1));
            return Ok(Section {
                count: None,
                _critical: critical,
            });
        }
        let me = self.me()?;
        let count = &self.control.process(me as usize).in_flight;
        let quiet = &self.control.header().quiet;
        loop {
            count.fetch_add(1, SeqCst);
            if quiet.is_free() {
                break;
            }
            count.fetch_sub(1, SeqCst);
            quiet.acquire(&self.control, me)?;
            quiet.release();
        }
        DEPTH.with(|d| d.set(1));
        Ok(Section {
            count: Some(count),
            _critical: critical,
        })
    }

    /// Waits for all sections under way to end, keeping new ones from beginning, for at most
    /// `patience`. Not to be called inside a section.
    ///
    /// # Errors
    /// EBUSY if one doesn't end in time.
    pub(crate) fn quiet(&self, patience: Duration) -> Result<Quiet<'_>> {
        debug_assert_eq!(DEPTH.with(Cell::get), 0);
        let me = self.me()?;
        let critical = Critical::enter();
        // Nobody is to wait for one that won't move anyway.
        if self.in_sections().any(|(_, pid)| process::is_stopped(pid)) {
            return Err(Errno::BUSY);
        }
        self.control.header().quiet.acquire(&self.control, me)?;
        let quiet = Quiet {
            control: &self.control,
            _critical: critical,
        };
        fence(SeqCst);
        let until = Instant::now() + patience;
        for slot in 0..MAX_PROCESSES {
            let p = self.control.process(slot);
            let mut turns = 0u32;
            while p.in_flight.load(SeqCst) != 0 {
                turns += 1;
                if turns < 100 {
                    yield_now();
                    continue;
                }
                if turns.is_multiple_of(16) && !lives(&self.control, slot) {
                    break;
                }
                if Instant::now() > until {
                    return Err(Errno::BUSY);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(quiet)
    }

    /// Slots and process ids of the living processes that are in sections just now.
    pub(crate) fn in_sections(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..MAX_PROCESSES)
            .filter(|&i| self.control.process(i).in_flight.load(Acquire) != 0)
            .filter(|&i| lives(&self.control, i))
            .map(|i| (i as u32, pid_in(self.control.process(i))))
    }
}

fn pid_in(p: &Process) -> u32 {
    process::pid_of(p.owner.load(Acquire))
}

fn lives(control: &Control, slot: usize) -> bool {
    process::identity_lives(control, process::identity(control, slot as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::tests::store;

    #[test]
    fn quiet_waits_for_sections_and_keeps_new_ones_out() {
        let s = store("quiet-sections");
        s.me().unwrap();
        let section = s.section().unwrap();
        let inner = s.section().unwrap();
        std::thread::scope(|scope| {
            let short = Duration::from_millis(30);
            let s: &Store = &s;
            let asked = scope.spawn(move || s_quiet(s, short));
            assert_eq!(asked.join().unwrap().1, Err(Errno::BUSY));
        });
        drop((inner, section));
    }

    fn s_quiet(s: &Store, patience: Duration) -> (Duration, Result<()>) {
        let began = Instant::now();
        let result = s.quiet(patience).map(drop);
        (began.elapsed(), result)
    }

    #[test]
    fn a_section_waits_for_the_end_of_a_quiet_moment() {
        let s = store("quiet-wait");
        let quiet = s.quiet(Duration::from_secs(1)).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let began = Instant::now();
                drop(s.section().unwrap());
                began.elapsed()
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!other.is_finished());
            drop(quiet);
            assert!(other.join().unwrap() >= Duration::from_millis(40));
        });
    }

    #[test]
    fn a_dead_process_in_a_section_is_not_waited_for() {
        let s = store("quiet-dead");
        s.me().unwrap();
        let dead = process::attach(&s.control).unwrap();
        s.control.process(dead as usize).in_flight.store(1, Relaxed);
        // A start time that no process has: as good as dead.
        let owner = &s.control.process(dead as usize).owner;
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
        let (took, result) = s_quiet(&s, Duration::from_secs(5));
        assert_eq!(result, Ok(()));
        assert!(took < Duration::from_secs(1));
    }
}

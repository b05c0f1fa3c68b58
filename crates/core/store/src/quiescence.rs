//! Sections (operations in flight), and quiescence: a moment at which no process is in a section.
//!
//! Some changes take several steps: pages are taken, then recorded; a reference is counted, then
//! stored. A process that dies between two steps leaves something that no record leads to. Such
//! changes are made inside a [`Section`], which is counted in the process's slot. Sections
//! guarantee:
//! - A process that died outside of all sections has lost nothing: [`crate::views::Recovery::reap`]
//!   finds everything that it held.
//! - During quiescence everything can be counted again: what is neither recorded nor held by a
//!   process is lost, and is taken back. [`quiet`] waits for such a moment and keeps new sections
//!   from beginning.
//!
//! A section begins before any lock of a live entry, a shard or a bucket is taken, never under one:
//! otherwise [`quiet`] and the holder of the lock would wait for each other. Sections nest. This
//! module knows the control region only; [`crate::Store::section`] supplies the process's slot.

use crate::control_region::{Control, MAX_PROCESSES, Process};
use crate::process::{self, Critical};
use forebay_runtime::atomics::{AtomicU32, Ordering::*, fence, yield_now};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Number of stores whose nesting depth a thread caches: programs may use several pools, and
/// nodes that run in one process call each other inside sections. For further stores every nested
/// section is counted separately.
const STORES: usize = 4;

/// The sections that a thread is in.
struct Mine {
    /// For each store, the number of its sections in progress; entries without any are free.
    of: [(Cell<*const Control>, Cell<u32>); STORES],
}

impl Mine {
    const fn new() -> Mine {
        Mine {
            of: [const { (Cell::new(std::ptr::null()), Cell::new(0)) }; STORES],
        }
    }

    /// Index of the entry of this store, if the thread is in a section of it.
    fn find(&self, control: &Control) -> Option<usize> {
        let is =
            |(of, depth): &(Cell<_>, Cell<u32>)| depth.get() > 0 && of.get() == &raw const *control;
        self.of.iter().position(is)
    }

    /// Records the first section of a store. Returns the index of its entry; None if all entries
    /// are taken.
    fn begin(&self, control: &Control) -> Option<usize> {
        let place = self.of.iter().position(|(_, depth)| depth.get() == 0)?;
        debug_assert_eq!(self.find(control), None, "a store has one place");
        self.of[place].0.set(control);
        self.of[place].1.set(1);
        Some(place)
    }

    fn change(&self, place: usize, by: i32) {
        let depth = &self.of[place].1;
        debug_assert!(by > 0 || depth.get() > 0, "a section that ends has begun");
        depth.set(depth.get().wrapping_add_signed(by));
    }
}

#[cfg(not(loom))]
thread_local! {
    static MINE: Mine = const { Mine::new() };
}
#[cfg(loom)]
forebay_runtime::atomics::loom::thread_local! {
    static MINE: Mine = Mine::new();
}

/// A section: see the head of this file. The section ends when this value is dropped.
pub struct Section<'a> {
    /// The process's number of sections; None for a section inside another one of this store.
    count: Option<&'a AtomicU32>,
    /// Index of the entry in which this thread counts the section.
    place: Option<usize>,
    _critical: Critical,
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            MINE.with(|m| m.change(place, -1));
        }
        if let Some(count) = self.count {
            let before = count.fetch_sub(1, Release);
            debug_assert!(before > 0, "a section that ends is counted");
        }
    }
}

/// Quiescence: no section begins as long as this value exists.
pub(crate) struct Quiet<'a> {
    control: &'a Control,
    _critical: Critical,
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.control.header().quiet.release();
    }
}

/// Forgets the sections of this thread: a vfork child may have died in one.
pub(crate) fn forget_sections() {
    MINE.with(|m| m.of.iter().for_each(|(_, depth)| depth.set(0)));
}

/// Begins a section of the process in `slot()`, waiting for the end of quiescence if there is one.
/// `slot` is only called for the first of nested sections.
///
/// # Errors
/// Those of `slot`; ETIMEDOUT if quiescence doesn't end.
#[inline]
pub(crate) fn begin<'a>(
    control: &'a Control,
    slot: impl FnOnce() -> Result<u32>,
) -> Result<Section<'a>> {
    let critical = Critical::enter();
    match MINE.with(|m| m.find(control).inspect(|&place| m.change(place, 1))) {
        Some(place) => Ok(Section {
            count: None,
            place: Some(place),
            _critical: critical,
        }),
        None => begin_first(control, slot()?, critical),
    }
}

/// Begins the first section of a thread in a store. `me` is the process's slot.
fn begin_first(control: &Control, me: u32, critical: Critical) -> Result<Section<'_>> {
    let count = &control.process(me as usize).in_flight;
    let quiet = &control.header().quiet;
    loop {
        count.fetch_add(1, SeqCst);
        if quiet.is_free() {
            break;
        }
        count.fetch_sub(1, SeqCst);
        quiet.acquire(control, me)?;
        quiet.release();
    }
    Ok(Section {
        count: Some(count),
        place: MINE.with(|m| m.begin(control)),
        _critical: critical,
    })
}

/// For the process in slot `me`, waits until all sections have ended, and keeps new ones from
/// beginning. Waits for `timeout` at most. Not to be called inside a section.
///
/// # Errors
/// EBUSY if a section doesn't end in time, or the process that is in it is stopped.
pub(crate) fn quiet(control: &Control, me: u32, timeout: Duration) -> Result<Quiet<'_>> {
    debug_assert_eq!(MINE.with(|m| m.find(control)), None);
    let critical = Critical::enter();
    // A stopped process won't leave its section, so quiescence isn't tried: the attempt would only
    // make other processes wait.
    if in_sections(control).any(|(_, pid)| process::is_stopped(pid)) {
        return Err(Errno::BUSY);
    }
    control.header().quiet.acquire(control, me)?;
    let quiet = Quiet {
        control,
        _critical: critical,
    };
    fence(SeqCst);
    let until = Instant::now() + timeout;
    for slot in 0..MAX_PROCESSES {
        let p = control.process(slot);
        let mut turns = 0u32;
        while p.in_flight.load(SeqCst) != 0 {
            turns += 1;
            if turns < 100 {
                yield_now();
                continue;
            }
            if turns.is_multiple_of(16) && !lives(control, slot) {
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

/// Slots and process ids of the living processes that are in sections now.
pub(crate) fn in_sections(control: &Control) -> impl Iterator<Item = (u32, u32)> + '_ {
    (0..MAX_PROCESSES)
        .filter(|&i| control.process(i).in_flight.load(Acquire) != 0)
        .filter(|&i| lives(control, i))
        .map(|i| (i as u32, pid_in(control.process(i))))
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
    use crate::Store;
    use crate::repair::tests::store;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn quiet_waits_for_sections_and_keeps_new_ones_out() {
        let s = store("quiet-sections");
        s.process_slot().unwrap();
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

    #[test]
    fn sections_of_several_stores_are_counted_each() {
        let all: Vec<_> = (0..STORES + 2)
            .map(|n| store(&format!("quiet-several-{n}")))
            .collect();
        let count = |s: &Store| {
            let me = s.process_slot().unwrap();
            s.control.process(me as usize).in_flight.load(Relaxed)
        };
        // Sections of all stores, and inside them a second section of each.
        let outer: Vec<_> = all.iter().map(|s| s.section().unwrap()).collect();
        let inner: Vec<_> = all.iter().map(|s| s.section().unwrap()).collect();
        for (n, s) in all.iter().enumerate() {
            // Beyond the number of cached stores, inner sections are counted too.
            assert_eq!(count(s), 1 + u32::from(n >= STORES), "store {n}");
        }
        drop(inner);
        assert!(all.iter().all(|s| count(s) == 1));
        drop(outer);
        assert!(all.iter().all(|s| count(s) == 0));
        drop(all[5].section().unwrap());
        assert_eq!(count(&all[5]), 0);
    }

    fn s_quiet(s: &Store, timeout: Duration) -> (Duration, Result<()>) {
        let began = Instant::now();
        let result = s.quiet(timeout).map(drop);
        (began.elapsed(), result)
    }

    #[test]
    fn a_section_waits_for_the_end_of_a_quiet_moment() {
        let s = store("quiet-wait");
        let quiet = s.quiet(Duration::from_secs(1)).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let section = s.section().unwrap();
                let began_after = is_over.load(SeqCst);
                drop(section);
                began_after
            });
            // The thread waits at this point, or hasn't begun yet: the test can't distinguish these
            // states, and both are right.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!other.is_finished());
            is_over.store(true, SeqCst);
            drop(quiet);
            assert!(other.join().unwrap());
        });
    }

    #[test]
    fn a_dead_process_in_a_section_is_not_waited_for() {
        let s = store("quiet-dead");
        s.process_slot().unwrap();
        let dead = process::attach(&s.control).unwrap();
        s.control.process(dead as usize).in_flight.store(1, Relaxed);
        // No process has this start time, so the process counts as dead.
        let owner = &s.control.process(dead as usize).owner;
        owner.store(owner.load(Relaxed) ^ 1, Relaxed);
        let (took, result) = s_quiet(&s, Duration::from_secs(5));
        assert_eq!(result, Ok(()));
        assert!(took < Duration::from_secs(1));
    }
}

//! Waits for a lock until it is granted, a signal arrives, or a deadlock is found.
//!
//! While a thread waits for a lock of its process, its wait is published in the process's slot,
//! where searches for deadlocks find it. The wait is withdrawn before a signal handler of the
//! program runs, since the handler may never return. If all handlers that ran have SA_RESTART, the
//! wait continues afterwards.

use super::{Owner, Request, Sort, Waited};
use crate::control_region::Wait;
use crate::process::{self, Critical};
use crate::views::LockTable;
use crate::{NodeId, Store};
use forebay_runtime::atomics::Ordering::*;
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time from the beginning of a wait to the first search for a deadlock over several nodes.
const FIRST_SEARCH: Duration = Duration::from_millis(10);
/// Maximum time from one search over several nodes to the next.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Value of [`Wait::stamp`] while the wait is being written.
const WRITING: u64 = 1;

struct Here {
    /// The wait that this thread has published.
    wait: Cell<*const Wait>,
    /// Whether a handler of the program has run.
    handled: Cell<bool>,
    /// Whether a handler without SA_RESTART has run, which interrupts the wait.
    interrupted: Cell<bool>,
    /// A flag by which another thread can end the wait; or null.
    cancel: Cell<*const AtomicBool>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            wait: Cell::new(std::ptr::null()),
            handled: Cell::new(false),
            interrupted: Cell::new(false),
            cancel: Cell::new(std::ptr::null()),
        }
    };
}

/// Runs `f`. While `f` waits for a lock, another thread can end the wait (EINTR) by setting
/// `cancel`.
pub fn interruptible<T>(cancel: &AtomicBool, f: impl FnOnce() -> T) -> T {
    HERE.with(|here| here.cancel.set(cancel));
    let result = f();
    HERE.with(|here| here.cancel.set(std::ptr::null()));
    result
}

fn is_cancelled(here: &Here) -> bool {
    let cancel = here.cancel.get();
    // SAFETY: `interruptible` borrows the flag, and clears this pointer before it returns.
    !cancel.is_null() && unsafe { (*cancel).load(Acquire) }
}

/// Withdraws this thread's wait, since a handler of the program is about to run on the thread.
/// Called by the code that wraps handlers. `restarts`: the handler has SA_RESTART.
pub fn handler_begins(restarts: bool) {
    HERE.with(|here| {
        withdraw(here);
        here.handled.set(true);
        here.interrupted.set(here.interrupted.get() || !restarts);
    });
}

fn withdraw(here: &Here) {
    let wait = here.wait.replace(std::ptr::null());
    if !wait.is_null() {
        // SAFETY: the wait lies in the control region, which stays mapped as long as the process
        // runs; its fields are atomics.
        unsafe { (*wait).stamp.store(0, Release) };
    }
}

/// Returns a stamp for a lock or a wait: nanoseconds since 1970. An owner's stamps differ and grow,
/// unless the clock is set back.
pub fn stamp() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_nanos() as u64).max(WRITING + 1)
}

/// A thread's wait for a lock.
pub struct Waiting<'a> {
    store: &'a Store,
    request: &'a Request,
    home: NodeId,
    /// Returns whether the waiting process must give up because of a deadlock. If the second
    /// argument is false, examines only the waits that this node knows.
    search: &'a dyn Fn(&Waited, bool) -> Result<bool>,
    /// Stamp of the published wait; 0: nothing is published.
    stamp: u64,
    next_search: Instant,
    gap: Duration,
    searched: bool,
    /// Tick at which the waiting began.
    begin: u64,
}

impl<'a> Waiting<'a> {
    /// Begins to wait for a lock that `home` keeps.
    pub fn new(
        store: &'a Store,
        request: &'a Request,
        home: NodeId,
        search: &'a dyn Fn(&Waited, bool) -> Result<bool>,
    ) -> Waiting<'a> {
        forebay_trace::event!(FILE_LOCK_WAIT_ENTER, request.object.0);
        HERE.with(|here| {
            here.handled.set(false);
            here.interrupted.set(false);
        });
        let mut waiting = Waiting {
            store,
            request,
            home,
            search,
            stamp: 0,
            next_search: Instant::now() + FIRST_SEARCH,
            gap: FIRST_SEARCH,
            searched: false,
            begin: forebay_trace::clock::now(),
        };
        waiting.publish();
        waiting
    }

    /// Whether the wait is for a lock of a process. Waits for locks of descriptions aren't searched
    /// for deadlocks, as in Linux: any process may release such locks.
    fn is_of_process(&self) -> bool {
        self.request.sort == Sort::Range && self.request.owner.pid().is_some()
    }

    fn publish(&mut self) {
        self.stamp = 0;
        if !self.is_of_process() {
            return;
        }
        // No signal handler may run between the claim of a place and the record of the claim.
        let _critical = Critical::enter();
        let slot = self.request.owner.slot as usize;
        let mut places = self.store.control.process(slot).waits.iter();
        let free = places.find(|w| {
            let taken = w.stamp.compare_exchange(0, WRITING, AcqRel, Relaxed);
            taken.is_ok()
        });
        let Some(wait) = free else { return };
        let stamp = stamp();
        wait.object.store(self.request.object.0, Relaxed);
        wait.start.store(self.request.start, Relaxed);
        wait.end.store(self.request.end, Relaxed);
        wait.home.store(self.home.0, Relaxed);
        wait.kind.store(self.request.want as u32, Relaxed);
        wait.stamp.store(stamp, Release);
        HERE.with(|here| here.wait.set(wait));
        self.stamp = stamp;
    }

    /// Searches for a deadlock if that is due. Returns the maximum pause before the next try. Must
    /// be called after each unsuccessful try.
    ///
    /// # Errors
    /// EINTR; EDEADLK.
    pub fn check(&mut self) -> Result<Duration> {
        let (handled, interrupted) = HERE.with(|h| {
            let interrupted = h.interrupted.get() || is_cancelled(h);
            (h.handled.replace(false), interrupted)
        });
        if interrupted {
            return Err(Errno::INTR);
        }
        if handled {
            self.publish();
        }
        let now = Instant::now();
        let due = now >= self.next_search;
        if self.stamp != 0 && (due || !self.searched) {
            // The first search sends no requests to other nodes, since most waits are short.
            let mine = Waited {
                stamp: self.stamp,
                home: self.home,
                request: *self.request,
            };
            if (self.search)(&mine, due)? {
                return Err(Errno::DEADLK);
            }
            self.searched = true;
        }
        if due {
            self.gap = (self.gap * 2).min(MAX_GAP);
            self.next_search = now + self.gap;
        }
        Ok(self.next_search.saturating_duration_since(now))
    }

    /// Returns EINTR after a sleep that ended with EINTR, unless this library wraps all handlers of
    /// the program.
    pub fn interrupted(&self) -> Result<()> {
        if process::delivers() {
            // `check` knows whether a handler ran, and whether it has SA_RESTART.
            Ok(())
        } else {
            Err(Errno::INTR)
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        forebay_trace::event!(FILE_LOCK_WAIT_EXIT, self.request.object.0);
        forebay_trace::count::waited(self.begin);
        let _critical = Critical::enter();
        HERE.with(withdraw);
    }
}

impl LockTable<'_> {
    /// Returns the waits of the threads of a process of this node.
    pub fn waits_of(&self, owner: Owner) -> Vec<Waited> {
        if !self.is_in_its_slot(owner) {
            return Vec::new();
        }
        let places = &self.store.control.process(owner.slot as usize).waits;
        places
            .iter()
            .filter_map(|w| {
                let stamp = w.stamp.load(Acquire);
                let waited = Waited {
                    stamp,
                    home: NodeId(w.home.load(Relaxed)),
                    request: Request {
                        object: crate::ObjectId(w.object.load(Relaxed)),
                        owner,
                        sort: Sort::Range,
                        want: super::LockType::of(w.kind.load(Relaxed))?,
                        start: w.start.load(Relaxed),
                        end: w.end.load(Relaxed),
                    },
                };
                forebay_runtime::atomics::fence(Acquire);
                let same = stamp > WRITING && w.stamp.load(Relaxed) == stamp;
                same.then_some(waited)
            })
            .collect()
    }

    /// Removes the waits from a slot that is free again, or whose process has executed another
    /// program.
    pub(crate) fn forget_waits(&self, slot: u32) {
        for wait in &self.store.control.process(slot as usize).waits {
            wait.stamp.store(0, Release);
        }
    }
}

//! How many threads take requests.
//!
//! The kernel wakes those that wait for requests in turn, and to wake a thread costs more than most
//! answers: so there are few. More are called where a request is known to take long; and, by a
//! thread that looks every 5 ms, where requests take long all the same or come faster than these few
//! can answer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Threads that answer, at most. Requests beyond wait in the kernel.
const MOST_WORKERS: usize = 64;
/// How long a thread rests before it ends.
const REST: Duration = Duration::from_secs(10);
/// How long all threads may be busy until another one is called, at least; twice as long at most.
const TICK: Duration = Duration::from_millis(5);
/// After so many ticks without a request nobody looks any more, until one comes.
const QUIET: usize = 20;
/// With fewer requests in a tick nothing is concluded from them.
const TELLING: usize = 64;

/// Starts one more thread.
type Starter<'a> = &'a dyn Fn() -> io::Result<()>;

/// The threads of a mount that take requests.
pub struct Crew {
    /// Threads that wait for a request, or have been called to.
    waiting: AtomicUsize,
    /// How many of them there shall be; who would be one more rests.
    wanted: AtomicUsize,
    /// Of [`Crew::wanted`], at least and at most.
    least: AtomicUsize,
    enough: usize,
    /// Requests that were taken; those of them that were there already and nobody else waited for any, and those when all others did.
    taken: AtomicUsize,
    taken_by_last: AtomicUsize,
    taken_among_all: AtomicUsize,
    /// Nobody looks.
    is_unwatched: AtomicBool,
    state: Mutex<State>,
    /// Somebody who rests is called, or the mount is gone.
    called: Condvar,
    /// Somebody shall look.
    watched: Condvar,
    /// The last one has left.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    workers: usize,
    /// Those of them that rest, and how many of these are to come back.
    resting: usize,
    calls: usize,
    /// There are no requests any more.
    is_over: bool,
}

impl Crew {
    /// With at least so many threads that wait for requests.
    pub fn new(least: usize) -> Crew {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Crew {
            waiting: AtomicUsize::new(0),
            wanted: AtomicUsize::new(least),
            least: AtomicUsize::new(least),
            enough: (cores / 2).clamp(least, MOST_WORKERS),
            taken: AtomicUsize::new(0),
            taken_by_last: AtomicUsize::new(0),
            taken_among_all: AtomicUsize::new(0),
            is_unwatched: AtomicBool::new(false),
            state: Mutex::default(),
            called: Condvar::new(),
            watched: Condvar::new(),
            ended: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least so many threads shall wait from now on.
    ///
    /// # Errors
    /// As [`Crew::one_more`].
    pub fn at_least(&self, n: usize, start: Starter<'_>) -> io::Result<()> {
        self.least.store(n, Relaxed);
        if self.wanted.fetch_max(n, Relaxed) < n {
            return self.one_more(start);
        }
        Ok(())
    }

    /// Those who wait may be awake. Not where two have to wait even if one were enough: beside one that is awake,
    /// the other would be woken for nothing.
    pub fn may_be_awake(&self) -> bool {
        self.least.load(Relaxed) == 1
    }

    /// The calling thread has taken a request, which may have been there when it came for it; true if nobody waits for the next one.
    pub fn takes(&self, was_there: bool) -> bool {
        let others = self.waiting.fetch_sub(1, SeqCst) - 1;
        self.taken.fetch_add(1, SeqCst);
        if others == 0 && was_there {
            self.taken_by_last.fetch_add(1, Relaxed);
        }
        if others + 1 >= self.wanted.load(Relaxed) {
            self.taken_among_all.fetch_add(1, Relaxed);
        }
        if self.is_unwatched.load(SeqCst) && self.is_unwatched.swap(false, SeqCst) {
            let _state = self.state();
            self.watched.notify_one();
        }
        others == 0
    }

    /// The calling thread has answered: whether it shall take another request. It may have
    /// rested before it is told.
    pub fn goes_on(&self) -> bool {
        if self.waiting.load(Acquire) < self.wanted.load(Relaxed) {
            self.waiting.fetch_add(1, SeqCst);
            return true;
        }
        let mut state = self.state();
        state.resting += 1;
        let uncalled = |s: &mut State| s.calls == 0 && !s.is_over;
        let waited = self.called.wait_timeout_while(state, REST, uncalled);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.resting -= 1;
        let is_called = state.calls > 0;
        state.calls -= usize::from(is_called);
        is_called
    }

    /// Has one more thread wait for requests, if there aren't too many. Where that fails, those that are
    /// there go on.
    pub fn one_more(&self, start: Starter<'_>) -> io::Result<()> {
        let mut state = self.state();
        if state.resting > state.calls {
            state.calls += 1;
            self.waiting.fetch_add(1, SeqCst);
            self.called.notify_one();
            return Ok(());
        }
        if state.workers >= MOST_WORKERS || state.is_over {
            return Ok(());
        }
        // Before it takes a request.
        self.waiting.fetch_add(1, SeqCst);
        match start() {
            Ok(()) => state.workers += 1,
            Err(e) => {
                self.waiting.fetch_sub(1, SeqCst);
                return Err(e);
            }
        }
        Ok(())
    }

    /// There are no requests any more.
    pub fn end(&self) {
        self.state().is_over = true;
        self.called.notify_all();
        self.watched.notify_all();
    }

    /// The calling thread, one of the crew, ends.
    pub fn leave(&self) {
        let mut state = self.state();
        state.workers -= 1;
        if state.workers == 0 {
            self.ended.notify_all();
        }
    }

    /// Until all have left.
    pub fn wait_for_the_end(&self) {
        let state = self.state();
        drop(self.ended.wait_while(state, |s| s.workers > 0));
    }

    /// Looks after the others until the mount is gone.
    pub fn watch(&self, start: Starter<'_>) {
        let counts =
            || [&self.taken, &self.taken_by_last, &self.taken_among_all].map(|c| c.load(SeqCst));
        let (mut before, mut quiet) = (counts(), 0);
        loop {
            std::thread::sleep(TICK);
            if self.state().is_over {
                return;
            }
            let now = counts();
            let [taken, by_last, among_all] = [0, 1, 2].map(|i| now[i].wrapping_sub(before[i]));
            before = now;
            let nobody = self.waiting.load(SeqCst) == 0;
            let is_scarce = by_last * 2 > taken;
            let wanted = self.wanted.load(Relaxed);
            let grows = taken >= TELLING && is_scarce && wanted < self.enough;
            if grows {
                self.wanted.store(wanted + 1, Relaxed);
            }
            let is_stuck = nobody && taken < TELLING && (taken == 0 || is_scarce);
            if grows || is_stuck {
                // There are too few, or they are held up, or wait for a disk.
                let _ = self.one_more(start);
            }
            if taken < TELLING || grows {
                // Says nothing.
            } else if among_all * 10 > taken * 9 && wanted > self.least.load(Relaxed) {
                self.wanted.store(wanted - 1, Relaxed);
            }
            quiet = if taken == 0 && !nobody { quiet + 1 } else { 0 };
            if quiet >= QUIET && !self.sleep(now[0]) {
                return;
            }
        }
    }

    /// Until there is a request after `taken` others; false if the mount is gone.
    fn sleep(&self, taken: usize) -> bool {
        let state = self.state();
        self.is_unwatched.store(true, SeqCst);
        let none = |s: &mut State| {
            !s.is_over && self.is_unwatched.load(SeqCst) && self.taken.load(SeqCst) == taken
        };
        let woken = self.watched.wait_while(state, none);
        let state = woken.unwrap_or_else(PoisonError::into_inner);
        self.is_unwatched.store(false, SeqCst);
        !state.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    /// Until `n` threads were started, by the count.
    fn wait_for(started: &AtomicUsize, n: usize) {
        let begun = Instant::now();
        while started.load(SeqCst) < n {
            assert!(begun.elapsed() < Duration::from_secs(20), "{n} threads");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn somebody_comes_when_all_are_held_up() {
        let (crew, started) = (Crew::new(2), AtomicUsize::new(0));
        let start = || {
            started.fetch_add(1, SeqCst);
            Ok(())
        };
        std::thread::scope(|s| {
            crew.one_more(&start).unwrap();
            s.spawn(|| crew.watch(&start));
            // It takes a request, and doesn't come back; nor do those that are started then.
            for n in 1..5 {
                assert!(crew.takes(true));
                wait_for(&started, n + 1);
            }
            // One waits: enough, whatever time passes; also when nobody looks any more.
            std::thread::sleep(TICK * (QUIET as u32 + 10));
            assert_eq!(started.load(SeqCst), 5);
            assert!(crew.is_unwatched.load(SeqCst));
            assert!(crew.takes(true));
            wait_for(&started, 6);
            // Those who are done wait, as many as are wanted; the others rest.
            assert!(crew.goes_on());
            assert_eq!(crew.waiting.load(SeqCst), 2);
            let resting = s.spawn(|| crew.goes_on());
            while crew.state().resting == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            crew.one_more(&start).unwrap();
            assert!(resting.join().unwrap());
            assert_eq!(started.load(SeqCst), 6);
            crew.end();
        });
    }

    #[test]
    fn there_are_as_many_as_shall_be() {
        let (crew, started) = (Crew::new(1), AtomicUsize::new(0));
        let start = || {
            started.fetch_add(1, SeqCst);
            Ok(())
        };
        let is_one = || crew.wanted.load(SeqCst) == 1;
        crew.one_more(&start).unwrap();
        assert!(crew.may_be_awake() && is_one());
        for _ in 0..3 {
            crew.at_least(2, &start).unwrap();
            assert!(!crew.may_be_awake() && !is_one());
            assert_eq!(started.load(SeqCst), 2);
        }
        // One of them is too many now, once it is seen that they have little to do.
        crew.at_least(1, &start).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| crew.watch(&start));
            let begun = Instant::now();
            while !is_one() {
                assert!(begun.elapsed() < Duration::from_secs(20));
                crew.takes(false);
                crew.waiting.fetch_add(1, SeqCst);
            }
            // Where requests are there already there are more: half as many as cores, at most.
            let mine = crew.waiting.swap(1, SeqCst);
            assert!(mine >= 1);
            while begun.elapsed() < Duration::from_millis(100) {
                crew.takes(true);
                crew.waiting.store(1, SeqCst);
            }
            crew.end();
        });
        assert!(crew.wanted.load(SeqCst) <= crew.enough);
        assert!(crew.enough == 1 || !is_one());
    }
}

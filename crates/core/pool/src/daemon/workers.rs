//! The worker pool that carries out requests. A thread is started when there is work and no idle
//! thread, up to a limit. A thread ends when fewer threads would have sufficed for a while.
//! Occasional work, which wakes one thread after the other, keeps only one thread alive.

use forebay_runtime::threads::{STACK, lock, start};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread without work waits before it ends.
const STAYS: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopped: bool,
    /// The last time when work found no idle thread, or took the last idle thread.
    short: Option<Instant>,
}

/// The threads of one class.
pub struct Workers {
    name: &'static str,
    most: usize,
    state: Mutex<State>,
    wake: Condvar,
}

impl Workers {
    /// A pool of at most `most` threads of this name.
    pub fn new(name: &'static str, most: usize) -> Arc<Workers> {
        Arc::new(Workers {
            name,
            most,
            state: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    /// Queues `job` for a thread; starts one if none is idle and the limit isn't reached.
    pub fn submit(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        if state.stopped {
            return;
        }
        state.queue.push_back(job);
        if state.queue.len() >= state.idle {
            state.short = Some(Instant::now());
        }
        if state.queue.len() <= state.idle {
            drop(state);
            return self.wake.notify_one();
        }
        if state.threads == self.most {
            return;
        }
        state.threads += 1;
        assert!(state.threads <= self.most, "workers have a limit");
        drop(state);
        let this = self.clone();
        let thread = std::thread::Builder::new().name(self.name.into());
        if start(thread, STACK, 0, move || this.run()).is_err() {
            // Other threads carry the job out later. If there are none, the requester's timeout
            // bounds the wait.
            let mut state = lock(&self.state);
            assert!(state.threads > 0, "a thread that didn't start was counted");
            state.threads -= 1;
        }
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
                continue;
            }
            let needed = state.short.is_none_or(|t| t.elapsed() < STAYS);
            if state.stopped || !needed && state.idle > 0 {
                break;
            }
            state.idle += 1;
            let (after, timeout) = self
                .wake
                .wait_timeout(state, STAYS)
                .unwrap_or_else(PoisonError::into_inner);
            state = after;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    /// Makes the threads end when they have finished their present jobs; drops queued jobs.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopped = true;
        state.queue.clear();
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::*};

    #[test]
    fn work_is_spread_over_a_bounded_number_of_threads() {
        let workers = Workers::new("test", 4);
        // Number of jobs that run now, their maximum so far, and number of finished jobs.
        let counts = Arc::new(<(AtomicUsize, AtomicUsize, AtomicUsize)>::default());
        for _ in 0..100 {
            let counts = counts.clone();
            workers.submit(Box::new(move || {
                let now = counts.0.fetch_add(1, SeqCst) + 1;
                counts.1.fetch_max(now, SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                counts.0.fetch_sub(1, SeqCst);
                counts.2.fetch_add(1, SeqCst);
            }));
        }
        for _ in 0..2000 {
            if counts.2.load(SeqCst) == 100 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(counts.2.load(SeqCst), 100);
        assert_eq!(counts.1.load(SeqCst), 4);
        workers.stop();
    }
}

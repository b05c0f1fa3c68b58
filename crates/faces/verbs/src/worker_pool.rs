//! The worker pool that runs batches: a few threads for each session, started when there is work.
//!
//! Threads take operations of all batches in the order in which the operations became ready. A
//! batch whose operations wait for each other leaves threads to other batches. Worker threads block
//! all signals, so that the kernel delivers them to the program's threads.

use crate::process::{Generation, block_signals};
use crate::{Error, Result};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, available_parallelism};

/// Maximum number of operations in progress in one session.
pub(crate) const IN_PROGRESS_MAX: usize = 1 << 20;

/// A function that a worker thread runs.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    threads: Vec<JoinHandle<()>>,
    /// Number of threads that wait for a task.
    idle: usize,
    ending: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals that a task was queued, or that the pool ends.
    news: Condvar,
}

impl Shared {}

/// The worker pool of a session.
pub(crate) struct WorkerPool {
    shared: Arc<Shared>,
    /// Number of operations of the batches that were started and haven't ended.
    in_progress: AtomicUsize,
    /// Maximum number of threads.
    most: usize,
    generation: Generation,
}

/// Maximum number of threads if operations send requests to other nodes. Most threads then wait, so
/// this is also the number of requests in flight at once.
const ASKING: usize = 32;

impl WorkerPool {
    /// Returns a pool for operations. `asks`: whether the operations wait for replies of other
    /// nodes.
    pub fn new(asks: bool) -> WorkerPool {
        WorkerPool::of(if asks {
            ASKING
        } else {
            available_parallelism().map_or(2, |n| n.get().clamp(2, 8))
        })
    }

    /// Returns a pool of at most `most` threads. The pool starts without threads.
    pub fn of(most: usize) -> WorkerPool {
        WorkerPool {
            shared: Arc::default(),
            in_progress: AtomicUsize::new(0),
            most,
            generation: Generation::now(),
        }
    }

    /// Adds to the number of operations in progress.
    ///
    /// # Errors
    /// EAGAIN if more than [`IN_PROGRESS_MAX`] would be in progress.
    pub fn enter(&self, operations: usize) -> Result<()> {
        let before = self.in_progress.fetch_add(operations, Relaxed);
        if before > 0 && before + operations > IN_PROGRESS_MAX {
            self.leave(operations);
            let text = format!(
                "{before} operations of this session are in progress; with these {operations} they would be \
                 more than {IN_PROGRESS_MAX}: wait for a batch first"
            );
            return Err(Error::new(Errno::AGAIN, text));
        }
        Ok(())
    }

    /// Subtracts from the number of operations in progress.
    pub fn leave(&self, operations: usize) {
        self.in_progress.fetch_sub(operations, Relaxed);
    }

    /// Queues tasks.
    ///
    /// # Errors
    /// If the pool has no thread, and none can be started. No task is queued then.
    pub fn push(&self, tasks: impl ExactSizeIterator<Item = Task>) -> Result<()> {
        let mut queue = lock(&self.shared.queue);
        let wanted = (queue.tasks.len() + tasks.len()).saturating_sub(queue.idle);
        for _ in 0..wanted.min(self.most.saturating_sub(queue.threads.len())) {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("iov".into());
            match thread.spawn(move || work(&shared)) {
                Ok(thread) => queue.threads.push(thread),
                // The threads that exist take the tasks.
                Err(_) if !queue.threads.is_empty() => break,
                Err(e) => {
                    let errno = e.raw_os_error().unwrap_or(libc::EAGAIN);
                    let errno = Errno::from_raw_os_error(errno);
                    return Err(Error::of("can't start a thread for batches", errno));
                }
            }
        }
        let wanted = tasks.len().min(queue.idle);
        queue.tasks.extend(tasks);
        drop(queue);
        // Threads that are already awake take further tasks before they sleep.
        (0..wanted).for_each(|_| self.shared.news.notify_one());
        Ok(())
    }
}

fn work(shared: &Shared) {
    block_signals();
    let mut queue = lock(&shared.queue);
    loop {
        if let Some(task) = queue.tasks.pop_front() {
            drop(queue);
            task();
            queue = lock(&shared.queue);
            continue;
        }
        if queue.ending {
            return;
        }
        queue.idle += 1;
        queue = shared
            .news
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        // A forked child has no worker threads, and the lock may stay held there for ever.
        if !self.generation.is_now() {
            std::mem::forget(self.shared.clone());
            return;
        }
        let threads = {
            let mut queue = lock(&self.shared.queue);
            queue.ending = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.news.notify_all();
        // A worker may drop the last handle of the session, but can't wait for itself.
        let me = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

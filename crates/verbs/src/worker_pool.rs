//! The worker pool that runs batches: a few threads for each session, made when there is work.
//!
//! They take operations that nothing holds up any more, in the order in which they became ready,
//! from all batches: a long or slow batch leaves the other threads to others. Signals stay with the
//! program's own threads.

use crate::process::{Generation, block_signals};
use crate::{Error, Result};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};

/// Operations in progress in one session, at most.
pub(crate) const UNDER_WAY_MAX: usize = 1 << 20;

/// Something to run.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    threads: Vec<JoinHandle<()>>,
    /// Threads that wait for a task.
    idle: usize,
    ending: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// A task came, or the end.
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct WorkerPool {
    shared: Arc<Shared>,
    /// Operations of all batches that have begun and not ended.
    under_way: AtomicUsize,
    /// Threads, at most.
    most: usize,
    generation: Generation,
}

/// Threads where operations ask other nodes: most of them wait, and so many questions can be on
/// their way together.
const ASKING: usize = 32;

impl WorkerPool {
    /// For operations. `asks`: whether they wait for other nodes.
    pub fn new(asks: bool) -> WorkerPool {
        WorkerPool::of(match asks {
            true => ASKING,
            false => available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
        })
    }

    /// Of so many threads, at most; without any yet.
    pub fn of(most: usize) -> WorkerPool {
        WorkerPool {
            shared: Arc::default(),
            under_way: AtomicUsize::new(0),
            most,
            generation: Generation::now(),
        }
    }

    /// Counts operations in.
    ///
    /// # Errors
    /// EAGAIN if there would be too many.
    pub fn enter(&self, operations: usize) -> Result<()> {
        let before = self.under_way.fetch_add(operations, Relaxed);
        if before > 0 && before + operations > UNDER_WAY_MAX {
            self.leave(operations);
            let text = format!(
                "{before} operations of this session are under way; with these {operations} they would be \
                 more than {UNDER_WAY_MAX}: wait for a batch first"
            );
            return Err(Error::new(Errno::AGAIN, text));
        }
        Ok(())
    }

    /// Counts them out.
    pub fn leave(&self, operations: usize) {
        self.under_way.fetch_sub(operations, Relaxed);
    }

    /// Queues tasks.
    ///
    /// # Errors
    /// If there is no thread, and none can be made. Nothing is queued then.
    pub fn push(&self, tasks: impl ExactSizeIterator<Item = Task>) -> Result<()> {
        let mut queue = self.shared.lock();
        let wanted = (queue.tasks.len() + tasks.len()).saturating_sub(queue.idle);
        for _ in 0..wanted.min(self.most.saturating_sub(queue.threads.len())) {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("iov".into());
            match thread.spawn(move || work(&shared)) {
                Ok(thread) => queue.threads.push(thread),
                // Those that are there will do.
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
        // A thread that is awake looks for more before it sleeps.
        (0..wanted).for_each(|_| self.shared.news.notify_one());
        Ok(())
    }
}

fn work(shared: &Shared) {
    block_signals();
    let mut queue = shared.lock();
    loop {
        if let Some(task) = queue.tasks.pop_front() {
            drop(queue);
            task();
            queue = shared.lock();
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
        // In a forked child the threads aren't there, and the lock may be held for ever.
        if !self.generation.is_now() {
            std::mem::forget(self.shared.clone());
            return;
        }
        let threads = {
            let mut queue = self.shared.lock();
            queue.ending = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.news.notify_all();
        // The last use of a session may end on one of its own threads.
        let me = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}

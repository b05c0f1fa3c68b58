//! Started batches: which operations may run, their results, waiting and cancelling.

use super::{Batch, CLOSE, Edge, Group, Op, Outcome, Work};
use crate::meta::undo::UndoLog;
use crate::settle::{complete, undo};
use crate::worker_pool::Task;
use crate::{Error, Result, Session};
use forebay_controls::Failure;
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of collections that one task creates or deletes. Bounded so that several threads
/// share a large batch.
const COLLECTIONS_PER_TASK: usize = 256;

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The operation waits for others, or for a thread.
    Waiting,
    /// The operation is being carried out.
    Running,
    /// The operation was carried out.
    Done,
    /// The operation failed.
    Failed,
    /// The operation was never begun: another operation failed, or the batch was cancelled.
    Skipped,
    /// The operation was carried out, and then undone.
    Undone,
}

/// A started batch. Clones refer to the same batch. Dropping them doesn't stop the batch.
#[derive(Clone)]
pub struct Running(Arc<Inner>);

struct Inner {
    session: Session,
    failure: Failure,
    log: Option<Box<dyn UndoLog>>,
    /// For each operation, the operations that wait for it.
    waiters: Vec<Vec<Edge>>,
    progress: Mutex<Progress>,
    /// Signals that the batch has ended.
    end: Condvar,
}

struct Progress {
    operations: Vec<Operation>,
    /// Number of operations whose result isn't known yet.
    open: usize,
    /// The error that made the batch stop: operations that haven't begun are skipped.
    stopped: Option<Error>,
    /// The error of the batch as a whole: the first failure, the cancellation, or a failure to undo
    /// the batch.
    error: Option<Error>,
    ended: bool,
    /// The functions to call when an operation, or the batch, has ended.
    calls: HashMap<Awaited, Vec<Task>>,
}

/// The operation whose end is awaited; None: the whole batch.
type Awaited = Option<Op>;

struct Operation {
    what: &'static str,
    work: Option<Work>,
    /// Number of operations that must end before this one starts.
    left: usize,
    status: Status,
    result: Option<Result<Outcome>>,
}

impl Running {
    pub(super) fn start(batch: Batch) -> Result<Running> {
        let count = batch.operations.len();
        batch.session.workers().enter(count)?;
        let workers = batch.session.clone();
        let started = Running::begin(batch);
        started.inspect_err(|_| workers.workers().leave(count))
    }

    fn begin(batch: Batch) -> Result<Running> {
        let log = match batch.failure {
            Failure::Rollback => Some(batch.session.store().undo_log()?),
            _ => None,
        };
        let mut waiters: Vec<Vec<Edge>> = Vec::new();
        waiters.resize_with(batch.operations.len(), Vec::new);
        let mut operations = Vec::with_capacity(batch.operations.len());
        let mut ready = Vec::new();
        for (number, planned) in (0..).zip(batch.operations) {
            for edge in &planned.after {
                let needs = edge.needs;
                waiters[edge.on as usize].push(Edge { on: number, needs });
            }
            if planned.after.is_empty() {
                ready.push(number);
            }
            operations.push(Operation {
                what: planned.what,
                work: Some(planned.work),
                left: planned.after.len(),
                status: Status::Waiting,
                result: None,
            });
        }
        let inner = Arc::new(Inner {
            session: batch.session,
            failure: batch.failure,
            log,
            waiters,
            progress: Mutex::new(Progress {
                open: operations.len(),
                ended: operations.is_empty(),
                operations,
                stopped: None,
                error: None,
                calls: HashMap::new(),
            }),
            end: Condvar::new(),
        });
        inner.queue_first(ready)?;
        Ok(Running(inner))
    }

    /// Waits until the batch has ended, but at most for `limit`, and returns whether the batch has
    /// ended. None waits without a limit, since the duration of an operation depends on its data.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool> {
        self.0.session.check()?;
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut progress = self.0.lock();
        while !progress.ended {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            progress = match left {
                Some(Duration::ZERO) => return Ok(false),
                Some(left) => {
                    let waited = self.0.end.wait_timeout(progress, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.0.end.wait(progress);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        Ok(true)
    }

    /// Calls `call` once when operation `what`, or with None the batch, has ended. The session's
    /// notifier thread makes the call, with all signals blocked. Returns false, and makes no call,
    /// if the operation or batch has ended already.
    ///
    /// # Errors
    /// EINVAL if no operation has this number; EPERM in a forked child; the errors of starting a
    /// thread.
    pub fn when(&self, what: Option<Op>, call: impl FnOnce() + Send + 'static) -> Result<bool> {
        self.0.session.check()?;
        // This empty task starts the notifier thread here, where a failure can be returned.
        self.0
            .session
            .notifier()
            .push(std::iter::once(Box::new(|| ()) as Task))?;
        let mut progress = self.0.lock();
        let ended = match what {
            None => progress.ended,
            Some(op) => {
                let operation = progress.operations.get(op.0 as usize);
                operation.ok_or_else(|| none(op))?.result.is_some()
            }
        };
        if !ended {
            progress.calls.entry(what).or_default().push(Box::new(call));
        }
        Ok(!ended)
    }

    /// Whether the batch has ended.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub fn test(&self) -> Result<bool> {
        self.wait(Some(Duration::ZERO))
    }

    /// Skips operations that haven't begun. Operations in progress are completed: wait for the
    /// batch's end.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub fn cancel(&self) -> Result<()> {
        self.0.session.check()?;
        let mut progress = self.0.lock();
        if !progress.ended && progress.stopped.is_none() {
            let error = Error::new(Errno::CANCELED, "the batch was cancelled");
            progress.stopped = Some(error.clone());
            progress.error.get_or_insert(error);
        }
        Ok(())
    }

    /// Returns the current state of an operation.
    ///
    /// # Errors
    /// EINVAL if no operation has this number, EPERM in a forked child.
    pub fn status(&self, op: Op) -> Result<Status> {
        self.0.session.check()?;
        let progress = self.0.lock();
        let operation = progress.operations.get(op.0 as usize);
        operation.map(|o| o.status).ok_or_else(|| none(op))
    }

    /// Returns the outcome of an operation, or why it wasn't done. Bytes, metadata and records are
    /// returned only once; later calls return [`Outcome::Done`].
    ///
    /// # Errors
    /// The operation's error; EINVAL if no operation has this number; EINPROGRESS if it hasn't
    /// ended; ECANCELED if it was skipped.
    pub fn result(&self, op: Op) -> Result<Outcome> {
        self.0.session.check()?;
        let mut progress = self.0.lock();
        let operation = progress.operations.get_mut(op.0 as usize);
        let operation = operation.ok_or_else(|| none(op))?;
        match &operation.result {
            None => Err(Error::new(
                Errno::INPROGRESS,
                format!("operation {} hasn't ended yet", op.0),
            )),
            Some(Ok(Outcome::Done)) => Ok(Outcome::Done),
            Some(Ok(Outcome::Number(n))) => Ok(Outcome::Number(*n)),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(_)) => operation
                .result
                .replace(Ok(Outcome::Done))
                .unwrap_or_else(|| Err(none(op))),
        }
    }

    /// Returns why the batch as a whole failed: the first failure, the cancellation, or what
    /// couldn't be undone.
    pub fn error(&self) -> Option<Error> {
        self.0
            .session
            .check()
            .err()
            .or_else(|| self.0.lock().error.clone())
    }
}

fn none(op: Op) -> Error {
    Error::invalid(format!("there is no operation {} in this batch", op.0))
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        // No operation runs under this lock, so no panic can poison it.
        lock(&self.progress)
    }

    /// Queues operations for the session's worker threads.
    fn queue(self: &Arc<Inner>, ready: Vec<u32>) -> Result<()> {
        let tasks = ready.into_iter().map(|number| {
            let inner = self.clone();
            Box::new(move || inner.run(number)) as Task
        });
        self.session.workers().push(tasks)
    }

    /// Queues the operations that wait for no other. If operations send requests to other nodes,
    /// one task creates, or deletes, many collections of one workspace.
    fn queue_first(self: &Arc<Inner>, ready: Vec<u32>) -> Result<()> {
        if !self.session.sends_requests() {
            return self.queue(ready);
        }
        let mut tasks: Vec<Task> = Vec::new();
        let mut together: BTreeMap<Group, Vec<u32>> = BTreeMap::new();
        let progress = self.lock();
        for number in ready {
            let inner = self.clone();
            let work = progress.operations[number as usize].work.as_ref();
            match work.and_then(|work| work.group(&self.session)) {
                Some(group) => together.entry(group).or_default().push(number),
                None => tasks.push(Box::new(move || inner.run(number))),
            }
        }
        drop(progress);
        for group in together
            .values()
            .flat_map(|all| all.chunks(COLLECTIONS_PER_TASK))
        {
            let (inner, group) = (self.clone(), group.to_vec());
            tasks.push(Box::new(move || inner.run_together(&group)));
        }
        self.session.workers().push(tasks.into_iter())
    }

    /// Creates or deletes the collections of a group together, then queues the operations that
    /// waited for them.
    fn run_together(self: &Arc<Inner>, group: &[u32]) {
        let mut taken = Vec::new();
        let mut all = Vec::new();
        let mut progress = self.lock();
        if progress.stopped.is_none() {
            for &number in group {
                let operation = &mut progress.operations[number as usize];
                if let Some(work) = operation.work.take() {
                    operation.status = Status::Running;
                    taken.push(number);
                    all.push(work);
                }
            }
        }
        drop(progress);
        let make = AssertUnwindSafe(|| Work::run_all(all, self.log.as_deref()));
        let made = catch_unwind(make).unwrap_or_default();
        let mut made = made.into_iter();
        let mut ready = Vec::new();
        for &number in group {
            let result = taken.contains(&number).then(|| {
                let made = made
                    .next()
                    .unwrap_or_else(|| Err(Error::new(Errno::IO, "a panic")));
                made.map(|()| Outcome::Done)
            });
            ready.extend(self.finish(number, result));
        }
        // Closing a collection that was just created takes less time than waking another thread, so
        // this thread runs the closes.
        let progress = self.lock();
        let (closes, others): (Vec<u32>, _) = ready
            .into_iter()
            .partition(|&number| progress.operations[number as usize].what == CLOSE);
        drop(progress);
        // Can't fail: `queue` fails only if the session has no worker thread, and this is one.
        let _ = self.queue(others);
        closes.into_iter().for_each(|number| self.run(number));
    }

    /// Runs an operation, then one of the operations that became ready at its end, and so on.
    /// Queues the other operations that became ready.
    fn run(self: &Arc<Inner>, first: u32) {
        let mut next = Some(first);
        while let Some(number) = next {
            let work = {
                let mut progress = self.lock();
                let stopped = progress.stopped.is_some();
                let operation = &mut progress.operations[number as usize];
                let work = operation.work.take();
                if !stopped {
                    operation.status = Status::Running;
                }
                work.filter(|_| !stopped)
            };
            let result = work.map(|work| {
                let run = AssertUnwindSafe(|| work.run(self.log.as_deref()));
                catch_unwind(run).unwrap_or_else(|_| Err(Error::new(Errno::IO, "a panic")))
            });
            let mut ready = self.finish(number, result);
            next = ready.pop_front();
            if !ready.is_empty() {
                // Can't fail: `queue` fails only if the session has no worker thread, and this is
                // one.
                let _ = self.queue(ready.into());
            }
        }
    }

    /// Records the result of an operation (None: skipped), and returns the operations that are
    /// ready now.
    fn finish(&self, number: u32, result: Option<Result<Outcome>>) -> VecDeque<u32> {
        let mut progress = self.lock();
        let mut ready = VecDeque::new();
        let mut calls = Vec::new();
        let mut ended = VecDeque::from([(number, result)]);
        while let Some((number, result)) = ended.pop_front() {
            progress.end_one(number, result, self.failure);
            calls.extend(progress.take_calls(Some(Op(number))));
            let failed = progress.operations[number as usize].status != Status::Done;
            progress.open -= 1;
            for waiter in &self.waiters[number as usize] {
                let stopped = progress.stopped.is_some();
                let operation = &mut progress.operations[waiter.on as usize];
                operation.left -= 1;
                if waiter.needs && failed {
                    // The operation can't run, and is skipped when all operations for which it
                    // waits have ended.
                    operation.work = None;
                }
                match operation.left {
                    0 if operation.work.is_none() || stopped => ended.push_back((waiter.on, None)),
                    0 => ready.push_back(waiter.on),
                    _ => {}
                }
            }
        }
        match progress.open {
            0 => self.end(progress),
            _ => drop(progress),
        }
        self.make_calls(calls);
        ready
    }

    /// Queues calls of the program's functions for the notifier thread. `when` has started that
    /// thread.
    fn make_calls(&self, calls: Vec<Task>) {
        if !calls.is_empty() {
            let _ = self.session.notifier().push(calls.into_iter());
        }
    }

    /// Ends the batch after its last operation: undoes the batch if it failed, or else commits its
    /// log and carries out the deletions.
    fn end(&self, progress: MutexGuard<'_, Progress>) {
        let failed = progress.error.is_some();
        drop(progress);
        let settled = match self.log.as_deref() {
            Some(log) if failed => undo(&self.session, log),
            Some(log) => complete(&self.session, log),
            None => Ok(()),
        };
        let mut progress = self.lock();
        if let (Some(_), true, Ok(())) = (&self.log, failed, &settled) {
            for operation in &mut progress.operations {
                if operation.status == Status::Done {
                    operation.status = Status::Undone;
                }
            }
        }
        if let Err(error) = settled {
            progress.error = Some(error);
        }
        progress.ended = true;
        self.session.workers().leave(progress.operations.len());
        let calls = progress.take_calls(None);
        drop(progress);
        self.end.notify_all();
        self.make_calls(calls);
    }
}

impl Progress {
    /// Returns, and forgets, the calls to make when `what` has ended.
    fn take_calls(&mut self, what: Awaited) -> Vec<Task> {
        self.calls.remove(&what).unwrap_or_default()
    }

    fn end_one(&mut self, number: u32, result: Option<Result<Outcome>>, failure: Failure) {
        let why = self.stopped.clone();
        let operation = &mut self.operations[number as usize];
        operation.work = None;
        (operation.status, operation.result) = match result {
            None => {
                let text = match why {
                    Some(error) => format!("skipped: {error}"),
                    None => "skipped: an operation that it needs wasn't done".into(),
                };
                (
                    Status::Skipped,
                    Some(Err(Error::new(Errno::CANCELED, text))),
                )
            }
            Some(Ok(outcome)) => (Status::Done, Some(Ok(outcome))),
            Some(Err(error)) => {
                let error = error.about(format!("operation {number} ({})", operation.what));
                if failure != Failure::Continue && self.stopped.is_none() {
                    self.stopped = Some(error.clone());
                }
                self.error.get_or_insert(error.clone());
                (Status::Failed, Some(Err(error)))
            }
        };
    }
}

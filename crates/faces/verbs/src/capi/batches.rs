//! The C functions for batches and their requests, as the header calls a batch's operations.

use super::sessions::{give, take};
use super::{code, handle, number};
use crate::abi;
use crate::batch::Status;
use crate::{Batch, Error, Failure, Op, Order, Outcome, Result, Running, Session};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::time::Duration;

/// The type `iov_batch`.
pub struct Collected(Mutex<State>);

enum State {
    Collecting(Batch),
    Started(Running),
    /// The batch's start failed.
    Failed,
}

fn not_started() -> Error {
    Error::new(Errno::INVAL, "the batch hasn't been started")
}

impl Collected {
    /// Adds one operation to a batch that is being collected, and returns its number.
    pub fn add(&self, add: impl FnOnce(&mut Batch) -> Result<Op>) -> Result<i64> {
        self.collect(add).map(|op| i64::from(op.0))
    }

    /// Calls `add` with the batch, if it is still being collected.
    pub fn collect<T>(&self, add: impl FnOnce(&mut Batch) -> Result<T>) -> Result<T> {
        match &mut *lock(&self.0) {
            State::Collecting(batch) => add(batch),
            State::Started(_) | State::Failed => Err(Error::new(
                Errno::BUSY,
                "the batch has been started: nothing can be added to it",
            )),
        }
    }

    fn running(&self) -> Result<Running> {
        match &*lock(&self.0) {
            State::Started(running) => Ok(running.clone()),
            State::Collecting(_) | State::Failed => Err(not_started()),
        }
    }
}

/// Returns a batch that has been started.
///
/// # Safety
/// `batch` is null or a handle.
unsafe fn running(batch: *const Collected) -> Result<Running> {
    // SAFETY: the caller's promise.
    unsafe { handle(batch, "batch")? }.running()
}

fn op(request: i64) -> Result<Op> {
    let number = u32::try_from(request).map(Op);
    number.map_err(|_| Error::invalid(format!("{request} is the number of no request")))
}

/// Creates an empty batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_batch_create(
    session: *const Session,
    failure: c_int,
    order: c_int,
    batch: *mut *mut Collected,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        give(batch, || {
            let session = handle(session, "session")?;
            session.check()?;
            let failure = match failure {
                0 => Failure::Stop,
                1 => Failure::Continue,
                2 => Failure::Rollback,
                _ => return Err(Error::invalid(format!("{failure} is no iov_failure"))),
            };
            let order = match order {
                0 => Order::Free,
                1 => Order::Chain,
                _ => return Err(Error::invalid(format!("{order} is no iov_order"))),
            };
            let batch = Batch::new(session, failure, order);
            Ok(Collected(Mutex::new(State::Collecting(batch))))
        })
    })
}

/// Makes a request wait for earlier requests. The request is skipped if one of them fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_batch_after(
    batch: *const Collected,
    request: i64,
    needed: *const i64,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let batch = handle(batch, "batch")?;
        let needed = match count {
            0 => &[],
            count => std::slice::from_raw_parts(handle(needed, "list of requests")?, count),
        };
        let needed: Vec<Op> = needed.iter().map(|n| op(*n)).collect::<Result<_>>()?;
        let request = op(request)?;
        batch.collect(|batch| batch.after(request, &needed))
    })
}

/// Starts the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_batch_start(batch: *const Collected) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        let mut state = lock(&handle(batch, "batch")?.0);
        match std::mem::replace(&mut *state, State::Failed) {
            State::Collecting(batch) => {
                *state = State::Started(batch.start()?);
                Ok(())
            }
            other => {
                *state = other;
                Err(Error::new(
                    Errno::BUSY,
                    "the batch has been started already",
                ))
            }
        }
    })
}

/// Waits until the batch has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_wait(batch: *const Collected, nanoseconds: i64) -> c_int {
    let limit = u64::try_from(nanoseconds).ok().map(Duration::from_nanos);
    // SAFETY: the caller's promise.
    number(|| unsafe { running(batch)?.wait(limit).map(i64::from) }) as c_int
}

/// Returns whether the batch has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_test(batch: *const Collected) -> c_int {
    // SAFETY: the caller keeps the header's rules for these pointers.
    unsafe { iov_wait(batch, 0) }
}

/// Skips requests that haven't begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_cancel(batch: *const Collected) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe { running(batch)?.cancel() })
}

/// The argument that the notifier thread passes to a program's callback.
struct With(*mut c_void);

// SAFETY: the header demands that any thread may call the function with this argument.
unsafe impl Send for With {}

impl With {
    fn pointer(self) -> *mut c_void {
        self.0
    }
}

/// Registers a function to be called when a request, or the batch, has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_when(
    batch: *const Collected,
    request: i64,
    function: abi::Function,
    with: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let running = running(batch)?;
        let what = match request {
            ..0 => None,
            request => Some(op(request)?),
        };
        let function = function.ok_or_else(|| Error::invalid("the function is NULL"))?;
        let with = With(with);
        let waits = running.when(what, move || function(with.pointer()))?;
        Ok(i64::from(!waits))
    }) as c_int
}

/// Returns the status of a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_request_status(batch: *const Collected, request: i64) -> c_int {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        Ok(match running(batch)?.status(op(request)?)? {
            Status::Waiting => 0,
            Status::Running => 1,
            Status::Done => 2,
            Status::Failed => 3,
            Status::Skipped => 4,
            Status::Undone => 5,
        })
    }) as c_int
}

/// Returns the result of a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_result(batch: *const Collected, request: i64) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        Ok(match running(batch)?.result(op(request)?)? {
            Outcome::Number(n) => i64::try_from(n).unwrap_or(i64::MAX),
            _ => 0,
        })
    })
}

/// Returns why the batch as a whole failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_batch_result(batch: *const Collected) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe { running(batch)?.error().map_or(Ok(()), Err) })
}

/// Frees the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_batch_free(batch: *mut Collected) -> c_int {
    // SAFETY: the caller's promise.
    code(|| unsafe {
        if let Ok(running) = take(batch, "batch")?.running() {
            running.cancel()?;
            running.wait(None)?;
        }
        Ok(())
    })
}

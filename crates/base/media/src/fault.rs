//! Injected faults: a test makes the n-th attempt of an operation fail, and checks what state
//! remains. While no fault is planned, as always outside of tests, a check costs one load of a word
//! that isn't written.

use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};

/// An operation that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// Taking pages: the medium has no free ones.
    Pages = 1,
    /// Reserving room in the file system under a medium.
    Room = 2,
    /// Writing to the segment of a `files` medium.
    Write = 4,
    /// Reading from the segment of a `files` medium.
    Read = 8,
    /// Reserving room for records.
    Records = 16,
    /// Committing records.
    Commit = 32,
}

/// The points that fail, one bit each; 0: none.
static POINTS: AtomicU32 = AtomicU32::new(0);
/// Number of attempts that still succeed before the fault; negative after it.
static LEFT: AtomicI64 = AtomicI64::new(0);
/// Whether all later attempts fail, too.
static FOR_GOOD: AtomicU32 = AtomicU32::new(0);
static ERROR: AtomicU32 = AtomicU32::new(0);

/// Makes `point` fail in this process with `error`, after `n` attempts that succeed (0: the next
/// attempt fails); with `for_good`, all later attempts fail, too.
pub fn plan(point: Point, n: u32, error: Errno, for_good: bool) {
    LEFT.store(n.into(), Relaxed);
    ERROR.store(error.raw_os_error() as u32, Relaxed);
    FOR_GOOD.store(for_good.into(), Relaxed);
    POINTS.store(point as u32, Release);
}

/// Ends the planned fault. Returns whether it has happened.
pub fn end() -> bool {
    POINTS.store(0, Release);
    LEFT.load(Relaxed) < 0
}

/// Returns the planned error if this attempt of `point` has to fail. Called before each attempt.
///
/// # Errors
/// The planned error.
#[inline]
pub fn check(point: Point) -> Result<()> {
    if POINTS.load(Relaxed) == 0 {
        return Ok(());
    }
    planned(point)
}

#[cold]
fn planned(point: Point) -> Result<()> {
    if POINTS.load(Acquire) & point as u32 == 0 {
        return Ok(());
    }
    let left = LEFT.fetch_sub(1, Relaxed);
    if left == 0 || left < 0 && FOR_GOOD.load(Relaxed) != 0 {
        return Err(Errno::from_raw_os_error(ERROR.load(Relaxed) as i32));
    }
    Ok(())
}

//! Injected faults: the n-th attempt of an operation fails. Tests check what is left behind.
//! Without a planned fault, which is always the case outside of tests, the cost is a load of a word
//! that nobody writes.

use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};

/// An operation that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// A medium has no free pages.
    Pages = 1,
    /// The file system under a medium has no room.
    Room = 2,
    /// Writing to the segment of a `files` medium.
    Write = 4,
    /// Reading from the segment of a `files` medium.
    Read = 8,
    /// Room for records.
    Records = 16,
    /// Committing records.
    Commit = 32,
}

/// The points that fail; 0: none.
static POINTS: AtomicU32 = AtomicU32::new(0);
/// Number of attempts that still succeed.
static LEFT: AtomicI64 = AtomicI64::new(0);
/// Whether all later attempts fail, too.
static FOR_GOOD: AtomicU32 = AtomicU32::new(0);
static ERROR: AtomicU32 = AtomicU32::new(0);

/// Makes `point` fail in this process with `error` at the `n`-th attempt (0: at once) and, with
/// `for_good`, at all later ones.
pub fn plan(point: Point, n: u32, error: Errno, for_good: bool) {
    LEFT.store(n.into(), Relaxed);
    ERROR.store(error.raw_os_error() as u32, Relaxed);
    FOR_GOOD.store(for_good.into(), Relaxed);
    POINTS.store(point as u32, Release);
}

/// Ends all faults. Returns whether one has happened.
pub fn end() -> bool {
    POINTS.store(0, Release);
    LEFT.load(Relaxed) < 0
}

/// Called before an operation that can fail.
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

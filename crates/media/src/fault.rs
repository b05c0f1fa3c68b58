//! Injected faults: the n-th time that something could fail, it does. Tests check what is left
//! behind. While no fault is asked for, which is always outside of tests, the cost is a load of a
//! word that nobody writes.

use rustix::io::{Errno, Result};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};

/// Something that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Point {
    /// A medium has no free pages.
    Pages = 1,
    /// The file system under a medium has no room.
    Room = 2,
    /// Writing to the segment of a `files` medium.
    Write = 4,
    /// Reading from one.
    Read = 8,
    /// Room for records.
    Records = 16,
    /// Committing records.
    Commit = 32,
}

/// Which points fail; 0: none.
static POINTS: AtomicU32 = AtomicU32::new(0);
/// How often they may still be passed.
static LEFT: AtomicI64 = AtomicI64::new(0);
/// Whether all fail from then on.
static FOR_GOOD: AtomicU32 = AtomicU32::new(0);
static ERROR: AtomicU32 = AtomicU32::new(0);

/// Lets `point` fail with `error` when it is reached for the `n`-th time (0: at once), and,
/// with `for_good`, from then on. In this process.
pub fn plan(point: Point, n: u32, error: Errno, for_good: bool) {
    LEFT.store(n.into(), Relaxed);
    ERROR.store(error.raw_os_error() as u32, Relaxed);
    FOR_GOOD.store(for_good.into(), Relaxed);
    POINTS.store(point as u32, Release);
}

/// Ends all faults. Whether one has happened.
pub fn end() -> bool {
    POINTS.store(0, Release);
    LEFT.load(Relaxed) < 0
}

/// To be asked before doing what can fail.
///
/// # Errors
/// The one planned.
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

//! Writes files to stable storage. No other module does, so that a test can record what has become
//! durable, or make syncs fail.

use rustix::fd::BorrowedFd;
use rustix::io::Result;
use std::sync::OnceLock;

/// A function that is called after the kernel has written a file (or directory) to stable storage.
/// An error of this function becomes the result of [`sync_data`] or [`sync_all`].
pub type Observer = fn(BorrowedFd<'_>) -> Result<()>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Sets the function that is called after each sync. For tests; only the first call has an effect.
pub fn observe_syncs(observer: Observer) {
    let _ = OBSERVER.set(observer);
}

fn observed(fd: BorrowedFd<'_>) -> Result<()> {
    OBSERVER.get().map_or(Ok(()), |observer| observer(fd))
}

/// Makes the bytes of a file durable, and the metadata needed to find them.
///
/// # Errors
/// EIO and others. The kernel reports an error only once, so it must not be ignored.
pub fn sync_data(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fdatasync(fd))?;
    observed(fd)
}

/// Makes a file, or the names in a directory, durable.
///
/// # Errors
/// As for [`sync_data`].
pub fn sync_all(fd: BorrowedFd<'_>) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fsync(fd))?;
    observed(fd)
}

//! Writing to the pool's files in a process that has a limit on file sizes.
//!
//! RLIMIT_FSIZE is meant for the program's files, but applies to the pool's, too. A segment or a
//! journal is longer than most limits: the kernel would refuse the write and send the program
//! SIGXFSZ. The limit doesn't apply to writes through mappings. So bytes beyond the limit are
//! written through mappings.

use rustix::fd::BorrowedFd;
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::PAGE;
use forebay_runtime::guard;

static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Returns the largest size to which this process may write a file (RLIMIT_FSIZE). Bytes.
pub fn size_limit() -> u64 {
    LIMIT.load(Relaxed)
}

/// Sets [`size_limit`]. Before the first call there is no limit.
pub fn set_size_limit(limit: u64) {
    LIMIT.store(limit, Relaxed);
}

/// Checks whether this process may extend one of the pool's files to `len` bytes.
///
/// # Errors
/// EFBIG if it may not. (The kernel would return that, too, but also send SIGXFSZ.)
pub fn may_grow(len: u64) -> Result<()> {
    if len > size_limit() {
        return Err(Errno::FBIG);
    }
    Ok(())
}

/// Writes all of `bytes` at offset `at` of one of the pool's files.
///
/// # Errors
/// EFBIG if the bytes end beyond both the end of the file and the process's limit; errors of
/// pwrite.
pub fn put_all(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> Result<()> {
    let end = at + bytes.len() as u64;
    if end > size_limit() {
        return put_mapped(file, bytes, at, end);
    }
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cold]
fn put_mapped(file: BorrowedFd<'_>, bytes: &[u8], at: u64, end: u64) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    if rustix::fs::fstat(file)?.st_size < end as i64 {
        return Err(Errno::FBIG);
    }
    let start = at / PAGE as u64 * PAGE as u64;
    let len = (end - start) as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
    let base = unsafe { mmap(null_mut(), len, protection, MapFlags::SHARED, file, start)? };
    // SAFETY: `to` has room for the bytes inside the mapping. A disk error is a fault there, which
    // `guard::copy` survives.
    let copied = unsafe {
        let to = base.cast::<u8>().add((at - start) as usize);
        let copied = guard::copy(bytes.as_ptr(), to, bytes.len());
        let _ = munmap(base, len);
        copied
    };
    if copied { Ok(()) } else { Err(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_file_is_written_beyond_the_limit_but_not_beyond_its_end() {
        let file = rustix::fs::memfd_create("put", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 3 * PAGE as u64).unwrap();
        put_mapped(file.as_fd(), b"across", PAGE as u64 - 3, PAGE as u64 + 3).unwrap();
        let mut read = [0; 8];
        rustix::io::pread(&file, &mut read, PAGE as u64 - 4).unwrap();
        assert_eq!(&read, b"\0across\0");
        let end = 3 * PAGE as u64;
        assert_eq!(
            put_mapped(file.as_fd(), b"xy", end - 1, end + 1),
            Err(Errno::FBIG)
        );
        put_mapped(file.as_fd(), b"x", end - 1, end).unwrap();
        assert_eq!(may_grow(u64::MAX), Ok(()));
    }
}

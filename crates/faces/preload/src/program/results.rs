//! Results of system calls: a negated errno for the program, a [`Result`] in this library.

use forebay_posix::Errno;

/// Returns an error as a system call returns it: negated.
#[inline]
pub fn errno(e: Errno) -> i64 {
    -i64::from(e.raw_os_error())
}

/// Returns a result as a system call returns it: the value, or the negated errno.
#[inline]
pub fn value(result: Result<i64, Errno>) -> i64 {
    result.unwrap_or_else(errno)
}

/// Returns a kernel result as a `Result`.
pub fn check(result: i64) -> Result<i64, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result)
    }
}

//! Pool descriptors: real kernel numbers that stand for open files of the pool.
//!
//! The process's area of the control region records for which description a number stands, so that
//! fork, exec and vfork carry it over. Only numbers whose byte in [`filter`] is set are looked up
//! there. `served/fd_table.rs` changes the table.

use crate::pool::opened;
use crate::program::{filter, process};
use forebay_intercept::raw;
use forebay_posix::Fs;

/// Returns the description of `fd`, if calls on it are served from the pool.
#[inline]
pub fn pool_file(fd: i32) -> Option<(&'static Fs, u32)> {
    pool_object(fd).filter(|&(fs, open)| !fs.description(open).is_fifo())
}

/// Returns the description of `fd`, if it is a pool descriptor. Besides files these are FIFOs: the
/// pool has their attributes, but the kernel reads and writes them.
#[inline]
pub fn pool_object(fd: i32) -> Option<(&'static Fs, u32)> {
    if !filter::watched(fd) {
        return None;
    }
    let fs = opened::open_fs()?;
    Some((fs, fs.descriptors().get(fd)?))
}

/// Whether `fd` is a pool descriptor that was opened with O_PATH.
#[inline]
pub fn is_path_only(fd: i32) -> bool {
    pool_file(fd).is_some_and(|(fs, open)| fs.description(open).is_path_only())
}

/// Serves kcmp(pid, pid, KCMP_FILE, fd, fd), where at least one descriptor is a pool descriptor.
///
/// # Safety
/// The call is one that the program makes.
pub unsafe fn compare(a: &[i64; 6]) -> i64 {
    const KCMP_FILE: i64 = 0;
    // SAFETY: the program's own call. The kernel checks permissions, and whether the descriptors
    // are open.
    let result = unsafe { raw(libc::SYS_kcmp, *a) };
    if a[2] as i32 as i64 != KCMP_FILE || result < 0 {
        return result;
    }
    // 0: equal for the kernel. The descriptors may be duplicates of one placeholder even in a
    // process that hasn't opened the pool yet, so the pool is opened.
    let fs = match result {
        0 => opened::fs().ok(),
        _ => opened::open_fs(),
    };
    let Some(fs) = fs else { return result };
    let me = i64::from(process::own_pid());
    let file = |pid: i64, fd: i64| {
        if pid == me {
            pool_file(fd as i32).map(|(_, open)| open)
        } else {
            fs.descriptors().of_process(pid as u32, fd as i32)
        }
    };
    match (file(a[0], a[3]), file(a[1], a[4])) {
        (Some(one), Some(other)) => match one.cmp(&other) {
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Greater => 2,
        },
        _ => result,
    }
}

//! Descriptors: real kernel numbers that stand for open files of the pool.
//!
//! What a number stands for is in the process's area of the control region, so that fork, exec and
//! vfork carry it over. A byte of [`filter`] tells whether to look there at all.
//! `served/fd_table.rs` changes the table.

use crate::pool::opened;
use crate::program::{filter, process};
use forebay_posix::Fs;

/// The open file behind `fd`, if calls on it are answered from the pool.
#[inline]
pub fn pool_file(fd: i32) -> Option<(&'static Fs, u32)> {
    pool_object(fd).filter(|&(fs, open)| !fs.description(open).is_fifo())
}

/// The object behind `fd`, if it is one of the pool: what has attributes. Beside files
/// these are FIFOs, which the kernel reads and writes.
#[inline]
pub fn pool_object(fd: i32) -> Option<(&'static Fs, u32)> {
    if !filter::watched(fd) {
        return None;
    }
    let fs = opened::open_fs()?;
    Some((fs, fs.descriptors().get(fd)?))
}

/// Whether `fd` is one of the pool that was opened with O_PATH.
#[inline]
pub fn is_path_only(fd: i32) -> bool {
    pool_file(fd).is_some_and(|(fs, open)| fs.description(open).is_path_only())
}

/// kcmp(pid, pid, KCMP_FILE, fd, fd) inside one process.
pub fn compare(a: &[i64; 6]) -> i64 {
    const KCMP_FILE: i64 = 0;
    let me = i64::from(process::own_pid());
    let (one, other) = (pool_file(a[3] as i32), pool_file(a[4] as i32));
    if a[2] != KCMP_FILE || a[0] != me || a[1] != me {
        return forebay_intercept::PASS;
    }
    match (one, other) {
        (Some((_, one)), Some((_, other))) => match one.cmp(&other) {
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Greater => 2,
        },
        _ => forebay_intercept::PASS,
    }
}

//! Waiting for descriptors. Files of a pool are always ready, as regular files are.

use crate::pool::fds;
use crate::program::filter;
use crate::program::results::errno;
use crate::program::user::{take, take_list, touch};
use forebay_intercept::{PASS, raw};
use forebay_posix::Errno;

const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// Serves poll and ppoll.
pub unsafe fn poll(nr: i64, a: &[i64; 6]) -> i64 {
    let (at, count) = (a[0] as *mut libc::pollfd, a[1] as usize);
    if count == 0 || count > 1 << 20 {
        return PASS;
    }
    // SAFETY: any bytes are pollfds; a bad address is caught.
    let watched = unsafe { touch(|| (0..count).any(|i| filter::watched((*at.add(i)).fd))) };
    if watched != Some(true) {
        return PASS;
    }
    // SAFETY: as above.
    let mut list: Vec<libc::pollfd> = match unsafe { take_list(a[0], count) } {
        Ok(list) => list,
        Err(e) => return errno(e),
    };
    // The results for pool descriptors; the kernel doesn't poll them.
    let mut ours: Vec<(usize, i16)> = Vec::new();
    for (i, p) in list.iter_mut().enumerate() {
        if fds::pool_file(p.fd).is_some() {
            let revents = if fds::is_path_only(p.fd) {
                libc::POLLNVAL
            } else {
                p.events & READY
            };
            ours.push((i, revents));
            p.fd = -1;
        }
    }
    if ours.is_empty() {
        return PASS;
    }
    let ready = ours.iter().filter(|(_, revents)| *revents != 0).count() as i64;
    let mut args = *a;
    args[0] = list.as_mut_ptr() as i64;
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if ready > 0 && nr == libc::SYS_poll {
        args[2] = 0;
    } else if ready > 0 {
        // SAFETY: `a[2]` is null, or the timeout that the program passed; a bad address is caught.
        if let Err(e) = unsafe { look_at_time(a[2]) } {
            return errno(e);
        }
        args[2] = &raw const zero as i64;
    }
    // SAFETY: the program's call; only the array is replaced, by a copy of it.
    let result = unsafe { raw(nr, args) };
    if result < 0 {
        return result;
    }
    for (i, revents) in ours {
        list[i].revents = revents;
    }
    let answer = || {
        for (i, p) in list.iter().enumerate() {
            // SAFETY: runs under the fault guard of `touch` below; no reference to the array
            // exists.
            unsafe { (*at.add(i)).revents = p.revents };
        }
    };
    // SAFETY: `answer` holds no lock; a bad address is caught.
    match unsafe { touch(answer) } {
        Some(()) => result + ready,
        None => errno(Errno::FAULT),
    }
}

/// Checks that a timeout is readable; the timeout's value doesn't matter.
///
/// # Safety
/// `at` is null, or the program's own argument.
unsafe fn look_at_time(at: i64) -> Result<(), Errno> {
    match at {
        0 => Ok(()),
        // SAFETY: any bytes are two numbers; a bad address is caught.
        at => unsafe { take::<[i64; 2]>(at) }.map(|_| ()),
    }
}

/// Maximum number of descriptors in a set of select.
const SET: usize = 1024;
type Set = [u64; SET / 64];

/// Serves select and pselect6.
pub unsafe fn select(nr: i64, a: &[i64; 6]) -> i64 {
    let count = a[0].clamp(0, SET as i64) as usize;
    let words = count.div_ceil(64);
    let mut sets: [Option<Set>; 3] = [None; 3];
    for (set, &at) in sets.iter_mut().zip(&a[1..4]) {
        if at != 0 {
            let to = set.insert([0; SET / 64]).as_mut_ptr();
            // SAFETY: `to` has room for SET bits, and `words` is at most that; a bad address is
            // caught.
            if unsafe { touch(|| std::ptr::copy(at as *const u64, to, words)) }.is_none() {
                return PASS;
            }
        }
    }
    // Results for pool descriptors: ready for reading and writing; nothing exceptional.
    let mut mine = [[0; SET / 64]; 3];
    let (mut any, mut ready) = (false, 0);
    for fd in 0..count {
        // For a descriptor opened with O_PATH, select reports every condition.
        let told = if fds::is_path_only(fd as i32) { 3 } else { 2 };
        let (word, bit) = (fd / 64, 1u64 << (fd % 64));
        if sets.iter().flatten().all(|s| s[word] & bit == 0) || fds::pool_file(fd as i32).is_none()
        {
            continue;
        }
        any = true;
        for (i, s) in sets.iter_mut().enumerate() {
            if let Some(s) = s
                && s[word] & bit != 0
            {
                s[word] &= !bit;
                if i < told {
                    mine[i][word] |= bit;
                    ready += 1;
                }
            }
        }
    }
    if !any {
        return PASS;
    }
    let mut args = *a;
    for (arg, set) in args[1..4].iter_mut().zip(&mut sets) {
        *arg = set.as_mut().map_or(0, |s| s.as_mut_ptr() as i64);
    }
    let zero = [0i64; 2];
    if ready > 0 {
        // SAFETY: `a[4]` is null, or the timeout that the program passed; a bad address is caught.
        if let Err(e) = unsafe { look_at_time(a[4]) } {
            return errno(e);
        }
        args[4] = zero.as_ptr() as i64;
    }
    // SAFETY: the program's call; only the sets and the timeout are replaced, by local copies.
    let result = unsafe { raw(nr, args) };
    if result < 0 {
        return result;
    }
    for ((set, mine), &at) in sets.iter_mut().zip(&mine).zip(&a[1..4]) {
        let Some(set) = set else { continue };
        for (word, mine) in set.iter_mut().zip(mine) {
            *word |= mine;
        }
        let from = set.as_ptr();
        // SAFETY: the copy holds nothing when it faults; a bad address is caught.
        if unsafe { touch(|| std::ptr::copy(from, at as *mut u64, words)) }.is_none() {
            return errno(Errno::FAULT);
        }
    }
    result + ready
}

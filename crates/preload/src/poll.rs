//! Waiting for descriptors: files of a pool are always ready, as regular files are.

use crate::fds;
use crate::paths::errno;
use forebay_intercept::{PASS, raw};
use forebay_posix::Errno;

const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// poll and ppoll.
pub unsafe fn poll(nr: i64, a: &[i64; 6]) -> i64 {
    let count = a[1] as usize;
    if count == 0 || count > 1 << 20 {
        return PASS;
    }
    // SAFETY: the program's own array.
    let list = unsafe { std::slice::from_raw_parts_mut(a[0] as *mut libc::pollfd, count) };
    let ours = |p: &libc::pollfd| fds::pool_file(p.fd).is_some();
    if !list.iter().any(ours) {
        return PASS;
    }
    let mut copy = list.to_vec();
    let mut ready = 0;
    for p in copy.iter_mut().filter(|p| ours(p)) {
        // What is to be said of it, for later.
        p.revents = if fds::is_path_only(p.fd) {
            libc::POLLNVAL
        } else {
            p.events & READY
        };
        ready += i64::from(p.revents != 0);
        p.fd = -1;
    }
    let mine: Vec<i16> = copy.iter().map(|p| p.revents).collect();
    let mut args = *a;
    args[0] = copy.as_mut_ptr() as i64;
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if ready > 0 {
        args[2] = if nr == libc::SYS_poll {
            0
        } else {
            &raw const zero as i64
        };
    }
    // SAFETY: the program's own call on a copy of its array.
    let result = unsafe { raw(nr, args) };
    if result < 0 {
        return result;
    }
    for ((p, c), mine) in list.iter_mut().zip(&copy).zip(mine) {
        p.revents = if c.fd == -1 && ours(p) {
            mine
        } else {
            c.revents
        };
    }
    result + ready
}

/// select and pselect6.
pub unsafe fn select(nr: i64, a: &[i64; 6]) -> i64 {
    let count = (a[0].clamp(0, 1024)) as usize;
    let words = count.div_ceil(64);
    let set = |i: usize| {
        // SAFETY: null, or the program's own descriptor sets.
        (a[i] != 0).then(|| unsafe { std::slice::from_raw_parts_mut(a[i] as *mut u64, words) })
    };
    let mut sets = [set(1), set(2), set(3)];
    let mut mine = [[0u64; 16]; 3];
    let mut ready = 0;
    for fd in 0..count {
        let (word, bit) = (fd / 64, 1u64 << (fd % 64));
        if sets.iter().flatten().all(|s| s[word] & bit == 0) || fds::pool_file(fd as i32).is_none()
        {
            continue;
        }
        for (i, s) in sets.iter_mut().enumerate() {
            if let Some(s) = s
                && s[word] & bit != 0
            {
                s[word] &= !bit;
                // Ready to be read and written; nothing exceptional.
                if i < 2 {
                    mine[i][word] |= bit;
                    ready += 1;
                }
            }
        }
    }
    if ready == 0 {
        return PASS;
    }
    let mut args = *a;
    let zero = [0i64; 2];
    args[4] = zero.as_ptr() as i64;
    // SAFETY: the program's own call, without our descriptors and without waiting.
    let result = unsafe { raw(nr, args) };
    if result < 0 {
        return result;
    }
    for (s, mine) in sets.iter_mut().zip(&mine) {
        for (word, mine) in s.iter_mut().flat_map(|s| s.iter_mut()).zip(mine) {
            *word |= mine;
        }
    }
    result + ready
}

/// epoll_ctl: a regular file can't be watched.
pub fn epoll_ctl(a: &[i64; 6]) -> i64 {
    if fds::pool_file(a[2] as i32).is_some() {
        errno(Errno::PERM)
    } else {
        PASS
    }
}

//! System calls that a pool can't answer: refused, rather than done wrongly by a kernel that
//! knows nothing of it.

use crate::paths::{self, PathCall, Where, errno};
use crate::{calls, fds, runtime};
use forebay_intercept::PASS;
use forebay_posix::Errno;

/// EOPNOTSUPP for a path of the pool.
pub unsafe fn path(p: PathCall<'_>) -> i64 {
    let Some((dirfd, path)) = calls::refused_path(p.nr) else {
        return PASS;
    };
    let base = dirfd.map_or(libc::AT_FDCWD, |i| p.args[i] as i32);
    if dirfd.is_some() && fds::pool_file(base).is_some() {
        return errno(Errno::OPNOTSUPP);
    }
    // SAFETY: the program's path.
    match unsafe { paths::locate(base, p.args[path]) } {
        Ok(Where::Kernel) => PASS,
        Ok(_) => errno(Errno::OPNOTSUPP),
        Err(e) => errno(e),
    }
}

/// EOPNOTSUPP on a descriptor of ours.
pub fn descriptor(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some(_) => errno(Errno::OPNOTSUPP),
        None => PASS,
    }
}

/// unshare: what the descriptors of a process stand for is noted once for all its threads, so
/// one of several can't get a table of its own.
pub fn unshare(a: &[i64; 6]) -> i64 {
    if a[0] & i64::from(libc::CLONE_FILES) == 0 {
        return PASS;
    }
    let threads = rustix::fs::stat("/proc/self/task").map_or(1, |s| s.st_nlink.saturating_sub(2));
    match runtime::open_fs() {
        Some(fs) if threads > 1 && fds::any_open(fs.store()) => errno(Errno::INVAL),
        _ => PASS,
    }
}

/// landlock_add_rule(ruleset, type, rule, flags) for what is beneath a directory of ours.
pub unsafe fn landlock(a: &[i64; 6]) -> i64 {
    const PATH_BENEATH: i64 = 1;
    if a[1] != PATH_BENEATH || a[2] == 0 {
        return PASS;
    }
    // SAFETY: the program's struct: 8 bytes of rights, then the descriptor.
    match unsafe { paths::take(a[2].wrapping_add(8)) }.map(fds::pool_file) {
        Ok(Some(_)) => errno(Errno::OPNOTSUPP),
        _ => PASS,
    }
}

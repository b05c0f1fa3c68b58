//! Counts and traces system calls by kind of operation.

use crate::pool::fds;
use forebay_intercept::PASS;
use forebay_trace::Operation::{self, *};
use forebay_trace::count::{self, Outcome};
use forebay_trace::{Point, is_on};
use libc::*;

/// Number of entries in [`KINDS`]: calls with this number or a larger one aren't counted.
const CALLS: usize = 512;

/// The kind of each call, by its number; None: not counted.
static KINDS: [Option<Operation>; CALLS] = {
    let mut kinds = [None; CALLS];
    let mut i = 0;
    while i < OF.len() {
        let (kind, calls) = OF[i];
        let mut j = 0;
        while j < calls.len() {
            kinds[calls[j] as usize] = Some(kind);
            j += 1;
        }
        i += 1;
    }
    kinds
};

/// The calls of each kind. `open` with O_CREAT counts as `create`, see [`opening`].
const OF: &[(Operation, &[i64])] = &[
    (Open, &[SYS_open, SYS_openat, SYS_openat2]),
    (Create, &[SYS_creat, SYS_mknod, SYS_mknodat]),
    (Close, &[SYS_close]),
    (
        Read,
        &[SYS_read, SYS_pread64, SYS_readv, SYS_preadv, SYS_preadv2],
    ),
    (
        Write,
        &[
            SYS_write,
            SYS_pwrite64,
            SYS_writev,
            SYS_pwritev,
            SYS_pwritev2,
            SYS_sendfile,
            SYS_copy_file_range,
            SYS_splice,
        ],
    ),
    (Seek, &[SYS_lseek]),
    (
        Stat,
        &[
            SYS_stat,
            SYS_lstat,
            SYS_fstat,
            SYS_newfstatat,
            SYS_statx,
            SYS_statfs,
            SYS_fstatfs,
        ],
    ),
    (List, &[SYS_getdents, SYS_getdents64]),
    (
        Access,
        &[
            SYS_access,
            SYS_faccessat,
            SYS_faccessat2,
            SYS_chdir,
            SYS_fchdir,
        ],
    ),
    (Mkdir, &[SYS_mkdir, SYS_mkdirat]),
    (Remove, &[SYS_unlink, SYS_unlinkat, SYS_rmdir]),
    (Rename, &[SYS_rename, SYS_renameat, SYS_renameat2]),
    (
        Link,
        &[
            SYS_link,
            SYS_linkat,
            SYS_symlink,
            SYS_symlinkat,
            SYS_readlink,
            SYS_readlinkat,
        ],
    ),
    (
        Attributes,
        &[
            SYS_chmod,
            SYS_fchmod,
            SYS_fchmodat,
            SYS_chown,
            SYS_fchown,
            SYS_lchown,
            SYS_fchownat,
            SYS_utime,
            SYS_utimes,
            SYS_futimesat,
            SYS_utimensat,
            SYS_getxattr,
            SYS_lgetxattr,
            SYS_fgetxattr,
            SYS_setxattr,
            SYS_lsetxattr,
            SYS_fsetxattr,
            SYS_listxattr,
            SYS_llistxattr,
            SYS_flistxattr,
            SYS_removexattr,
            SYS_lremovexattr,
            SYS_fremovexattr,
        ],
    ),
    (Truncate, &[SYS_truncate, SYS_ftruncate, SYS_fallocate]),
    (
        Sync,
        &[SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_syncfs],
    ),
    (Lock, &[SYS_flock]),
    (Map, &[SYS_mmap, SYS_msync]),
    (
        Other,
        &[
            SYS_fcntl,
            SYS_ioctl,
            SYS_dup,
            SYS_dup2,
            SYS_dup3,
            SYS_readahead,
            SYS_fadvise64,
        ],
    ),
];

/// Returns the kind of call `nr` with these arguments; None: not counted.
#[inline]
fn kind(nr: i64, a: &[i64; 6]) -> Option<Operation> {
    let kind = (*KINDS.get(nr as usize)?)?;
    if kind == Open {
        return Some(opening(nr, a));
    }
    Some(kind)
}

fn opening(nr: i64, a: &[i64; 6]) -> Operation {
    let flags = match nr {
        libc::SYS_open => a[1],
        libc::SYS_openat => a[2],
        _ => 0,
    };
    match flags & i64::from(O_CREAT) {
        0 => Open,
        _ => Create,
    }
}

/// Runs `answer`, which handles a call, and counts the call if it concerned the pool.
#[inline]
pub fn counted(nr: i64, a: &[i64; 6], answer: impl FnOnce() -> i64) -> i64 {
    let Some(kind) = kind(nr, a) else {
        return answer();
    };
    let begun = count::begin(kind);
    let traced = is_on(Point::CALL_ENTER) || is_on(Point::CALL_EXIT);
    // A call that this library makes while it serves a call of the program isn't traced.
    let traced = traced && enter(nr, a);
    let result = answer();
    let outside = result == PASS || nr == SYS_mmap && !maps_pool_file(a);
    if traced {
        leave(nr, result, outside);
    }
    if outside || kind == Create && forebay_store::lmdb::is_opening() {
        // LMDB opens its files by intercepted calls, too; those calls aren't the program's.
        return result;
    }
    let moves = matches!(kind, Read | Write) && result > 0;
    let errno = if is_answered_no(nr, a, result) {
        0
    } else {
        result.clamp(-4095, 0).unsigned_abs() as i32
    };
    let outcome = Outcome {
        bytes: if moves { result as u64 } else { 0 },
        errno,
    };
    count::end(kind, begun, outcome);
    result
}

/// Whether a call's error is an answer rather than a failure: isatty(3) requests a terminal's
/// settings, and ENOTTY means that the file isn't a terminal.
fn is_answered_no(nr: i64, a: &[i64; 6], result: i64) -> bool {
    let is_of_terminals = (a[1] >> 8) & 0xff == i64::from(b'T');
    nr == libc::SYS_ioctl && is_of_terminals && result == -i64::from(libc::ENOTTY)
}

#[cold]
#[inline(never)]
fn enter(nr: i64, a: &[i64; 6]) -> bool {
    if forebay_trace::enter(true) {
        return false;
    }
    forebay_trace::event!(CALL_ENTER, nr, a[0]);
    true
}

#[cold]
#[inline(never)]
fn leave(nr: i64, result: i64, outside: bool) {
    forebay_trace::enter(false);
    forebay_trace::event!(CALL_EXIT, nr, result, u64::from(outside));
}

/// Whether an mmap with these arguments maps a file of the pool. (The library also serves other
/// mmaps: of a library's code, which it patches, and at fixed addresses, which may replace a
/// mapping of a pool file.)
fn maps_pool_file(a: &[i64; 6]) -> bool {
    a[3] & i64::from(MAP_ANONYMOUS) == 0 && fds::pool_file(a[4] as i32).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_number() {
        let mut a = [0; 6];
        assert_eq!(kind(SYS_pread64, &a), Some(Read));
        assert_eq!(kind(SYS_openat, &a), Some(Open));
        a[2] = i64::from(O_CREAT | O_WRONLY);
        assert_eq!(kind(SYS_openat, &a), Some(Create));
        assert_eq!(kind(SYS_getpid, &a), None);
        assert_eq!(kind(-1, &a), None);
        assert_eq!(kind(100_000, &a), None);
    }
}

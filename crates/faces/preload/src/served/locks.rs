//! Locks on files of a pool: flock(2) and fcntl's. The store's lock table (`forebay_store::locks`)
//! checks conflicts, waits, and finds deadlocks. This module reads the arguments. `forebay_posix`
//! releases the locks that end at a close.

use crate::map;
use crate::pool::fds;
use crate::program::results::{errno, value};
use crate::program::user;
use forebay_intercept::PASS;
use forebay_posix::{Errno, Fs};
use forebay_store::LockType;
use forebay_store::locks::TO_THE_END;

/// Returns the first and last byte of the requested range, from the start of the file.
fn range(fs: &Fs, open: u32, request: &libc::flock) -> Result<(u64, u64), Errno> {
    let base = match i32::from(request.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => fs.description(open).offset() as i64,
        libc::SEEK_END if fs.description(open).is_dir() => 0,
        libc::SEEK_END => fs.live_of(open).and_then(|live| fs.size(live))? as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = request.l_start.checked_add(base).ok_or(Errno::OVERFLOW)?;
    let start = u64::try_from(start).map_err(|_| Errno::INVAL)?;
    match request.l_len {
        0 => Ok((start, TO_THE_END)),
        length @ 1.. => match start + (length as u64 - 1) {
            end @ ..=TO_THE_END => Ok((start, end)),
            _ => Err(Errno::OVERFLOW),
        },
        length => {
            let first = start.checked_sub(length.unsigned_abs());
            Ok((first.ok_or(Errno::INVAL)?, start - 1))
        }
    }
}

/// Sets a lock by calling `lock`. Programs that synchronise by locks must see each other's buffered
/// writes and stores through mappings. So this node's changes are written back before a lock is
/// released (or downgraded), and changes of other nodes are fetched after a lock has been acquired.
fn around(
    fs: &Fs,
    open: u32,
    want: LockType,
    lock: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    map::before_change(fs, open);
    fs.buffers().write_back_open(open);
    lock()?;
    if want != LockType::Unlocked {
        fs.buffers().look_again_open(open);
        map::after_lock(fs, open);
    }
    Ok(())
}

/// Serves the lock commands of fcntl.
pub unsafe fn fcntl(fs: &Fs, open: u32, cmd: i32, arg: i64) -> i64 {
    // SAFETY: any bytes are a flock; a bad address is caught.
    let request: libc::flock = match unsafe { user::take(arg) } {
        Ok(request) => request,
        Err(e) => return errno(e),
    };
    match ranges(fs, open, cmd, request) {
        Err(e) => errno(e),
        Ok(None) => 0,
        // SAFETY: the program passed this address to be written; a bad address is caught.
        Ok(Some(found)) => value(unsafe { user::give(found, arg) }),
    }
}

fn ranges(
    fs: &Fs,
    open: u32,
    cmd: i32,
    mut request: libc::flock,
) -> Result<Option<libc::flock>, Errno> {
    let of_description = matches!(
        cmd,
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW
    );
    let setting = !matches!(cmd, libc::F_GETLK | libc::F_OFD_GETLK);
    // Errors are returned in the kernel's order.
    let want = match i32::from(request.l_type) {
        libc::F_RDLCK => Ok(LockType::Shared),
        libc::F_WRLCK => Ok(LockType::Exclusive),
        libc::F_UNLCK if setting => Ok(LockType::Unlocked),
        _ => Err(Errno::INVAL),
    };
    if !setting && !of_description {
        want?;
    }
    let range = range(fs, open, &request)?;
    let want = want?;
    let access = fs.description(open).flags() & libc::O_ACCMODE;
    if setting {
        let wrong = match want {
            LockType::Shared => !matches!(access, libc::O_RDONLY | libc::O_RDWR),
            LockType::Exclusive => !matches!(access, libc::O_WRONLY | libc::O_RDWR),
            LockType::Unlocked => false,
        };
        if wrong {
            return Err(Errno::BADF);
        }
    }
    if of_description && request.l_pid != 0 {
        return Err(Errno::INVAL);
    }
    if setting {
        let wait = matches!(cmd, libc::F_SETLKW | libc::F_OFD_SETLKW);
        let cluster = fs.cluster();
        let lock = || {
            cluster
                .locks()
                .lock_range(open, of_description, want, range, wait)
        };
        return around(fs, open, want, lock).map(|()| None);
    }
    match fs
        .cluster()
        .locks()
        .range_in_the_way(open, of_description, want, range)?
    {
        None => request.l_type = libc::F_UNLCK as i16,
        Some(other) => {
            request.l_type = match other.has {
                LockType::Exclusive => libc::F_WRLCK as i16,
                _ => libc::F_RDLCK as i16,
            };
            request.l_whence = libc::SEEK_SET as i16;
            request.l_start = other.start as i64;
            request.l_len = match other.end {
                TO_THE_END => 0,
                end => (end - other.start + 1) as i64,
            };
            // -1: the lock of a description has no process, and a process of another node has no
            // number on this node.
            let here = other.owner.node == fs.cluster().store().peers().node();
            request.l_pid = match other.owner.pid() {
                Some(pid) if here => pid as i32,
                _ => -1,
            };
        }
    }
    Ok(Some(request))
}

/// Serves flock(2).
pub fn flock(a: &[i64; 6]) -> i64 {
    /// Formerly used by Samba; without effect now.
    const LOCK_MAND: i32 = 32;
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let operation = a[1] as i32;
    if operation & LOCK_MAND != 0 {
        return 0;
    }
    let want = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => LockType::Shared,
        libc::LOCK_EX => LockType::Exclusive,
        libc::LOCK_UN => LockType::Unlocked,
        _ => return errno(Errno::INVAL),
    };
    let flags = fs.description(open).flags();
    let is_for_nothing = flags & libc::O_ACCMODE == libc::O_ACCMODE;
    if flags & libc::O_PATH != 0 || is_for_nothing && want != LockType::Unlocked {
        return errno(Errno::BADF);
    }
    let lock = || {
        let wait = operation & libc::LOCK_NB == 0;
        fs.cluster().locks().flock(open, want, wait)
    };
    value(around(fs, open, want, lock).map(|()| 0))
}

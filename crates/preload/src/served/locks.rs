//! Locks on files of a pool: flock(2) and fcntl's. They are the store's (`forebay_store::locks`),
//! which knows who is in whose way, waits, and finds deadlocks. Here the arguments are read; what a
//! close gives up is given up by `posix`.

use crate::map;
use crate::pool::fds;
use crate::program::results::{errno, value};
use crate::program::user;
use forebay_intercept::PASS;
use forebay_posix::{Errno, Fs};
use forebay_store::LockType;
use forebay_store::locks::TO_THE_END;

/// First and last byte of what the program asks for, from the start of the file on.
fn range(fs: &Fs, open: u32, asked: &libc::flock) -> Result<(u64, u64), Errno> {
    let base = match i32::from(asked.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => fs.description(open).offset() as i64,
        libc::SEEK_END => fs.live_of(open).and_then(|live| fs.size(live))? as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = asked.l_start.checked_add(base).ok_or(Errno::OVERFLOW)?;
    let start = u64::try_from(start).map_err(|_| Errno::INVAL)?;
    match asked.l_len {
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

/// Sets a lock. Programs that take turns by locks see what others have stored through mappings, or
/// kept back: that is written back before a lock is given up (or made a weaker one), what was
/// stored elsewhere fetched when one has been got.
fn around(
    fs: &Fs,
    open: u32,
    want: LockType,
    lock: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    map::before_change(fs, open);
    fs.write_back_open(open);
    lock()?;
    if want != LockType::Unlocked {
        fs.look_again_open(open);
        map::after_lock(fs, open);
    }
    Ok(())
}

/// The lock commands of fcntl.
pub unsafe fn fcntl(fs: &Fs, open: u32, cmd: i32, arg: i64) -> i64 {
    // SAFETY: the program's own struct flock.
    let asked: libc::flock = match unsafe { user::take(arg) } {
        Ok(asked) => asked,
        Err(e) => return errno(e),
    };
    match ranges(fs, open, cmd, asked) {
        Err(e) => errno(e),
        Ok(None) => 0,
        // SAFETY: as above.
        Ok(Some(found)) => value(unsafe { user::give(found, arg) }),
    }
}

fn ranges(
    fs: &Fs,
    open: u32,
    cmd: i32,
    mut asked: libc::flock,
) -> Result<Option<libc::flock>, Errno> {
    let of_description = matches!(
        cmd,
        libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW
    );
    let setting = !matches!(cmd, libc::F_GETLK | libc::F_OFD_GETLK);
    let want = match i32::from(asked.l_type) {
        libc::F_RDLCK => LockType::Shared,
        libc::F_WRLCK => LockType::Exclusive,
        libc::F_UNLCK if setting => LockType::Unlocked,
        _ => return Err(Errno::INVAL),
    };
    if of_description && asked.l_pid != 0 {
        return Err(Errno::INVAL);
    }
    let range = range(fs, open, &asked)?;
    let access = fs.description(open).flags() & libc::O_ACCMODE;
    if setting {
        let wrong = match want {
            LockType::Shared => access == libc::O_WRONLY,
            LockType::Exclusive => access == libc::O_RDONLY,
            LockType::Unlocked => false,
        };
        if wrong {
            return Err(Errno::BADF);
        }
        let wait = matches!(cmd, libc::F_SETLKW | libc::F_OFD_SETLKW);
        let cluster = fs.cluster();
        let lock = || cluster.lock_range(open, of_description, want, range, wait);
        return around(fs, open, want, lock).map(|()| None);
    }
    match fs
        .cluster()
        .range_in_the_way(open, of_description, want, range)?
    {
        None => asked.l_type = libc::F_UNLCK as i16,
        Some(other) => {
            asked.l_type = match other.has {
                LockType::Exclusive => libc::F_WRLCK as i16,
                _ => libc::F_RDLCK as i16,
            };
            asked.l_whence = libc::SEEK_SET as i16;
            asked.l_start = other.start as i64;
            asked.l_len = match other.end {
                TO_THE_END => 0,
                end => (end - other.start + 1) as i64,
            };
            // Those of descriptions belong to no process, those of other nodes to none that could
            // be told by a number here.
            let here = other.owner.node == fs.cluster().names().node();
            asked.l_pid = match other.owner.pid() {
                Some(pid) if here => pid as i32,
                _ => -1,
            };
        }
    }
    Ok(Some(asked))
}

/// flock(2).
pub fn flock(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    if fs.description(open).is_path_only() {
        return errno(Errno::BADF);
    }
    let operation = a[1] as i32;
    let want = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => LockType::Shared,
        libc::LOCK_EX => LockType::Exclusive,
        libc::LOCK_UN => LockType::Unlocked,
        _ => return errno(Errno::INVAL),
    };
    let lock = || {
        let wait = operation & libc::LOCK_NB == 0;
        fs.cluster().flock(open, want, wait)
    };
    value(around(fs, open, want, lock).map(|()| 0))
}

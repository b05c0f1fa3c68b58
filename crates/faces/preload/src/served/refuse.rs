//! Refusal of system calls that a pool can't serve: the kernel, which knows nothing of the pool,
//! would do them wrongly.

use crate::calls;
use crate::paths::{PathCall, on_path};
use crate::pool::{self, fds};
use crate::program::results::errno;
use crate::program::user;
use crate::served::stat;
use forebay_intercept::PASS;
use forebay_posix::{EXEC, Errno, Follow};
use forebay_store::process::thread_ids::thread_count;
use rustix::thread::CapabilitySet;

/// Returns EOPNOTSUPP for a path of the pool, or the error of the path itself.
pub unsafe fn path(p: PathCall<'_>) -> i64 {
    let Some((dirfd, path)) = calls::refused_path(p.nr) else {
        return PASS;
    };
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        // An empty path means the descriptor itself.
        let is_empty = p.args[path] == 0 || stat::is_empty(p.args[path]);
        if is_empty && dirfd.is_some_and(|i| fds::pool_file(p.args[i] as i32).is_some()) {
            return errno(Errno::OPNOTSUPP);
        }
        on_path(p, dirfd, path, Follow::Yes, |_, place| {
            place.existing()?;
            Err(Errno::OPNOTSUPP)
        })
    }
}

/// Returns EPERM if the caller may not mount file systems.
fn may_mount() -> Result<(), Errno> {
    check_capability(CapabilitySet::SYS_ADMIN)
}

/// Returns EPERM if the caller doesn't have this capability.
fn check_capability(capability: CapabilitySet) -> Result<(), Errno> {
    let can = rustix::thread::capabilities(None)?;
    if can.effective.contains(capability) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Refuses chroot to a directory of the pool. Returns the error that the kernel would find,
/// otherwise EOPNOTSUPP.
pub unsafe fn chroot(p: PathCall<'_>) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 0, Follow::Yes, |fs, place| {
            if place.existing()?.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            fs.access(place, EXEC)?;
            check_capability(CapabilitySet::SYS_CHROOT)?;
            Err(Errno::OPNOTSUPP)
        })
    }
}

/// Refuses mount(source, target, type, flags, data) on a path of the pool.
pub unsafe fn mount(p: PathCall<'_>) -> i64 {
    const NOT_NEW: u64 = libc::MS_REMOUNT
        | libc::MS_BIND
        | libc::MS_MOVE
        | libc::MS_SHARED
        | libc::MS_PRIVATE
        | libc::MS_SLAVE
        | libc::MS_UNBINDABLE;
    let a = p.args;
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 1, Follow::Yes, |_, place| {
            place.existing()?;
            may_mount()?;
            if a[3] as u64 & NOT_NEW == 0 {
                let kind = user::text(a[2]).ok_or(Errno::INVAL)?;
                if !is_known(&kind) {
                    return Err(Errno::NODEV);
                }
            }
            Err(Errno::OPNOTSUPP)
        })
    }
}

/// Whether the kernel supports this file system type.
fn is_known(kind: &[u8]) -> bool {
    let all = std::fs::read("/proc/filesystems").unwrap_or_default();
    let mut names = all.split(|&b| b == b'\n' || b == b'\t');
    names.any(|name| name == kind && !kind.is_empty())
}

/// Refuses umount2 with EINVAL, because nothing is mounted on a path of the pool.
pub unsafe fn umount(p: PathCall<'_>) -> i64 {
    let follow = match p.args[1] as i32 & libc::UMOUNT_NOFOLLOW {
        0 => Follow::Yes,
        _ => Follow::No,
    };
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 0, follow, |_, place| {
            place.existing()?;
            may_mount()?;
            Err(Errno::INVAL)
        })
    }
}

/// Returns EOPNOTSUPP for a pool descriptor.
pub fn descriptor(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some(_) => errno(Errno::OPNOTSUPP),
        None => PASS,
    }
}

/// Refuses unshare(CLONE_FILES) in a process of several threads: the library's table of descriptors
/// exists once per process, so a thread can't get its own.
///
/// # Errors
/// EINVAL in that case.
pub fn unshare(a: &[i64; 6]) -> Result<(), i64> {
    if a[0] & i64::from(libc::CLONE_FILES) == 0 {
        return Ok(());
    }
    match pool::open_fs() {
        Some(fs) if thread_count() > 1 && fs.descriptors().any() => Err(errno(Errno::INVAL)),
        _ => Ok(()),
    }
}

/// Refuses landlock_add_rule(ruleset, type, rule, flags) for objects beneath a directory of the
/// pool.
pub unsafe fn landlock(a: &[i64; 6]) -> i64 {
    const PATH_BENEATH: i64 = 1;
    if a[1] != PATH_BENEATH || a[2] == 0 {
        return PASS;
    }
    // SAFETY: any bytes are a descriptor's number; a bad address is caught.
    match unsafe { user::take(a[2].wrapping_add(8)) }.map(fds::pool_file) {
        Ok(Some(_)) => errno(Errno::OPNOTSUPP),
        _ => PASS,
    }
}

//! Changes of the descriptor tables, the kernel's and the one in the process's area: open, close
//! and dup.
//!
//! A number is first reserved in the kernel (as a duplicate of the placeholder) and then recorded
//! in the area. A number is removed from the area before the kernel frees it. [`table_change`]
//! keeps both tables in agreement while another thread makes a child.

use crate::pool::{self, fds, placeholder};
use crate::program::{filter, results, table_change};
use crate::served::inotify;
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs};
use forebay_store::Section;
use rustix::fd::{AsRawFd, BorrowedFd};

/// Removes table entries whose numbers aren't open in the kernel. With `executed`, exec has closed
/// these numbers. In a child, another thread of the parent closed them between the copies of the
/// two tables, and a number may stand for another file by now.
pub fn drop_closed(fs: &Fs, executed: bool) {
    let table = fs.descriptors();
    let Ok(ours) = rustix::fs::stat(fs.pool().dir().join("pool.json")) else {
        return;
    };
    for fd in 0..table.end() as i32 {
        let Some(open) = table.get(fd) else {
            continue;
        };
        // SAFETY: fstat only asks the kernel, and fails if `fd` isn't open.
        let there = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
        let as_noted = |s: rustix::fs::Stat| {
            (s.st_dev, s.st_ino) == (ours.st_dev, ours.st_ino)
                || fs.description(open).is_fifo() && s.st_mode & libc::S_IFMT == libc::S_IFIFO
        };
        if there.is_ok_and(as_noted) {
            filter::watch(fd);
        } else {
            let _changing = table.changing().ok();
            if let Ok(Some(open)) = table.set(fd, None) {
                let open = fs.description(open);
                let _ = if executed {
                    open.close()
                } else {
                    open.release()
                };
            }
        }
    }
}

/// Returns a new descriptor for `open`, and takes over the caller's reference.
///
/// # Errors
/// EMFILE.
pub fn install(fs: &Fs, open: u32, cloexec: bool) -> Result<i32, Errno> {
    let cmd = if cloexec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    let _change = table_change::begin();
    let result = placeholder::descriptor(fs).and_then(|p| {
        // SAFETY: F_DUPFD takes no pointer; `p` keeps the descriptor open.
        let fd = unsafe {
            raw(
                libc::SYS_fcntl,
                [i64::from(p.as_raw_fd()), i64::from(cmd), 0, 0, 0, 0],
            )
        };
        results::check(fd).map(|fd| fd as i32)
    });
    match result.and_then(|fd| attach(fs, fd, open).map(|()| fd)) {
        Ok(fd) => Ok(fd),
        Err(e) => {
            let _ = fs.description(open).release();
            Err(e)
        }
    }
}

/// Makes `fd`, which is reserved in the kernel, stand for `open`.
///
/// # Errors
/// EMFILE for a number that is too high; `fd` is closed then.
pub fn attach(fs: &Fs, fd: i32, open: u32) -> Result<(), Errno> {
    let table = fs.descriptors();
    let _changing = table.changing()?;
    match table.set(fd, Some(open)) {
        Ok(before) => {
            filter::watch(fd);
            // The description for which the number stood before is closed.
            if let Some(before) = before {
                let _ = fs.description(before).close();
            }
            Ok(())
        }
        Err(e) => {
            close_kernel(fd);
            Err(e)
        }
    }
}

fn close_kernel(fd: i32) -> i64 {
    // SAFETY: closes a number that the program asked to close, or one of this library.
    unsafe { raw(libc::SYS_close, [i64::from(fd), 0, 0, 0, 0, 0]) }
}

/// Serves close(2) of a watched descriptor.
pub fn close(fd: i32) -> Result<i64, Errno> {
    if forebay_runtime::fd::is_internal(fd) {
        if forebay_store::lmdb::is_opening() {
            forebay_runtime::fd::forget(fd);
            filter::unwatch(fd);
            return results::check(close_kernel(fd));
        }
        return Err(Errno::BADF);
    }
    let _changing = changing();
    // The number is removed from the table before the kernel can reuse it.
    let unwatched = inotify::before_close(fd);
    let (open, result) = {
        let _change = table_change::begin();
        if filter::is_inotify(fd) {
            filter::unwatch(fd);
        }
        (forget(fd), results::check(close_kernel(fd)))
    };
    inotify::closed(unwatched);
    if let Some((fs, open)) = open {
        fs.description(open).close()?;
    }
    result
}

/// Guards a description that is removed from the table but not released yet. Without a guard the
/// close works as well; only a death of the process in between would be noticed later.
fn changing() -> Option<Section<'static>> {
    pool::open_fs()?.descriptors().changing().ok()
}

/// Removes `fd` from the table. Returns the description for which it stood.
fn forget(fd: i32) -> Option<(&'static Fs, u32)> {
    let fs = pool::open_fs()?;
    let open = fs.descriptors().set(fd, None).ok()??;
    filter::unwatch(fd);
    Some((fs, open))
}

/// Serves close_range(2).
pub fn close_range(first: u32, last: u32, flags: u32) -> i64 {
    let range = |a: u32, b: u32| {
        // SAFETY: close_range takes no pointer; where it closes, the range has none of this
        // library's descriptors.
        unsafe {
            raw(
                libc::SYS_close_range,
                [i64::from(a), i64::from(b), i64::from(flags), 0, 0, 0],
            )
        }
    };
    // Only calls that close are handled here. (For other flags the kernel returns EINVAL.)
    if first > last || flags & !libc::CLOSE_RANGE_UNSHARE != 0 {
        return range(first, last);
    }
    if let Some(fs) = pool::open_fs() {
        let end = fs.descriptors().end() as u32;
        for fd in first..last.saturating_add(1).min(end) {
            let _changing = changing();
            // Entries at unwatched numbers are descriptions that are being passed to another
            // process.
            if filter::watched(fd as i32)
                && let Some((fs, open)) = forget(fd as i32)
            {
                let _ = fs.description(open).close();
            }
        }
    }
    let mut at = first;
    let mut internal = forebay_runtime::fd::internal();
    internal.sort_unstable();
    for fd in internal {
        let fd = fd as u32;
        if fd < at || fd > last {
            continue;
        }
        if fd > at {
            let result = range(at, fd - 1);
            if result < 0 {
                return result;
            }
        }
        at = fd + 1;
    }
    if at <= last { range(at, last) } else { 0 }
}

/// Updates the table after dup, dup2, dup3 or fcntl's F_DUPFD has made `new` a copy of `old`.
pub fn duplicated(old: i32, new: i32) -> Result<i64, Errno> {
    if old == new {
        return Ok(i64::from(new));
    }
    let _changing = changing();
    // `new` is replaced in one step, so it always stands for a description.
    if let Some((fs, _)) = fds::pool_object(old) {
        // Another thread may be closing `old`.
        let Some(open) = fs.descriptors().retained(old) else {
            if let Some((fs, open)) = forget(new) {
                let _ = fs.description(open).close();
            }
            close_kernel(new);
            return Err(Errno::BADF);
        };
        if let Err(e) = attach(fs, new, open) {
            let _ = fs.description(open).release();
            return Err(e);
        }
    } else if let Some((fs, open)) = forget(new) {
        let _ = fs.description(open).close();
    }
    inotify::duplicated(old, new);
    Ok(i64::from(new))
}

/// Serves dup2(2) and dup3(2).
pub fn dup_onto(nr: i64, a: &[i64; 6], flags: i64) -> i64 {
    let (old, new) = (a[0] as i32, a[1] as i32);
    let is_refused = nr == libc::SYS_dup3 && (old == new || flags as i32 & !libc::O_CLOEXEC != 0);
    if is_refused || !filter::watched(old) && !filter::watched(new) {
        return PASS;
    }
    if forebay_runtime::fd::is_internal(old) {
        return -i64::from(libc::EBADF);
    }
    let _change = table_change::begin();
    // SAFETY: dup2 and dup3 take no pointers; the program makes this call.
    let call = || unsafe { raw(nr, [i64::from(old), i64::from(new), flags, 0, 0, 0]) };
    let result = if forebay_runtime::fd::is_internal(new) {
        onto_ours(old, new, call)
    } else {
        call()
    };
    if result < 0 {
        return result;
    }
    match duplicated(old, new) {
        Ok(fd) => fd,
        Err(e) => -i64::from(e.raw_os_error()),
    }
}

/// Makes `call`, a dup2 of `old`, after moving this library's descriptor `new` to another number.
fn onto_ours(old: i32, new: i32, call: impl Fn() -> i64) -> i64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // SAFETY: fcntl only asks the kernel, and fails if `old` isn't open.
    let is_open = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(old) }).is_ok();
    // If the kernel would refuse the call, the descriptor isn't moved.
    if !is_open || limit.current.is_some_and(|limit| new as u64 >= limit) {
        return -i64::from(libc::EBADF);
    }
    let mut result = 0;
    match forebay_runtime::fd::vacate(new, || result = call()) {
        Ok(()) => {
            filter::unwatch(new);
            result
        }
        Err(e) => -i64::from(e.raw_os_error()),
    }
}

pub unsafe fn dup(a: &[i64; 6]) -> i64 {
    let _change = table_change::begin();
    // SAFETY: dup takes no pointer; the program makes this call.
    let new = unsafe { raw(libc::SYS_dup, *a) };
    if new < 0 {
        return new;
    }
    results::value(duplicated(a[0] as i32, new as i32))
}

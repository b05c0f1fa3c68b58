//! Descriptors: real kernel numbers that stand for open files of the pool.
//!
//! The number is reserved in the kernel by duplicating one `O_PATH` descriptor, the
//! placeholder. What it stands for is in the process's area of the control region. A
//! filter byte per number tells the interception which calls concern us at all; while a
//! vfork child runs in our memory, bytes are only ever set, never cleared.

use crate::{dnotify, inotify, locks, process, runtime};
use forebay_intercept::raw;
use forebay_posix::Fs;
use forebay_store::{Errno, MAX_FDS, Section, Store};
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::*};

/// Not zero: calls on this number come to us.
pub static FILTER: [AtomicU8; MAX_FDS] = [const { AtomicU8::new(0) }; MAX_FDS];
/// In [`FILTER`]: an inotify descriptor.
const INOTIFY: u8 = 2;
/// A directory under whose number the kernel finds a shadow.
const SHADOW: u8 = 3;
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);

/// Has calls on `fd` come to us.
pub fn watch(fd: i32) {
    mark(fd, 1);
}

fn mark(fd: i32, what: u8) {
    if let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n)) {
        f.store(what, Relaxed);
    }
}

fn is_marked(fd: i32, what: u8) -> bool {
    let n = usize::try_from(fd).ok();
    n.and_then(|n| FILTER.get(n))
        .is_some_and(|f| f.load(Relaxed) == what)
}

/// As [`watch`], of an inotify descriptor: the kernel's own, but for what is read.
pub fn watch_inotify(fd: i32) {
    mark(fd, INOTIFY);
}

/// Whether `fd` was an inotify descriptor when it was last looked at.
pub fn is_inotify(fd: i32) -> bool {
    is_marked(fd, INOTIFY)
}

/// As [`watch`], of a directory under whose number the kernel finds a shadow now.
pub fn watch_shadow(fd: i32) {
    mark(fd, SHADOW);
}

/// Whether `fd` is such a one.
pub fn has_shadow(fd: i32) -> bool {
    is_marked(fd, SHADOW)
}

/// Calls on `fd` go to the kernel again.
pub fn unwatch(fd: i32) {
    if !process::has_vfork_child()
        && let Some(f) = usize::try_from(fd).ok().and_then(|n| FILTER.get(n))
    {
        f.store(0, Relaxed);
    }
}

/// Whether calls on `fd` concern us.
pub fn watched(fd: i32) -> bool {
    usize::try_from(fd)
        .ok()
        .and_then(|n| FILTER.get(n))
        .is_some_and(|f| f.load(Relaxed) != 0)
}

/// The open file behind `fd`, if calls on it are answered from the pool.
pub fn pool_file(fd: i32) -> Option<(&'static Fs, u32)> {
    pool_object(fd).filter(|&(fs, open)| !is_fifo(fs, open))
}

/// The object behind `fd`, if it is one of the pool: what has attributes. Beside files
/// these are FIFOs, which the kernel reads and writes.
pub fn pool_object(fd: i32) -> Option<(&'static Fs, u32)> {
    if !watched(fd) {
        return None;
    }
    let fs = runtime::open_fs()?;
    Some((fs, fs.store().fd_get(fd)?))
}

/// Whether the descriptor is a FIFO of the kernel's, not only a placeholder of one.
fn is_fifo(fs: &Fs, open: u32) -> bool {
    let o = fs.store().open_file(open);
    o.kind.load(Relaxed) == libc::S_IFIFO && o.flags.load(Relaxed) & libc::O_PATH as u32 == 0
}

/// Whether `fd` is one of the pool that was opened with O_PATH.
pub fn is_path_only(fd: i32) -> bool {
    pool_file(fd).is_some_and(|(fs, open)| {
        fs.store().open_file(open).flags.load(Relaxed) as i32 & libc::O_PATH != 0
    })
}

/// Whether the kernel finds a placeholder of whatever process at `path`.
pub fn leads_to_placeholder(path: &[u8]) -> bool {
    let Some(settings) = runtime::settings() else {
        return false;
    };
    let ours = [settings.dir.to_bytes(), b"/pool.json"].concat();
    match (rustix::fs::stat(path), rustix::fs::stat(ours)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
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

/// Whether any number stands for a file of the pool, or anything is mapped.
pub fn any_open(store: &Store) -> bool {
    let Ok(area) = store.area() else { return false };
    (0..store.fds_end())
        .map_while(|n| area.fd(n))
        .any(|f| f.load(Relaxed) != 0)
        || store.map_table().is_ok_and(|table| {
            let maps = table.up_to(store.maps_end());
            maps.iter().any(|m| m.open.load(Relaxed) != 0)
        })
}

/// The next one is opened again.
pub fn forget_placeholder() {
    PLACEHOLDER.store(-1, Release);
}

/// The descriptor whose duplicates stand for files of the pool.
///
/// # Errors
/// What open says.
pub fn placeholder(fs: &Fs) -> Result<i32, Errno> {
    let fd = PLACEHOLDER.load(Acquire);
    if fd >= 0 {
        return Ok(fd);
    }
    let path = fs.pool().dir().join("pool.json");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = forebay_media::with_room(|| {
        rustix::fs::open(&path, flags, Mode::empty()).map(forebay_media::lift)
    })?;
    let new = opened.into_raw_fd();
    match PLACEHOLDER.compare_exchange(-1, new, AcqRel, Acquire) {
        Ok(_) => Ok(new),
        // Two threads at once: one descriptor more does no harm.
        Err(other) => Ok(other),
    }
}

/// Takes out of the table, in a child or after exec, what the kernel doesn't have: what
/// exec has closed, and what another thread closed between our copying the table and the
/// kernel's copying its own (the number may stand for something else by now). `executed`: it is
/// after exec, and what is missing was closed by it.
pub fn drop_strangers(fs: &Fs, executed: bool) {
    let store = fs.store();
    let Ok(ours) = rustix::fs::stat(fs.pool().dir().join("pool.json")) else {
        return;
    };
    for fd in 0..store.fds_end() as i32 {
        let Some(open) = store.fd_get(fd) else {
            continue;
        };
        // SAFETY: only asks the kernel; no such descriptor is an error.
        let there = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
        let as_noted = |s: rustix::fs::Stat| {
            (s.st_dev, s.st_ino) == (ours.st_dev, ours.st_ino)
                || is_fifo(fs, open) && s.st_mode & libc::S_IFMT == libc::S_IFIFO
        };
        // A shadow, see dnotify.rs.
        let is_shadow = |s: &rustix::fs::Stat| {
            let is_dir = store.open_file(open).kind.load(Relaxed) == libc::S_IFDIR;
            is_dir && s.st_dev == ours.st_dev && s.st_mode & libc::S_IFMT == libc::S_IFDIR
        };
        if there.as_ref().is_ok_and(is_shadow) {
            watch_shadow(fd);
        } else if there.is_ok_and(as_noted) {
            watch(fd);
        } else {
            let _section = store.section().ok();
            if let Ok(Some(open)) = store.fd_set(fd, None) {
                if executed {
                    locks::on_close(fs, open);
                }
                let _ = store.open_release(open);
            }
        }
    }
}

/// A new descriptor for `open`, whose reference it takes over.
///
/// # Errors
/// EMFILE.
pub fn install(fs: &Fs, open: u32, cloexec: bool) -> Result<i32, Errno> {
    let cmd = if cloexec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    let place = placeholder(fs);
    let _change = process::change_table();
    let result = place.and_then(|p| {
        // SAFETY: duplicates a descriptor of ours.
        let fd = unsafe { raw(libc::SYS_fcntl, [i64::from(p), i64::from(cmd), 0, 0, 0, 0]) };
        check(fd).map(|fd| fd as i32)
    });
    match result.and_then(|fd| attach(fs, fd, open).map(|()| fd)) {
        Ok(fd) => Ok(fd),
        Err(e) => {
            let _ = fs.store().open_release(open);
            Err(e)
        }
    }
}

/// Makes `fd`, reserved in the kernel, stand for `open`.
///
/// # Errors
/// EMFILE for a number that is too high; it is closed then.
pub fn attach(fs: &Fs, fd: i32, open: u32) -> Result<(), Errno> {
    let _section = fs.store().section()?;
    match fs.store().fd_set(fd, Some(open)) {
        Ok(before) => {
            watch(fd);
            // What the number stood for before is closed.
            if let Some(before) = before {
                locks::on_close(fs, before);
                let _ = fs.store().open_release(before);
            }
            Ok(())
        }
        Err(e) => {
            close_kernel(fd);
            Err(e)
        }
    }
}

/// A kernel result as a `Result`.
pub fn check(result: i64) -> Result<i64, Errno> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result)
    }
}

fn close_kernel(fd: i32) -> i64 {
    // SAFETY: closing a number that the program asked to close, or one of ours.
    unsafe { raw(libc::SYS_close, [i64::from(fd), 0, 0, 0, 0, 0]) }
}

/// close(2) of a watched descriptor.
pub fn close(fd: i32) -> Result<i64, Errno> {
    if forebay_media::is_internal(fd) {
        if forebay_store::lmdb::is_opening() {
            forebay_media::forget(fd);
            unwatch(fd);
            return check(close_kernel(fd));
        }
        return Err(Errno::BADF);
    }
    let _section = section();
    // Out of the table before the number is free for others.
    let (unwatched, shadow) = (inotify::before_close(fd), dnotify::before_close(fd));
    let (open, result) = {
        let _change = process::change_table();
        if is_inotify(fd) {
            unwatch(fd);
        }
        (forget(fd), check(close_kernel(fd)))
    };
    inotify::closed(unwatched);
    dnotify::closed(shadow);
    if let Some((fs, open)) = open {
        locks::on_close(fs, open);
        fs.store().open_release(open)?;
    }
    result
}

/// While a description is taken from the table but not released yet. Without one (nobody
/// lets us) it works as well, only a death in between would be noticed later.
fn section() -> Option<Section<'static>> {
    runtime::open_fs()?.store().section().ok()
}

/// Takes `fd` out of the table.
fn forget(fd: i32) -> Option<(&'static Fs, u32)> {
    let fs = runtime::open_fs()?;
    let open = fs.store().fd_set(fd, None).ok()??;
    unwatch(fd);
    Some((fs, open))
}

/// close_range(2).
pub fn close_range(first: u32, last: u32, flags: u32) -> i64 {
    let range = |a: u32, b: u32| {
        // SAFETY: what the program asked for, our own descriptors left out.
        unsafe {
            raw(
                libc::SYS_close_range,
                [i64::from(a), i64::from(b), i64::from(flags), 0, 0, 0],
            )
        }
    };
    if first > last || flags & libc::CLOSE_RANGE_CLOEXEC != 0 {
        return range(first, last);
    }
    if let Some(fs) = runtime::open_fs() {
        let end = fs.store().fds_end() as u32;
        for fd in first..last.saturating_add(1).min(end) {
            let _section = section();
            // What lies in the table at other numbers is on its way to another process.
            if watched(fd as i32)
                && let Some((fs, open)) = forget(fd as i32)
            {
                locks::on_close(fs, open);
                let _ = fs.store().open_release(open);
            }
        }
    }
    let mut at = first;
    let mut internal = forebay_media::internal();
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

/// dup, dup2, dup3 and fcntl's F_DUPFD, after the kernel has made `new` a copy of `old`.
pub fn duplicated(old: i32, new: i32) -> Result<i64, Errno> {
    if old == new {
        return Ok(i64::from(new));
    }
    let _section = section();
    // At no moment is `new` nothing.
    if let Some((fs, open)) = pool_object(old) {
        fs.store().open_retain(open);
        if let Err(e) = attach(fs, new, open) {
            let _ = fs.store().open_release(open);
            return Err(e);
        }
    } else if let Some((fs, open)) = forget(new) {
        locks::on_close(fs, open);
        let _ = fs.store().open_release(open);
    }
    inotify::duplicated(old, new);
    Ok(i64::from(new))
}

/// dup2(2) and dup3(2).
pub fn dup_onto(nr: i64, old: i32, new: i32, flags: i64) -> i64 {
    if forebay_media::is_internal(new) || forebay_media::is_internal(old) {
        return -i64::from(libc::EBADF);
    }
    let _change = process::change_table();
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, [i64::from(old), i64::from(new), flags, 0, 0, 0]) };
    if result < 0 {
        return result;
    }
    match duplicated(old, new) {
        Ok(fd) => fd,
        Err(e) => -i64::from(e.raw_os_error()),
    }
}

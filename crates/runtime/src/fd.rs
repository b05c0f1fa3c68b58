//! Our own descriptors inside somebody else's process.
//!
//! A library that opens a file takes the lowest free number, which the program may count
//! on. So every descriptor we keep is moved to the upper end of the number range and
//! noted here, so that the preload can hide it from a program that closes everything.

use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// How many numbers below the soft limit are used for our own descriptors.
pub const HIGH_FD_ROOM: u64 = 160;

/// Numbers from here on can't be guarded: the preload looks at a table by number.
const NUMBERS: u64 = 1 << 16;

static KEPT: [AtomicI32; 160] = [const { AtomicI32::new(-1) }; 160];

/// Runs `open`. If the program has used up its descriptors, again with its limit raised to
/// the hard one for that moment, so that what it has open goes on working.
///
/// # Errors
/// Those of `open`.
pub fn with_room<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    match open() {
        Err(Errno::MFILE) => raised(|_| open()).unwrap_or(Err(Errno::MFILE)),
        first => first,
    }
}

/// Runs `f` with the limit of descriptors raised to the hard one; it gets the limit that the
/// program has. None if that can't be done.
fn raised<T>(f: impl FnOnce(u64) -> T) -> Option<T> {
    static RAISING: Mutex<()> = Mutex::new(());
    // Never waited for: a forked child may have inherited it locked.
    let _one = RAISING.try_lock().ok()?;
    let limit = getrlimit(Resource::Nofile);
    let above = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let soft = limit.current.filter(|_| limit.current != limit.maximum)?;
    setrlimit(Resource::Nofile, above).ok()?;
    let result = f(soft);
    let _ = setrlimit(Resource::Nofile, limit);
    Some(result)
}

/// Moves `fd` to a high number with close-on-exec set and notes it as ours. Where the program
/// uses the high numbers itself, to one that it can't have for its limit, if there are any.
pub fn lift(fd: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(NUMBERS)
        .min(NUMBERS);
    let base = limit.saturating_sub(HIGH_FD_ROOM).max(limit / 2).max(3) as RawFd;
    let moved = (fd.as_raw_fd() < base)
        .then(|| rustix::io::fcntl_dupfd_cloexec(&fd, base).ok())
        .flatten();
    let beyond = |limit| rustix::io::fcntl_dupfd_cloexec(&fd, limit as RawFd).ok();
    let moved = moved.or_else(|| raised(beyond).flatten());
    let fd = moved.unwrap_or(fd);
    keep(fd.as_raw_fd());
    fd
}

/// Who is told of each descriptor that is noted from now on.
pub fn tell(watcher: fn(RawFd)) {
    let _ = WATCHER.set(watcher);
}

static WATCHER: OnceLock<fn(RawFd)> = OnceLock::new();

/// Notes `fd` as ours.
pub fn keep(fd: RawFd) {
    if let Some(watcher) = WATCHER.get() {
        watcher(fd);
    }
    for k in &KEPT {
        let old = k.load(Relaxed);
        if old == fd {
            return;
        }
        if old < 0 && k.compare_exchange(old, fd, Relaxed, Relaxed).is_ok() {
            return;
        }
    }
}

/// Whether the program must not see or close `fd`.
pub fn is_internal(fd: RawFd) -> bool {
    fd >= 0 && KEPT.iter().any(|k| k.load(Relaxed) == fd)
}

/// The descriptors noted as ours.
pub fn internal() -> Vec<RawFd> {
    KEPT.iter()
        .map(|k| k.load(Relaxed))
        .filter(|&fd| fd >= 0)
        .collect()
}

/// No longer notes `fd` as ours: somebody else closes it.
pub fn forget(fd: RawFd) {
    for k in &KEPT {
        let _ = k.compare_exchange(fd, -1, Relaxed, Relaxed);
    }
}

/// Forgets and closes a descriptor of ours.
pub fn drop_kept(fd: OwnedFd) {
    let raw = fd.into_raw_fd();
    for k in &KEPT {
        let _ = k.compare_exchange(raw, -1, Relaxed, Relaxed);
    }
    // SAFETY: raw came from an OwnedFd a line above and nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
}

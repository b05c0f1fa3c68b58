//! Forebay's own descriptors inside somebody else's process.
//!
//! A library that opens a file gets the lowest free number, which the program may count on. So
//! every descriptor that Forebay keeps is moved to the upper end of the number range and listed
//! here, so that the preload can hide it from a program that closes everything.

use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

/// Descriptor numbers below the soft limit that are used for Forebay's own descriptors.
pub const HIGH_FD_ROOM: u64 = 160;

/// Numbers from here on can't be guarded: the preload's table by number ends here.
const NUMBERS: u64 = 1 << 16;

static KEPT: [AtomicI32; 160] = [const { AtomicI32::new(-1) }; 160];

/// Runs `open`. If the program has used up its descriptors, runs it again with the soft limit
/// raised to the hard one for that moment, so that the files the program has open go on working.
///
/// # Errors
/// Those of `open`.
pub fn with_room<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    match open() {
        Err(Errno::MFILE) => raised(|_| open()).unwrap_or(Err(Errno::MFILE)),
        first => first,
    }
}

/// Runs `f` with the soft limit of descriptors raised to the hard one; `f` gets the program's
/// limit. None if the limit can't be raised.
fn raised<T>(f: impl FnOnce(u64) -> T) -> Option<T> {
    static RAISING: Mutex<()> = Mutex::new(());
    // Not waited for: a forked child may have inherited the lock held.
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

/// Moves `fd` to a high number with close-on-exec set, and lists it as ours. If the program uses
/// the high numbers itself, takes a number above the program's limit, if there is one.
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

/// Sets the function that is called with each descriptor listed from now on.
pub fn tell(watcher: fn(RawFd)) {
    let _ = WATCHER.set(watcher);
}

static WATCHER: OnceLock<fn(RawFd)> = OnceLock::new();

/// Lists `fd` as ours.
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

/// The descriptors listed as ours.
pub fn internal() -> Vec<RawFd> {
    KEPT.iter()
        .map(|k| k.load(Relaxed))
        .filter(|&fd| fd >= 0)
        .collect()
}

/// Takes `fd` off the list: somebody else closes it.
pub fn forget(fd: RawFd) {
    for k in &KEPT {
        let _ = k.compare_exchange(fd, -1, Relaxed, Relaxed);
    }
}

/// Takes a descriptor of ours off the list and closes it.
pub fn drop_kept(fd: OwnedFd) {
    let raw = fd.into_raw_fd();
    for k in &KEPT {
        let _ = k.compare_exchange(raw, -1, Relaxed, Relaxed);
    }
    // SAFETY: raw came from an OwnedFd a line above and nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
}

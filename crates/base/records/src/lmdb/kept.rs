//! Environments that couldn't be closed, and are kept until this process opens their file again.
//!
//! An environment isn't closed while another one of this process may use the same file
//! (`readers.rs`). Consider a program that attaches to a pool again and again, beside the preloaded
//! library: the program would lose descriptors and address space each time. So the environment is
//! kept here, and the next opening of the file takes it. At most one environment is kept for each
//! file that nothing in this process has open at the time.

use lmdb_master_sys as ffi;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{fstat, stat};
use std::path::Path;
use std::sync::Mutex;

/// An environment without transactions.
struct Kept {
    /// The record file: device and inode.
    file: (u64, u64),
    map_size: usize,
    /// The process that opened the environment. A forked child can't use an environment of its
    /// parent.
    pid: u32,
    env: *mut ffi::MDB_env,
    beside: Option<OwnedFd>,
}

// SAFETY: nothing uses the environment while it is in the list, and LMDB ties it to no thread
// (`NOTLS`).
unsafe impl Send for Kept {}

static IDLE_READERS: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps `env`, which has no transactions, for [`take`]. `beside`: a descriptor of its lock file.
pub(super) fn keep(env: *mut ffi::MDB_env, map_size: usize, beside: Option<OwnedFd>) {
    // The lock isn't waited for: in a forked child, it may be held by a thread that only the parent
    // has. Then the environment is lost.
    let (Some(file), Ok(mut kept)) = (file_of(env), IDLE_READERS.try_lock()) else {
        std::mem::forget(beside);
        return;
    };
    kept.push(Kept {
        file,
        map_size,
        pid: forebay_runtime::process::pid(),
        env,
        beside,
    });
}

/// Takes back an environment of the record file `path`, if one is kept.
pub(super) fn take(path: &Path, map_size: usize) -> Option<(*mut ffi::MDB_env, Option<OwnedFd>)> {
    let mut kept = IDLE_READERS.try_lock().ok()?;
    if kept.is_empty() {
        return None;
    }
    let found = stat(path).ok()?;
    let pid = forebay_runtime::process::pid();
    let wanted = ((found.st_dev, found.st_ino), map_size, pid);
    let at = kept
        .iter()
        .position(|k| (k.file, k.map_size, k.pid) == wanted)?;
    let taken = kept.swap_remove(at);
    Some((taken.env, taken.beside))
}

/// Device and inode of the record file of `env`.
fn file_of(env: *mut ffi::MDB_env) -> Option<(u64, u64)> {
    let mut fd = -1;
    // SAFETY: the environment is open; LMDB writes only to `fd`.
    if unsafe { ffi::mdb_env_get_fd(env, &mut fd) } != 0 || fd < 0 {
        return None;
    }
    // SAFETY: `fd` is the environment's descriptor, which is open as long as the environment is.
    let found = fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((found.st_dev, found.st_ino))
}

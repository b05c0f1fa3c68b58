//! The programs for which a pool is mounted (`forebay exec --with-mount`): when the last of them
//! ends, the pool is unmounted.
//!
//! The mount's record is `mounts/PID`. Beside it, the directory `mounts/PID.for` has an empty file
//! for each program, named by its process id. A process that adds a program holds the directory's
//! lock, and so does the server while it looks whether any program is left. Once the record is
//! removed, no program can join.

use crate::found::runs;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often to check whether a program runs, if the kernel has no pidfd.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Pause between two attempts to take a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

fn dir_of(record: &Path) -> PathBuf {
    let mut dir = record.as_os_str().to_owned();
    dir.push(".for");
    dir.into()
}

fn lock(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty())?;
    flock(&fd, FlockOperation::LockExclusive)?;
    Ok(fd)
}

/// Takes the lock of a directory, as soon as no other process has it; None after `until`.
pub fn lock_until(dir: &Path, until: Instant) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
    while flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    Some(fd)
}

/// Creates the directory with the first program. Must be called before the mount's record exists.
///
/// # Errors
/// If the directory or the file can't be created.
pub fn begin(record: &Path, pid: u32) -> io::Result<()> {
    let dir = dir_of(record);
    // Removes files that a killed server with the same process id has left.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir)?;
    std::fs::write(dir.join(pid.to_string()), "")
}

/// Adds a program. Returns false if the mount is about to be removed; true without adding anything
/// if the mount doesn't end with its programs.
pub fn join(record: &Path, pid: u32) -> bool {
    let dir = dir_of(record);
    match lock(&dir) {
        Ok(_lock) => record.exists() && std::fs::write(dir.join(pid.to_string()), "").is_ok(),
        Err(_) => record.exists(),
    }
}

/// Waits until all programs have ended, and removes the record.
pub fn wait(record: &Path) {
    let dir = dir_of(record);
    loop {
        for pid in noted(&dir) {
            wait_for(pid);
            let _ = std::fs::remove_file(dir.join(pid.to_string()));
        }
        let _lock = lock(&dir);
        if noted(&dir).is_empty() {
            let _ = std::fs::remove_file(record);
            return;
        }
    }
}

/// Removes the directory of programs beside a record.
pub fn end(record: &Path) {
    let _ = std::fs::remove_dir_all(dir_of(record));
}

fn noted(dir: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let number = |e: std::fs::DirEntry| e.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

fn wait_for(pid: u32) {
    let Some(id) = Pid::from_raw(pid as i32) else {
        return;
    };
    match pidfd_open(id, PidfdFlags::empty()) {
        Ok(fd) => while poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).is_err() {},
        Err(rustix::io::Errno::SRCH) => {}
        Err(_) => {
            while runs(pid) {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

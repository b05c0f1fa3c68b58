//! Removes the shadows that no process watches any more: those of programs that were killed, or
//! that closed their descriptor while a child process had it, too.

use super::place;
use super::shadow::{id_of, names_in, watched_by};
use crate::control_region::FILTER_WORDS;
use crate::process::{Life, attached, life};
use crate::views::Watches;
use rustix::io::{Errno, Result};
use std::collections::HashSet;
use std::sync::atomic::Ordering::*;

impl Watches<'_> {
    /// Removes shadows that no process of the pool watches. If no shadow is left, clears the flag
    /// by which operations look for watchers.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn sweep_watches(&self) -> Result<()> {
        if !self.has_watches() {
            return Ok(());
        }
        let _changing = self.change_watches()?;
        let all = self.watch_path("");
        let mut watched = HashSet::new();
        for pid in attached(self.store.control()) {
            watched_by_process(pid, &mut watched)?;
        }
        let mut filter = [0; FILTER_WORDS];
        let mut any = false;
        for name in names_in(&all)? {
            let Some(id) = id_of(&name) else { continue };
            let dir = all.join(name);
            for shadow in names_in(&dir)?.iter().map(|n| dir.join(n)) {
                let inode = rustix::fs::stat(&shadow).map(|s| s.st_ino);
                if inode.is_ok_and(|inode| !watched.contains(&inode)) {
                    self.remove_shadow(&shadow);
                }
            }
            if rustix::fs::rmdir(&dir).is_err() {
                let (word, bit) = place(id);
                filter[word] |= bit;
                any = true;
            }
        }
        // No watch is added meanwhile, since the watches are locked.
        let state = self.watch_state();
        for (word, bits) in state.filter.iter().zip(filter) {
            word.store(bits, Release);
        }
        if !any {
            state.any.store(0, Release);
            for dir in ["names", "by-inode"].map(|d| all.join(d)) {
                for name in names_in(&dir)? {
                    let _ = rustix::fs::unlink(dir.join(name));
                }
            }
        }
        Ok(())
    }
}

/// Adds the inodes that a process watches by all its inotify descriptors, on any file system. A
/// process that has ended watches none.
///
/// # Errors
/// If the watches can't be determined: then the process may watch any shadow.
fn watched_by_process(pid: u32, all: &mut HashSet<u64>) -> Result<()> {
    let Some(fds) = unless_gone(std::fs::read_dir(format!("/proc/{pid}/fd")), pid)? else {
        return Ok(());
    };
    for fd in fds {
        let Some(fd) = unless_gone(fd, pid)? else {
            return Ok(());
        };
        // A descriptor that was closed meanwhile watches nothing.
        let Some(to) = unless_closed(std::fs::read_link(fd.path()))? else {
            continue;
        };
        if to.as_os_str() == "anon_inode:inotify"
            && let Some(number) = fd.file_name().to_str()
        {
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
            if let Some(info) = unless_closed(info)? {
                all.extend(watched_by(&info).map(|w| w.inode));
            }
        }
    }
    Ok(())
}

/// Returns the result of a read in /proc; None if the descriptor was closed.
fn unless_closed<T>(found: std::io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) => match Errno::from_io_error(&e).unwrap_or(Errno::IO) {
            Errno::NOENT | Errno::SRCH => Ok(None),
            e => Err(e),
        },
    }
}

/// Returns the result of a read in /proc; None if the process has ended.
fn unless_gone<T>(found: std::io::Result<T>, pid: u32) -> Result<Option<T>> {
    match unless_closed(found) {
        Ok(None) if life(pid) != Life::Gone => Err(Errno::AGAIN),
        found if life(pid) == Life::Gone => Ok(found.unwrap_or(None)),
        found => found,
    }
}

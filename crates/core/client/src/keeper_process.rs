//! Finding the process that keeps a pool, and ending it.

use crate::PoolError;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// The process id of the keeper of the pool in `dir`, for reports: None if no keeper runs, or if
/// its process id can't be determined.
pub fn keeper_pid(dir: &Path) -> Option<u32> {
    keeper_of(dir).ok().flatten()
}

/// The process id of the keeper of the pool in `dir`; None if no keeper runs.
///
/// # Errors
/// [`PoolError::Io`] if keeper.pid can't be opened, locked or read.
pub fn keeper_of(dir: &Path) -> Result<Option<u32>, PoolError> {
    let file = dir.join("keeper.pid");
    let failed = |e: Errno| PoolError::io("can't look for the keeper of the pool, by", &file, e);
    let fd = match rustix::fs::open(&file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        fd => fd.map_err(failed)?,
    };
    let dies_by = Instant::now() + Duration::from_secs(2);
    loop {
        // The kernel releases the keeper's lock when the keeper ends, so an outdated process id in
        // the file does no harm. The lock taken here is shared, so that several processes can look
        // for the keeper at once, and only for an instant, so that it hardly delays a starting
        // keeper.
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(None),
            Err(Errno::WOULDBLOCK) => {}
            Err(e) => return Err(failed(e)),
        }
        let mut text = [0u8; 16];
        let n = rustix::io::pread(&fd, &mut text, 0).map_err(failed)?;
        let pid = std::str::from_utf8(&text[..n]).ok();
        // A keeper that is taking charge hasn't written its process id yet.
        let pid = pid.and_then(|t| t.trim().parse().ok());
        // A killed keeper holds its lock for an instant longer.
        match pid {
            Some(pid) if !is_dying(pid) || Instant::now() > dies_by => return Ok(Some(pid)),
            None if Instant::now() > dies_by => return Err(failed(Errno::AGAIN)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Whether process `pid` is killed or exiting, so that it executes no more of its program.
fn is_dying(pid: u32) -> bool {
    /// A task flag of the kernel in /proc/PID/stat (include/linux/sched.h).
    const PF_EXITING: u64 = 4;
    const SIGKILL: u64 = 1 << (Signal::KILL.as_raw() - 1);
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{pid}/{what}"));
    // A process that /proc doesn't show is in another container, so its state is unknown.
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else {
        return false;
    };
    // The command name may have any characters, but no later field has a parenthesis.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let state = fields.next().unwrap_or("X");
    let flags: u64 = fields.nth(5).and_then(|f| f.parse().ok()).unwrap_or(0);
    let pending = |name: &str| -> u64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
            .unwrap_or(0)
    };
    matches!(state, "Z" | "X")
        || flags & PF_EXITING != 0
        || (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0
}

/// Ends the keeper of the pool in `dir`, if there is one.
///
/// # Errors
/// As for [`keeper_of`].
pub fn end_keeper(dir: &Path) -> Result<(), PoolError> {
    // SIGINT first: at SIGTERM the keeper would sync data that are about to be removed.
    for (signal, turns) in [(Signal::INT, 100), (Signal::KILL, 200)] {
        for turn in 0..turns {
            let Some(pid) = keeper_of(dir)? else {
                return Ok(());
            };
            if turn == 0
                && let Some(pid) = Pid::from_raw(pid as i32)
            {
                let _ = kill_process(pid, signal);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests a killed process that its parent hasn't waited for, and a living one.
    #[test]
    fn a_killed_process_is_dying() {
        let mut child = std::process::Command::new("sleep")
            .arg("20")
            .spawn()
            .unwrap();
        assert!(!is_dying(child.id()));
        assert!(!is_dying(std::process::id()));
        // A stopped process isn't dying.
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        assert!(!is_dying(child.id()));
        child.kill().unwrap();
        assert!(is_dying(child.id()));
        child.wait().unwrap();
    }
}

//! Finds out whether a keeper was killed for lack of memory, as far as possible.
//!
//! The kernel's log names the processes that the kernel kills, for users who may read the log. A
//! control group also counts the processes killed in it for lack of memory: a keeper records the
//! counts at its start, in `keeper.groups`. A higher count later shows that processes were killed,
//! but not which.

use forebay_media::memory::{limiting_groups, oom_kills};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// Name of the file with the counts at the keeper's start.
const GROUPS: &str = "keeper.groups";
/// Maximum number of records read from the kernel's log.
const MAX_RECORDS: usize = 100_000;

/// Why a keeper died, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// The kernel's log says that the keeper was killed for lack of memory.
    OutOfMemory,
    /// Number of processes of this control group that were killed for lack of memory since the
    /// keeper's start.
    KillsInGroup(u64, PathBuf),
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Death::OutOfMemory => write!(f, "the kernel killed it for lack of memory"),
            Death::KillsInGroup(n, group) => write!(
                f,
                "the kernel has killed processes of its control group since its start ({n}) for lack \
                 of memory, maybe this one (oom_kill in {})",
                group.display()
            ),
        }
    }
}

/// Records the counts of this process's control groups. This process is the keeper of the pool or
/// node in `dir`.
pub(crate) fn note_start(dir: &Path) {
    let groups = limiting_groups();
    let lines = groups
        .iter()
        .map(|(group, kills)| format!("{kills} {}\n", group.display()));
    // Without the file, only a message is less precise.
    let _ = std::fs::write(dir.join(GROUPS), lines.collect::<String>());
}

/// Returns the signs that the dead keeper of the pool or node in `dir` was killed for lack of
/// memory; None if there are none.
pub fn of_keeper(dir: &Path) -> Option<Death> {
    let pid = std::fs::read_to_string(dir.join("keeper.pid")).ok();
    let pid: Option<u32> = pid.and_then(|text| text.trim().parse().ok());
    if pid.is_some_and(|pid| kernel_log().iter().any(|record| is_kill_of(record, pid))) {
        return Some(Death::OutOfMemory);
    }
    let noted = std::fs::read_to_string(dir.join(GROUPS)).ok()?;
    noted.lines().find_map(|line| {
        let (kills, group) = line.split_once(' ')?;
        let group = PathBuf::from(group);
        let more = oom_kills(&group)?.checked_sub(kills.parse().ok()?)?;
        (more > 0).then_some(Death::KillsInGroup(more, group))
    })
}

/// Whether a record of the kernel's log says that the kernel killed process `pid`, a keeper, for
/// lack of memory.
fn is_kill_of(record: &str, pid: u32) -> bool {
    // "Out of memory: Killed process 12 (forebay) ..." or "Memory cgroup out of memory: ..."
    let killed = record.split_once("Killed process ");
    killed.is_some_and(|(before, what)| {
        before.to_ascii_lowercase().contains("out of memory")
            && what.starts_with(&format!("{pid} (forebay"))
    })
}

/// The kernel's log; empty if this process may not read it.
fn kernel_log() -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(log) = rustix::fs::open("/dev/kmsg", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut records = Vec::new();
    let mut bytes = [0; 8192];
    for _ in 0..MAX_RECORDS {
        match rustix::io::read(&log, &mut bytes[..]) {
            Ok(0) => break,
            Ok(n) => records.push(String::from_utf8_lossy(&bytes[..n]).into_owned()),
            // The record was overwritten before it was read: the next read returns a later one.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(_) => break,
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_the_process() {
        let host = "6,1,2,-;Out of memory: Killed process 12 (forebay) total-vm:1kB";
        let group = "6,1,2,-;Memory cgroup out of memory: Killed process 12 (forebay) total-vm:1kB";
        for record in [host, group] {
            assert!(is_kill_of(record, 12));
            assert!(!is_kill_of(record, 1));
            assert!(!is_kill_of(&record.replace("forebay", "python3"), 12));
        }
        assert!(!is_kill_of("6,1,2,-;Killed process 12 (forebay)", 12));
    }

    #[test]
    fn counts_of_groups_of_both_versions_are_compared() {
        let dir = std::env::temp_dir().join(format!("forebay-death-{}", std::process::id()));
        let group = dir.join("group");
        std::fs::create_dir_all(&group).unwrap();
        let note = |kills: u64| {
            let text = format!("{kills} {}\n", group.display());
            std::fs::write(dir.join(GROUPS), text).unwrap();
        };
        note(1);
        assert_eq!(of_keeper(&dir), None, "the group is unknown");
        std::fs::write(
            group.join("memory.oom_control"),
            "under_oom 0\noom_kill 1\n",
        )
        .unwrap();
        assert_eq!(of_keeper(&dir), None);
        std::fs::write(group.join("memory.events"), "oom 3\noom_kill 3\n").unwrap();
        assert_eq!(of_keeper(&dir), Some(Death::KillsInGroup(2, group.clone())));
        note(4);
        assert_eq!(of_keeper(&dir), None, "of another start of the host");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

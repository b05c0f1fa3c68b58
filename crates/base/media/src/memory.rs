//! Finds out how much memory is available on the host, and in the control groups of this process.
//!
//! Shared memory is charged to the process that reserves it. Where a control group limits memory (a
//! batch job, a container), the kernel doesn't return ENOSPC at the limit, but kills processes. The
//! same holds for the memory of the host. So [`reserve`] checks first, and fails with ENOSPC before
//! a limit is reached.
//!
//! Both versions of control groups are read. A limit that can't be read counts as none: without
//! /proc or /sys, only the file system's own limit remains.
//!
//! A check takes some 50 microseconds. So a check's result, minus what this process has reserved
//! since, is reused for [`FRESH`], unless it is small.

use crate::{PAGE, Region};
use rustix::fd::AsFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mm::Advice;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long a result of at least [`LITTLE`] is reused. Milliseconds.
const FRESH: u64 = 20;
/// Below this result, each reservation checks again. Bytes.
const LITTLE: u64 = 256 << 20;
/// Share of a control group's limit that is left to its programs: one part in `GROUP_SHARE`, but at
/// most [`GROUP_KEEPS`].
const GROUP_SHARE: u64 = 16;
/// Maximum that is left to a control group's programs. Bytes.
const GROUP_KEEPS: u64 = 64 << 20;
/// Share of the host's memory that is left to others: one part in `HOST_SHARE`, but at most
/// [`HOST_KEEPS`].
const HOST_SHARE: u64 = 64;
/// Maximum of the host's memory that is left to others. Bytes.
const HOST_KEEPS: u64 = 256 << 20;
/// A control group's limit of this size or more counts as none (version 1 uses a number near 2^63).
/// Bytes.
const NO_LIMIT: u64 = 1 << 60;

/// Time of the last check (milliseconds, monotonic clock); and its result, minus what this process
/// has reserved since (bytes).
static LOOKED: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);

/// A limit on memory, and how much of it is left. Bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes that can still be allocated.
    pub bytes: u64,
    /// The limit itself.
    pub limit: u64,
    /// Part of the limit that pools must leave to others.
    pub keep: u64,
    /// The control group's directory; None for the host.
    pub group: Option<PathBuf>,
}

impl Left {
    /// Bytes that a pool may take.
    pub fn for_pools(&self) -> u64 {
        self.bytes.saturating_sub(self.keep)
    }
}

/// Reads a small file.
fn read(path: &Path) -> Option<String> {
    let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = forebay_runtime::fd::with_room(open).ok()?;
    let mut text = Vec::with_capacity(4096);
    loop {
        let mut part = [0u8; 2048];
        match rustix::io::read(&file, &mut part[..]) {
            Ok(0) => return String::from_utf8(text).ok(),
            Ok(n) => text.extend_from_slice(&part[..n]),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Returns the number after `name` and white space, in the first line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the host's memory; what the kernel calls available counts as left.
pub fn host() -> Option<Left> {
    let text = read(Path::new("/proc/meminfo"))?;
    let (available, total) = (field(&text, "MemAvailable:")?, field(&text, "MemTotal:")?);
    let limit = total << 10;
    Some(Left {
        bytes: available << 10,
        limit,
        keep: (limit / HOST_SHARE).min(HOST_KEEPS),
        group: None,
    })
}

/// Returns the memory of one control group; None if the group doesn't limit memory. `one`: whether
/// the group is of version 1.
fn in_group(dir: &Path, one: bool) -> Option<Left> {
    let [limit, used, inactive, active] = if one {
        [
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
            "total_active_file",
        ]
    } else {
        [
            "memory.max",
            "memory.current",
            "inactive_file",
            "active_file",
        ]
    };
    let number = |name: &str| -> Option<u64> { read(&dir.join(name))?.trim().parse().ok() };
    let limit = number(limit).filter(|&l| l < NO_LIMIT)?;
    let used = number(used)?;
    // The kernel drops file pages, which it can read again, before it kills any process.
    let stat = read(&dir.join("memory.stat")).unwrap_or_default();
    let given_up = |name: &str| field(&stat, name).unwrap_or(0);
    let used = used.saturating_sub(given_up(inactive) + given_up(active));
    Some(Left {
        bytes: limit.saturating_sub(used),
        limit,
        keep: (limit / GROUP_SHARE).min(GROUP_KEEPS),
        group: Some(dir.to_owned()),
    })
}

/// Returns the directories of this process's control groups for memory, the innermost first; and
/// whether each is of version 1.
fn groups() -> Vec<(PathBuf, bool)> {
    let Some(text) = read(Path::new("/proc/self/cgroup")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for line in text.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let roots: &[&str] = match (number, controllers) {
            ("0", "") => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
            (_, c) if c.split(',').any(|c| c == "memory") => &["/sys/fs/cgroup/memory"],
            _ => continue,
        };
        let one = !controllers.is_empty();
        for root in roots.iter().map(Path::new) {
            // In a container, `path` may be the group's path on the host; the container sees only
            // `root`.
            let below = path.trim_start_matches('/');
            let all = root.join(below);
            let above = all.ancestors().take_while(|dir| dir.starts_with(root));
            found.extend(above.map(|dir| (dir.to_owned(), one)));
        }
    }
    found
}

/// Returns the control group of this process that leaves least to pools; None if none limits
/// memory.
pub fn group() -> Option<Left> {
    groups()
        .iter()
        .filter_map(|(dir, one)| in_group(dir, *one))
        .min_by_key(Left::for_pools)
}

/// Returns how many processes the kernel has killed in a control group for lack of memory; None if
/// that can't be read.
pub fn oom_kills(group: &Path) -> Option<u64> {
    // Version 2, version 1.
    let files = ["memory.events", "memory.oom_control"];
    files
        .iter()
        .find_map(|file| field(&read(&group.join(file))?, "oom_kill "))
}

/// Returns the control groups of this process that limit memory, with their [`oom_kills`].
pub fn limiting_groups() -> Vec<(PathBuf, u64)> {
    groups()
        .into_iter()
        .filter(|(dir, one)| in_group(dir, *one).is_some())
        .filter_map(|(dir, _)| oom_kills(&dir).map(|kills| (dir, kills)))
        .collect()
}

/// Returns the host or the control group, whichever leaves less to pools; None if neither is known.
pub fn left() -> Option<Left> {
    [host(), group()]
        .into_iter()
        .flatten()
        .min_by_key(Left::for_pools)
}

/// Checks whether `bytes` bytes of memory may be reserved now.
///
/// # Errors
/// ENOSPC if the host or a control group of this process doesn't have that much left.
pub fn may_take(bytes: u64) -> Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
    let known = LEFT.load(Relaxed);
    if now < LOOKED.load(Relaxed) + FRESH && known >= LITTLE && known >= bytes {
        // Another thread may subtract at the same time, and one subtraction be lost: the next check
        // comes before the error is large.
        LEFT.store(known - bytes, Relaxed);
        return Ok(());
    }
    let left = left().map_or(u64::MAX, |l| l.for_pools());
    LEFT.store(left.saturating_sub(bytes), Relaxed);
    LOOKED.store(now, Relaxed);
    if left >= bytes {
        Ok(())
    } else {
        Err(Errno::NOSPC)
    }
}

/// Reserves room for `len` bytes at `at` of a pool's file in memory. Touching reserved bytes can't
/// fail.
///
/// # Errors
/// ENOSPC if the file system, the host or a control group of this process doesn't have that much
/// left.
pub fn reserve(file: impl AsFd, keep_size: bool, at: u64, len: u64) -> Result<()> {
    may_take(len)?;
    let flags = if keep_size {
        FallocateFlags::KEEP_SIZE
    } else {
        FallocateFlags::empty()
    };
    // On tmpfs, a signal interrupts fallocate.
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, flags, at, len))
}

/// As [`reserve`], for a mapped part of a file, without a descriptor of the file. `at` is an offset
/// in `region`, a multiple of [`PAGE`].
///
/// # Errors
/// As for [`reserve`]; EINVAL from kernels before 5.14.
pub fn reserve_mapped(region: &Region, at: usize, len: usize) -> Result<()> {
    assert!(at.is_multiple_of(PAGE) && at + len <= region.len());
    may_take(len as u64)?;
    let populate = || {
        // SAFETY: the pages lie in the region (asserted), and what they hold doesn't change.
        unsafe {
            rustix::mm::madvise(
                region.base().add(at).cast(),
                len,
                Advice::LinuxPopulateWrite,
            )
        }
    };
    rustix::io::retry_on_intr(populate).map_err(|e| match e {
        // The file system has no page left: a write to this memory would be SIGBUS.
        Errno::FAULT | Errno::NOMEM => Errno::NOSPC,
        e => e,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_lines() {
        let text = "MemTotal:   100 kB\nMemAvailable:      7 kB\ninactive_file 12\n";
        assert_eq!(field(text, "MemAvailable:"), Some(7));
        assert_eq!(field(text, "inactive_file"), Some(12));
        assert_eq!(field(text, "active_file"), None);
    }

    #[test]
    fn a_group_of_either_version_is_read() {
        let dir = std::env::temp_dir().join(format!("forebay-group-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        assert_eq!(in_group(&dir, true), None);
        put("memory.limit_in_bytes", "9223372036854771712\n");
        put("memory.usage_in_bytes", "5000000\n");
        assert_eq!(in_group(&dir, true), None, "that is no limit");
        put("memory.limit_in_bytes", "16000000\n");
        put(
            "memory.stat",
            "inactive_file 1\ntotal_inactive_file 1000000\ntotal_active_file 500000\n",
        );
        let left = in_group(&dir, true).unwrap();
        assert_eq!((left.bytes, left.keep), (12_500_000, 1_000_000));
        assert_eq!(left.for_pools(), 11_500_000);
        put("memory.max", "max\n");
        put("memory.current", "5000000\n");
        assert_eq!(in_group(&dir, false), None, "that is no limit");
        put("memory.max", "4000000\n");
        put("memory.stat", "inactive_file 1000\n");
        let left = in_group(&dir, false).unwrap();
        assert_eq!((left.bytes, left.for_pools()), (0, 0));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn this_host_has_memory_but_not_without_end() {
        assert!(host().is_some_and(|h| 0 < h.bytes && h.bytes <= h.limit));
        assert_eq!(may_take(4096), Ok(()));
        assert_eq!(may_take(1 << 50), Err(Errno::NOSPC));
    }
}

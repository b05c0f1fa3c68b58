//! Memory and disk space that all pools of this user on this host may use together.
//!
//! A pool's memory is promised when the pool is created, and allocated as it is used. So a new pool
//! can't have all free room of the host: a part of it is promised to other pools. The promises are
//! computed from the sizes of the segments in the pools' directories ([`crate::home`]). Pools of
//! other users, and those below another FOREBAY_HOME, can't be seen.

use forebay_media::{MediumKind, MediumSpec, format_size, memory};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// All keepers of a host together keep ready at most one part in `READY_SHARE` of the memory of the
/// host (or of its control group).
const READY_SHARE: u64 = 16;
/// All keepers of a host together keep ready at most one part in `READY_LEFT` of the host's free
/// memory ([`Host::left`]).
const READY_LEFT: u64 = 8;
/// Shared memory that a new node uses besides its media. Bytes.
const BESIDE: u64 = 8 << 20;
/// How long [`Host::now`] reuses a result.
const FRESH: Duration = Duration::from_millis(500);

/// Memory of this host, and its use by this user's pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// Number of memory media.
    pub media: u64,
    /// Memory that is promised to these media but not allocated yet. Bytes.
    pub promised: u64,
    /// Memory that is left for pools; `u64::MAX` if it can't be determined. Bytes.
    pub left: u64,
    /// Memory limit of the host, or of the control group in which less memory is left. Bytes.
    pub limit: u64,
}

/// Calls `each` for every medium of this user's pools on this host, with its segment's metadata.
/// The first argument is whether the medium is in memory.
fn media(mut each: impl FnMut(bool, std::fs::Metadata)) {
    let mut of_node = |dir: &Path| {
        for i in 0.. {
            let medium = dir.join(format!("medium-{i}"));
            let Ok(stat) = std::fs::symlink_metadata(&medium) else {
                return;
            };
            if let Ok(segment) = std::fs::metadata(medium.join("segment")) {
                // A `files` medium is a symbolic link in the pool's directory.
                each(stat.is_dir(), segment);
            }
        }
    };
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    for pool in entries(&crate::home::home()).map(|e| e.path()) {
        of_node(&pool);
        let node = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"node-");
        for e in entries(&pool).filter(|e| node(&e.file_name())) {
            of_node(&e.path());
        }
    }
}

/// Bytes of a segment that are promised but not allocated yet.
fn open_promise(segment: &std::fs::Metadata) -> u64 {
    segment.len().saturating_sub(segment.blocks() * 512)
}

/// Free bytes of the file system of `path` (or of its nearest existing parent), and its device
/// number.
fn free_at(path: &Path) -> Option<(u64, u64)> {
    let there = path.ancestors().find(|p| p.exists())?;
    let s = rustix::fs::statvfs(there).ok()?;
    let device = std::fs::metadata(there).ok()?.dev();
    Some((s.f_bavail.saturating_mul(s.f_frsize), device))
}

/// Checks whether this host has room for `nodes` more nodes with these media each, in addition to
/// the room that is promised to other pools.
///
/// # Errors
/// A sentence with the room that is needed, the room that is free, and what can be done.
pub fn check(wanted: &[MediumSpec], nodes: u64) -> Result<(), String> {
    let each = |n: u64| match nodes {
        1 => format_size(n),
        _ => format!(
            "{} ({nodes} nodes with {} each)",
            format_size(n.saturating_mul(nodes)),
            format_size(n)
        ),
    };
    let promises = |n: u64| match n {
        0 => String::new(),
        n => format!(
            ", and other pools have been promised {} of that",
            format_size(n)
        ),
    };
    let remedy =
        "remove other pools (forebay pools), ask for less with --media, or insist with --force";
    let memory: u64 = (wanted.iter().filter(|m| m.kind == MediumKind::Memory))
        .map(|m| m.capacity)
        .sum();
    let all = (memory + BESIDE).saturating_mul(nodes);
    let host = Host::look();
    if let Some(left) = memory::left().filter(|_| memory > 0)
        && all > left.for_pools().saturating_sub(host.promised)
    {
        let whose = match &left.group {
            None => "this host".to_owned(),
            Some(group) => format!(
                "the control group {} (limit {})",
                group.display(),
                format_size(left.limit)
            ),
        };
        return Err(format!(
            "the pool may take {} of memory, but {whose} has {} left for pools{}: {remedy}",
            each(memory),
            format_size(left.for_pools()),
            promises(host.promised)
        ));
    }
    let home = crate::home::home();
    if let Some((free, _)) = free_at(&home).filter(|_| memory > 0)
        && all > free.saturating_sub(host.promised)
    {
        return Err(format!(
            "the pool may take {} of memory, but {} has room for {} only{}: {remedy}",
            each(memory),
            home.display(),
            format_size(free),
            promises(host.promised)
        ));
    }
    // For each file system, by device number: the number of bytes needed, how many of them for
    // other things than media, a directory of the file system, and its number of free bytes.
    let mut disks: BTreeMap<u64, (u64, u64, PathBuf, u64)> = BTreeMap::new();
    // If no medium is memory, journals and checkpoints are stored beside the first medium.
    let only_files = wanted.iter().all(|m| m.kind != MediumKind::Memory);
    let capacity: u64 = wanted.iter().map(|m| m.capacity).sum();
    let mut beside = if only_files {
        crate::config::beside_files(capacity)
    } else {
        0
    };
    for m in wanted {
        if let MediumKind::Files(dir) = &m.kind
            && let Some((free, device)) = free_at(dir)
        {
            let disk = disks.entry(device).or_insert((0, 0, dir.clone(), free));
            disk.0 += m.capacity;
            disk.1 += std::mem::take(&mut beside);
        }
    }
    for (device, (sum, beside, dir, free)) in disks {
        let mut promised = 0;
        media(|memory, segment| {
            if !memory && segment.dev() == device {
                promised += open_promise(&segment);
            }
        });
        if (sum + beside).saturating_mul(nodes) > free.saturating_sub(promised) {
            return Err(format!(
                "the pool may take {} of {}, and {} for its records, but there {} are free{}: {remedy}",
                each(sum),
                dir.display(),
                format_size(beside.saturating_mul(nodes)),
                format_size(free),
                promises(promised)
            ));
        }
    }
    Ok(())
}

impl Host {
    /// Measures the host's memory now.
    pub fn look() -> Host {
        let left = memory::left();
        let mut host = Host {
            left: left.as_ref().map_or(u64::MAX, memory::Left::for_pools),
            limit: left.map_or(u64::MAX, |l| l.limit),
            ..Host::default()
        };
        if let Some((free, _)) = free_at(&crate::home::home()) {
            host.left = host.left.min(free);
        }
        media(|memory, segment| {
            if memory {
                host.media += 1;
                host.promised += open_promise(&segment);
            }
        });
        host
    }

    /// Returns a measurement that is at most [`FRESH`] old.
    pub fn now() -> Host {
        static KNOWN: Mutex<Option<(Instant, Host)>> = Mutex::new(None);
        // Never block here: a forked child may have inherited the mutex in its locked state.
        let Ok(mut known) = KNOWN.try_lock() else {
            return Host::look();
        };
        match *known {
            Some((at, host)) if at.elapsed() < FRESH => host,
            _ => known.insert((Instant::now(), Host::look())).1,
        }
    }

    /// Bytes that a keeper may keep ready in each memory medium.
    pub fn ready_each(&self) -> u64 {
        let all = (self.limit / READY_SHARE).min(self.left / READY_LEFT);
        all / self.media.max(1)
    }

    /// A medium's share of the memory that is left, if `promised` bytes of the medium aren't
    /// allocated yet. All shares together don't exceed the memory that is left.
    pub fn part_of(&self, promised: u64) -> u64 {
        if self.promised <= self.left {
            return promised;
        }
        let part = u128::from(self.left) * u128::from(promised) / u128::from(self.promised);
        part as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_is_refused_with_both_figures() {
        let check = |media: &[&str], nodes| {
            let media: Vec<MediumSpec> = media.iter().map(|m| m.parse().unwrap()).collect();
            check(&media, nodes)
        };
        let e = check(&["memory:900T"], 1).unwrap_err();
        assert!(
            e.contains("900.0 TiB") && e.contains("left for pools"),
            "{e}"
        );
        let e = check(&["memory:1T"], 1000).unwrap_err();
        assert!(e.contains("1000 nodes with 1.0 TiB each"), "{e}");
        let e = check(&["files:/:900T"], 1).unwrap_err();
        assert!(e.contains("900.0 TiB of /, and"), "{e}");
        check(&["files:/:500T", "files:/tmp:500T"], 1).unwrap_err();
    }

    #[test]
    fn what_is_left_is_divided_by_what_was_promised() {
        let host = Host {
            media: 4,
            promised: 4000,
            left: 1000,
            limit: 8000,
        };
        let parts = [100, 1900, 2000].map(|p| host.part_of(p));
        assert_eq!(parts, [25, 475, 500]);
        assert_eq!(host.ready_each(), 1000 / 8 / 4);
        let rich = Host { left: 4000, ..host };
        assert_eq!(rich.part_of(2000), 2000);
        assert_eq!(rich.ready_each(), 4000 / 8 / 4);
    }
}

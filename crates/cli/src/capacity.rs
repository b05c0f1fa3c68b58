//! How much a pool takes when nobody says, and whether what was said can be had.

use crate::fail::Fail;
use forebay_client::home;
use forebay_media::{MediumKind, MediumSpec, format_size};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// A pool below this size isn't worth its name.
const LEAST: u64 = 64 * MIB;

/// The value of a field of /proc/meminfo, in bytes.
fn meminfo(field: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|k| k << 10)
}

/// What the control groups (version 2) above this process leave it, if they limit memory:
/// in a batch job that is less than the node has.
fn cgroup_available() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let read = |dir: &Path, name: &str| -> Option<u64> {
        std::fs::read_to_string(dir.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let root = Path::new("/sys/fs/cgroup");
    root.join(own)
        .ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| {
            Some(read(dir, "memory.max")?.saturating_sub(read(dir, "memory.current")?))
        })
        .min()
}

/// Free bytes of the file system that `path`, or what exists of it, lies on.
fn free_at(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|p| p.exists())?;
    let s = rustix::fs::statvfs(there).ok()?;
    Some(s.f_bavail.saturating_mul(s.f_frsize))
}

/// Memory for a pool by default: a quarter of what is available, in whole MiB.
fn share(available: u64, shared: u64) -> u64 {
    (available / 4).min(shared / 2) / MIB * MIB
}

/// The media of a pool for which none were given, and why, in words.
pub fn default_media() -> Result<(Vec<MediumSpec>, String), Fail> {
    default_media_of(1)
}

/// The same for one of so many nodes on this host.
pub fn default_media_of(nodes: u32) -> Result<(Vec<MediumSpec>, String), Fail> {
    let available = meminfo("MemAvailable")
        .into_iter()
        .chain(cgroup_available())
        .min()
        .ok_or_else(|| {
            Fail::failed("can't tell how much memory is available; say --media memory:SIZE")
        })?;
    let shared = free_at(&home()).unwrap_or(available);
    let all = share(available, shared);
    let capacity = all / u64::from(nodes.max(1)) / MIB * MIB;
    if capacity < LEAST {
        return Err(Fail::failed(format!(
            "there is too little memory for a pool ({} available, {} free in shared memory); free some, or say --media files:DIRECTORY:SIZE",
            format_size(available),
            format_size(shared)
        )));
    }
    let why = format!(
        "a quarter of the {} of memory available",
        format_size(available)
    );
    let why = if all < available / 4 / MIB * MIB {
        format!(
            "half of the {} free in {}",
            format_size(shared),
            home().display()
        )
    } else {
        why
    };
    Ok((
        vec![MediumSpec {
            kind: MediumKind::Memory,
            capacity,
        }],
        why,
    ))
}

/// What to warn of: media larger than what there is.
pub fn warnings(media: &[MediumSpec]) -> Vec<String> {
    let mut warnings = Vec::new();
    let memory: u64 = media
        .iter()
        .filter(|m| m.kind == MediumKind::Memory)
        .map(|m| m.capacity)
        .sum();
    let available = meminfo("MemAvailable")
        .into_iter()
        .chain(cgroup_available())
        .min();
    if let Some(available) = available
        && memory > available
    {
        warnings.push(format!(
            "the pool may take {} of memory, but only {} is available; writing will fail when it runs out",
            format_size(memory),
            format_size(available)
        ));
    } else if let Some(free) = free_at(&home())
        && memory > free
    {
        warnings.push(format!(
            "the pool may take {} of memory, but {} has room for {} only; writing will fail when it is full",
            format_size(memory),
            home().display(),
            format_size(free)
        ));
    }
    for m in media {
        if let MediumKind::Files(dir) = &m.kind
            && let Some(free) = free_at(dir)
            && m.capacity > free
        {
            warnings.push(format!(
                "{} has {} free, less than the {} of the medium; writing will fail when it is full",
                dir.display(),
                format_size(free),
                format_size(m.capacity)
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_modest() {
        assert_eq!(share(4 << 30, 4 << 30), 1 << 30);
        assert_eq!(share(4 << 30, 1 << 30), 512 << 20);
        assert_eq!(share(4 * MIB + 3, u64::MAX), MIB);
    }

    #[test]
    fn excess_is_told() {
        assert_eq!(warnings(&["memory:900T".parse().unwrap()]).len(), 1);
        assert_eq!(warnings(&["files:/:900T".parse().unwrap()]).len(), 1);
        assert!(meminfo("MemTotal").is_some_and(|m| m > 0));
    }
}

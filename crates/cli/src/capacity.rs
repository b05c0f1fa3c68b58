//! Chooses default sizes of a pool's media, and checks that the host has space for requested sizes.

use crate::fail::Fail;
use forebay_client::{Host, check_host, home};
use forebay_media::{MediumKind, MediumSpec, format_size, memory};
use std::path::Path;

const MIB: u64 = 1 << 20;
/// Smallest useful pool. Bytes.
const LEAST: u64 = 64 * MIB;

/// Returns the free bytes of the file system of `path`, or of its nearest existing ancestor.
fn free_at(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|p| p.exists())?;
    let s = rustix::fs::statvfs(there).ok()?;
    Some(s.f_bavail.saturating_mul(s.f_frsize))
}

/// Returns the default memory of a pool: a quarter of the available memory, but at most half of the
/// free shared memory. Whole MiB, in bytes.
fn share(available: u64, shared: u64) -> u64 {
    (available / 4).min(shared / 2) / MIB * MIB
}

/// Returns the default media of a pool, and the reason for their size in words.
pub fn default_media() -> Result<(Vec<MediumSpec>, String), Fail> {
    default_media_of(1)
}

/// Returns the default media of each of `nodes` nodes on this host.
pub fn default_media_of(nodes: u32) -> Result<(Vec<MediumSpec>, String), Fail> {
    let left = memory::left().ok_or_else(|| {
        Fail::failed("can't find out how much memory is available; give --media memory:SIZE")
    })?;
    // Memory that other pools have been promised, and don't use yet.
    let promised = Host::look().promised;
    let available = left.bytes.saturating_sub(promised);
    let shared = free_at(&home()).map_or(available, |free| free.saturating_sub(promised));
    let all = share(available, shared);
    let capacity = all / u64::from(nodes.max(1)) / MIB * MIB;
    if capacity < LEAST {
        return Err(Fail::failed(format!(
            "there is too little memory for a pool ({} available, {} free in shared memory); free some, or give --media files:DIRECTORY:SIZE",
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

/// Refuses media that this host has no space for, if each of `nodes` nodes has them. With `force`,
/// returns a warning instead.
pub fn check(media: &[MediumSpec], nodes: usize, force: bool) -> Result<Option<String>, Fail> {
    match check_host(media, nodes as u64) {
        Ok(()) => Ok(None),
        Err(why) if force => {
            let what = why.split(": ").next().unwrap_or(&why);
            Ok(Some(format!("{what}; writing will fail when it is full")))
        }
        Err(why) => Err(Fail::failed(why)),
    }
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
    fn excess_is_refused_or_reported() {
        for medium in ["memory:900T", "files:/:900T"] {
            let media = [medium.parse().unwrap()];
            assert!(check(&media, 1, false).is_err());
            assert!(check(&media, 1, true).unwrap().is_some());
        }
        let small = ["memory:1M".parse().unwrap()];
        assert_eq!(check(&small, 1, false).unwrap(), None);
    }
}

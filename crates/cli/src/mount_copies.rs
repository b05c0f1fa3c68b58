//! Copies of a pool's mounts in other mount namespaces.
//!
//! A process that makes a mount namespace (a container, `unshare -m`, `ip netns exec`) gets a copy
//! of every mount. While that namespace exists, so does the kernel's side of the mount, and the
//! process that serves it isn't told to end, although nobody may ever access the copy. Therefore,
//! `forebay down` looks whether a process uses a copy: by its working directory, root, program, an
//! open file or a mapped file.

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::collections::HashSet;
use std::fs::{read_dir, read_link, read_to_string};
use std::io;
use std::path::Path;

/// Returns the processes that use a copy, in another mount namespace, of one of these mounts
/// (device numbers, `MAJOR:MINOR`); None if no copy exists.
///
/// Processes that this user can't examine are left out: those of other users, who can't see the
/// mount without `--allow-other`, and a few protected processes, such as the first process of a
/// container.
pub fn users(mounts: &[String]) -> Option<Vec<u32>> {
    let (mut namespaces, mut copies) = (HashSet::new(), HashSet::new());
    for pid in processes() {
        let Ok(namespace) = read_link(format!("/proc/{pid}/ns/mnt")) else {
            continue;
        };
        // If this process ends before its table is read, another process of the namespace has the
        // same table.
        if !namespaces.contains(&namespace)
            && let Ok(table) = read_to_string(format!("/proc/{pid}/mountinfo"))
        {
            namespaces.insert(namespace);
            copies.extend(devices(&table, mounts));
        }
    }
    let uses = |pid: &u32| uses_one(&format!("/proc/{pid}"), &copies).unwrap_or(false);
    (!copies.is_empty()).then(|| processes().into_iter().filter(uses).collect())
}

fn processes() -> Vec<u32> {
    let me = std::process::id();
    let entries = read_dir("/proc").into_iter().flatten().flatten();
    let pid = |e: std::fs::DirEntry| e.file_name().to_str()?.parse().ok();
    entries.filter_map(pid).filter(|&pid| pid != me).collect()
}

/// Returns the device numbers of those of the given mounts that a table of mounts lists.
fn devices(table: &str, mounts: &[String]) -> HashSet<u64> {
    let device = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let device = left.split(' ').nth(2)?;
        let is_it = right.starts_with("fuse.forebay ") && mounts.iter().any(|m| m == device);
        let (major, minor) = device.split_once(':')?;
        is_it.then_some(makedev(major.parse().ok()?, minor.parse().ok()?))
    };
    table.lines().filter_map(device).collect()
}

fn uses_one(proc: &str, devices: &HashSet<u64>) -> io::Result<bool> {
    let mut links: Vec<_> = ["cwd", "root", "exe"]
        .map(|l| Path::new(proc).join(l))
        .into();
    for entry in read_dir(format!("{proc}/fd"))? {
        links.push(entry?.path());
    }
    Ok(links.iter().any(|l| is_on(l, devices)) || maps_one(proc, devices)?)
}

/// Whether a file lies on one of these devices. Sends no request to a mount's server.
fn is_on(path: &Path, devices: &HashSet<u64>) -> bool {
    let as_known = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, as_known, StatxFlags::empty())
        .is_ok_and(|s| devices.contains(&makedev(s.stx_dev_major, s.stx_dev_minor)))
}

fn maps_one(proc: &str, devices: &HashSet<u64>) -> io::Result<bool> {
    let maps = read_to_string(format!("{proc}/maps"))?;
    let device = |line: &str| {
        let (major, minor) = line.split_whitespace().nth(3)?.split_once(':')?;
        let number = |n| u32::from_str_radix(n, 16).ok();
        Some(makedev(number(major)?, number(minor)?))
    };
    let mut mapped = maps.lines().filter_map(device);
    Ok(mapped.any(|d| devices.contains(&d)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_mount_is_found_by_its_device() {
        let table = "6 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     40 6 0:57 / /a\\040b rw shared:1 - fuse.forebay forebay:p rw,user_id=0\n\
                     41 6 0:58 / /c rw - fuse.forebay forebay:pp rw,user_id=0\n\
                     damaged - fuse.forebay forebay:p\n";
        let found = |device: &str| devices(table, &[device.to_owned()]);
        assert_eq!(found("0:57"), HashSet::from([makedev(0, 57)]));
        assert_eq!(found("254:0"), HashSet::new());
        assert_eq!(found("0:59"), HashSet::new());
    }

    #[test]
    fn a_process_uses_the_device_of_its_files() {
        let device = |path: &str| HashSet::from([std::fs::metadata(path).unwrap().dev()]);
        let me = format!("/proc/{}", std::process::id());
        assert!(uses_one(&me, &device("/")).unwrap());
        assert!(!uses_one(&me, &device("/sys")).unwrap());
        assert!(maps_one(&me, &device("/usr")).unwrap());
        assert!(uses_one("/proc/4194305", &device("/")).is_err());
    }
}

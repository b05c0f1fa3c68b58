//! Helpers for the origin as a slow store ([`forebay_backing::open`]): errors, paths, and
//! fingerprints of versions.
//!
//! Paths are relative to the origin's root, which is the empty path.

use forebay_backing::{DEVICE, Meta, SlowStore};
use forebay_store::{Inode, now};
use rustix::io::Errno;
use twox_hash::XxHash3_64;

/// Upper bound of the resolution of a file system's time stamps plus the difference between the
/// clocks of two hosts. Nanoseconds.
const SHORTLY: i128 = 2_500_000_000;

/// Whether an error means that the origin's server can't be reached. Further requests would fail,
/// too.
pub fn is_cut_off(e: Errno) -> bool {
    matches!(
        e,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::CONNRESET
    )
}

/// Number of threads that fetch one file or list one directory. A bucket gets more, since its
/// threads wait for the network.
pub fn threads(side: &dyn SlowStore) -> usize {
    if side.is_object_store() { 8 } else { 4 }
}

/// Translates an error of the origin for programs: those of an object store's server become EIO or
/// EACCES.
pub fn for_programs(side: &dyn SlowStore, error: Errno) -> Errno {
    match error {
        e if !side.is_object_store() => e,
        Errno::NOKEY | Errno::KEYREJECTED => Errno::ACCESS,
        Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::CONNRESET | Errno::AGAIN => Errno::IO,
        Errno::NODEV | Errno::REMCHG | Errno::TIME | Errno::PROTO => Errno::IO,
        Errno::REMOTEIO | Errno::BADE => Errno::IO,
        e => e,
    }
}

/// Appends `name` to the path `relative`. An empty name leaves a trailing slash, which is a prefix
/// of all paths below.
pub fn below(relative: &[u8], name: &[u8]) -> Vec<u8> {
    match relative {
        b"" | b"/" => [relative, name].concat(),
        _ => [relative, b"/", name].concat(),
    }
}

/// Splits a path into the directory's path and the last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Returns a fingerprint that distinguishes versions of an object of the origin. The fingerprint
/// covers inode number, mode and time of modification; for a file also the size, for a directory
/// also the change time. (A file's change time changes with its names.) The device number isn't
/// included: a network file system may get another one at its next mount.
///
/// For an object of a bucket it covers ETag and size, which listings contain, too.
pub fn print(meta: &Meta) -> u64 {
    if meta.dev == DEVICE {
        let words = [meta.dev, meta.ino, meta.size].map(u64::to_le_bytes);
        return XxHash3_64::oneshot(words.as_flattened()).max(1);
    }
    let (size, ctime) = if meta.is_dir() {
        (0, meta.ctime)
    } else {
        (meta.size, 0)
    };
    let mode = u64::from(meta.mode);
    let mut bytes = Vec::with_capacity(40);
    for word in [meta.ino, mode, size, meta.mtime as u64, ctime as u64] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    // 0 means no version, 1 an unknown version.
    XxHash3_64::oneshot(&bytes).max(2)
}

/// Returns the fingerprint of a directory whose names have just been compared. A directory that has
/// changed within [`SHORTLY`] may change again without a new time stamp. For such a directory the
/// result is 1, which matches no version, so that its names are compared again.
pub fn print_of_names(meta: &Meta) -> u64 {
    if i128::from(now()) - meta.mtime.max(meta.ctime) < SHORTLY {
        1
    } else {
        print(meta)
    }
}

/// Returns a fingerprint of a directory's attributes, as stored in
/// [`forebay_store::OriginMark::synced`]: mode, owner, group, time of modification.
pub fn attributes(mode: u32, uid: u32, gid: u32, mtime: i64) -> i64 {
    let mut bytes = Vec::with_capacity(20);
    for word in [mode & 0o7777, uid, gid] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&mtime.to_le_bytes());
    XxHash3_64::oneshot(&bytes) as i64
}

/// Returns the fingerprint ([`attributes`]) of a directory of the pool.
pub fn attributes_of(inode: &Inode) -> i64 {
    attributes(inode.mode, inode.uid, inode.gid, inode.mtime)
}

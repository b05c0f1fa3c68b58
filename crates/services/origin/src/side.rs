//! The origin as a slow store ([`forebay_backing::open`]): its errors, and fingerprints of versions.
//!
//! Paths are relative to the origin's root, which is the empty path.

use forebay_backing::{DEVICE, Meta, SlowStore};
use forebay_store::{Inode, now};
use rustix::io::Errno;
use twox_hash::XxHash3_64;

/// Longest unit of a file system's clock, and what clocks may differ by. Nanoseconds.
const SHORTLY: i128 = 2_500_000_000;

/// Whether an error is one of the way to the origin's server: further requests would fail, too.
pub fn is_cut_off(e: Errno) -> bool {
    matches!(
        e,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::CONNRESET
    )
}

/// Threads that fetch one file, or list one directory. Those of a bucket wait for the network.
pub fn threads(side: &dyn SlowStore) -> usize {
    if side.is_object_store() { 8 } else { 4 }
}

/// The error as programs know it: those of a server become EIO or EACCES.
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

/// `relative` with one more name; an empty one leaves the slash: what lies below begins with that.
pub fn below(relative: &[u8], name: &[u8]) -> Vec<u8> {
    match relative {
        b"" | b"/" => [relative, name].concat(),
        _ => [relative, b"/", name].concat(),
    }
}

/// The directory in which a path is, and the last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A fingerprint that tells versions of an object of the origin apart: identity, mode, size, time
/// of modification; of a directory the change time, too. (That of a file changes with its names.)
/// A file system over a network gets another device number with its next mount, so that isn't
/// compared.
/// For an object of a bucket: its ETag and its size, which listings contain, too.
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
    // 0 stands for no version, 1 for one that isn't known.
    XxHash3_64::oneshot(&bytes).max(2)
}

/// The fingerprint of a directory whose names have just been compared. One that has changed shortly
/// before may change again within the same unit of its file system's clock: it gets a fingerprint
/// that none has, so that its names are compared again.
pub fn print_of_names(meta: &Meta) -> u64 {
    if i128::from(now()) - meta.mtime.max(meta.ctime) < SHORTLY {
        1
    } else {
        print(meta)
    }
}

/// Fingerprint of a directory's attributes, as [`forebay_store::OriginMark::synced`] has it: mode,
/// owner, group, time of modification.
pub fn attributes(mode: u32, uid: u32, gid: u32, mtime: i64) -> i64 {
    let mut bytes = Vec::with_capacity(20);
    for word in [mode & 0o7777, uid, gid] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&mtime.to_le_bytes());
    XxHash3_64::oneshot(&bytes) as i64
}

/// The same for a directory of the pool.
pub fn attributes_of(inode: &Inode) -> i64 {
    attributes(inode.mode, inode.uid, inode.gid, inode.mtime)
}

//! The origin's side: paths, metadata, fingerprints.
//!
//! The origin's root is held open from the start, and paths go through that descriptor: a mount of
//! the pool over the origin's own path doesn't lead back into the pool.

use forebay_staging::{Meta, Place, PlaceFile, PlainPlace};
use forebay_store::{Inode, now};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use twox_hash::XxHash3_64;

/// Type of the file systems of FUSE in statfs(2).
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// Longest unit of a file system's clock, and what clocks may differ by. Nanoseconds.
const SHORTLY: i64 = 2_500_000_000;

/// The origin. As a [`Place`], its paths are relative to its root, which is the empty path.
pub struct Side {
    root: OwnedFd,
    /// Whether an inode number stands for one object. Many file systems of FUSE (sshfs) give an
    /// object another one whenever the kernel has forgotten it.
    has_identities: bool,
    /// As users know it.
    shown: String,
}

/// An open file of the origin.
pub type SideFile<'a> = <PlainPlace as Place>::File<'a>;

impl Side {
    /// # Errors
    /// As open(2).
    pub fn open(path: &str) -> Result<Side> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Side {
            has_identities: rustix::fs::fstatfs(&root)?.f_type != FUSE,
            root,
            shown: path.trim_end_matches('/').to_owned(),
        })
    }

    /// A path that leads to `relative` from this process.
    pub fn path(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = format!("/proc/self/fd/{}/", self.root.as_raw_fd()).into_bytes();
        path.extend_from_slice(if relative.is_empty() { b"." } else { relative });
        path
    }

    /// The path as users know it.
    pub fn show(&self, relative: &[u8]) -> String {
        format!("{}/{}", self.shown, String::from_utf8_lossy(relative))
    }

    /// The metadata of what is there; without an inode number, if that stands for nothing.
    ///
    /// # Errors
    /// As lstat(2).
    pub fn meta(&self, relative: &[u8]) -> Result<Meta> {
        let meta = self.stat(relative, false)?;
        Ok(self.comparable(meta))
    }

    /// The metadata of an open file, as [`Side::meta`] has it.
    ///
    /// # Errors
    /// As fstat(2).
    pub fn meta_of(&self, file: &impl PlaceFile) -> Result<Meta> {
        file.meta().map(|meta| self.comparable(meta))
    }

    /// Metadata without what another look at the same object may show otherwise.
    pub fn comparable(&self, meta: Meta) -> Meta {
        match self.has_identities {
            true => meta,
            false => Meta { ino: 0, ..meta },
        }
    }

    /// The metadata of what is there, if anything is.
    ///
    /// # Errors
    /// As lstat(2), but for ENOENT and ENOTDIR.
    pub fn look(&self, relative: &[u8]) -> Result<Option<Meta>> {
        match self.meta(relative) {
            Ok(meta) => Ok(Some(meta)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Renames, but replaces nothing unless `replaces`.
    ///
    /// # Errors
    /// As renameat2(2).
    pub fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        if replaces {
            return rustix::fs::rename(from, to);
        }
        match rustix::fs::renameat_with(CWD, &from[..], CWD, &to[..], RenameFlags::NOREPLACE) {
            // A file system that doesn't know the flag.
            Err(Errno::INVAL | Errno::NOSYS) => match PlainPlace.stat(&to, false) {
                Err(Errno::NOENT) => rustix::fs::rename(from, to),
                Ok(_) => Err(Errno::EXIST),
                Err(e) => Err(e),
            },
            other => other,
        }
    }
}

impl Place for Side {
    type File<'a> = SideFile<'a>;

    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        PlainPlace.stat(&self.path(path), follow)
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        PlainPlace.list(&self.path(path))
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<SideFile<'_>> {
        PlainPlace.open(&self.path(path), follow)
    }

    fn create(&self, path: &[u8], to: &[u8]) -> Result<SideFile<'_>> {
        PlainPlace.create(&self.path(path), to)
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        PlainPlace.mkdir(&self.path(path), mode)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        PlainPlace.unlink(&self.path(path))
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        PlainPlace.rmdir(&self.path(path))
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.rename(from, to, true)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        PlainPlace.link(&self.path(old), &self.path(new))
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        PlainPlace.symlink(target, &self.path(path))
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        PlainPlace.readlink(&self.path(path))
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        PlainPlace.chmod(&self.path(path), mode)
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        PlainPlace.chown(&self.path(path), uid, gid)
    }

    fn set_times(&self, path: &[u8], atime: i64, mtime: i64) -> Result<()> {
        PlainPlace.set_times(&self.path(path), atime, mtime)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        PlainPlace.xattrs(&self.path(path))
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        PlainPlace.xattr(&self.path(path), name)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        PlainPlace.set_xattr(&self.path(path), name, value)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        PlainPlace.remove_xattr(&self.path(path), name)
    }

    fn sync_all(&self, path: &[u8]) -> Result<()> {
        PlainPlace.sync_all(&self.path(path))
    }

    fn show(&self, path: &[u8]) -> String {
        self.show(path)
    }
}

/// `relative` with one more name.
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
pub fn print(meta: &Meta) -> u64 {
    let (size, ctime) = match meta.is_dir() {
        true => (0, meta.ctime),
        false => (meta.size, 0),
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
    match now().saturating_sub(meta.mtime.max(meta.ctime)) < SHORTLY {
        true => 1,
        false => print(meta),
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

/// The same of a directory of the pool.
pub fn attributes_of(inode: &Inode) -> i64 {
    attributes(inode.mode, inode.uid, inode.gid, inode.mtime)
}

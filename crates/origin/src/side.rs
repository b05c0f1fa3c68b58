//! The origin's side: paths, metadata, fingerprints.
//!
//! An origin is a directory of the kernel's or a bucket. A directory's root is held open from the
//! start, and paths go through that descriptor: a mount of the pool over the origin's own path
//! doesn't lead back into the pool.

use forebay_bucket::{Address, BucketFile, BucketStore, CHANGED, DEVICE, Entries};
use forebay_staging::{Meta, Place, PlaceFile, PlainPlace};
use forebay_store::Inode;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use twox_hash::XxHash3_64;

/// The origin. As a [`Place`], its paths are relative to its root, which is the empty path.
pub struct Side {
    store: Store,
    /// As users know it.
    shown: String,
}

enum Store {
    Directory(OwnedFd),
    Bucket(Box<Bucket>),
}

/// A bucket, or what is below a prefix of it.
pub struct Bucket {
    store: BucketStore,
    /// The path of the root in the bucket, with a slash at its end.
    root: Vec<u8>,
}

impl Bucket {
    /// The store's path.
    pub fn path(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.root.clone();
        path.extend_from_slice(relative);
        if relative.is_empty() && path.len() > 1 {
            path.pop();
        }
        path
    }

    /// Whether there is anything below the root.
    ///
    /// # Errors
    /// Errors of listing it.
    pub fn has_any(&self) -> Result<bool> {
        Ok(self.store.top(&self.path(b""))?.1)
    }

    /// Makes an object that is as another one.
    ///
    /// # Errors
    /// As for [`BucketStore::copy`].
    pub fn copy(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<()> {
        let copied = self.store.copy(&self.path(from), &self.path(to), replaces);
        copied.map(|_| ())
    }

    pub fn store(&self) -> &BucketStore {
        &self.store
    }

    fn meta(&self, relative: &[u8]) -> Result<Meta> {
        let path = self.path(relative);
        match relative.is_empty() {
            // A prefix without keys is an empty directory.
            true => self.store.top(&path).map(|(meta, _)| meta),
            false => self.store.look(&path)?.ok_or(Errno::NOENT),
        }
    }
}

/// An open file of the origin.
pub enum SideFile<'a> {
    Plain(<PlainPlace as Place>::File<'a>),
    Object(Box<BucketFile<'a>>),
}

/// Whether an error is one of the way to the origin's server: further requests would fail, too.
pub fn is_cut_off(e: Errno) -> bool {
    matches!(
        e,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::CONNRESET
    )
}

impl Side {
    /// # Errors
    /// Why it can't be opened, and what to do.
    pub fn open(path: &str, timeout: Duration) -> std::result::Result<Side, String> {
        if let Some(address) = Address::parse(path.as_bytes()) {
            let address = address?;
            let mut root = address.path.clone();
            if root.last() != Some(&b'/') {
                root.push(b'/');
            }
            let bucket = Bucket {
                store: BucketStore::open(&address, timeout)?,
                root,
            };
            return Ok(Side {
                store: Store::Bucket(Box::new(bucket)),
                shown: path.trim_end_matches('/').to_owned(),
            });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| format!("{e}; it must be a directory that this user may search"))?;
        Ok(Side {
            store: Store::Directory(root),
            shown: path.trim_end_matches('/').to_owned(),
        })
    }

    /// The bucket, if the origin is one.
    pub fn bucket(&self) -> Option<&Bucket> {
        match &self.store {
            Store::Bucket(bucket) => Some(bucket),
            Store::Directory(_) => None,
        }
    }

    /// Threads that fetch one file, or list one directory.
    pub fn threads(&self) -> usize {
        match self.store {
            Store::Directory(_) => 4,
            // They wait for the network.
            Store::Bucket(_) => 8,
        }
    }

    /// The path as users know it.
    pub fn show(&self, relative: &[u8]) -> String {
        format!("{}/{}", self.shown, String::from_utf8_lossy(relative))
    }

    /// The error as a sentence, with advice where there is any.
    pub fn explain(&self, error: Errno) -> String {
        match &self.store {
            Store::Directory(_) => forebay_staging::explain(error),
            Store::Bucket(bucket) => bucket.store.explain(error),
        }
    }

    /// The error as programs know it: those of a server become EIO or EACCES.
    pub fn for_programs(&self, error: Errno) -> Errno {
        match (&self.store, error) {
            (Store::Directory(_), e) => e,
            (_, Errno::NOKEY | Errno::KEYREJECTED) => Errno::ACCESS,
            (_, Errno::HOSTUNREACH | Errno::CONNREFUSED | Errno::CONNRESET | Errno::AGAIN)
            | (_, Errno::NODEV | Errno::REMCHG | Errno::TIME | Errno::PROTO)
            | (_, Errno::REMOTEIO | Errno::BADE) => Errno::IO,
            (_, e) => e,
        }
    }

    /// # Errors
    /// As lstat(2).
    pub fn meta(&self, relative: &[u8]) -> Result<Meta> {
        self.stat(relative, false)
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

    /// The entries of a directory of a bucket, with versions and sizes, and with all attributes of
    /// those that `is_new` names. None: the origin is a directory, whose list has names only.
    ///
    /// # Errors
    /// Errors of listing it.
    pub fn entries(
        &self,
        relative: &[u8],
        is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Option<Entries>> {
        match &self.store {
            Store::Directory(_) => Ok(None),
            Store::Bucket(bucket) => {
                let path = bucket.path(relative);
                bucket.store.entries(&path, is_new).map(Some)
            }
        }
    }

    /// Renames, but replaces nothing unless `replaces`. The object's metadata, if it has become
    /// another version.
    ///
    /// # Errors
    /// As renameat2(2). EXDEV: a directory of a bucket.
    pub fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Option<Meta>> {
        if let Store::Bucket(bucket) = &self.store {
            let (from, to) = (bucket.path(from), bucket.path(to));
            return bucket.store.rename(&from, &to, replaces).map(Some);
        }
        self.rename_in_kernel(&self.path(from)?, &self.path(to)?, replaces)
            .map(|()| None)
    }

    fn rename_in_kernel(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<()> {
        if replaces {
            return rustix::fs::rename(from, to);
        }
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // A file system that doesn't know the flag.
            Err(Errno::INVAL | Errno::NOSYS) => match PlainPlace.stat(to, false) {
                Err(Errno::NOENT) => rustix::fs::rename(from, to),
                Ok(_) => Err(Errno::EXIST),
                Err(e) => Err(e),
            },
            other => other,
        }
    }

    /// A path that leads to `relative` from this process.
    ///
    /// # Errors
    /// EOPNOTSUPP: the origin is a bucket.
    fn path(&self, relative: &[u8]) -> Result<Vec<u8>> {
        let Store::Directory(root) = &self.store else {
            return Err(Errno::OPNOTSUPP);
        };
        let mut path = format!("/proc/self/fd/{}/", root.as_raw_fd()).into_bytes();
        path.extend_from_slice(if relative.is_empty() { b"." } else { relative });
        Ok(path)
    }
}

/// EBUSY for a version that others have changed meanwhile: programs know that one.
fn changed(e: Errno) -> Errno {
    match e {
        CHANGED => Errno::BUSY,
        e => e,
    }
}

/// Content and attributes of objects are written by [`crate::puts`]; the steps of which a
/// directory's files are made fail for a bucket.
impl Place for Side {
    type File<'a> = SideFile<'a>;

    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        match self.bucket() {
            None => PlainPlace.stat(&self.path(path)?, follow),
            Some(bucket) => bucket.meta(path),
        }
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.entries(path, &|_| false)? {
            None => PlainPlace.list(&self.path(path)?),
            Some(entries) => Ok(entries.all.into_iter().map(|(name, _)| name).collect()),
        }
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<SideFile<'_>> {
        match self.bucket() {
            None => PlainPlace
                .open(&self.path(path)?, follow)
                .map(SideFile::Plain),
            Some(bucket) => {
                let file = bucket.store.read(&bucket.path(path))?;
                Ok(SideFile::Object(Box::new(file)))
            }
        }
    }

    fn create(&self, path: &[u8], to: &[u8]) -> Result<SideFile<'_>> {
        let file = PlainPlace.create(&self.path(path)?, to)?;
        Ok(SideFile::Plain(file))
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        match self.bucket() {
            None => PlainPlace.mkdir(&self.path(path)?, mode),
            Some(bucket) => bucket.store.mkdir(&bucket.path(path)).map_err(changed),
        }
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        match self.bucket() {
            None => PlainPlace.unlink(&self.path(path)?),
            Some(bucket) => bucket.store.unlink(&bucket.path(path)).map_err(changed),
        }
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        match self.bucket() {
            None => PlainPlace.rmdir(&self.path(path)?),
            Some(bucket) => bucket.store.rmdir(&bucket.path(path)).map_err(changed),
        }
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.rename(from, to, true).map(|_| ())
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        match self.bucket() {
            None => PlainPlace.link(&self.path(old)?, &self.path(new)?),
            // An object of its own.
            Some(bucket) => bucket.copy(old, new, false),
        }
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        match self.bucket() {
            None => PlainPlace.symlink(target, &self.path(path)?),
            Some(bucket) => {
                let path = bucket.path(path);
                bucket.store.symlink(target, &path).map_err(changed)
            }
        }
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        match self.bucket() {
            None => PlainPlace.readlink(&self.path(path)?),
            Some(bucket) => bucket.store.readlink(&bucket.path(path)),
        }
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        PlainPlace.chmod(&self.path(path)?, mode)
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        PlainPlace.chown(&self.path(path)?, uid, gid)
    }

    fn set_times(&self, path: &[u8], atime: i64, mtime: i64) -> Result<()> {
        PlainPlace.set_times(&self.path(path)?, atime, mtime)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self.bucket() {
            None => PlainPlace.xattrs(&self.path(path)?),
            Some(bucket) => {
                let all = bucket.store.user_attributes(&bucket.path(path), false)?;
                Ok(all.into_iter().map(|(name, _)| name).collect())
            }
        }
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        match self.bucket() {
            None => PlainPlace.xattr(&self.path(path)?, name),
            Some(bucket) => {
                let all = bucket.store.user_attributes(&bucket.path(path), false)?;
                let mut found = all.into_iter().filter(|(other, _)| other == name);
                found.next().map(|(_, value)| value).ok_or(Errno::NODATA)
            }
        }
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        PlainPlace.set_xattr(&self.path(path)?, name, value)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        PlainPlace.remove_xattr(&self.path(path)?, name)
    }

    fn sync_all(&self, path: &[u8]) -> Result<()> {
        PlainPlace.sync_all(&self.path(path)?)
    }

    fn show(&self, path: &[u8]) -> String {
        self.show(path)
    }

    fn explain(&self, error: Errno) -> String {
        self.explain(error)
    }
}

impl PlaceFile for SideFile<'_> {
    fn meta(&self) -> Result<Meta> {
        match self {
            SideFile::Plain(file) => file.meta(),
            SideFile::Object(object) => object.meta(),
        }
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        match self {
            SideFile::Plain(file) => file.read_at(buffer, at),
            SideFile::Object(object) => object.read_at(buffer, at),
        }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        match self {
            SideFile::Plain(file) => file.write_at(bytes, at),
            SideFile::Object(object) => object.write_at(bytes, at),
        }
    }

    fn set_len(&self, size: u64) -> Result<()> {
        match self {
            SideFile::Plain(file) => file.set_len(size),
            SideFile::Object(object) => object.set_len(size),
        }
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        match self {
            SideFile::Plain(file) => file.seek_data(at),
            SideFile::Object(object) => object.seek_data(at),
        }
    }

    fn seek_hole(&self, at: u64) -> Result<u64> {
        match self {
            SideFile::Plain(file) => file.seek_hole(at),
            SideFile::Object(object) => object.seek_hole(at),
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            SideFile::Plain(file) => file.sync(),
            SideFile::Object(object) => object.sync(),
        }
    }

    fn forget_cached(&self) {
        if let SideFile::Plain(file) = self {
            file.forget_cached();
        }
    }

    fn close(self) -> Result<()> {
        match self {
            SideFile::Plain(file) => file.close(),
            SideFile::Object(object) => object.close(),
        }
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
/// Of an object of a bucket: its ETag and its size, which lists tell, too.
pub fn print(meta: &Meta) -> u64 {
    if meta.dev == DEVICE {
        let words = [meta.dev, meta.ino, meta.size].map(u64::to_le_bytes);
        return XxHash3_64::oneshot(words.as_flattened()).max(1);
    }
    let (size, ctime) = match meta.is_dir() {
        true => (0, meta.ctime),
        false => (meta.size, 0),
    };
    let mode = u64::from(meta.mode);
    let mut bytes = Vec::with_capacity(48);
    for word in [
        meta.dev,
        meta.ino,
        mode,
        size,
        meta.mtime as u64,
        ctime as u64,
    ] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    // 0 stands for no version.
    XxHash3_64::oneshot(&bytes).max(1)
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

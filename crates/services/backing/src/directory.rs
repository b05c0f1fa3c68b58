//! A directory of any file system of the kernel as a slow store.
//!
//! Others may change the directory tree ([`Tree`]) at any time: objects below its root are reached
//! without following a symbolic link. The root itself is opened by the user's path, following
//! links.

use crate::error::explain;
use crate::meta::Meta;
use crate::store::{Attributes, SlowStore, StoreFile, trimmed};
use forebay_runtime::beneath::Tree;
use rustix::fs::{self, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, Result};
use std::os::fd::{IntoRawFd, OwnedFd};

/// Type of FUSE file systems in statfs(2).
const FUSE: fs::FsWord = 0x6573_5546;

/// A directory of the kernel and everything below it, or the object at a path.
#[derive(Debug)]
pub struct DirectoryStore {
    tree: Tree,
    paths: Paths,
}

/// The form of a store's paths.
#[derive(Debug)]
enum Paths {
    /// Paths begin with the root, as the user wrote it. An empty root is the working directory.
    Written(Vec<u8>),
    /// Paths are relative to the root. No user wrote them, so links are never followed.
    Relative {
        /// The root's path for messages to users.
        shown: String,
        /// Whether an inode number identifies an object. Many FUSE file systems (sshfs) give an
        /// object a new number whenever the kernel has forgotten it.
        has_identities: bool,
    },
}

impl DirectoryStore {
    /// Opens the store for `path`, as the user wrote it. The store's root is the deepest existing
    /// directory on the path, with symbolic links followed.
    ///
    /// # Errors
    /// The errors of open(2) for `/` or the working directory.
    pub fn of(path: &[u8]) -> Result<DirectoryStore> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut root = trimmed(path);
        loop {
            let shown = if root.is_empty() { b"." } else { root };
            match Tree::open(shown) {
                Ok(tree) => return Ok(DirectoryStore::written(tree, root)),
                Err(e) if matches!(root, b"" | b"/") => return Err(e),
                Err(_) => root = above(root),
            }
        }
    }

    /// Opens the store whose root is the directory that contains the entry `path`, as the user
    /// wrote it. For renaming or removing that entry.
    ///
    /// # Errors
    /// The errors of open(2) for that directory.
    pub fn beside(path: &[u8]) -> Result<DirectoryStore> {
        let root = above(path);
        let tree = Tree::open(if root.is_empty() { b"." } else { root })?;
        Ok(DirectoryStore::written(tree, root))
    }

    fn written(tree: Tree, root: &[u8]) -> DirectoryStore {
        DirectoryStore {
            tree: tree.keeping(),
            paths: Paths::Written(root.to_vec()),
        }
    }

    /// Opens the store of a directory. The store's paths are relative to the directory. The
    /// directory is kept open, so that a mount over its path, or a link in its place, has no
    /// effect. Nothing else is kept open, so that changes by others are seen at once.
    ///
    /// # Errors
    /// The errors of open(2) and fstatfs(2).
    pub fn inside(path: &str) -> Result<DirectoryStore> {
        let tree = Tree::open(path.as_bytes())?;
        let kind = fs::fstatfs(tree.root())?.f_type;
        Ok(DirectoryStore {
            tree,
            paths: Paths::Relative {
                shown: path.trim_end_matches('/').to_owned(),
                has_identities: kind != FUSE,
            },
        })
    }

    /// Returns the part of a path below the root.
    fn relative<'p>(&self, path: &'p [u8]) -> Result<&'p [u8]> {
        let Paths::Written(root) = &self.paths else {
            return Ok(path);
        };
        match path.strip_prefix(&root[..]) {
            Some(rest) if root.is_empty() || root.ends_with(b"/") => Ok(rest),
            Some(rest) if rest.is_empty() || rest[0] == b'/' => Ok(rest),
            _ => Err(Errno::XDEV),
        }
    }

    fn follows(&self) -> bool {
        matches!(self.paths, Paths::Written(_))
    }
}

/// Returns the directory of a path as it is written: `/` for `/a`, empty for `a`.
fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    match path[..end].iter().rposition(|&b| b == b'/') {
        Some(0) => b"/",
        Some(at) => &path[..at],
        None => &path[..0],
    }
}

const NS: i128 = 1_000_000_000;

#[allow(
    clippy::unnecessary_cast,
    reason = "the widths differ between architectures"
)]
fn meta(s: &fs::Stat) -> Meta {
    let time = |sec: i64, ns: i64| i128::from(sec) * NS + i128::from(ns);
    Meta {
        dev: s.st_dev,
        ino: s.st_ino,
        mode: s.st_mode,
        nlink: s.st_nlink as u64,
        uid: s.st_uid,
        gid: s.st_gid,
        size: s.st_size as u64,
        atime: time(s.st_atime, s.st_atime_nsec as i64),
        mtime: time(s.st_mtime, s.st_mtime_nsec as i64),
        ctime: time(s.st_ctime, s.st_ctime_nsec as i64),
    }
}

fn timestamps(atime: i128, mtime: i128) -> Timestamps {
    let time = |ns: i128| Timespec {
        tv_sec: i64::try_from(ns.div_euclid(NS)).unwrap_or(if ns < 0 {
            i64::MIN
        } else {
            i64::MAX
        }),
        tv_nsec: ns.rem_euclid(NS) as _,
    };
    Timestamps {
        last_access: time(atime),
        last_modification: time(mtime),
    }
}

/// Whether an error means that the file system has no extended attributes.
fn without(error: Errno) -> bool {
    error == Errno::OPNOTSUPP || error == Errno::NOSYS
}

/// Calls `get` with ever larger buffers until the result fits.
fn grown(mut get: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match get(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(e) => return Err(e),
        }
    }
}

/// Returns the names of the `user.*` attributes in a list that `get` reads.
fn user_attributes(get: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<Vec<u8>>> {
    match grown(get) {
        Ok(list) => Ok(list
            .split(|&b| b == 0)
            .filter(|n| n.starts_with(b"user."))
            .map(<[u8]>::to_vec)
            .collect()),
        Err(e) if without(e) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

impl SlowStore for DirectoryStore {
    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        let follow = follow && self.follows();
        let stat = self.tree.stat(self.relative(path)?, follow)?;
        Ok(meta(&stat))
    }

    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        let mut all = Vec::new();
        for entry in self.tree.entries(self.relative(path)?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                all.push(name);
            }
        }
        *names = all;
        Ok(())
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn StoreFile + '_>> {
        // Non-blocking, because a FIFO may have replaced the file.
        let mut flags = OFlags::RDONLY | OFlags::NONBLOCK;
        if !(follow && self.follows()) {
            flags |= OFlags::NOFOLLOW;
        }
        let path = self.relative(path)?;
        let open = |flags| self.tree.open_file(path, flags, Mode::empty());
        // A staging isn't a use of the source, so it shouldn't change access times.
        let opened = match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => open(flags),
            other => other,
        };
        Ok(Box::new(DirectoryFile(opened?)))
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.tree.mkdir(self.relative(path)?, mode)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.tree.unlink(self.relative(path)?)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.tree.rmdir(self.relative(path)?)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.tree.symlink(target, self.relative(path)?)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.tree.readlink(self.relative(path)?)
    }

    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a> {
        Box::new(At { store: self, path })
    }

    fn show(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        match &self.paths {
            Paths::Written(_) => path.into_owned(),
            Paths::Relative { shown, .. } => format!("{shown}/{path}"),
        }
    }

    fn explain(&self, error: Errno) -> String {
        match error {
            Errno::LOOP => LINK_ON_THE_WAY.to_owned(),
            error => explain(error),
        }
    }

    fn comparable(&self, meta: Meta) -> Meta {
        match self.paths {
            Paths::Relative {
                has_identities: false,
                ..
            } => Meta { ino: 0, ..meta },
            _ => meta,
        }
    }

    fn sync_all(&self, path: &[u8]) -> Result<()> {
        let dir = self.tree.directory(self.relative(path)?)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::syncfs(fs::openat(&dir, c".", flags, Mode::empty())?)
    }

    fn create(&self, path: &[u8], _: &[u8]) -> Result<Box<dyn StoreFile + '_>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o600);
        let file = self.tree.open_file(self.relative(path)?, flags, mode)?;
        Ok(Box::new(DirectoryFile(file)))
    }

    fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Option<Meta>> {
        let (from, to) = (self.relative(from)?, self.relative(to)?);
        let rename = |flags| self.tree.rename(from, to, flags);
        if replaces {
            return rename(RenameFlags::empty()).map(|()| None);
        }
        let renamed = match rename(RenameFlags::NOREPLACE) {
            // The file system doesn't know RENAME_NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS) => match self.tree.stat(to, false) {
                Err(Errno::NOENT) => rename(RenameFlags::empty()),
                Ok(_) => Err(Errno::EXIST),
                Err(e) => Err(e),
            },
            other => other,
        };
        renamed.map(|()| None)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.tree.link(self.relative(old)?, self.relative(new)?)
    }

    fn tree(&self) -> Option<&Tree> {
        Some(&self.tree)
    }
}

/// Explains ELOOP below the root of a store.
const LINK_ON_THE_WAY: &str = "a symbolic link is on its path, perhaps in the place of a directory \
     that was there before; nothing is read or written through it";

/// The attributes of the object at a path of a store.
struct At<'a> {
    store: &'a DirectoryStore,
    path: &'a [u8],
}

impl At<'_> {
    fn relative(&self) -> Result<&[u8]> {
        self.store.relative(self.path)
    }
}

impl Attributes for At<'_> {
    fn stat(&self) -> Result<Meta> {
        self.store.stat(self.path, false)
    }

    fn chmod(&self, mode: u32) -> Result<()> {
        self.store.tree.chmod(self.relative()?, mode)
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.store.tree.chown(self.relative()?, uid, gid)
    }

    fn set_times(&self, atime: i128, mtime: i128) -> Result<()> {
        let times = timestamps(atime, mtime);
        self.store.tree.set_times(self.relative()?, &times)
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let path = self.relative()?;
        user_attributes(|b| self.store.tree.xattrs(path, b))
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let path = self.relative()?;
        grown(|b| self.store.tree.xattr(path, name, b))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.store.tree.set_xattr(self.relative()?, name, value)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.store.tree.remove_xattr(self.relative()?, name)
    }
}

/// An open file of a directory store.
#[derive(Debug)]
struct DirectoryFile(OwnedFd);

impl StoreFile for DirectoryFile {
    fn meta(&self) -> Result<Meta> {
        fs::fstat(&self.0).map(|s| meta(&s))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *buffer, at))
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.0, bytes, at))
    }

    fn set_len(&self, size: u64) -> Result<()> {
        fs::ftruncate(&self.0, size)
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        match fs::seek(&self.0, fs::SeekFrom::Data(at)) {
            // The file system can't tell where holes are: all bytes count as data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
            other => other,
        }
    }

    fn seek_hole(&self, at: u64) -> Result<u64> {
        match fs::seek(&self.0, fs::SeekFrom::Hole(at)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(u64::MAX),
            other => other,
        }
    }

    fn sync(&self) -> Result<()> {
        fs::fsync(&self.0)
    }

    fn attributes(&self) -> Option<&dyn Attributes> {
        Some(self)
    }

    fn forget_cached(&self) {
        let _ = fs::fadvise(&self.0, 0, None, fs::Advice::DontNeed);
    }

    fn close(self: Box<Self>) -> Result<()> {
        // SAFETY: the descriptor is owned, and isn't used again.
        match unsafe { libc::close(IntoRawFd::into_raw_fd(self.0)) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)),
        }
    }
}

impl Attributes for DirectoryFile {
    fn stat(&self) -> Result<Meta> {
        self.meta()
    }

    fn chmod(&self, mode: u32) -> Result<()> {
        fs::fchmod(&self.0, Mode::from_raw_mode(mode))
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let (uid, gid) = (uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw));
        fs::fchown(&self.0, uid, gid)
    }

    fn set_times(&self, atime: i128, mtime: i128) -> Result<()> {
        fs::futimens(&self.0, &timestamps(atime, mtime))
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        user_attributes(|b| fs::flistxattr(&self.0, b))
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        grown(|b| fs::fgetxattr(&self.0, name, b))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        fs::fsetxattr(&self.0, name, value, XattrFlags::empty())
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        fs::fremovexattr(&self.0, name)
    }
}

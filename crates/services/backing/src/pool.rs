//! The pool as a slow store, for one end of a copy.

use crate::error::explain;
use crate::meta::{Meta, pool_time};
use crate::store::{Attributes, SlowStore, StoreFile, split};
use forebay_cluster::Salvage;
use forebay_posix::{Fail, File, Fs, ObjectId, RenameMode, Stat, umask};
use forebay_runtime::threads::lock;
use rustix::io::{Errno, Result};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A pool's name space, through an [`Fs`] that it owns or borrows.
pub struct PoolStore<F> {
    fs: F,
    mount: String,
    /// While nodes are dead: the directories that are found without the salvage, by path. None: not
    /// found.
    plain: Mutex<HashMap<Vec<u8>, Option<ObjectId>>>,
    /// The process's umask, which restricts the modes of new directories, as in the kernel's file
    /// systems.
    umask: u32,
}

impl<F: Borrow<Fs>> PoolStore<F> {
    /// Returns the store of a pool. `mount`: the prefix under which programs see the pool, for
    /// messages.
    pub fn new(fs: F, mount: &str) -> PoolStore<F> {
        PoolStore {
            fs,
            mount: mount.to_owned(),
            plain: Mutex::default(),
            umask: umask(),
        }
    }

    fn fs(&self) -> &Fs {
        self.fs.borrow()
    }

    /// Prepares for dead nodes: from now on, the store finds all objects of living nodes; those
    /// without a known path are in `lost+found` of the directory `top` ([`Fs::salvage`]). Returns
    /// None if all nodes answer.
    ///
    /// # Errors
    /// The errors of [`Fs::salvage`].
    pub fn salvage(&self, top: &[u8]) -> Result<Option<Arc<Salvage>>> {
        lock(&self.plain).clear();
        self.fs().salvage(top)
    }

    /// Returns the directory at a path, if it is found without the salvage.
    fn plain_directory(&self, path: &[u8], salvage: &Salvage) -> Option<ObjectId> {
        if let Some(known) = lock(&self.plain).get(path) {
            return *known;
        }
        let found = if matches!(path, b"/" | b"" | b".") {
            Some(ObjectId::ROOT)
        } else {
            let (above, name) = split(path);
            let above = self.plain_directory(above, salvage);
            above.and_then(
                |above| match self.fs().cluster().namespace().lookup(above, name) {
                    Ok(Some(entry)) if salvage.entry(above, name).is_none() => Some(entry.id),
                    _ => None,
                },
            )
        };
        let found = found.filter(|id| !salvage.has_lost(*id));
        lock(&self.plain).insert(path.to_vec(), found);
        found
    }
}

fn meta(s: &Stat) -> Meta {
    Meta {
        dev: 0,
        ino: s.ino,
        mode: s.mode,
        nlink: u64::from(s.nlink),
        uid: s.uid,
        gid: s.gid,
        size: s.size,
        atime: s.atime.into(),
        mtime: s.mtime.into(),
        ctime: s.ctime.into(),
    }
}

impl<F: Borrow<Fs> + Send + Sync> SlowStore for PoolStore<F> {
    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        self.fs().stat(path, follow).map(|s| meta(&s))
    }

    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        let mut entries = Vec::new();
        let listed = self.fs().list_into(path, &mut entries);
        *names = entries.into_iter().map(|e| e.name).collect();
        listed
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn StoreFile + '_>> {
        let flags = if follow {
            libc::O_RDONLY
        } else {
            libc::O_RDONLY | libc::O_NOFOLLOW
        };
        Ok(Box::new(PoolFile(self.fs().open(path, flags, 0)?)))
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.fs().mkdir(path, mode & !self.umask)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.fs().unlink(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.fs().rmdir(path)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.fs().symlink(target, path)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs().readlink(path)
    }

    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a> {
        Box::new(At {
            fs: self.fs(),
            path,
        })
    }

    fn show(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        format!("{}{}", self.mount, if path == "/" { "" } else { &path })
    }

    fn explain(&self, error: Errno) -> String {
        match error {
            Errno::NOSPC => "the pool is full, or its files media are and the file \
                 may lie nowhere else; start one with more --media"
                .to_owned(),
            Errno::HOSTDOWN => {
                "a node of the pool doesn't answer; forebay status says which".to_owned()
            }
            Errno::XDEV => {
                "the path leads out of the pool, or is at the origin only, by its mode off"
                    .to_owned()
            }
            error => explain(error),
        }
    }

    fn create(&self, path: &[u8], to: &[u8]) -> Result<Box<dyn StoreFile + '_>> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = self.fs().open_staged(path, to, flags, 0o600)?;
        Ok(Box::new(PoolFile(file)))
    }

    fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Option<Meta>> {
        let mode = if replaces {
            self.fs().settle(from, to)?;
            RenameMode::Replace
        } else {
            RenameMode::NoReplace
        };
        let root = ObjectId::ROOT;
        match self.fs().rename_at((root, from), (root, to), mode) {
            Ok(()) => Ok(None),
            Err(Fail::Errno(e)) => Err(e),
            // One of the paths leads outside the pool.
            Err(_) => Err(Errno::XDEV),
        }
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.fs().link(old, new)
    }

    fn is_pool(&self) -> bool {
        true
    }

    fn node_of(&self, file: &Meta) -> Option<u32> {
        self.fs().cluster().home_of(ObjectId(file.ino))
    }

    fn is_found_here_only(&self, path: &[u8]) -> bool {
        let Some(salvage) = self.fs().salvaged() else {
            return false;
        };
        let (directory, name) = split(path);
        let directory = self.plain_directory(directory, &salvage);
        directory.is_none_or(|directory| salvage.entry(directory, name).is_some())
    }
}

/// The object at a path of a pool.
struct At<'a> {
    fs: &'a Fs,
    path: &'a [u8],
}

impl Attributes for At<'_> {
    fn stat(&self) -> Result<Meta> {
        self.fs.stat(self.path, false).map(|s| meta(&s))
    }

    fn chmod(&self, mode: u32) -> Result<()> {
        self.fs.chmod(self.path, mode)
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.fs.chown(self.path, uid, gid, false)
    }

    fn set_times(&self, atime: i128, mtime: i128) -> Result<()> {
        let [atime, mtime] = [atime, mtime].map(|time| Some(pool_time(time)));
        self.fs.set_times(self.path, atime, mtime, false)
    }

    fn keeps_time(&self, time: i128) -> bool {
        i64::try_from(time).is_ok()
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = self.fs.xattrs(self.path, false)?;
        names.retain(|name| name.starts_with(b"user."));
        Ok(names)
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.xattr(self.path, name, false)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.fs.set_xattr(self.path, name, value, false)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.fs.remove_xattr(self.path, name, false)
    }
}

/// An open file of a pool.
pub struct PoolFile<'a>(File<'a>);

impl<'a> PoolFile<'a> {
    /// Wraps a file that is open.
    pub fn new(file: File<'a>) -> PoolFile<'a> {
        PoolFile(file)
    }

    /// Closes the file, as [`StoreFile::close`].
    ///
    /// # Errors
    /// As close(2).
    pub fn close(self) -> Result<()> {
        self.0.close()
    }
}

impl StoreFile for PoolFile<'_> {
    fn meta(&self) -> Result<Meta> {
        self.0.stat().map(|s| meta(&s))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        self.0.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<usize> {
        self.0.write_at(bytes, at)
    }

    fn set_len(&self, size: u64) -> Result<()> {
        self.0.set_len(size)
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        self.0.seek_data(at)
    }

    fn seek_hole(&self, at: u64) -> Result<u64> {
        self.0.seek_hole(at)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        (*self).close()
    }
}

//! The pool's side of a staging.

use crate::place::{Meta, Place, PlaceFile, explain};
use forebay_posix::{File, Fs, ObjectId, Stat};
use rustix::io::{Errno, Result};

/// A pool's name space.
pub struct PoolPlace<'f> {
    fs: &'f Fs,
    mount: String,
}

impl<'f> PoolPlace<'f> {
    /// `mount` is the prefix under which programs see the pool: for messages.
    pub fn new(fs: &'f Fs, mount: &str) -> PoolPlace<'f> {
        PoolPlace {
            fs,
            mount: mount.to_owned(),
        }
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
        atime: s.atime,
        mtime: s.mtime,
        ctime: s.ctime,
    }
}

impl Place for PoolPlace<'_> {
    type File<'a>
        = PoolFile<'a>
    where
        Self: 'a;

    fn stat(&self, path: &[u8], follow: bool) -> Result<Meta> {
        self.fs.stat(path, follow).map(|s| meta(&s))
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.list_into(path, &mut names)?;
        Ok(names)
    }

    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        let mut entries = Vec::new();
        let listed = self.fs.list_into(path, &mut entries);
        *names = entries.into_iter().map(|e| e.name).collect();
        listed
    }

    fn open(&self, path: &[u8], follow: bool) -> Result<PoolFile<'_>> {
        let flags = if follow {
            libc::O_RDONLY
        } else {
            libc::O_RDONLY | libc::O_NOFOLLOW
        };
        self.fs.open(path, flags, 0).map(PoolFile)
    }

    fn create(&self, path: &[u8], to: &[u8]) -> Result<PoolFile<'_>> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let file = self.fs.open_staged(path, to, flags, 0o600);
        file.map(PoolFile)
    }

    fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        self.fs.mkdir(path, mode)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.fs.unlink(path)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.fs.rmdir(path)
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.fs.settle(from, to)?;
        self.fs.rename(from, to)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        self.fs.link(old, new)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        self.fs.symlink(target, path)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.fs.readlink(path)
    }

    fn chmod(&self, path: &[u8], mode: u32) -> Result<()> {
        self.fs.chmod(path, mode)
    }

    fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.fs.chown(path, uid, gid, false)
    }

    fn set_times(&self, path: &[u8], atime: i64, mtime: i64) -> Result<()> {
        self.fs.set_times(path, Some(atime), Some(mtime), false)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let names = self.fs.xattrs(path, false)?;
        Ok(names
            .into_iter()
            .filter(|n| n.starts_with(b"user."))
            .collect())
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.fs.xattr(path, name, false)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        self.fs.set_xattr(path, name, value, false)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.fs.remove_xattr(path, name, false)
    }

    fn sync_all(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn is_pool(&self) -> bool {
        true
    }

    fn node_of(&self, file: &Meta) -> Option<u32> {
        self.fs.cluster().home_of(ObjectId(file.ino))
    }

    fn show(&self, path: &[u8]) -> String {
        let path = String::from_utf8_lossy(path);
        format!("{}{}", self.mount, if path == "/" { "" } else { &path })
    }

    fn explain(&self, error: Errno) -> String {
        match error {
            Errno::NOSPC => "the pool is full, or its files media are and the file may lie nowhere else; start one with more --media".to_owned(),
            Errno::HOSTDOWN => "a node of the pool doesn't answer; forebay status says which".to_owned(),
            error => explain(error),
        }
    }
}

/// An open file of a pool.
pub struct PoolFile<'a>(File<'a>);

impl<'a> PoolFile<'a> {
    /// A file that is open already.
    pub fn new(file: File<'a>) -> PoolFile<'a> {
        PoolFile(file)
    }
}

impl PlaceFile for PoolFile<'_> {
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

    fn forget_cached(&self) {}

    fn close(self) -> Result<()> {
        self.0.close()
    }
}

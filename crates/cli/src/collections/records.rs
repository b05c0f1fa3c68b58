//! Collections as a source of staging: their bytes through this process, their metadata as
//! attributes `user.*`.
//!
//! All lie in one directory, `/`, with the beginning of this run as their time, as collections have
//! none. Read-only.

use forebay_iov::{Collection, Key, Record, Workspace};
use forebay_staging::{Meta, Place, PlaceFile};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const USER: &[u8] = b"user.";

/// A source of staging.
pub struct Records {
    /// None: only records are wanted.
    workspace: Option<Workspace>,
    records: BTreeMap<Vec<u8>, Record>,
    began: i64,
}

/// The bytes of one collection.
pub struct Bytes {
    collection: Collection,
    meta: Meta,
}

impl Records {
    pub fn new(workspace: Option<Workspace>, records: Vec<Record>) -> Records {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let began = since.map_or(0, |t| t.as_nanos().try_into().unwrap_or(i64::MAX));
        let own = |record: Record| (record.name.clone().into_bytes(), record);
        Records {
            workspace,
            records: records.into_iter().map(own).collect(),
            began,
        }
    }

    fn record(&self, path: &[u8]) -> Result<&Record> {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        self.records.get(name).ok_or(Errno::NOENT)
    }

    fn meta(&self, mode: u32, size: u64) -> Meta {
        Meta {
            dev: 0,
            ino: 0,
            mode,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            size,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
        }
    }

    fn opened(&self, path: &[u8]) -> Result<Bytes> {
        let record = self.record(path)?;
        let workspace = self.workspace.as_ref().ok_or(Errno::NODEV)?;
        let opened = Collection::open(workspace, Key::Uuid(record.uuid));
        let collection = opened.map_err(|e| e.errno())?;
        let size = collection.size().map_err(|e| e.errno())?;
        let meta = self.meta(libc::S_IFREG | 0o644, size);
        Ok(Bytes { collection, meta })
    }
}

impl Place for Records {
    type File<'a> = Bytes;

    fn stat(&self, path: &[u8], _: bool) -> Result<Meta> {
        match path {
            b"/" => Ok(self.meta(libc::S_IFDIR | 0o755, 0)),
            path => {
                let bytes = self.opened(path)?;
                let meta = bytes.meta;
                bytes.close().map(|()| meta)
            }
        }
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        match path {
            b"/" => Ok(self.records.keys().cloned().collect()),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn open(&self, path: &[u8], _: bool) -> Result<Bytes> {
        self.opened(path)
    }

    fn create(&self, _: &[u8], _: &[u8]) -> Result<Bytes> {
        Err(Errno::ROFS)
    }

    fn mkdir(&self, _: &[u8], _: u32) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn unlink(&self, _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn rmdir(&self, _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn rename(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn link(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn symlink(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn readlink(&self, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::INVAL)
    }

    fn chmod(&self, _: &[u8], _: u32) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn chown(&self, _: &[u8], _: Option<u32>, _: Option<u32>) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn set_times(&self, _: &[u8], _: i64, _: i64) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let keys = self.record(path)?.meta.keys();
        Ok(keys.map(|key| [USER, key.as_bytes()].concat()).collect())
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        let key = name
            .strip_prefix(USER)
            .and_then(|k| std::str::from_utf8(k).ok());
        let meta = &self.record(path)?.meta;
        let value = key.and_then(|key| meta.get(key));
        value.map(|v| v.clone().into_bytes()).ok_or(Errno::NODATA)
    }

    fn set_xattr(&self, _: &[u8], _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn remove_xattr(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn sync_all(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn show(&self, path: &[u8]) -> String {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        format!("collection '{}'", String::from_utf8_lossy(name))
    }
}

impl PlaceFile for Bytes {
    fn meta(&self) -> Result<Meta> {
        let size = self.collection.size().map_err(|e| e.errno())?;
        Ok(Meta { size, ..self.meta })
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        self.collection.read(buffer, at).map_err(|e| e.errno())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<usize> {
        Err(Errno::ROFS)
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Err(Errno::ROFS)
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        // Holes aren't known: all is data.
        match at < self.meta()?.size {
            true => Ok(at),
            false => Err(Errno::NXIO),
        }
    }

    fn seek_hole(&self, _: u64) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget_cached(&self) {}

    fn close(self) -> Result<()> {
        self.collection.close().map_err(|e| e.errno())
    }
}

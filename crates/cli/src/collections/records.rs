//! Collections as a source of staging: bytes are read by this process, metadata become attributes
//! `user.*`.
//!
//! All collections are in one directory, `/`. Collections have no times, so each has the time at
//! which this run began. The source is read-only.

use forebay_backing::{Attributes, Meta, SlowStore, StoreFile};
use forebay_iov::{Collection, Key, Record, Workspace};
use rustix::io::{Errno, Result};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const USER: &[u8] = b"user.";

/// Collections as a source of staging, by name.
pub struct Records {
    /// None if only metadata are read.
    workspace: Option<Workspace>,
    records: BTreeMap<Vec<u8>, Record>,
    began: i64,
}

/// An open collection, whose bytes are read.
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
            atime: self.began.into(),
            mtime: self.began.into(),
            ctime: self.began.into(),
        }
    }

    fn opened(&self, path: &[u8]) -> Result<Box<Bytes>> {
        let record = self.record(path)?;
        let workspace = self.workspace.as_ref().ok_or(Errno::NODEV)?;
        let opened = Collection::open(workspace, Key::Uuid(record.uuid));
        let collection = opened.map_err(|e| e.errno())?;
        let size = collection.size().map_err(|e| e.errno())?;
        let meta = self.meta(libc::S_IFREG | 0o644, size);
        Ok(Box::new(Bytes { collection, meta }))
    }
}

impl SlowStore for Records {
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

    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        match path {
            b"/" => *names = self.records.keys().cloned().collect(),
            _ => return Err(Errno::NOTDIR),
        }
        Ok(())
    }

    fn open(&self, path: &[u8], _: bool) -> Result<Box<dyn StoreFile + '_>> {
        Ok(self.opened(path)?)
    }

    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a> {
        Box::new(At(self, path))
    }

    fn show(&self, path: &[u8]) -> String {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        format!("collection '{}'", String::from_utf8_lossy(name))
    }
}

/// The attributes of the collection at a path.
struct At<'a>(&'a Records, &'a [u8]);

impl Attributes for At<'_> {
    fn stat(&self) -> Result<Meta> {
        self.0.stat(self.1, false)
    }

    fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let keys = self.0.record(self.1)?.meta.keys();
        Ok(keys.map(|key| [USER, key.as_bytes()].concat()).collect())
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let key = name
            .strip_prefix(USER)
            .and_then(|k| std::str::from_utf8(k).ok());
        let meta = &self.0.record(self.1)?.meta;
        let value = key.and_then(|key| meta.get(key));
        value.map(|v| v.clone().into_bytes()).ok_or(Errno::NODATA)
    }
}

impl StoreFile for Bytes {
    fn meta(&self) -> Result<Meta> {
        let size = self.collection.size().map_err(|e| e.errno())?;
        Ok(Meta { size, ..self.meta })
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        self.collection.read(buffer, at).map_err(|e| e.errno())
    }

    fn seek_data(&self, at: u64) -> Result<u64> {
        // Collections report no holes, so every byte counts as data.
        if at < self.meta()?.size {
            Ok(at)
        } else {
            Err(Errno::NXIO)
        }
    }

    fn seek_hole(&self, _: u64) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.collection.close().map_err(|e| e.errno())
    }
}

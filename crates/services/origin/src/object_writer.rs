//! Writing files to a bucket. Each file is an object, which the server replaces in one step, with
//! content and attributes.
//!
//! The service names the version that a write replaces. If another process has written a different
//! version meanwhile, the server refuses the write, and the next pass finds the conflict.

use crate::attributes::ObjectAttributes;
use crate::shared::Shared;
use crate::side::{is_cut_off, print};
use forebay_backing::{CHANGED, Error, Meta, PART, PoolFile, Replaced, explain, for_each};
use forebay_posix::{File, ObjectId};
use forebay_runtime::threads::lock;
use forebay_staging::WholeFile;
use forebay_store::{Entry, Inode};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of files that are written at the same time, and of parts of a large file. Each
/// takes up to [`PART`] bytes of memory.
const MAX_CONCURRENT_WRITES: usize = 8;

/// A file to be written: the path at the origin, and the version that the file replaces.
pub struct Put<'p> {
    pub id: ObjectId,
    pub path: &'p [u8],
    pub size: u64,
    /// The version at the origin that is replaced. None: the origin has no object there.
    pub replaced: Option<Meta>,
}

/// The result of a write.
pub enum Written {
    /// The file was written; the fingerprint of the origin's new version.
    Done(u64),
    /// The file, or the origin's version, has changed meanwhile.
    Young,
    Failed(String),
}

/// Writes objects to a bucket.
pub struct ObjectWriter {
    pub shared: Arc<Shared>,
    pub attributes: Arc<ObjectAttributes>,
}

impl ObjectWriter {
    /// Writes files to a bucket. Returns a result for each file. None: the write wasn't tried,
    /// since the server can't be reached.
    pub fn put_all(&self, puts: &[Put<'_>]) -> Vec<Option<Written>> {
        let results = Mutex::new(Vec::new());
        let (small, large): (Vec<usize>, Vec<usize>) =
            (0..puts.len()).partition(|&at| puts[at].size <= PART);
        let cut_off = Mutex::new(false);
        let put = |at: usize, threads| {
            if *lock(&cut_off) {
                return;
            }
            let result = match self.put(&puts[at], threads) {
                Ok(version) => Written::Done(version),
                Err(Error::Changed | Error::Write(CHANGED) | Error::Stopped) => Written::Young,
                Err(Error::Read(e)) => Written::Failed(format!("can't be read: {}", explain(e))),
                Err(Error::Write(e) | Error::ReadBack(e)) => {
                    *lock(&cut_off) |= is_cut_off(e);
                    Written::Failed(format!("can't be written: {}", self.shared.side.explain(e)))
                }
                Err(Error::Unusable(why)) => Written::Failed(why),
                Err(Error::Differs) => {
                    Written::Failed("what arrived is not what left (size or checksum)".into())
                }
                Err(Error::Damaged) => Written::Failed(
                    "what arrived is not what left (size or checksum), and it is still there"
                        .into(),
                ),
            };
            lock(&results).push((at, result));
        };
        for_each(MAX_CONCURRENT_WRITES, &small, |&at| put(at, 1));
        large.iter().for_each(|&at| put(at, MAX_CONCURRENT_WRITES));
        let mut all: Vec<Option<Written>> = puts.iter().map(|_| None).collect();
        for (at, result) in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            assert!(all[at].is_none(), "a file is put once");
            all[at] = Some(result);
        }
        all
    }

    /// Writes a file to a bucket. Returns the fingerprint of the object's new version.
    fn put(&self, put: &Put<'_>, threads: usize) -> std::result::Result<u64, Error> {
        let entry = Entry {
            id: put.id,
            kind: libc::S_IFREG,
        };
        let open = self
            .shared
            .fs
            .keep_object(entry, libc::O_RDONLY)
            .map_err(Error::Read)?;
        let file = PoolFile::new(File::new(&self.shared.fs, open));
        self.shared.watched(|progress| {
            let source = WholeFile::new(&file, threads, progress)?;
            let user = self
                .attributes
                .pool_attributes(put.id)
                .map_err(Error::Read)?;
            let replaced = put.replaced.map_or(Replaced::Nothing, Replaced::Version);
            let put = self.shared.side.put(put.path, &source, &user, replaced)?;
            Ok(print(&put))
        })
    }

    /// Writes one file to a bucket, in place of the version `replaced`. Returns None if the file or
    /// the bucket's version has changed meanwhile.
    ///
    /// # Errors
    /// The reason why the file couldn't be written.
    pub fn put_one(
        &self,
        (id, inode): (ObjectId, &Inode),
        path: &[u8],
        replaced: Option<Meta>,
    ) -> std::result::Result<Option<u64>, String> {
        if replaced.is_some_and(|there| there.is_dir()) {
            return Err(self.shared.side.explain(Errno::ISDIR));
        }
        let put = Put {
            id,
            path,
            size: inode.size,
            replaced,
        };
        match self.put_all(&[put]).pop().flatten() {
            Some(Written::Done(version)) => Ok(Some(version)),
            Some(Written::Failed(why)) => Err(why),
            Some(Written::Young) | None => Ok(None),
        }
    }
}

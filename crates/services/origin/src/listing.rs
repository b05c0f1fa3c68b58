//! Bringing the entries of a directory in: each becomes an object that stands for one of the
//! origin.

use crate::service::{Origin, THREADS};
use crate::side::{attributes, attributes_of, below, print, print_of_names};
use crate::status::LOOKED_AT;
use forebay_backing::{Entries, Meta, for_each, pool_time};
use forebay_posix::ObjectId;
use forebay_staging::{is_part, sweep_parts};
use forebay_store::{Inode, NewObject, OriginMark, OriginState, SetAttr, Stub};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Maximum number of attempts to make an entry while names change.
const ATTEMPTS: usize = 100;

impl Origin {
    /// The path at the origin of a directory of the pool.
    ///
    /// # Errors
    /// ENOENT: it was removed. EXDEV: the origin isn't behind it.
    pub fn relative_of(&self, dir: ObjectId) -> Result<Vec<u8>> {
        let path = self.fs.cluster().path_of(dir)?;
        let relative = self.config.relative(&path).ok_or(Errno::XDEV)?;
        Ok(relative.to_vec())
    }

    /// Fetches the entries of a directory, unless they are in the pool.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin, and of making objects in the pool.
    pub fn bring_entries(&self, dir: ObjectId) -> Result<()> {
        let (_held, relative) = self.path_held(dir)?;
        let _working = self.object_locks.begin(dir);
        let inode = self.inode(dir)?;
        if !inode.origin.is_released() {
            return Ok(());
        }
        self.watch(&relative, dir);
        // A change during the listing is found by the next check.
        let before = if self.side.is_object_store() {
            // Directories have no versions.
            inode.origin.print.max(1)
        } else {
            print_of_names(&self.side.meta(&relative)?)
        };
        self.add_missing(dir, &relative)?;
        self.bring_user_attributes(&relative)?;
        let synced = if inode.origin.synced == attributes_of(&inode) {
            self.print_of_dir(
                dir,
                &Inode {
                    mtime: inode.mtime,
                    ..self.inode(dir)?
                },
            )?
        } else {
            inode.origin.synced
        };
        // Making them has changed it.
        let set = SetAttr {
            mtime: Some(inode.mtime),
            ..SetAttr::default()
        };
        self.fs.cluster().set_attr(dir, &set)?;
        self.set_mark(
            dir,
            OriginMark {
                state: OriginState::Archived,
                print: before,
                synced,
            },
        )
    }

    /// Makes objects for those entries of a directory of the origin that the pool hasn't. The
    /// origin's names.
    pub fn add_missing(&self, dir: ObjectId, relative: &[u8]) -> Result<Vec<Vec<u8>>> {
        let is_new = |name: &[u8]| {
            self.moved.fetch_add(1, Relaxed);
            !is_part(name) && matches!(self.fs.cluster().lookup(dir, name), Ok(None))
        };
        if let Some(entries) = self.side.entries(relative, &is_new)? {
            return self.add_objects(dir, relative, &entries);
        }
        let mut names = self.side.list(relative)?;
        if names.iter().any(|name| is_part(name)) {
            // Parts that a service left when it died.
            sweep_parts(&*self.side, relative, None);
        }
        names.retain(|name| !is_part(name));
        let failed = Mutex::new(None);
        let threads = if names.len() < 16 { 1 } else { THREADS };
        for_each(threads, &names, |name| {
            if let Err(e) = self.add_entry(dir, relative, name) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
            }
            self.moved.fetch_add(1, Relaxed);
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(names),
            Some(e) => Err(e),
        }
    }

    /// Makes objects for those entries of a directory of a bucket that the pool hasn't. All names.
    pub fn add_objects(
        &self,
        dir: ObjectId,
        relative: &[u8],
        entries: &Entries,
    ) -> Result<Vec<Vec<u8>>> {
        for key in &entries.odd {
            let what = format!("the key {key:?} can't be the name of a file; it isn't shown");
            let about = below(&below(relative, key.as_bytes()), LOOKED_AT);
            self.ledger.problem(&about, self.side.show(relative), what);
        }
        let mut names = Vec::new();
        for (name, meta) in &entries.all {
            if is_part(name) {
                continue;
            }
            names.push(name.clone());
            if self.fs.cluster().lookup(dir, name)?.is_none() {
                match self.make_stub(dir, name, &below(relative, name), meta) {
                    // Removed since it was listed.
                    Err(Errno::NOENT) => {}
                    made => drop(made?),
                }
            }
            self.moved.fetch_add(1, Relaxed);
        }
        Ok(names)
    }

    pub fn add_entry(&self, dir: ObjectId, relative: &[u8], name: &[u8]) -> Result<()> {
        let cluster = self.fs.cluster();
        // The pool first: what is removed goes from the origin first. A new entry comes to the
        // origin first, and is looked at before and afterwards.
        if self.pending_creates.is_made(dir, name) || cluster.lookup(dir, name)?.is_some() {
            return Ok(());
        }
        let at = below(relative, name);
        let Some(meta) = self.side.look(&at)? else {
            return Ok(());
        };
        if self.pending_creates.is_made(dir, name) {
            return Ok(());
        }
        self.make_stub(dir, name, &at, &meta).map(|_| ())
    }

    /// Makes the object that stands for one of the origin. False: there is one of this name, or it
    /// is of a kind that isn't shown.
    pub fn make_stub(&self, dir: ObjectId, name: &[u8], at: &[u8], meta: &Meta) -> Result<bool> {
        let target = match meta.kind() {
            libc::S_IFLNK => self.side.readlink(at)?,
            libc::S_IFREG | libc::S_IFDIR => Vec::new(),
            // Names of what programs use there.
            libc::S_IFIFO | libc::S_IFSOCK if self.is_origin_only(at, meta.kind()) => Vec::new(),
            _ => return Ok(false),
        };
        let (state, synced) = match meta.kind() {
            libc::S_IFLNK | libc::S_IFIFO | libc::S_IFSOCK => (OriginState::Archived, 0),
            libc::S_IFDIR => {
                let synced = attributes(meta.mode, meta.uid, meta.gid, pool_time(meta.mtime));
                (OriginState::Released, synced)
            }
            _ => (OriginState::Released, 0),
        };
        let controls = if meta.is_file() {
            let is_written = self.config.mode_of(&self.pool_path(at)).is_written();
            self.fs.controls_from_origin(dir, name, is_written)?
        } else {
            0
        };
        let print = print(meta);
        let new = NewObject {
            mode: meta.mode,
            uid: meta.uid,
            gid: meta.gid,
            rdev: 0,
            target: &target,
            distribution: None,
            controls,
            creator: None,
            stub: Some(Stub {
                size: meta.size,
                mtime: pool_time(meta.mtime),
                mark: OriginMark {
                    state,
                    print,
                    synced,
                },
            }),
        };
        for _ in 0..ATTEMPTS {
            let epoch = self.fs.store().names().names_epoch();
            match self.fs.cluster().create_object(dir, name, &new, epoch) {
                Err(Errno::STALE) => {}
                made => {
                    let is_made = made?.is_ok();
                    // The first listing of a directory finds objects that were counted before.
                    if is_made && self.quota.is_there() && !self.inode(dir)?.origin.is_released() {
                        let bytes = if meta.is_file() { meta.size as i64 } else { 0 };
                        self.quota.others(bytes, 1);
                    }
                    return Ok(is_made);
                }
            }
        }
        Err(Errno::BUSY)
    }
}

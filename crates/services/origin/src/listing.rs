//! Fetching the entries of a directory: the pool gets an object for each entry at the origin.

use crate::attributes::ObjectAttributes;
use crate::marks::Marks;
use crate::quota::Quota;
use crate::shared::{Shared, THREADS};
use crate::side::{attributes, attributes_of, below, print, print_of_names};
use crate::status::LOOKED_AT;
use crate::tree::Tree;
use crate::watches::Watches;
use forebay_backing::{Entries, Meta, for_each, pool_time};
use forebay_posix::ObjectId;
use forebay_runtime::threads::lock;
use forebay_staging::{is_part, sweep_parts};
use forebay_store::{Inode, NewObject, OriginMark, OriginState, SetAttr, Stub};
use rustix::io::{Errno, Result};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of attempts to make an entry while other names change.
const ATTEMPTS: usize = 100;

/// Fetches directory entries: makes the pool's objects for them.
pub struct Listing {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub attributes: Arc<ObjectAttributes>,
    pub watches: Arc<Watches>,
    pub quota: Arc<Quota>,
}

impl Listing {
    /// Fetches the entries of a directory, unless they are in the pool.
    ///
    /// # Errors
    /// Errors of listing the directory at the origin, and of making objects in the pool.
    pub fn bring_entries(&self, dir: ObjectId) -> Result<()> {
        let (_held, relative) = self.tree.path_held(dir)?;
        let _working = self.marks.lock(dir);
        let inode = self.shared.inode(dir)?;
        if !inode.origin.is_released() {
            return Ok(());
        }
        self.watch(&relative, dir);
        // If the directory changes during the listing, its version differs from `before`, so that
        // the next check compares the directory.
        let before = if self.shared.side.is_object_store() {
            // A bucket's directories have no versions.
            inode.origin.print.max(1)
        } else {
            print_of_names(&self.shared.side.meta(&relative)?)
        };
        self.add_missing(dir, &relative)?;
        self.attributes.bring_user_attributes(&relative)?;
        let synced = if inode.origin.synced == attributes_of(&inode) {
            self.marks.print_of_dir(
                dir,
                &Inode {
                    mtime: inode.mtime,
                    ..self.shared.inode(dir)?
                },
            )?
        } else {
            inode.origin.synced
        };
        // Making the entries has changed the directory's modification time: restores it.
        let set = SetAttr {
            mtime: Some(inode.mtime),
            ..SetAttr::default()
        };
        self.shared.cluster().namespace().set_attr(dir, &set)?;
        self.marks.set_mark(
            dir,
            OriginMark {
                state: OriginState::Archived,
                print: before,
                synced,
            },
        )
    }

    /// Makes objects for those entries of a directory of the origin that the pool lacks. Returns
    /// all names that the directory has at the origin.
    pub fn add_missing(&self, dir: ObjectId, relative: &[u8]) -> Result<Vec<Vec<u8>>> {
        let is_new = |name: &[u8]| {
            self.shared.advance();
            !is_part(name)
                && matches!(
                    self.shared.cluster().namespace().lookup(dir, name),
                    Ok(None)
                )
        };
        if let Some(entries) = self.shared.side.entries(relative, &is_new)? {
            return self.add_objects(dir, relative, &entries);
        }
        let mut names = self.shared.side.list(relative)?;
        if names.iter().any(|name| is_part(name)) {
            // Removes temporary files that a service left when it died.
            sweep_parts(&*self.shared.side, relative, None);
        }
        names.retain(|name| !is_part(name));
        let failed = Mutex::new(None);
        let threads = if names.len() < 16 { 1 } else { THREADS };
        for_each(threads, &names, |name| {
            if let Err(e) = self.add_entry(dir, relative, name) {
                *lock(&failed) = Some(e);
            }
            self.shared.advance();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(names),
            Some(e) => Err(e),
        }
    }

    /// Makes objects for those entries of a bucket's directory that the pool lacks. Returns all
    /// names that the directory has in the bucket.
    pub fn add_objects(
        &self,
        dir: ObjectId,
        relative: &[u8],
        entries: &Entries,
    ) -> Result<Vec<Vec<u8>>> {
        for key in &entries.odd {
            let what = format!("the key {key:?} can't be the name of a file; it isn't shown");
            let about = below(&below(relative, key.as_bytes()), LOOKED_AT);
            self.shared
                .ledger
                .problem(&about, self.shared.side.show(relative), what);
        }
        let mut names = Vec::new();
        for (name, meta) in &entries.all {
            if is_part(name) {
                continue;
            }
            names.push(name.clone());
            if self
                .shared
                .cluster()
                .namespace()
                .lookup(dir, name)?
                .is_none()
            {
                match self.make_stub(dir, name, &below(relative, name), meta) {
                    // The object was removed since it was listed.
                    Err(Errno::NOENT) => {}
                    made => drop(made?),
                }
            }
            self.shared.advance();
        }
        Ok(names)
    }

    pub fn add_entry(&self, dir: ObjectId, relative: &[u8], name: &[u8]) -> Result<()> {
        let cluster = self.shared.cluster();
        // The pool is searched first, then the origin. A removal begins at the origin, so a name
        // that was just removed from the pool isn't found at the origin either. Both before and
        // after the look-up, the service checks whether it is itself making the entry.
        if self.tree.pending_creates().is_made(dir, name)
            || cluster.namespace().lookup(dir, name)?.is_some()
        {
            return Ok(());
        }
        let at = below(relative, name);
        let Some(meta) = self.shared.side.look(&at)? else {
            return Ok(());
        };
        if self.tree.pending_creates().is_made(dir, name) {
            return Ok(());
        }
        self.make_stub(dir, name, &at, &meta).map(|_| ())
    }

    /// Makes the pool's object that stands for an object of the origin. Returns false if the pool
    /// has an object of that name, or if objects of that kind aren't shown.
    pub fn make_stub(&self, dir: ObjectId, name: &[u8], at: &[u8], meta: &Meta) -> Result<bool> {
        let target = match meta.kind() {
            libc::S_IFLNK => self.shared.side.readlink(at)?,
            libc::S_IFREG | libc::S_IFDIR => Vec::new(),
            // These names are shown so that programs find the origin's FIFO or socket.
            libc::S_IFIFO | libc::S_IFSOCK if self.shared.is_origin_only(at, meta.kind()) => {
                Vec::new()
            }
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
            let is_written = self
                .shared
                .config
                .mode_of(&self.shared.pool_path(at))
                .is_written();
            self.shared.fs.controls_from_origin(dir, name, is_written)?
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
            let epoch = self.shared.fs.store().names_epoch().now();
            match self
                .shared
                .cluster()
                .namespace()
                .create_object(dir, name, &new, epoch)
            {
                Err(Errno::STALE) => {}
                made => {
                    let is_made = made?.is_ok();
                    // Objects of the first listing of a directory are part of the quota's `base`
                    // already.
                    if is_made
                        && self.quota.is_there()
                        && !self.shared.inode(dir)?.origin.is_released()
                    {
                        let bytes = if meta.is_file() { meta.size as i64 } else { 0 };
                        self.quota.others(bytes, 1);
                    }
                    return Ok(is_made);
                }
            }
        }
        Err(Errno::BUSY)
    }

    /// Watches a directory, if the origin is a directory tree rather than a bucket.
    pub fn watch(&self, relative: &[u8], dir: ObjectId) {
        let Some(tree) = self.shared.side.tree() else {
            return;
        };
        if let Ok(opened) = tree.directory(relative) {
            let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
            self.watches.watch(path.as_bytes(), dir);
        }
    }

    /// Makes the directory that stands for the origin's root, unless it exists.
    pub fn prepare_root(&self) -> Result<()> {
        let mut made = Vec::new();
        for name in self.shared.config.at.split('/').filter(|n| !n.is_empty()) {
            made.extend_from_slice(b"/");
            made.extend_from_slice(name.as_bytes());
            match self.shared.fs.mkdir(&made, 0o755) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        let root = self
            .shared
            .fs
            .stat(self.shared.config.at.as_bytes(), true)?;
        let id = ObjectId(root.ino);
        if self.shared.inode(id)?.origin == OriginMark::default() {
            let meta = self.shared.side.meta(b"")?;
            let set = SetAttr {
                mode: Some(meta.permissions()),
                uid: Some(meta.uid),
                gid: Some(meta.gid),
                mtime: Some(pool_time(meta.mtime)),
                ..SetAttr::default()
            };
            self.shared.cluster().namespace().set_attr(id, &set)?;
            self.marks
                .set_mark(id, self.stub_of_dir(&self.shared.inode(id)?))?;
        }
        Ok(())
    }

    /// Returns the mark of a directory whose entries aren't in the pool.
    pub fn stub_of_dir(&self, inode: &Inode) -> OriginMark {
        OriginMark {
            state: OriginState::Released,
            print: 0,
            synced: attributes_of(inode),
        }
    }
}

//! The pool's tree that shows the origin: the tree's entries, their paths at the origin, and the
//! lock on these paths.
//!
//! The lock is shared for threads that work with a path, exclusive for a thread that renames a
//! directory.

use crate::pass::EachObject;
use crate::pending_creates::PendingCreates;
use crate::shared::Shared;
use crate::side::below;
use forebay_posix::ObjectId;
use forebay_runtime::threads::{read_lock, write_lock};
use forebay_store::{DirPosition, Entry};
use rustix::io::{Errno, Result};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Maximum number of attempts at a change in the pool while other names change, and the pause
/// between two.
const ATTEMPTS: usize = 1000;
const STALE_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A name in a directory of the pool: the directory's id, and the name.
pub type Name<'n> = (ObjectId, &'n [u8]);

/// A held lock on the paths.
pub enum Held<'o> {
    Shared(#[expect(dead_code, reason = "it is held, not read")] RwLockReadGuard<'o, ()>),
    Alone(#[expect(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'o, ()>),
}

/// A held lock on the paths, and the paths at the origin of two directories.
pub type TwoPaths<'o> = (Held<'o>, Vec<u8>, Result<Vec<u8>>);

/// The tree of the pool that shows the origin.
pub struct Tree {
    shared: Arc<Shared>,
    /// Lock on the origin's paths.
    lock: RwLock<()>,
    /// Names that the service is making, first at the origin and then in the pool. A check of the
    /// origin must not take them for names made by others.
    pending_creates: PendingCreates,
}

impl Tree {
    pub fn new(shared: &Arc<Shared>) -> Tree {
        Tree {
            shared: shared.clone(),
            lock: RwLock::default(),
            pending_creates: PendingCreates::default(),
        }
    }

    pub fn pending_creates(&self) -> &PendingCreates {
        &self.pending_creates
    }

    /// Takes the lock on the paths, shared: no directory is renamed while the guard exists. A
    /// thread must not take it twice.
    pub fn paths(&self) -> RwLockReadGuard<'_, ()> {
        read_lock(&self.lock)
    }

    /// Takes the lock on the paths, shared. Also returns the path at the origin of `dir`, a
    /// directory of the pool.
    ///
    /// # Errors
    /// ENOENT: the directory was removed. EXDEV: it isn't below the origin's root.
    pub fn path_held(&self, dir: ObjectId) -> Result<(RwLockReadGuard<'_, ()>, Vec<u8>)> {
        let held = self.paths();
        let relative = self.relative_of(dir)?;
        Ok((held, relative))
    }

    /// Takes the lock on the paths, exclusively if `alone`. Also returns the paths at the origin of
    /// two directories.
    ///
    /// # Errors
    /// ENOENT: the first directory was removed. EXDEV: the first directory isn't below the origin's
    /// root. The same errors for the second directory are in the last member of the result.
    pub fn two_paths_held(
        &self,
        alone: bool,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<TwoPaths<'_>> {
        let held = if alone {
            Held::Alone(write_lock(&self.lock))
        } else {
            Held::Shared(self.paths())
        };
        let (first, second) = (self.relative_of(one)?, self.relative_of(other));
        Ok((held, first, second))
    }

    /// Takes the lock on the paths, shared, if `at` is the directory's path at the origin. None:
    /// the directory was renamed or removed.
    pub fn held_at(&self, dir: ObjectId, at: &[u8]) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let held = self.paths();
        match self.relative_of(dir) {
            Ok(relative) if relative == at => Ok(Some(held)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether `name` in `dir` refers to the object `id`.
    pub fn has_name(&self, dir: ObjectId, name: &[u8], id: ObjectId) -> bool {
        let entry = self.shared.cluster().namespace().lookup(dir, name);
        entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.id == id))
    }

    /// Searches the pool for a name of an object, and returns that name's path at the origin.
    pub fn find(&self, id: ObjectId) -> Result<Vec<u8>> {
        let mut found = None;
        self.each_object(b"", &mut |_, name, entry, _| {
            if entry.id == id {
                found = Some(name.to_vec());
            }
            Ok(())
        })?;
        found.ok_or(Errno::NOENT)
    }

    /// Calls `each` for all objects in the pool below a path of the origin, with their directory,
    /// path at the origin, entry and inode.
    ///
    /// # Errors
    /// EHOSTDOWN: a node can't be reached. This error is returned after the objects of all other
    /// nodes were visited. Errors of `each`, at once.
    pub fn each_object(&self, relative: &[u8], each: &mut EachObject<'_>) -> Result<()> {
        let top = self
            .shared
            .fs
            .stat(&self.shared.pool_path(relative), false)?;
        let mut todo = vec![(ObjectId(top.ino), relative.to_vec())];
        if top.mode & libc::S_IFMT != libc::S_IFDIR {
            let id = ObjectId(top.ino);
            let kind = top.mode & libc::S_IFMT;
            return each(
                ObjectId(0),
                relative,
                Entry { id, kind },
                &self.shared.inode(id)?,
            );
        }
        let mut partly = Ok(());
        while let Some((dir, at)) = todo.pop() {
            let mut entries = Vec::new();
            match self.entries_into(dir, &mut entries) {
                Err(Errno::HOSTDOWN) => partly = Err(Errno::HOSTDOWN),
                listed => listed?,
            }
            for (name, entry) in entries {
                let path = below(&at, &name);
                let inode = match self.shared.inode(entry.id) {
                    Err(Errno::NOENT) => continue,
                    Err(Errno::HOSTDOWN) => {
                        partly = Err(Errno::HOSTDOWN);
                        continue;
                    }
                    inode => inode?,
                };
                if inode.is_dir() && !inode.origin.is_released() {
                    todo.push((entry.id, path.clone()));
                }
                each(dir, &path, entry, &inode)?;
            }
        }
        partly
    }

    /// Returns those entries of a directory that are in the pool.
    ///
    /// # Errors
    /// EHOSTDOWN: a node can't be reached.
    pub fn entries(&self, dir: ObjectId) -> Result<Vec<(Vec<u8>, Entry)>> {
        let mut entries = Vec::new();
        self.entries_into(dir, &mut entries)?;
        Ok(entries)
    }

    /// Appends the entries of a directory to a list, as [`Tree::entries`]. After EHOSTDOWN, the
    /// list has the entries of the nodes that can be reached.
    pub fn entries_into(&self, dir: ObjectId, entries: &mut Vec<(Vec<u8>, Entry)>) -> Result<()> {
        let mut position = DirPosition::default();
        let cluster = self.shared.cluster();
        cluster.namespace().list(dir, &mut position, |name, entry| {
            entries.push((name.to_vec(), entry));
            true
        })
    }

    /// Returns the path at the origin of a directory of the pool.
    ///
    /// # Errors
    /// ENOENT: the directory was removed. EXDEV: it isn't below the origin's root.
    pub fn relative_of(&self, dir: ObjectId) -> Result<Vec<u8>> {
        let path = self.shared.cluster().namespace().path_of(dir)?;
        let relative = self.shared.config.relative(&path).ok_or(Errno::XDEV)?;
        Ok(relative.to_vec())
    }

    /// Calls `change` with the current epoch of names. Repeats this while `change` fails with
    /// ESTALE, but at most [`ATTEMPTS`] times.
    pub fn change_pool(&self, change: impl Fn(u64) -> Result<()>) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match change(self.shared.fs.store().names_epoch().now()) {
                Err(Errno::STALE) => std::thread::sleep(STALE_RETRY_INTERVAL),
                done => return done,
            }
        }
        Err(Errno::BUSY)
    }

    /// Returns the directory of the pool that stands for the origin's root.
    pub fn root(&self) -> Result<ObjectId> {
        Ok(ObjectId(
            self.shared.fs.stat(&self.shared.pool_path(b""), true)?.ino,
        ))
    }
}

//! Changes of the origin by others, found by comparing identities, sizes and times.
//!
//! A turn looks at every directory whose entries are in the pool, and at every file that is clean.
//! New objects appear, removed ones disappear unless only the pool has their bytes; a clean file
//! with another version at the origin is released, when nobody has it open. So a change is seen
//! after a turn's period ([`LOOK`], or longer if a turn takes more than a tenth of the time); a
//! released file is compared again when it is fetched.

use crate::service::{Origin, is_clean};
use crate::side::{below, print};
use crate::status::LOOKED_AT;
use forebay_posix::ObjectId;
use forebay_staging::Meta;
use forebay_store::{Entry, Inode, OriginMark, OriginState, SetAttr};
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the origin is looked at, at most.
const LOOK: Duration = Duration::from_secs(5);
/// For so long after a change of its own, the service doesn't compare a directory's names: the pool
/// gets its part of the change later than the origin.
pub const SETTLES: Duration = Duration::from_secs(2);

/// Among the problems, the key of a directory that couldn't be looked at: writing it back may work
/// all the same.
fn look_key(at: &[u8]) -> Vec<u8> {
    below(at, LOOKED_AT)
}

impl Origin {
    /// The directories that this service changes, and when.
    pub fn changed(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.changed_dirs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the origin until the pool is removed.
    pub fn look_for_ever(&self) {
        while self.is_there() {
            let began = Instant::now();
            // A failure is repeated in the next turn.
            let _ = self.look_once();
            std::thread::sleep((began.elapsed() * 10).max(LOOK));
        }
    }

    /// Looks at everything once.
    pub fn look_once(&self) -> Result<()> {
        self.changed().retain(|_, at| at.elapsed() < SETTLES);
        let top = ObjectId(self.fs.stat(&self.pool_path(b""), true)?.ino);
        let mut todo = vec![(top, Vec::new())];
        while let Some((dir, at)) = todo.pop() {
            let inode = match self.inode(dir) {
                Err(Errno::NOENT) => continue,
                inode => inode?,
            };
            if inode.origin.state != OriginState::Archived {
                continue;
            }
            let held = match self.held_at(dir, &at) {
                Ok(Some(held)) => held,
                // Renamed meanwhile: in the next turn.
                _ => continue,
            };
            // Again for each directory: a service that was restarted doesn't watch any.
            self.watch(&at, dir);
            let looked = self.look_at(dir, &at, &inode);
            drop(held);
            match looked {
                Ok(below) => {
                    self.ledger.is_solved(&look_key(&at));
                    todo.extend(below);
                }
                Err(Errno::NOENT) => {}
                Err(e) => {
                    let why = forebay_staging::explain(e);
                    let key = look_key(&at);
                    self.ledger.problem(&key, self.side.show(&at), why);
                }
            }
        }
        Ok(())
    }

    /// One directory. The directories below it.
    fn look_at(&self, dir: ObjectId, at: &[u8], inode: &Inode) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        let Some(there) = self.side.look(at)? else {
            return Ok(Vec::new());
        };
        let version = print(&there);
        let known = match inode.origin.print == version || self.settles(dir) {
            true => None,
            false => Some(
                self.add_missing(dir, at)?
                    .into_iter()
                    .collect::<HashSet<_>>(),
            ),
        };
        let mut below_it = Vec::new();
        for (name, entry) in self.entries(dir)? {
            let path = below(at, &name);
            let object = match self.inode(entry.id) {
                Err(Errno::NOENT) => continue,
                object => object?,
            };
            if object.origin.state == OriginState::None {
                continue;
            }
            let gone = known.as_ref().is_some_and(|known| !known.contains(&name));
            if gone && !self.settles(dir) {
                self.is_gone(dir, &name, entry, &object, &path)?;
            } else if self.is_outer(&path, object.kind()) {
                // Programs use the origin's.
            } else if object.is_dir() {
                below_it.push((entry.id, path));
            } else {
                self.compare(entry, &path)?;
            }
        }
        if known.is_some() && !self.settles(dir) {
            let now = self.inode(dir)?.origin;
            let mark = OriginMark {
                print: version,
                ..now
            };
            self.set_mark(dir, mark)?;
        }
        Ok(below_it)
    }

    /// Compares an object of the pool with what the origin has under its path. False: it is to be
    /// compared again.
    pub fn compare(&self, entry: Entry, path: &[u8]) -> Result<bool> {
        let object = match self.inode(entry.id) {
            Err(Errno::NOENT) => return Ok(true),
            object => object?,
        };
        let is_shared = object.origin.state != OriginState::None && !object.is_dir();
        match self.side.look(path)? {
            Some(meta)
                if is_shared
                    && (print(&meta) != object.origin.print
                        || object.origin.is_released() && object.size != meta.size) =>
            {
                self.has_changed(entry.id, path, &meta)
            }
            _ => Ok(true),
        }
    }

    /// The origin has an object no more.
    pub fn is_gone(
        &self,
        dir: ObjectId,
        name: &[u8],
        entry: Entry,
        object: &Inode,
        path: &[u8],
    ) -> Result<()> {
        let _working = self.busy.begin(entry.id);
        let inode = self.inode(entry.id)?;
        let was_seen = inode.origin.state != OriginState::None && inode.origin.print != 0;
        if !was_seen || self.side.look(path)?.is_some() {
            return Ok(());
        }
        if object.is_dir() {
            // Objects that only the pool has keep the directory.
            if !inode.origin.is_released() && !self.entries(entry.id)?.is_empty() {
                return Ok(());
            }
            let epoch = self.fs.store().names().names_epoch();
            return self.fs.cluster().rmdir(dir, name, epoch);
        }
        if inode.nlink > 1 && !is_clean(&inode) {
            // Writing it back makes the name again.
            return Ok(());
        }
        if !is_clean(&inode) && !inode.origin.is_released() {
            // The pool's version is the only one.
            return self.set_mark(entry.id, OriginMark::default());
        }
        let epoch = self.fs.store().names().names_epoch();
        self.fs
            .cluster()
            .unlink(dir, name, Some(entry), epoch)
            .map(|_| ())
    }

    /// The origin has another version of a file. False: it is open, and keeps the old one.
    fn has_changed(&self, id: ObjectId, path: &[u8], seen: &Meta) -> Result<bool> {
        let _working = self.busy.begin(id);
        let inode = self.inode(id)?;
        let Some(meta) = self.side.look(path)? else {
            return Ok(true);
        };
        if !seen.is_file() || !meta.is_file() || !inode.is_file() {
            return Ok(true);
        }
        if inode.nlink > 1 && meta.nlink == 1 {
            // Another file under one of its names; the others still have its version.
            let what =
                "is another file at the origin, and one of several names in the pool".to_owned();
            self.ledger.conflict(path, self.side.show(path), what);
            return Ok(true);
        }
        let version = print(&meta);
        let has_size = !inode.origin.is_released() || inode.size == meta.size;
        let has_version = !is_clean(&inode) || version == inode.origin.print;
        if has_version && has_size {
            // Of a dirty one, writing it back finds the conflict.
            return Ok(true);
        }
        if inode.origin.is_released() {
            return match self.renew(id, path, &inode, &meta) {
                // Another object has the name, or will have it when nobody has it open.
                Err(Errno::STALE) => Ok(true),
                renewed => renewed.map(|()| true),
            };
        }
        let mark = OriginMark {
            print: version,
            ..inode.origin
        };
        if inode.origin.state == OriginState::Archived
            && !self.release_bytes(id, meta.size, mark)?
        {
            return Ok(false);
        }
        self.take_attributes(id, &meta, version).map(|()| true)
    }

    /// Gives a released file the attributes of the origin's version.
    pub fn take_attributes(&self, id: ObjectId, meta: &Meta, version: u64) -> Result<()> {
        if self.inode(id)?.size != meta.size {
            self.resize(id, meta.size)?;
        }
        let set = SetAttr {
            mode: Some(meta.permissions()),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            mtime: Some(meta.mtime),
            ..SetAttr::default()
        };
        let mark = OriginMark {
            state: OriginState::Released,
            print: version,
            synced: 0,
        };
        self.set_clean(id, i64::MAX, mark, set)
    }
}

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
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the origin is looked at, at most.
const LOOK: Duration = Duration::from_secs(5);
/// For so long after a change of its own, the service doesn't compare a directory's names: the pool
/// gets its part of the change later than the origin.
const SETTLES: Duration = Duration::from_secs(2);

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
            let looked = self.look_at(dir, &at, &inode);
            drop(held);
            match looked {
                Ok(below) => {
                    self.ledger.is_solved(&look_key(&at));
                    todo.extend(below);
                }
                Err(Errno::NOENT) => {}
                Err(e) => {
                    let why = self.side.explain(e);
                    let key = look_key(&at);
                    self.ledger.problem(&key, self.side.show(&at), why);
                }
            }
        }
        Ok(())
    }

    /// One directory. The directories below it.
    fn look_at(&self, dir: ObjectId, at: &[u8], inode: &Inode) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        // A list of a bucket has the versions of all files.
        let mut versions = HashMap::new();
        let listed = self.side.entries(at, &|name| {
            self.moved.fetch_add(1, Relaxed);
            matches!(self.fs.cluster().lookup(dir, name), Ok(None))
        })?;
        let there = match &listed {
            Some(entries) => {
                versions.extend(entries.all.iter().map(|(name, meta)| (&name[..], *meta)));
                None
            }
            None => match self.side.look(at)? {
                None => return Ok(Vec::new()),
                there => there,
            },
        };
        let version = there.map_or(0, |there| print(&there));
        let settles = |origin: &Origin| {
            let changed = origin.changed();
            changed.get(&dir.0).is_some_and(|at| at.elapsed() < SETTLES)
        };
        let names = match (&listed, inode.origin.print == version || settles(self)) {
            (Some(entries), false) => Some(self.add_objects(dir, at, entries)?),
            (None, false) => Some(self.add_missing(dir, at)?),
            (_, true) => None,
        };
        let known = names.map(|names| names.into_iter().collect::<HashSet<_>>());
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
            if gone && !settles(self) {
                self.is_gone(dir, &name, entry, &object, &path)?;
                if object.is_dir() {
                    below_it.push((entry.id, path));
                }
            } else if object.is_dir() {
                below_it.push((entry.id, path));
            } else if let Some(meta) = match &listed {
                Some(_) => versions.get(&name[..]).copied(),
                None => self.side.look(&path)?,
            } && (print(&meta) != object.origin.print
                || object.origin.is_released() && object.size != meta.size)
            {
                self.has_changed(entry.id, &path, &meta)?;
            }
        }
        if known.is_some() && listed.is_none() && !settles(self) {
            let now = self.inode(dir)?.origin;
            let mark = OriginMark {
                print: version,
                ..now
            };
            self.set_mark(dir, mark)?;
        }
        Ok(below_it)
    }

    /// The origin has an object no more.
    fn is_gone(
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

    /// The origin has another version of a file.
    fn has_changed(&self, id: ObjectId, path: &[u8], seen: &Meta) -> Result<()> {
        let _working = self.busy.begin(id);
        let inode = self.inode(id)?;
        let Some(meta) = self.side.look(path)? else {
            return Ok(());
        };
        if !seen.is_file() || !meta.is_file() || !inode.is_file() {
            return Ok(());
        }
        if inode.nlink > 1 && meta.nlink == 1 && print(&meta) != inode.origin.print {
            // Another file under one of its names; the others still have its version.
            let what =
                "is another file at the origin, and one of several names in the pool".to_owned();
            self.ledger.conflict(path, self.side.show(path), what);
            return Ok(());
        }
        let version = print(&meta);
        let has_size = !inode.origin.is_released() || inode.size == meta.size;
        let has_version = !is_clean(&inode) || version == inode.origin.print;
        if has_version && has_size {
            // Of a dirty one, writing it back finds the conflict.
            return Ok(());
        }
        let mark = OriginMark {
            print: version,
            ..inode.origin
        };
        if inode.origin.state == OriginState::Archived
            && !self.release_bytes(id, meta.size, mark)?
        {
            // The file is open: next time.
            return Ok(());
        }
        self.take_attributes(id, &meta, version)
    }

    /// Gives a released file the attributes of the origin's version.
    fn take_attributes(&self, id: ObjectId, meta: &Meta, version: u64) -> Result<()> {
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

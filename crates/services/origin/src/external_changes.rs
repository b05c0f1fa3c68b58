//! Changes of the origin by others, found by comparing identities, sizes and times.
//!
//! A turn compares every directory whose entries are in the pool, and every clean file. New objects
//! appear in the pool. Objects that were removed at the origin disappear from the pool, unless only
//! the pool has their bytes. A clean file with another version at the origin is released when no
//! process has it open. A turn begins every [`LOOK`], or less often if turns would take more than a
//! tenth of the time. A released file is compared again when it is fetched.

use crate::listing::Listing;
use crate::marks::{Marks, is_clean};
use crate::pass::is_made;
use crate::ranges::Ranges;
use crate::room::Room;
use crate::shared::Shared;
use crate::side::{below, print, print_of_names};
use crate::status::LOOKED_AT;
use crate::tree::Tree;
use forebay_backing::Meta;
use forebay_posix::ObjectId;
use forebay_store::{Entry, Inode, OriginMark, OriginState};
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum pause between two checks of the origin.
const LOOK: Duration = Duration::from_secs(5);

/// Maximum number of attempts to release a file that is open in the pool and has changed at the
/// origin, and the pause between two. Several attempts find a moment at which an often-opened file
/// is closed.
const ATTEMPTS: usize = 8;
const RETRY_INTERVAL: Duration = Duration::from_millis(7);

/// Returns the ledger's key for a directory that couldn't be read. The key differs from the
/// directory's path, so that writing back the directory doesn't remove the problem.
fn look_key(at: &[u8]) -> Vec<u8> {
    below(at, LOOKED_AT)
}

/// Finds changes of the origin by others.
pub struct ExternalChanges {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub listing: Arc<Listing>,
    pub room: Arc<Room>,
    pub ranges: Arc<Ranges>,
}

impl ExternalChanges {
    /// Checks the origin for changes until the pool is removed.
    pub fn look_for_ever(&self) {
        while self.shared.is_there() {
            let began = Instant::now();
            // After a failure, the next turn tries again.
            let _ = self.look_once();
            std::thread::sleep((began.elapsed() * 10).max(LOOK));
        }
    }

    /// Compares the whole origin with the pool once.
    pub fn look_once(&self) -> Result<()> {
        let top = ObjectId(self.shared.fs.stat(&self.shared.pool_path(b""), true)?.ino);
        let mut todo = vec![(top, Vec::new())];
        while let Some((dir, at)) = todo.pop() {
            let inode = match self.shared.inode(dir) {
                Err(Errno::NOENT) => continue,
                inode => inode?,
            };
            if inode.origin.state != OriginState::Archived {
                continue;
            }
            let held = match self.tree.held_at(dir, &at) {
                Ok(Some(held)) => held,
                // The directory was renamed or removed meanwhile: the next turn finds it.
                _ => continue,
            };
            // Each turn watches the directory again, since a restarted service doesn't watch any
            // directory yet.
            self.listing.watch(&at, dir);
            let looked = self.look_at(dir, &at, &inode);
            drop(held);
            match looked {
                Ok(below) => {
                    self.shared.ledger.is_solved(&look_key(&at));
                    todo.extend(below);
                }
                Err(Errno::NOENT) => {}
                Err(e) => {
                    let why = self.shared.side.explain(e);
                    let key = look_key(&at);
                    self.shared
                        .ledger
                        .problem(&key, self.shared.side.show(&at), why);
                }
            }
        }
        Ok(())
    }

    /// Compares one directory with the origin's. Returns its subdirectories that are still to be
    /// compared.
    fn look_at(&self, dir: ObjectId, at: &[u8], inode: &Inode) -> Result<Vec<(ObjectId, Vec<u8>)>> {
        // Versions of all files of the directory. Only a bucket's listing contains them.
        let mut versions = HashMap::new();
        let listed = self.shared.side.entries(at, &|name| {
            self.shared.advance();
            matches!(
                self.shared.cluster().namespace().lookup(dir, name),
                Ok(None)
            )
        })?;
        let there = match &listed {
            Some(entries) => {
                versions.extend(entries.all.iter().map(|(name, meta)| (&name[..], *meta)));
                None
            }
            None => self.shared.side.look(at)?,
        };
        let is_same = there.is_some_and(|there| inode.origin.print == print(&there));
        let names = match (&listed, is_same) {
            (Some(entries), _) => Some(self.listing.add_objects(dir, at, entries)?),
            (None, false) if there.is_none() => Some(Vec::new()),
            (None, false) => Some(self.listing.add_missing(dir, at)?),
            (None, true) => None,
        };
        let known = names.map(|names| names.into_iter().collect::<HashSet<_>>());
        let mut below_it = Vec::new();
        for (name, entry) in self.tree.entries(dir)? {
            let path = below(at, &name);
            let object = match self.shared.inode(entry.id) {
                Err(Errno::NOENT) => continue,
                object => object?,
            };
            if object.origin.state == OriginState::None {
                continue;
            }
            let gone = known.as_ref().is_some_and(|known| !known.contains(&name));
            if gone {
                match self.is_gone(dir, &name, entry, &object, &path) {
                    Err(Errno::NOENT) => {}
                    done => done?,
                }
                // The directory was removed at the origin, and so were the files in it: the walk
                // compares these, too.
                if object.is_dir() {
                    below_it.push((entry.id, path));
                }
            } else if self.shared.is_origin_only(&path, object.kind()) {
                // Programs use the origin's object, so there is nothing to compare.
            } else if object.is_dir() {
                below_it.push((entry.id, path));
            } else {
                let there = match &listed {
                    Some(_) => versions.get(&name[..]).copied(),
                    None => self.shared.side.look(&path)?,
                };
                match self.compare((dir, &name), entry, &path, there) {
                    // The object was removed meanwhile.
                    Err(Errno::NOENT) => {}
                    done => drop(done?),
                }
            }
        }
        if let (Some(there), true) = (&there, known.is_some()) {
            let now = self.shared.inode(dir)?.origin;
            let mark = OriginMark {
                print: print_of_names(there),
                ..now
            };
            self.marks.set_mark(dir, mark)?;
        }
        Ok(below_it)
    }

    /// Compares an object of the pool with the origin's object at its path. Returns false if the
    /// comparison has to be repeated.
    pub fn compare(
        &self,
        name: (ObjectId, &[u8]),
        entry: Entry,
        path: &[u8],
        there: Option<Meta>,
    ) -> Result<bool> {
        let object = match self.shared.inode(entry.id) {
            Err(Errno::NOENT) => return Ok(true),
            object => object?,
        };
        let is_shared = object.origin.state != OriginState::None && !object.is_dir();
        match there {
            Some(meta)
                if is_shared
                    && (print(&meta) != object.origin.print
                        || object.origin.is_released() && object.size != meta.size) =>
            {
                self.has_changed(name, entry.id, path, &meta)
            }
            Some(meta) if is_shared && object.size != meta.size && is_clean(&object) => {
                self.is_cut(entry.id, &meta).map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// Marks a clean file as dirty if its size differs from that of the same version at the origin.
    /// The store records the first change of a clean file, so no cause of this state is known
    /// (decision 0082).
    fn is_cut(&self, id: ObjectId, there: &Meta) -> Result<()> {
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        let is_archived = inode.is_file() && inode.origin.state == OriginState::Archived;
        let is_version = print(there) == inode.origin.print;
        if is_archived && is_version && is_clean(&inode) && inode.size != there.size {
            self.marks.set_mark(
                id,
                OriginMark {
                    synced: 0,
                    ..inode.origin
                },
            )
        } else {
            Ok(())
        }
    }

    /// Handles an object that the origin no longer has: removes it from the pool, unless only the
    /// pool has its bytes.
    pub fn is_gone(
        &self,
        dir: ObjectId,
        name: &[u8],
        entry: Entry,
        object: &Inode,
        path: &[u8],
    ) -> Result<()> {
        let _working = self.marks.lock(entry.id);
        let inode = self.shared.inode(entry.id)?;
        let was_seen = inode.origin.state != OriginState::None && inode.origin.print != 0;
        // The service itself may have removed or renamed the object meanwhile.
        let has_name = self.tree.has_name(dir, name, entry.id);
        let is_lost = !was_seen && inode.is_dir() && is_made(&inode.origin);
        if !(was_seen || is_lost) || !has_name || self.shared.side.look(path)?.is_some() {
            return Ok(());
        }
        if is_lost {
            // The directory was made by the pool. The origin lost it in a loss of power, or others
            // removed it soon after. The next pass makes it again.
            return self.marks.set_mark(entry.id, OriginMark::default());
        }
        if object.is_dir() {
            // A directory that has entries in the pool isn't removed: some entries may be in the
            // pool only.
            if !inode.origin.is_released() && !self.tree.entries(entry.id)?.is_empty() {
                return Ok(());
            }
            let epoch = self.shared.fs.store().names_epoch().now();
            return self.shared.cluster().namespace().rmdir(dir, name, epoch);
        }
        if inode.nlink > 1 && !is_clean(&inode) {
            // The next write-back of the object makes this name again.
            return Ok(());
        }
        if !is_clean(&inode) && !inode.origin.is_released() {
            // Only the pool has this version. The next pass writes it to the origin.
            return self.marks.set_mark(entry.id, OriginMark::default());
        }
        let epoch = self.shared.fs.store().names_epoch().now();
        self.shared
            .cluster()
            .namespace()
            .unlink(dir, name, Some(entry), epoch)
            .map(|_| ())
    }

    /// Handles a file that has another version at the origin. Returns false if the pool's file
    /// keeps the old version, because a process has it open.
    fn has_changed(
        &self,
        (dir, name): (ObjectId, &[u8]),
        id: ObjectId,
        path: &[u8],
        seen: &Meta,
    ) -> Result<bool> {
        let _working = self.marks.lock(id);
        let inode = self.shared.inode(id)?;
        if !self.tree.has_name(dir, name, id) {
            return Ok(true);
        }
        let Some(meta) = self.shared.side.look(path)? else {
            return Ok(true);
        };
        if !seen.is_file() || !meta.is_file() || !inode.is_file() {
            return Ok(true);
        }
        if inode.nlink > 1 && meta.nlink == 1 && print(&meta) != inode.origin.print {
            // At the origin, another file has replaced one of the object's names. The other names
            // still refer to the pool's version.
            let what =
                "is another file at the origin, and one of several names in the pool".to_owned();
            self.shared
                .ledger
                .conflict(path, self.shared.side.show(path), what);
            return Ok(true);
        }
        let version = print(&meta);
        let has_size = !inode.origin.is_released() || inode.size == meta.size;
        let has_version = !is_clean(&inode) || version == inode.origin.print;
        if has_version && has_size {
            // If the file is dirty, writing it back finds the conflict.
            return Ok(true);
        }
        if inode.origin.is_released() {
            return match self.ranges.renew(id, path, &inode, &meta) {
                // Another object has the name, or gets it once no process has this object open.
                Err(Errno::STALE) => Ok(true),
                renewed => renewed.map(|()| true),
            };
        }
        let mark = OriginMark {
            print: version,
            ..inode.origin
        };
        let mut has_bytes = inode.origin.state == OriginState::Archived;
        for _ in 0..ATTEMPTS {
            if !has_bytes {
                break;
            }
            if self.room.release_bytes(id, meta.size, mark)? {
                has_bytes = false
            } else {
                // A process has the file open, maybe only for a moment.
                std::thread::sleep(RETRY_INTERVAL)
            }
        }
        if has_bytes {
            // A later turn tries again.
            return Ok(false);
        }
        self.ranges
            .take_attributes(id, &meta, version)
            .map(|()| true)
    }
}

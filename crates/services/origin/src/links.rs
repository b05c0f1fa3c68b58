//! Files and symbolic links with several names.
//!
//! If the origin has an object, it has all of the object's names, and they are hard links of one
//! file: link(2) makes the origin's name first, then the pool's. An object that only the pool has
//! gets all its names at the origin when it is first written back.
//!
//! An object's names can't change while it is announced ([`Marks::announce`]) and a thread holds
//! its lock ([`crate::object_locks`]): a process that wants to change a name sends a request to the
//! service, and waits. So one walk through the pool finds all names.
//!
//! In a bucket, each name is a separate object, which the server copies.

use crate::attributes::ObjectAttributes;
use crate::directories::Directories;
use crate::error::{Done, Error};
use crate::marks::{Marks, is_clean};
use crate::object_writer::ObjectWriter;
use crate::pass::{EachObject, Linked, Named, Pass, TICK, is_young};
use crate::shared::Shared;
use crate::side::{below, split};
use crate::tree::{Name, Tree};
use crate::write_back::WriteBack;
use forebay_backing::Meta;
use forebay_client::origin::OriginMode;
use forebay_posix::ObjectId;
use forebay_staging::{Options, part_name};
use forebay_store::{Entry, Inode, OriginState};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of times that [`Links::write_before`] checks whether a file's last change is old
/// enough for the file to be written back.
const LOOKS: u64 = 40;
/// Maximum number of objects whose names one walk searches for.
const MAX_OBJECTS_PER_WALK: usize = 1024;

/// A name of an object, and the origin's object under that name.
struct Look<'n> {
    name: &'n Named,
    there: Option<Meta>,
    /// Whether `there` is a version that the pool knows.
    is_known: bool,
}

impl Look<'_> {
    fn is(&self, meta: &Meta) -> bool {
        self.there
            .is_some_and(|there| (there.dev, there.ino) == (meta.dev, meta.ino))
    }

    /// Whether the service may write this name: the origin has no object there, or a known version.
    fn is_free(&self) -> bool {
        self.there.is_none() || self.is_known
    }
}

/// Makes hard links at the origin, and writes back objects that have several names.
pub struct Links {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub attributes: Arc<ObjectAttributes>,
    pub directories: Arc<Directories>,
    pub object_writer: Arc<ObjectWriter>,
    pub write_back: Arc<WriteBack>,
}

impl Links {
    /// Adds a name for an object. `known`: a name that the object has, or has had.
    ///
    /// # Errors
    /// The errors of link(2).
    pub fn link(&self, id: ObjectId, known: Name<'_>, to: Name<'_>) -> Done {
        let (_held, _) = self.tree.path_held(to.0)?;
        let new = below(&self.directories.settle(to.0)?, to.1);
        let _working = self.marks.lock(id);
        match self.shared.cluster().namespace().lookup(to.0, to.1)? {
            // An earlier service has made the name.
            Some(entry) if entry.id == id => return Ok(()),
            Some(_) => return Err(Errno::EXIST.into()),
            None => {}
        }
        let inode = self.shared.inode(id)?;
        let is_scratch =
            self.shared.config.mode_of(&self.shared.pool_path(&new)) == OriginMode::Scratch;
        let old = if inode.origin.state == OriginState::None || is_scratch {
            None
        } else {
            self.known_name(id, &inode, known)?
        };
        if old.is_none() && inode.origin.is_released() && !is_scratch {
            return Err(Error::new(
                Errno::NOENT,
                "its bytes have gone from the origin",
            ));
        }
        let _pending = self.tree.pending_creates().begin(to.0, to.1);
        // If the origin has no name of the object, the next pass writes the object with all its
        // names.
        if let Some(old) = &old {
            match self.shared.side.link(old, &new) {
                Ok(()) => {}
                Err(Errno::EXIST) if self.is_same(old, &new) => {}
                // The origin has an object of that name that the pool doesn't show yet, so EEXIST
                // is the right error.
                Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
                Err(e) => {
                    let (old, new) = (self.shared.side.show(old), self.shared.side.show(&new));
                    return Err(Error::new(
                        e,
                        format!(
                            "{old} can't be linked to {new}: {}",
                            self.shared.side.explain(e)
                        ),
                    ));
                }
            }
        }
        let cluster = self.shared.cluster();
        let linked = self
            .tree
            .change_pool(|epoch| cluster.namespace().link(id, to.0, to.1, epoch));
        if linked.is_err() && old.is_some() {
            // The link in the pool has failed: others have used the name.
            let _ = self.shared.side.unlink(&new);
        }
        linked.map_err(Error::from)
    }

    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        match (self.shared.side.meta(one), self.shared.side.meta(other)) {
            (Ok(one), Ok(other)) => (one.dev, one.ino) == (other.dev, other.ino),
            _ => false,
        }
    }

    /// Returns a path under which the origin has a known version of an object. `hint`: the name
    /// that is tried first. The caller holds the object's lock.
    pub fn known_name(
        &self,
        id: ObjectId,
        inode: &Inode,
        hint: Name<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let is_known = |path: &[u8]| -> Result<bool> {
            let there = self.shared.side.look(path)?;
            Ok(there.is_some_and(|there| self.write_back.is_known(path, &there, &inode.origin)))
        };
        if self.tree.has_name(hint.0, hint.1, id) {
            let path = below(&self.tree.relative_of(hint.0)?, hint.1);
            if is_known(&path)? {
                return Ok(Some(path));
            }
        }
        for (_, path) in self.names_of(&[id])?.remove(&id.0).unwrap_or_default() {
            if is_known(&path)? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Returns all names of these objects below the origin's root, except in directories that
    /// aren't written back.
    fn names_of(&self, ids: &[ObjectId]) -> Result<Linked> {
        let mut all: Linked = ids.iter().map(|id| (id.0, Vec::new())).collect();
        let each: &mut EachObject<'_> = &mut |dir, path, entry: Entry, _| {
            if let Some(names) = all.get_mut(&entry.id.0)
                && self
                    .shared
                    .config
                    .mode_of(&self.shared.pool_path(path))
                    .is_written()
            {
                names.push((dir, path.to_vec()));
            }
            Ok(())
        };
        self.tree.each_object(b"", each)?;
        Ok(all)
    }

    /// Writes back objects that have several names. `seen`: the names that a pass has met.
    pub fn write_linked(&self, seen: &Linked, lag: Duration, pass: &mut Pass) -> Result<()> {
        let _held = self.tree.paths();
        let mut ids = Vec::new();
        for (id, names) in seen {
            let id = ObjectId(*id);
            match self.shared.inode(id) {
                Ok(inode) if !is_clean(&inode) && is_young(&inode, lag) => pass.young += 1,
                Ok(inode) if self.is_linked(&inode, names)? => {}
                Ok(_) => ids.push(id),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        // All threads that lock several objects lock them in this order.
        ids.sort_by_key(|id| id.0);
        for ids in ids.chunks(MAX_OBJECTS_PER_WALK) {
            let _working: Vec<_> = ids.iter().map(|id| self.marks.lock(*id)).collect();
            self.write_names(ids, pass)?;
        }
        Ok(())
    }

    /// Whether an object is clean and these names are one file at the origin.
    fn is_linked(&self, inode: &Inode, names: &[Named]) -> Result<bool> {
        if !is_clean(inode) {
            return Ok(false);
        }
        if self.shared.side.is_object_store() {
            // In a bucket, a clean object has all its names. Looking them up would take a request
            // for each.
            return Ok(true);
        }
        let mut first: Option<Meta> = None;
        for (_, path) in names {
            let Some(there) = self.shared.side.look(path)? else {
                return Ok(false);
            };
            let first = *first.get_or_insert(there);
            if (first.dev, first.ino) != (there.dev, there.ino) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes back objects with all their names. The caller holds the objects' locks and the lock
    /// on the paths.
    fn write_names(&self, ids: &[ObjectId], pass: &mut Pass) -> Result<()> {
        let mut inodes = HashMap::new();
        for id in ids {
            match self.shared.inode(*id) {
                Ok(inode) => drop(inodes.insert(id.0, inode)),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        let objects = inodes.iter().map(|(id, inode)| (ObjectId(*id), inode));
        self.marks.announce(self.tree.root()?, objects)?;
        for (id, names) in self.names_of(ids)? {
            let Some(inode) = inodes.get(&id) else {
                continue;
            };
            let mut current = Vec::new();
            for (dir, path) in names {
                // A directory that only the pool has may have been renamed during the walk, so its
                // path is checked.
                let (at, name) = split(&path);
                let is_there = match self.directories.settle(dir) {
                    Ok(now) => now == at && self.tree.has_name(dir, name, ObjectId(id)),
                    Err(Errno::NOENT) => false,
                    Err(e) => return Err(e),
                };
                if is_there {
                    current.push((dir, path))
                } else {
                    pass.young += 1
                }
            }
            if let Err(e) = self.write_object(ObjectId(id), inode, &current, pass)
                && let Some((_, path)) = current.first()
            {
                match e {
                    // The object was removed meanwhile; the next pass finds its remaining names.
                    Errno::NOENT => pass.young += 1,
                    e => pass
                        .failed
                        .push((path.clone(), self.shared.side.explain(e))),
                }
            }
        }
        Ok(())
    }

    /// Writes back one object: the content under one name, then the other names as links.
    fn write_object(
        &self,
        id: ObjectId,
        inode: &Inode,
        names: &[Named],
        pass: &mut Pass,
    ) -> Result<()> {
        let mut looks = Vec::new();
        for name in names {
            let there = self.shared.side.look(&name.1)?;
            let is_known =
                there.is_some_and(|t| self.write_back.is_known(&name.1, &t, &inode.origin));
            looks.push(Look {
                name,
                there,
                is_known,
            });
        }
        for look in looks.iter().filter(|look| !look.is_free()) {
            // A dirty file is stored beside the origin's file, which keeps the name.
            if is_clean(inode) || inode.kind() != libc::S_IFREG {
                let what = "is another file at the origin, so it isn't linked there".to_owned();
                self.shared.ledger.conflict(
                    &look.name.1,
                    self.shared.side.show(&look.name.1),
                    what,
                );
            } else {
                self.write_back
                    .write_conflict(&look.name.1, (id, inode), pass)
            }
        }
        let known = looks.iter().find(|look| look.is_known);
        let Some(first) = known.or_else(|| looks.iter().find(|look| look.is_free())) else {
            return Ok(());
        };
        let (dir, path) = first.name;
        if !is_clean(inode) || known.is_none() {
            let free = looks.iter().filter(|look| look.is_free());
            let versions = free.map(|look| (&look.name.1[..], inode.size, inode.mtime));
            self.write_back
                .writing()
                .begin(versions)
                .map_err(|_| Errno::IO)?;
            if !self.write_content(id, inode, first, pass)? {
                return Ok(());
            }
            pass.writes_into(path, *dir);
        }
        let goal = self.shared.side.meta(path)?;
        for look in looks.iter().filter(|look| look.is_free()) {
            let (dir, name) = look.name;
            if name != path && look.is(&goal) && self.shared.side.is_object_store() {
                // In a bucket, each name has separate attributes.
                self.attributes.write_attributes_of(name, inode)?;
            }
            if name == path || look.is(&goal) {
                continue;
            }
            match look.there {
                None => self.shared.side.link(path, name)?,
                Some(_) => self.link_over(path, name)?,
            }
            pass.writes_into(name, *dir);
        }
        self.write_back.is_written(id, path, inode.ctime)?;
        for look in looks.iter().filter(|look| look.is_free()) {
            self.write_back.writing().end(&look.name.1);
        }
        Ok(())
    }

    /// Replaces the name `to` by a link to `from`, in one step.
    pub fn link_over(&self, from: &[u8], to: &[u8]) -> Result<()> {
        if self.shared.side.is_object_store() {
            return self.shared.side.copy(from, to);
        }
        let (dir, name) = split(to);
        let part = below(dir, &part_name(name));
        match self.shared.side.unlink(&part) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        self.shared.side.link(from, &part)?;
        self.shared.side.rename(&part, to, true)?;
        // rename(2) does nothing, and leaves `part`, if both names are one file.
        match self.shared.side.unlink(&part) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Writes an object's content and attributes under one name. Returns false if the object has
    /// changed meanwhile or couldn't be written.
    fn write_content(
        &self,
        id: ObjectId,
        inode: &Inode,
        to: &Look<'_>,
        pass: &mut Pass,
    ) -> Result<bool> {
        let path = &to.name.1;
        if inode.kind() == libc::S_IFLNK {
            let target = self.shared.cluster().namespace().inode_tail(id)?.1;
            let is_link = to.there.is_some_and(|there| there.is_symlink());
            if !is_link || self.shared.side.readlink(path)? != target {
                // In the pool, the symbolic link has replaced the object that the origin still has.
                if to.there.is_some() {
                    self.shared.side.unlink(path)?;
                }
                self.shared.side.symlink(&target, path)?;
            }
            self.attributes.write_attributes_of(path, inode)?;
            return Ok(true);
        }
        if inode.origin.is_released() {
            if to.there.is_none() {
                // The file's bytes were removed from the origin through another of its names.
                return Err(Errno::IO);
            }
            self.attributes.write_attributes_of(path, inode)?;
            return Ok(true);
        }
        if self.shared.side.is_object_store() {
            match self.object_writer.put_one((id, inode), path, to.there) {
                Ok(Some(_)) => {
                    self.shared.ledger.written.add(1, inode.size);
                    return Ok(true);
                }
                Ok(None) => pass.young += 1,
                Err(why) => pass.failed.push((path.clone(), why)),
            }
            return Ok(false);
        }
        let options = Options {
            checksum: to.there.is_some(),
            ..Options::stage_out()
        };
        self.shared.sync_pool()?;
        let report = self
            .write_back
            .stage(&self.shared.pool_path(path), path, &options);
        let report = report.map_err(|_| Errno::IO)?;
        match report.failures.first() {
            Some(failure) if failure.what.contains("changed while") => pass.young += 1,
            Some(failure) => {
                pass.failed.push((path.clone(), failure.what.clone()));
            }
            None if report.interrupted || report.moved_files + report.unchanged == 0 => {
                pass.young += 1;
            }
            None => {
                self.shared.ledger.written.add(1, inode.size);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes back a dirty file before it gets another name at the origin. Otherwise the new name
    /// could show half of the file's bytes. `name`: the file's only name; None if it has several.
    /// The caller holds the object's lock and the lock on the paths.
    ///
    /// # Errors
    /// The first failure of writing the file back.
    pub fn write_before(&self, id: ObjectId, name: Option<Named>) -> Done {
        let mut pass = Pass::default();
        // Waits, since a further write within the clock's resolution would get the same change
        // time.
        while is_young(&self.shared.inode(id)?, TICK) && pass.young < LOOKS {
            std::thread::sleep(TICK / 4);
            pass.young += 1;
        }
        let written = match name {
            Some(name) => {
                let inode = self.shared.inode(id)?;
                self.write_object(id, &inode, &[name], &mut pass)
            }
            None => self.write_names(&[id], &mut pass),
        };
        written?;
        match pass.failed.into_iter().next() {
            None => Ok(()),
            Some((path, why)) => Err(Error::new(
                Errno::IO,
                format!("{}: {why}", self.shared.side.show(&path)),
            )),
        }
    }
}

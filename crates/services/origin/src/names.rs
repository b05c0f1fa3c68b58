//! Removing and renaming objects that the origin has: at the origin first, then in the pool.
//!
//! The thread holds the objects' locks and the lock on the paths during both steps, so that nothing
//! is written back under a name that is about to change. If the service dies between the steps, the
//! pool has a name that the origin no longer has, or lacks one that the origin has. The process
//! repeats its request to the next service, and that service finishes the change. If the process
//! has died, too, the next check of the directory ([`crate::external_changes`]) makes both sides
//! equal.

use crate::directories::Directories;
use crate::error::{Done, Error};
use crate::links::Links;
use crate::listing::Listing;
use crate::marks::{Marks, is_clean};
use crate::ranges::Ranges;
use crate::shared::Shared;
use crate::side::{below, print};
use crate::tree::{Name, Tree};
use crate::write_back::WriteBack;
use forebay_backing::Meta;
use forebay_client::origin::OriginMode;
use forebay_posix::ObjectId;
use forebay_store::{Entry, Inode, OriginMark, OriginState, RenameMode};
use rustix::io::{Errno, Result};
use std::sync::Arc;

/// Maximum number of names in an error message.
const NAMED: usize = 5;
/// Removes and renames objects that the origin has.
pub struct NameChanges {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub listing: Arc<Listing>,
    pub directories: Arc<Directories>,
    pub write_back: Arc<WriteBack>,
    pub links: Arc<Links>,
    pub ranges: Arc<Ranges>,
}

impl NameChanges {
    /// Removes the name `name` of the object `id`.
    ///
    /// # Errors
    /// As unlink(2) and rmdir(2). ESTALE: another object has the name.
    pub fn remove(&self, (dir, name): Name<'_>, id: ObjectId) -> Done {
        let (_held, at) = self.tree.path_held(dir)?;
        let at = below(&at, name);
        let _working = self.marks.lock(id);
        let entry = match self.shared.cluster().namespace().lookup(dir, name)? {
            Some(entry) if entry.id == id => entry,
            Some(_) => return Err(Errno::STALE.into()),
            // An earlier service has removed the name.
            None => return Ok(()),
        };
        let inode = self.shared.inode(id)?;
        if inode.is_dir() && !self.tree.entries(id)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        let had = match self.shared.config.mode_of(&self.shared.pool_path(&at)) {
            OriginMode::Scratch => None,
            _ => self.shared.side.look(&at)?,
        };
        let is_one_of_several = inode.is_file() && inode.nlink > 1;
        let is_dirty = !inode.origin.is_released() && !is_clean(&inode);
        if self.shared.side.is_object_store() && had.is_some() && is_one_of_several && is_dirty {
            // In a bucket, each name is an object, and the name to be removed may be the only one
            // with the latest version. So the file's other names get that version first.
            self.links.write_before(id, None)?;
        }
        if let Some(there) = &had {
            self.ranges.keep_readable(id, &at, &inode);
            self.remove_there(&at, there, id, &inode)?;
        }
        self.shared.ledger.is_solved(&at);
        let cluster = self.shared.cluster();
        let removed = self.tree.change_pool(|epoch| {
            if inode.is_dir() {
                cluster.namespace().rmdir(dir, name, epoch)
            } else {
                cluster.namespace().unlink(dir, name, Some(entry), epoch)
            }
        });
        if removed == Err(Errno::NOTEMPTY) && had.is_some() {
            // Another process has put an entry into the pool's directory meanwhile: the origin's
            // directory is made again.
            self.directories.make_dirs(&at)?;
        }
        removed.map_err(Error::from)
    }

    fn remove_there(&self, at: &[u8], there: &Meta, id: ObjectId, inode: &Inode) -> Done {
        let removed = match (inode.is_dir(), there.is_dir()) {
            (true, true) => self.shared.side.rmdir(at),
            (false, false) if self.write_back.is_known(at, there, &inode.origin) => {
                self.shared.side.unlink(at)
            }
            // The origin now has another file under this name, which isn't removed.
            _ => Ok(()),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) => {
                // From here on, the pool shows the entries that others have put into the directory.
                let names = self.listing.add_missing(id, at).unwrap_or_default();
                let names: Vec<_> = names
                    .iter()
                    .take(NAMED)
                    .map(|n| String::from_utf8_lossy(n))
                    .collect();
                let shown = self.shared.side.show(at);
                let why = format!(
                    "{shown} can't be removed: it has {} at the origin",
                    names.join(", ")
                );
                Err(Error::new(Errno::NOTEMPTY, why))
            }
            Err(e) => {
                let shown = self.shared.side.show(at);
                Err(Error::new(
                    e,
                    format!("{shown} can't be removed: {}", self.shared.side.explain(e)),
                ))
            }
        }
    }

    /// Renames the object `ids.0` from `from` to `to`. `ids.1`: the object that has the name `to`
    /// now.
    ///
    /// # Errors
    /// As rename(2). ESTALE: other objects have these names.
    pub fn rename(
        &self,
        from: Name<'_>,
        to: Name<'_>,
        ids: (ObjectId, Option<ObjectId>),
        mode: RenameMode,
    ) -> Done {
        // The kind of an object never changes.
        let kind = self.shared.inode(ids.0)?.kind();
        let is_dir = kind == libc::S_IFDIR;
        // A directory is renamed only when no other thread works with paths below it.
        let (_held, old, new) = self.tree.two_paths_held(is_dir, from.0, to.0)?;
        let new_dir = new.is_ok().then_some(to.0);
        let (old, new) = (below(&old, from.1), new.map(|dir| below(&dir, to.1)));
        let mut all = vec![ids.0];
        all.extend(ids.1);
        // The same object may have both names, but is locked once.
        all.sort_by_key(|id| id.0);
        all.dedup();
        let _working: Vec<_> = all.iter().map(|id| self.marks.lock(*id)).collect();
        let cluster = self.shared.cluster();
        let source = cluster.namespace().lookup(from.0, from.1)?;
        let target = cluster.namespace().lookup(to.0, to.1)?;
        let has = |entry: &Option<Entry>, id| entry.is_some_and(|entry| entry.id == id);
        if source.is_none() && has(&target, ids.0) {
            // An earlier service has renamed the object.
            return Ok(());
        }
        if !has(&source, ids.0) || target.map(|target| target.id) != ids.1 {
            return Err(Errno::STALE.into());
        }
        if has(&target, ids.0) {
            return Ok(());
        }
        if target.is_some() && mode == RenameMode::NoReplace {
            return Err(Errno::EXIST.into());
        }
        let replaced = match ids.1 {
            Some(id) => Some(self.shared.inode(id)?),
            None => None,
        };
        if is_dir && matches!(&new, Ok(new) if new.starts_with(&below(&old, b""))) {
            return Err(Errno::INVAL.into());
        }
        if let (Some(replaced), Some(id)) = (&replaced, ids.1) {
            self.may_replace(is_dir, id, replaced)?;
        }
        if let (Some(replaced), Some(id), Ok(new)) = (&replaced, ids.1, &new) {
            self.ranges.keep_readable(id, new, replaced);
        }
        let mark = replaced.map(|r| r.origin).unwrap_or_default();
        let _pending = self.tree.pending_creates().begin(to.0, to.1);
        // FIFOs, sockets and devices are in the pool only.
        let stays = !matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK);
        let moved = if stays {
            false
        } else {
            let target = (new_dir, new.as_deref().map_err(|e| *e));
            self.rename_there(ids.0, (from, &old), target, mark)?
        };
        let renamed = self
            .tree
            .change_pool(|epoch| cluster.namespace().rename(from, to, mode, epoch));
        if let (Ok(()), true, Some(replaced), Ok(new)) = (renamed, stays, &replaced, &new) {
            // The pool's rename has succeeded, so removing the replaced file at the origin loses
            // nothing.
            self.remove_replaced(new, ids.0, replaced)?;
        }
        if let (Err(_), true, Ok(new)) = (renamed, moved, &new) {
            // Others have changed the pool's names meanwhile: the rename at the origin is undone.
            let _ = self.shared.side.rename(new, &old, false);
            if mark.state != OriginState::None && is_dir {
                let _ = self.directories.make_dirs(new);
            }
        }
        renamed.map_err(Error::from)
    }

    /// Checks whether rename(2) may put an object in place of `replaced`.
    ///
    /// # Errors
    /// ENOTDIR, EISDIR, ENOTEMPTY.
    fn may_replace(&self, is_dir: bool, id: ObjectId, replaced: &Inode) -> Result<()> {
        match (is_dir, replaced.is_dir()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !self.tree.entries(id)?.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Removes the file `replaced` at the origin, if the origin has the version that the pool
    /// knows. `id`: the object that has its name in the pool now.
    fn remove_replaced(&self, at: &[u8], id: ObjectId, replaced: &Inode) -> Done {
        match self.shared.side.look(at)? {
            Some(there) if self.write_back.is_known(at, &there, &replaced.origin) => {
                self.remove_there(at, &there, id, replaced)
            }
            _ => Ok(()),
        }
    }

    /// Renames at the origin, for [`NameChanges::rename`]. Returns whether the rename has to be
    /// undone if the rename in the pool fails.
    fn rename_there(
        &self,
        id: ObjectId,
        (from, old): (Name<'_>, &[u8]),
        (new_dir, new): (Option<ObjectId>, Result<&[u8]>),
        replaced: OriginMark,
    ) -> Done<bool> {
        let mut inode = self.shared.inode(id)?;
        let there = match inode.origin.state {
            OriginState::None => None,
            _ => self.shared.side.look(old)?,
        };
        if there.is_none() && self.was_renamed(&inode, new)? {
            return Ok(false);
        }
        let is_known =
            there.is_some_and(|there| self.write_back.is_known(old, &there, &inode.origin));
        let is_dirty = inode.is_file() && !inode.origin.is_released() && !is_clean(&inode);
        let replaces = replaced.state != OriginState::None;
        let is_linked =
            inode.nlink > 1 && !inode.is_dir() && inode.origin.state != OriginState::None;
        if let (true, Ok(new), Some(dir)) = (is_linked, new, new_dir) {
            if is_dirty && replaces {
                self.links.write_before(id, None)?;
                inode = self.shared.inode(id)?;
            }
            if let Some(known) = self.links.known_name(id, &inode, from)? {
                self.directories.settle(dir)?;
                self.rename_linked(&known, old, new)?;
                return Ok(known == old && !replaces);
            }
        }
        if is_known && is_dirty && !replaces && new.is_ok() && inode.nlink == 1 {
            self.links.write_before(id, Some((from.0, old.to_vec())))?;
            inode = self.shared.inode(id)?;
        }
        let there = match there {
            Some(_) => self.shared.side.look(old)?,
            None => None,
        };
        if there.is_none() || is_dirty && replaces {
            self.rename_later(id, &inode, replaced, old)?;
            if is_known {
                // The origin's older version of the object is removed: it must not appear under the
                // new name.
                self.shared.side.unlink(old)?;
            }
            return Ok(false);
        }
        let (new, dir) = (new?, new_dir.ok_or(Error::from(Errno::XDEV))?);
        if inode.is_dir() && self.shared.side.is_object_store() {
            // Each object below the directory would have to be copied. mv(1) does that when it gets
            // EXDEV.
            return Err(Errno::XDEV.into());
        }
        self.directories.settle(dir)?;
        let renamed = self.shared.side.rename(old, new, replaces);
        let renamed = renamed.map_err(|e| self.not_renamed(e, old, new))?;
        let version = renamed
            .or(there)
            .map(|there| print(&there))
            .unwrap_or_default();
        if !inode.is_dir() && is_known && version != inode.origin.print {
            // An earlier service wrote this version, and died before it marked the object.
            let mark = OriginMark {
                print: version,
                ..inode.origin
            };
            self.marks.set_mark(id, mark)?;
        }
        Ok(!replaces || inode.is_dir())
    }

    fn not_renamed(&self, e: Errno, old: &[u8], new: &[u8]) -> Error {
        let (old, new) = (self.shared.side.show(old), self.shared.side.show(new));
        let why = self.shared.side.explain(e);
        Error::new(e, format!("{old} can't be renamed to {new}: {why}"))
    }

    /// Renames one of several names of an object at the origin. `known`: a name under which the
    /// origin has the object.
    fn rename_linked(&self, known: &[u8], old: &[u8], new: &[u8]) -> Done {
        let renamed = if known == old {
            self.shared.side.rename(old, new, true).map(|_| ())
        } else {
            // The origin has no object under the old name, or a different object.
            self.links.link_over(known, new)
        };
        renamed.map_err(|e| self.not_renamed(e, old, new))
    }

    /// Prepares the mark of an object that is written to its new name later, where it overwrites
    /// the replaced object.
    ///
    /// # Errors
    /// ENOENT: only the origin had the object's bytes, and no longer has them.
    fn rename_later(&self, id: ObjectId, inode: &Inode, replaced: OriginMark, old: &[u8]) -> Done {
        match (inode.origin.state, replaced.state) {
            (OriginState::None, OriginState::None) => Ok(()),
            (OriginState::Released, _) if !inode.is_dir() => {
                let shown = self.shared.side.show(old);
                let why = format!("{shown} has gone from the origin");
                Err(Error::new(Errno::NOENT, why))
            }
            _ => {
                let mark = OriginMark {
                    state: OriginState::Archived,
                    print: replaced.print,
                    synced: 0,
                };
                Ok(self.marks.set_mark(id, mark)?)
            }
        }
    }

    /// Whether the origin has the object under its new name: an earlier service has renamed it, and
    /// died.
    fn was_renamed(&self, inode: &Inode, new: Result<&[u8]>) -> Result<bool> {
        let Ok(new) = new else {
            return Ok(false);
        };
        let there = self.shared.side.look(new)?;
        Ok(there.is_some_and(|there| {
            if inode.is_dir() {
                there.is_dir() && inode.origin.state != OriginState::None
            } else {
                inode.origin.print != 0 && print(&there) == inode.origin.print
            }
        }))
    }
}

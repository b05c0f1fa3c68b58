//! Names at the origin: removed and changed before those of the pool.
//!
//! A death between both leaves the pool with a name that the origin has no more, or without one
//! that it has. The next look at the directory ([`crate::outside`]) makes them equal.

use crate::service::{Moving, Origin, is_clean};
use crate::side::{below, print};
use forebay_posix::ObjectId;
use forebay_staging::{Place, PlainPlace, explain};
use forebay_store::{Inode, OriginMark, OriginState};
use rustix::io::{Errno, Result};
use std::time::Instant;

/// Most names in a message.
const NAMED: usize = 5;

/// A failure: the errno, and what failed.
type Failed = (Errno, String);

impl Origin {
    /// Removes the name `name` of the directory `dir` at the origin.
    ///
    /// # Errors
    /// As unlink(2) and rmdir(2). A name that isn't there is no error.
    pub fn remove(&self, dir: ObjectId, name: &[u8]) -> std::result::Result<(), Failed> {
        let plain = |e: Errno| (e, String::new());
        let cluster = self.fs.cluster();
        let entry = cluster.lookup(dir, name).map_err(plain)?;
        let entry = entry.ok_or((Errno::NOENT, String::new()))?;
        let (_held, at) = self.path_held(dir).map_err(plain)?;
        let at = below(&at, name);
        let _working = self.busy.begin(entry.id);
        let inode = self.inode(entry.id).map_err(plain)?;
        let path = self.pool_path(&at);
        if self.config.mode_of(&path) == forebay_client::origin::OriginMode::Scratch {
            return Ok(());
        }
        let there = self.side.look(&at).map_err(plain)?;
        let Some(there) = there else {
            return Ok(());
        };
        self.note_change(dir);
        self.begins_to_move(Moving {
            path: at.clone(),
            id: entry.id,
            from: (dir, name.to_vec()),
            to: None,
            since: Instant::now(),
        });
        let removed = match (inode.is_dir(), there.is_dir()) {
            (true, true) => PlainPlace.rmdir(&self.side.path(&at)),
            (false, false) if self.is_known(&at, &there, &inode.origin) => {
                PlainPlace.unlink(&self.side.path(&at))
            }
            // The origin has another file by now, which stays.
            _ => Ok(()),
        };
        self.ledger.is_solved(&at);
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) => {
                // The pool shows from here on what others have put into it.
                let names = self.add_missing(entry.id, &at).unwrap_or_default();
                let names: Vec<_> = names
                    .iter()
                    .take(NAMED)
                    .map(|n| String::from_utf8_lossy(n))
                    .collect();
                let shown = self.side.show(&at);
                let why = format!(
                    "{shown} can't be removed: it has {} at the origin",
                    names.join(", ")
                );
                Err((Errno::NOTEMPTY, why))
            }
            Err(e) => {
                let shown = self.side.show(&at);
                Err((e, format!("{shown} can't be removed: {}", explain(e))))
            }
        }
    }

    /// Gives the object `from` the name `to` at the origin.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
    ) -> std::result::Result<(), Failed> {
        let plain = |e: Errno| (e, String::new());
        let cluster = self.fs.cluster();
        let source = cluster.lookup(from.0, from.1).map_err(plain)?;
        let source = source.ok_or((Errno::NOENT, String::new()))?;
        let target = cluster.lookup(to.0, to.1).map_err(plain)?;
        if target.is_some_and(|target| target.id == source.id) {
            return Ok(());
        }
        let is_dir = source.kind == libc::S_IFDIR;
        let (_held, old_dir, new_dir) = self.two_paths_held(is_dir, from.0, to.0).map_err(plain)?;
        let mut ids = vec![source.id];
        ids.extend(target.map(|target| target.id));
        ids.sort_by_key(|id| id.0);
        let _working: Vec<_> = ids.iter().map(|id| self.busy.begin(*id)).collect();
        let inode = self.inode(source.id).map_err(plain)?;
        let replaced = match target {
            Some(target) => Some(self.inode(target.id).map_err(plain)?),
            None => None,
        };
        let replaced_mark = replaced.map(|r| r.origin).unwrap_or_default();
        let old = below(&old_dir, from.1);
        // Where the origin isn't behind the new name, the old one goes.
        let new = new_dir.map(|dir| below(&dir, to.1));
        self.note_change(from.0);
        self.note_change(to.0);
        let moves = |path: &[u8]| {
            self.begins_to_move(Moving {
                path: path.to_vec(),
                id: source.id,
                from: (from.0, from.1.to_vec()),
                to: Some((to.0, to.1.to_vec())),
                since: Instant::now(),
            });
        };
        let there = match inode.origin.state {
            OriginState::None => None,
            _ => self.side.look(&old).map_err(plain)?,
        };
        if there.is_none() && self.moves(source.id, from) {
            // The process tries again: names have changed meanwhile.
            return Ok(());
        }
        if there.is_none() && self.was_renamed(&inode, new.as_deref()).map_err(plain)? {
            return Ok(());
        }
        let is_known = there.is_some_and(|there| self.is_known(&old, &there, &inode.origin));
        let is_dirty = inode.is_file() && !inode.origin.is_released() && !is_clean(&inode);
        let replaces = replaced_mark.state != OriginState::None;
        let is_linked =
            inode.nlink > 1 && !inode.is_dir() && inode.origin.state != OriginState::None;
        if is_linked {
            if is_dirty && replaces {
                self.write_before(source.id)?;
            }
            let inode = self.inode(source.id).map_err(plain)?;
            let known = self.known_name(source.id, &inode, from).map_err(plain)?;
            if let (Some(known), Ok(new)) = (known, &new) {
                moves(&old);
                moves(new);
                self.settle(to.0).map_err(plain)?;
                return self.rename_linked(&known, &old, new).map_err(|e| {
                    let (old, new) = (self.side.show(&old), self.side.show(new));
                    (
                        e,
                        format!("{old} can't be renamed to {new}: {}", explain(e)),
                    )
                });
            }
        }
        if there.is_none() || is_dirty && replaces {
            // Written over the origin's version of what it replaces, when it is written back: an
            // older version of the source is no substitute for that one.
            let mark = OriginMark {
                state: OriginState::Archived,
                print: replaced_mark.print,
                synced: 0,
            };
            match (inode.origin.state, replaces) {
                (OriginState::None, false) => return Ok(()),
                (OriginState::Released, _) if !inode.is_dir() => {
                    let shown = self.side.show(&old);
                    return Err((Errno::NOENT, format!("{shown} has gone from the origin")));
                }
                _ => self.set_mark(source.id, mark).map_err(plain)?,
            }
            if let Ok(new) = &new {
                moves(new);
            }
            if is_known {
                PlainPlace.unlink(&self.side.path(&old)).map_err(plain)?;
            }
            return Ok(());
        }
        let new = new.map_err(plain)?;
        moves(&old);
        moves(&new);
        self.settle(to.0).map_err(plain)?;
        self.side.rename(&old, &new, replaces).map_err(|e| {
            let (old, new) = (self.side.show(&old), self.side.show(&new));
            (
                e,
                format!("{old} can't be renamed to {new}: {}", explain(e)),
            )
        })?;
        let version = there.map(|there| print(&there)).unwrap_or_default();
        if !inode.is_dir() && is_known && version != inode.origin.print {
            // Written just before, by a service that has died.
            let mark = OriginMark {
                print: version,
                ..inode.origin
            };
            self.set_mark(source.id, mark).map_err(plain)?;
        }
        Ok(())
    }

    /// Whether the origin has an object under its new name already: an earlier service has renamed
    /// it, and died.
    fn was_renamed(&self, inode: &Inode, new: std::result::Result<&[u8], &Errno>) -> Result<bool> {
        let Ok(new) = new else {
            return Ok(false);
        };
        let there = self.side.look(new)?;
        Ok(there.is_some_and(|there| match inode.is_dir() {
            true => there.is_dir() && inode.origin.state != OriginState::None,
            false => inode.origin.print != 0 && print(&there) == inode.origin.print,
        }))
    }

    /// Renames one of several names, of which the origin has `known`.
    fn rename_linked(&self, known: &[u8], old: &[u8], new: &[u8]) -> Result<()> {
        if known == old {
            return self.side.rename(old, new, true);
        }
        // The old name isn't there yet, or is somebody else's.
        self.link_over(&self.side.path(known), &self.side.path(new))
    }

    /// Notes that a directory of the origin is being changed by this service: a look at it that
    /// began before may be wrong.
    pub fn note_change(&self, dir: ObjectId) {
        let mut changed = self.changed();
        changed.insert(dir.0, Instant::now());
    }
}

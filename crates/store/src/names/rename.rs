//! rename(2), as far as it concerns this node.

use super::*;
use crate::views::Names;

/// What [`Store::rename_known`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renamed {
    Done,
    /// Both are names of one object: nothing is to be done.
    Nothing,
    /// An entry isn't what was looked up any more: nothing was done.
    Otherwise,
}

impl<'s> Names<'s> {
    /// Renames an entry of this node to another, where all that takes part lies here: if both are
    /// still what they were when they were looked up. `check` may object, in the transaction; `t`
    /// is the time.
    ///
    /// # Errors
    /// As rename(2); ESTALE if names changed since `epoch`; those of `check`.
    pub fn rename_known(
        &self,
        (from, source): (Named<'_>, Entry),
        (to, target): (Named<'_>, Option<Entry>),
        mode: RenameMode,
        (epoch, t): (u64, i64),
        check: impl Fn(&mut Write<'_>) -> Result<()>,
    ) -> Result<Renamed> {
        let is_dir = |e: Entry| e.kind == libc::S_IFDIR;
        let answer = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => Some(Err(Errno::EXIST)),
            (RenameMode::Exchange, None) => Some(Err(Errno::NOENT)),
            // Two names of one file, or the same name twice: nothing to do.
            (_, Some(t)) if t.id == source.id => Some(Ok(Renamed::Nothing)),
            (RenameMode::Replace, Some(t)) => match (is_dir(source), is_dir(t)) {
                (true, false) => Some(Err(Errno::NOTDIR)),
                (false, true) => Some(Err(Errno::ISDIR)),
                _ => None,
            },
            _ => None,
        };
        if let Some(answer) = answer {
            // If both were there at one time: somebody may have renamed one of them between the two
            // looks.
            let set = self.set(&[
                self.shard_of_entry(from.0, from.1),
                self.shard_of_entry(to.0, to.1),
            ]);
            let seen = self.write(set, Need::Removal, |w| {
                self.entries_are(w, (from, source), (to, target))
            })?;
            return match seen {
                true => answer,
                false => Ok(Renamed::Otherwise),
            };
        }
        let dirs = is_dir(source) || target.is_some_and(is_dir);
        let set = if dirs {
            // Loops and vanishing directories can't happen while all is locked.
            self.all_shards()
        } else {
            let mut set = self.set(&[
                self.shard_of_entry(from.0, from.1),
                self.shard_of_entry(to.0, to.1),
                self.shard_of(source.id),
            ]);
            if let Some(t) = target {
                set = set.with(self.shard_of(t.id));
            }
            set
        };
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(set, Need::Bytes(0), |w| {
            self.check_epoch(epoch)?;
            check(w)?;
            self.rename_locked(w, (from, source), (to, target), mode, t, &mut freed)
        });
        let done = match target {
            Some(target) if mode == RenameMode::Replace => self.undo_mark(done, target.id)?,
            _ => done?,
        };
        if !done {
            return Ok(Renamed::Otherwise);
        }
        self.free_extents(freed);
        self.set_live_ctime(source.id, t)?;
        if let Some(target) = target {
            self.set_live_ctime(target.id, t)?;
        }
        Ok(Renamed::Done)
    }

    /// In a transaction: whether the entries, which lie in this store, are those that were looked
    /// up; not while one is being changed.
    pub fn entries_are(
        &self,
        w: &mut Write<'_>,
        (from, source): ((ObjectId, &[u8]), Entry),
        (to, target): ((ObjectId, &[u8]), Option<Entry>),
    ) -> Result<bool> {
        let (from_shard, from_key) = (
            self.shard_of_entry(from.0, from.1),
            Key::entry(from.0, from.1),
        );
        let (to_shard, to_key) = (self.shard_of_entry(to.0, to.1), Key::entry(to.0, to.1));
        let target = target.map(|t| t.encode());
        Ok(w.get(from_shard, &from_key)? == Some(&source.encode()[..])
            && w.get(to_shard, &to_key)? == target.as_ref().map(|b| &b[..]))
    }

    /// The body of rename. False if the entries have changed since they were looked up.
    fn rename_locked(
        &self,
        w: &mut Write<'_>,
        (from, source): ((ObjectId, &[u8]), Entry),
        (to, target): ((ObjectId, &[u8]), Option<Entry>),
        mode: RenameMode,
        t: i64,
        freed: &mut Vec<Extent>,
    ) -> Result<bool> {
        let (from_shard, from_key) = (
            self.shard_of_entry(from.0, from.1),
            Key::entry(from.0, from.1),
        );
        let (to_shard, to_key) = (self.shard_of_entry(to.0, to.1), Key::entry(to.0, to.1));
        if !self.entries_are(w, (from, source), (to, target))? {
            return Ok(false);
        }
        let moves_paths = |e: Entry| matches!(e.kind, libc::S_IFDIR | libc::S_IFLNK);
        if moves_paths(source) || target.is_some_and(moves_paths) {
            w.names_change();
        }
        let source_dir = source.kind == libc::S_IFDIR;
        let target_dir = target.is_some_and(|t| t.kind == libc::S_IFDIR);
        if source_dir && self.is_below(to.0, source.id)? {
            return Err(Errno::INVAL);
        }
        if mode == RenameMode::Exchange {
            let target = target.ok_or(Errno::NOENT)?;
            if target_dir && self.is_below(from.0, target.id)? {
                return Err(Errno::INVAL);
            }
            w.put(to_shard, &to_key, &source.encode())?;
            w.put(from_shard, &from_key, &target.encode())?;
            self.moved(w, source, (from, to), t)?;
            self.moved(w, target, (to, from), t)?;
        } else {
            if let Some(target) = target {
                if target_dir && !self.is_empty(target.id)? {
                    return Err(Errno::NOTEMPTY);
                }
                self.drop_link(w, target.id, to, t, freed)?;
            }
            w.put(to_shard, &to_key, &source.encode())?;
            w.del(from_shard, &from_key)?;
            self.moved(w, source, (from, to), t)?;
        }
        // Link counts of the parents: each directory inside counts one.
        let replaced = target_dir && mode != RenameMode::Exchange;
        let back = target_dir && mode == RenameMode::Exchange;
        if from.0 == to.0 {
            if replaced {
                self.change_inode(w, to.0, |p| p.nlink -= 1)?;
            }
        } else if source_dir || target_dir {
            let (leaves, comes) = (u32::from(source_dir), u32::from(source_dir));
            self.change_inode(w, from.0, |p| p.nlink = p.nlink + u32::from(back) - leaves)?;
            let gone = u32::from(replaced || back);
            self.change_inode(w, to.0, |p| p.nlink = p.nlink + comes - gone)?;
        }
        Ok(true)
    }

    /// Notes a move in the moved object's inode.
    fn moved(
        &self,
        w: &mut Write<'_>,
        entry: Entry,
        (from, to): (Named<'_>, Named<'_>),
        t: i64,
    ) -> Result<()> {
        self.index()
            .names_in_index(w, entry.id, Some(from), Some(to))?;
        let shard = self.shard_of(entry.id);
        if self.set_contains(w, shard) && entry.kind != libc::S_IFDIR {
            return self.change_inode(w, entry.id, |i| i.ctime = t);
        }
        let key = Key::inode(entry.id);
        let record = w.get(shard, &key)?.ok_or(Errno::NOENT)?;
        let (mut inode, _) = Inode::decode(record).ok_or(Errno::IO)?;
        inode.ctime = t;
        inode.parent = to.0.0;
        w.put(shard, &key, &inode.encode(to.1))
    }

    fn set_contains(&self, w: &Write<'_>, shard: usize) -> bool {
        w.set().0 >> shard & 1 == 1
    }

    /// Whether directory `dir` is `ancestor` or lies below it.
    fn is_below(&self, mut dir: ObjectId, ancestor: ObjectId) -> Result<bool> {
        loop {
            if dir == ancestor {
                return Ok(true);
            }
            if dir == ObjectId::ROOT {
                return Ok(false);
            }
            let snapshot = self.envs[self.shard_of(dir)].snapshot()?;
            let record = snapshot.get(&Key::inode(dir))?.ok_or(Errno::NOENT)?;
            dir = ObjectId(Inode::decode(record).ok_or(Errno::IO)?.0.parent);
        }
    }
}

//! Carries out rename(2) for entries and objects of this node.

use super::*;
use crate::records::EntryRef;
use crate::views::Names;

/// The result of [`Names::rename_known`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renamed {
    Done,
    /// Source and target are names of one object: there was nothing to do.
    Nothing,
    /// An entry has changed since it was looked up: nothing was done.
    Otherwise,
}

impl<'s> Names<'s> {
    /// Renames an entry, if all entries and objects involved lie on this node, and both entries are
    /// still as they were when they were looked up. `check` may refuse, in the transaction; `t` is
    /// the time.
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
        let (old, new) = (self.store.entry_ref(from), self.store.entry_ref(to));
        let answer = match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => Some(Err(Errno::EXIST)),
            (RenameMode::Exchange, None) => Some(Err(Errno::NOENT)),
            // Two names of one file, or the same name twice: nothing to do.
            (_, Some(t)) if t.id == source.id => Some(Ok(Renamed::Nothing)),
            (RenameMode::Replace, Some(t)) => match (is_dir(source), is_dir(t)) {
                // A directory's move into itself is checked first. If this check isn't possible,
                // since a directory above lies on another node, the error follows from the kinds.
                (true, false) if self.is_below(to.0, source.id) == Ok(true) => {
                    Some(Err(Errno::INVAL))
                }
                (true, false) => Some(Err(Errno::NOTDIR)),
                (false, true) if self.is_below(from.0, t.id) == Ok(true) => {
                    Some(Err(Errno::NOTEMPTY))
                }
                (false, true) => Some(Err(Errno::ISDIR)),
                _ => None,
            },
            _ => None,
        };
        if let Some(answer) = answer {
            // Checks that both entries existed at one moment: another process may have renamed one
            // of them between the two lookups.
            let set = old.set().with(new.shard());
            let seen = self.store.transact(set, Need::Removal, |w| {
                self.entries_are(w, (old, source), (new, target))
            })?;
            return if seen { answer } else { Ok(Renamed::Otherwise) };
        }
        let dirs = is_dir(source) || target.is_some_and(is_dir);
        let set = if dirs {
            // While all shards are locked, no directory can be moved or removed: so no loop can
            // arise.
            self.store.files.all()
        } else {
            let mut set = old.set().with(new.shard());
            set = set.with(self.store.files.shard_of(source.id));
            if let Some(t) = target {
                set = set.with(self.store.files.shard_of(t.id));
            }
            set
        };
        let mut freed = Vec::new();
        let mut removed = None;
        let _section = self.store.section()?;
        // A rename that replaces an object must work even if the record file is full, since it
        // removes the object.
        let need = match (mode, target) {
            (RenameMode::Replace, Some(_)) => Need::Removal,
            _ => Need::Update,
        };
        let done = self.store.transact(set, need, |w| {
            self.store.names_epoch().check(epoch)?;
            check(w)?;
            if let (RenameMode::Replace, Some(target)) = (mode, target.filter(|t| is_dir(*t))) {
                removed = self.attributes_to_keep(w, target.id)?;
            }
            let replaced = (new, target);
            self.rename_locked(w, (old, source), replaced, mode, t, &mut freed)
        });
        let done = match target {
            Some(target) if mode == RenameMode::Replace => self.undo_mark(done, target.id)?,
            _ => done?,
        };
        if !done {
            return Ok(Renamed::Otherwise);
        }
        self.store.free_extents(freed);
        if let (Some(removed), Some(target)) = (removed, target) {
            self.store.objects().keep_removed_dir(target.id, &removed);
        }
        self.set_live_ctime(source.id, t)?;
        if let Some(target) = target {
            self.set_live_ctime(target.id, t)?;
        }
        Ok(Renamed::Done)
    }

    /// In a transaction: whether the entries, which lie in this store, are still those that were
    /// looked up. False while one of them is being changed.
    pub fn entries_are(
        &self,
        w: &mut Write<'_>,
        (from, source): (EntryRef<'_>, Entry),
        (to, target): (EntryRef<'_>, Option<Entry>),
    ) -> Result<bool> {
        if !w.has_entry(from, source)? {
            return Ok(false);
        }
        match target {
            Some(target) => w.has_entry(to, target),
            None => Ok(w.look_up(to)?.is_none()),
        }
    }

    /// Renames inside the transaction. Returns false if the entries have changed since they were
    /// looked up.
    fn rename_locked(
        &self,
        w: &mut Write<'_>,
        (old, source): (EntryRef<'_>, Entry),
        (new, target): (EntryRef<'_>, Option<Entry>),
        mode: RenameMode,
        t: i64,
        freed: &mut Vec<Extent>,
    ) -> Result<bool> {
        if !self.entries_are(w, (old, source), (new, target))? {
            return Ok(false);
        }
        let (from, to) = (old.named(), new.named());
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
            w.exchange((old, source), (new, target))?;
            self.moved(w, source, (from, to), t)?;
            self.moved(w, target, (to, from), t)?;
        } else {
            if let Some(target) = target {
                if target_dir && !w.is_empty(target.id)? {
                    return Err(Errno::NOTEMPTY);
                }
                self.drop_link(w, target.id, to, t, freed)?;
            }
            w.rename(old, new, source)?;
            self.moved(w, source, (from, to), t)?;
        }
        // A directory's link count includes one for each of its subdirectories.
        let replaced = target_dir && mode != RenameMode::Exchange;
        let back = target_dir && mode == RenameMode::Exchange;
        if from.0 == to.0 {
            if replaced {
                w.change_inode(to.0, |p| p.nlink -= 1)?;
            }
        } else if source_dir || target_dir {
            let (leaves, comes) = (u32::from(source_dir), u32::from(source_dir));
            w.change_inode(from.0, |p| p.nlink = p.nlink + u32::from(back) - leaves)?;
            let gone = u32::from(replaced || back);
            w.change_inode(to.0, |p| p.nlink = p.nlink + comes - gone)?;
        }
        Ok(true)
    }

    /// Records a move in the moved object's inode.
    fn moved(
        &self,
        w: &mut Write<'_>,
        entry: Entry,
        (from, to): (Named<'_>, Named<'_>),
        t: i64,
    ) -> Result<()> {
        self.store
            .index()
            .names_in_index(w, entry.id, Some(from), Some(to))?;
        let shard = self.store.files.shard_of(entry.id);
        if self.set_contains(w, shard) && entry.kind != libc::S_IFDIR {
            return w.change_inode(entry.id, |i| i.ctime = t);
        }
        let (mut inode, _) = w.inode(entry.id)?.ok_or(Errno::NOENT)?;
        inode.ctime = t;
        inode.parent = to.0.0;
        w.set_inode(entry.id, &inode, to.1)
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
            let records = self.store.committed(self.store.files.shard_of(dir))?;
            let (inode, _) = records.inode(dir)?.ok_or(Errno::NOENT)?;
            dir = ObjectId(inode.parent);
        }
    }
}

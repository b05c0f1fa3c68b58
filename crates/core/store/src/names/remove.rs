//! Removes names, and objects with their last name.

use super::*;
use crate::data::is_summed;
use crate::declared::is_ephemeral;
use crate::views::Names;

impl<'s> Names<'s> {
    /// Removes `name` from the object `id` inside a transaction. With the last name, the object is
    /// removed too (its extents are added to `freed`), or becomes an orphan while it is open.
    pub(crate) fn drop_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: (ObjectId, &[u8]),
        t: i64,
        freed: &mut Vec<Extent>,
    ) -> Result<Dropped> {
        let shard = self.store.files.shard_of(id);
        w.begin_removing(shard);
        let (inode, extents) = inode_and_extents(w, id)?.ok_or(Errno::NOENT)?;
        let last = inode.nlink <= 1;
        let open = last && !inode.is_dir() && self.store.objects().live_mark_unlinked(id, false)?;
        if inode.is_dir() || last && !open {
            freed.extend_from_slice(extents.extents());
            self.remove_inode(w, id, &inode, freed)?;
            return Ok(Dropped::Gone);
        }
        if last {
            self.store.index().leave_index(w, id, &inode)?
        } else {
            self.store.index().names_in_index(w, id, Some(name), None)?
        }
        w.change_inode(id, |i| {
            i.nlink = i.nlink.saturating_sub(1);
            i.ctime = t;
        })?;
        if open {
            w.attach(id, &Key::orphan(id), &[])?;
        }
        Ok(Dropped::Stays)
    }

    /// Removes all records of `id` inside a transaction. Adds its extents to `freed`; those of
    /// chunk 0 only with `first`.
    pub(crate) fn remove_records(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        first: bool,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        if let Some((inode, extents)) = inode_and_extents(w, id)? {
            if first {
                freed.extend_from_slice(extents.extents());
            }
            self.remove_inode(w, id, &inode, freed)?;
        }
        Ok(())
    }

    /// Removes the inode and all other records of `id`. Adds the extents of chunk 1 and later ones
    /// to `freed`. Attributes and chunks that are too many for one transaction are removed after it
    /// (`leftovers.rs`).
    fn remove_inode(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        inode: &Inode,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        self.store.index().leave_index(w, id, inode)?;
        w.remove_object(id)?;
        let many = self.leave_many(w, id, inode)?;
        if !id.is_part() {
            let bytes = if inode.is_file() { inode.size } else { 0 };
            w.free_quota(bytes as i64, 1);
        }
        if inode.is_file() {
            if is_ephemeral(inode.controls) {
                w.detach(id, &Key::creator(id))?;
            }
            if !many {
                self.remove_chunks(w, id, 1, freed)?;
            }
            if is_summed(inode.controls) {
                self.store.content().remove_sums(w, id)?;
            }
            if inode.is_spread {
                self.store.parts().remove_places(w, id, 0)?;
                self.store.intents().leave_parts(w, id)?;
            }
        }
        if inode.has_attributes && !many {
            self.remove_range(w, &Key::attribute(id, b""), |_| ())?;
        }
        Ok(())
    }

    /// Removes the extent records of chunk `from` and later ones.
    pub(crate) fn remove_chunks(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        from: u64,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        self.remove_range(w, &Key::chunk(id, from), |value| {
            if let Some(map) = ChunkMap::decode(value) {
                freed.extend_from_slice(map.extents());
            }
        })
    }

    /// Removes the records from `first` on that have the tag and the object of `first`. Before a
    /// removal, calls `each` with the record's value.
    pub(crate) fn remove_range(
        &self,
        w: &mut Write<'_>,
        first: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> Result<()> {
        let (tag, id, _) = parse_key(first).ok_or(Errno::INVAL)?;
        let mut keys = Vec::new();
        w.each_attached(id, first, |key, value| {
            let same = parse_key(key).is_some_and(|(t, of, _)| (t, of) == (tag, id));
            if same {
                each(value);
                keys.push(key.to_vec());
            }
            same
        })?;
        for key in keys {
            w.detach(id, &key)?;
        }
        Ok(())
    }

    /// As `Namespace::unlink_beside`, but returns EAGAIN instead of waiting for another operation,
    /// and doesn't set the directory's times.
    pub fn remove_beside(&self, name: Named<'_>, entry: Entry, epoch: u64, t: i64) -> Result<bool> {
        forebay_trace::span!(
            STORE_REMOVE_ENTER,
            STORE_REMOVE_EXIT,
            name.1,
            [name.0.0],
            self.remove_entry(name, entry, epoch, t)
        )
    }

    fn remove_entry(&self, name: Named<'_>, entry: Entry, epoch: u64, t: i64) -> Result<bool> {
        let at = self.store.entry_ref(name);
        let mut freed = Vec::new();
        let _section = self.store.section()?;
        let set = at.set().with(self.store.files.shard_of(entry.id));
        let done = self.store.transact(set, Need::Removal, |w| {
            self.store.names_epoch().check(epoch)?;
            self.store.intents().check_note(w, name)?;
            if !w.unlink(at, entry)? {
                return Ok(None);
            }
            if entry.kind == libc::S_IFLNK {
                w.names_change();
            }
            if self.store.links().end_link(w, entry.id, name)? {
                return Ok(Some(Dropped::Stays));
            }
            self.drop_link(w, entry.id, name, t, &mut freed).map(Some)
        });
        let Some(dropped) = self.undo_mark(done, entry.id)? else {
            return Ok(false);
        };
        self.store.free_extents(freed);
        if dropped == Dropped::Stays {
            self.set_live_ctime(entry.id, t)?;
        }
        Ok(true)
    }

    /// Returns `result`, the result of a removal. If the removal failed after its object was marked
    /// as unlinked, removes the mark.
    pub(crate) fn undo_mark<T>(&self, result: Result<T>, id: ObjectId) -> Result<T> {
        match &result {
            Ok(_) => return result,
            // These errors occur before any object is marked.
            Err(Errno::STALE | Errno::AGAIN | Errno::REMOTE) => return result,
            Err(_) => {}
        }
        self.unmark_named(id)?;
        result
    }

    /// Removes the `UNLINKED` mark from an open file that has a name.
    pub fn unmark_named(&self, id: ObjectId) -> Result<()> {
        // The shard must be locked: a removal may have marked the file and not be committed yet.
        self.store
            .transact(self.object_set(id), Need::Removal, |w| {
                if w.inode(id)?
                    .is_some_and(|(inode, _)| inode.nlink > 0 && !inode.is_dir())
                {
                    self.store.objects().live_mark_unlinked(id, true)?;
                }
                Ok(())
            })
    }

    /// Removes an empty directory, all of which lies on this node, at time `t`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, ESTALE.
    pub fn rmdir_here(&self, (parent, name): Named<'_>, (epoch, t): (u64, i64)) -> Result<()> {
        let at = self.store.entry_ref((parent, name));
        // All shards: no entry may be made in the directory while it is removed.
        let removed = self
            .store
            .transact(self.store.files.all(), Need::Removal, |w| {
                self.store.names_epoch().check(epoch)?;
                let found = w.look_up(at)?.ok_or(Errno::NOENT)?;
                if found.changing {
                    return Err(Errno::IO);
                }
                let entry = found.entry;
                if entry.kind != libc::S_IFDIR {
                    return Err(Errno::NOTDIR);
                }
                w.rmdir(at, entry)?;
                let kept = self.attributes_to_keep(w, entry.id)?;
                self.drop_link(w, entry.id, (parent, name), t, &mut Vec::new())?;
                w.change_inode(parent, |p| p.nlink -= 1)?;
                w.names_change();
                Ok(kept.map(|kept| (entry.id, kept)))
            })?;
        if let Some((id, kept)) = removed {
            self.store.objects().keep_removed_dir(id, &kept);
        }
        Ok(())
    }
}

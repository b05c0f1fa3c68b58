//! Writes back the live entry of a file to its record, or removes the file.

use super::*;
use crate::views::Content;
use crate::views::Parts;

/// The content that a file has once it is written back.
struct Plan {
    /// The bytes of a small file that moves into its record.
    content: Option<Vec<u8>>,
    /// The extents of chunk 0.
    map: ChunkMap,
    /// The last chunk, if it isn't chunk 0 and has fewer extents than before.
    last_chunk: Option<(Key, ChunkMap)>,
    /// Extents that the file no longer needs.
    freed: Vec<Extent>,
}

impl Content<'_> {
    /// Writes the live entry's state to the record. `last`: no process uses the entry any more, so
    /// a small file moves into its record, and unused room at the end is freed.
    ///
    /// # Errors
    /// ENOSPC, EIO; the entry stays dirty.
    pub fn flush(&self, index: u32, last: bool) -> Result<()> {
        if self.store.names().is_live_remote(index) {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        // Another process may have opened the file meanwhile, and even mapped it.
        let last = last && live.refs.load(Acquire) <= 1;
        if last && live.flags.load(Acquire) & flag::LOADED != 0 {
            self.store.mappings().settle_maps(index)?;
        }
        self.flush_locked(index, last)
    }

    /// As [`Content::flush`], locked already.
    pub(crate) fn flush_locked(&self, index: u32, last: bool) -> Result<()> {
        let live = self.store.objects().live(index);
        debug_assert!(
            !live.lock.is_free(),
            "a file that is written back is locked"
        );
        if live.flags.load(Acquire) & (flag::DIRTY | flag::LOADED) != flag::DIRTY | flag::LOADED {
            return Ok(());
        }
        let inline = live.flags.load(Relaxed) & flag::INLINE != 0;
        let mut plan = Plan {
            content: None,
            map: self.first_chunk(index),
            last_chunk: None,
            freed: Vec::new(),
        };
        if last && !inline {
            self.give_up_room(index, &mut plan)?;
        }
        let gone: usize = plan.freed.iter().map(|e| e.pages()).sum();
        let pages = live.pages.load(Relaxed) - gone as u64;
        if !inline && plan.content.is_none() {
            self.store.durability().keep_promise(live, &plan.map)?;
        }
        if !self.write_record(live, &plan, pages, last)? {
            return Ok(());
        }
        debug_assert!(
            live.moved.load(Relaxed).is_multiple_of(2),
            "extents are freed by one thread at a time"
        );
        if !plan.freed.is_empty() || plan.content.is_some() {
            live.moved.fetch_add(1, AcqRel);
            // Set before the extents are freed: if this process dies in between, other processes
            // find the bytes in the record.
            if plan.content.is_some_and(|c| !c.is_empty()) {
                live.flags.fetch_or(flag::INLINE, AcqRel);
            }
            self.store.objects().set_extents(index, &plan.map)?;
            live.pages.store(pages, Relaxed);
            live.moved.fetch_add(1, AcqRel);
            self.store.free_extents(plan.freed);
        }
        live.flags.fetch_and(!flag::DIRTY, AcqRel);
        Ok(())
    }

    /// Decides what a file keeps when no process uses it any more: a small file moves into its
    /// record, others give back unused room at the end. Only `plan` is changed.
    fn give_up_room(&self, index: u32, plan: &mut Plan) -> Result<()> {
        let live = self.store.objects().live(index);
        let size = live.size.load(Relaxed);
        // A file whose chunks may lie on other nodes isn't moved into its record.
        let small = !Parts::is_spilled(live)
            && size <= INLINE_MAX as u64
            && live.pages.load(Relaxed) == plan.map.pages() as u64;
        // Records lie in memory, so a file that must not lie in memory doesn't move into its
        // record.
        if small
            && (size == 0 || !self.keeps_on_files(live.controls.load(Relaxed)))
            && self.verify_locked(index, 0, size).is_ok()
        {
            let mut data = vec![0u8; size as usize];
            // SAFETY: copy_out writes only `data.len()` bytes. The file is locked, so no extents
            // move.
            unsafe {
                let moved = live.moved.load(Relaxed);
                self.copy_out(index, moved, 0, data.as_mut_ptr(), data.len())?;
            }
            plan.content = Some(data);
            plan.map.truncate(0, |e| plan.freed.push(e));
            return Ok(());
        }
        let (chunk, keep) = (size / CHUNK, pages(size % CHUNK));
        if chunk == 0 {
            let mut m = plan.map.clone();
            m.truncate(keep, |e| plan.freed.push(e));
            // A chunk with many extents keeps its pages: another extent might not fit when
            // the file grows again.
            if m.extents().len() > MAX_EXTENTS / 2 && size > 0 {
                plan.freed.clear();
            } else {
                plan.map = m;
            }
        } else if keep > 0 {
            let mut m = self.chunk_map(index, chunk, live.moved.load(Relaxed), 0)?;
            m.truncate(keep, |e| plan.freed.push(e));
            // A chunk with many extents keeps its pages: another extent might not fit when
            // the file grows again.
            if m.extents().len() > MAX_EXTENTS / 2 {
                plan.freed.clear();
            } else if !plan.freed.is_empty() {
                let id = ObjectId(live.id.load(Relaxed));
                plan.last_chunk = Some((Key::chunk(id, chunk), m));
            }
        }
        Ok(())
    }

    /// Writes the live entry's state to the record, with what `plan` says. Returns false if the
    /// file has no name any more, so that it is to be removed.
    fn write_record(&self, live: &Live, plan: &Plan, pages: u64, last: bool) -> Result<bool> {
        let id = ObjectId(live.id.load(Relaxed));
        let size = live.size.load(Relaxed);
        let inline = live.flags.load(Relaxed) & flag::INLINE != 0;
        self.store
            .transact(self.store.names().object_set(id), Need::Update, |w| {
                let (mut inode, old_tail) = match w.inode(id)? {
                    Some(found) => found,
                    // The process that removed the record died before it updated the entry: the file is
                    // removed like one without a name.
                    None if last => {
                        live.flags.fetch_or(flag::UNLINKED, AcqRel);
                        return Ok(false);
                    }
                    None => return Err(Errno::NOENT),
                };
                if last && inode.nlink == 0 {
                    // The file's last name was removed, but this entry has no mark of that. So the file
                    // is removed instead.
                    live.flags.fetch_or(flag::UNLINKED, AcqRel);
                    return Ok(false);
                }
                inode.size = size;
                inode.pages = pages;
                inode.mtime = live.mtime.load(Relaxed);
                inode.ctime = inode.ctime.max(live.ctime.load(Relaxed));
                live.note_parts(&mut inode);
                let (kept, extents);
                let tail_bytes: &[u8] = match &plan.content {
                    _ if inline => {
                        kept = old_tail[..old_tail.len().min(size as usize)].to_vec();
                        &kept
                    }
                    Some(data) => {
                        inode.tail = if data.is_empty() {
                            tail::NONE
                        } else {
                            tail::DATA
                        };
                        data
                    }
                    None => {
                        inode.tail = tail::EXTENTS;
                        extents = plan.map.encode();
                        &extents
                    }
                };
                w.set_inode(id, &inode, tail_bytes)?;
                if let Some((key, m)) = &plan.last_chunk {
                    w.attach(id, key, &m.encode())?;
                }
                if inode.tail == tail::EXTENTS && pages > 0 && self.is_bursty(live) {
                    w.attach(id, &Key::landed(id), &[])?;
                }
                Ok(true)
            })
    }

    /// Removes an object without a name, as its last user leaves.
    pub(crate) fn remove_object(&self, index: u32) -> Result<()> {
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let id = ObjectId(live.id.load(Relaxed));
        assert!(id.0 != 0, "an object that is removed has an id");
        // The extents of chunk 0 are those of the live entry: the record may name extents that were
        // freed since it was written.
        let loaded = live.flags.load(Acquire) & flag::LOADED != 0;
        let map = if loaded {
            self.first_chunk(index)
        } else {
            ChunkMap::default()
        };
        let mut freed = Vec::new();
        let removed =
            self.store
                .transact(self.store.names().object_set(id), Need::Removal, |w| {
                    let record = w.inode(id)?.map(|(inode, _)| inode);
                    if record.as_ref().is_some_and(|inode| inode.nlink > 0) {
                        return Ok(false);
                    }
                    if let Some(inode) = record.filter(|_| loaded && !id.is_part()) {
                        // The quota for the record's size is given back with the record; here, only for the
                        // difference.
                        let size = live.size.load(Relaxed) as i64;
                        w.free_quota(size.wrapping_sub(inode.size as i64), 0);
                    }
                    self.store
                        .names()
                        .remove_records(w, id, !loaded, &mut freed)?;
                    if live.flags.load(Acquire) & flag::PARTS != 0 && !id.is_part() {
                        self.store.parts().remove_places(w, id, 0)?;
                        self.store.intents().leave_parts(w, id)?;
                    }
                    w.detach(id, &Key::orphan(id)).map(|_| true)
                })?;
        if !removed {
            // The unlink that had set UNLINKED was never committed.
            live.flags.fetch_and(!(flag::UNLINKED | flag::GONE), AcqRel);
            return Ok(());
        }
        freed.extend_from_slice(map.extents());
        self.store
            .objects()
            .set_extents(index, &ChunkMap::default())?;
        live.flags.fetch_and(
            !(flag::UNLINKED | flag::DIRTY | flag::MAPPED | flag::CUT),
            AcqRel,
        );
        self.store.free_extents(freed);
        Ok(())
    }
}

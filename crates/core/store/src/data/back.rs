//! Writing the live entry of a file back to its record, or removing the file.

use super::*;
use crate::views::Content;
use crate::views::Parts;

impl Content<'_> {
    /// Writes the live entry's state to the record. `last`: no process uses the entry any more, so
    /// a small file moves into its record, and unused room at the end is freed.
    ///
    /// # Errors
    /// ENOSPC, EIO; the entry stays dirty.
    pub fn flush(&self, index: u32, last: bool) -> Result<()> {
        if self.names().is_live_remote(index) {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        // Another process may have opened the file since, and even mapped it.
        let last = last && live.refs.load(Acquire) <= 1;
        if last && live.flags.load(Acquire) & flag::LOADED != 0 {
            self.mappings().settle_maps(index)?;
        }
        self.flush_locked(index, last)
    }

    /// As [`Store::flush`], locked already.
    pub(crate) fn flush_locked(&self, index: u32, last: bool) -> Result<()> {
        let live = self.objects().live(index);
        debug_assert!(
            !live.lock.is_free(),
            "a file that is written back is locked"
        );
        if live.flags.load(Acquire) & (flag::DIRTY | flag::LOADED) != flag::DIRTY | flag::LOADED {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let size = live.size.load(Relaxed);
        let inline = live.flags.load(Relaxed) & flag::INLINE != 0;
        let mut map = self.first_chunk(index);
        let mut freed = Vec::new();
        let mut content = None;
        let mut shrunk = None;
        if last && !inline {
            // A file whose chunks may lie on other nodes isn't moved into its record.
            let small = !Parts::is_spilled(live)
                && size <= INLINE_MAX as u64
                && live.pages.load(Relaxed) == map.pages() as u64;
            // A file that must not lie in memory doesn't move into its record, which lies in
            // memory.
            if small
                && (size == 0 || !self.keeps_on_files(live.controls.load(Relaxed)))
                && self.verify_locked(index, 0, size).is_ok()
            {
                let mut data = vec![0u8; size as usize];
                // SAFETY: data has size bytes. Locked: nothing moves.
                unsafe {
                    let moved = live.moved.load(Relaxed);
                    self.copy_out(index, moved, 0, data.as_mut_ptr(), data.len())?;
                }
                content = Some(data);
                map.truncate(0, |e| freed.push(e));
            } else {
                let (chunk, keep) = (size / CHUNK, pages(size % CHUNK));
                if chunk == 0 {
                    let mut m = map.clone();
                    m.truncate(keep, |e| freed.push(e));
                    // A chunk with many extents keeps its pages: another extent might not fit when
                    // the file grows again.
                    if m.extents().len() > MAX_EXTENTS / 2 && size > 0 {
                        freed.clear();
                    } else {
                        map = m;
                    }
                } else if keep > 0 {
                    let mut m = self.chunk_map(index, chunk, live.moved.load(Relaxed), 0)?;
                    m.truncate(keep, |e| freed.push(e));
                    // A chunk with many extents keeps its pages: another extent might not fit when
                    // the file grows again.
                    if m.extents().len() > MAX_EXTENTS / 2 {
                        freed.clear();
                    } else if !freed.is_empty() {
                        shrunk = Some((Key::chunk(id, chunk), m));
                    }
                }
            }
        }
        let gone: usize = freed.iter().map(|e| e.pages()).sum();
        let pages = live.pages.load(Relaxed) - gone as u64;
        if !inline && content.is_none() {
            self.durability().keep_promise(live, &map)?;
        }
        let written = self.transact(self.names().object_set(id), Need::Update, |w| {
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
                // The file's last name was removed without a mark in this entry: remove the file
                // instead.
                live.flags.fetch_or(flag::UNLINKED, AcqRel);
                return Ok(false);
            }
            inode.size = size;
            inode.pages = pages;
            inode.mtime = live.mtime.load(Relaxed);
            inode.ctime = inode.ctime.max(live.ctime.load(Relaxed));
            live.note_parts(&mut inode);
            let (kept, extents);
            let tail_bytes: &[u8] = match &content {
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
                    extents = map.encode();
                    &extents
                }
            };
            w.set_inode(id, &inode, tail_bytes)?;
            if let Some((key, m)) = &shrunk {
                w.attach(id, key, &m.encode())?;
            }
            if inode.tail == tail::EXTENTS && pages > 0 && self.is_bursty(live) {
                w.attach(id, &Key::landed(id), &[])?;
            }
            Ok(true)
        })?;
        if !written {
            return Ok(());
        }
        debug_assert!(
            live.moved.load(Relaxed).is_multiple_of(2),
            "extents are freed by one thread at a time"
        );
        if !freed.is_empty() || content.is_some() {
            live.moved.fetch_add(1, AcqRel);
            // Set before the extents are freed: if this process dies in between, the bytes are
            // found in the record.
            if content.is_some_and(|c| !c.is_empty()) {
                live.flags.fetch_or(flag::INLINE, AcqRel);
            }
            self.objects().set_extents(index, &map)?;
            live.pages.store(pages, Relaxed);
            live.moved.fetch_add(1, AcqRel);
            self.free_extents(freed);
        }
        live.flags.fetch_and(!flag::DIRTY, AcqRel);
        Ok(())
    }

    /// Removes an object without a name, as its last user leaves.
    pub(crate) fn remove_object(&self, index: u32) -> Result<()> {
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        let id = ObjectId(live.id.load(Relaxed));
        assert!(id.0 != 0, "an object that is removed has an id");
        // The extents of chunk 0 are those of the live entry: the record may name some that
        // were given back since.
        let loaded = live.flags.load(Acquire) & flag::LOADED != 0;
        let map = if loaded {
            self.first_chunk(index)
        } else {
            ChunkMap::default()
        };
        let mut freed = Vec::new();
        let removed = self.transact(self.names().object_set(id), Need::Removal, |w| {
            let record = w.inode(id)?.map(|(inode, _)| inode);
            if record.as_ref().is_some_and(|inode| inode.nlink > 0) {
                return Ok(false);
            }
            if let Some(inode) = record.filter(|_| loaded && !id.is_part()) {
                // The record's size is given back with the record; here, only the difference to it.
                let size = live.size.load(Relaxed) as i64;
                w.free_quota(size.wrapping_sub(inode.size as i64), 0);
            }
            self.names().remove_records(w, id, !loaded, &mut freed)?;
            if live.flags.load(Acquire) & flag::PARTS != 0 && !id.is_part() {
                self.parts().remove_places(w, id, 0)?;
                self.intents().leave_parts(w, id)?;
            }
            w.detach(id, &Key::orphan(id)).map(|_| true)
        })?;
        if !removed {
            // The removal that had set the mark was never committed.
            live.flags.fetch_and(!(flag::UNLINKED | flag::GONE), AcqRel);
            return Ok(());
        }
        freed.extend_from_slice(map.extents());
        self.objects().set_extents(index, &ChunkMap::default())?;
        live.flags.fetch_and(
            !(flag::UNLINKED | flag::DIRTY | flag::MAPPED | flag::CUT),
            AcqRel,
        );
        self.free_extents(freed);
        Ok(())
    }
}

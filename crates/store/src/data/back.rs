//! Writing back what the live table knows of a file, or removing the file.

use super::*;
use crate::views::Content;
use crate::views::Parts;

impl Content<'_> {
    /// Writes what the live entry knows to the record. `last`: nobody uses it any more, so
    /// a small file moves into its record and unused room at the end is given back.
    ///
    /// # Errors
    /// ENOSPC, EIO; the entry stays dirty.
    pub fn flush(&self, index: u32, last: bool) -> Result<()> {
        if self.names().is_live_away(index) {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        // Somebody may have opened it since, and mapped it even.
        let last = last && live.refs.load(Acquire) <= 1;
        if last && live.flags.load(Acquire) & flag::LOADED != 0 {
            self.mappings().settle_maps(index)?;
        }
        self.flush_locked(index, last)
    }

    /// As [`Store::flush`], locked already.
    pub(crate) fn flush_locked(&self, index: u32, last: bool) -> Result<()> {
        let live = self.objects().live(index);
        if live.flags.load(Acquire) & (flag::DIRTY | flag::LOADED) != flag::DIRTY | flag::LOADED {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let shard = self.shard_of(id);
        let size = live.size.load(Relaxed);
        let inline = live.flags.load(Relaxed) & flag::INLINE != 0;
        let mut map = self.first_chunk(index);
        let mut freed = Vec::new();
        let mut content = None;
        let mut shrunk = None;
        if last && !inline {
            // Of one whose chunks may lie elsewhere, nothing is moved into the record.
            let small = !Parts::is_spilled(live)
                && size <= INLINE_MAX as u64
                && live.pages.load(Relaxed) == map.pages() as u64;
            // Records lie in memory.
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
                    // Another extent must fit when the file grows again.
                    if m.extents().len() > MAX_EXTENTS / 2 && size > 0 {
                        freed.clear();
                    } else {
                        map = m;
                    }
                } else if keep > 0 {
                    let mut m = self.chunk_map(index, chunk, live.moved.load(Relaxed), 0)?;
                    m.truncate(keep, |e| freed.push(e));
                    // Another extent must fit when the file grows again.
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
        let written = self.write(self.names().object_set(id), Need::Update, |w| {
            let key = Key::inode(id);
            let record = match w.get(shard, &key)? {
                Some(record) => record,
                // Who removed it died before the entry was told: it goes like one without
                // a name.
                None if last => {
                    live.flags.fetch_or(flag::UNLINKED, AcqRel);
                    return Ok(false);
                }
                None => return Err(Errno::NOENT),
            };
            let (mut inode, old_tail) = Inode::decode(record).ok_or(Errno::IO)?;
            if last && inode.nlink == 0 {
                // Its last name went without the entry being told: remove it instead.
                live.flags.fetch_or(flag::UNLINKED, AcqRel);
                return Ok(false);
            }
            inode.size = size;
            inode.pages = pages;
            inode.mtime = live.mtime.load(Relaxed);
            inode.ctime = inode.ctime.max(live.ctime.load(Relaxed));
            live.note_parts(&mut inode);
            let extents;
            let tail_bytes = match &content {
                _ if inline => &old_tail[..old_tail.len().min(size as usize)],
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
            let bytes = inode.encode(tail_bytes);
            w.put(shard, &key, &bytes)?;
            if let Some((key, m)) = &shrunk {
                w.put(shard, key, &m.encode())?;
            }
            if inode.tail == tail::EXTENTS && pages > 0 && self.is_bursty(live) {
                w.put(shard, &Key::landed(id), &[])?;
            }
            Ok(true)
        })?;
        if !written {
            return Ok(());
        }
        if !freed.is_empty() || content.is_some() {
            live.moved.fetch_add(1, AcqRel);
            // Before the extents go: should we die in between, the bytes are still found.
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

    /// Removes an object without a name, whose last user leaves.
    pub(crate) fn remove_object(&self, index: u32) -> Result<()> {
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        let id = ObjectId(live.id.load(Relaxed));
        // The extents of chunk 0 are those of the live entry: the record may name some that
        // were given back since.
        let loaded = live.flags.load(Acquire) & flag::LOADED != 0;
        let map = if loaded {
            self.first_chunk(index)
        } else {
            ChunkMap::default()
        };
        let mut freed = Vec::new();
        let shard = self.shard_of(id);
        let removed = self.write(self.names().object_set(id), Need::Removal, |w| {
            let record = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
            let record = record.map(|(inode, _)| inode);
            if record.as_ref().is_some_and(|inode| inode.nlink > 0) {
                return Ok(false);
            }
            if let Some(inode) = record.filter(|_| loaded && !id.is_part()) {
                // The record's size is given back with it.
                let size = live.size.load(Relaxed) as i64;
                w.free_quota(size.wrapping_sub(inode.size as i64), 0);
            }
            self.names().remove_records(w, id, !loaded, &mut freed)?;
            if live.flags.load(Acquire) & flag::PARTS != 0 && !id.is_part() {
                self.parts().remove_places(w, id, 0)?;
                self.intents().leave_parts(w, id)?;
            }
            w.del(shard, &Key::orphan(id)).map(|_| true)
        })?;
        if !removed {
            // The removal that had marked it never came to be.
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

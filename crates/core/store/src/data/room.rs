//! The size of files and the room they take: truncation, reservation, holes.

use super::*;
use crate::views::Content;
use crate::views::Mappings;

impl<'s> Content<'s> {
    /// As `FileData::truncate`, for bytes on this node. `decide` is called with the file locked,
    /// and returns the new size.
    pub fn truncate_here(
        &self,
        index: u32,
        decide: impl FnOnce(&Live) -> Result<u64>,
    ) -> Result<()> {
        let critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let size = decide(live)?;
        self.store
            .declared()
            .check_change(live, Change::Size(size))?;
        let old = live.size.load(Relaxed);
        self.note_change(index)?;
        if size != old {
            self.unseal(index, size.min(old), old)?;
        }
        if live.flags.load(Relaxed) & flag::INLINE != 0 && size != old {
            if size == 0 {
                live.moved.fetch_add(1, AcqRel);
                live.size.store(0, Release);
                live.flags.fetch_and(!flag::INLINE, AcqRel);
                live.moved.fetch_add(1, AcqRel);
            } else {
                self.promote(index)?;
            }
        }
        if size > old {
            self.store.mappings().clear_tail(index, old, size)?;
            self.store.quota().grows(live, old, size)?;
            live.size.store(size, Release);
        } else if size < old {
            self.shrink(index, size, old)?;
            self.store.quota().shrinks(live, old, size);
        }
        self.touch(live);
        let mapped = size < old && Mappings::is_mapped(live);
        drop(lock);
        drop(critical);
        if mapped {
            self.store.mappings().notify_shrunk(index, size);
        }
        Ok(())
    }

    fn shrink(&self, index: u32, size: u64, old: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        assert!(size < old, "a file that shrinks was longer");
        // The size is set first: if this process dies, the repair of the entry cuts the extents to
        // the size.
        live.size.store(size, Release);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        if Mappings::is_mapped(live) {
            // Pages stay as long as mappings show them.
            live.flags.fetch_or(flag::CUT, AcqRel);
            return self.zero_range(index, size, old.next_multiple_of(PAGE as u64));
        }
        if let Err(e) = self.free_behind(index, size, old) {
            // No page was freed.
            live.size.store(old, Release);
            return Err(e);
        }
        let page_end = size.next_multiple_of(PAGE as u64).min(old);
        self.zero_range(index, size, page_end)
    }

    /// Frees the pages of a file between `size` and `old`, its present and its former size in
    /// bytes. Locked; no process has the pages mapped.
    pub(crate) fn free_behind(&self, index: u32, size: u64, old: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let mut freed = Vec::new();
        let (last, keep) = (size / CHUNK, pages(size % CHUNK));
        let mut first = self.first_chunk(index);
        let chunks = old > CHUNK || live.pages.load(Relaxed) > first.pages() as u64;
        if last == 0 {
            first.truncate(keep, |e| freed.push(e));
        }
        debug_assert!(size <= old, "what lies behind {size} is freed, up to {old}");
        debug_assert!(!live.lock.is_free(), "a file that loses extents is locked");
        // With a journal, no other file may record these extents as its own before this file's
        // record is without them.
        let noted = !freed.is_empty() && self.store.durability().active_journal().is_some();
        if noted {
            self.store.durability().keep_promise(live, &first)?;
        }
        assert!(
            live.moved.load(Relaxed).is_multiple_of(2),
            "extents are taken away by one thread at a time"
        );
        live.moved.fetch_add(1, AcqRel);
        let result = if chunks || noted {
            let first_freed = freed.len();
            self.store
                .transact(self.store.names().object_set(id), Need::Removal, |w| {
                    freed.truncate(first_freed);
                    if last > 0 && keep > 0 {
                        let key = Key::chunk(id, last);
                        if let Some(bytes) = w.attached(id, &key)? {
                            let mut map = ChunkMap::decode(bytes).ok_or(Errno::IO)?;
                            map.truncate(keep, |e| freed.push(e));
                            w.attach(id, &key, &map.encode())?;
                        }
                    }
                    self.store.names().remove_chunks(
                        w,
                        id,
                        (last + u64::from(keep > 0)).max(1),
                        &mut freed,
                    )?;
                    if self.store.durability().active_journal().is_some() {
                        let gone: usize = freed.iter().map(|e| e.pages()).sum();
                        let pages = live.pages.load(Relaxed) - gone as u64;
                        self.put_live(w, live, pages, tail::EXTENTS, &first.encode())?;
                    }
                    Ok(())
                })
        } else {
            Ok(())
        };
        if result.is_ok() {
            self.store.objects().set_extents(index, &first)?;
            let gone: usize = freed.iter().map(|e| e.pages()).sum();
            live.pages.fetch_sub(gone as u64, Relaxed);
        } else {
            freed.clear();
        }
        live.moved.fetch_add(1, AcqRel);
        self.store.free_extents(freed);
        result
    }

    /// Writes size, times and tail of an open file to its record, if it has one.
    pub(crate) fn put_live(
        &self,
        w: &mut Write<'_>,
        live: &Live,
        pages: u64,
        kind: u8,
        tail_bytes: &[u8],
    ) -> Result<()> {
        let id = ObjectId(live.id.load(Relaxed));
        let Some((mut inode, _)) = w.inode(id)? else {
            return Ok(());
        };
        inode.size = live.size.load(Relaxed);
        inode.pages = pages;
        inode.mtime = live.mtime.load(Relaxed);
        inode.ctime = inode.ctime.max(live.ctime.load(Relaxed));
        live.note_parts(&mut inode);
        inode.tail = kind;
        w.set_inode(id, &inode, tail_bytes)
    }

    /// Frees extents that the record of an open file may still name. Locked.
    pub(crate) fn free_unnoted(&self, index: u32, freed: Vec<Extent>) -> Result<()> {
        if !freed.is_empty() && self.store.durability().active_journal().is_some() {
            // No other file may record these extents as its own before this file's record is
            // without them.
            self.store
                .objects()
                .live(index)
                .flags
                .fetch_or(flag::DIRTY, AcqRel);
            if let Err(e) = self.flush_locked(index, false)
                && e != Errno::NOENT
            {
                self.store.control.header().leaks.store(1, Release);
                return Err(e);
            }
        }
        self.store.free_extents(freed);
        Ok(())
    }

    /// As `FileData::reserve_range`, for bytes on this node.
    pub fn reserve_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        self.store.local_copies().make_room(len as usize);
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        // A reservation removes no bytes, so it is checked like growth.
        self.store
            .declared()
            .check_change(lock.0, Change::Size(MAX_SIZE))?;
        self.note_change(index)?;
        self.promote(index)?;
        let live = lock.0;
        let size = live.size.load(Relaxed);
        if grow {
            self.store.quota().grows(live, size, end)?;
        }
        let grown = self.reserve_locked(index, (offset, end), grow);
        if grow && grown.is_err() {
            self.store
                .quota()
                .shrinks(live, end, live.size.load(Relaxed));
        }
        grown
    }

    /// Allocates the pages of a range of a locked file. With `grow`, sets the size to the range's
    /// end.
    fn reserve_locked(&self, index: u32, (offset, end): (u64, u64), grow: bool) -> Result<()> {
        for chunk in offset / CHUNK..end.div_ceil(CHUNK) {
            let needed = pages((end - chunk * CHUNK).min(CHUNK));
            let from = pages(offset.saturating_sub(chunk * CHUNK));
            self.ensure(index, chunk, (from, needed))?;
        }
        let live = self.store.objects().live(index);
        let size = live.size.load(Relaxed);
        if grow && end > size {
            self.unseal(index, size, size)?;
            self.store.mappings().clear_tail(index, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// As `FileData::punch`, for bytes on this node.
    pub fn punch_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let size = live.size.load(Relaxed);
        let change = if offset < size {
            Change::From(Some(offset))
        } else {
            Change::Size(end)
        };
        self.store.declared().check_change(live, change)?;
        self.note_change(index)?;
        self.unseal(index, offset.min(size), end.min(size))?;
        self.promote(index)?;
        if offset < size {
            if !grow {
                self.free_inside(index, offset, end)?;
            }
            self.zero_range(index, offset, end.min(size))?;
        }
        if grow && end > size {
            self.store.mappings().clear_tail(index, size, end)?;
            self.store.quota().grows(live, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// Frees the pages of a hole that are the last ones of their chunk, since a chunk has its pages
    /// from its start on. Files that are mapped, have parts on other nodes, or have checksums keep
    /// their pages. So do all files of a pool with a journal, since the journal would have to
    /// record the change first.
    fn free_inside(&self, index: u32, from: u64, to: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        const KEEPING: u32 = flag::MAPPED | flag::CUT | flag::PARTS | flag::BEHIND | flag::COPIED;
        if live.flags.load(Relaxed) & KEEPING != 0
            || Mappings::is_mapped(live)
            || id.is_part()
            || id.is_copy()
            || is_summed(live.controls.load(Relaxed))
            || self.store.durability().active_journal().is_some()
        {
            return Ok(());
        }
        // Index after the last chunk whose end is in the hole.
        let end = if to >= live.size.load(Relaxed) {
            to.div_ceil(CHUNK)
        } else {
            to / CHUNK
        };
        let keep = |chunk: u64| pages(from.saturating_sub(chunk * CHUNK).min(CHUNK));
        let mut freed = Vec::new();
        let mut first = self.first_chunk(index);
        if from < CHUNK && end > 0 {
            first.truncate(keep(0), |e| freed.push(e));
        }
        debug_assert!(
            live.moved.load(Relaxed).is_multiple_of(2),
            "extents are taken away by one thread at a time"
        );
        live.moved.fetch_add(1, AcqRel);
        let result = self.free_later_chunks((from / CHUNK).max(1)..end, id, keep, &mut freed);
        let result = result.and_then(|()| self.store.objects().set_extents(index, &first));
        if result.is_ok() {
            let gone: usize = freed.iter().map(|e| e.pages()).sum();
            live.pages.fetch_sub(gone as u64, Relaxed);
            live.flags.fetch_or(flag::DIRTY, AcqRel);
        }
        live.moved.fetch_add(1, AcqRel);
        result.map(|()| self.store.free_extents(freed))
    }

    /// Removes, from the records of `chunks`, the pages after the first `keep(chunk)` of each
    /// chunk.
    fn free_later_chunks(
        &self,
        chunks: std::ops::Range<u64>,
        id: ObjectId,
        keep: impl Fn(u64) -> usize,
        freed: &mut Vec<Extent>,
    ) -> Result<()> {
        if chunks.is_empty()
            || self
                .next_chunk(id, chunks.start)?
                .is_none_or(|n| n >= chunks.end)
        {
            return Ok(());
        }
        let of_first = freed.len();
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                freed.truncate(of_first);
                let mut changed = Vec::new();
                w.each_attached(id, &Key::chunk(id, chunks.start), |key, value| {
                    let n = match parse_key(key) {
                        Some((b'X', of, n)) if of == id => {
                            n.try_into().ok().map(u64::from_be_bytes)
                        }
                        _ => None,
                    };
                    let Some(n) = n.filter(|n| *n < chunks.end) else {
                        return false;
                    };
                    if let Some(mut map) = ChunkMap::decode(value) {
                        map.truncate(keep(n), |e| freed.push(e));
                        changed.push((key.to_vec(), map));
                    }
                    true
                })?;
                for (key, map) in changed {
                    if map.extents().is_empty() {
                        _ = w.detach(id, &key)?
                    } else {
                        w.attach(id, &key, &map.encode())?
                    }
                }
                Ok(())
            })
    }

    /// As `FileData::seek_data`, for bytes on this node.
    pub fn seek_here(&self, index: u32, offset: u64, hole: bool) -> Result<u64> {
        let live = self.store.objects().live(index);
        loop {
            let moved = live.moved.load(Acquire);
            if !moved.is_multiple_of(2) {
                let _critical = Critical::enter();
                drop(self.store.objects().lock_live(index)?);
                continue;
            }
            let found = self.seek_once(index, moved, offset, hole);
            fence(Acquire);
            if live.moved.load(Relaxed) == moved {
                return found;
            }
        }
    }

    /// As [`Content::seek_here`]; the result is valid only if no extents are moved meanwhile.
    fn seek_once(&self, index: u32, moved: u64, offset: u64, hole: bool) -> Result<u64> {
        let live = self.store.objects().live(index);
        let size = live.size.load(Acquire);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            return Ok(if hole { size } else { offset });
        }
        let found = |at: u64| match hole {
            true => Ok(at.min(size)),
            false if at < size => Ok(at),
            false => Err(Errno::NXIO),
        };
        let mut at = offset;
        while at < size {
            let chunk = at / CHUNK;
            let map = self.chunk_map(index, chunk, moved, CELL_PAGES)?;
            if map.extents().is_empty() && !hole {
                let next = self.next_chunk(ObjectId(live.id.load(Relaxed)), chunk + 1)?;
                at = next.ok_or(Errno::NXIO)? * CHUNK;
                continue;
            }
            let mut start = chunk * CHUNK;
            for &e in map.extents() {
                let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
                let end = start + (e.pages() * PAGE) as u64;
                while at < end {
                    let page = (at - start) as usize / PAGE;
                    let (run, data) = medium.init_run(e, page, e.pages() - page);
                    if data != hole {
                        return found(at);
                    }
                    at = start + ((page + run) * PAGE) as u64;
                }
                start = end;
            }
            let end = (chunk + 1) * CHUNK;
            if hole && at < end {
                return found(at);
            }
            at = end;
        }
        if hole { Ok(size) } else { Err(Errno::NXIO) }
    }

    /// The first chunk from `from` on (1 at least) that has extents. In a file with large holes,
    /// most chunks have none.
    pub(super) fn next_chunk(&self, id: ObjectId, from: u64) -> Result<Option<u64>> {
        let mut found = None;
        self.store
            .records_of(id)?
            .each_attached(&Key::chunk(id, from), |key, _| {
                if let Some((b'X', of, n)) = parse_key(key)
                    && of == id
                {
                    found = n.try_into().ok().map(u64::from_be_bytes);
                }
                false
            })?;
        Ok(found)
    }
}

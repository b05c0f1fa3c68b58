//! The size of files and the room they take: truncation, reservation, holes.

use super::*;
use crate::views::Content;
use crate::views::Mappings;

impl<'s> Content<'s> {
    /// As `Cluster::truncate`, of what lies on this node. With the file locked, `decide` says the
    /// size.
    pub fn truncate_here(
        &self,
        index: u32,
        decide: impl FnOnce(&Live) -> Result<u64>,
    ) -> Result<()> {
        let critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        let size = decide(live)?;
        self.declared().check_change(live, Change::Size(size))?;
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
            self.mappings().clear_tail(index, old, size)?;
            self.quota().grows(live, old, size)?;
            live.size.store(size, Release);
        } else if size < old {
            self.shrink(index, size, old)?;
            self.quota().shrinks(live, old, size);
        }
        self.touch(live);
        let mapped = size < old && Mappings::is_mapped(live);
        drop(lock);
        drop(critical);
        if mapped {
            self.mappings().tell_shrunk(index, size);
        }
        Ok(())
    }

    fn shrink(&self, index: u32, size: u64, old: u64) -> Result<()> {
        let live = self.objects().live(index);
        // First of all: should we die, whoever repairs the entry goes by the size.
        live.size.store(size, Release);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        if Mappings::is_mapped(live) {
            // Pages stay as long as mappings show them.
            live.flags.fetch_or(flag::CUT, AcqRel);
            return self.zero_range(index, size, old.next_multiple_of(PAGE as u64));
        }
        if let Err(e) = self.free_behind(index, size, old) {
            // Nothing has been taken away.
            live.size.store(old, Release);
            return Err(e);
        }
        let page_end = size.next_multiple_of(PAGE as u64).min(old);
        self.zero_range(index, size, page_end)
    }

    /// Gives back the pages of a file that was `old` bytes long and is `size` now. Locked;
    /// nobody has them mapped.
    pub(crate) fn free_behind(&self, index: u32, size: u64, old: u64) -> Result<()> {
        let live = self.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let mut freed = Vec::new();
        let (last, keep) = (size / CHUNK, pages(size % CHUNK));
        let mut first = self.first_chunk(index);
        let chunks = old > CHUNK || live.pages.load(Relaxed) > first.pages() as u64;
        if last == 0 {
            first.truncate(keep, |e| freed.push(e));
        }
        // With a journal, nobody may note these extents as theirs before the file's record
        // is without them.
        let noted = !freed.is_empty() && self.durability().active_journal().is_some();
        if noted {
            self.durability().keep_promise(live, &first)?;
        }
        live.moved.fetch_add(1, AcqRel);
        let result = if chunks || noted {
            let shard = self.shard_of(id);
            let first_freed = freed.len();
            self.write(self.names().object_set(id), Need::Removal, |w| {
                freed.truncate(first_freed);
                if last > 0 && keep > 0 {
                    let key = Key::chunk(id, last);
                    if let Some(bytes) = w.get(shard, &key)? {
                        let mut map = ChunkMap::decode(bytes).ok_or(Errno::IO)?;
                        map.truncate(keep, |e| freed.push(e));
                        w.put(shard, &key, &map.encode())?;
                    }
                }
                self.names().remove_chunks(
                    w,
                    id,
                    (last + u64::from(keep > 0)).max(1),
                    &mut freed,
                )?;
                if self.durability().active_journal().is_some() {
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
            self.objects().set_extents(index, &first)?;
            let gone: usize = freed.iter().map(|e| e.pages()).sum();
            live.pages.fetch_sub(gone as u64, Relaxed);
        } else {
            freed.clear();
        }
        live.moved.fetch_add(1, AcqRel);
        self.free_extents(freed);
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
        let (shard, key) = (self.shard_of(id), Key::inode(id));
        let Some(record) = w.get(shard, &key)? else {
            return Ok(());
        };
        let (mut inode, _) = Inode::decode(record).ok_or(Errno::IO)?;
        inode.size = live.size.load(Relaxed);
        inode.pages = pages;
        inode.mtime = live.mtime.load(Relaxed);
        inode.ctime = inode.ctime.max(live.ctime.load(Relaxed));
        live.note_parts(&mut inode);
        inode.tail = kind;
        let bytes = inode.encode(tail_bytes);
        w.put(shard, &key, &bytes)
    }

    /// Gives back extents of an open file that its record may still name. Locked.
    pub(crate) fn free_unnoted(&self, index: u32, freed: Vec<Extent>) -> Result<()> {
        if !freed.is_empty() && self.durability().active_journal().is_some() {
            // Nobody else may note them as theirs before this file's record is without.
            self.objects()
                .live(index)
                .flags
                .fetch_or(flag::DIRTY, AcqRel);
            if let Err(e) = self.flush_locked(index, false)
                && e != Errno::NOENT
            {
                self.control.header().leaks.store(1, Release);
                return Err(e);
            }
        }
        self.free_extents(freed);
        Ok(())
    }

    /// As `Cluster::reserve_range`, of what lies on this node.
    pub fn reserve_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        self.local_copies().make_room(len as usize);
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        // It takes nothing away.
        self.declared()
            .check_change(lock.0, Change::Size(MAX_SIZE))?;
        self.note_change(index)?;
        self.promote(index)?;
        let live = lock.0;
        let size = live.size.load(Relaxed);
        if grow {
            self.quota().grows(live, size, end)?;
        }
        let grown = self.reserve_locked(index, (offset, end), grow);
        if grow && grown.is_err() {
            self.quota().shrinks(live, end, live.size.load(Relaxed));
        }
        grown
    }

    /// The pages of a range, and the size, of a locked file.
    fn reserve_locked(&self, index: u32, (offset, end): (u64, u64), grow: bool) -> Result<()> {
        for chunk in offset / CHUNK..end.div_ceil(CHUNK) {
            self.ensure(index, chunk, pages((end - chunk * CHUNK).min(CHUNK)))?;
        }
        let live = self.objects().live(index);
        let size = live.size.load(Relaxed);
        if grow && end > size {
            self.unseal(index, size, size)?;
            self.mappings().clear_tail(index, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// As `Cluster::punch`, of what lies on this node.
    pub fn punch_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        let size = live.size.load(Relaxed);
        let change = match offset < size {
            true => Change::From(Some(offset)),
            false => Change::Size(end),
        };
        self.declared().check_change(live, change)?;
        self.note_change(index)?;
        self.unseal(index, offset.min(size), end.min(size))?;
        self.promote(index)?;
        if offset < size {
            self.zero_range(index, offset, end.min(size))?;
        }
        if grow && end > size {
            self.mappings().clear_tail(index, size, end)?;
            self.quota().grows(live, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// As `Cluster::seek_data`, in what lies on this node.
    pub fn seek_here(&self, index: u32, offset: u64, hole: bool) -> Result<u64> {
        let live = self.objects().live(index);
        loop {
            let moved = live.moved.load(Acquire);
            if !moved.is_multiple_of(2) {
                let _critical = Critical::enter();
                drop(self.objects().lock_live(index)?);
                continue;
            }
            let found = self.seek_once(index, moved, offset, hole);
            fence(Acquire);
            if live.moved.load(Relaxed) == moved {
                return found;
            }
        }
    }

    /// As [`Store::seek_here`], if nothing moves meanwhile.
    fn seek_once(&self, index: u32, moved: u64, offset: u64, hole: bool) -> Result<u64> {
        let live = self.objects().live(index);
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
                let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
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
    /// most have none.
    pub(super) fn next_chunk(&self, id: ObjectId, from: u64) -> Result<Option<u64>> {
        let snapshot = self.snapshot(self.shard_of(id))?;
        let mut found = None;
        snapshot.scan(&Key::chunk(id, from), |key, _| {
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

//! The bytes of files: reading, writing, growing, shrinking, mapping.
//!
//! A file is cut into chunks of [`CHUNK`] bytes. The extents of a chunk cover it from its
//! start without gaps; those of chunk 0 lie in the live entry (and in the inode's record),
//! those of later chunks in records of their own. Extents never move while the file is
//! open; they are only added, or taken away by truncation.
//!
//! Writers of one file take turns (the live entry's lock). Readers take no lock: they
//! copy, and copy again if the `moved` counter says that extents were taken away
//! meanwhile. A write publishes in this order: bytes, "initialised" bits, size.

use crate::control::{Live, MAX_EXTENTS, live_flag as flag};
use crate::elsewhere::messages::kind;
use crate::lock::Acquired;
use crate::process::Critical;
use crate::record::{ChunkMap, INLINE_MAX, Inode, Key, parse_key, tail};
use crate::shards::{Need, Write};
use crate::{ObjectId, Store, now};
use forebay_media::atomics::{Ordering::*, fence};
use forebay_media::guard;
use forebay_media::{CELL_PAGES, Extent, PAGE};
use rustix::io::{Errno, Result};

/// Size of a chunk in bytes.
pub const CHUNK: u64 = (CELL_PAGES * PAGE) as u64;
/// Largest size of a file in bytes.
pub const MAX_SIZE: u64 = 1 << 55;

/// Pages needed for `bytes` bytes.
pub(crate) fn pages(bytes: u64) -> usize {
    bytes.div_ceil(PAGE as u64) as usize
}

impl Store {
    /// Size of an open file in bytes, as of the last finished write.
    ///
    /// # Errors
    /// EHOSTDOWN if its home can't be asked.
    pub fn size(&self, index: u32) -> Result<u64> {
        if let Some(file) = self.striped(index) {
            let inode = self.stat(file.id)?;
            return self.with_parts(file.id, inode).map(|inode| inode.size);
        }
        match self.live_away(index) {
            Some((home, id)) => self.stat_away(home, id).map(|record| record.0.size),
            None => Ok(self.live(index).size.load(Acquire)),
        }
    }

    /// Id of an open file's object.
    pub fn live_id(&self, index: u32) -> ObjectId {
        ObjectId(self.live(index).id.load(Relaxed))
    }

    // ---- extents ----

    pub(crate) fn first_chunk(&self, live: &Live) -> ChunkMap {
        let mut map = ChunkMap::default();
        for i in 0..(live.extents.load(Acquire) as usize).min(MAX_EXTENTS) {
            map.push(Extent(live.extent[i].load(Relaxed)));
        }
        map
    }

    /// The extents of a chunk, at least up to page `needed` if there are that many.
    fn chunk_map(&self, index: u32, chunk: u64, moved: u64, needed: usize) -> Result<ChunkMap> {
        let live = self.live(index);
        if chunk == 0 {
            return Ok(self.first_chunk(live));
        }
        let id = live.id.load(Relaxed);
        if let Some(map) = self.cache.get(id, index, chunk, moved)
            && map.pages() >= needed
        {
            return Ok(map);
        }
        let id = ObjectId(id);
        let snapshot = self.snapshot(self.shard_of(id))?;
        let map = match snapshot.get(&Key::chunk(id, chunk))? {
            Some(bytes) => ChunkMap::decode(bytes).ok_or(Errno::IO)?,
            None => return Ok(ChunkMap::default()),
        };
        self.cache.put(id.0, index, chunk, moved, &map);
        Ok(map)
    }

    /// Takes `least` to `want` pages from the first medium that has such a run.
    fn alloc(&self, want: usize, least: usize) -> Result<Extent> {
        match self.alloc_free(want, least) {
            // Pages in limbo are free as soon as the journal is on stable storage.
            Err(Errno::NOSPC) if self.end_limbo() == Ok(true) => self.alloc_free(want, least),
            result => result,
        }
    }

    fn alloc_free(&self, want: usize, least: usize) -> Result<Extent> {
        let mut error = Errno::NOSPC;
        for m in self.media() {
            match m.alloc(want) {
                Ok(e) if e.pages() >= least => return Ok(e),
                Ok(e) => m.free(e),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Makes the extents of `chunk` cover `needed` pages. The live entry is locked.
    pub(crate) fn ensure(&self, index: u32, chunk: u64, needed: usize) -> Result<ChunkMap> {
        let live = self.live(index);
        let moved = live.moved.load(Relaxed);
        let mut map = self.chunk_map(index, chunk, moved, needed)?;
        let have = map.pages();
        if have >= needed {
            return Ok(map);
        }
        // The first chunk doubles; a file that has reached its second takes whole chunks.
        let end = if chunk == 0 {
            needed.max(2 * have).min(CELL_PAGES)
        } else {
            CELL_PAGES
        };
        let mut added = Vec::new();
        let mut covered = have;
        while covered < end {
            // Few places for extents are left: small ones won't do then.
            let places = MAX_EXTENTS - map.extents().len();
            let least = needed
                .saturating_sub(covered)
                .div_ceil(places.max(1))
                .max(1);
            match self.alloc(end - covered, least) {
                Ok(e) if map.push(e) => {
                    covered += e.pages();
                    added.push(e);
                }
                Ok(e) => {
                    self.free_extents([e]);
                    break;
                }
                Err(_) if covered >= needed => break,
                Err(e) => {
                    self.free_extents(added);
                    return Err(e);
                }
            }
        }
        if covered < needed {
            self.free_extents(added);
            return Err(Errno::NOSPC);
        }
        if chunk == 0 {
            self.set_extents(live, &map);
            live.flags.fetch_or(flag::DIRTY, AcqRel);
        } else {
            let id = ObjectId(live.id.load(Relaxed));
            let shard = self.shard_of(id);
            let bytes = map.encode();
            let stored = self.write(self.object_set(id), Need::Bytes(bytes.len()), |w| {
                w.put(shard, &Key::chunk(id, chunk), &bytes)
            });
            if let Err(e) = stored {
                self.free_extents(added);
                return Err(e);
            }
            self.cache.put(id.0, index, chunk, moved, &map);
        }
        live.pages.fetch_add((covered - have) as u64, Relaxed);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        Ok(map)
    }

    /// Calls `each(extent, offset in it, offset in the range, length)` for the pieces of
    /// `len` bytes from byte `at` of a chunk on, as far as the map covers them. Returns
    /// how many bytes it covers.
    pub(crate) fn pieces(
        map: &ChunkMap,
        at: usize,
        len: usize,
        mut each: impl FnMut(Extent, usize, usize, usize) -> Result<()>,
    ) -> Result<usize> {
        let mut start = 0;
        let mut done = 0;
        for &e in map.extents() {
            let end = start + e.pages() * PAGE;
            if at + done < end && done < len {
                let offset = at + done - start;
                let n = (len - done).min(end - (at + done));
                each(e, offset, done, n)?;
                done += n;
            }
            start = end;
        }
        Ok(done)
    }

    // ---- reading ----

    /// Copies up to `len` bytes from `offset` on to `to`; fewer at the end of the file.
    ///
    /// # Errors
    /// EIO and the like.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read(&self, index: u32, offset: u64, to: *mut u8, len: usize) -> Result<usize> {
        if let Some(file) = self.striped(index) {
            // SAFETY: passed on.
            return unsafe { self.read_striped(&file, offset, to, len) };
        }
        if let Some(away) = self.live_away(index) {
            // SAFETY: passed on.
            return unsafe { self.read_away(away, offset, to, len) };
        }
        // SAFETY: passed on.
        unsafe { self.read_here(index, offset, to, len) }
    }

    /// As [`Store::read`], of what lies on this node.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn read_here(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let live = self.live(index);
        loop {
            let moved = live.moved.load(Acquire);
            if !moved.is_multiple_of(2) {
                let _critical = Critical::enter();
                drop(self.lock_live(index)?);
                continue;
            }
            let size = live.size.load(Acquire);
            if offset >= size || len == 0 {
                return Ok(0);
            }
            let n = len.min((size - offset) as usize);
            // SAFETY: n <= len.
            unsafe { self.copy_out(index, moved, offset, to, n)? };
            fence(Acquire);
            if live.moved.load(Relaxed) == moved {
                return Ok(n);
            }
        }
    }

    /// # Safety
    /// `to` must be writable for `len` bytes.
    unsafe fn copy_out(
        &self,
        index: u32,
        moved: u64,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let live = self.live(index);
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            let id = ObjectId(live.id.load(Relaxed));
            let snapshot = self.snapshot(self.shard_of(id))?;
            let record = snapshot.get(&Key::inode(id))?.unwrap_or(&[]);
            let data = match Inode::decode(record) {
                Some((inode, data)) if inode.tail == tail::DATA => data,
                _ => &[],
            };
            let data = data.get(offset as usize..).unwrap_or(&[]);
            let n = data.len().min(len);
            // SAFETY: n <= len; the rest up to len is the caller's too.
            let there = unsafe {
                guard::copy(data.as_ptr(), to, n) && (n == len || guard::zero(to.add(n), len - n))
            };
            return if there { Ok(()) } else { Err(Errno::FAULT) };
        }
        let mut done = 0;
        while done < len {
            let (chunk, at) = (
                (offset + done as u64) / CHUNK,
                ((offset + done as u64) % CHUNK) as usize,
            );
            let n = (len - done).min(CHUNK as usize - at);
            let map = self.chunk_map(index, chunk, moved, pages((at + n) as u64))?;
            // SAFETY: done + n <= len.
            let out = unsafe { to.add(done) };
            let covered = Self::pieces(&map, at, n, |e, from, offset, n| {
                let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                // SAFETY: pieces stay within n bytes of out, and within the extent.
                unsafe { medium.read(e, from, out.add(offset), n) }
            })?;
            // SAFETY: covered <= n.
            if covered < n && !unsafe { guard::zero(out.add(covered), n - covered) } {
                return Err(Errno::FAULT);
            }
            done += n;
        }
        Ok(())
    }

    // ---- writing ----

    /// Writes `len` bytes from `from` at `offset`, or at the end of the file. Returns the
    /// offset and how many bytes were written: fewer if space ran out on the way.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, EIO and the like.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub unsafe fn write_at(
        &self,
        index: u32,
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        if let Some(file) = self.striped(index) {
            // SAFETY: passed on.
            return unsafe { self.write_striped(&file, offset, from, len) };
        }
        if let Some(away) = self.live_away(index) {
            // SAFETY: passed on.
            return unsafe { self.write_away(away, offset, from, len) };
        }
        // SAFETY: passed on.
        unsafe { self.write_here(index, offset, (from, len), true, |_| Ok(())) }
    }

    /// As [`Store::write_at`], to what lies on this node. `check` may object, with the file locked. What lies behind
    /// the end is part of the file only if it `grows`.
    ///
    /// # Safety
    /// `bytes` must be readable.
    pub(crate) unsafe fn write_here(
        &self,
        index: u32,
        offset: Option<u64>,
        (from, len): (*const u8, usize),
        grows: bool,
        check: impl FnOnce(&Live) -> Result<()>,
    ) -> Result<(u64, usize)> {
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        check(live)?;
        let size = live.size.load(Relaxed);
        let offset = offset.unwrap_or(size);
        if len == 0 {
            return Ok((offset, 0));
        }
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| end > MAX_SIZE)
        {
            return Err(Errno::FBIG);
        }
        self.promote(index)?;
        if offset > size || !grows {
            self.clear_tail(index, size, offset.max(size))?;
        }
        let mut done = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let (chunk, at) = (
                (offset + done as u64) / CHUNK,
                ((offset + done as u64) % CHUNK) as usize,
            );
            let n = (len - done).min(CHUNK as usize - at);
            // SAFETY: done + n <= len.
            let input = unsafe { from.add(done) };
            result = self
                .ensure(index, chunk, pages((at + n) as u64))
                .and_then(|map| {
                    Self::pieces(&map, at, n, |e, to, offset, n| {
                        let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                        // SAFETY: pieces stay within n bytes of input, and within the extent.
                        unsafe { medium.write(e, to, input.add(offset), n) }
                    })
                    .map(|_| ())
                });
            if result.is_ok() {
                done += n;
            }
        }
        if done > 0 {
            let end = offset + done as u64;
            if end > size && grows {
                live.size.store(end, Release);
            }
            self.touch(live);
            return Ok((offset, done));
        }
        result.map(|()| (offset, 0))
    }

    /// Notes a change of the data through a mapping.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn touch_open(&self, index: u32) -> Result<()> {
        if self.live_away(index).is_some() {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        self.touch(lock.0);
        Ok(())
    }

    /// Notes a change of the data.
    fn touch(&self, live: &Live) {
        let t = now();
        live.mtime.store(t, Relaxed);
        live.ctime.store(t, Relaxed);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
    }

    /// Moves a small file's content from its record to an extent. Locked.
    pub(crate) fn promote(&self, index: u32) -> Result<()> {
        let live = self.live(index);
        if live.flags.load(Acquire) & flag::INLINE == 0 {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let data = match self.snapshot(self.shard_of(id))?.get(&Key::inode(id))? {
            Some(record) => {
                let data = Inode::decode(record).ok_or(Errno::IO)?.1;
                data[..data.len().min(live.size.load(Relaxed) as usize)].to_vec()
            }
            None => Vec::new(),
        };
        let mut map = ChunkMap::default();
        if !data.is_empty() {
            let e = self.alloc(1, 1)?;
            // SAFETY: a small file fits a page, and data is a slice.
            let written =
                unsafe { self.media()[e.medium()].write(e, 0, data.as_ptr(), data.len()) };
            if let Err(error) = written {
                self.free_extents([e]);
                return Err(error);
            }
            map.push(e);
            live.pages.store(1, Relaxed);
        }
        live.moved.fetch_add(1, AcqRel);
        self.set_extents(live, &map);
        live.flags.fetch_and(!flag::INLINE, AcqRel);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        live.moved.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Makes `from..to` read as zero without changing what is allocated. Locked.
    pub(crate) fn zero_range(&self, index: u32, from: u64, to: u64) -> Result<()> {
        let live = self.live(index);
        let mapped = Self::is_mapped(live);
        let mut at = from;
        while at < to {
            let (chunk, offset) = (at / CHUNK, (at % CHUNK) as usize);
            let n = ((to - at) as usize).min(CHUNK as usize - offset);
            let map = self.chunk_map(
                index,
                chunk,
                live.moved.load(Relaxed),
                pages((offset + n) as u64),
            )?;
            Self::pieces(&map, offset, n, |e, start, _, n| {
                let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                if !mapped {
                    return medium.zero(e, start, n);
                }
                // Others see the page itself: the bytes must change, not just the bits.
                let zeros = [0u8; PAGE];
                let mut done = 0;
                while done < n {
                    let k = (n - done).min(PAGE - (start + done) % PAGE);
                    // What isn't initialised isn't mapped, and zero already.
                    if !medium.is_init(e, (start + done) / PAGE) {
                        done += k;
                        continue;
                    }
                    // SAFETY: zeros has k bytes; the range is inside the extent.
                    unsafe { medium.write(e, start + done, zeros.as_ptr(), k)? };
                    done += k;
                }
                Ok(())
            })?;
            at += n as u64;
        }
        Ok(())
    }

    // ---- size and room ----

    /// Sets the size of a file.
    ///
    /// # Errors
    /// EFBIG; EIO and the like.
    pub fn truncate(&self, index: u32, size: u64) -> Result<()> {
        if size > MAX_SIZE {
            return Err(Errno::FBIG);
        }
        if let Some(file) = self.striped(index) {
            return self.truncate_striped(&file, size);
        }
        if let Some((home, id)) = self.live_away(index) {
            return self.ask(home, kind::TRUNCATE, &(id, size));
        }
        self.truncate_here(index, |_| Ok(size))
    }

    /// As [`Store::truncate`], of what lies on this node. With the file locked, `decide` says the size.
    pub(crate) fn truncate_here(
        &self,
        index: u32,
        decide: impl FnOnce(&Live) -> Result<u64>,
    ) -> Result<()> {
        let critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        let size = decide(live)?;
        let old = live.size.load(Relaxed);
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
            self.clear_tail(index, old, size)?;
            live.size.store(size, Release);
        } else if size < old {
            self.shrink(index, size, old)?;
        }
        self.touch(live);
        let mapped = size < old && Self::is_mapped(live);
        drop(lock);
        drop(critical);
        if mapped {
            self.tell_shrunk(index, size);
        }
        Ok(())
    }

    fn shrink(&self, index: u32, size: u64, old: u64) -> Result<()> {
        let live = self.live(index);
        // First of all: should we die, whoever repairs the entry goes by the size.
        live.size.store(size, Release);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        if Self::is_mapped(live) {
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
        let live = self.live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let mut freed = Vec::new();
        let (last, keep) = (size / CHUNK, pages(size % CHUNK));
        let mut first = self.first_chunk(live);
        let chunks = old > CHUNK || live.pages.load(Relaxed) > first.pages() as u64;
        if last == 0 {
            first.truncate(keep, |e| freed.push(e));
        }
        // With a journal, nobody may note these extents as theirs before the file's record
        // is without them.
        let noted = !freed.is_empty() && self.active_journal().is_some();
        if noted {
            self.keep_promise(live, &first)?;
        }
        live.moved.fetch_add(1, AcqRel);
        let result = if chunks || noted {
            let shard = self.shard_of(id);
            let first_freed = freed.len();
            self.write(self.object_set(id), Need::Removal, |w| {
                freed.truncate(first_freed);
                if last > 0 && keep > 0 {
                    let key = Key::chunk(id, last);
                    if let Some(bytes) = w.get(shard, &key)? {
                        let mut map = ChunkMap::decode(bytes).ok_or(Errno::IO)?;
                        map.truncate(keep, |e| freed.push(e));
                        w.put(shard, &key, &map.encode())?;
                    }
                }
                self.remove_chunks(w, id, (last + u64::from(keep > 0)).max(1), &mut freed)?;
                if self.active_journal().is_some() {
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
            self.set_extents(live, &first);
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
    fn put_live(
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
        Store::note_parts(live, &mut inode);
        inode.tail = kind;
        let bytes = inode.encode(tail_bytes);
        w.put(shard, &key, &bytes)
    }

    /// Gives back extents of an open file that its record may still name. Locked.
    pub(crate) fn free_unnoted(&self, index: u32, freed: Vec<Extent>) -> Result<()> {
        if !freed.is_empty() && self.active_journal().is_some() {
            // Nobody else may note them as theirs before this file's record is without.
            self.live(index).flags.fetch_or(flag::DIRTY, AcqRel);
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

    /// Reserves room for `offset..offset + len`, so that writing there can't fail for
    /// lack of space; with `grow`, the file becomes at least that long.
    ///
    /// # Errors
    /// ENOSPC, EFBIG.
    pub fn reserve_range(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        if let Some(file) = self.striped(index) {
            return self.room_striped(&file, (offset, len), grow, false);
        }
        if let Some((home, id)) = self.live_away(index) {
            return self.ask(home, kind::RESERVE, &(id, offset, len, grow));
        }
        self.reserve_here(index, offset, len, grow)
    }

    /// As [`Store::reserve_range`], of what lies on this node.
    pub(crate) fn reserve_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        self.promote(index)?;
        for chunk in offset / CHUNK..end.div_ceil(CHUNK) {
            self.ensure(index, chunk, pages((end - chunk * CHUNK).min(CHUNK)))?;
        }
        let live = lock.0;
        let size = live.size.load(Relaxed);
        if grow && end > size {
            self.clear_tail(index, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// Makes `offset..offset + len` read as zero; with `grow`, the file becomes at least
    /// that long.
    ///
    /// # Errors
    /// EFBIG, EIO.
    pub fn punch(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        if let Some(file) = self.striped(index) {
            return self.room_striped(&file, (offset, len), grow, true);
        }
        if let Some((home, id)) = self.live_away(index) {
            return self.ask(home, kind::PUNCH, &(id, offset, len, grow));
        }
        self.punch_here(index, offset, len, grow)
    }

    /// As [`Store::punch`], of what lies on this node.
    pub(crate) fn punch_here(&self, index: u32, offset: u64, len: u64, grow: bool) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|&e| e <= MAX_SIZE)
            .ok_or(Errno::FBIG)?;
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        self.promote(index)?;
        let live = lock.0;
        let size = live.size.load(Relaxed);
        if offset < size {
            self.zero_range(index, offset, end.min(size))?;
        }
        if grow && end > size {
            self.clear_tail(index, size, end)?;
            live.size.store(end, Release);
        }
        self.touch(live);
        Ok(())
    }

    /// The first offset from `offset` on that holds data (or, with `hole`, that doesn't);
    /// the end of the file counts as a hole. Granularity: a page.
    ///
    /// # Errors
    /// ENXIO if there is none before the end of the file.
    pub fn seek_data(&self, index: u32, offset: u64, hole: bool) -> Result<u64> {
        if let Some(file) = self.striped(index) {
            return self.seek_striped(&file, offset, hole);
        }
        if let Some((home, id)) = self.live_away(index) {
            return self.ask(home, kind::SEEK, &(id, offset, hole));
        }
        self.seek_here(index, offset, hole)
    }

    /// As [`Store::seek_data`], in what lies on this node.
    pub(crate) fn seek_here(&self, index: u32, offset: u64, hole: bool) -> Result<u64> {
        let live = self.live(index);
        let size = live.size.load(Acquire);
        if offset >= size {
            return Err(Errno::NXIO);
        }
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            return Ok(if hole { size } else { offset });
        }
        let mut at = offset;
        while at < size {
            let chunk = at / CHUNK;
            let map = self.chunk_map(index, chunk, live.moved.load(Acquire), CELL_PAGES)?;
            if map.extents().is_empty() && !hole {
                let next = self.next_chunk(ObjectId(live.id.load(Relaxed)), chunk + 1)?;
                at = next.ok_or(Errno::NXIO)? * CHUNK;
                continue;
            }
            let page = (at % CHUNK) as usize / PAGE;
            let mut start = 0;
            let mut data = false;
            for &e in map.extents() {
                if page >= start && page < start + e.pages() {
                    let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                    data = medium.is_init(e, page - start);
                }
                start += e.pages();
            }
            if data != hole {
                return Ok(at);
            }
            at = (at / PAGE as u64 + 1) * PAGE as u64;
        }
        if hole { Ok(size) } else { Err(Errno::NXIO) }
    }

    /// The first chunk from `from` on (1 at least) that has extents. In a file with large holes, most
    /// have none.
    fn next_chunk(&self, id: ObjectId, from: u64) -> Result<Option<u64>> {
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

    // ---- writing back ----

    /// Writes what the live entry knows to the record. `last`: nobody uses it any more, so
    /// a small file moves into its record and unused room at the end is given back.
    ///
    /// # Errors
    /// ENOSPC, EIO; the entry stays dirty.
    pub fn flush(&self, index: u32, last: bool) -> Result<()> {
        if self.live_away(index).is_some() {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        // Somebody may have opened it since, and mapped it even.
        let last = last && live.refs.load(Acquire) <= 1;
        if last && live.flags.load(Acquire) & flag::LOADED != 0 {
            self.settle_maps(index)?;
        }
        self.flush_locked(index, last)
    }

    /// As [`Store::flush`], locked already.
    pub(crate) fn flush_locked(&self, index: u32, last: bool) -> Result<()> {
        let live = self.live(index);
        if live.flags.load(Acquire) & (flag::DIRTY | flag::LOADED) != flag::DIRTY | flag::LOADED {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let shard = self.shard_of(id);
        let size = live.size.load(Relaxed);
        let inline = live.flags.load(Relaxed) & flag::INLINE != 0;
        let mut map = self.first_chunk(live);
        let mut freed = Vec::new();
        let mut content = None;
        let mut shrunk = None;
        if last && !inline {
            if size <= INLINE_MAX as u64 && live.pages.load(Relaxed) == map.pages() as u64 {
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
            self.keep_promise(live, &map)?;
        }
        let written = self.write(self.object_set(id), Need::Bytes(4096), |w| {
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
            Store::note_parts(live, &mut inode);
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
            self.set_extents(live, &map);
            live.pages.store(pages, Relaxed);
            live.moved.fetch_add(1, AcqRel);
            self.free_extents(freed);
        }
        live.flags.fetch_and(!flag::DIRTY, AcqRel);
        Ok(())
    }

    /// Removes an object without a name, whose last user leaves.
    pub(crate) fn remove_object(&self, index: u32) -> Result<()> {
        let lock = self.lock_live(index)?;
        let live = lock.0;
        let id = ObjectId(live.id.load(Relaxed));
        // The extents of chunk 0 are those of the live entry: the record may name some that
        // were given back since.
        let loaded = live.flags.load(Acquire) & flag::LOADED != 0;
        let map = if loaded {
            self.first_chunk(live)
        } else {
            ChunkMap::default()
        };
        let mut freed = Vec::new();
        let shard = self.shard_of(id);
        let removed = self.write(self.object_set(id), Need::Removal, |w| {
            let record = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
            if record.is_some_and(|(i, _)| i.nlink > 0) {
                return Ok(false);
            }
            self.remove_records(w, id, !loaded, &mut freed)?;
            if live.flags.load(Acquire) & flag::PARTS != 0 && !id.is_part() {
                self.leave_parts(w, id)?;
            }
            w.del(shard, &Key::orphan(id)).map(|_| true)
        })?;
        if !removed {
            // The removal that had marked it never came to be.
            live.flags.fetch_and(!(flag::UNLINKED | flag::GONE), AcqRel);
            return Ok(());
        }
        freed.extend_from_slice(map.extents());
        self.set_extents(live, &ChunkMap::default());
        live.flags.fetch_and(
            !(flag::UNLINKED | flag::DIRTY | flag::MAPPED | flag::CUT),
            AcqRel,
        );
        self.free_extents(freed);
        Ok(())
    }

    /// Whether the lock of an open file was left by a dead process; for tests.
    pub fn live_lock_state(&self, index: u32) -> Result<bool> {
        let _critical = Critical::enter();
        let live = self.live(index);
        let state = live.lock.acquire(&self.control, self.me()?)?;
        live.lock.release();
        Ok(state == Acquired::Abandoned)
    }
}

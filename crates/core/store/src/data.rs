//! The bytes of files: reading, writing, growing, shrinking, mapping.
//!
//! A file is cut into chunks of [`CHUNK`] bytes. The extents of a chunk cover it from its start
//! without gaps. The extents of chunk 0 lie in the live entry (and in the inode's record), those of
//! later chunks in records of their own. Extents are added, removed by truncation, and moved from
//! memory to `files` media (`drain.rs`, `on_files.rs`). Extents are never moved while the file is
//! mapped.
//!
//! Writers of one file take turns (the live entry's lock). Readers take no lock: they copy, and
//! copy again if the `moved` counter says that extents were removed, or moved to another medium,
//! meanwhile. A write publishes in this order: bytes, "initialised" bits, size.

mod back;
mod copy;
mod drain;
mod noted;
mod on_files;
mod once;
mod room;
mod sums;

pub use copy::overlap;
pub use drain::Drained;
pub use on_files::word_of_part;
pub use sums::is_summed;

pub use crate::chunks::{CHUNK, MAX_SIZE};

use crate::chunks::pages;
use crate::control_region::{Live, MAX_EXTENTS, live_flag as flag};
use crate::declared::Change;
use crate::errors::CHANGED;
use crate::process::Critical;
use crate::record::{ChunkMap, INLINE_MAX, Key, parse_key, tail};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::shards::Write;
use crate::views::Content;
use crate::views::Mappings;
use crate::{ObjectId, now};
use forebay_media::{CELL_PAGES, Extent, Medium, MediumKind, PAGE};
use forebay_runtime::atomics::{Ordering::*, fence};
use forebay_runtime::guard;
use rustix::io::{Errno, Result};

pub(crate) fn is_memory(m: &Medium) -> bool {
    matches!(m.kind(), MediumKind::Memory)
}

impl<'s> Content<'s> {
    /// Id of an open file's object.
    pub fn live_id(&self, index: u32) -> ObjectId {
        ObjectId(self.store.objects().live(index).id.load(Relaxed))
    }

    // ---- extents ----

    pub(crate) fn first_chunk(&self, index: u32) -> ChunkMap {
        let live = self.store.objects().live(index);
        let count = (live.extents.load(Acquire) as usize).min(MAX_EXTENTS);
        let places = self.store.control.extents(index, count);
        ChunkMap::of(places.map(|place| Extent(place.load(Relaxed))))
    }

    /// The extents of a chunk, at least up to page `needed` if there are that many.
    pub(crate) fn chunk_map(
        &self,
        index: u32,
        chunk: u64,
        moved: u64,
        needed: usize,
    ) -> Result<ChunkMap> {
        let live = self.store.objects().live(index);
        if chunk == 0 {
            return Ok(self.first_chunk(index));
        }
        let id = live.id.load(Relaxed);
        if let Some(map) = self.store.cache.get(id, index, chunk, moved)
            && map.pages() >= needed
        {
            return Ok(map);
        }
        let id = ObjectId(id);
        let records = self.store.records_of(id)?;
        let map = match records.attached(&Key::chunk(id, chunk))? {
            Some(bytes) => ChunkMap::decode(bytes).ok_or(Errno::IO)?,
            None => return Ok(ChunkMap::default()),
        };
        self.store.cache.put(id.0, index, chunk, moved, &map);
        Ok(map)
    }

    /// Takes `least` to `want` pages for an open object, from the first medium that has such a run
    /// and on which the object may lie.
    fn alloc(&self, live: &Live, want: usize, least: usize) -> Result<Extent> {
        let is_copy = ObjectId(live.id.load(Relaxed)).is_copy();
        match self.alloc_free(live, want, least) {
            // Pages in limbo are free as soon as the journal is on stable storage.
            Err(Errno::NOSPC) if !is_copy && self.store.durability().end_limbo() == Ok(true) => {
                self.alloc_free(live, want, least)
            }
            result => result,
        }
    }

    fn alloc_free(&self, live: &Live, want: usize, least: usize) -> Result<Extent> {
        let is_copy = ObjectId(live.id.load(Relaxed)).is_copy();
        let on_files = self.keeps_on_files(live.controls.load(Relaxed));
        let mut error = Errno::NOSPC;
        for (i, m) in self.store.media().iter().enumerate() {
            if is_copy && !self.store.local_copies().has_room_for_copies(i)
                || on_files && is_memory(m)
            {
                continue;
            }
            match m.alloc(want) {
                Ok(e) if e.pages() >= least => return Ok(e),
                Ok(e) => m.free(e),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Allocates pages so that the extents of `chunk` cover all pages before `needed`. `from`: the
    /// first page that the caller is about to write. The live entry is locked.
    pub(crate) fn ensure(
        &self,
        index: u32,
        chunk: u64,
        (from, needed): (usize, usize),
    ) -> Result<ChunkMap> {
        let live = self.store.objects().live(index);
        assert!(
            needed <= CELL_PAGES,
            "a chunk has {CELL_PAGES} pages: {needed}"
        );
        debug_assert!(!live.lock.is_free(), "a file that gets extents is locked");
        let id = ObjectId(live.id.load(Relaxed));
        let moved = live.moved.load(Relaxed);
        debug_assert!(
            moved.is_multiple_of(2),
            "no extents move while others are added"
        );
        let mut map = self.chunk_map(index, chunk, moved, needed)?;
        let have = map.pages();
        if have >= needed {
            return Ok(map);
        }
        // Pages at and beyond the limit were given to another node, and can't be allocated here.
        let limit = self
            .store
            .parts()
            .home_limit(live, chunk)?
            .unwrap_or(CELL_PAGES);
        if needed > limit {
            return Err(CHANGED);
        }
        // If a file grows, its first chunk doubles, later chunks are allocated whole. After a hole,
        // writes are usually few: only the pages that they need are allocated.
        let end = match chunk {
            _ if from > have => needed,
            0 => needed.max(2 * have).min(limit),
            _ => limit,
        };
        let mut added = Vec::new();
        let mut covered = have;
        while covered < end {
            // The number of extents of a chunk is limited: the fewer it may still get, the larger
            // each must be.
            let places = MAX_EXTENTS - map.extents().len();
            let least = needed
                .saturating_sub(covered)
                .div_ceil(places.max(1))
                .max(1);
            match self.alloc(live, end - covered, least) {
                Ok(e) if map.push(e) => {
                    covered += e.pages();
                    added.push(e);
                }
                Ok(e) => {
                    self.store.free_extents([e]);
                    break;
                }
                Err(_) if covered >= needed => break,
                Err(e) => {
                    self.store.free_extents(added);
                    return Err(e);
                }
            }
        }
        if covered < needed {
            self.store.free_extents(added);
            return Err(Errno::NOSPC);
        }
        debug_assert_eq!(map.pages(), covered, "a map has the pages of its extents");
        if chunk == 0 {
            if let Err(e) = self.store.objects().set_extents(index, &map) {
                self.store.free_extents(added);
                return Err(e);
            }
            live.flags.fetch_or(flag::DIRTY, AcqRel);
        } else {
            let bytes = map.encode();
            let set = self.store.names().object_set(id);
            let stored = self.store.transact(set, Need::Bytes(bytes.len()), |w| {
                w.attach(id, &Key::chunk(id, chunk), &bytes)
            });
            if let Err(e) = stored {
                self.store.free_extents(added);
                return Err(e);
            }
            self.store.cache.put(id.0, index, chunk, moved, &map);
        }
        live.pages.fetch_add((covered - have) as u64, Relaxed);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        if id.is_copy() {
            self.store.local_copies().count_copied(&added);
        }
        Ok(map)
    }

    /// Calls `each` for the pieces of `len` bytes from byte `at` of a chunk on, as far as the map
    /// covers them: extent, offset in it, offset in the range, length. Returns the number of bytes
    /// covered.
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
        debug_assert!(done <= len, "{done} bytes are in a range of {len}");
        Ok(done)
    }

    // ---- reading ----

    /// As `FileData::read`, for bytes on this node.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read_here(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        forebay_trace::span!(
            STORE_READ_ENTER,
            STORE_READ_EXIT,
            [self.live_id(index).0, offset, len],
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            unsafe { self.read_extents(index, offset, to, len) }
        )
    }

    /// # Safety
    /// `to` must be writable for `len` bytes.
    #[inline(always)]
    unsafe fn read_extents(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let live = self.store.objects().live(index);
        if is_summed(live.controls.load(Relaxed)) {
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            return unsafe { self.read_summed(index, offset, to, len) };
        }
        loop {
            let moved = live.moved.load(Acquire);
            if !moved.is_multiple_of(2) {
                let _critical = Critical::enter();
                drop(self.store.objects().lock_live(index)?);
                continue;
            }
            let size = live.size.load(Acquire);
            if offset >= size || len == 0 {
                return Ok(0);
            }
            let n = len.min((size - offset) as usize);
            // SAFETY: n <= len, and the caller promises that `to` is writable for `len` bytes.
            let copied = unsafe { self.copy_out(index, moved, offset, to, n) };
            fence(Acquire);
            // If extents were removed or moved meanwhile, an error of the copy means nothing: their
            // pages may have been freed. The copy is repeated.
            if live.moved.load(Relaxed) == moved {
                copied?;
                self.passed(live, index, offset, n, size);
                return Ok(n);
            }
        }
    }

    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(crate) unsafe fn copy_out(
        &self,
        index: u32,
        moved: u64,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let live = self.store.objects().live(index);
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            let id = ObjectId(live.id.load(Relaxed));
            let records = self.store.records_of(id)?;
            let data = match records.inode(id)? {
                Some((inode, data)) if inode.tail == tail::DATA => data,
                _ => &[],
            };
            let data = data.get(offset as usize..).unwrap_or(&[]);
            let n = data.len().min(len);
            // SAFETY: n <= data.len(), n <= len, and the caller promises that `to` is writable for
            // `len` bytes.
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
            // SAFETY: done + n <= len, so the address lies in the caller's buffer.
            let out = unsafe { to.add(done) };
            let covered = Self::pieces(&map, at, n, |e, from, offset, n| {
                let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
                // SAFETY: the pieces lie in the `n` bytes from `out` on, and in the extent.
                unsafe { medium.read(e, from, out.add(offset), n) }
            })?;
            // SAFETY: covered <= n, so the zeros stay in the caller's buffer.
            if covered < n && !unsafe { guard::zero(out.add(covered), n - covered) } {
                return Err(Errno::FAULT);
            }
            done += n;
        }
        Ok(())
    }

    // ---- writing ----

    /// As `FileData::write_at`, for bytes on this node. `check` is called with the file locked, and
    /// may refuse the write. Bytes beyond the end become part of the file only with `grows`.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub unsafe fn write_here(
        &self,
        index: u32,
        offset: Option<u64>,
        (from, len): (*const u8, usize),
        grows: bool,
        check: impl FnOnce(&Live) -> Result<()>,
    ) -> Result<(u64, usize)> {
        forebay_trace::span!(
            STORE_WRITE_ENTER,
            STORE_WRITE_EXIT,
            [self.live_id(index).0, offset.unwrap_or(u64::MAX), len],
            // SAFETY: the caller promises that `from` is readable for `len` bytes.
            unsafe { self.write_extents(index, offset, (from, len), grows, check) }
        )
    }

    /// # Safety
    /// `from` must be readable for `len` bytes.
    #[inline(always)]
    unsafe fn write_extents(
        &self,
        index: u32,
        offset: Option<u64>,
        (from, len): (*const u8, usize),
        grows: bool,
        check: impl FnOnce(&Live) -> Result<()>,
    ) -> Result<(u64, usize)> {
        self.store.local_copies().make_room(len);
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        check(lock.0)?;
        self.change_locked(index, offset, len, grows, |at, done, n| {
            // SAFETY: done + n <= len, so the address lies in the caller's buffer.
            let input = unsafe { from.add(done) };
            self.fill(
                index,
                (at, n),
                at + n as u64,
                |medium, (e, to), before, n| {
                    // SAFETY: the range lies in the `n` bytes from `input` on, and in the extent.
                    unsafe { medium.write(e, to, input.add(before), n) }
                },
            )
        })
    }

    /// Ensures that a chunk has pages up to `end`. Then calls `put` to write the share of each
    /// extent in the `len` bytes at `at`: with the extent and the offset in it, the number of bytes
    /// before this share, and the share's length. Locked.
    #[inline]
    fn fill(
        &self,
        index: u32,
        (at, len): (u64, usize),
        end: u64,
        mut put: impl FnMut(&Medium, (Extent, usize), usize, usize) -> Result<()>,
    ) -> Result<()> {
        let (chunk, within) = (at / CHUNK, (at % CHUNK) as usize);
        let needed = pages(end - chunk * CHUNK);
        let map = self.ensure(index, chunk, (within / PAGE, needed))?;
        Self::pieces(&map, within, len, |e, to, before, n| {
            let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
            put(medium, (e, to), before, n)
        })
        .map(|_| ())
    }

    /// Changes `len` bytes of a locked file from `offset` on, or at its end. Returns the offset,
    /// and how many bytes were changed. Calls `put` for each piece with the piece's offset in the
    /// file, the number of bytes before it, and its length. Each piece lies in one chunk. Bytes
    /// beyond the end become part of the file only with `grows`.
    #[inline]
    fn change_locked(
        &self,
        index: u32,
        offset: Option<u64>,
        len: usize,
        grows: bool,
        mut put: impl FnMut(u64, usize, usize) -> Result<()>,
    ) -> Result<(u64, usize)> {
        let live = self.store.objects().live(index);
        debug_assert!(!live.lock.is_free(), "a file that is changed is locked");
        self.store
            .declared()
            .check_change(live, Change::From(offset))?;
        let size = live.size.load(Relaxed);
        let at_end = offset.is_none();
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
        self.note_change(index)?;
        self.unseal(index, offset.min(size), offset + len as u64)?;
        self.promote(index)?;
        if offset > size || !grows {
            self.store
                .mappings()
                .clear_tail(index, size, offset.max(size))?;
        }
        // Charges the quota for the largest size that the file can get; the charge for what isn't
        // written is taken back below.
        let most = if grows { offset + len as u64 } else { 0 };
        self.store.quota().grows(live, size, most)?;
        let kept = |end: u64| self.store.quota().shrinks(live, most, end.max(size));
        let mut done = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let at = offset + done as u64;
            let n = (len - done).min((CHUNK - at % CHUNK) as usize);
            result = put(at, done, n);
            if result.is_ok() {
                done += n;
            }
        }
        if done < len && at_end && self.store.remote.is_some() && result == Err(Errno::NOSPC) {
            // An append is done as a whole, here or on other nodes. Bytes that were written beyond
            // the end aren't part of the file: the next process that locks the entry removes them.
            live.flags.fetch_or(flag::TORN, AcqRel);
            kept(0);
            return Err(Errno::NOSPC);
        }
        debug_assert!(done <= len, "{done} of {len} bytes are written");
        if done > 0 {
            let end = offset + done as u64;
            if end > size && grows {
                live.size.store(end, Release);
            }
            kept(end);
            self.touch(live);
            return Ok((offset, done));
        }
        kept(0);
        result.map(|()| (offset, 0))
    }

    /// Sets the times of a file of this node to now, because its data have changed.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub(crate) fn touch_here(&self, index: u32) -> Result<()> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        self.touch(lock.0);
        Ok(())
    }

    /// Sets the times to now, because the data have changed, and marks the entry as dirty. Locked.
    fn touch(&self, live: &Live) {
        debug_assert!(!live.lock.is_free(), "a file whose times change is locked");
        if live.flags.load(Relaxed) & flag::RELEASED == 0 {
            let t = now();
            live.mtime.store(t, Relaxed);
            live.ctime.store(t, Relaxed);
        }
        live.flags.fetch_or(flag::DIRTY, AcqRel);
    }

    /// Moves a small file's content from its record to an extent. Locked.
    pub(crate) fn promote(&self, index: u32) -> Result<()> {
        let live = self.store.objects().live(index);
        debug_assert!(
            !live.lock.is_free(),
            "a file that leaves its record is locked"
        );
        if live.flags.load(Acquire) & flag::INLINE == 0 {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let data = match self.store.records_of(id)?.inode(id)? {
            Some((_, data)) => data[..data.len().min(live.size.load(Relaxed) as usize)].to_vec(),
            None => Vec::new(),
        };
        let mut map = ChunkMap::default();
        if !data.is_empty() {
            let e = self.alloc(live, 1, 1)?;
            // SAFETY: `data` is a slice, and fits into the page that was allocated.
            let written =
                unsafe { self.store.media()[e.medium()].write(e, 0, data.as_ptr(), data.len()) };
            if let Err(error) = written {
                self.store.free_extents([e]);
                return Err(error);
            }
            map.push(e);
            live.pages.store(1, Relaxed);
        }
        let moved = live.moved.fetch_add(1, AcqRel);
        assert!(
            moved.is_multiple_of(2),
            "a file leaves its record by one thread"
        );
        self.store.objects().set_extents(index, &map)?;
        live.flags.fetch_and(!flag::INLINE, AcqRel);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        live.moved.fetch_add(1, AcqRel);
        Ok(())
    }

    /// Makes `from..to` read as zero without changing the allocation. Locked.
    pub(crate) fn zero_range(&self, index: u32, from: u64, to: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        debug_assert!(!live.lock.is_free(), "a file that is cleared is locked");
        let mapped = Mappings::is_mapped(live);
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
                let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
                if !mapped {
                    return medium.zero(e, start, n);
                }
                // Other processes map the page itself: the bytes must change, not just the
                // "initialised" bits.
                let zeros = [0u8; PAGE];
                let mut done = 0;
                while done < n {
                    let k = (n - done).min(PAGE - (start + done) % PAGE);
                    // Pages that aren't initialised aren't mapped, and are zero already.
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

    /// Sets the times of an open file of this node to now, because its data were changed through a
    /// mapping.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn touch_open(&self, index: u32) -> Result<()> {
        if self.store.names().is_live_remote(index) {
            return Ok(());
        }
        self.touch_here(index)
    }
}

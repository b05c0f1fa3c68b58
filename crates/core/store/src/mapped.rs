//! Mapped files: which pages their mappings show, and when a page may be freed.
//!
//! A mapping consists of the segment's own pages, so a page that a process still maps must not be
//! given to another file. Once a file has been mapped, truncation doesn't free the pages beyond the
//! new end, but zeroes them, and they stay the file's. The truncating process notifies the
//! processes that map these pages, and these processes remove the pages from their mappings. The
//! pages are freed by the last user of the file's live entry ([`Mappings::settle_maps`]). Each
//! mapping counts as a user, from before pages are handed out until after the kernel has unmapped
//! them.

use crate::chunks::{CHUNK, MAX_SIZE, pages};
use crate::control_region::{
    Live, MAX_PROCESSES, MapRef, ProcessArea, live_flag as flag, map_flag, slot_state as state,
};
use crate::declared::Party;
use crate::map_table::{MapTable, chain_of};
use crate::process::{Critical, is_alive, pid_of, state_of};
use crate::record::{ChunkMap, Key, parse_key};
use crate::records::{ReadRecords, Records};
use crate::views::Content;
use crate::views::Mappings;
use crate::{ObjectId, Store};
use forebay_media::PAGE;
use forebay_runtime::atomics::{AtomicU32, Ordering::*, futex};
use rustix::io::{Errno, Result};
use std::sync::OnceLock;
use std::time::Duration;

/// A piece of a file as it lies in a medium, for mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPiece {
    /// Byte offset in the file.
    pub at: u64,
    pub medium: usize,
    /// Byte offset in the medium's segment.
    pub segment_offset: u64,
    pub len: usize,
}

/// The signal that tells a process to check its mappings: ignored by a process that has no handler
/// for it. The signal is sent with [`NOTICE_VALUE`].
pub const NOTICE: i32 = libc::SIGURG;
/// `si_value` of a notice.
pub const NOTICE_VALUE: usize = 0x666f_7265_6261_7901;
/// Maximum number of times that a truncation checks, at `NOTICE_POLL_INTERVAL`, whether another
/// process has taken pages out of its mappings.
const MAX_NOTICE_POLLS: u32 = 50;
const NOTICE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The function that removes, from this process's mappings, the pages that files have lost.
static CATCH_UP: OnceLock<fn(&Store)> = OnceLock::new();

/// Sets the function that this process calls when files that it may have mapped have become
/// shorter.
pub fn on_shrink(catch_up: fn(&Store)) {
    let _ = CATCH_UP.set(catch_up);
}

impl<'s> Mappings<'s> {
    // ---- the table of mappings ----

    /// Takes a place in this process's table of mappings. The place keeps the file of `open` open
    /// and mapped until [`Mappings::map_release`]. To be called by one thread at a time.
    ///
    /// # Errors
    /// ENOMEM if the table is full; ENOSPC if there is no memory for it; EBADF if `open` has ended;
    /// ENODEV if it isn't of a regular file; those of [`Mappings::begin_storing`].
    pub fn map_claim(self, open: u32, flags: u32) -> Result<&'s MapRef> {
        let _section = self.store.section()?;
        let table = self.map_table()?;
        let me = self.store.process_slot()?;
        let end = &self.store.control.process(me as usize).maps_end;
        let next = end.load(Relaxed) as usize + 1;
        self.store
            .control
            .reserve_maps(me, self.store.area()?, next)?;
        // Chains and marks have memory by now, too.
        let table = MapTable {
            has_memory: true,
            ..table
        };
        let place = table.take(end).ok_or(Errno::NOMEM)?;
        let live = self
            .retained_live(open)
            .inspect_err(|_| table.give_back(place))?;
        place.len.store(0, Relaxed);
        place.cut.store(0, Relaxed);
        place.flags.store(flags, Relaxed);
        let chain = chain_of(live, flags & map_flag::COPY != 0);
        place.chain.store(chain, Relaxed);
        place.open.store(open + 1, Release);
        table.chain(place);
        if flags & map_flag::CHANGES != 0 {
            self.begin_storing(live)
                .inspect_err(|_| _ = self.map_release(place))?;
        }
        Ok(place)
    }

    /// Adds a reference to the description `open`. Returns the live entry of its file.
    ///
    /// # Errors
    /// EBADF if the description has ended; ENODEV if it isn't of a regular file.
    fn retained_live(&self, open: u32) -> Result<u32> {
        let objects = self.store.objects();
        objects.open_retain(open)?;
        match objects.open_file(open).live.load(Acquire) {
            0 => objects.open_release(open).and(Err(Errno::NODEV)),
            live => Ok(live - 1),
        }
    }

    /// Records that a process of this node can store to an open file through a shared mapping from
    /// now on; that process's table of mappings has the mapping already. A clean file
    /// ([`flag::CLEAN`]) counts as changed.
    ///
    /// # Errors
    /// As for [`Content::note_change`].
    pub fn begin_storing(&self, index: u32) -> Result<()> {
        let is_clean = || self.store.objects().live(index).flags.load(Acquire) & flag::CLEAN != 0;
        if !is_clean() || self.store.names().is_live_remote(index) {
            return Ok(());
        }
        let _critical = Critical::enter();
        let _lock = self.store.objects().lock_live(index)?;
        self.store.content().note_change(index)
    }

    /// This process's table of mappings. Only one thread at a time may change it.
    ///
    /// # Errors
    /// As for [`Store::process_slot`].
    pub fn map_table(self) -> Result<MapTable<'s>> {
        Ok(self.store.control.maps_of(self.store.area()?))
    }

    /// One more than the highest place in use in this process's table.
    pub fn maps_end(&self) -> usize {
        let end = |me| {
            self.store
                .control
                .process(me as usize)
                .maps_end
                .load(Acquire)
        };
        self.store.attachment.attached_slot().map_or(0, end) as usize
    }

    /// Copies this process's table into the empty table in `area`, for a child in `slot` that
    /// inherits the mappings by fork. With `reference_only`, copies only what keeps the files open;
    /// otherwise, this process's table must not change meanwhile. Must be called in a section.
    ///
    /// # Errors
    /// As for [`Store::process_slot`].
    pub fn map_inherit(&self, slot: u32, area: &ProcessArea, reference_only: bool) -> Result<()> {
        let end = self.maps_end();
        if end == 0 {
            return Ok(());
        }
        self.store.control.reserve_maps(slot, area, end)?;
        let (from, table) = (self.map_table()?, self.store.control.maps_of(area));
        let maps_end = &self.store.control.process(slot as usize).maps_end;
        maps_end.store(end as u32, Release);
        for (from, to) in from.up_to(end).iter().zip(table.places()) {
            let len = from.len.load(Relaxed);
            to.address.store(from.address.load(Relaxed), Relaxed);
            to.offset.store(from.offset.load(Relaxed), Relaxed);
            to.flags.store(from.flags.load(Relaxed), Relaxed);
            to.chain.store(from.chain.load(Relaxed), Relaxed);
            to.cut.store(0, Relaxed);
            to.len.store(if reference_only { 0 } else { len }, Relaxed);
            let Some(open) = self.store.objects().open_retain_at(&from.open) else {
                continue;
            };
            to.open.store(open + 1, SeqCst);
            table.chain(to);
            // The copy is marked only after it is in its chain: a process that marks places either
            // finds the copy, or has marked the original.
            table.inherit_mark(to, from);
        }
        if !reference_only {
            table.copy_tree(&from, end);
        }
        // Frees the unused places from the highest to the lowest, so that the lowest is taken
        // first.
        for place in table.up_to(end).iter().rev() {
            if place.open.load(Relaxed) == 0 {
                table.give_back(place);
            }
        }
        Ok(())
    }

    /// Frees the place of a removed mapping in this process's table. To be called by one thread at
    /// a time.
    ///
    /// # Errors
    /// Those of writing the file back, if no other process has it open.
    pub fn map_release(&self, place: &MapRef) -> Result<()> {
        if place.open.load(Relaxed) == 0 {
            return Ok(());
        }
        let table = self.map_table()?;
        if place.len.load(Relaxed) != 0 {
            table.remove(place);
            place.len.store(0, Release);
        }
        let result = self.map_drop(place);
        table.unchain(place);
        table.give_back(place);
        result
    }

    /// Frees all entries of a table whose mappings ended with the program that made them. Calls
    /// `each` for an entry before it is freed.
    ///
    /// # Errors
    /// Those of writing the files back; all entries are freed all the same.
    pub(crate) fn map_end(
        &self,
        slot: u32,
        area: &ProcessArea,
        mut each: impl FnMut(&MapRef),
    ) -> Result<()> {
        let maps_end = &self.store.control.process(slot as usize).maps_end;
        let end = maps_end.load(Acquire) as usize;
        if end == 0 {
            return Ok(());
        }
        let table = self.store.control.maps_of(area);
        let mut result = Ok(());
        for place in table.up_to(end) {
            each(place);
            place.len.store(0, Release);
            result = self.map_drop(place).and(result);
        }
        table.clear();
        maps_end.store(0, Release);
        result
    }

    /// Frees all entries of this process's table, after exec has removed the mappings.
    ///
    /// # Errors
    /// Those of writing the files back; all entries are freed all the same.
    pub fn end_mappings(&self) -> Result<()> {
        self.map_end(self.store.process_slot()?, self.store.area()?, |_| {})
    }

    /// Ends a place's use of its file.
    fn map_drop(&self, place: &MapRef) -> Result<()> {
        if place.open.load(Relaxed) == 0 {
            return Ok(());
        }
        let _section = self.store.section()?;
        let Some(open) = place.open.swap(0, AcqRel).checked_sub(1) else {
            return Ok(());
        };
        let mut result = Ok(());
        let kind = place.flags.load(Relaxed);
        if kind & map_flag::CHANGES != 0
            && let Some(live) = self
                .store
                .objects()
                .open_file(open)
                .live
                .load(Acquire)
                .checked_sub(1)
        {
            result = self.touch_mapped(live, kind);
        }
        self.store.objects().open_release(open).and(result)
    }

    /// Records that a process of this node is about to map a copy of an open file.
    pub fn note_copied(&self, index: u32) {
        self.store
            .objects()
            .live(index)
            .flags
            .fetch_or(flag::COPIED, AcqRel);
    }

    /// Whether a process of this node may map a copy of the file.
    #[inline]
    pub fn may_be_copied(&self, index: u32) -> bool {
        self.store.objects().live(index).flags.load(Acquire) & flag::COPIED != 0
    }

    /// Whether a process of this node maps a copy of `id`, a file whose bytes lie on other nodes;
    /// the place `but` doesn't count.
    pub fn is_copied(&self, id: ObjectId, but: Option<&MapRef>) -> bool {
        // A process whose table can't be read counts as one that has such a mapping.
        (0..MAX_PROCESSES as u32).any(|slot| {
            self.some_mapping(slot, |m| {
                let open = m.open.load(SeqCst).checked_sub(1);
                m.flags.load(Acquire) & map_flag::COPY != 0
                    && open
                        .is_some_and(|o| self.store.objects().open_file(o).id.load(Acquire) == id.0)
                    && but.is_none_or(|b| !std::ptr::eq(b, m))
            }) != Some(false)
        })
    }

    /// The processes of this node that can store to the file `id` through shared mappings, could do
    /// so earlier, or are making such a mapping.
    pub fn writable_mappings(&self, id: ObjectId) -> Vec<Party> {
        let is = |m: &MapRef| {
            let open = m.open.load(SeqCst).checked_sub(1);
            m.flags.load(Acquire) & map_flag::CHANGES != 0
                && open.is_some_and(|o| self.store.objects().open_file(o).id.load(Acquire) == id.0)
        };
        (0..MAX_PROCESSES as u32)
            .filter(|&slot| self.some_mapping(slot, is) != Some(false))
            .map(|slot| self.store.locks().lock_owner_slot(slot).number)
            .collect()
    }

    /// Whether `is` holds for one of the mappings of the process in `slot`; None if that can't be
    /// determined.
    fn some_mapping(&self, slot: u32, is: impl Fn(&MapRef) -> bool) -> Option<bool> {
        let p = self.store.control.process(slot as usize);
        let end = p.maps_end.load(Acquire) as usize;
        if end == 0 || state_of(p.owner.load(SeqCst)) == state::FREE {
            return Some(false);
        }
        if self.store.attachment.attached_slot() == Some(slot) {
            return Some(self.map_table().ok()?.up_to(end).iter().any(is));
        }
        let area = self.store.areas().map(slot).ok()?;
        // SAFETY: just mapped; made of atomics. The area isn't used after it was unmapped.
        unsafe {
            let found = self.store.control.maps_of(&*area).up_to(end).iter().any(is);
            self.store.areas().unmap(area);
            Some(found)
        }
    }

    // ---- pages ----

    /// As `Mappings::map`, for this node's bytes of the file.
    pub fn map_here(
        &self,
        index: u32,
        offset: u64,
        len: usize,
        budget: usize,
    ) -> Result<Vec<MapPiece>> {
        self.store
            .content()
            .verify(index, offset, offset + len as u64)
            .map_err(|_| Errno::IO)?;
        self.store
            .local_copies()
            .make_room(len.min(budget.saturating_mul(PAGE)));
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        self.store.content().promote(index)?;
        live.flags.fetch_or(flag::MAPPED, AcqRel);
        let size = live.size.load(Relaxed);
        if live.flags.load(Relaxed) & flag::TAIL != 0 {
            self.clear_tail(index, size, size)?;
        }
        let end = (offset + len as u64).min(size.next_multiple_of(PAGE as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let there = self.mapped_pieces(index, offset, end)?;
        let have: usize = there.iter().map(|p| p.len).sum();
        debug_assert!(
            have as u64 <= end - offset,
            "pieces of a mapping don't overlap"
        );
        let missing = ((end - offset) as usize - have) / PAGE;
        if missing == 0 || missing > budget {
            return Ok(there);
        }
        let mut at = offset;
        while at < end {
            let (chunk, start) = (at / CHUNK, (at % CHUNK) as usize);
            let n = ((end - at) as usize).min(CHUNK as usize - start);
            let map = self.store.content().ensure(
                index,
                chunk,
                (start / PAGE, pages((start + n) as u64)),
            )?;
            Content::pieces(&map, start, n, |e, from, _, n| {
                let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
                medium.make_init(e, from / PAGE, n / PAGE)
            })?;
            at += n as u64;
        }
        self.mapped_pieces(index, offset, end)
    }

    /// The pages of `offset..end` that are initialised. Locked.
    fn mapped_pieces(&self, index: u32, offset: u64, end: u64) -> Result<Vec<MapPiece>> {
        let live = self.store.objects().live(index);
        let mut out = Vec::new();
        if offset < CHUNK {
            self.pieces_of(
                &self.store.content().first_chunk(index),
                0,
                offset,
                end,
                &mut out,
            )?;
        }
        if end > CHUNK {
            let id = ObjectId(live.id.load(Relaxed));
            let first = (offset / CHUNK).max(1);
            let mut result = Ok(());
            let records = self.store.records_of(id)?;
            records.each_attached(&Key::chunk(id, first), |key, value| {
                let Some((b'X', of, n)) = parse_key(key) else {
                    return false;
                };
                let chunk = n.try_into().map_or(u64::MAX, u64::from_be_bytes);
                if of != id || chunk >= end.div_ceil(CHUNK) {
                    return false;
                }
                result = ChunkMap::decode(value)
                    .ok_or(Errno::IO)
                    .and_then(|map| self.pieces_of(&map, chunk, offset, end, &mut out));
                result.is_ok()
            })?;
            result?;
        }
        Ok(out)
    }

    /// Adds the initialised pages of one chunk that lie in `offset..end`.
    fn pieces_of(
        &self,
        map: &ChunkMap,
        chunk: u64,
        offset: u64,
        end: u64,
        out: &mut Vec<MapPiece>,
    ) -> Result<()> {
        let base = chunk * CHUNK;
        let from = offset.max(base);
        let len = (end.min(base + CHUNK) - from) as usize;
        Content::pieces(map, (from - base) as usize, len, |e, start, done, n| {
            let medium = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
            let mut page = start / PAGE;
            let last = (start + n) / PAGE;
            while page < last {
                let (run, init) = medium.init_run(e, page, last - page);
                if init {
                    let piece = MapPiece {
                        at: from + (done + page * PAGE - start) as u64,
                        medium: e.medium(),
                        segment_offset: (e.start() + page as u64) * PAGE as u64,
                        len: run * PAGE,
                    };
                    match out.last_mut() {
                        Some(p)
                            if p.medium == piece.medium
                                && p.at + p.len as u64 == piece.at
                                && p.segment_offset + p.len as u64 == piece.segment_offset =>
                        {
                            p.len += piece.len;
                        }
                        _ => out.push(piece),
                    }
                }
                page += run;
            }
            Ok(())
        })
        .map(|_| ())
    }

    /// Zeroes what mappings wrote beyond the end of a file, and frees the pages that truncation had
    /// to leave. To be called when the file has no other user, so that no process has it mapped.
    /// Locked.
    pub(crate) fn settle_maps(&self, index: u32) -> Result<()> {
        let live = self.store.objects().live(index);
        let flags = live.flags.load(Acquire);
        if flags & flag::MAPPED == 0 {
            return Ok(());
        }
        let size = live.size.load(Relaxed);
        self.store
            .content()
            .zero_range(index, size, size.next_multiple_of(PAGE as u64))?;
        if flags & flag::CUT != 0 {
            // If the record was written since the truncation, it names these pages.
            live.flags.fetch_or(flag::DIRTY, AcqRel);
            self.store.content().free_behind(index, size, MAX_SIZE)?;
        }
        live.flags.fetch_and(!(flag::MAPPED | flag::CUT), AcqRel);
        Ok(())
    }

    /// Zeroes bytes beyond the end that mappings (or a process before a loss of power) may have
    /// written. To be called before the size grows from `old` to `new`. Locked.
    pub(crate) fn clear_tail(&self, index: u32, old: u64, new: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let flags = live.flags.load(Relaxed);
        if flags & (flag::MAPPED | flag::TAIL) == 0 {
            return Ok(());
        }
        let page_end = old.next_multiple_of(PAGE as u64);
        self.store.content().zero_range(index, old, page_end)?;
        live.flags.fetch_and(!flag::TAIL, AcqRel);
        if flags & flag::CUT == 0 || new <= page_end {
            return Ok(());
        }
        // Zeroes the pages that truncation left in mappings, too.
        for piece in self.mapped_pieces(index, page_end, new.next_multiple_of(PAGE as u64))? {
            self.store
                .content()
                .zero_range(index, piece.at, piece.at + piece.len as u64)?;
        }
        Ok(())
    }

    // ---- telling others ----

    /// Makes this process and others remove the pages beyond `size` from their mappings of a file
    /// that was truncated. Waits for the others for a moment; a process that can't react (stopped,
    /// or with all signals blocked) sees zeros until it can. The caller must not hold a lock.
    pub fn notify_shrunk(&self, index: u32, size: u64) {
        let Ok(me) = self.store.process_slot() else {
            return;
        };
        self.mark_cut(me, index, size);
        self.catch_up();
        let h = &self.store.control;
        let slots = 0..crate::control_region::MAX_PROCESSES as u32;
        let state = |slot: u32| state_of(h.process(slot as usize).owner.load(SeqCst));
        let mut notified = Vec::new();
        for slot in slots
            .clone()
            .filter(|&s| s != me && state(s) == state::USED)
        {
            if self.mark_cut(slot, index, size) {
                notified.push(slot);
            }
        }
        // Slots reserved for children are marked, too. A child that doesn't exist yet checks its
        // mappings when it begins; a table that is copied for it from now on has the marks just
        // made.
        for slot in slots.filter(|&s| s != me && state(s) != state::FREE) {
            if !notified.contains(&slot) && self.mark_cut(slot, index, size) {
                notified.push(slot);
            }
        }
        let mut awaited = Vec::new();
        for slot in notified {
            let p = h.process(slot as usize);
            let owner = p.owner.load(SeqCst);
            if state_of(owner) == state::USED && is_alive(h, slot) {
                let n = p.maps_requested.fetch_add(1, AcqRel).wrapping_add(1);
                if notify(pid_of(owner)) {
                    awaited.push((slot, owner, n));
                }
            }
        }
        for (slot, owner, n) in awaited {
            let p = h.process(slot as usize);
            for turn in 0..MAX_NOTICE_POLLS {
                let done = p.maps_done.load(Acquire);
                if done.wrapping_sub(n) < u32::MAX / 2 || p.owner.load(Acquire) != owner {
                    break;
                }
                if turn % 8 == 7 && !is_alive(h, slot) {
                    break;
                }
                let _ = futex::wait(&p.maps_done, done, NOTICE_POLL_INTERVAL);
                // The other process may be waiting for this process in the same way: this ends its
                // wait.
                self.catch_up();
            }
        }
    }

    /// Removes the pages beyond the end of files from this process's mappings, and reports that to
    /// the processes that have requested it.
    pub fn catch_up(&self) {
        let Some(me) = self.store.attachment.attached_slot() else {
            return;
        };
        let p = self.store.control.process(me as usize);
        let awaited = p.maps_requested.load(Acquire);
        if let Some(f) = CATCH_UP.get() {
            f(self.store);
        }
        if p.maps_done.swap(awaited, AcqRel) != awaited {
            futex::wake(&p.maps_done, u32::MAX >> 1);
        }
    }

    /// Whether another process waits for [`Mappings::catch_up`].
    pub fn is_behind(&self) -> bool {
        self.store.attachment.attached_slot().is_some_and(|me| {
            let p = self.store.control.process(me as usize);
            p.maps_done.load(Relaxed) != p.maps_requested.load(Acquire)
        })
    }

    /// Marks the mappings of file `index` in the table of the process in `slot`: these mappings
    /// have to lose their pages beyond `size`. False if the process has no such mapping.
    fn mark_cut(&self, slot: u32, index: u32, size: u64) -> bool {
        let p = self.store.control.process(slot as usize);
        let end = p.maps_end.load(Acquire) as usize;
        if end == 0 {
            return false;
        }
        let Ok(area) = self.store.areas().map(slot) else {
            return false;
        };
        // SAFETY: mapped above, and unmapped only after the last use; all fields are atomics.
        let table = self.store.control.maps_of(unsafe { &*area });
        // Either the mapped file is `index`, or `index` is its part on this node.
        let is = |open: &AtomicU32| {
            let open = open.load(SeqCst).checked_sub(1);
            let live = open.and_then(|o| {
                self.store
                    .objects()
                    .open_file(o)
                    .live
                    .load(Acquire)
                    .checked_sub(1)
            });
            live.is_some_and(|l| {
                l == index || self.store.objects().live(l).part.load(Acquire) == index + 1
            })
        };
        let mut found = false;
        // A mapping whose length isn't known yet (0) may be getting pages just now.
        let loses = |m: &MapRef| {
            let (len, offset) = (m.len.load(SeqCst), m.offset.load(SeqCst));
            len == 0 || offset.saturating_add(len) > size
        };
        table.each_of_file(index, end, |link, m| {
            if m.flags.load(Acquire) & map_flag::STAYS == 0 && is(&m.open) && loses(m) {
                table.mark(link, u64::MAX - size);
                found = true;
            }
        });
        // SAFETY: no reference to the area is used from here on.
        unsafe { self.store.areas().unmap(area) };
        found
    }

    /// Whether mappings may contain pages of the file. Locked.
    pub(crate) fn is_mapped(live: &Live) -> bool {
        live.flags.load(Relaxed) & flag::MAPPED != 0
    }

    /// Records that the file's data may have been changed through a mapping, at the time of the
    /// call. `kind`: the mapping's flags.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn touch_mapped(&self, index: u32, kind: u32) -> Result<()> {
        if kind & map_flag::COPY == 0 {
            return self.store.content().touch_open(index);
        }
        // The times of a copy change when it is written back. But pages of a striped file that lie
        // on this node are mapped directly, not copied.
        let live = self.store.objects().live(index);
        let id = self.store.content().live_id(index);
        let parts = id.stripe().is_some() || live.flags.load(Acquire) & flag::PARTS != 0;
        if !parts || id.is_part() || self.store.remote.is_none() {
            return Ok(());
        }
        let own = if self.store.names().is_live_remote(index) {
            live.part.load(Acquire).checked_sub(1)
        } else {
            Some(index)
        };
        match own.filter(|&own| Mappings::is_mapped(self.store.objects().live(own))) {
            Some(own) => self.store.content().touch_open(own),
            None => Ok(()),
        }
    }
}

/// Sends a notice to process `pid`; false if there is no such process.
fn notify(pid: u32) -> bool {
    let value = libc::sigval {
        sival_ptr: NOTICE_VALUE as *mut libc::c_void,
    };
    // SAFETY: sigqueue accesses no memory of this process; by default, the receiver ignores the
    // signal.
    unsafe { libc::sigqueue(pid as i32, NOTICE, value) == 0 }
}

#[cfg(test)]
mod tests;

//! Parts: this node's share of a file that is spread over several nodes, and what the file's home
//! keeps about the file.
//!
//! A striped or spilled file has, at its home, its size and its first chunk. Each other node has a
//! *part*, a separate object ([`ObjectId::part`]) with the same offsets. This module does the local
//! work of the home and of the part, and sends no requests. The crate `cluster` spreads reads and
//! writes over the parts.
//!
//! - *Cuts* count the file's truncations: a request based on an earlier state is refused
//!   ([`CHANGED`]).
//! - A *lease* lets one process at a time truncate all parts, or append after the first chunk. The
//!   lease expires by itself.

pub use crate::errors::CHANGED;

use crate::control_region::{Live, live_flag as flag};
use crate::declared::{Change, LAMINATED, check_word};
use crate::process::Critical;
use crate::record::{Inode, Key};
use crate::records::{ChangeRecords, Need, Records};
use crate::views::Mappings;
use crate::views::Parts;
use crate::{CHUNK, NodeId, ObjectId, Result, now};
use forebay_media::PAGE;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// The home's view of a file: the file's size is at least `size`, until the file is truncated
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub size: u64,
    pub cuts: u64,
    /// Number of appends under a lease, and of writes in the first chunk that extended the file
    /// over bytes that another write had put beyond the file's end.
    pub appends: u32,
    /// The file's declared controls (`controls.rs`).
    pub word: u64,
}

/// Time after which a lease expires. Milliseconds. Longer than any operation under a lease takes,
/// unless its holder is stopped.
const LEASE: u64 = 5_000;

/// The holder of a lease: node, identity, the lease's number.
pub type Holder = (u32, u32, u64);
/// A lease: its number; size, truncations and appends of the file; whether another process had the
/// lease and didn't give it back; the file's declared controls.
pub type Granted = (u64, u64, u64, u32, bool, u64);

fn milliseconds() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

impl<'s> Parts<'s> {
    // ---- at the home ----

    /// Returns the home's view of a file. With `write`, records that the file will have parts.
    pub fn layout_here(&self, index: u32, write: bool) -> Result<Known> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        if write {
            live.flags.fetch_or(flag::PARTS | flag::DIRTY, AcqRel);
        }
        Ok(Known {
            size: live.size.load(Acquire),
            cuts: live.cuts.load(Acquire),
            appends: live.appends.load(Acquire),
            word: live.controls.load(Acquire),
        })
    }

    /// Records that the file was written up to `end`, by a process that knew of this many
    /// truncations and appends. EXFULL if there were more of them since, or a process has the
    /// lease.
    pub fn grow_here(&self, index: u32, (cuts, appends): (u64, u32), end: u64) -> Result<()> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let as_known = live.cuts.load(Acquire) == cuts && live.appends.load(Acquire) == appends;
        if !as_known || Parts::is_lent(live) {
            return Err(CHANGED);
        }
        self.grow_locked(index, end)
    }

    fn grow_locked(&self, index: u32, end: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let size = live.size.load(Acquire);
        if end > size {
            self.store.content().promote(index)?;
            self.store.mappings().clear_tail(index, size, end)?;
            self.store.quota().grows(live, size, end)?;
            live.size.store(end, Release);
        }
        let t = now();
        live.mtime.store(t, Relaxed);
        live.ctime.store(t, Relaxed);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        Ok(())
    }

    fn is_leased(live: &Live) -> bool {
        live.lease_until.load(Relaxed) > milliseconds()
    }

    /// Whether there is a lease that wasn't given back, even if it has expired.
    fn is_lent(live: &Live) -> bool {
        live.lease_until.load(Relaxed) != 0
    }

    /// Checks a write to a file of this node that may be striped. EPERM if the controls forbid the
    /// write. EXFULL if it appends bytes beyond the first chunk, or extends the file while a
    /// process has the lease. If another process has written bytes beyond the end already, this
    /// write counts as an append. Locked.
    pub fn may_write(&self, live: &Live, offset: Option<u64>, len: usize) -> Result<()> {
        let Some(chunk) = ObjectId(live.id.load(Relaxed)).stripe() else {
            // The caller doesn't know that the file is spilled.
            return if Parts::is_spilled(live) {
                Err(CHANGED)
            } else {
                Ok(())
            };
        };
        let size = live.size.load(Relaxed);
        check_word(live.controls.load(Relaxed), size, Change::From(offset))?;
        let end = offset.unwrap_or(size).saturating_add(len as u64);
        let beyond = offset.is_none() && end > chunk.bytes();
        if (beyond || end > size && Parts::is_lent(live)) && self.store.remote.is_some() {
            return Err(CHANGED);
        }
        if end > size && live.flags.load(Relaxed) & flag::BEHIND != 0 {
            // The checked write takes precedence: processes that have already written beyond the
            // end will repeat their writes.
            live.flags.fetch_and(!flag::BEHIND, AcqRel);
            live.appends.fetch_add(1, AcqRel);
        }
        Ok(())
    }

    /// Checks a truncation of a file of this node that may be striped. EXFULL if its parts have to
    /// be truncated as well, or a process has the lease. Locked.
    pub fn may_cut(&self, live: &Live, size: u64) -> Result<u64> {
        let old = live.size.load(Relaxed);
        let parts = live.flags.load(Relaxed) & flag::PARTS != 0;
        check_word(live.controls.load(Relaxed), old, Change::Size(size))?;
        match ObjectId(live.id.load(Relaxed)).stripe() {
            Some(_) if Parts::is_lent(live) => Err(CHANGED),
            Some(chunk) if size < old && (parts || old > chunk.bytes()) => Err(CHANGED),
            None if Parts::is_spilled(live) && (size < old || Parts::is_lent(live)) => Err(CHANGED),
            _ => Ok(size),
        }
    }

    /// Gives the lease to `(node, process)`, or returns its holder. `over`: the number of the lease
    /// that is to be taken over.
    pub fn lease_here(
        &self,
        index: u32,
        (node, process): (NodeId, u32),
        over: Option<u64>,
    ) -> Result<std::result::Result<Granted, Holder>> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let last = live.lease.load(Relaxed);
        if Parts::is_leased(live) && over != Some(last) {
            let of = live.lease_of.load(Relaxed);
            return Ok(Err(((of >> 32) as u32, of as u32, last)));
        }
        let taken = live.lease_until.load(Relaxed) != 0;
        // Numbers follow the clock: none repeats, even if the entry was filled from an older
        // record.
        let number = (last + 1).max(now() as u64);
        live.lease.store(number, Relaxed);
        live.lease_of
            .store(u64::from(node.0) << 32 | u64::from(process), Relaxed);
        live.lease_until.store(milliseconds() + LEASE, Relaxed);
        live.flags.fetch_or(flag::PARTS | flag::DIRTY, AcqRel);
        let (size, cuts) = (live.size.load(Acquire), live.cuts.load(Acquire));
        let appends = live.appends.load(Acquire);
        let word = live.controls.load(Acquire);
        Ok(Ok((number, size, cuts, appends, taken, word)))
    }

    /// Whether the holder of the lease with this number still has it. Locked.
    pub(crate) fn holds_lease(live: &Live, lease: u64) -> bool {
        live.lease.load(Relaxed) == lease && live.lease_until.load(Relaxed) != 0
    }

    /// Ends the lease after all parts were truncated at the file's end. `cuts`: the file's number
    /// of truncations now. Locked.
    pub(crate) fn end_lease_cut(live: &Live, cuts: u64) {
        live.cuts.store(cuts, Release);
        live.lease_until.store(0, Relaxed);
        live.flags.fetch_or(flag::DIRTY, AcqRel);
    }

    /// Releases the lease. If `cuts` is larger than the file's number of truncations, the file is
    /// truncated to `size`; otherwise the file has grown to `size`. False, and nothing is done, if
    /// another process has the lease now.
    pub fn end_lease_here(
        &self,
        index: u32,
        lease: u64,
        (cuts, appends): (u64, u32),
        size: Option<u64>,
    ) -> Result<bool> {
        let ours = |live: &Live| Parts::holds_lease(live, lease) && live.cuts.load(Relaxed) <= cuts;
        let mut done = false;
        let cut = |live: &Live| match (ours(live), size) {
            (true, Some(size)) if live.cuts.load(Relaxed) < cuts => {
                // Placements are dropped even if the size stays: the parts have freed the room that
                // was reserved beyond the end.
                self.drop_places(live, size.min(live.size.load(Relaxed)))?;
                done = true;
                live.cuts.store(cuts, Release);
                live.lease_until.store(0, Relaxed);
                Ok(size.min(live.size.load(Relaxed)))
            }
            _ => Err(CHANGED),
        };
        match self.store.content().truncate_here(index, cut) {
            Err(CHANGED) => {}
            result => return result.map(|()| done),
        }
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        if !ours(live) {
            return Ok(false);
        }
        if let Some(size) = size {
            if live.appends.load(Acquire) != appends {
                // The bytes that the holder wrote were removed meanwhile.
                live.lease_until.store(0, Relaxed);
                return Ok(false);
            }
            self.grow_locked(index, size)?;
            live.appends.fetch_add(1, AcqRel);
        }
        live.lease_until.store(0, Relaxed);
        Ok(true)
    }

    /// Writes bytes that lie at the home, maybe beyond the end of the file. The writing process
    /// reports afterwards that the file has grown.
    ///
    /// # Safety
    /// `bytes` must be readable.
    pub unsafe fn write_behind(
        &self,
        index: u32,
        cuts: u64,
        offset: u64,
        bytes: (*const u8, usize),
    ) -> Result<usize> {
        let check = |live: &Live| Parts::check_behind(live, cuts, offset, bytes.1);
        // SAFETY: the caller promises that `bytes` is readable.
        unsafe {
            self.store
                .content()
                .write_here(index, Some(offset), bytes, false, check)
        }
        .map(|(_, n)| n)
    }

    /// Checks a write of bytes at the home, with the file locked: EXFULL if the file wasn't
    /// truncated exactly `cuts` times, EPERM if it is laminated. Records if there will be bytes
    /// beyond the end.
    pub fn check_behind(live: &Live, cuts: u64, offset: u64, len: usize) -> Result<()> {
        if live.cuts.load(Acquire) != cuts {
            return Err(CHANGED);
        }
        let (word, size) = (live.controls.load(Relaxed), live.size.load(Relaxed));
        if word & LAMINATED != 0 {
            check_word(word, size, Change::From(Some(offset)))?;
        }
        if offset + len as u64 > size {
            live.flags.fetch_or(flag::BEHIND, AcqRel);
        }
        Ok(())
    }

    // ---- the part ----

    /// Makes this node's part of a file, empty, if there is none.
    pub fn make_part(&self, id: ObjectId) -> Result<()> {
        let t = now();
        let inode = Inode {
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            ..Inode::made_at(t)
        };
        self.store
            .transact(self.store.names().object_set(id), Need::Bytes(0), |w| {
                w.add_object(id.part(), &inode, &[]).map(|_| ())
            })
    }

    /// Fails with EXFULL if the part was truncated more often than the requester knows. The caller
    /// holds the part's lock, or calls this again after its operation.
    pub fn check_cuts(live: &Live, cuts: u64) -> Result<()> {
        // Fewer truncations are fine: the part's last one may be missing after a loss of power.
        if live.cuts.load(Acquire) > cuts {
            Err(CHANGED)
        } else {
            Ok(())
        }
    }

    /// Reads from a part. Returns fewer bytes if the part ends before.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read_part(
        &self,
        part: u32,
        cuts: u64,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let live = self.store.objects().live(part);
        Parts::check_cuts(live, cuts)?;
        // SAFETY: the caller's promise.
        let n = unsafe { self.store.content().read_here(part, offset, to, len)? };
        Parts::check_cuts(live, cuts)?;
        Ok(n)
    }

    /// Writes to a part.
    ///
    /// # Safety
    /// `bytes` must be readable.
    pub unsafe fn write_part(
        &self,
        part: u32,
        cuts: u64,
        offset: u64,
        bytes: (*const u8, usize),
    ) -> Result<usize> {
        let check = |live: &Live| Parts::check_cuts(live, cuts);
        // SAFETY: the caller promises that `bytes` is readable.
        unsafe {
            self.store
                .content()
                .write_here(part, Some(offset), bytes, true, check)
        }
        .map(|(_, n)| n)
    }

    /// Reserves room in a part, or makes a hole (`punch`).
    pub fn room_part(
        &self,
        part: u32,
        cuts: u64,
        (offset, len): (u64, u64),
        punch: bool,
    ) -> Result<()> {
        let live = self.store.objects().live(part);
        Parts::check_cuts(live, cuts)?;
        if punch {
            self.store.content().punch_here(part, offset, len, false)
        } else {
            // Makes the part longer: the last close frees what is reserved beyond its end.
            self.store.content().reserve_here(part, offset, len, true)
        }
    }

    /// Truncates this node's part of a file, as the file's truncation number `cuts`.
    pub fn cut_part(&self, id: ObjectId, cuts: u64, size: u64) -> Result<()> {
        self.make_part(id)?;
        let (part, held) = self.store.objects().live_acquire_here(id.part())?;
        let cut = self.cut_open_part(part, cuts, size);
        drop(held);
        self.store.objects().live_release(part).and(cut)
    }

    pub(crate) fn cut_open_part(&self, part: u32, cuts: u64, size: u64) -> Result<()> {
        let id = ObjectId(self.store.objects().live(part).id.load(Relaxed));
        // The part records the truncation first: from then on, no process reads the part until the
        // home has recorded it, too.
        self.store.content().truncate_here(part, |live| {
            let known = live.cuts.load(Acquire);
            let noted =
                self.store
                    .transact(self.store.names().object_set(id), Need::Removal, |w| {
                        w.change_inode(id, |inode| {
                            if known > cuts || known == cuts && inode.cut_size != size {
                                return Err(CHANGED);
                            }
                            inode.cuts = cuts;
                            inode.cut_size = size;
                            Ok(())
                        })
                    })?;
            noted?;
            live.cuts.store(cuts, Release);
            Ok(size.min(live.size.load(Relaxed)))
        })?;
        if id.stripe().is_none() {
            // The rest of the chunk was reserved, and is reserved again, unless another process
            // took the pages.
            let end = size.next_multiple_of(CHUNK);
            let _ = self
                .store
                .content()
                .reserve_here(part, size, end - size, true);
        }
        if Mappings::is_mapped(self.store.objects().live(part)) {
            // The page in which the file ends stays in mappings.
            self.reach(part, cuts, size.next_multiple_of(PAGE as u64))
        } else {
            Ok(())
        }
    }

    /// The attributes of this node's part of a file, if it has one.
    pub fn stat_part(&self, id: ObjectId) -> Result<Option<Inode>> {
        match self.store.names().stat_here(id.part()) {
            Ok(inode) => Ok(Some(inode)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Removes this node's part of a file that was removed.
    pub fn drop_part(&self, id: ObjectId) -> Result<()> {
        let part = id.part();
        let (index, held) = match self.store.objects().live_acquire_here(part) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let dropped =
            self.store
                .transact(self.store.names().object_set(part), Need::Removal, |w| {
                    w.change_inode(part, |inode| inode.nlink = 0)?;
                    w.attach(part, &Key::orphan(part), &[])?;
                    self.store.objects().live_mark_unlinked(part, false)
                });
        drop(held);
        self.store
            .objects()
            .live_release(index)
            .and(dropped)
            .map(|_| ())
    }

    /// Extends a part to at least `end`. The part is mapped, or will be. The added bytes are zero.
    pub fn reach(&self, part: u32, cuts: u64, end: u64) -> Result<()> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(part)?;
        let live = lock.0;
        Parts::check_cuts(live, cuts)?;
        let size = live.size.load(Relaxed);
        if size < end {
            self.store.content().promote(part)?;
            self.store.mappings().clear_tail(part, size, end)?;
            live.size.store(end, Release);
            live.flags.fetch_or(flag::DIRTY, AcqRel);
        }
        Ok(())
    }

    /// Records the size that a file of another node has after this many truncations. Locked.
    pub fn remember_locked(live: &Live, size: u64, cuts: u64) {
        let before = live.cuts.load(Relaxed);
        if before < cuts {
            // The order matters: a process that reads size and truncations never takes a size for
            // that of later truncations.
            live.size.store(0, Release);
            live.cuts.store(cuts, Release);
        }
        if before <= cuts {
            live.size.fetch_max(size, AcqRel);
        }
    }
}

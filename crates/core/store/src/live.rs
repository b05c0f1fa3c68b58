//! The live table: every object that is open anywhere on the node.
//!
//! An entry holds what changes with every write: size, times, extents of the first chunk. So
//! writing costs no transaction, and readers (stat, too) still see the present values. The last
//! user of an entry writes it back to the record ([`Objects::live_release`]) or, if the object has
//! lost its last name, removes the object.

use crate::control_region::{
    Bucket, Control, Live, MAX_EXTENTS, MAX_LIVE, ProcessArea, live_flag as flag,
};
use crate::lock::Acquired;
use crate::process::{Critical, identity, identity_lives};
use crate::record::{ChunkMap, Inode, tail};
use crate::records::{ReadRecords, Records};
use crate::views::Objects;
use crate::{NodeId, ObjectId, Section, Store};
use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, fence, spin_loop, yield_now};
use rustix::io::{Errno, Result};
use std::time::{Duration, Instant};

/// The fields in which the live table is newer than the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveView {
    pub size: u64,
    pub pages: u64,
    pub mtime: i64,
    pub ctime: i64,
    /// For a striped file: its number of truncations, and whether it has parts.
    pub cuts: u64,
    pub parts: bool,
    pub controls: u64,
}

/// A held lock of a bucket of the live table.
pub struct Chain<'a> {
    control: &'a Control,
    bucket: &'a Bucket,
}

impl<'a> Chain<'a> {
    /// Locks the chain that has `id`. The caller must be in a [`Critical`] section.
    pub fn lock(store: &'a Store, id: u64) -> Result<Chain<'a>> {
        Chain::of(store, store.control.bucket(id))
    }

    /// Locks the chain of `bucket`. The caller must be in a [`Critical`] section.
    pub(crate) fn of(store: &'a Store, bucket: &'a Bucket) -> Result<Chain<'a>> {
        // Entries are linked and unlinked by single stores: a chain is whole even if its lock's
        // holder died.
        if bucket.lock.acquire(&store.control, store.process_slot()?)? == Acquired::Abandoned
            && !bucket.version.load(Relaxed).is_multiple_of(2)
        {
            bucket.version.fetch_add(1, AcqRel);
        }
        Ok(Chain {
            control: &store.control,
            bucket,
        })
    }

    pub fn find(&self, id: u64) -> Option<u32> {
        let mut next = self.bucket.head.load(Acquire);
        while next != 0 {
            let live = self.control.live(next - 1);
            if live.id.load(Relaxed) == id {
                return Some(next - 1);
            }
            next = live.next.load(Acquire);
        }
        None
    }

    fn insert(&self, index: u32) {
        let live = self.control.live(index);
        assert!(
            self.bucket.version.load(Relaxed).is_multiple_of(2),
            "a chain is whole while its lock is taken"
        );
        debug_assert_eq!(
            self.find(live.id.load(Relaxed)),
            None,
            "an object has one entry"
        );
        live.next.store(self.bucket.head.load(Relaxed), Release);
        self.bucket.version.fetch_add(1, AcqRel);
        self.bucket.head.store(index + 1, Release);
        self.bucket.version.fetch_add(1, AcqRel);
    }

    fn remove(&self, index: u32) {
        let mut link = &self.bucket.head;
        loop {
            let next = link.load(Acquire);
            debug_assert!(next != 0, "a live entry that ends is in its chain: {index}");
            if next == 0 {
                return;
            }
            let live = self.control.live(next - 1);
            if next - 1 == index {
                self.bucket.version.fetch_add(1, AcqRel);
                link.store(live.next.load(Relaxed), Release);
                self.bucket.version.fetch_add(1, AcqRel);
                return;
            }
            link = &live.next;
        }
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.bucket.lock.release();
    }
}

/// A held lock of a live entry, with the section in which it was taken.
pub struct LiveLock<'a>(pub &'a Live, Section<'a>);

impl Drop for LiveLock<'_> {
    fn drop(&mut self) {
        let _: &Section<'_> = &self.1;
        self.0.lock.release();
    }
}

/// A place: a word of the process's slot or area that records the use of a live entry by this
/// process. Dropping this value frees the place. If the process dies, the process that reaps it
/// ends the use.
pub struct Held<'a>(&'a AtomicU32);

/// How long a thread that opens a file waits for a place (see [`Held`]) when other threads use all
/// places of the process.
pub const PLACE_TIMEOUT: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(30)
};

/// Value of a place that a thread has taken, but that holds no entry yet.
const TAKEN: u32 = u32::MAX;

impl Held<'_> {
    pub(crate) fn set(&self, index: u32) {
        debug_assert_ne!(self.0.load(Relaxed), 0, "a place that is filled was taken");
        self.0.store(index + 1, Release);
    }

    /// Undoes [`Held::set`]: the place holds no entry again.
    pub fn unset(&self) {
        self.0.store(TAKEN, Release);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// The index of the live entry that is stored in a place.
pub(crate) fn held_entry(place: u32) -> Option<u32> {
    place.checked_sub(1).filter(|&i| (i as usize) < MAX_LIVE)
}

impl Live {
    /// Records that a process of the node `by`, or of this one (None), changes the bytes. Locked.
    #[inline]
    pub fn change_by(&self, by: Option<NodeId>) {
        let (by, now) = (half(by), self.changed_by.load(Relaxed));
        if now & LATER != by {
            self.changed_by.store(now << 32 | by, Relaxed);
        }
    }

    /// The node other than `by` whose process has changed the bytes last, where `Some(None)` is
    /// this node. None if no such change has been recorded.
    pub fn changed_beside(&self, by: Option<NodeId>) -> Option<Option<NodeId>> {
        let (by, now) = (half(by), self.changed_by.load(Relaxed));
        let other = [now & LATER, now >> 32].into_iter().find(|&n| n != by)?;
        Some((other as u32).checked_sub(1).map(NodeId))
    }
}

impl Live {
    /// The stamp of a copy: see [`Inode::copy_stamp`]. The stamp shares a field with the number of
    /// truncations, as truncations of copies aren't counted.
    pub fn copy_stamp(&self) -> &AtomicU64 {
        &self.cuts
    }

    /// Records how much of the file's content is at the pool's origin: `there` comes from
    /// [`at_origin`].
    pub(crate) fn set_at_origin(&self, there: u32) {
        match there {
            0 => self
                .flags
                .fetch_and(!(flag::RELEASED | flag::CLEAN), AcqRel),
            flag::CLEAN => {
                self.flags.fetch_and(!flag::RELEASED, AcqRel);
                self.flags.fetch_or(flag::CLEAN, AcqRel)
            }
            // RELEASED isn't set: programs that have the file open may be writing, until the origin
            // service has noticed that the file is open.
            _ => return,
        };
    }

    /// Adds to a file's inode the truncations and parts that only this entry knows.
    pub(crate) fn note_parts(&self, inode: &mut Inode) {
        let flags = self.flags.load(Acquire);
        let id = ObjectId(self.id.load(Relaxed));
        put_parts(id, inode, self.cuts.load(Acquire), flags & flag::PARTS != 0);
    }
}

/// Sets truncations and parts in the inode of a file; for a copy, `cuts` is the stamp.
pub(crate) fn put_parts(id: ObjectId, inode: &mut Inode, cuts: u64, parts: bool) {
    if !inode.is_file() {
        return;
    }
    if id.is_copy() {
        inode.copy_stamp = cuts
    } else {
        inode.cuts = cuts
    }
    inode.is_spread |= parts && !id.is_part();
}

/// Mask of the half of [`Live::changed_by`] that names the later node.
const LATER: u64 = 0xffff_ffff;

fn half(node: Option<NodeId>) -> u64 {
    node.map_or(0, |node| u64::from(node.0) + 1)
}

impl<'s> Objects<'s> {
    /// Takes a place in which a use is recorded. Must be called before any lock is taken.
    ///
    /// # Errors
    /// EAGAIN if other threads of this process have used all places for [`PLACE_TIMEOUT`].
    pub fn place(self) -> Result<Held<'s>> {
        let p = self
            .store
            .control
            .process(self.store.process_slot()? as usize);
        let take = |place: &&AtomicU32| {
            place.load(Relaxed) == 0 && place.compare_exchange(0, TAKEN, AcqRel, Relaxed).is_ok()
        };
        if let Some(place) = p.held.iter().find(take) {
            return Ok(Held(place));
        }
        let area = self.store.area()?;
        // Without memory for more places, the thread waits for one of the places in the slot.
        let more = match self
            .store
            .control
            .reserve_held(self.store.process_slot()?, area)
        {
            Ok(()) => &area.held[..],
            Err(_) => &[],
        };
        let mut until = None;
        loop {
            if let Some(i) = more.iter().position(|place| take(&place)) {
                // Raised before a use is recorded in the place: a reaper looks only below
                // `held_end`.
                p.held_end.fetch_max(i as u32 + 1, AcqRel);
                return Ok(Held(&more[i]));
            }
            if let Some(place) = p.held.iter().find(take) {
                return Ok(Held(place));
            }
            let now = Instant::now();
            if now > *until.get_or_insert(now + PLACE_TIMEOUT) {
                return Err(Errno::AGAIN);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The places in the area of the process in `slot` that may be in use.
    pub(crate) fn more_held<'a>(&self, slot: u32, area: &'a ProcessArea) -> &'a [AtomicU32] {
        let end = self
            .store
            .control
            .process(slot as usize)
            .held_end
            .load(Acquire) as usize;
        &area.held[..end.min(area.held.len())]
    }

    /// Records that this process uses live entry `index`. No lock may be held.
    pub(crate) fn hold(self, index: u32) -> Result<Held<'s>> {
        let held = self.place()?;
        held.set(index);
        Ok(held)
    }

    /// Live entry `index`.
    #[inline]
    pub fn live(self, index: u32) -> &'s Live {
        self.store.control.live(index)
    }

    /// Locks a live object. The caller must be in a [`Critical`] section.
    pub fn lock_live(self, index: u32) -> Result<LiveLock<'s>> {
        let section = self.store.section()?;
        let live = self.live(index);
        if live
            .lock
            .acquire(&self.store.control, self.store.process_slot()?)?
            == Acquired::Abandoned
        {
            live.flags.fetch_or(flag::TORN, AcqRel);
        }
        let lock = LiveLock(live, section);
        if live.flags.load(Relaxed) & flag::TORN != 0 {
            self.repair_live(index)?;
        }
        Ok(lock)
    }

    /// As `Opens::live_acquire`, for an object of this node.
    ///
    /// # Errors
    /// ENOENT if the object was removed; ENFILE if [`MAX_LIVE`] objects are open.
    pub fn live_acquire_here(self, id: ObjectId) -> Result<(u32, Held<'s>)> {
        self.live_acquire_with(id, |index| self.live_load(index, id))
    }

    /// Adds a use of an object; `load` fills its live entry, unless another process has filled it.
    ///
    /// # Errors
    /// Those of `load`; ENFILE.
    pub fn live_acquire_with(
        self,
        id: ObjectId,
        load: impl FnOnce(u32) -> Result<()>,
    ) -> Result<(u32, Held<'s>)> {
        let held = self.place()?;
        let section = self.store.section()?;
        let mut until = None;
        let index = loop {
            let chain = Chain::lock(self.store, id.0)?;
            break match chain.find(id.0) {
                Some(index) if self.live(index).flags.load(Acquire) & flag::GONE != 0 => {
                    drop(chain);
                    self.wait_for_removal(index, id)?;
                    // The entry's last user may be stopped in the middle of the removal, so the
                    // wait is limited.
                    let now = Instant::now();
                    if now > *until.get_or_insert(now + PLACE_TIMEOUT) {
                        return Err(Errno::TIMEDOUT);
                    }
                    continue;
                }
                Some(index) => {
                    self.live(index).refs.fetch_add(1, AcqRel);
                    index
                }
                None => self.live_new(&chain, id)?,
            };
        };
        held.set(index);
        drop(section);
        match load(index) {
            Ok(()) => Ok((index, held)),
            Err(e) => {
                let _section = self.store.section()?;
                drop(held);
                self.live_release(index)?;
                Err(e)
            }
        }
    }

    /// Takes a free live entry for `id`, with one user.
    #[inline]
    pub(crate) fn live_new(&self, chain: &Chain<'_>, id: ObjectId) -> Result<u32> {
        let index = self.store.control.take_live()?.ok_or(Errno::NFILE)?;
        let live = self.live(index);
        assert!(
            live.refs.load(Relaxed) == 0,
            "a free live entry has no user: {index}"
        );
        // A process may still read the entry through its former chain (`live_probe`). If that
        // process sees any of these stores, it also sees that the former chain's version has
        // changed: hence Release, here and in all stores below.
        live.id.store(id.0, Release);
        live.refs.store(1, Relaxed);
        live.flags.store(0, Release);
        live.copy.store(0, Relaxed);
        // This counter lets caches of extents distinguish the objects that use an entry one after
        // the other.
        live.moved.fetch_add(2, Relaxed);
        chain.insert(index);
        Ok(index)
    }

    /// Makes the live entry of a file that is being created, with one user. The shard of the file's
    /// record is locked.
    pub(crate) fn live_of_new(&self, id: ObjectId, inode: &Inode) -> Result<u32> {
        let chain = Chain::lock(self.store, id.0)?;
        let index = self.live_new(&chain, id)?;
        let live = self.live(index);
        live.extents.store(0, Relaxed);
        set_loaded(live, inode, flag::LOADED);
        Ok(index)
    }

    /// Frees an entry that no process uses any more.
    #[inline]
    pub(crate) fn live_end(&self, chain: Chain<'_>, index: u32) {
        let live = self.live(index);
        assert!(
            live.refs.load(Acquire) <= 1,
            "a live entry ends with its last user: {index}"
        );
        self.store.control.finisher(index).store(0, Relaxed);
        live.refs.store(0, Release);
        chain.remove(index);
        live.id.store(0, Release);
        drop(chain);
        self.store
            .control
            .header()
            .free_live
            .push(index, &live.next);
    }

    /// Waits while the last user of an entry removes the entry's object. Returns ENOENT once it is
    /// removed; Ok if the caller must look the entry up again: the object may exist after all (the
    /// user died, or a failed removal had marked the entry).
    fn wait_for_removal(&self, index: u32, id: ObjectId) -> Result<()> {
        let lock = self.lock_live(index)?;
        let live = lock.0;
        if live.id.load(Relaxed) != id.0 || live.flags.load(Acquire) & flag::GONE == 0 {
            return Ok(());
        }
        let finisher = self.store.control.finisher(index).load(Acquire);
        if finisher != 0 && identity_lives(&self.store.control, finisher) && self.named(id)? {
            // The process that removes the object is about to find out that the object has a name.
            yield_now();
            return Ok(());
        }
        if !self.named(id)? {
            return Err(Errno::NOENT);
        }
        live.flags.fetch_and(!(flag::GONE | flag::UNLINKED), AcqRel);
        Ok(())
    }

    /// Whether the object exists and has a name, according to its record.
    fn named(&self, id: ObjectId) -> Result<bool> {
        let records = self.store.records_of(id)?;
        Ok(records.inode(id)?.is_some_and(|(i, _)| i.nlink > 0))
    }

    /// Reads the record into the entry, unless another process has done so.
    fn live_load(&self, index: u32, id: ObjectId) -> Result<()> {
        let live = self.live(index);
        let shard = self.store.files.shard_of(id);
        fence(SeqCst);
        self.store.wait_even(shard, |s| s.removing.load(SeqCst))?;
        if live.flags.load(Acquire) & flag::LOADED != 0 {
            return Ok(());
        }
        let _lock = self.lock_live(index)?;
        if live.flags.load(Acquire) & flag::LOADED != 0 {
            return Ok(());
        }
        let records = self.store.records(shard)?;
        let (inode, tail_bytes) = records.inode(id)?.ok_or(Errno::NOENT)?;
        let mut flags = flag::LOADED;
        let mut extents = ChunkMap::default();
        match inode.tail {
            tail::DATA => flags |= flag::INLINE,
            tail::EXTENTS => extents = ChunkMap::decode(tail_bytes).ok_or(Errno::IO)?,
            _ => {}
        }
        if self.store.durability().journal_state().loaded.load(Relaxed) != 0
            && flags & flag::INLINE == 0
        {
            flags |= flag::TAIL;
        }
        self.set_extents(index, &extents)?;
        set_loaded(live, &inode, flags);
        Ok(())
    }

    /// Stores the extents of chunk 0.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for them.
    pub(crate) fn set_extents(&self, index: u32, map: &ChunkMap) -> Result<()> {
        self.store
            .control
            .reserve_extents(index, map.extents().len())?;
        let live = self.live(index);
        for (n, e) in map.extents().iter().enumerate().take(MAX_EXTENTS) {
            self.store.control.extent(index, n).store(e.0, Relaxed);
        }
        live.extents.store(map.extents().len() as u32, Release);
        Ok(())
    }

    /// Adds a reference to an entry that has references.
    pub fn live_retain(&self, index: u32) {
        let before = self.live(index).refs.fetch_add(1, AcqRel);
        debug_assert!(
            before > 0,
            "an entry that gets one more user has users: {index}"
        );
    }

    /// Drops a use of an entry. With the last use, writes back the entry, or removes the object if
    /// it has no name any more.
    ///
    /// # Errors
    /// Those of writing the record (ENOSPC, EIO); the entry is released all the same, but stays in
    /// the table if it couldn't be written.
    pub fn live_release(&self, index: u32) -> Result<()> {
        let _section = self.store.section()?;
        let live = self.live(index);
        let id = live.id.load(Relaxed);
        loop {
            let chain = Chain::lock(self.store, id)?;
            assert!(
                live.refs.load(Acquire) > 0,
                "a use that ends was counted: {index}"
            );
            if live.refs.load(Acquire) > 1 {
                // Removes only a mark of this process: another process may be finishing the entry
                // just now.
                let me = identity(&self.store.control, self.store.process_slot()?);
                let _ = self
                    .store
                    .control
                    .finisher(index)
                    .compare_exchange(me, 0, AcqRel, Relaxed);
                live.refs.fetch_sub(1, AcqRel);
                return Ok(());
            }
            let unfinished = flag::DIRTY | flag::UNLINKED | flag::TORN | flag::MAPPED;
            let flags = live.flags.load(Acquire);
            // A lock held now belongs to a user that died. That user may have left the entry half
            // changed.
            if flags & flag::REMOTE != 0 {
                let number = live.ctime.load(Relaxed) as u64;
                let part = live.part.swap(0, AcqRel);
                let copy = live.copy.swap(0, AcqRel);
                if live.lock.holder().is_some() {
                    // The lock was held by a dead user. There is nothing to repair.
                    let _: Acquired = live
                        .lock
                        .acquire(&self.store.control, self.store.process_slot()?)?;
                    live.lock.release();
                }
                self.live_end(chain, index);
                self.store.local_copies().release_copy(copy);
                if let Some(part) = part.checked_sub(1) {
                    self.live_release(part)?;
                }
                let remote = self.store.remote.as_ref().ok_or(Errno::NODEV)?;
                remote.closed(ObjectId(id), number);
                return Ok(());
            }
            if flags & unfinished == 0 && live.lock.holder().is_none() {
                let copy = live.copy.swap(0, AcqRel);
                self.live_end(chain, index);
                self.store.local_copies().release_copy(copy);
                return Ok(());
            }
            self.store.control.finisher(index).store(
                identity(&self.store.control, self.store.process_slot()?),
                Release,
            );
            if flags & flag::UNLINKED != 0 {
                live.flags.fetch_or(flag::GONE, AcqRel);
            }
            drop(chain);
            if let Err(e) = self.live_finish(index) {
                let chain = Chain::lock(self.store, id)?;
                self.store.control.finisher(index).store(0, Release);
                live.flags.fetch_and(!flag::GONE, AcqRel);
                live.refs.fetch_sub(1, AcqRel);
                drop(chain);
                // The entry may have no user any more: the next repair tries the removal again.
                self.store.control.header().leaks.store(1, Release);
                return Err(e);
            }
        }
    }

    fn live_finish(&self, index: u32) -> Result<()> {
        if self.live(index).flags.load(Acquire) & flag::UNLINKED != 0 {
            self.store.content().remove_object(index)
        } else {
            self.store.content().flush(index, true)?;
            // A file that can't be sealed for lack of room stays as it is: unverified, but
            // complete.
            let _ = self.store.content().seal_chunks(index);
            Ok(())
        }
    }

    /// The live table's view of `id`, if it is open.
    pub(crate) fn live_probe(&self, id: ObjectId) -> Result<Option<LiveView>> {
        let bucket = self.store.control.bucket(id.0);
        for _ in 0..100 {
            let version = bucket.version.load(Acquire);
            if !version.is_multiple_of(2) {
                spin_loop();
                continue;
            }
            let mut next = bucket.head.load(Acquire);
            let mut found = None;
            for _ in 0..1000 {
                if next == 0 {
                    break;
                }
                let live = self.store.control.live(next - 1);
                if live.id.load(Relaxed) == id.0 {
                    found = view(live);
                    break;
                }
                next = live.next.load(Acquire);
            }
            fence(Acquire);
            if bucket.version.load(Relaxed) == version {
                return Ok(found);
            }
        }
        let _critical = Critical::enter();
        let chain = Chain::lock(self.store, id.0)?;
        Ok(chain.find(id.0).and_then(|i| view(self.live(i))))
    }

    /// If `id` is open, marks it as having no name, so that its last user removes it. With `undo`,
    /// removes the mark.
    pub(crate) fn live_mark_unlinked(&self, id: ObjectId, undo: bool) -> Result<bool> {
        let chain = Chain::lock(self.store, id.0)?;
        let Some(index) = chain.find(id.0) else {
            return Ok(false);
        };
        let live = self.live(index);
        if undo {
            live.flags.fetch_and(!flag::UNLINKED, AcqRel);
        } else {
            live.flags.fetch_or(flag::UNLINKED, AcqRel);
        }
        Ok(true)
    }

    /// Marks an open object as having no name (O_TMPFILE).
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn live_set_unlinked(&self, id: ObjectId) -> Result<()> {
        let _critical = Critical::enter();
        self.live_mark_unlinked(id, false).map(|_| ())
    }

    /// Whether any process has the object open.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn is_open(&self, id: ObjectId) -> Result<bool> {
        // The reference that the caller holds counts as one.
        let is_open = |index: u32| self.live(index).refs.load(Acquire) > 1;
        Ok(self.with_live(id, is_open)?.unwrap_or(false))
    }

    /// If `id` is open, calls `f` with its live entry. The entry is locked meanwhile.
    pub fn with_live<T>(&self, id: ObjectId, f: impl FnOnce(u32) -> T) -> Result<Option<T>> {
        let held = self.place()?;
        let section = self.store.section()?;
        let index = {
            let chain = Chain::lock(self.store, id.0)?;
            let Some(index) = chain.find(id.0) else {
                return Ok(None);
            };
            if self.live(index).flags.load(Acquire) & flag::GONE != 0 {
                return Ok(None);
            }
            self.live(index).refs.fetch_add(1, AcqRel);
            index
        };
        held.set(index);
        let result = self.lock_live(index).map(|_lock| f(index));
        drop(held);
        self.live_release(index)?;
        drop(section);
        result.map(Some)
    }
}

/// Returns a number for one use of another node's file. No other use has this number.
pub fn new_use() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    // Other processes may have the same time, and so may threads of one process.
    let count = u64::from(COUNT.fetch_add(1, Relaxed) & 0xff);
    (now << 8 | count) ^ u64::from(crate::process::pid()) << 42
}

/// Fills a live entry from the inode. From here on the entry, not the record, is authoritative.
pub(crate) fn set_loaded(live: &Live, inode: &Inode, flags: u32) {
    live.size.store(inode.size, Release);
    live.pages.store(inode.pages, Release);
    live.mtime.store(inode.mtime, Release);
    live.ctime.store(inode.ctime, Release);
    live.controls.store(inode.controls, Release);
    live.edition.store(inode.edition, Release);
    let id = ObjectId(live.id.load(Relaxed));
    if id.is_copy() {
        live.copy_stamp().store(inode.copy_stamp, Release)
    } else {
        live.cuts.store(inode.cuts, Release)
    }
    let parts = if inode.is_spread { flag::PARTS } else { 0 };
    live.set_privileged(inode.mode);
    live.lease_until.store(0, Relaxed);
    live.flags
        .fetch_or(flags | parts | at_origin(inode), AcqRel);
}

/// The mode bits by which a program runs with the rights of its file's owner and group.
const PRIVILEGES: u32 = 0o6000;

impl Live {
    /// Whether the mode has bits (setuid, setgid) that are removed when a process changes the
    /// bytes.
    #[inline]
    pub fn is_privileged(&self) -> bool {
        self.flags.load(Relaxed) & flag::PRIVILEGED != 0
    }

    /// Records whether the object's mode, now `mode`, has such bits (setuid, setgid).
    pub fn set_privileged(&self, mode: u32) {
        if mode & PRIVILEGES != 0 {
            self.flags.fetch_or(flag::PRIVILEGED, AcqRel);
        } else if self.is_privileged() {
            self.flags.fetch_and(!flag::PRIVILEGED, AcqRel);
        }
    }
}

/// Flags for a file's live entry: how much of the file is at the pool's origin.
pub(crate) fn at_origin(inode: &Inode) -> u32 {
    match inode.is_file() {
        true if inode.origin.is_released() => flag::RELEASED,
        true if inode.origin.is_clean(inode.ctime) => flag::CLEAN,
        _ => 0,
    }
}

fn view(live: &Live) -> Option<LiveView> {
    (live.flags.load(Acquire) & (flag::LOADED | flag::REMOTE) == flag::LOADED).then(|| LiveView {
        size: live.size.load(Acquire),
        pages: live.pages.load(Relaxed),
        mtime: live.mtime.load(Relaxed),
        ctime: live.ctime.load(Relaxed),
        cuts: live.cuts.load(Acquire),
        parts: live.flags.load(Relaxed) & flag::PARTS != 0,
        controls: live.controls.load(Acquire),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_region::{HELD_PLACES, MORE_HELD};
    use crate::process;
    use crate::repair::tests::{make, store, write};
    use crate::{OriginMark, OriginState, SetAttr};

    #[test]
    fn many_threads_find_a_place_and_too_many_get_an_error() {
        let s = store("live-places");
        let few: Vec<_> = (0..64).map(|_| s.objects().place().unwrap()).collect();
        drop(few);
        let all: Vec<_> = (0..HELD_PLACES + MORE_HELD)
            .map(|_| s.objects().place().unwrap())
            .collect();
        assert!(matches!(s.objects().place(), Err(Errno::AGAIN)));
        drop(all);
        s.objects().place().unwrap();
    }

    #[test]
    fn what_many_threads_of_a_dead_process_held_is_given_back() {
        let s = store("live-places-of-the-dead");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        let before = s.objects().live(index).refs.load(Acquire);
        let (mine, dead) = (
            s.process_slot().unwrap(),
            process::attach(&s.control).unwrap(),
        );
        // As 64 threads of another process would.
        let area = s.areas().map(dead).unwrap();
        crate::lending::lend(dead, area);
        for _ in 0..64 {
            let (same, held) = s.objects().live_acquire_here(id).unwrap();
            assert_eq!(same, index);
            std::mem::forget(held);
        }
        s.end_lending();
        assert_eq!(s.process_slot(), Ok(mine));
        assert_eq!(s.objects().live(index).refs.load(Acquire), before + 64);
        // Both the recount and the reaping find all 64 uses.
        assert_eq!(
            crate::recount::count_uses(&s).unwrap().lives[index as usize],
            64
        );
        let owner = &s.control.process(dead as usize).owner;
        owner.store(owner.load(Acquire) ^ 1, Release);
        assert_eq!(s.recovery().reap().unwrap().processes, 1);
        assert_eq!(s.objects().live(index).refs.load(Acquire), before);
        s.objects().live_release(index).unwrap();
    }

    #[test]
    fn bytes_that_come_in_are_no_change_and_those_of_programs_are() {
        let s = store("live-released");
        let id = make(&s, "f");
        let mark = |state| {
            let mark = OriginMark {
                state,
                ..OriginMark::default()
            };
            let set = SetAttr {
                origin: Some(mark),
                ..SetAttr::default()
            };
            s.names().set_attr_here(id, &set).unwrap();
        };
        let times = |index| {
            let live = s.objects().live(index);
            (live.mtime.load(Acquire), live.ctime.load(Acquire))
        };
        let changes = |index| {
            let before = times(index);
            std::thread::sleep(std::time::Duration::from_millis(20));
            write(&s, index, 0, b"some bytes");
            times(index) != before
        };
        mark(OriginState::Released);
        let index = s.objects().live_acquire_here(id).unwrap().0;
        assert!(!changes(index));
        mark(OriginState::Archived);
        assert!(changes(index));
        // An eviction is tried: programs that have the file open may write.
        mark(OriginState::Released);
        assert!(changes(index));
        mark(OriginState::Archived);
        assert!(changes(index));
        s.objects().live_release(index).unwrap();
    }
}

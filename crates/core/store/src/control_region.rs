//! The control region: the part of a node store that lives in shared memory only.
//!
//! One file, mapped by every process: shard states, the table of attached processes, the
//! live table (one entry per open object: its true size and times while it is being
//! written), open file descriptions (offsets shared by dup and fork), and the times of
//! recently changed directories. All of it can be lost with the node: what must outlive
//! the processes is in the records. Everything is made of atomics; locks are
//! [`crate::lock::Lock`]s, which survive the death of their holder.
//!
//! Sizes are fixed when the region is made ([`Limits`]) and the file is sparse: only what is used
//! takes memory. [`Layout`] says where each table lies. No byte is touched before its memory is
//! reserved, so a full /dev/shm causes ENOSPC, never SIGBUS. Tables that all processes use have
//! memory from the start; the long tables and the areas of processes get memory in steps
//! ([`FreeList::pop`], [`Control::reserve_area`]).
//!
//! `layout.rs`: limits, and positions of tables; `shared.rs`: entries of the tables; `states.rs`:
//! parts of the header that belong to one module each; `free_list.rs`: lists of unused entries.
//! This file: the region as a whole, and memory for the tables that grow.

use crate::map_table::MapTable;
pub use crate::map_table::{MapRef, map_flag};
use forebay_media::{PAGE, Region, memory};
use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, futex};
use forebay_runtime::slots::Table;
pub use forebay_runtime::{process::state as slot_state, slots::MAX_PROCESSES};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};

pub use forebay_records::record::{MAX_EXTENTS, NAME_MAX};
pub use free_list::{FreeList, RESERVED_ENTRIES};
pub use layout::*;
pub use shared::*;
pub use states::*;

mod free_list;
mod layout;
mod shared;
mod states;

/// Number of process slots at the beginning of the table that are a reserve, like
/// [`RESERVED_ENTRIES`].
pub const RESERVED_PROCESSES: usize = if cfg!(loom) { 0 } else { 64 };
/// Maximum length of a path, the closing zero included. Bytes.
pub const PATH_MAX: usize = 4096;

const MAGIC: u64 = 0x3831_4c54_4359_4246; // "FBYCTL18"
/// Minimum and maximum by which a table grows at a time; between them, by a quarter. Bytes.
const GROWS: (u64, u64) = (64 << 10, 4 << 20);
/// Memory that each table has from the beginning. Bytes. With this memory and the areas of the
/// first `FIRST_SLOTS` slots, programs on a full /dev/shm can start, open files, and remove some.
const FIRST: u64 = 128 << 10;
pub(crate) const FIRST_SLOTS: usize = if cfg!(loom) { MAX_PROCESSES } else { 64 };
/// Number of reserved slots whose areas have memory from the beginning: for processes that release
/// what dead ones hold.
const FIRST_RESERVED: usize = if cfg!(loom) { 0 } else { 4 };

/// The lists of unused entries: name and entries of each; None: the list is damaged.
pub(crate) type Lists<'a> = [(&'a str, Option<Vec<u32>>); 3];

/// Reserves memory for a part of the region's file; does nothing if `path` is empty.
fn reserve(path: &Path, at: usize, len: usize) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let open = || rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    memory::reserve(
        forebay_runtime::fd::with_room(open)?,
        false,
        at as u64,
        len as u64,
    )
}

/// Reserves memory for the whole region except the tables that grow and the areas of processes.
fn reserve_fixed(path: &Path, layout: &Layout) -> Result<()> {
    reserve(path, 0, layout.live_at)?;
    let chains = layout.lock_chains_at;
    reserve(path, chains, layout.file_locks_at - chains)
}

/// The mapped control region.
pub struct Control {
    region: Region,
    layout: Layout,
    /// Path of the region's file; empty in tests whose region has all its memory from the start.
    path: PathBuf,
}

/// The table of attached processes.
impl Table for Control {
    const RESERVED_SLOTS: usize = RESERVED_PROCESSES;
    const FIRST: usize = FIRST_SLOTS;

    #[inline]
    fn owner(&self, slot: u32) -> &AtomicU64 {
        &self.process(slot as usize).owner
    }

    #[inline]
    fn generation(&self, slot: u32) -> &AtomicU32 {
        &self.process(slot as usize).generation
    }

    #[inline]
    fn waits_for(&self, slot: u32) -> &AtomicU32 {
        &self.process(slot as usize).waits_for
    }
}

impl Control {
    /// Reserves memory for a part of the region's file. A process that has no descriptor left, or
    /// has become another user, can't open the file. Such a process reserves the memory through the
    /// mapping, which its forked children have, too.
    ///
    /// # Errors
    /// ENOSPC; errors of open, if the kernel can't reserve memory through a mapping (before 5.14).
    fn reserve(&self, at: usize, len: usize) -> Result<()> {
        match reserve(&self.path, at, len) {
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::ACCESS | Errno::PERM)) => self
                .reserve_mapped(at, len)
                .map_err(|why| if why == Errno::INVAL { e } else { why }),
            done => done,
        }
    }

    /// As [`Control::reserve`], through a mapping of the file.
    fn reserve_mapped(&self, at: usize, len: usize) -> Result<()> {
        let (from, end) = (at - at % PAGE, (at + len).next_multiple_of(PAGE));
        if end <= self.region.len() {
            memory::reserve_mapped(&self.region, from, end - from)
        } else {
            let behind = self.region.map_behind(from, end - from)?;
            memory::reserve_mapped(&behind, 0, end - from)
        }
    }

    /// Creates and formats the file `path`, with memory for the parts that all processes use.
    ///
    /// # Errors
    /// EEXIST, ENOSPC and errors of open.
    pub fn create(path: &Path, shards: usize, limits: Limits) -> Result<Control> {
        let layout = Layout::of(limits);
        // Only the shared part is mapped: with the areas of all processes it would need tens of GiB
        // of address space (`ulimit -v`).
        let region = Region::create_part(path, layout.file_len(), layout.areas_at)?;
        // The memory is reserved before any byte of the region is touched (else SIGBUS).
        reserve_fixed(path, &layout)?;
        Control::format(&region, shards, limits);
        let control = Control {
            region,
            layout,
            path: path.to_owned(),
        };
        control.reserve_first()?;
        Ok(control)
    }

    /// Reserves memory for the first entries of the tables, and the first areas.
    fn reserve_first(&self) -> Result<()> {
        let h = self.header();
        for (list, tables) in [
            (&h.free_live, &self.live_tables()[..]),
            (&h.free_open, &self.open_tables()),
            (&h.free_locks, &self.lock_tables()),
        ] {
            let size: usize = tables.iter().map(|(_, size)| size).sum();
            let entries = (FIRST as usize / size).min(self.layout.limits.open as usize);
            for (at, size) in tables {
                reserve(&self.path, *at, entries * size)?;
            }
            list.room.store(entries as u32, Release);
        }
        let kept = RESERVED_PROCESSES;
        let slots = (0..FIRST_RESERVED).chain(kept..kept + FIRST_SLOTS);
        slots
            .map(|slot| slot as u32)
            .try_for_each(|slot| self.reserve_area(slot))
    }

    /// The tables that grow with the list of live entries: offset of each table, and size of one of
    /// its entries. Bytes.
    fn live_tables(&self) -> [(usize, usize); 2] {
        let l = &self.layout;
        [
            (l.live_at, size_of::<Live>()),
            (l.finishers_at, size_of::<AtomicU32>()),
        ]
    }

    fn open_tables(&self) -> [(usize, usize); 2] {
        let l = &self.layout;
        [
            (l.open_at, size_of::<Open>()),
            (l.open_owners_at, size_of::<AtomicU32>()),
        ]
    }

    fn lock_tables(&self) -> [(usize, usize); 1] {
        [(self.layout.file_locks_at, size_of::<FileLock>())]
    }

    /// Sets the path of the region's file, so that the tables can grow.
    pub fn in_file(self, path: &Path) -> Control {
        Control {
            path: path.to_owned(),
            ..self
        }
    }

    /// Reserves memory for further entries of `tables`, from index `from` on. A table is given by
    /// its offset and the size of its entries. Returns the index up to which entries have memory.
    #[cold]
    fn grow(&self, tables: &[(usize, usize)], from: u32) -> Result<u32> {
        assert!(
            from < self.layout.limits.open,
            "a table grows within its limit"
        );
        let limit = self.layout.limits.open;
        if self.path.as_os_str().is_empty() {
            return Ok(limit);
        }
        let size: usize = tables.iter().map(|(_, size)| size).sum();
        let step = (u64::from(from) * size as u64 / 4).clamp(GROWS.0, GROWS.1);
        // If there is no memory for a whole step, reserves memory for one entry.
        for step in [step, size as u64] {
            let entries = (step as usize / size).clamp(1, (limit - from) as usize);
            let reserved = tables.iter().try_for_each(|&(at, size)| {
                self.reserve(at + from as usize * size, entries * size)
            });
            match reserved {
                Ok(()) => return Ok(from + entries as u32),
                Err(Errno::NOSPC) if step as usize > size => {}
                Err(e) => return Err(e),
            }
        }
        Err(Errno::NOSPC)
    }

    /// Takes a free live entry; None if all are taken.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for more of them.
    pub fn take_live(&self) -> Result<Option<u32>> {
        let tables = self.live_tables();
        let free = &self.header().free_live;
        free.pop(
            MAX_LIVE,
            |i| &self.live(i).next,
            |from| self.grow(&tables, from),
        )
    }

    /// Takes a free open file description; None if all are taken.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for more of them.
    pub fn take_open(&self) -> Result<Option<u32>> {
        let tables = self.open_tables();
        let free = &self.header().free_open;
        free.pop(
            MAX_OPEN,
            |i| &self.open_file(i).next,
            |from| self.grow(&tables, from),
        )
    }

    /// As [`Control::take_open`], but from the reserve.
    pub fn take_kept_open(&self) -> Option<u32> {
        let free = &self.header().free_open;
        free.pop_kept(MAX_OPEN, |i| &self.open_file(i).next)
    }

    /// Takes a free entry for a lock on a file; None if all are taken.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for more of them.
    pub fn take_lock(&self) -> Result<Option<u32>> {
        let tables = self.lock_tables();
        let free = &self.header().free_locks;
        free.pop(
            MAX_FILE_LOCKS,
            |i| &self.file_lock(i).next,
            |from| self.grow(&tables, from),
        )
    }

    /// Reserves memory for `count` extents of live entry `i`, if some of them lie outside of the
    /// entry. Must be called before they are stored.
    ///
    /// # Errors
    /// ENOSPC; errors of open.
    pub(crate) fn reserve_extents(&self, i: u32, count: usize) -> Result<()> {
        assert!(
            count <= MAX_EXTENTS,
            "a chunk has a place for each of its extents"
        );
        let live = self.live(i);
        let here = count <= NEAR_EXTENTS || live.far_room.load(Acquire) != 0;
        if !here && !self.path.as_os_str().is_empty() {
            let size = size_of::<FarExtents>();
            self.reserve(self.layout.far_extents_at + i as usize * size, size)?;
            live.far_room.store(1, Release);
        }
        Ok(())
    }

    /// Reserves memory for the beginning of the area of `slot`. Must be called before the area is
    /// touched.
    ///
    /// # Errors
    /// ENOSPC; errors of open.
    pub fn reserve_area(&self, slot: u32) -> Result<()> {
        let noted = &self.process(slot as usize).area;
        if noted.load(Acquire) == 0 && !self.path.as_os_str().is_empty() {
            let at = self.layout.area_at(slot);
            self.reserve(at, FDS_IN_AREA + FIRST_FDS * 4)?;
            noted.store(1, Release);
        }
        Ok(())
    }

    /// Reserves memory for descriptor numbers below `end` in the mapped area of `slot`.
    ///
    /// # Errors
    /// ENOSPC; errors of open.
    pub fn reserve_fds(&self, slot: u32, area: &ProcessArea, end: usize) -> Result<()> {
        let have = (area.fds_room.load(Acquire) as usize).max(FIRST_FDS);
        if end <= have {
            return Ok(());
        }
        let end = end.next_multiple_of(FIRST_FDS).min(MAX_FDS);
        let at = self.layout.area_at(slot) + FDS_IN_AREA;
        self.reserve(at + have * 4, (end - have) * 4)?;
        assert!(
            have < end && end <= MAX_FDS,
            "room for descriptors grows within the table"
        );
        area.fds_room.fetch_max(end as u32, AcqRel);
        Ok(())
    }

    /// Reserves memory for [`ProcessArea::held`] in the mapped area of `slot`.
    ///
    /// # Errors
    /// As for [`Control::reserve_fds`].
    pub(crate) fn reserve_held(&self, slot: u32, area: &ProcessArea) -> Result<()> {
        if area.held_room.load(Acquire) == 0 && !self.path.as_os_str().is_empty() {
            let at = self.layout.area_at(slot) + HELD_IN_AREA;
            self.reserve(at, size_of_val(&area.held))?;
            area.held_room.store(1, Release);
        }
        Ok(())
    }

    /// Reserves memory in the mapped area of `slot`: for mappings below `end`, and for the chains
    /// and bits by which mappings are found.
    ///
    /// # Errors
    /// As for [`Control::reserve_fds`].
    pub fn reserve_maps(&self, slot: u32, area: &ProcessArea, end: usize) -> Result<()> {
        let have = area.maps_room.load(Acquire) as usize;
        let most = self.layout.limits.maps as usize;
        let end = end.next_multiple_of(64).min(most);
        if end <= have {
            return Ok(());
        }
        let at = self.layout.area_at(slot);
        let places = at + size_of::<ProcessArea>();
        let size = size_of::<MapRef>();
        if have == 0 {
            let words = mark_words(self.layout.limits.maps) * size_of::<AtomicU64>();
            self.reserve(at + CHAINS_IN_AREA, places - at - CHAINS_IN_AREA)?;
            self.reserve(places + most * size, words)?;
        }
        self.reserve(places + have * size, (end - have) * size)?;
        area.maps_room.fetch_max(end as u32, AcqRel);
        Ok(())
    }

    /// Formats a new, zeroed region, which has as many bytes as the layout of `limits` says.
    pub fn format(region: &Region, shards: usize, limits: Limits) {
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        let h: &Header = unsafe { region.at(0) };
        h.shards.store(shards as u32, Relaxed);
        h.names_epoch.store(2, Relaxed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        h.born.store(now.map_or(0, |d| d.as_secs() as u32), Relaxed);
        h.take_over();
        h.open_limit.store(limits.open, Relaxed);
        h.maps_limit.store(limits.maps, Relaxed);
        for list in [&h.free_live, &h.free_open, &h.free_locks] {
            list.limit.store(limits.open, Relaxed);
        }
        // SAFETY: a Shared is made of atomics; `at` checks bounds and alignment.
        forebay_trace::shared::format(unsafe { region.at(TRACED_AT) });
        h.magic.store(MAGIC, Release);
    }

    /// Formats this region again, after it has been zeroed.
    ///
    /// # Errors
    /// ENOSPC if there is no memory for it.
    pub(crate) fn reformat(&self, shards: usize) -> Result<()> {
        reserve_fixed(&self.path, &self.layout)?;
        Control::format(&self.region, shards, self.layout.limits);
        self.reserve_first()
    }

    /// The layout of the region that begins with `header`; None if it isn't a control region of
    /// this version.
    fn layout_in(header: &Header) -> Option<Layout> {
        let limits = Limits {
            open: header.open_limit.load(Relaxed),
            maps: header.maps_limit.load(Relaxed),
        };
        let shards = header.shards.load(Relaxed) as usize;
        let ok = header.magic.load(Acquire) == MAGIC && (1..=MAX_SHARDS).contains(&shards);
        limits.checked().filter(|_| ok).map(Layout::of)
    }

    /// Returns the control region in `region`, which maps at least the part that all processes
    /// share. None if it isn't a control region of this version.
    pub fn open(region: Region) -> Option<Control> {
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        let layout = Control::layout_in(unsafe { region.at(0) })?;
        let path = PathBuf::new();
        (region.len() >= layout.areas_at).then_some(Control {
            region,
            layout,
            path,
        })
    }

    /// Maps the control region in `file`.
    ///
    /// # Errors
    /// ENODATA if the file is too short; EINVAL if it isn't a control region of this version; the
    /// errors of mmap.
    pub fn map(file: &rustix::fd::OwnedFd) -> Result<Control> {
        let len = rustix::fs::fstat(file)?.st_size as usize;
        if len < align(size_of::<Header>()) {
            return Err(Errno::NODATA);
        }
        let head = Region::map(file, 0, align(size_of::<Header>()))?;
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        let layout = Control::layout_in(unsafe { head.at(0) }).ok_or(Errno::INVAL)?;
        if len != layout.file_len() {
            return Err(Errno::NODATA);
        }
        Control::open(Region::map(file, 0, layout.areas_at)?).ok_or(Errno::INVAL)
    }

    /// The offsets of all tables.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The node's tracing: switches, settings, slow operations.
    pub fn traced(&self) -> &forebay_trace::shared::Shared {
        // SAFETY: a Shared is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(TRACED_AT) }
    }

    /// Maps the area of process slot `i` without a descriptor.
    ///
    /// # Errors
    /// Those of mremap.
    pub(crate) fn area(&self, i: usize) -> rustix::io::Result<Region> {
        let (at, len) = (self.layout.areas_at, self.layout.area_len);
        self.region.map_behind(at + i * len, len)
    }

    /// The header of the region.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: a Header is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(0) }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.header().shards.load(Relaxed) as usize
    }

    /// State of shard `i`.
    pub fn shard(&self, i: usize) -> &Shard {
        debug_assert!(i < MAX_SHARDS);
        // SAFETY: a Shard is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(SHARDS_AT + i * size_of::<Shard>()) }
    }

    /// Process slot `i`.
    #[inline]
    pub fn process(&self, i: usize) -> &Process {
        debug_assert!(i < MAX_PROCESSES);
        // SAFETY: a Process is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(PROCESSES_AT + i * size_of::<Process>()) }
    }

    /// The entry that directory `id` uses in the table of directories' times. Other directories may
    /// use this entry, too.
    pub fn dir_time(&self, id: u64) -> &DirTime {
        let i = (mix(id) % DIR_TIMES as u64) as usize;
        // SAFETY: a DirTime is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(DIR_TIMES_AT + i * size_of::<DirTime>()) }
    }

    /// All entries of the table of directories' times.
    pub fn dir_times(&self) -> impl Iterator<Item = &DirTime> {
        // SAFETY: a DirTime is made of atomics; `at` checks bounds and alignment.
        (0..DIR_TIMES).map(|i| unsafe { self.region.at(DIR_TIMES_AT + i * size_of::<DirTime>()) })
    }

    /// Wakes the keeper, if it sleeps, because a process has attached.
    pub fn wake_keeper(&self) {
        let h = self.header();
        h.activity.fetch_add(1, AcqRel);
        if h.keeper_sleeps.load(Acquire) != 0 {
            futex::wake(&h.activity, 1);
        }
    }

    /// The chain of the live table that object `id` belongs to.
    pub fn bucket(&self, id: u64) -> &Bucket {
        let i = (mix(id) % self.layout.buckets as u64) as usize;
        // SAFETY: a Bucket is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) }
    }

    /// All chains of the live table.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        // SAFETY: a Bucket is made of atomics; `at` checks bounds and alignment.
        (0..self.layout.buckets)
            .map(|i| unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) })
    }

    /// The chain that contains the locks of object `id`.
    pub fn lock_chain(&self, id: u64) -> &LockChain {
        let i = (mix(id) % self.layout.lock_chains as u64) as usize;
        let at = self.layout.lock_chains_at + i * size_of::<LockChain>();
        // SAFETY: a LockChain is made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(at) }
    }

    /// All chains of locks.
    pub fn lock_chains(&self) -> impl Iterator<Item = &LockChain> {
        let at = |i| self.layout.lock_chains_at + i * size_of::<LockChain>();
        // SAFETY: a LockChain is made of atomics; `at` checks bounds and alignment.
        (0..self.layout.lock_chains).map(move |i| unsafe { self.region.at(at(i)) })
    }

    /// Entry `i` of the table of locks on files.
    pub fn file_lock(&self, i: u32) -> &FileLock {
        self.entry(self.layout.file_locks_at, i)
    }

    /// Live entry `i`.
    #[inline]
    pub fn live(&self, i: u32) -> &Live {
        self.entry(self.layout.live_at, i)
    }

    /// Place `n` for an extent of chunk 0 of live entry `i`.
    #[inline]
    pub fn extent(&self, i: u32, n: usize) -> &AtomicU64 {
        match n.checked_sub(NEAR_EXTENTS) {
            None => &self.live(i).near[n],
            Some(n) => &self.entry::<FarExtents>(self.layout.far_extents_at, i).0[n],
        }
    }

    /// The places of the first `count` extents of chunk 0 of live entry `i`.
    pub fn extents(&self, i: u32, count: usize) -> impl Iterator<Item = &AtomicU64> {
        let far: &[AtomicU64] = match count.checked_sub(NEAR_EXTENTS) {
            None | Some(0) => &[],
            Some(n) => &self.entry::<FarExtents>(self.layout.far_extents_at, i).0[..n],
        };
        self.live(i).near[..count.min(NEAR_EXTENTS)]
            .iter()
            .chain(far)
    }

    /// Identity of the process that, as the last user of live entry `i`, writes it back or removes
    /// it. (A separate table, since a process that releases what a dead process held reads all
    /// identities.)
    #[inline]
    pub fn finisher(&self, i: u32) -> &AtomicU32 {
        self.entry(self.layout.finishers_at, i)
    }

    /// Open file description `i`.
    #[inline]
    pub fn open_file(&self, i: u32) -> &Open {
        self.entry(self.layout.open_at, i)
    }

    /// Identity of the process that holds the reference to open file description `i` outside any
    /// descriptor table. (A separate table, like that of [`Control::finisher`].)
    #[inline]
    pub fn open_owner(&self, i: u32) -> &AtomicU32 {
        self.entry(self.layout.open_owners_at, i)
    }

    /// Entry `i` of the table that begins at offset `at` and has [`Limits::open`] entries.
    #[inline]
    fn entry<T>(&self, at: usize, i: u32) -> &T {
        assert!(i < self.layout.limits.open);
        // SAFETY: the tables' entries are made of atomics; `at` checks bounds and alignment.
        unsafe { self.region.at(at + i as usize * size_of::<T>()) }
    }

    /// The table of mappings in `area`, which was mapped with [`Layout::area_len`] bytes.
    pub fn maps_of<'a>(&self, area: &'a ProcessArea) -> MapTable<'a> {
        let maps = self.layout.limits.maps as usize;
        let places = std::ptr::from_ref(area).wrapping_add(1).cast::<MapRef>();
        let words = places.wrapping_add(maps).cast::<AtomicU64>();
        let marked = maps.div_ceil(64);
        // SAFETY: the tables lie behind the area in its mapping, which lives as long as the area.
        // Their entries are made of atomics.
        unsafe {
            MapTable {
                heads: &area.maps,
                chains: &area.chains,
                has_memory: area.has_maps(),
                places: std::slice::from_raw_parts(places, maps),
                marked: std::slice::from_raw_parts(words, marked),
                marked_words: std::slice::from_raw_parts(
                    words.wrapping_add(marked),
                    maps.div_ceil(64 * 64),
                ),
            }
        }
    }
}

/// Spreads ids, whose low bits are slots, over a table.
fn mix(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

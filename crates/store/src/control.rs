//! The control region: the part of a node store that lives in shared memory only.
//!
//! One file, mapped by every process: shard states, the table of attached processes, the
//! live table (one entry per open object: its true size and times while it is being
//! written), open file descriptions (offsets shared by dup and fork), and the times of
//! recently changed directories. All of it can be lost with the node: what must outlive
//! the processes is in the records. Everything is made of atomics; locks are [`Lock`]s,
//! which survive the death of their holder.
//!
//! Sizes are fixed when the region is made ([`Limits`]) and the file is sparse: only what is
//! used takes memory. [`Layout`] says where each table lies. Nothing is touched before its room
//! is reserved, so a full /dev/shm is ENOSPC, never SIGBUS. What everybody uses is reserved when
//! the region is made; the long tables and the areas of processes grow in steps
//! ([`FreeList::pop`], [`Control::reserve_area`]).

use crate::lock::Lock;
use crate::map_table::MapTable;
use forebay_media::atomics::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*, futex};
use forebay_media::{Region, memory};
use forebay_runtime::slots::Table;
pub use forebay_runtime::{process::state as slot_state, slots::MAX_PROCESSES};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};

/// Most shards of a node store.
pub const MAX_SHARDS: usize = 64;
/// Most objects open at the same time on a node of any size: see [`Limits`].
pub const MAX_LIVE: usize = MAX_OPEN;
/// Most open file descriptions at the same time on a node of any size: see [`Limits`].
pub const MAX_OPEN: usize = 1 << 20;
/// Fewest open file descriptions that any node has room for.
pub const MIN_OPEN: usize = if cfg!(loom) { 64 } else { 1 << 17 };
/// Open file descriptions that a node has room for, per core.
pub const OPEN_PER_CORE: usize = 1 << 13;
/// The first so many process slots are a reserve, as [`KEPT`].
pub const KEPT_PROCESSES: usize = if cfg!(loom) { 0 } else { 64 };
/// Descriptor numbers below this can stand for files of a pool.
pub const MAX_FDS: usize = 1 << 20;
pub use forebay_records::record::{MAX_EXTENTS, NAME_MAX};
/// Longest path in bytes, the closing zero included.
pub const PATH_MAX: usize = 4096;
/// So many of them lie in the live entry itself, the others in a table of their own: few files
/// have more, and an entry without them takes an eighth of the memory.
pub const NEAR_EXTENTS: usize = 11;

/// Most locks on files (ranges, and whole files) at the same time, on a node of any size.
pub const MAX_FILE_LOCKS: usize = MAX_OPEN;

const MAGIC: u64 = 0x3331_4c54_4359_4246; // "FBYCTL13"
const DIR_TIMES: usize = 16_384;
/// Tables grow by a quarter, but by no less and no more than so many bytes, if there is as much.
const GROWS: (u64, u64) = (64 << 10, 4 << 20);
/// Bytes of each table that have memory from the beginning, and slots of processes whose areas do:
/// on a full /dev/shm, programs can still start, open files, and remove some.
const FIRST: u64 = 128 << 10;
pub(crate) const FIRST_SLOTS: usize = if cfg!(loom) { MAX_PROCESSES } else { 64 };
/// Of the reserve, the slots whose areas have it: for those who release what dead processes hold.
const FIRST_KEPT: usize = if cfg!(loom) { 0 } else { 4 };
/// Descriptor numbers for which each area has room: what fits into its second page.
pub(crate) const FIRST_FDS: usize = 1024;

/// How many entries the tables of a control region have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open file descriptions; also open objects, and locks on files. A power of two.
    pub open: u32,
    /// Mappings of files of the pool, in each process.
    pub maps: u32,
}

impl Limits {
    /// For this machine: [`OPEN_PER_CORE`] open files for each core; as many mappings as the
    /// kernel lets a process have, and a quarter more, since the kernel may count two of ours
    /// as one.
    pub fn of_machine() -> Limits {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let maps = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let maps: Option<usize> = maps.ok().and_then(|n| n.trim().parse().ok());
        Limits::of(cores, maps.unwrap_or(LEAST_MAPS))
    }

    /// For a machine of so many cores, whose kernel lets a process have so many mappings.
    pub fn of(cores: usize, kernel_maps: usize) -> Limits {
        let open = cores
            .saturating_mul(OPEN_PER_CORE)
            .clamp(MIN_OPEN, MAX_OPEN);
        let maps = kernel_maps.saturating_add(kernel_maps / 4);
        Limits {
            open: open.next_power_of_two() as u32,
            maps: maps.clamp(LEAST_MAPS, MOST_MAPS) as u32,
        }
    }

    /// As noted in a region; None if no region has such.
    fn checked(self) -> Option<Limits> {
        let open = self.open.is_power_of_two() && self.open as usize <= MAX_OPEN;
        (open && self.maps > 0 && self.maps as usize <= MOST_MAPS).then_some(self)
    }
}

/// Fewest and most places in the table of mappings of a process.
const LEAST_MAPS: usize = if cfg!(loom) { 16 } else { 1 << 16 };
const MOST_MAPS: usize = 1 << 22;

/// Where the tables of a control region lie: offsets in bytes, and numbers of entries.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub limits: Limits,
    buckets: usize,
    lock_chains: usize,
    live_at: usize,
    far_extents_at: usize,
    finishers_at: usize,
    open_at: usize,
    open_owners_at: usize,
    lock_chains_at: usize,
    file_locks_at: usize,
    /// Where the areas of the processes begin: the part before is mapped by everyone.
    pub areas_at: usize,
    /// Bytes of one process's area.
    pub area_len: usize,
}

impl Layout {
    /// The layout of a region with these limits.
    pub fn of(limits: Limits) -> Layout {
        let open = limits.open as usize;
        let (buckets, lock_chains) = ((open / 4).max(1), (open / 16).max(1));
        let live_at = align(BUCKETS_AT + buckets * size_of::<Bucket>());
        let far_extents_at = align(live_at + open * size_of::<Live>());
        let finishers_at = align(far_extents_at + open * size_of::<FarExtents>());
        let open_at = align(finishers_at + open * size_of::<AtomicU32>());
        let open_owners_at = align(open_at + open * size_of::<Open>());
        let lock_chains_at = align(open_owners_at + open * size_of::<AtomicU32>());
        let file_locks_at = align(lock_chains_at + lock_chains * size_of::<LockChain>());
        let areas_at = align(file_locks_at + open * size_of::<FileLock>());
        let maps = limits.maps as usize;
        let words = mark_words(limits.maps);
        let area_len =
            size_of::<ProcessArea>() + maps * size_of::<MapRef>() + words * size_of::<AtomicU64>();
        Layout {
            limits,
            buckets,
            lock_chains,
            live_at,
            far_extents_at,
            finishers_at,
            open_at,
            open_owners_at,
            lock_chains_at,
            file_locks_at,
            areas_at,
            area_len: align(area_len),
        }
    }

    /// Length of the whole file in bytes.
    pub fn file_len(&self) -> usize {
        self.areas_at + MAX_PROCESSES * self.area_len
    }

    /// Where the area of `slot` begins.
    pub fn area_at(&self, slot: u32) -> usize {
        self.areas_at + slot as usize * self.area_len
    }
}

/// Words of the bits that say which of so many mappings have to lose pages.
fn mark_words(maps: u32) -> usize {
    let maps = maps as usize;
    maps.div_ceil(64) + maps.div_ceil(64 * 64)
}

/// Fixed part at the start of the region.
#[repr(C, align(64))]
pub struct Header {
    magic: AtomicU64,
    pub shards: AtomicU32,
    /// Set while a multi-shard commit of a dead process waits to be completed.
    pub recover: AtomicU32,
    /// Changes whenever a resolved directory path may have become wrong: a directory or
    /// symbolic link was moved, replaced or removed, or a directory's mode changed.
    /// Its high half is the same on all nodes of a pool, but while it changes.
    pub names_epoch: AtomicU64,
    /// The directory in which nothing may be made at the moment, since it is about to be
    /// removed; 0: none.
    pub frozen: AtomicU64,
    /// Set when something that concerns other nodes was left to be done later, by the keeper.
    pub unsettled: AtomicU32,
    /// Counts attachments: the keeper sleeps on it while nobody is attached.
    pub activity: AtomicU32,
    pub keeper_sleeps: AtomicU32,
    /// When this region was made, in seconds since 1970, and how many descriptions have locked
    /// something since: together a number for each that no other ever has.
    pub born: AtomicU32,
    pub lockers: AtomicU32,
    pub free_live: FreeList,
    pub free_open: FreeList,
    pub free_locks: FreeList,
    /// Held by the one who looks at everything at once: no section begins meanwhile, see
    /// [`crate::Store::section`].
    pub quiet: Lock,
    /// Set when a process has died in a section: entries and pages that only it knew are
    /// lost until [`crate::Store::put_in_order`] has found them.
    pub leaks: AtomicU32,
    pub journal: crate::journal::State,
    /// In which PID namespace the numbers of processes mean something; 0: not known.
    pub namespace: AtomicU64,
    pub watches: crate::watches::State,
    pub copies: crate::copies::State,
    /// Counts how often those who have files of any node open were counted, as something was to be
    /// said of one (`controls/declare.rs`): who was opening one meanwhile looks again.
    pub counts: AtomicU32,
    /// The [`Limits`] of the region.
    open_limit: AtomicU32,
    maps_limit: AtomicU32,
    /// Which process uses the pool alone (`sole.rs`); 0: none.
    pub sole_user: AtomicU32,
    /// When its keeper saw last that the pool was used, in seconds of CLOCK_BOOTTIME; 0: it didn't
    /// look.
    pub used: AtomicU64,
}

/// The first so many entries of a table are a reserve, for commands that look at a pool, mend it or
/// save its data when programs have used up all others ([`crate::process::use_reserve`]).
pub const KEPT: u32 = if cfg!(loom) { 0 } else { 64 };

/// Lock-free lists of unused entries: index + 1 in the low half of the head, a tag against
/// reuse (ABA) in the high half. Entries never used before are counted up from `fresh`; those
/// below `room` have memory. The reserve has a list and a count of its own, and always memory.
#[repr(C)]
pub struct FreeList {
    head: AtomicU64,
    /// Of those from [`KEPT`] on.
    fresh: AtomicU32,
    room: AtomicU32,
    /// Entries that this region has room for.
    limit: AtomicU32,
    /// How often there was none left.
    refused: AtomicU32,
    /// Of those below.
    kept_fresh: AtomicU32,
    kept: AtomicU64,
}

impl FreeList {
    /// The smaller one of `limit` and of what the region has room for.
    fn bound(&self, limit: usize) -> usize {
        limit.min(self.limit.load(Relaxed) as usize)
    }

    /// Entries that this region has room for.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// How often somebody wanted an entry and all were in use, since the region was made.
    pub fn refused(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    /// Takes an index below `limit`; None if all are taken. `next` gives the link field of an
    /// entry; `grow` reserves memory for entries from one on, and tells where they end.
    ///
    /// # Errors
    /// Those of `grow`.
    pub fn pop<'a>(
        &self,
        limit: usize,
        next: impl Fn(u32) -> &'a AtomicU32,
        grow: impl Fn(u32) -> Result<u32>,
    ) -> Result<Option<u32>> {
        let limit = self.bound(limit) as u32;
        if let Some(index) = take(&self.head, &next) {
            return Ok(Some(index));
        }
        let fresh = self.take_fresh(limit, grow);
        if let Ok(Some(_)) = fresh {
            return fresh;
        }
        if KEPT > 0 && crate::process::uses_reserve() {
            let kept =
                take(&self.kept, &next).or_else(|| count_up(&self.kept_fresh, KEPT.min(limit)));
            if kept.is_some() {
                return Ok(kept);
            }
        }
        if let Ok(None) = fresh {
            self.refused.fetch_add(1, Relaxed);
        }
        fresh
    }

    /// Takes the next entry from [`KEPT`] on that was never used, below `limit`.
    fn take_fresh(&self, limit: u32, grow: impl Fn(u32) -> Result<u32>) -> Result<Option<u32>> {
        let mut fresh = self.fresh.load(Relaxed);
        while fresh < limit.saturating_sub(KEPT) {
            let index = fresh + KEPT;
            if index >= self.room.load(Acquire) {
                self.room.fetch_max(grow(index)?, AcqRel);
            }
            let taken = self
                .fresh
                .compare_exchange_weak(fresh, fresh + 1, AcqRel, Relaxed);
            match taken {
                Ok(_) => return Ok(Some(index)),
                Err(now) => fresh = now,
            }
        }
        Ok(None)
    }

    /// One more than the highest index ever taken, below `limit`.
    pub fn end(&self, limit: usize) -> u32 {
        let limit = self.bound(limit) as u32;
        match (self.fresh.load(Acquire), self.kept_fresh.load(Acquire)) {
            (0, kept) => kept.min(limit),
            (fresh, _) => fresh.saturating_add(KEPT).min(limit),
        }
    }

    /// Forgets all free entries (to build the list anew). Only while nobody else uses it.
    pub fn clear(&self) {
        for head in [&self.head, &self.kept] {
            let tag = (head.load(Acquire) >> 32) + 1;
            head.store(tag << 32, Release);
        }
        if self.fresh.load(Acquire) > 0 {
            self.kept_fresh.store(KEPT, Release);
        }
    }

    /// The free entries below [`FreeList::end`]; None if a list runs in a circle, or leads out of
    /// the table. Only while nobody takes or returns any.
    pub fn walk<'a>(&self, limit: usize, next: impl Fn(u32) -> &'a AtomicU32) -> Option<Vec<u32>> {
        let limit = self.bound(limit);
        let kept = self.kept_fresh.load(Acquire).min(KEPT);
        let mut found: Vec<u32> = (kept..KEPT.min(self.end(limit))).collect();
        for head in [&self.head, &self.kept] {
            let mut at = head.load(Acquire) as u32;
            while at != 0 {
                if at as usize > limit || found.len() >= limit {
                    return None;
                }
                found.push(at - 1);
                at = next(at - 1).load(Relaxed);
            }
        }
        Some(found)
    }

    /// Gives `index` back.
    pub fn push(&self, index: u32, next: &AtomicU32) {
        let list = match index < KEPT {
            true => &self.kept,
            false => &self.head,
        };
        let mut head = list.load(Acquire);
        loop {
            // Release: for those who still look at the entry as part of a chain.
            next.store(head as u32, Release);
            let new = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match list.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Takes the first entry of a list.
fn take<'a>(list: &AtomicU64, next: &impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
    let mut head = list.load(Acquire);
    while head as u32 != 0 {
        let index = head as u32 - 1;
        let link = u64::from(next(index).load(Relaxed));
        let new = ((head >> 32) + 1) << 32 | link;
        match list.compare_exchange_weak(head, new, AcqRel, Acquire) {
            Ok(_) => return Some(index),
            Err(now) => head = now,
        }
    }
    None
}

/// Takes the next entry that was never used, of `limit`.
fn count_up(fresh: &AtomicU32, limit: u32) -> Option<u32> {
    if fresh.load(Relaxed) >= limit {
        return None;
    }
    Some(fresh.fetch_add(1, Relaxed)).filter(|&index| index < limit)
}

/// Names of lists and what is in them.
pub(crate) type Lists<'a> = [(&'a str, Option<Vec<u32>>); 3];

/// State of one shard of the records.
#[repr(C, align(64))]
pub struct Shard {
    /// Held by the one process that writes the shard.
    pub lock: Lock,
    /// Odd while a commit over several shards is under way: readers wait.
    pub multi: AtomicU32,
    /// Odd while objects may be leaving the shard: who opens one waits and looks again.
    pub removing: AtomicU32,
    pub pad: AtomicU32,
    /// Counts commits, so that a reader notices that its snapshot has grown old.
    pub commits: AtomicU64,
    /// Last sequence number given to an object.
    pub last_seq: AtomicU64,
    /// Room in the record file.
    pub room: crate::lmdb::Room,
    /// Position + 1 in the journal of the commit that is under way; 0: none.
    pub pending: AtomicU64,
}

/// One attached process.
#[repr(C, align(64))]
pub struct Process {
    /// State, process id and start time in one word, so that they change together: see
    /// [`crate::process`]. 0: free.
    pub owner: AtomicU64,
    /// Counts the owners: what an earlier one left locked isn't the present one's.
    pub generation: AtomicU32,
    /// One more than the highest descriptor number in the process's table.
    pub fds_end: AtomicU32,
    /// Sections that its threads are in: if it dies then, something may be lost.
    pub in_flight: AtomicU32,
    /// Identity of the one whose lock it has been waiting for for a while; for reports.
    pub waits_for: AtomicU32,
    /// Live entries (plus one) that it uses for the moment, without an open file
    /// description: released when it dies.
    pub held: [AtomicU32; HELD_PLACES],
    /// One more than the highest place ever used of [`ProcessArea::held`].
    pub held_end: AtomicU32,
    /// One more than the highest place in use in its table of mappings.
    pub maps_end: AtomicU32,
    /// How often others have asked it to look at its mappings, and up to which of these
    /// times it has.
    pub maps_asked: AtomicU32,
    pub maps_done: AtomicU32,
    /// It may have locks on ranges of files that end when it closes them.
    pub locked: AtomicU32,
    /// Not 0: the beginning of its area has memory (also of a former owner's).
    pub area: AtomicU32,
    /// What its threads wait for.
    pub waits: [Wait; MAX_WAITS],
}

/// Most threads of one process whose waits for locks are seen by those who look for a deadlock.
pub const MAX_WAITS: usize = 4;

/// A wait for a lock of the process on a range.
#[repr(C)]
pub struct Wait {
    /// 0: none; 1: being written; else tells it from all other waits, and which is the later one.
    pub stamp: AtomicU64,
    pub object: AtomicU64,
    pub start: AtomicU64,
    pub end: AtomicU64,
    /// The node that keeps the locks of the object.
    pub home: AtomicU32,
    pub kind: AtomicU32,
}

/// Threads of one process that may be opening or closing at the same time with a place in its slot.
/// Further ones have places in its area: [`MORE_HELD`].
pub const HELD_PLACES: usize = 25;
/// Further threads of one process that may be opening or closing at the same time. Those beyond
/// wait for a place, for at most [`crate::live::PLACE_PATIENCE`].
pub const MORE_HELD: usize = if cfg!(loom) { 1 } else { 4096 };

/// Flags of an open file description besides the system's, which has no such bits.
pub mod open_flag {
    /// What happens by it is told to those who watch (`watches.rs`).
    pub const TOLD: u32 = 1 << 30;
    /// Its file may be laminated when it ends (`controls.rs`).
    pub const LAMINATES: u32 = 1 << 29;
    /// All of them.
    pub const OURS: u32 = TOLD | LAMINATES;
}

/// Flags of a live object.
pub mod live_flag {
    /// Size, times and extents have been read from the record.
    pub const LOADED: u32 = 1;
    /// They are newer than the record.
    pub const DIRTY: u32 = 2;
    /// No name is left: the object goes with its last user.
    pub const UNLINKED: u32 = 4;
    /// The data lies in the record.
    pub const INLINE: u32 = 8;
    /// Somebody has mapped it: its pages must stay where they are until its last user leaves.
    pub const MAPPED: u32 = 16;
    /// Its last user is removing it: nobody can become a user any more.
    pub const GONE: u32 = 32;
    /// Its lock was left by a dead process and the entry isn't repaired yet.
    pub const TORN: u32 = 64;
    /// What lies behind the end in the last page may not be zero.
    pub const TAIL: u32 = 128;
    /// Truncation has left pages behind the end, because somebody has them mapped.
    pub const CUT: u32 = 256;
    /// It stands for an object of another node: there is nothing but this in the entry.
    pub const AWAY: u32 = 512;
    /// Of a striped file: other nodes may have parts of it; its home knows.
    pub const PARTS: u32 = 1024;
    /// Of a striped file: behind the end, in chunk 0, may lie what will be part of it when a longer
    /// write ends.
    pub const BEHIND: u32 = 2048;
    /// It lies elsewhere, and a process of this node maps a copy of it, or has done so.
    pub const COPIED: u32 = 4096;
    /// Something was said of it while others had it open, who may not know (`stripes/seal.rs`).
    pub const SAID: u32 = 8192;
    /// Of a striped file: the other nodes' parts know that their bytes lie on `files` media
    /// (`data/on_files.rs`).
    pub const ON_FILES: u32 = 16384;
}

/// Flags of a mapping.
pub mod map_flag {
    /// Writes through it reach the file.
    pub const SHARED: u32 = 1;
    /// It is shared and has been writable: the file's times change when it goes.
    pub const CHANGES: u32 = 2;
    /// Some of its pages may not be there.
    pub const PARTIAL: u32 = 4;
    /// Its descriptor isn't open for writing.
    pub const READ_ONLY: u32 = 8;
    /// It shows this node's copy of a file whose bytes lie elsewhere.
    pub const COPY: u32 = 16;
    /// Its pages stay in it when the file is cut: nobody waits for that they go.
    pub const STAYS: u32 = 32;
}

/// One open object. Size, times and the extents of chunk 0 are the truth while it is
/// dirty; the rest of its attributes are in the record.
#[repr(C, align(64))]
pub struct Live {
    pub id: AtomicU64,
    /// Next entry of the bucket (index + 1), or of the free list.
    pub next: AtomicU32,
    /// Open file descriptions and others that use the entry. Under the bucket's lock.
    pub refs: AtomicU32,
    /// Held for every change of the object's data or extents.
    pub lock: Lock,
    pub flags: AtomicU32,
    /// Odd while extents are taken away or move; changes with each time they do.
    pub moved: AtomicU64,
    pub size: AtomicU64,
    pub mtime: AtomicI64,
    /// Of a file of another node: the number by which its home knows that it is open here.
    pub ctime: AtomicI64,
    /// Pages of all extents.
    pub pages: AtomicU64,
    /// Number of extents of chunk 0.
    pub extents: AtomicU32,
    /// Not 0: the extents that lie outside of the entry have memory.
    far_room: AtomicU32,
    /// Of a striped file and its parts: how often it was cut (`stripes.rs`).
    pub cuts: AtomicU64,
    /// Of one that stands for another node's object: the live entry of its part here, plus one,
    /// which it uses.
    pub part: AtomicU32,
    /// Of a striped file: how often it was appended to under a lease, or in chunk 0 over what lies
    /// behind its end.
    pub appends: AtomicU32,
    /// Of a striped file: number of the last lease, until when it holds (milliseconds of the clock
    /// that doesn't stop; 0: it is over), node and identity of who has it. Locked. Of one that
    /// stands for another node's object, `lease_until` is something else: `peers/leases.rs`.
    pub lease: AtomicU64,
    pub lease_until: AtomicU64,
    pub lease_of: AtomicU64,
    /// As [`crate::Inode::controls`]; of what another node keeps: as told when it was opened last.
    pub controls: AtomicU64,
    /// Of a file that this node keeps: the last two nodes whose processes have changed the bytes,
    /// the later one in the lower half; their numbers plus one, 0 is this one. Locked.
    pub changed_by: AtomicU64,
    /// As [`crate::Inode::edition`], in the same way; and the size of what another node keeps,
    /// while that is odd.
    pub edition: AtomicU64,
    pub last_size: AtomicU64,
    /// The live entry of this node's copy of what lies elsewhere of it, plus one, which it uses
    /// (`copies.rs`).
    pub copy: AtomicU32,
    /// The first extents of chunk 0; the others: [`Control::extent`].
    near: [AtomicU64; NEAR_EXTENTS],
}

/// What doesn't fit into a live entry of the extents of chunk 0.
#[repr(C)]
struct FarExtents([AtomicU64; MAX_EXTENTS - NEAR_EXTENTS]);

const _: () = assert!(cfg!(loom) || size_of::<Live>() == 256 && size_of::<Open>() == 384);

/// An open file description (POSIX): what dup and fork share.
#[repr(C, align(64))]
pub struct Open {
    /// Descriptors that refer to it, in all processes.
    pub refs: AtomicU32,
    /// Index of the live entry, plus one; 0 for a directory.
    pub live: AtomicU32,
    pub id: AtomicU64,
    /// O_ACCMODE, O_APPEND and so on as given to open, or changed by fcntl.
    pub flags: AtomicU32,
    /// File type bits of the mode (S_IFMT).
    pub kind: AtomicU32,
    /// Held while the offset is used and moved.
    pub lock: Lock,
    pub next: AtomicU32,
    pub offset: AtomicU64,
    /// Directory in which it was opened, for /proc/self/fd.
    pub parent: AtomicU64,
    /// For a directory: shard of the next entry, entries passed so far.
    pub shard: AtomicU32,
    pub name_len: AtomicU32,
    /// Its number among those of this node that have locked something; 0: it hasn't.
    pub locker: AtomicU32,
    pub pad: AtomicU32,
    /// For whom it was opened: a [`crate::controls::Party`].
    pub party: AtomicU64,
    /// The name it was opened by; for a directory being read, the last name returned.
    pub name: [AtomicU8; 256],
}

/// The latest modification time of a directory.
#[repr(C)]
pub struct DirTime {
    pub lock: Lock,
    pub pad: AtomicU32,
    pub id: AtomicU64,
    pub mtime: AtomicI64,
    pub spare: AtomicU64,
}

/// Head of one chain of the live table.
#[repr(C)]
pub struct Bucket {
    pub lock: Lock,
    /// First entry (index + 1).
    pub head: AtomicU32,
    /// Odd while the chain changes.
    pub version: AtomicU32,
    pub pad: AtomicU32,
}

/// A mapping of a file of the pool in a process.
#[repr(C)]
pub struct MapRef {
    pub address: AtomicU64,
    /// 0: the place only keeps the file.
    pub len: AtomicU64,
    /// Where in the file it begins.
    pub offset: AtomicU64,
    /// Its pages behind this size of the file have to go, as `u64::MAX` minus the size; 0:
    /// none.
    pub cut: AtomicU64,
    /// Open file description + 1 that keeps the file; 0: unused.
    pub open: AtomicU32,
    /// See [`map_flag`].
    pub flags: AtomicU32,
    /// The chain that it is in, and links (place + 1): see [`crate::map_table`].
    pub(crate) chain: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) previous: AtomicU32,
    pub(crate) lower: AtomicU32,
    pub(crate) higher: AtomicU32,
    pub pad: AtomicU32,
}

/// Bits of [`FileLock::kind`].
pub mod lock_kind {
    /// Nobody else can have it.
    pub const EXCLUSIVE: u32 = 1;
    /// Others can have it, too.
    pub const SHARED: u32 = 2;
    /// Of flock(2), which is in nobody's way but that of its like.
    pub const WHOLE: u32 = 4;
    /// A use of the object: see `controls.rs`. In nobody's way but that of its like.
    pub const USE: u32 = 16;
    /// Not a lock, but a note: the owner, of this node, may have locks on this object of another
    /// node.
    pub const AWAY: u32 = 8;
    /// Not a lock, but a fence: the owner's node has lost the locks that it had on this object of
    /// this node, and its programs that had the file open then don't know
    /// (`peers/serve/fences.rs`).
    pub const FENCE: u32 = 32;
}

/// A lock on a file, or on a range of it.
#[repr(C, align(64))]
pub struct FileLock {
    /// 0: unused.
    pub object: AtomicU64,
    pub start: AtomicU64,
    /// Its last byte.
    pub end: AtomicU64,
    /// Whose: see [`crate::locks::Owner`].
    pub owner: AtomicU64,
    pub node: AtomicU32,
    pub slot: AtomicU32,
    /// Number of the last change.
    pub stamp: AtomicU64,
    /// See [`lock_kind`].
    pub kind: AtomicU32,
    /// Next one of the chain (index + 1), or of the free list.
    pub next: AtomicU32,
}

/// Head of a chain of locks on files.
#[repr(C, align(64))]
pub struct LockChain {
    pub lock: Lock,
    /// First one (index + 1).
    pub head: AtomicU32,
    /// How many have begun to wait and not ended (more, if some were killed).
    pub waiters: AtomicU32,
    /// Counts releases; who waits sleeps on it.
    pub changes: AtomicU32,
}

/// A process's private page run: working directory, then its tables of descriptors and mappings.
/// The first [`FIRST_FDS`] descriptors have memory where the area has; what is behind grows.
#[repr(C, align(4096))]
pub struct ProcessArea {
    /// Directory id of the working directory, 0 if it lies outside the pool.
    pub cwd: AtomicU64,
    /// umask + 1, or 0 if not known yet.
    pub umask: AtomicU32,
    /// Descriptors and mappings that have memory; less than [`FIRST_FDS`]: so many.
    fds_room: AtomicU32,
    maps_room: AtomicU32,
    /// Not 0: [`ProcessArea::held`] has memory.
    held_room: AtomicU32,
    /// The table of mappings: see [`crate::map_table`]. Its chains and places, and what says
    /// which of these have to lose pages, lie behind the descriptors.
    pub(crate) maps: crate::map_table::Heads,
    rest: [AtomicU32; 1024 - 6 - size_of::<crate::map_table::Heads>() / size_of::<AtomicU32>()],
    /// Open file description + 1 by descriptor number; 0: not of the pool.
    pub(crate) fds: [AtomicU32; MAX_FDS],
    /// As [`Process::held`], for more threads.
    pub held: [AtomicU32; MORE_HELD],
    chains: crate::map_table::Chains,
}

const FDS_IN_AREA: usize = std::mem::offset_of!(ProcessArea, fds);
const HELD_IN_AREA: usize = std::mem::offset_of!(ProcessArea, held);
const CHAINS_IN_AREA: usize = std::mem::offset_of!(ProcessArea, chains);
const _: () = assert!(cfg!(loom) || FDS_IN_AREA == 4096 && CHAINS_IN_AREA.is_multiple_of(4096));

impl ProcessArea {
    /// The place of descriptor number `n`, if it has memory; else it is empty.
    pub fn fd(&self, n: usize) -> Option<&AtomicU32> {
        let room = (self.fds_room.load(Acquire) as usize).max(FIRST_FDS);
        if n < room { self.fds.get(n) } else { None }
    }

    /// Whether the table of mappings has memory.
    fn has_maps(&self) -> bool {
        self.maps_room.load(Acquire) > 0
    }
}

/// Reserves memory for a part of the region's file, if it is named.
fn reserve(path: &Path, at: usize, len: usize) -> Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let open = || rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    memory::reserve(
        forebay_media::with_room(open)?,
        false,
        at as u64,
        len as u64,
    )
}

/// Reserves memory for what everybody uses: all but the tables that grow, and the areas.
fn reserve_fixed(path: &Path, layout: &Layout) -> Result<()> {
    reserve(path, 0, layout.live_at)?;
    let chains = layout.lock_chains_at;
    reserve(path, chains, layout.file_locks_at - chains)
}

const fn align(n: usize) -> usize {
    n.next_multiple_of(4096)
}
const SHARDS_AT: usize = align(size_of::<Header>());
const PROCESSES_AT: usize = align(SHARDS_AT + MAX_SHARDS * size_of::<Shard>());
const DIR_TIMES_AT: usize = align(PROCESSES_AT + MAX_PROCESSES * size_of::<Process>());
const BUCKETS_AT: usize = align(DIR_TIMES_AT + DIR_TIMES * size_of::<DirTime>());
/// The mapped control region.
pub struct Control {
    region: Region,
    layout: Layout,
    /// The file; empty for one that has all its memory, in tests.
    path: PathBuf,
}

/// The table of attached processes.
impl Table for Control {
    const KEPT: usize = KEPT_PROCESSES;
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
    /// Makes the file `path`, formatted, with memory for what everybody uses.
    ///
    /// # Errors
    /// EEXIST, ENOSPC and what open says.
    pub fn create(path: &Path, shards: usize, limits: Limits) -> Result<Control> {
        let layout = Layout::of(limits);
        // Reserved before anything of it is touched.
        let region = Region::create(path, layout.file_len(), false)?;
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
        let kept = KEPT_PROCESSES;
        let slots = (0..FIRST_KEPT).chain(kept..kept + FIRST_SLOTS);
        slots
            .map(|slot| slot as u32)
            .try_for_each(|slot| self.reserve_area(slot))
    }

    /// The tables that grow with the entries of a list: where they begin, and the sizes of entries.
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

    /// Names the file of the region, so that it can grow.
    pub fn in_file(self, path: &Path) -> Control {
        Control {
            path: path.to_owned(),
            ..self
        }
    }

    /// Reserves memory for entries of some tables from `from` on, which begin at offsets and have
    /// entries of sizes; where they end.
    #[cold]
    fn grow(&self, tables: &[(usize, usize)], from: u32) -> Result<u32> {
        let limit = self.layout.limits.open;
        if self.path.as_os_str().is_empty() {
            return Ok(limit);
        }
        let size: usize = tables.iter().map(|(_, size)| size).sum();
        let step = (u64::from(from) * size as u64 / 4).clamp(GROWS.0, GROWS.1);
        // If there isn't as much, what one more needs.
        for step in [step, size as u64] {
            let entries = (step as usize / size).clamp(1, (limit - from) as usize);
            let reserved = tables.iter().try_for_each(|&(at, size)| {
                reserve(&self.path, at + from as usize * size, entries * size)
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

    /// Takes a free place for a lock on a file; None if all are taken.
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

    /// Before extents of live entry `i` are stored outside of it: reserves memory for them.
    ///
    /// # Errors
    /// ENOSPC; what open says.
    pub(crate) fn reserve_extents(&self, i: u32, count: usize) -> Result<()> {
        let live = self.live(i);
        let here = count <= NEAR_EXTENTS || live.far_room.load(Acquire) != 0;
        if !here && !self.path.as_os_str().is_empty() {
            let size = size_of::<FarExtents>();
            reserve(
                &self.path,
                self.layout.far_extents_at + i as usize * size,
                size,
            )?;
            live.far_room.store(1, Release);
        }
        Ok(())
    }

    /// Before the area of `slot` is touched: reserves memory for its beginning.
    ///
    /// # Errors
    /// ENOSPC; what open says.
    pub fn reserve_area(&self, slot: u32) -> Result<()> {
        let noted = &self.process(slot as usize).area;
        if noted.load(Acquire) == 0 && !self.path.as_os_str().is_empty() {
            let at = self.layout.area_at(slot);
            reserve(&self.path, at, FDS_IN_AREA + FIRST_FDS * 4)?;
            noted.store(1, Release);
        }
        Ok(())
    }

    /// Reserves memory for descriptor numbers below `end` in the area of `slot`, which is mapped.
    ///
    /// # Errors
    /// ENOSPC; what open says.
    pub fn reserve_fds(&self, slot: u32, area: &ProcessArea, end: usize) -> Result<()> {
        let have = (area.fds_room.load(Acquire) as usize).max(FIRST_FDS);
        if end <= have {
            return Ok(());
        }
        let end = end.next_multiple_of(FIRST_FDS).min(MAX_FDS);
        let at = self.layout.area_at(slot) + FDS_IN_AREA;
        reserve(&self.path, at + have * 4, (end - have) * 4)?;
        area.fds_room.fetch_max(end as u32, AcqRel);
        Ok(())
    }

    /// The same for [`ProcessArea::held`].
    ///
    /// # Errors
    /// As for [`Control::reserve_fds`].
    pub(crate) fn reserve_held(&self, slot: u32, area: &ProcessArea) -> Result<()> {
        if area.held_room.load(Acquire) == 0 && !self.path.as_os_str().is_empty() {
            let at = self.layout.area_at(slot) + HELD_IN_AREA;
            reserve(&self.path, at, size_of_val(&area.held))?;
            area.held_room.store(1, Release);
        }
        Ok(())
    }

    /// The same for mappings, with what finds them.
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
            reserve(
                &self.path,
                at + CHAINS_IN_AREA,
                places - at - CHAINS_IN_AREA,
            )?;
            reserve(&self.path, places + most * size, words)?;
        }
        reserve(&self.path, places + have * size, (end - have) * size)?;
        area.maps_room.fetch_max(end as u32, AcqRel);
        Ok(())
    }

    /// Formats a new, zeroed region, which has as many bytes as the layout of `limits` says.
    pub fn format(region: &Region, shards: usize, limits: Limits) {
        // SAFETY: Header is made of atomics; the region is long enough.
        let h: &Header = unsafe { region.at(0) };
        h.shards.store(shards as u32, Relaxed);
        h.names_epoch.store(2, Relaxed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        h.born.store(now.map_or(0, |d| d.as_secs() as u32), Relaxed);
        h.namespace.store(crate::process::namespace(), Relaxed);
        h.open_limit.store(limits.open, Relaxed);
        h.maps_limit.store(limits.maps, Relaxed);
        for list in [&h.free_live, &h.free_open, &h.free_locks] {
            list.limit.store(limits.open, Relaxed);
        }
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

    /// Uses `region`, which maps at least what all processes share. None if it isn't a control
    /// region of this version.
    pub fn open(region: Region) -> Option<Control> {
        // SAFETY: atomics.
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
    /// ENODATA if it is too short; EINVAL if it is none of this version; what mmap says.
    pub fn map(file: &rustix::fd::OwnedFd) -> Result<Control> {
        let len = rustix::fs::fstat(file)?.st_size as usize;
        if len < align(size_of::<Header>()) {
            return Err(Errno::NODATA);
        }
        let head = Region::map(file, 0, align(size_of::<Header>()))?;
        // SAFETY: atomics.
        let layout = Control::layout_in(unsafe { head.at(0) }).ok_or(Errno::INVAL)?;
        if len != layout.file_len() {
            return Err(Errno::NODATA);
        }
        Control::open(Region::map(file, 0, layout.areas_at)?).ok_or(Errno::INVAL)
    }

    /// Where things lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Maps the area of process slot `i` without a descriptor.
    ///
    /// # Errors
    /// What mremap says.
    pub(crate) fn area(&self, i: usize) -> rustix::io::Result<Region> {
        let (at, len) = (self.layout.areas_at, self.layout.area_len);
        self.region.map_behind(at + i * len, len)
    }

    /// The fixed part.
    pub fn header(&self) -> &Header {
        // SAFETY: atomics; `at` checks bounds and alignment here and below.
        unsafe { self.region.at(0) }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.header().shards.load(Relaxed) as usize
    }

    /// State of shard `i`.
    pub fn shard(&self, i: usize) -> &Shard {
        debug_assert!(i < MAX_SHARDS);
        // SAFETY: see header.
        unsafe { self.region.at(SHARDS_AT + i * size_of::<Shard>()) }
    }

    /// Process slot `i`.
    pub fn process(&self, i: usize) -> &Process {
        debug_assert!(i < MAX_PROCESSES);
        // SAFETY: see header.
        unsafe { self.region.at(PROCESSES_AT + i * size_of::<Process>()) }
    }

    /// The place where the time of directory `id` is kept.
    pub fn dir_time(&self, id: u64) -> &DirTime {
        let i = (mix(id) % DIR_TIMES as u64) as usize;
        // SAFETY: see header.
        unsafe { self.region.at(DIR_TIMES_AT + i * size_of::<DirTime>()) }
    }

    /// All places for times of directories.
    pub fn dir_times(&self) -> impl Iterator<Item = &DirTime> {
        // SAFETY: see header.
        (0..DIR_TIMES).map(|i| unsafe { self.region.at(DIR_TIMES_AT + i * size_of::<DirTime>()) })
    }

    /// Tells the keeper, if it sleeps, that there is a process to look after.
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
        // SAFETY: see header.
        unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) }
    }

    /// All chains of the live table.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        // SAFETY: see header.
        (0..self.layout.buckets)
            .map(|i| unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) })
    }

    /// The chain of locks that those of object `id` are in.
    pub fn lock_chain(&self, id: u64) -> &LockChain {
        let i = (mix(id) % self.layout.lock_chains as u64) as usize;
        let at = self.layout.lock_chains_at + i * size_of::<LockChain>();
        // SAFETY: see header.
        unsafe { self.region.at(at) }
    }

    /// All chains of locks.
    pub fn lock_chains(&self) -> impl Iterator<Item = &LockChain> {
        let at = |i| self.layout.lock_chains_at + i * size_of::<LockChain>();
        // SAFETY: see header.
        (0..self.layout.lock_chains).map(move |i| unsafe { self.region.at(at(i)) })
    }

    /// Place `i` for a lock on a file.
    pub fn file_lock(&self, i: u32) -> &FileLock {
        self.entry(self.layout.file_locks_at, i)
    }

    /// Live entry `i`.
    pub fn live(&self, i: u32) -> &Live {
        self.entry(self.layout.live_at, i)
    }

    /// Place `n` for an extent of chunk 0 of live entry `i`.
    pub fn extent(&self, i: u32, n: usize) -> &AtomicU64 {
        match n.checked_sub(NEAR_EXTENTS) {
            None => &self.live(i).near[n],
            Some(n) => &self.entry::<FarExtents>(self.layout.far_extents_at, i).0[n],
        }
    }

    /// Identity of the process that, as the last user of live entry `i`, writes it back or
    /// removes it. (In a table of its own, since whoever has to release what a process held
    /// looks at all of them.)
    pub fn finisher(&self, i: u32) -> &AtomicU32 {
        self.entry(self.layout.finishers_at, i)
    }

    /// Open file description `i`.
    pub fn open_file(&self, i: u32) -> &Open {
        self.entry(self.layout.open_at, i)
    }

    /// Identity of the process that holds the reference to open file description `i` outside any
    /// descriptor table. (As [`Control::finisher`], in a table of its own.)
    pub fn open_owner(&self, i: u32) -> &AtomicU32 {
        self.entry(self.layout.open_owners_at, i)
    }

    /// Entry `i` of the table at `at`, one of those with [`Limits::open`] entries.
    fn entry<T>(&self, at: usize, i: u32) -> &T {
        assert!(i < self.layout.limits.open);
        // SAFETY: see header.
        unsafe { self.region.at(at + i as usize * size_of::<T>()) }
    }

    /// The table of mappings in `area`, which was mapped with [`Layout::area_len`] bytes.
    pub fn maps_of<'a>(&self, area: &'a ProcessArea) -> MapTable<'a> {
        let maps = self.layout.limits.maps as usize;
        let places = std::ptr::from_ref(area).wrapping_add(1).cast::<MapRef>();
        let words = places.wrapping_add(maps).cast::<AtomicU64>();
        let marked = maps.div_ceil(64);
        // SAFETY: they lie behind the area in the same mapping, which lives as long; atomics.
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

//! The control region: the part of a node store that lives in shared memory only.
//!
//! One file, mapped by every process: shard states, the table of attached processes, the
//! live table (one entry per open object: its true size and times while it is being
//! written), open file descriptions (offsets shared by dup and fork), and the times of
//! recently changed directories. All of it can be lost with the node: what must outlive
//! the processes is in the records. Everything is made of atomics; locks are [`Lock`]s,
//! which survive the death of their holder.
//!
//! Sizes are fixed (the limits below) and the file is sparse: only what is used takes
//! memory.

use crate::lock::Lock;
use forebay_media::Region;
use forebay_media::atomics::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*, futex};

/// Most shards of a node store.
pub const MAX_SHARDS: usize = 64;
/// Most processes attached at the same time.
pub const MAX_PROCESSES: usize = if cfg!(loom) { 4 } else { 4096 };
/// The first so many process slots are a reserve, as [`KEPT`].
pub const KEPT_PROCESSES: usize = if cfg!(loom) { 0 } else { 64 };
/// Most objects open at the same time.
pub const MAX_LIVE: usize = 65_536;
/// Most open file descriptions at the same time.
pub const MAX_OPEN: usize = 65_536;
/// Descriptor numbers below this can stand for files of a pool.
pub const MAX_FDS: usize = 65_536;
/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest path in bytes, the closing zero included.
pub const PATH_MAX: usize = 4096;
/// Most extents of one chunk.
pub const MAX_EXTENTS: usize = forebay_media::CELL_PAGES;

/// Most locks on files (ranges, and whole files) at the same time.
pub const MAX_FILE_LOCKS: usize = 65_536;

const MAGIC: u64 = 0x3131_4c54_4359_4246; // "FBYCTL11"
const BUCKETS: usize = 32_768;
const DIR_TIMES: usize = 16_384;
const LOCK_CHAINS: usize = 4096;

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
    /// Counts how often those who have files of any node open were counted, as something was to be said of one
    /// (`uses/say.rs`): who was opening one meanwhile looks again.
    pub counts: AtomicU32,
}

/// The first so many entries of a table are a reserve, for commands that look at a pool, mend it or
/// save its data when programs have used up all others ([`crate::process::use_reserve`]).
pub const KEPT: u32 = if cfg!(loom) { 0 } else { 64 };

/// Lock-free lists of unused entries: index + 1 in the low half of the head, a tag against
/// reuse (ABA) in the high half. Entries never used before are counted up from `fresh`. The reserve
/// has a list and a count of its own.
#[repr(C)]
pub struct FreeList {
    head: AtomicU64,
    /// Of those from [`KEPT`] on.
    fresh: AtomicU32,
    /// Of those below.
    kept_fresh: AtomicU32,
    kept: AtomicU64,
}

impl FreeList {
    /// Takes an index below `limit`; `next` gives the link field of an entry.
    pub fn pop<'a>(&self, limit: usize, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let limit = limit as u32;
        take(&self.head, &next)
            .or_else(|| count_up(&self.fresh, limit.saturating_sub(KEPT)).map(|i| i + KEPT))
            .or_else(|| match KEPT > 0 && crate::process::uses_reserve() {
                true => {
                    take(&self.kept, &next).or_else(|| count_up(&self.kept_fresh, KEPT.min(limit)))
                }
                false => None,
            })
    }

    /// One more than the highest index ever taken, below `limit`.
    pub fn end(&self, limit: usize) -> u32 {
        match (self.fresh.load(Acquire), self.kept_fresh.load(Acquire)) {
            (0, kept) => kept.min(limit as u32),
            (fresh, _) => fresh.saturating_add(KEPT).min(limit as u32),
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

/// States of a process slot.
pub mod slot_state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// Being prepared by a parent for its child.
    pub const RESERVED: u32 = 1;
    /// In use by the process `pid`.
    pub const USED: u32 = 2;
    /// Its process died; somebody is releasing what it held.
    pub const REAPING: u32 = 3;
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
    /// One more than the highest place in use in its table of mappings.
    pub maps_end: AtomicU32,
    /// How often others have asked it to look at its mappings, and up to which of these
    /// times it has.
    pub maps_asked: AtomicU32,
    pub maps_done: AtomicU32,
    /// It may have locks on ranges of files that end when it closes them.
    pub locked: AtomicU32,
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

/// Most threads of one process that may be opening or closing at the same time.
pub const HELD_PLACES: usize = 25;

/// Flags of an open file description besides the system's, which has no such bits.
pub mod open_flag {
    /// What happens by it is told to those who watch (`watches.rs`).
    pub const TOLD: u32 = 1 << 30;
    /// Its file may be laminated when it ends (`uses.rs`).
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
    /// Of a striped file: behind the end, in chunk 0, may lie what will be part of it when a longer write ends.
    pub const BEHIND: u32 = 2048;
    /// It lies elsewhere, and a process of this node maps a copy of it, or has done so.
    pub const COPIED: u32 = 4096;
    /// Something was said of it while others had it open, who may not know (`striped/seal.rs`).
    pub const SAID: u32 = 8192;
    /// Of a striped file: the other nodes' parts know that their bytes lie on `files` media (`data/on_files.rs`).
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
    /// Identity of the process that, as its last user, writes it back or removes it.
    pub finisher: AtomicU32,
    /// Of a striped file and its parts: how often it was cut (`striped.rs`).
    pub cuts: AtomicU64,
    /// Of one that stands for another node's object: the live entry of its part here, plus one,
    /// which it uses.
    pub part: AtomicU32,
    /// Of a striped file: how often it was appended to under a lease, or in chunk 0 over what lies behind its end.
    pub appends: AtomicU32,
    /// Of a striped file: number of the last lease, until when it holds (milliseconds of the clock
    /// that doesn't stop; 0: it is over), node and identity of who has it. Locked.
    pub lease: AtomicU64,
    pub lease_until: AtomicU64,
    pub lease_of: AtomicU64,
    /// As [`crate::Inode::controls`]; of what another node keeps: as told when it was opened last.
    pub controls: AtomicU64,
    /// Of a file that this node keeps: the last two nodes whose processes have changed the bytes, the later one in the lower half;
    /// their numbers plus one, 0 is this one. Locked.
    pub changed_by: AtomicU64,
    /// As [`crate::Inode::edition`], in the same way; and the size of what another node keeps, while that is odd.
    pub edition: AtomicU64,
    pub last_size: AtomicU64,
    /// The live entry of this node's copy of what lies elsewhere of it, plus one, which it uses (`copies.rs`).
    pub copy: AtomicU32,
    pub extent: [AtomicU64; MAX_EXTENTS],
}

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
    /// Identity of the process that holds the reference outside any descriptor table.
    pub owner: AtomicU32,
    /// For whom it was opened: a [`crate::uses::Party`].
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

/// Most mappings of pool files in one process.
pub const MAX_MAPS: usize = 4096;

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
}

/// Bits of [`FileLock::kind`].
pub mod lock_kind {
    /// Nobody else can have it.
    pub const EXCLUSIVE: u32 = 1;
    /// Others can have it, too.
    pub const SHARED: u32 = 2;
    /// Of flock(2), which is in nobody's way but that of its like.
    pub const WHOLE: u32 = 4;
    /// A use of the object: see `uses.rs`. In nobody's way but that of its like.
    pub const USE: u32 = 16;
    /// Not a lock, but a note: the owner, of this node, may have locks on this object of another node.
    pub const AWAY: u32 = 8;
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

/// A process's private page run: working directory, then its descriptor table.
#[repr(C)]
pub struct ProcessArea {
    /// Directory id of the working directory, 0 if it lies outside the pool.
    pub cwd: AtomicU64,
    /// umask + 1, or 0 if not known yet.
    pub umask: AtomicU32,
    pub pad: AtomicU32,
    pub rest: [AtomicU32; 1020],
    pub maps: [MapRef; MAX_MAPS],
    /// Open file description + 1 by descriptor number; 0: not of the pool.
    pub fds: [AtomicU32; MAX_FDS],
}

const fn align(n: usize) -> usize {
    n.next_multiple_of(4096)
}
const SHARDS_AT: usize = align(size_of::<Header>());
const PROCESSES_AT: usize = align(SHARDS_AT + MAX_SHARDS * size_of::<Shard>());
const DIR_TIMES_AT: usize = align(PROCESSES_AT + MAX_PROCESSES * size_of::<Process>());
const BUCKETS_AT: usize = align(DIR_TIMES_AT + DIR_TIMES * size_of::<DirTime>());
const LIVE_AT: usize = align(BUCKETS_AT + BUCKETS * size_of::<Bucket>());
const OPEN_AT: usize = align(LIVE_AT + MAX_LIVE * size_of::<Live>());
const LOCK_CHAINS_AT: usize = align(OPEN_AT + MAX_OPEN * size_of::<Open>());
const FILE_LOCKS_AT: usize = align(LOCK_CHAINS_AT + LOCK_CHAINS * size_of::<LockChain>());
/// Where the areas of the processes begin: the part before is mapped by everyone.
pub const AREAS_AT: usize = align(FILE_LOCKS_AT + MAX_FILE_LOCKS * size_of::<FileLock>());
/// Bytes of one process's area.
pub const AREA_LEN: usize = align(size_of::<ProcessArea>());
/// Length of the whole file.
pub const CONTROL_LEN: usize = AREAS_AT + MAX_PROCESSES * AREA_LEN;

/// The mapped control region.
pub struct Control {
    region: Region,
}

impl Control {
    /// Formats a new, zeroed region.
    pub fn format(region: &Region, shards: usize) {
        // SAFETY: Header is made of atomics; the region has CONTROL_LEN bytes.
        let h: &Header = unsafe { region.at(0) };
        h.shards.store(shards as u32, Relaxed);
        h.names_epoch.store(2, Relaxed);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        h.born.store(now.map_or(0, |d| d.as_secs() as u32), Relaxed);
        h.namespace.store(crate::process::namespace(), Relaxed);
        h.magic.store(MAGIC, Release);
    }

    /// Formats this region again, after it has been zeroed.
    pub(crate) fn reformat(&self, shards: usize) {
        Control::format(&self.region, shards);
    }

    /// Uses `region`, which maps at least the first [`AREAS_AT`] bytes. None if it isn't
    /// a control region of this version.
    pub fn open(region: Region) -> Option<Control> {
        let c = Control { region };
        let shards = c.header().shards.load(Relaxed) as usize;
        let ok = c.header().magic.load(Acquire) == MAGIC && (1..=MAX_SHARDS).contains(&shards);
        ok.then_some(c)
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
        let i = (mix(id) % BUCKETS as u64) as usize;
        // SAFETY: see header.
        unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) }
    }

    /// All chains of the live table.
    pub fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        // SAFETY: see header.
        (0..BUCKETS).map(|i| unsafe { self.region.at(BUCKETS_AT + i * size_of::<Bucket>()) })
    }

    /// The chain of locks that those of object `id` are in.
    pub fn lock_chain(&self, id: u64) -> &LockChain {
        let i = (mix(id) % LOCK_CHAINS as u64) as usize;
        // SAFETY: see header.
        unsafe { self.region.at(LOCK_CHAINS_AT + i * size_of::<LockChain>()) }
    }

    /// All chains of locks.
    pub fn lock_chains(&self) -> impl Iterator<Item = &LockChain> {
        let at = |i| LOCK_CHAINS_AT + i * size_of::<LockChain>();
        // SAFETY: see header.
        (0..LOCK_CHAINS).map(move |i| unsafe { self.region.at(at(i)) })
    }

    /// Place `i` for a lock on a file.
    pub fn file_lock(&self, i: u32) -> &FileLock {
        assert!((i as usize) < MAX_FILE_LOCKS);
        // SAFETY: see header.
        unsafe {
            self.region
                .at(FILE_LOCKS_AT + i as usize * size_of::<FileLock>())
        }
    }

    /// Live entry `i`.
    pub fn live(&self, i: u32) -> &Live {
        assert!((i as usize) < MAX_LIVE);
        // SAFETY: see header.
        unsafe { self.region.at(LIVE_AT + i as usize * size_of::<Live>()) }
    }

    /// Open file description `i`.
    pub fn open_file(&self, i: u32) -> &Open {
        assert!((i as usize) < MAX_OPEN);
        // SAFETY: see header.
        unsafe { self.region.at(OPEN_AT + i as usize * size_of::<Open>()) }
    }
}

/// Spreads ids, whose low bits are slots, over a table.
fn mix(id: u64) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

//! The types of the control region: its fixed part, and the entries of its tables. All fields are
//! atomics, initially zero.

use super::free_list::FreeList;
use super::states::{CopyState, JournalState, QuotaState, WatchState};
use crate::lock::Lock;
use forebay_records::record::MAX_EXTENTS;
use forebay_runtime::atomics::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Descriptor numbers below this can stand for files of a pool.
pub const MAX_FDS: usize = 1 << 20;
/// Number of extents of chunk 0 that lie in the live entry itself; further ones lie in a separate
/// table. Few files have more: live entries with room for all extents would take eight times as
/// much memory.
pub const NEAR_EXTENTS: usize = 11;

/// Number of descriptors for which each process's area has memory from the start.
pub(crate) const FIRST_FDS: usize = 1024;

/// Fixed part at the start of the region.
#[repr(C, align(64))]
pub struct Header {
    pub(super) magic: AtomicU64,
    pub shards: AtomicU32,
    /// Set while a multi-shard commit of a dead process waits to be completed.
    pub recover: AtomicU32,
    /// Changes whenever a resolved directory path may have become wrong: a directory or symbolic
    /// link was moved, replaced or removed, or a directory's mode changed. The high half is equal
    /// on all nodes of a pool, except while it is being changed.
    pub names_epoch: AtomicU64,
    /// Id of the directory in which no entry may be created now, since it is about to be removed;
    /// 0: none.
    pub frozen: AtomicU64,
    /// Set when an operation that concerns other nodes was left to the keeper to complete.
    pub unsettled: AtomicU32,
    /// Counts attachments: the keeper sleeps on this word (futex) while no process is attached.
    pub activity: AtomicU32,
    pub keeper_sleeps: AtomicU32,
    /// Time at which this region was made (seconds since 1970), and the number of descriptions that
    /// have locked something since. The two numbers together identify a description that has locked
    /// something.
    pub born: AtomicU32,
    pub lockers: AtomicU32,
    pub free_live: FreeList,
    pub free_open: FreeList,
    pub free_locks: FreeList,
    /// Held by a process during quiescence: meanwhile no section begins
    /// ([`crate::Store::section`]).
    pub quiet: Lock,
    /// Set when a process has died in a section: entries and pages that only that process knew are
    /// lost until [`crate::views::Recovery::put_in_order`] has found them.
    pub leaks: AtomicU32,
    pub journal: JournalState,
    /// The PID namespace of the process ids in this region; 0: not known.
    pub namespace: AtomicU64,
    /// The user namespace of the ids in inodes (0: not known), and the ids of the pool's owner in
    /// it.
    pub user_namespace: AtomicU64,
    pub owner: AtomicU32,
    pub owner_group: AtomicU32,
    pub watches: WatchState,
    pub copies: CopyState,
    /// Number of times the users of files of any node were counted, because controls were to be
    /// declared for one (`controls/declare.rs`). A process that was opening a file during such a
    /// count checks the file's controls again.
    pub counts: AtomicU32,
    /// The [`super::Limits`] of the region.
    pub(super) open_limit: AtomicU32,
    pub(super) maps_limit: AtomicU32,
    /// The process that uses the pool exclusively (`exclusive_mount.rs`); 0: none.
    pub exclusive_user: AtomicU32,
    /// When the keeper last saw that the pool was used. Seconds of CLOCK_BOOTTIME; 0: the keeper
    /// didn't check yet.
    pub used: AtomicU64,
    pub quota: QuotaState,
    /// Number of open file descriptions of directories, or more: some that a killed process was
    /// making are counted until the next recount.
    pub open_directories: AtomicU32,
}

/// State of one shard of the records.
#[repr(C, align(64))]
pub struct Shard {
    /// Held by the one process that writes the shard.
    pub lock: Lock,
    /// Odd while a commit over several shards is in progress: readers wait.
    pub multi: AtomicU32,
    /// Odd while objects may be removed from the shard: a process that opens an object of the shard
    /// waits, and looks the object up again.
    pub removing: AtomicU32,
    pub pad: AtomicU32,
    /// Counts commits, so that a reader notices that its snapshot is outdated.
    pub commits: AtomicU64,
    /// Last sequence number given to an object.
    pub last_seq: AtomicU64,
    /// Reserved and used room of the shard's record file.
    pub room: crate::lmdb::Room,
    /// Position + 1 in the journal of the commit that is in progress; 0: none.
    pub pending: AtomicU64,
}

/// One attached process.
#[repr(C, align(64))]
pub struct Process {
    /// State, process id and start time in one word, so that they change together: see
    /// [`crate::process`]. 0: free.
    pub owner: AtomicU64,
    /// Number of processes that have owned the slot so far: distinguishes locks that an earlier
    /// owner left from locks of the present one.
    pub generation: AtomicU32,
    /// One more than the highest descriptor number in the process's table.
    pub fds_end: AtomicU32,
    /// Number of sections ([`crate::Store::section`]) in which the process's threads are. If the
    /// process dies in one, entries or pages may be lost.
    pub in_flight: AtomicU32,
    /// Identity of the process that holds a lock for which this process has waited long; for
    /// reports.
    pub waits_for: AtomicU32,
    /// Live entries (index + 1) that the process's threads use briefly, without an open file
    /// description. The uses are released when the process dies.
    pub held: [AtomicU32; HELD_PLACES],
    /// One more than the highest index ever used in [`ProcessArea::held`].
    pub held_end: AtomicU32,
    /// One more than the highest index in use in the process's table of mappings.
    pub maps_end: AtomicU32,
    /// Number of times that other processes have requested that this process check its mappings,
    /// and the number of these requests that it has carried out.
    pub maps_requested: AtomicU32,
    pub maps_done: AtomicU32,
    /// Not 0: the process may have locks on ranges of files. Such locks end when the process closes
    /// the files.
    pub locked: AtomicU32,
    /// Not 0: the beginning of the slot's area has memory, perhaps reserved by an earlier owner.
    pub area: AtomicU32,
    /// The waits of the process's threads for locks on ranges of files.
    pub waits: [Wait; MAX_WAITS],
}

/// Maximum number of threads of one process whose waits for locks a search for deadlocks can see.
pub const MAX_WAITS: usize = 4;

/// A thread's wait for a lock on a range of a file. The lock's owner would be the process.
#[repr(C)]
pub struct Wait {
    /// 0: no wait; 1: being written. Any other value identifies the wait; a later wait has a higher
    /// value.
    pub stamp: AtomicU64,
    pub object: AtomicU64,
    pub start: AtomicU64,
    pub end: AtomicU64,
    /// The node that keeps the locks of the object.
    pub home: AtomicU32,
    pub kind: AtomicU32,
}

/// Number of threads of one process that can open or close a file at the same time with a place in
/// its slot. Further threads use places in its area: [`MORE_HELD`].
pub const HELD_PLACES: usize = 25;
/// Number of further threads of one process that can open or close a file at the same time. Any
/// more wait for a place, for at most [`crate::live::PLACE_TIMEOUT`].
pub const MORE_HELD: usize = if cfg!(loom) { 1 } else { 4096 };

/// Flags of an open file description beside the kernel's flags, which don't use these bits.
pub mod open_flag {
    /// Watchers are notified of operations on the description (`watches.rs`).
    pub const WATCHED: u32 = 1 << 30;
    /// The file may be laminated when the description ends (`controls.rs`).
    pub const LAMINATES: u32 = 1 << 29;
    /// The file's bytes come from the pool's origin as they are read ([`Open::fill`]).
    pub const RANGES: u32 = 1 << 28;
    /// All flags of this module.
    pub const OURS: u32 = WATCHED | LAMINATES | RANGES;
}

/// Flags of a live object.
pub mod live_flag {
    /// Size, times and extents have been read from the record.
    pub const LOADED: u32 = 1;
    /// The entry's attributes are newer than the record.
    pub const DIRTY: u32 = 2;
    /// The object has no name left: the object is removed when its last user leaves.
    pub const UNLINKED: u32 = 4;
    /// The data lies in the record.
    pub const INLINE: u32 = 8;
    /// A process has mapped the object: its pages must not move until its last user leaves.
    pub const MAPPED: u32 = 16;
    /// The object's last user is removing it: no process can become a user any more.
    pub const GONE: u32 = 32;
    /// The entry's lock was left by a dead process and the entry isn't repaired yet.
    pub const TORN: u32 = 64;
    /// In the last page, bytes beyond the end of the file may not be zero.
    pub const TAIL: u32 = 128;
    /// Truncation has left pages beyond the end, because a process has them mapped.
    pub const CUT: u32 = 256;
    /// The entry stands for an object of another node. Only some of its fields are used.
    pub const REMOTE: u32 = 512;
    /// For a striped or spilled file: other nodes may have parts of it, and its home knows that.
    pub const PARTS: u32 = 1024;
    /// For a striped file: chunk 0 may have bytes beyond the end of the file, written by a process
    /// that hasn't reported yet that the file has grown (`stripe_units.rs`).
    pub const BEHIND: u32 = 2048;
    /// The object lies on another node, and a process of this node maps a shadow copy of it, or has
    /// done so.
    pub const COPIED: u32 = 4096;
    /// Controls were declared for the object while processes that may not know them had it open
    /// (`stripes/seal.rs`).
    pub const DECLARED_LATE: u32 = 8192;
    /// For a striped file: the controls words of its parts on other nodes have been set
    /// (`data/on_files.rs`).
    pub const ON_FILES: u32 = 16384;
    /// The object's bytes were only at the pool's origin when it was opened, and are being fetched.
    /// Writing the fetched bytes is no change: the times stay.
    pub const RELEASED: u32 = 32768;
    /// The pool's origin has the same version of the object. A change is recorded in the journal
    /// before it is made (`data/noted.rs`).
    pub const CLEAN: u32 = 65536;
    /// The object's mode has a set-user-ID or set-group-ID bit, which a process that changes the
    /// bytes removes.
    pub const PRIVILEGED: u32 = 131_072;
    /// An open file description of the object may have a lease (`leases.rs`).
    pub const LEASED: u32 = 262_144;
}

/// One open object. While the entry is dirty, its size, times and extents of chunk 0 are newer than
/// the record's. All other attributes are in the record.
#[repr(C, align(64))]
pub struct Live {
    pub id: AtomicU64,
    /// Next entry of the bucket (index + 1), or of the free list.
    pub next: AtomicU32,
    /// Number of users of the entry: open file descriptions and others. Protected by the bucket's
    /// lock.
    pub refs: AtomicU32,
    /// Held for every change of the object's data or extents.
    pub lock: Lock,
    pub flags: AtomicU32,
    /// A version: odd while extents are removed or moved; grows with each such change.
    pub moved: AtomicU64,
    pub size: AtomicU64,
    pub mtime: AtomicI64,
    /// Change time. For another node's file: the number by which the home knows this node's use of
    /// the file.
    pub ctime: AtomicI64,
    /// Number of pages in all extents.
    pub pages: AtomicU64,
    /// Number of extents of chunk 0.
    pub extents: AtomicU32,
    /// Not 0: the entry's extents in the separate table have memory.
    pub(super) far_room: AtomicU32,
    /// For a striped file and its parts: number of truncations (`stripes.rs`). For a copy:
    /// [`Live::copy_stamp`].
    pub cuts: AtomicU64,
    /// For the entry of another node's object: the live entry of this node's part of the object,
    /// plus one. This entry has a reference to the part's entry.
    pub part: AtomicU32,
    /// For a striped file: number of appends made under a lease, or made in chunk 0 over bytes
    /// beyond the file's end.
    pub appends: AtomicU32,
    /// For a striped file: number of the last lease, its end (milliseconds of CLOCK_BOOTTIME; 0: it
    /// is over), node and identity of its holder. Protected by `lock`. For another node's object,
    /// `lease_until` has another meaning: see `locks/leases.rs` of forebay-cluster.
    pub lease: AtomicU64,
    pub lease_until: AtomicU64,
    pub lease_of: AtomicU64,
    /// As [`crate::Inode::controls`]; for another node's object, as its home reported it last.
    pub controls: AtomicU64,
    /// For a file of this node: the last two nodes whose processes have changed the bytes, the
    /// later one in the lower half. A node's number plus one; 0 is this node. Protected by `lock`.
    pub changed_by: AtomicU64,
    /// As [`crate::Inode::edition`], copied from there like `controls`. While the edition is odd,
    /// `last_size` is the size of another node's object.
    pub edition: AtomicU64,
    pub last_size: AtomicU64,
    /// The live entry (index + 1) of this node's cached copy of the file's remote chunks
    /// (`cached_copies.rs`). This entry counts as a user of the copy's entry.
    pub copy: AtomicU32,
    /// The first extents of chunk 0. All extents: [`super::Control::extent`].
    pub(super) near: [AtomicU64; NEAR_EXTENTS],
}

/// The extents of chunk 0 that don't fit into a live entry.
#[repr(C)]
pub(super) struct FarExtents(pub(super) [AtomicU64; MAX_EXTENTS - NEAR_EXTENTS]);

const _: () = assert!(cfg!(loom) || size_of::<Live>() == 256 && size_of::<Open>() == 384);

/// An open file description (POSIX): what dup and fork share.
#[repr(C, align(64))]
pub struct Open {
    /// Number of descriptors that refer to the description, in all processes.
    pub refs: AtomicU32,
    /// Index of the live entry, plus one; 0 for a directory.
    pub live: AtomicU32,
    pub id: AtomicU64,
    /// O_ACCMODE, O_APPEND and so on as given to open, or changed by fcntl.
    pub flags: AtomicU32,
    /// File type bits of the mode (S_IFMT).
    pub kind: AtomicU32,
    /// Held while an operation reads `offset` and advances it.
    pub lock: Lock,
    pub next: AtomicU32,
    pub offset: AtomicU64,
    /// Directory in which the file was opened, for /proc/self/fd.
    pub parent: AtomicU64,
    /// For a directory: the shard of the next entry. (`offset` counts the entries passed so far.)
    pub shard: AtomicU32,
    pub name_len: AtomicU32,
    /// The description's number among the descriptions of this node that have locked something; 0:
    /// this description hasn't.
    pub locker: AtomicU32,
    /// For a file whose bytes are fetched by ranges: number of the fill. After an eviction, the
    /// next fill has another number. For a directory: whether it was removed and `name` contains
    /// its attributes (`removed_dirs.rs`).
    pub fill: AtomicU32,
    /// The party for which the file was opened: a [`crate::controls::Party`].
    pub party: AtomicU64,
    /// The name by which the file was opened; for a directory that is being read, the last name
    /// returned.
    pub name: [AtomicU8; 256],
    /// The description's lease, and the time by which it must be given up (seconds since boot): see
    /// `leases.rs`.
    pub lease: AtomicU32,
    pub lease_until: AtomicU32,
    /// The processes that get a signal when the lease is broken, and which signal: F_SETOWN and
    /// F_SETSIG; 0: not set.
    pub signal_owner: AtomicU32,
    pub signal: AtomicU32,
}

/// The latest modification time of a directory, and its latest change time (in `spare`).
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

/// Bits of [`FileLock::kind`].
pub mod lock_kind {
    /// No other owner can have the lock.
    pub const EXCLUSIVE: u32 = 1;
    /// Other owners can have the lock, too.
    pub const SHARED: u32 = 2;
    /// A lock of flock(2), which conflicts only with other locks of flock(2).
    pub const WHOLE: u32 = 4;
    /// A use of the object: see `controls.rs`. Conflicts only with other uses.
    pub const USE: u32 = 16;
    /// Not a lock, but a note that the owner, of this node, may have locks on this object of
    /// another node.
    pub const REMOTE: u32 = 8;
    /// Not a lock, but a fence: the owner's node has lost its locks on this object of this node,
    /// and programs that had the file open at that time don't know of the loss (`serve/fences.rs`
    /// of forebay-cluster).
    pub const FENCE: u32 = 32;
}

/// A lock on a file, or on a range of it.
#[repr(C, align(64))]
pub struct FileLock {
    /// 0: unused.
    pub object: AtomicU64,
    pub start: AtomicU64,
    /// The last byte of the range.
    pub end: AtomicU64,
    /// The owner's number: see [`crate::locks::Owner`].
    pub owner: AtomicU64,
    pub node: AtomicU32,
    pub slot: AtomicU32,
    /// Number of the entry's last change.
    pub stamp: AtomicU64,
    /// See [`lock_kind`].
    pub kind: AtomicU32,
    /// Next lock of the chain (index + 1), or next entry of the free list.
    pub next: AtomicU32,
}

/// Head of a chain of locks on files.
#[repr(C, align(64))]
pub struct LockChain {
    pub lock: Lock,
    /// First lock (index + 1).
    pub head: AtomicU32,
    /// Number of threads that wait for locks of the chain. The number is too high if some were
    /// killed.
    pub waiters: AtomicU32,
    /// Counts releases of locks; waiting processes sleep on this word (futex).
    pub changes: AtomicU32,
}

/// The area of one process: working directory, counters, tables of descriptors and mappings. The
/// first [`FIRST_FDS`] descriptors have memory as soon as the area has; the rest gets memory when
/// it is needed.
#[repr(C, align(4096))]
pub struct ProcessArea {
    /// Directory id of the working directory, 0 if it lies outside the pool.
    pub cwd: AtomicU64,
    /// The process's umask + 1; 0 if it isn't known yet.
    pub umask: AtomicU32,
    /// Numbers of descriptors and of mappings that have memory. [`FIRST_FDS`] descriptors have
    /// memory even if `fds_room` is less.
    pub(super) fds_room: AtomicU32,
    pub(super) maps_room: AtomicU32,
    /// Not 0: [`ProcessArea::held`] has memory.
    pub(super) held_room: AtomicU32,
    /// The table of mappings: see [`crate::map_table`]. The table's chains, its entries, and the
    /// marks of entries that have to lose pages follow after the descriptors.
    pub(crate) maps: crate::map_table::Heads,
    rest: [AtomicU32; 1024 - 6 - size_of::<crate::map_table::Heads>() / size_of::<AtomicU32>()],
    /// Counters of this process.
    pub counted: forebay_trace::block::Block,
    counted_rest:
        [AtomicU32; (COUNTED - size_of::<forebay_trace::block::Block>()) / size_of::<AtomicU32>()],
    /// By descriptor number: index of the open file description, plus one; 0: not of the pool.
    pub(crate) fds: [AtomicU32; MAX_FDS],
    /// As [`Process::held`], for further threads.
    pub held: [AtomicU32; MORE_HELD],
    pub(super) chains: crate::map_table::Chains,
}

/// Rounds `n` bytes up to whole pages.
pub(super) const fn align(n: usize) -> usize {
    n.next_multiple_of(4096)
}

/// Bytes of a process's counters.
const COUNTED: usize = align(size_of::<forebay_trace::block::Block>());
/// Offset of the counters in an area.
pub const COUNTED_IN_AREA: usize = std::mem::offset_of!(ProcessArea, counted);
pub(super) const FDS_IN_AREA: usize = std::mem::offset_of!(ProcessArea, fds);
pub(super) const HELD_IN_AREA: usize = std::mem::offset_of!(ProcessArea, held);
pub(super) const CHAINS_IN_AREA: usize = std::mem::offset_of!(ProcessArea, chains);
const _: () =
    assert!(cfg!(loom) || FDS_IN_AREA == 4096 + COUNTED && CHAINS_IN_AREA.is_multiple_of(4096));

impl Header {
    /// Records this process's namespaces and user: process ids and user ids in the region belong to
    /// these namespaces from now on.
    pub fn take_over(&self) {
        use forebay_runtime::{process, thread_ids};
        self.owner
            .store(rustix::process::geteuid().as_raw(), Relaxed);
        self.owner_group
            .store(rustix::process::getegid().as_raw(), Relaxed);
        let users = thread_ids::user_namespace().unwrap_or(0);
        self.user_namespace.store(users, Relaxed);
        self.namespace.store(process::namespace(), Release);
    }
}

impl ProcessArea {
    /// Returns the table entry of descriptor `n`; None if the entry has no memory: it was never
    /// used.
    pub fn fd(&self, n: usize) -> Option<&AtomicU32> {
        let room = (self.fds_room.load(Acquire) as usize).max(FIRST_FDS);
        if n < room { self.fds.get(n) } else { None }
    }

    /// Whether the table of mappings has memory.
    pub(super) fn has_maps(&self) -> bool {
        self.maps_room.load(Acquire) > 0
    }
}

//! Parts of the header of the control region that belong to one module each: to the journal, to
//! watches, and to copies of other nodes' files.
//!
//! This file defines only their layout: atomics, zeroed at first. `journal.rs`, `watches.rs`,
//! `cached_copies/keep.rs` and `quota.rs` define the values' meaning and who may change them.

use crate::lock::Lock;
use forebay_runtime::atomics::{AtomicI64, AtomicU32, AtomicU64};

/// Words of the filter of watches: 64 hashes each.
pub(crate) const FILTER_WORDS: usize = 64;
/// Maximum number of media of a pool.
pub(crate) const MAX_MEDIA: usize = 16;

/// The journal's part of the control region.
#[repr(C, align(64))]
pub struct JournalState {
    /// Held while records are appended or written to the file.
    pub lock: Lock,
    /// Whether commits are noted.
    pub active: AtomicU32,
    /// Nonzero while the bits of durable pages may be ahead of the journal's records.
    pub unsure: AtomicU32,
    /// Set when writing to stable storage has failed: nothing can be promised any more.
    pub failed: AtomicU32,
    /// Set in a pool that was loaded from stable storage: unrecorded bytes may lie beyond the ends
    /// of files.
    pub loaded: AtomicU32,
    /// One process at a time makes a checkpoint, syncs everything, empties the limbo.
    pub checkpointing: Lock,
    pub syncing: Lock,
    pub releasing: Lock,
    pub generation: AtomicU64,
    /// The next generation, while it begins, and its start.
    pub next: AtomicU64,
    pub next_start: AtomicU64,
    /// Positions: where this generation starts, the end, written to the file, on stable
    /// storage.
    pub start: AtomicU64,
    pub end: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    /// Bytes in a generation after which a checkpoint is due.
    pub bound: AtomicU64,
    /// Held while room for checkpoints is reserved, or their files change places.
    pub rooming: Lock,
    /// Bytes reserved for a checkpoint: see `journal/room.rs`.
    pub checkpoint_room: AtomicU64,
}

/// Watches in the control region.
#[repr(C)]
pub struct WatchState {
    /// Not 0: there may be some.
    pub any: AtomicU32,
    /// Counts renames, to connect their two events.
    pub cookies: AtomicU32,
    /// Counts shadows.
    pub shadows: AtomicU64,
    /// Held for every change of the set of shadows.
    pub lock: Lock,
    pad: AtomicU32,
    /// A bit for each hash of an id: set if an object with that hash is watched.
    pub filter: [AtomicU64; FILTER_WORDS],
}

/// Copies in the control region.
#[repr(C)]
#[derive(Default)]
pub struct CopyState {
    /// About how many pages of each medium they take.
    pub pages: [AtomicU64; MAX_MEDIA],
    /// About how many there are.
    pub files: AtomicU64,
    /// Nothing is copied before this time, in nanoseconds since 1970.
    pub pause: AtomicU64,
}

/// The quota in the control region.
#[repr(C, align(64))]
pub struct QuotaState {
    /// Whether there is one; set before the first operation.
    pub active: AtomicU32,
    /// Set by the service when it has seen this region. 0 shows that the region is a new one.
    pub seen: AtomicU32,
    pub used_bytes: AtomicI64,
    pub used_files: AtomicI64,
    pub granted_bytes: AtomicI64,
    pub granted_files: AtomicI64,
}

//! Parts of the control region's header that belong to one module each: the journal, watches,
//! cached copies of other nodes' files, and the quota.
//!
//! This file defines only their layout: atomics, initially zero. `journal.rs`, `watches.rs`,
//! `cached_copies/keep.rs` and `quota.rs` define what the values mean and which code may change
//! them.

use crate::lock::Lock;
use forebay_runtime::atomics::{AtomicI64, AtomicU32, AtomicU64};

/// Number of words in the filter of watches. Each word has bits for 64 hashes.
pub(crate) const FILTER_WORDS: usize = 64;
/// Maximum number of media of a pool.
pub(crate) const MAX_MEDIA: usize = 16;

/// The journal's part of the control region.
#[repr(C, align(64))]
pub struct JournalState {
    /// Held while records are appended or written to the file.
    pub lock: Lock,
    /// Whether commits are written to the journal.
    pub active: AtomicU32,
    /// Nonzero while the bits of durable pages may be ahead of the journal's records.
    pub unsure: AtomicU32,
    /// Set when writing to stable storage has failed: syncs can't succeed any more.
    pub failed: AtomicU32,
    /// Set in a pool that was loaded from stable storage: unrecorded bytes may lie beyond the ends
    /// of files.
    pub loaded: AtomicU32,
    /// Three locks, each held by the one process that makes a checkpoint, syncs everything, or
    /// frees the pages in limbo.
    pub checkpointing: Lock,
    pub syncing: Lock,
    pub releasing: Lock,
    pub generation: AtomicU64,
    /// The next generation and its start position, while that generation begins.
    pub next: AtomicU64,
    pub next_start: AtomicU64,
    /// Positions in the journal: start of this generation, end of its records, end of those written
    /// to the file, end of those on stable storage.
    pub start: AtomicU64,
    pub end: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    /// Bytes in a generation after which a checkpoint is due.
    pub bound: AtomicU64,
    /// Held while room for checkpoints is reserved, or while their files are exchanged.
    pub rooming: Lock,
    /// Bytes reserved for a checkpoint: see `journal/room.rs`.
    pub checkpoint_room: AtomicU64,
}

/// The watches' part of the control region.
#[repr(C)]
pub struct WatchState {
    /// Not 0: there may be watches.
    pub any: AtomicU32,
    /// Counts renames: both events of a rename carry its number, by which watchers connect them.
    pub cookies: AtomicU32,
    /// Counts the shadows (`watches/shadow.rs`) that were ever made.
    pub shadows: AtomicU64,
    /// Held for every change of the set of shadows.
    pub lock: Lock,
    pad: AtomicU32,
    /// A bit for each hash of an id: set if an object with that hash is watched.
    pub filter: [AtomicU64; FILTER_WORDS],
}

/// The cached copies' part of the control region.
#[repr(C)]
#[derive(Default)]
pub struct CopyState {
    /// Approximate number of pages of each medium that the copies occupy.
    pub pages: [AtomicU64; MAX_MEDIA],
    /// Approximate number of copies.
    pub files: AtomicU64,
    /// No copies are made before this time. Nanoseconds since 1970.
    pub pause: AtomicU64,
}

/// The quota's part of the control region.
#[repr(C, align(64))]
pub struct QuotaState {
    /// Whether the pool has a quota; set before the first operation.
    pub active: AtomicU32,
    /// Set by the origin service when it has seen this region. 0: the region is new.
    pub seen: AtomicU32,
    pub used_bytes: AtomicI64,
    pub used_files: AtomicI64,
    pub granted_bytes: AtomicI64,
    pub granted_files: AtomicI64,
}

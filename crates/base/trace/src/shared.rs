//! The shared memory of a node's tracing: which points are on, how rings are made, and the slowest
//! operations.
//!
//! The shared memory is a part of the node store's control region. Each process maps it over a
//! static ([`crate::attach`]). So a look at a point is one load from a fixed address, and no
//! pointer dangles when a pool is closed. A process that uses several pools sees the points of the
//! one that it attached to last.

use crate::clock::{self, Moment};
use crate::points::{MAX_POINTS, Point, table};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Number of entries in the list of slow operations.
pub const SLOW: usize = 256;
/// Default number of events of a ring: with 64 bytes each, 1 MiB.
pub const RING_EVENTS: u32 = 1 << 14;
/// Minimum and maximum of the number of events of a ring.
pub const RING_EVENTS_RANGE: (u32, u32) = (1 << 6, 1 << 22);
/// Default limit on the memory of all rings of a node. Bytes.
pub const RINGS_LIMIT: u64 = 64 << 20;
/// Default of the duration beyond which an operation is listed as slow. Nanoseconds.
pub const SLOW_BOUND: u64 = 100_000_000;

/// The shared memory of tracing. Zeroed memory is valid: everything is off.
#[repr(C, align(4096))]
pub struct Shared {
    /// For each point, whether it is on.
    pub on: [AtomicU8; MAX_POINTS],
    /// Settings and counters.
    pub head: Head,
    /// The latest slow operations.
    pub slow: [SlowEntry; SLOW],
}

/// Settings and counters.
#[repr(C, align(4096))]
pub struct Head {
    /// The [`table`] of the processes that use the memory; 0: the memory belongs to no pool.
    pub table: AtomicU64,
    /// Whether ticks are those of the time stamp counter.
    pub counter: AtomicU32,
    /// This node's number in its pool.
    pub node: AtomicU32,
    /// Number of events of a new ring: a power of two.
    pub ring_events: AtomicU32,
    /// Limit on the memory of all rings. Bytes.
    pub rings_limit: AtomicU64,
    /// Memory of all rings. Bytes.
    pub rings: AtomicU64,
    /// Number of rings that weren't made: the limit was reached, or there was no memory.
    pub refused: AtomicU64,
    /// When the memory was made: the fields of a [`Moment`].
    pub begin: [AtomicU64; 3],
    /// Duration beyond which an operation is listed as slow. Ticks; 0: none is listed.
    pub slow_bound: AtomicU64,
    /// Number of slow operations so far. Modulo [`SLOW`], it is the index of the next one's entry.
    pub slow_count: AtomicU64,
    /// Id of the process that reads all rings and keeps their events; 0: none. Writers to full
    /// rings may wait for it.
    pub reader: AtomicU32,
    /// Whether a writer to a full ring waits until the reader has taken the oldest event.
    pub waits: AtomicU32,
    /// When the reader last took events. Nanoseconds of CLOCK_MONOTONIC.
    pub reader_seen: AtomicU64,
    /// Sum of the counters of ended processes: see [`crate::block`].
    pub ended: crate::block::Block,
}

/// A slow operation.
#[repr(C)]
pub struct SlowEntry {
    /// One more than the operation's number; written last. 0: the entry is empty.
    pub number: AtomicU64,
    /// When the operation began. Ticks.
    pub begin: AtomicU64,
    /// The operation's duration. Ticks.
    pub took: AtomicU64,
    /// Id of the request to which the operation belonged ([`crate::request`]).
    pub request: AtomicU64,
    /// [`crate::Operation`] in the low 32 bits, errno in the high ones.
    pub what: AtomicU64,
    /// Process (high 32 bits) and thread.
    pub who: AtomicU64,
    /// Number of requests to other nodes.
    pub requests: AtomicU64,
    /// Time spent in requests to other nodes. Ticks.
    pub request_ticks: AtomicU64,
}

const _: () = assert!(size_of::<SlowEntry>() == 64);

/// Size of the shared memory. Bytes.
pub const LEN: usize = size_of::<Shared>();

pub(crate) struct Place(pub(crate) UnsafeCell<std::mem::MaybeUninit<Shared>>);

// SAFETY: a Shared is made of atomics, so threads may use it at the same time.
unsafe impl Sync for Place {}

pub(crate) static PLACE: Place = Place(UnsafeCell::new(std::mem::MaybeUninit::zeroed()));

/// The shared memory of this process.
pub static SHARED: SharedRef = SharedRef(());

/// Dereferences to the static over which the shared memory is mapped.
pub struct SharedRef(());

impl std::ops::Deref for SharedRef {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        // SAFETY: the static holds zeros, or a pool's shared memory is mapped over it: both are
        // valid for atomics.
        unsafe { &*PLACE.0.get().cast::<Shared>() }
    }
}

/// Prepares zeroed memory: sets the clock and the defaults.
pub fn format(shared: &Shared) {
    let counter = clock::constant_counter();
    clock::choose(counter);
    let head = &shared.head;
    head.counter.store(counter.into(), Relaxed);
    head.ring_events.store(RING_EVENTS, Relaxed);
    head.rings_limit.store(RINGS_LIMIT, Relaxed);
    let now = Moment::now();
    for (place, value) in head.begin.iter().zip([now.ticks, now.monotonic, now.real]) {
        place.store(value, Relaxed);
    }
    head.slow_bound.store(first_slow_bound(counter), Relaxed);
    head.table.store(table(), Release);
}

/// Returns [`SLOW_BOUND`] in ticks, estimated, since no tick has been measured yet.
pub fn first_slow_bound(counter: bool) -> u64 {
    SLOW_BOUND * if counter { 2 } else { 1 }
}

/// Maximum time without a sign of life from the reader, and maximum wait of a writer for the
/// reader. Nanoseconds.
pub const READER_TIMEOUT: u64 = 1_000_000_000;

impl Shared {
    /// Whether a process reads all rings, and has given a sign of life within [`READER_TIMEOUT`].
    pub fn is_read(&self) -> bool {
        let seen = self.head.reader_seen.load(Relaxed);
        let silent = clock::monotonic().saturating_sub(seen);
        self.head.reader.load(Relaxed) != 0 && silent <= READER_TIMEOUT
    }

    /// Sets this process's clock to that of the memory.
    pub fn use_clock(&self) {
        clock::choose(self.head.counter.load(Relaxed) != 0);
    }
}

impl Head {
    /// When the memory was made.
    pub fn begun(&self) -> Moment {
        let [ticks, monotonic, real] = [0, 1, 2].map(|i| self.begin[i].load(Relaxed));
        Moment {
            ticks,
            monotonic,
            real,
        }
    }
}

/// Whether a point is switched on.
#[inline]
pub fn is_on(point: Point) -> bool {
    SHARED.on[point as usize].load(Relaxed) != 0
}

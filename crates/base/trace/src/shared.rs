//! The shared memory of a node's tracing: which points are on, how rings are made, and the slowest
//! operations.
//!
//! It is a part of the node store's control region. Each process maps that part over a static of
//! its own ([`crate::attach`]), so that a look at a point is one load from a fixed address, and
//! nothing dangles when a pool is closed. A process that uses several pools sees the points of the
//! one that it attached to last.

use crate::clock::{self, Moment};
use crate::points::{MAX_POINTS, Point, table};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// Entries of the list of slow operations.
pub const SLOW: usize = 256;
/// Events that a ring holds unless another number is set: with 64 bytes each, 1 MiB.
pub const RING_EVENTS: u32 = 1 << 14;
/// Limits on the number of events of a ring.
pub const RING_EVENTS_RANGE: (u32, u32) = (1 << 6, 1 << 22);
/// Limit on the memory of all rings of a node, unless another one is set. Bytes.
pub const RINGS_LIMIT: u64 = 64 << 20;
/// Operations that take longer than this are listed, unless another bound is set. Nanoseconds.
pub const SLOW_BOUND: u64 = 100_000_000;

/// The shared memory. Zeroed memory is a valid one in which everything is off.
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
    /// The [`table`] of the processes that made it; 0: this memory belongs to no pool.
    pub table: AtomicU64,
    /// Whether a tick is one of the time stamp counter.
    pub counter: AtomicU32,
    /// This node's number in its pool.
    pub node: AtomicU32,
    /// Events that a new ring holds: a power of two.
    pub ring_events: AtomicU32,
    /// Limit on the memory of all rings. Bytes.
    pub rings_limit: AtomicU64,
    /// Memory of all rings. Bytes.
    pub rings: AtomicU64,
    /// Rings that weren't made: the limit was reached, or there was no memory.
    pub refused: AtomicU64,
    /// When the memory was made: [`Moment`].
    pub begin: [AtomicU64; 3],
    /// The bound for the list of slow operations. Ticks; 0: none are listed.
    pub slow_bound: AtomicU64,
    /// Slow operations so far; the entry of the next one is this number modulo [`SLOW`].
    pub slow_count: AtomicU64,
    /// Process id of the one that reads all rings and keeps their events; 0: none. While there is
    /// one, full rings may wait for it.
    pub reader: AtomicU32,
    /// Whether an event waits for a place in its ring until the reader has taken the oldest.
    pub waits: AtomicU32,
    /// When the reader last took events. Nanoseconds of CLOCK_MONOTONIC.
    pub reader_seen: AtomicU64,
    /// Sum of the counters of ended processes: see [`crate::block`].
    pub ended: crate::block::Block,
}

/// A slow operation.
#[repr(C)]
pub struct SlowEntry {
    /// One more than its number; written last. 0: empty.
    pub number: AtomicU64,
    /// When it began. Ticks.
    pub begin: AtomicU64,
    /// Ticks.
    pub took: AtomicU64,
    /// The request's id.
    pub request: AtomicU64,
    /// [`crate::Operation`] in the low 32 bits, errno in the high ones.
    pub what: AtomicU64,
    /// Process (high 32 bits) and thread.
    pub who: AtomicU64,
    /// Number of requests to other nodes, and the time spent in them (ticks).
    pub requests: AtomicU64,
    /// Ticks spent in these.
    pub request_ticks: AtomicU64,
}

const _: () = assert!(size_of::<SlowEntry>() == 64);

/// Bytes of the shared memory.
pub const LEN: usize = size_of::<Shared>();

pub(crate) struct Place(pub(crate) UnsafeCell<std::mem::MaybeUninit<Shared>>);

// SAFETY: all of it is atomics.
unsafe impl Sync for Place {}

pub(crate) static PLACE: Place = Place(UnsafeCell::new(std::mem::MaybeUninit::zeroed()));

/// The shared memory of this process.
pub static SHARED: SharedRef = SharedRef(());

/// Leads to the static that is mapped over.
pub struct SharedRef(());

impl std::ops::Deref for SharedRef {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        // SAFETY: zeroed memory is valid for atomics; whatever is mapped over it is, too.
        unsafe { &*PLACE.0.get().cast::<Shared>() }
    }
}

/// Prepares zeroed memory: notes the clock, and settings.
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

/// [`SLOW_BOUND`] in ticks, roughly: before anything was measured.
pub fn first_slow_bound(counter: bool) -> u64 {
    SLOW_BOUND * if counter { 2 } else { 1 }
}

/// Longest time without a sign of life from the reader, and longest wait of an event for it.
/// Nanoseconds.
pub const READER_TIMEOUT: u64 = 1_000_000_000;

impl Shared {
    /// Whether a process reads all rings: it isn't known to be dead or to stand still.
    pub fn is_read(&self) -> bool {
        let seen = self.head.reader_seen.load(Relaxed);
        let silent = clock::monotonic().saturating_sub(seen);
        self.head.reader.load(Relaxed) != 0 && silent <= READER_TIMEOUT
    }

    /// From now on this process has the clock of this memory.
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

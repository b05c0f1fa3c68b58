//! Per-thread state: thread id, current request, lane of the counters.
//!
//! All fields are in one thread-local variable, since in a library that is loaded into programs
//! each access to a thread-local is a call.

use crate::block::{Block, Lane};
use crate::shared::SHARED;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The last number of a request of this process.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The process id, once the process counts; 0 before. Asking the kernel takes longer than an event.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The parts of a request's id, from the lowest bits on: its number in the process, the process id,
/// the node.
const NUMBER_BITS: u32 = 30;
const PROCESS_BITS: u32 = 22;

pub(crate) struct Thread {
    /// Its id in the system; 0: not asked for yet.
    pub id: Cell<u32>,
    /// Whether the thread is in an operation whose events are recorded.
    pub inside: Cell<bool>,
    /// Whether no other thread adds to its lane.
    pub alone: Cell<bool>,
    /// Requests to other nodes since the last operation ended, and the ticks that they took.
    pub requests: Cell<u32>,
    pub request_ticks: Cell<u64>,
    /// Ticks of waits for locks since then.
    pub waiting: Cell<u64>,
    pub request: Cell<u64>,
    /// The block in which the thread counts, and its lane there.
    pub block: Cell<*const Block>,
    pub lane: Cell<*const Lane>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            id: Cell::new(0),
            inside: Cell::new(false),
            alone: Cell::new(false),
            requests: Cell::new(0),
            request_ticks: Cell::new(0),
            waiting: Cell::new(0),
            request: Cell::new(0),
            block: Cell::new(std::ptr::null()),
            lane: Cell::new(std::ptr::null()),
        }
    };
}

/// Runs `f` with this thread's state.
#[inline]
pub(crate) fn with<T>(f: impl FnOnce(&Thread) -> T) -> T {
    THREAD.with(f)
}

/// The thread's id in the system.
pub(crate) fn id() -> u32 {
    with(|thread| match thread.id.get() {
        0 => {
            let new = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            thread.id.set(new);
            new
        }
        known => known,
    })
}

fn process() -> u32 {
    match PROCESS.load(Relaxed) {
        0 => rustix::process::getpid().as_raw_nonzero().get() as u32,
        known => known,
    }
}

/// The process id, which isn't requested again until a fork. Not in a child of vfork, which has its
/// parent's memory.
pub(crate) fn note_process() -> u32 {
    PROCESS.store(0, Relaxed);
    let id = process();
    PROCESS.store(id, Relaxed);
    id
}

/// Whether this thread was in an operation whose events are recorded. Sets that state to `inside`.
pub fn enter(inside: bool) -> bool {
    with(|thread| thread.inside.replace(inside))
}

/// The name of the program in two words, as the kernel keeps it.
pub(crate) fn program() -> [u64; 2] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes up to 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let halves = name.as_chunks::<8>().0;
    [u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1])]
}

/// In a forked child, on its only thread: it is another one now.
pub(crate) fn forked() {
    PROCESS.store(0, Relaxed);
    with(|thread| {
        thread.id.set(0);
        thread.request.set(0);
    });
}

/// The id of the request that this thread works on; begins one if there is none. It contains the
/// node and process that began it ([`parts`]), and is unique in the pool, except for numbers of a
/// process that begins more than a thousand million.
pub fn request() -> u64 {
    with(|thread| match thread.request.get() {
        0 => {
            let new = begin();
            thread.request.set(new);
            new
        }
        known => known,
    })
}

/// The id of the request that this thread works on; without one, an id for one step only. For
/// threads whose work isn't counted, so that no operation ends their requests.
pub fn request_once() -> u64 {
    match with(|thread| thread.request.get()) {
        0 => begin(),
        known => known,
    }
}

#[cold]
fn begin() -> u64 {
    let pid = u64::from(process());
    let number = LAST.fetch_add(1, Relaxed).wrapping_add(1) & ((1 << NUMBER_BITS) - 1);
    let node = u64::from(SHARED.head.node.load(Relaxed));
    node << (NUMBER_BITS + PROCESS_BITS) | pid << NUMBER_BITS | number
}

/// Node, process and number of a request.
pub fn parts(id: u64) -> (u32, u32, u32) {
    let part = |shift: u32, bits: u32| (id >> shift & ((1 << bits) - 1)) as u32;
    (
        (id >> (NUMBER_BITS + PROCESS_BITS)) as u32,
        part(NUMBER_BITS, PROCESS_BITS),
        part(0, NUMBER_BITS),
    )
}

/// From now on this thread works on request `id` (0: none); returns the one before.
#[inline]
pub fn adopt_request(id: u64) -> u64 {
    with(|thread| thread.request.replace(id))
}

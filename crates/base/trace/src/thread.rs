//! State of a thread: the thread's id, its current request, and its lane of the counters.
//!
//! All fields are in one thread-local variable, since each access to a thread-local is a function
//! call in a library that is loaded into programs.

use crate::block::{Block, Lane};
use crate::shared::SHARED;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The number of the latest request that this process began.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The process id, once the process counts; 0 before. Cached, since asking the kernel takes longer
/// than recording an event.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Widths of the two lower parts of a request's id: in the lowest bits the number that the request
/// has in its process, then the process id. The remaining bits are the node.
const NUMBER_BITS: u32 = 30;
const PROCESS_BITS: u32 = 22;

pub(crate) struct Thread {
    /// The thread's id in the kernel; 0 before the first use.
    pub id: Cell<u32>,
    /// Whether the thread is in an operation whose events are recorded.
    pub inside: Cell<bool>,
    /// Whether no other thread adds to the same lane.
    pub alone: Cell<bool>,
    /// Number of requests to other nodes since the last operation ended, and the ticks that they
    /// took.
    pub requests: Cell<u32>,
    pub request_ticks: Cell<u64>,
    /// Ticks of waits for locks since the last operation ended.
    pub waiting: Cell<u64>,
    pub request: Cell<u64>,
    /// The block in which the thread counts, and its lane in it.
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

/// Returns the thread's id in the kernel.
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

/// Returns the process id, and caches it until the next fork. Not for a child of vfork, which
/// shares its parent's memory.
pub(crate) fn note_process() -> u32 {
    PROCESS.store(0, Relaxed);
    let id = process();
    PROCESS.store(id, Relaxed);
    id
}

/// Sets whether this thread is in an operation whose events are recorded. Returns the previous
/// state.
pub fn enter(inside: bool) -> bool {
    with(|thread| thread.inside.replace(inside))
}

/// Returns the program's name in two words, as the kernel stores it.
pub(crate) fn program() -> [u64; 2] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes up to 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let halves = name.as_chunks::<8>().0;
    [u64::from_le_bytes(halves[0]), u64::from_le_bytes(halves[1])]
}

/// Resets the state in a forked child: its only thread has another id than in the parent.
pub(crate) fn forked() {
    PROCESS.store(0, Relaxed);
    with(|thread| {
        thread.id.set(0);
        thread.request.set(0);
    });
}

/// Returns the id of this thread's request; begins a request if there is none. The id contains the
/// node and the process that began the request ([`parts`]). The id is unique in the pool unless a
/// process begins more than 2^30 requests.
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

/// Returns the id of this thread's request; if there is none, an id for one step only. For threads
/// whose work isn't counted: no operation would end a request that they begin.
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

/// Returns node, process and number of a request.
pub fn parts(id: u64) -> (u32, u32, u32) {
    let part = |shift: u32, bits: u32| (id >> shift & ((1 << bits) - 1)) as u32;
    (
        (id >> (NUMBER_BITS + PROCESS_BITS)) as u32,
        part(NUMBER_BITS, PROCESS_BITS),
        part(0, NUMBER_BITS),
    )
}

/// Lets this thread work on request `id` from now on (0: none). Returns the previous request.
#[inline]
pub fn adopt_request(id: u64) -> u64 {
    with(|thread| thread.request.replace(id))
}

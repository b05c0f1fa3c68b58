//! Counters of operations, which are always on: numbers, bytes, errors, remote operations, time.
//!
//! Every process counts in a [`Block`] of its own in shared memory. A thread has a lane of the
//! block to itself, so that it adds without locked instructions; threads beyond [`LANES`] − 1 share
//! the last lane. Numbers, bytes and errors are exact. Of the kinds that aren't frequent, all
//! operations are timed. Of the frequent kinds, one operation in [`SAMPLE`] is timed, and so is
//! each that sent a request to another node or waited for a lock. A timed operation that did
//! neither stands for those before it that weren't timed.
//!
//! A block stays unchanged after its process has ended. The next process that gets the block first
//! adds the block's numbers to the node's sum of ended processes.

use crate::block::{Block, Counts, FIRST, KINDS, LANES, Lane, Operation, SAMPLE};
use crate::clock;
use crate::shared::{SHARED, SLOW};
use crate::thread::{self, Thread};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};

static BLOCK: AtomicPtr<Block> = AtomicPtr::new(std::ptr::null_mut());

/// Lets this process count in `block` from now on. If another process counted there, adds that
/// process's counts to the node's sum of ended processes first.
///
/// # Safety
/// `block` stays mapped until [`stop`] or [`count_in`] is called.
pub unsafe fn count_in(block: *const Block) {
    // SAFETY: mapped, by the caller's promise.
    let there = unsafe { &*block };
    let me = thread::note_process();
    if there.process.load(Relaxed) != me {
        there.hand_over(&SHARED.head.ended);
    }
    // After exec, the process has another name.
    for (place, half) in there.name.iter().zip(thread::program()) {
        place.store(half, Relaxed);
    }
    there.process.store(me, Relaxed);
    BLOCK.store(block.cast_mut(), Release);
}

/// Ends counting in this process.
pub fn stop() {
    BLOCK.store(std::ptr::null_mut(), Release);
}

/// Ends counting in `block`, which is about to be unmapped.
pub fn stop_in(block: *const Block) {
    let _ = BLOCK.compare_exchange(block.cast_mut(), std::ptr::null_mut(), AcqRel, Relaxed);
}

/// Gives the thread a lane of `block`.
#[cold]
#[inline(never)]
fn claim(thread: &Thread, block: *const Block) {
    let id = thread::id();
    // SAFETY: the caller of `count_in` promised that the block stays mapped.
    let lanes = unsafe { &(*block).lanes };
    let free = |lane: &&Lane| {
        let owner = lane.owner.load(Relaxed);
        let dead = || {
            let pid = rustix::process::getpid().as_raw_nonzero().get();
            // SAFETY: signal 0 only checks whether there is such a thread.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, owner, 0) != 0 }
        };
        (owner == 0 || owner == id || dead())
            && (lane.owner)
                .compare_exchange(owner, id, Relaxed, Relaxed)
                .is_ok()
    };
    let own = lanes[..LANES - 1].iter().find(free);
    thread.block.set(block);
    thread.lane.set(own.unwrap_or(&lanes[LANES - 1]));
    thread.alone.set(own.is_some());
}

#[inline]
fn add(thread: &Thread, counter: &AtomicU64, n: u64) {
    if thread.alone.get() {
        counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
    } else {
        counter.fetch_add(n, Relaxed);
    }
}

/// Returns this thread's lane; None if the process doesn't count.
#[inline]
fn lane(thread: &Thread) -> Option<&Lane> {
    let block: *const Block = BLOCK.load(Relaxed);
    if block.is_null() {
        return None;
    }
    if thread.block.get() != block {
        claim(thread, block);
    }
    // SAFETY: the pointer is null, or that of a lane of the block, which stays mapped.
    unsafe { thread.lane.get().as_ref() }
}

/// Kinds of which one operation in [`SAMPLE`] is timed after the first ones. Bits.
const FREQUENT: u32 = {
    use Operation::*;
    1 << Read as u32
        | 1 << Write as u32
        | 1 << Seek as u32
        | 1 << Stat as u32
        | 1 << Open as u32
        | 1 << Create as u32
        | 1 << Close as u32
        | 1 << Access as u32
        | 1 << Attributes as u32
        | 1 << Remove as u32
        | 1 << Rename as u32
        | 1 << Get as u32
        | 1 << Put as u32
};

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of bytes that the operation moved.
    pub bytes: u64,
    /// 0, or the errno of the operation's failure.
    pub errno: i32,
}

/// For each kind, whether this process doesn't time the next operation.
static SKIPS: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];

/// Returns the tick at which an operation begins; 0 if the operation isn't timed.
#[inline]
pub fn begin(kind: Operation) -> u64 {
    // Before the process counts, it may use another clock than later.
    if SKIPS[kind as usize].load(Relaxed) || BLOCK.load(Relaxed).is_null() {
        return 0;
    }
    clock::now()
}

/// Decides whether the next operation of a kind is timed. `count`: number of operations that have
/// ended.
#[inline]
fn choose_next(kind: Operation, count: u64) {
    let skips = FREQUENT >> kind as u32 & 1 != 0 && count >= FIRST && !count.is_multiple_of(SAMPLE);
    let place = &SKIPS[kind as usize];
    if place.load(Relaxed) != skips {
        place.store(skips, Relaxed);
    }
}

/// Counts an operation that ends now. `begun`: the result of [`begin`]. Ends the thread's request.
#[inline]
pub fn end(kind: Operation, begun: u64, outcome: Outcome) {
    thread::with(|thread| {
        let Some(lane) = lane(thread) else { return };
        let counts = &lane.kinds[kind as usize];
        let so_far = counts.count.load(Relaxed);
        if !thread.alone.get() {
            return end_shared(thread, (kind, counts), begun, outcome);
        }
        counts.count.store(so_far.wrapping_add(1), Relaxed);
        let bytes = counts.bytes.load(Relaxed).wrapping_add(outcome.bytes);
        counts.bytes.store(bytes, Relaxed);
        choose_next(kind, so_far);
        let seldom = begun != 0 || outcome.errno != 0 || thread.waiting.get() != 0;
        if seldom || thread.requests.get() != 0 || thread.request.get() != 0 {
            more(thread, (kind, counts), begun, outcome.errno);
        }
    });
}

/// As [`end`], on a thread that shares its lane.
#[cold]
#[inline(never)]
fn end_shared(thread: &Thread, (kind, counts): (Operation, &Counts), begun: u64, outcome: Outcome) {
    counts.bytes.fetch_add(outcome.bytes, Relaxed);
    choose_next(kind, counts.count.fetch_add(1, Relaxed));
    more(thread, (kind, counts), begun, outcome.errno);
}

/// Counts errors, requests to other nodes and durations. Most operations have none of them.
#[inline(never)]
fn more(thread: &Thread, (kind, counts): (Operation, &Counts), begin: u64, errno: i32) {
    let (requests, request_ticks) = (thread.requests.take(), thread.request_ticks.take());
    let waiting = thread.waiting.take();
    if errno != 0 {
        add(thread, &counts.errors, 1);
    }
    if requests != 0 {
        add(thread, &counts.remote, 1);
    }
    if requests != 0 || waiting != 0 || begin != 0 {
        let now = clock::now();
        // For an operation that wasn't timed, the time of its requests and waits is a lower bound
        // of its duration.
        let known = now.saturating_sub(request_ticks + waiting);
        let begin = if begin == 0 { known } else { begin };
        let took = now.saturating_sub(begin);
        let stands_for = if requests != 0 || waiting != 0 {
            1
        } else {
            let ended = counts.count.load(Relaxed);
            ended.saturating_sub(counts.shown.load(Relaxed)).max(1)
        };
        add(thread, &counts.shown, stands_for);
        // SAFETY: `lane` has set `thread.block` to the block of `count_in`, which stays mapped.
        unsafe { &(*thread.block.get()).times[kind as usize] }.add(took, stands_for);
        let bound = SHARED.head.slow_bound.load(Relaxed);
        if bound != 0 && took > bound {
            slow(
                thread,
                kind,
                (begin, took),
                (requests, request_ticks),
                errno,
            );
        }
    }
    thread.request.set(0);
}

#[cold]
fn slow(
    thread: &Thread,
    kind: Operation,
    (begin, took): (u64, u64),
    (requests, request_ticks): (u32, u64),
    errno: i32,
) {
    let number = SHARED.head.slow_count.fetch_add(1, Relaxed);
    let entry = &SHARED.slow[number as usize % SLOW];
    let pid = rustix::process::getpid().as_raw_nonzero().get() as u64;
    entry.number.store(0, Relaxed);
    std::sync::atomic::fence(Release);
    for (place, value) in [
        (&entry.begin, begin),
        (&entry.took, took),
        (&entry.request, thread.request.get()),
        (&entry.what, u64::from(errno as u32) << 32 | kind as u64),
        (&entry.who, pid << 32 | u64::from(thread::id())),
        (&entry.requests, requests.into()),
        (&entry.request_ticks, request_ticks),
    ] {
        place.store(value, Relaxed);
    }
    entry.number.store(number + 1, Release);
}

/// Records that this thread has waited for a request to another node, from tick `begin` until now.
/// `sent`, `received`: sizes of the bodies in bytes.
pub fn record_request(begin: u64, sent: u64, received: u64) {
    let took = clock::now().saturating_sub(begin);
    thread::with(|thread| {
        thread.requests.set(thread.requests.get().wrapping_add(1));
        thread
            .request_ticks
            .set(thread.request_ticks.get().wrapping_add(took));
        if lane(thread).is_some() {
            // SAFETY: `lane` has set `thread.block` to the block of `count_in`, which stays mapped.
            let requests = unsafe { &(*thread.block.get()).requests };
            requests.sent.fetch_add(sent, Relaxed);
            requests.received.fetch_add(received, Relaxed);
            requests.times.add(took, 1);
        }
    });
}

/// Records that this thread has waited for a lock from tick `begin` until now.
pub fn waited(begin: u64) {
    let took = clock::now().saturating_sub(begin);
    thread::with(|thread| {
        thread.waiting.set(thread.waiting.get().wrapping_add(took));
        if lane(thread).is_some() {
            // SAFETY: `lane` has set `thread.block` to the block of `count_in`, which stays mapped.
            unsafe { &(*thread.block.get()).waits }.add(took, 1);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{Sum, class};

    fn block() -> Box<Block> {
        // SAFETY: zeroed memory is a valid block.
        unsafe { Box::new_zeroed().assume_init() }
    }

    /// A process has one block, so tests that count take turns.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn counts_are_exact_whatever_the_number_of_threads() {
        let _one = ONE.lock();
        let block = block();
        // SAFETY: the block lives until `stop`.
        unsafe { count_in(&*block) };
        std::thread::scope(|s| {
            for _ in 0..LANES * 3 {
                s.spawn(|| {
                    for i in 0..10_000 {
                        let errno = i32::from(i % 100 == 0);
                        let begun = begin(Operation::Write);
                        end(Operation::Write, begun, Outcome { bytes: 10, errno });
                    }
                });
            }
        });
        stop();
        let sum = block.sum(Operation::Write as usize);
        let n = LANES as u64 * 3 * 10_000;
        assert_eq!(
            (sum.count, sum.bytes, sum.errors, sum.remote),
            (n, 10 * n, n / 100, 0)
        );
        let timed = block.times[Operation::Write as usize].timed.load(Relaxed);
        // Two threads that share a lane may both count the same untimed operation as one that their
        // timed operation stands for.
        assert!(timed > n * 9 / 10 && timed < n * 11 / 10, "{timed} of {n}");
        let ended = self::block();
        block.hand_over(&ended);
        assert_eq!(ended.sum(Operation::Write as usize), sum);
        assert_eq!(block.sum(Operation::Write as usize), Sum::default());
    }

    #[test]
    fn those_that_are_always_timed_count_no_more_than_others() {
        let _one = ONE.lock();
        let block = block();
        // SAFETY: the block lives until `stop`.
        unsafe { count_in(&*block) };
        // One operation in 13 sends a request to another node; the other operations take no time.
        for i in 0..13_000 {
            let begun = begin(Operation::Write);
            if i % 13 == 0 {
                let from = clock::now();
                while clock::now() < from + (1 << 14) {}
                record_request(from, 0, 0);
            }
            end(Operation::Write, begun, Outcome { bytes: 1, errno: 0 });
        }
        stop();
        let times = &block.times[Operation::Write as usize];
        let timed = times.timed.load(Relaxed);
        assert!((13_000 - SAMPLE..=13_000).contains(&timed), "{timed}");
        let slow: u64 = (times.classes[class(1 << 14)..].iter())
            .map(|n| n.load(Relaxed))
            .sum();
        assert!((1000..1100).contains(&slow), "{slow}");
    }

    #[test]
    fn an_operation_that_asks_is_remote_and_timed() {
        let _one = ONE.lock();
        let block = block();
        // SAFETY: the block lives until `stop`.
        unsafe { count_in(&*block) };
        for _ in 0..3 {
            let begun = begin(Operation::Read);
            record_request(clock::now(), 5, 7);
            end(Operation::Read, begun, Outcome { bytes: 7, errno: 0 });
        }
        stop();
        assert_eq!(block.sum(Operation::Read as usize).remote, 3);
        assert_eq!(block.times[Operation::Read as usize].timed.load(Relaxed), 3);
        assert_eq!(block.requests.received.load(Relaxed), 21);
        assert!(!block.program().is_empty());
    }
}

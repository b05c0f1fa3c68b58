//! A process's block of counters in shared memory: the kinds of operations, and the counters of
//! each kind.
//!
//! A block belongs to a process. The block stays unchanged after the process has ended. The next
//! process that gets the block first adds the block's numbers to the node's sum of ended processes
//! ([`Block::hand_over`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

macro_rules! operations {
    ($($name:ident $text:literal)*) => {
        /// A kind of operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Operation { $(#[doc = concat!("`", $text, "`")] $name),* }

        /// All kinds.
        pub const OPERATIONS: &[(Operation, &str)] = &[$((Operation::$name, $text)),*];
    };
}

operations! {
    Open "open"
    Create "create"
    Close "close"
    Read "read"
    Write "write"
    Seek "seek"
    Stat "stat"
    List "list"
    Access "access"
    Mkdir "mkdir"
    Remove "remove"
    Rename "rename"
    Link "link"
    Attributes "attributes"
    Truncate "truncate"
    Sync "sync"
    Lock "lock"
    Map "map"
    Other "other"
    Get "get"
    Put "put"
}

/// Number of kinds of operations for which a block has space.
pub const KINDS: usize = 24;
/// Number of lanes of a block. The threads that have no lane of their own share the last one.
pub const LANES: usize = 4;
/// After the first [`FIRST`] operations of a frequent kind, one in `SAMPLE` is timed.
pub const SAMPLE: u64 = 16;
/// Number of the first operations of each kind, which are all timed.
pub const FIRST: u64 = 64;
/// Number of classes of durations: two for each power of two of ticks, from 2^[`LEAST`] on.
pub const CLASSES: usize = 64;
/// Durations below 2^`LEAST` ticks are in the first class.
pub const LEAST: u32 = 6;

const _: () = assert!(OPERATIONS.len() <= KINDS);

/// Counters of one kind of operation.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of operations that have ended.
    pub count: AtomicU64,
    /// Number of bytes that these operations transferred.
    pub bytes: AtomicU64,
    /// Number of operations that failed.
    pub errors: AtomicU64,
    /// Number of operations that sent a request to another node.
    pub remote: AtomicU64,
    /// Number of operations that the timed ones stand for.
    pub(crate) shown: AtomicU64,
}

/// Durations of operations. Each timed operation stands for some that weren't timed.
#[repr(C)]
#[derive(Debug)]
pub struct Times {
    /// Number of operations that the timed ones stand for: all but those since the last timed one.
    pub timed: AtomicU64,
    /// Sum of the durations of these `timed` operations. Ticks.
    pub ticks: AtomicU64,
    /// Number of operations in each class of durations.
    pub classes: [AtomicU64; CLASSES],
}

impl Times {
    /// Adds the duration of a timed operation that stands for `n` operations.
    pub(crate) fn add(&self, ticks: u64, n: u64) {
        self.timed.fetch_add(n, Relaxed);
        self.ticks.fetch_add(ticks.saturating_mul(n), Relaxed);
        self.classes[class(ticks)].fetch_add(n, Relaxed);
    }
}

/// Returns the class of a duration in ticks.
pub fn class(ticks: u64) -> usize {
    let log = 63 - (ticks | 1).leading_zeros();
    if log < LEAST {
        return 0;
    }
    let class = (log - LEAST) * 2 + (ticks >> (log - 1) & 1) as u32;
    (class as usize).min(CLASSES - 1)
}

/// Returns the shortest duration of class `class`. Ticks.
pub fn begin_of_class(class: usize) -> u64 {
    let (log, half) = (class as u32 / 2 + LEAST, class as u64 % 2);
    (1 << log) + (half << (log - 1))
}

/// The counters of one thread, or of several in the last lane of a block.
#[repr(C)]
pub struct Lane {
    /// Id of the thread that the lane belongs to; 0: of no thread.
    pub(crate) owner: AtomicU32,
    pub(crate) kinds: [Counts; KINDS],
}

/// Requests to other nodes.
#[repr(C)]
pub struct Requests {
    /// Bytes sent in the bodies of requests.
    pub sent: AtomicU64,
    /// Bytes received in the bodies of replies.
    pub received: AtomicU64,
    /// Durations of the requests.
    pub times: Times,
}

/// Counters of a process. Zeroed memory is valid.
#[repr(C, align(64))]
pub struct Block {
    /// Id of the process; 0: nothing was counted.
    pub process: AtomicU32,
    /// The first 16 bytes of the program's name, as the kernel stores it.
    pub name: [AtomicU64; 2],
    pub(crate) lanes: [Lane; LANES],
    /// Durations, by kind.
    pub times: [Times; KINDS],
    /// Requests to other nodes.
    pub requests: Requests,
    /// Waits for locks inside the pool.
    pub waits: Times,
}

/// The counters of one kind of operation, as read at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Number of operations, as in [`Counts`].
    pub count: u64,
    /// Number of bytes that these operations transferred.
    pub bytes: u64,
    /// Number of operations that failed.
    pub errors: u64,
    /// Number of operations that sent requests to other nodes.
    pub remote: u64,
}

impl Block {
    /// Returns the sum over all lanes for a kind.
    pub fn sum(&self, kind: usize) -> Sum {
        let mut sum = Sum::default();
        for lane in &self.lanes {
            let counts = &lane.kinds[kind];
            sum.count += counts.count.load(Relaxed);
            sum.bytes += counts.bytes.load(Relaxed);
            sum.errors += counts.errors.load(Relaxed);
            sum.remote += counts.remote.load(Relaxed);
        }
        sum
    }

    /// The program's name.
    pub fn program(&self) -> String {
        let halves = [0, 1].map(|i| self.name[i].load(Relaxed).to_le_bytes());
        let bytes = halves.as_flattened();
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Adds all numbers to `to` and sets them to 0 in this block.
    pub fn hand_over(&self, to: &Block) {
        if self.process.swap(0, AcqRel) == 0 {
            return;
        }
        let pass = |from: &AtomicU64, to: &AtomicU64| {
            let n = from.swap(0, Relaxed);
            if n != 0 {
                to.fetch_add(n, Relaxed);
            }
        };
        let times = |from: &Times, to: &Times| {
            pass(&from.timed, &to.timed);
            pass(&from.ticks, &to.ticks);
            for (from, to) in from.classes.iter().zip(&to.classes) {
                let n = from.swap(0, Relaxed);
                if n != 0 {
                    to.fetch_add(n, Relaxed);
                }
            }
        };
        for lane in &self.lanes {
            lane.owner.store(0, Relaxed);
            for (from, to) in lane.kinds.iter().zip(&to.lanes[0].kinds) {
                pass(&from.count, &to.count);
                pass(&from.bytes, &to.bytes);
                pass(&from.errors, &to.errors);
                pass(&from.remote, &to.remote);
                pass(&from.shown, &to.shown);
            }
        }
        for (from, to) in self.times.iter().zip(&to.times) {
            times(from, to);
        }
        pass(&self.requests.sent, &to.requests.sent);
        pass(&self.requests.received, &to.requests.received);
        times(&self.requests.times, &to.requests.times);
        times(&self.waits, &to.waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ordered_and_cover_all() {
        for class_number in 0..CLASSES {
            assert_eq!(class(begin_of_class(class_number)), class_number);
            assert_eq!(class(begin_of_class(class_number + 1) - 1), class_number);
        }
        assert_eq!((class(0), class(u64::MAX)), (0, CLASSES - 1));
    }
}

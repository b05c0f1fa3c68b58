//! Helpers for tests with random input: random numbers from a seed, mutation of valid bytes, a time
//! limit, an allocator that records the largest allocation, and a network with faults ([`relay`]).
//!
//! `FOREBAY_FUZZ_SECONDS` sets how long each fuzz test runs. Seconds; by default 1. A failure
//! prints its seed; `FOREBAY_FUZZ_SEED` repeats that seed.

#![warn(missing_docs)]

pub mod relay;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    /// Returns the sequence of numbers that `seed` determines.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n.max(1) as u64) as usize
    }

    /// True in one of `n` calls on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A random element of `all`.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A number that often causes errors (a power of two or a neighbour of one), or any number.
    pub fn edge(&mut self) -> u64 {
        let power = 1u64.checked_shl(self.below(65) as u32).unwrap_or(0);
        match self.below(5) {
            0 => power,
            1 => power.wrapping_sub(1),
            2 => power.wrapping_add(1),
            3 => power.wrapping_neg(),
            _ => self.number(),
        }
    }

    /// Up to `most` random bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1))
            .map(|_| self.number() as u8)
            .collect()
    }

    /// Changes `bytes` in a few places: bits, bytes, whole numbers, cuts, repetitions, parts of
    /// `other`.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(8) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.edge() as u8,
                2 | 3 => {
                    let width = *self.one_of(&[2, 4, 8]);
                    let value = self.edge().to_le_bytes();
                    for (to, from) in bytes.iter_mut().skip(at).zip(&value[..width]) {
                        *to = *from;
                    }
                }
                4 => bytes.truncate(at),
                5 => {
                    let end = (at + self.below(32)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                6 => {
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(64)).min(other.len());
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
                _ => {
                    let end = (at + self.below(32)).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
        }
    }
}

/// Calls `f` with new random numbers until the time is up. `f` asserts what must be true.
///
/// # Panics
/// If `f` panics; the message has the seed.
pub fn run(name: &str, mut f: impl FnMut(&mut Random)) {
    let variable = |v: &str| std::env::var(v).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = variable("FOREBAY_FUZZ_SEED") {
        return f(&mut Random::new(seed));
    }
    let seconds = variable("FOREBAY_FUZZ_SECONDS");
    // Without FOREBAY_FUZZ_SECONDS, the seeds are the same each time; with it, the first one is
    // random.
    let first = seconds.map_or(0, |_| Random::new(now()).number());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let mut runs = 0u64;
    while Instant::now() < until {
        let report = SeedReport(name, first.wrapping_add(runs));
        f(&mut Random::new(report.1));
        std::mem::forget(report);
        runs += 1;
    }
    println!("{name}: {runs} runs");
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_nanos() as u64)
}

/// Prints the seed if it is dropped during a panic.
struct SeedReport<'a>(&'a str, u64);

impl Drop for SeedReport<'_> {
    fn drop(&mut self) {
        eprintln!("{}: failed with FOREBAY_FUZZ_SEED={}", self.0, self.1);
    }
}

/// Runs `f`, and ends the process if that takes longer than `seconds`.
pub fn within(seconds: u64, f: impl FnOnce()) {
    let (done, wait) = mpsc::channel::<()>();
    let name = std::thread::current().name().unwrap_or("?").to_string();
    let watch = std::thread::spawn(move || {
        let limit = Duration::from_secs(seconds);
        if wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{name}: still running after {seconds} s");
            std::process::exit(101);
        }
    });
    f();
    drop(done);
    let _ = watch.join();
}

/// A global allocator for tests that records the largest allocation.
pub struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn note(size: usize) {
    let _ = LARGEST.try_with(|l| l.set(l.get().max(size)));
}

// SAFETY: all calls are passed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller's promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the result of `f`, and the size of the largest allocation in it if the global allocator
/// is [`Watched`]. Bytes.
pub fn largest_allocation<T>(f: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.with(|l| l.set(0));
    let result = f();
    (result, LARGEST.with(Cell::get))
}

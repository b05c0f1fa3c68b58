//! Attaches the process to a pool's shared memory for tracing, and detaches it.
//!
//! A process is attached to the pool that it opened last, as long as it has that pool open. The
//! shared memory is mapped over a static. Detaching maps private zeroed memory over the static, so
//! that a removed pool's memory can be freed.
//!
//! A lock makes attaching and detaching exclude each other. A thread waits for the lock for a
//! bounded time, since in a forked child the lock's holder may not exist.

use crate::points::table;
use crate::shared::{LEN, PLACE, Shared};
use crate::{clock, count, ring, thread};
use rustix::fd::AsFd;
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Device and inode of the file that the process is attached to; inode 0 if it isn't attached.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Number of [`Attached`] values for the file that the process is attached to.
static USERS: AtomicU32 = AtomicU32::new(0);
/// The lock: whether a thread is attaching or detaching.
static BUSY: AtomicBool = AtomicBool::new(false);
/// Number of attempts to take the lock, with a yield between two.
const ATTEMPTS: u32 = 10_000;

/// Represents that the process has a pool open. Dropping the last `Attached` of a pool detaches the
/// process.
pub struct Attached {
    identity: (u64, u64),
}

struct Turn;

impl Turn {
    /// Takes the lock. None if the lock doesn't become free in time: then the process isn't
    /// attached or detached.
    fn take() -> Option<Turn> {
        (0..ATTEMPTS).find_map(|_| {
            if !BUSY.swap(true, Acquire) {
                return Some(Turn);
            }
            std::thread::yield_now();
            None
        })
    }

    fn identity(&self) -> (u64, u64) {
        (DEVICE.load(Relaxed), INODE.load(Relaxed))
    }

    fn set_identity(&self, (device, inode): (u64, u64)) {
        DEVICE.store(device, Relaxed);
        INODE.store(inode, Relaxed);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        BUSY.store(false, Release);
    }
}

/// Attaches the process to the shared memory in `file` at `offset`, with rings in the directory
/// `rings`. If another build with other points made the memory, this process isn't traced.
///
/// # Errors
/// Errors of fstat and mmap.
pub fn attach(file: impl AsFd, offset: u64, rings: &Path) -> Result<Attached> {
    let stat = rustix::fs::fstat(&file)?;
    let attached = Attached {
        identity: (stat.st_dev, stat.st_ino),
    };
    let Some(turn) = Turn::take() else {
        return Ok(attached);
    };
    if turn.identity() == attached.identity {
        // The process has this pool open already, and keeps its ring.
        USERS.fetch_add(1, Relaxed);
        return Ok(attached);
    }
    let map = |at: *mut c_void, flags: MapFlags| {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = flags | MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, or one over the static,
        // which has this length and alignment. Both consist of atomics, so a thread that reads at
        // this moment reads a valid value of one of them.
        unsafe { rustix::mm::mmap(at, LEN, protection, flags, &file, offset) }
    };
    let base = map(std::ptr::null_mut(), MapFlags::empty())?;
    // SAFETY: `base` is a mapping of the length of a Shared, which is made of atomics.
    let found = unsafe { &*base.cast::<Shared>() };
    let same = found.head.table.load(Acquire) == table();
    let counter = found.head.counter.load(Relaxed) != 0;
    // SAFETY: `base` is the mapping made above, and no reference to it is left.
    unsafe { rustix::mm::munmap(base, LEN)? };
    if same {
        map(PLACE.0.get().cast(), MapFlags::FIXED)?;
        clock::choose(counter);
        ring::forget();
        ring::make_in(rings);
        turn.set_identity(attached.identity);
        USERS.store(1, Relaxed);
    }
    Ok(attached)
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(turn) = Turn::take() else { return };
        if turn.identity() != self.identity || USERS.fetch_sub(1, Relaxed) != 1 {
            return;
        }
        ring::forget();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: as in `attach`, the mapping covers the static alone, and zeros are a valid
        // Shared.
        let _ = unsafe { rustix::mm::mmap_anonymous(PLACE.0.get().cast(), LEN, protection, flags) };
        turn.set_identity((0, 0));
    }
}

/// Resets the state in a forked child, which has one thread: the child uses neither its parent's
/// ring nor its parent's block.
pub fn forked() {
    BUSY.store(false, Release);
    thread::forked();
    ring::forget();
    count::stop();
}

//! The memory that the driver and its workers share: commands from the driver, operations from the
//! workers. It is a mapped file in `/dev/shm`.

use crate::operation::Operation;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of worker processes at once.
pub const WORKERS: usize = 16;
/// Maximum number of operations of one process in one phase.
pub const OPERATIONS: usize = 128;

/// The command that the workers carry out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Command {
    /// Close all files; the worker `who` makes the directory of the round.
    Begin,
    /// Carry out random operations.
    Work,
    /// The worker `who` observes all files.
    Observe,
    End,
}

/// The shared memory. It begins as zeros, and every bit pattern is a valid value.
#[repr(C)]
pub struct Shared {
    /// Number of the current phase; workers wait for it to change.
    pub phase: AtomicU32,
    /// Number of times that a worker has ended a phase; the driver waits for it to change.
    pub ended: AtomicU32,
    /// Number of workers that have begun the phase.
    pub begun: AtomicU32,
    pub command: AtomicU32,
    /// The worker that a command concerns, if it concerns only one.
    pub who: AtomicU32,
    /// Number of workers that wait for each other at the beginning of a phase.
    pub workers: AtomicU32,
    pub round: AtomicU32,
    pub seed: AtomicU64,
    pub worker: [Worker; WORKERS],
}

#[repr(C)]
pub struct Worker {
    /// The last phase that the worker has ended.
    pub phase: AtomicU32,
    pub pid: AtomicU32,
    pub count: AtomicU32,
    operations: UnsafeCell<[Operation; OPERATIONS]>,
}

// SAFETY: a worker writes its `operations` only after the shared `phase` has changed and before it
// changes its own `phase`. The driver reads them only after the worker's `phase` has changed, or
// after the worker's death.
unsafe impl Sync for Worker {}

impl Worker {
    /// Records the beginning or the end of an operation. Only the block's worker calls this.
    pub fn note(&self, index: usize, operation: &Operation) {
        let end = operation.end;
        // SAFETY: the driver doesn't read the operations before this worker's phase has ended;
        // `index` is checked. A worker that is killed during the store leaves an operation without
        // an end.
        unsafe {
            let place = &mut (*self.operations.get())[index];
            *place = Operation {
                end: 0,
                ..*operation
            };
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            std::ptr::write_volatile(&raw mut place.end, end);
        }
        self.count.store(index as u32 + 1, Ordering::Release);
    }

    /// Returns the worker's operations. Only the driver calls this, after the worker has ended the
    /// phase or died.
    pub fn operations(&self) -> Vec<Operation> {
        let count = (self.count.load(Ordering::Acquire) as usize).min(OPERATIONS);
        // SAFETY: the worker has ended the phase or died, so nothing writes the operations.
        unsafe { (&*self.operations.get())[..count].to_vec() }
    }
}

impl Shared {
    /// Maps the file, after extending it to the size needed.
    pub fn map(file: &File) -> io::Result<&'static Shared> {
        file.set_len(size_of::<Shared>() as u64)?;
        // SAFETY: the kernel chooses unused addresses; the file has this length.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the file stays mapped, zeros are a valid `Shared`, and processes change it only
        // as its types allow.
        Ok(unsafe { &*at.cast::<Shared>() })
    }
}

/// Waits until `word` differs from `old`, or the time has passed. May also return early.
pub fn wait(word: &AtomicU32, old: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the kernel only reads the word and the time, which are references.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, old, &time) };
}

/// Wakes all threads that wait for a change of `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses only the address of the word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

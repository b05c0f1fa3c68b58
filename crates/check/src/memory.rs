//! What the driver and its workers share: commands one way, operations the other. A file in
//! `/dev/shm`, mapped.

use crate::operation::Operation;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Processes at once, at most.
pub const WORKERS: usize = 16;
/// Operations of one process in one phase, at most.
pub const OPERATIONS: usize = 128;

/// What the workers are to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Command {
    /// Close everything; who is asked to makes the directory of the round.
    Begin,
    /// Random operations.
    Work,
    /// Who is asked to looks at everything.
    Observe,
    End,
}

/// All of it is zero at first, and any bits are a value of it.
#[repr(C)]
pub struct Shared {
    /// Counts phases; workers wait for it to change.
    pub phase: AtomicU32,
    /// Counts ends of phases of single workers; the driver waits for it to change.
    pub ended: AtomicU32,
    /// How many have begun the phase.
    pub begun: AtomicU32,
    pub command: AtomicU32,
    /// Who is asked, if it is one.
    pub who: AtomicU32,
    /// How many are to wait for each other at the beginning.
    pub workers: AtomicU32,
    pub round: AtomicU32,
    pub seed: AtomicU64,
    pub worker: [Worker; WORKERS],
}

#[repr(C)]
pub struct Worker {
    /// The last phase that it has ended.
    pub phase: AtomicU32,
    pub pid: AtomicU32,
    pub count: AtomicU32,
    operations: UnsafeCell<[Operation; OPERATIONS]>,
}

// SAFETY: `operations` is written by its worker between the change of `phase` of all and that of
// its own, and read by the driver only after that, or after the worker's death.
unsafe impl Sync for Worker {}

impl Worker {
    /// Notes an operation that begins or has ended. Only its worker calls it.
    pub fn note(&self, index: usize, operation: &Operation) {
        let end = operation.end;
        // SAFETY: nobody else has it now, see above; `index` is checked. Who is killed in between
        // has left an operation without an end.
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

    /// What it has done. Only the driver calls it, when the worker has ended the phase or died.
    pub fn operations(&self) -> Vec<Operation> {
        let count = (self.count.load(Ordering::Acquire) as usize).min(OPERATIONS);
        // SAFETY: see above.
        unsafe { (&*self.operations.get())[..count].to_vec() }
    }
}

impl Shared {
    /// Maps the file, which is made as large as it has to be.
    pub fn map(file: &File) -> io::Result<&'static Shared> {
        file.set_len(size_of::<Shared>() as u64)?;
        // SAFETY: a new mapping, of a file of this length.
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
        // SAFETY: it stays mapped; zeros are a value of it; it's only changed as its types allow.
        Ok(unsafe { &*at.cast::<Shared>() })
    }
}

/// Waits until `word` isn't `old` any more, or the time is over, or for no reason.
pub fn wait(word: &AtomicU32, old: u32, time: Duration) {
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the kernel reads the word and the time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, old, &time) };
}

/// Wakes all who wait for a change of `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

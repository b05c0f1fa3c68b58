//! Reads a small file in a process that has no free descriptor.
//!
//! A process at its limit of descriptors must still be able to read in /proc its own start time,
//! and whether another process lives. So such a process starts a helper process, which shares the
//! memory but has a copy of the descriptors. The helper closes one of the copies, opens the file
//! with the number that becomes free, reads it and ends. The calling thread sleeps until then (as
//! in vfork), with all signals blocked; other threads go on.

use rustix::io::Errno;
use std::ffi::CStr;

/// The helper's arguments and its result.
#[cfg(target_arch = "x86_64")]
struct Job<'a> {
    path: &'a CStr,
    text: &'a mut [u8],
    result: Result<usize, Errno>,
}

/// The helper's code. The code runs in the caller's memory, and makes only system calls.
#[cfg(target_arch = "x86_64")]
extern "C" fn work(job: *mut Job<'_>) {
    // SAFETY: the calling thread sleeps meanwhile, and no other thread has a pointer to its job.
    let job = unsafe { &mut *job };
    // SAFETY: the descriptor is the helper's own copy, and the helper closes all of them when it
    // ends. The lowest number is below any limit.
    unsafe { rustix::io::close(0) };
    job.result = super::read_whole(job.path, job.text);
}

/// Reads the beginning of the file at `path`, up to the length of `text`. Returns the number of
/// bytes. Takes some tens of microseconds, more with many descriptors.
///
/// # Errors
/// Those of open and read; EMFILE if the helper can't be created.
#[cfg(target_arch = "x86_64")]
pub(super) fn read(path: &CStr, text: &mut [u8]) -> Result<usize, Errno> {
    let mut job = Job {
        path,
        text,
        result: Err(Errno::MFILE),
    };
    let (all, mut before) = (u64::MAX, 0u64);
    // No signal handler may run in the helper, nor in this thread before the helper is waited for.
    set_mask(&all, Some(&mut before));
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK) as i64;
    let helper: i64;
    // SAFETY: the helper runs on this stack below everything that is in use (the block isn't
    // `nostack`, so nothing lies below the stack pointer), only calls `work`, and ends; this thread
    // sleeps until it has, and goes on with its own registers. The system call changes rax, rcx and
    // r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r13",
            "call r12",
            "xor edi, edi",
            "mov eax, 60", // exit
            "syscall",
            "2:",
            inlateout("rax") libc::SYS_clone => helper,
            in("rdi") flags,
            in("rsi") 0i64,
            in("rdx") 0i64,
            in("r10") 0i64,
            in("r8") 0i64,
            in("r12") work as extern "C" fn(*mut Job<'_>),
            in("r13") &raw mut job,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if helper > 0 {
        // The helper has ended, but its exit status remains to be collected. A wait without __WALL
        // doesn't see the helper, since it was made without an exit signal.
        let wait = [helper, 0, libc::__WALL as i64, 0];
        while syscall(libc::SYS_wait4, wait) == -i64::from(libc::EINTR) {}
    }
    set_mask(&before, None);
    job.result
}

/// Not available on this architecture.
///
/// # Errors
/// EMFILE, always.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn read(_path: &CStr, _text: &mut [u8]) -> Result<usize, Errno> {
    Err(Errno::MFILE)
}

/// Sets this thread's signal mask; stores the old one in `before`.
#[cfg(target_arch = "x86_64")]
fn set_mask(mask: &u64, before: Option<&mut u64>) {
    let before = before.map_or(0, |b| &raw mut *b as i64);
    let how = i64::from(libc::SIG_SETMASK);
    syscall(
        libc::SYS_rt_sigprocmask,
        [how, &raw const *mask as i64, before, 8],
    );
}

/// Makes a system call without libc, whose call sites may be intercepted and lead here again.
#[cfg(target_arch = "x86_64")]
fn syscall(number: i64, a: [i64; 4]) -> i64 {
    let result: i64;
    // SAFETY: only for calls of this module, whose arguments are valid.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

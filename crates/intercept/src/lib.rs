//! Interception of a running process's system calls, made by patching `syscall` instructions in
//! memory.
//!
//! What it is for: a preloaded library that wants to see what libc and the loader ask of the
//! kernel, whichever libc function asks. No libc function is wrapped; the `syscall` instructions of
//! `libc.so.6`, of the loader and, for older glibc, of `libpthread`, `librt` and `libdl` become
//! jumps into small trampolines, which lead to one handler. So do, on request, those of the program
//! and of other libraries.
//!
//! What it promises: an intercepted call behaves to the code around it like the instruction that it
//! replaces (only `rax`, `rcx`, `r11` and the flags change; the stack below `rsp` beyond the red
//! zone is free to use). Calls that the handler doesn't want cost a few nanoseconds. Unwinding
//! (exceptions, `pthread_cancel`, debuggers) passes through the trampolines. A damaged cache is
//! noticed and ignored.
//!
//! What it doesn't do: it knows nothing of files; it doesn't see `syscall` instructions in
//! functions that `.eh_frame` doesn't describe (Go, hand-written assembly), nor static programs,
//! nor the vDSO.

#![warn(missing_docs)]

mod arch;
#[cfg(target_arch = "x86_64")]
mod cache;
#[cfg(target_arch = "x86_64")]
mod frames;
mod hooks;
#[cfg(target_arch = "x86_64")]
mod known;
#[cfg(target_arch = "x86_64")]
mod object;
#[cfg(target_arch = "x86_64")]
mod others;
#[cfg(target_arch = "x86_64")]
mod patch;
mod report;
#[cfg(all(test, target_arch = "x86_64"))]
mod test_hooks;

pub use hooks::{Call, File, Hooks, PASS, WATCH, bitmap, has};
pub use report::{Error, MAX_OBJECTS, ObjectReport, Report};

use core::ffi::CStr;

/// Most bytes that a hook's [`Call`] lies below the stack pointer that the program had at the
/// instruction: so a child of clone is known by the stack that it was given.
pub const CALL_DEPTH: usize = arch::CALL_DEPTH;

/// The directory of the cache, if it is this user's alone.
#[cfg(target_arch = "x86_64")]
fn private(cache_dir: Option<&CStr>) -> Option<&CStr> {
    cache_dir.filter(|dir| cache::is_private(dir))
}

/// Patches the process that calls it, once. From the first patched instruction on, the hooks are
/// called, also by what the calling library itself asks of libc.
///
/// `cache_dir` is an existing directory in which the sites found are kept by build id, so that
/// later processes needn't search for them. It may be absent or unwritable. It isn't used unless it
/// belongs to the effective user and nobody else can write to it. A cache file that isn't owned by
/// this user or root, or that others can write, isn't used.
///
/// # Safety
///
/// The hooks must keep what [`Hooks`] says, and be ready to be called. No other thread may be
/// inside a system call of libc or about to make one; in a library's constructor that is given.
/// (Most sites tolerate other threads, since the `syscall` instruction stays where it is, but not
/// all.)
pub unsafe fn install(hooks: &'static Hooks, cache_dir: Option<&CStr>) -> Result<Report, Error> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: our own contract is the same.
    return unsafe { patch::install(hooks, private(cache_dir)) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (hooks, cache_dir);
        Err(Error::Unsupported)
    }
}

/// Patches the system calls that other objects make by instructions of their own: those that are
/// loaded now, and those of which [`mapped`] is told later. Once, after [`install`], with the same
/// hooks.
///
/// To the hooks there is no difference, but that such a call may come from any code: from one that
/// has vector registers in use, or from a thread that libc doesn't know (its calls go to the
/// kernel).
///
/// # Safety
/// As for [`install`]; nothing of these objects has run yet.
pub unsafe fn install_in_others(hooks: &'static Hooks, cache_dir: Option<&CStr>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: our own contract is the same.
    unsafe {
        others::start(hooks, private(cache_dir))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (hooks, cache_dir);
}

/// The loader has mapped `len` bytes of a file's code, from `offset` on, to `at`: patches what
/// system calls are in it.
///
/// Does nothing without [`install_in_others`].
///
/// # Safety
/// The code is mapped there, privately, and nothing runs in it yet.
pub unsafe fn mapped(file: &File, at: usize, len: usize, offset: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: our own contract is the same.
    unsafe {
        others::mapped(file, at, len, offset)
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (file, at, len, offset);
}

/// The loader's system calls, patched by [`install_in_loader`].
#[cfg(target_arch = "x86_64")]
pub struct LoaderPatch(patch::Patched);

#[cfg(target_arch = "x86_64")]
impl LoaderPatch {
    /// Puts the loader's own instructions back.
    ///
    /// # Safety
    /// As for [`install`]; and nothing may be inside an intercepted call of the loader.
    pub unsafe fn remove(self) {
        // SAFETY: our own contract.
        unsafe { self.0.remove() };
    }
}

/// Patches only the loader, for a library in a namespace of its own (`LD_AUDIT`), which is there
/// before the program's libraries are. Another library can install itself once this has been
/// removed.
///
/// # Safety
/// As for [`install`].
///
/// # Errors
/// As for [`install`].
#[cfg(target_arch = "x86_64")]
pub unsafe fn install_in_loader(
    hooks: &'static Hooks,
    cache_dir: Option<&CStr>,
) -> Result<LoaderPatch, Error> {
    // SAFETY: our own contract is the same.
    unsafe { patch::install_in_loader(hooks, private(cache_dir)).map(LoaderPatch) }
}

/// Asks the kernel directly, with an instruction of this crate that is never patched. Returns
/// `-errno` on error.
///
/// # Safety
///
/// As the call itself; not for calls that return twice or on another stack (fork is fine, vfork and
/// clone with a stack are not).
#[inline]
pub unsafe fn raw(nr: i64, args: [i64; 6]) -> i64 {
    // SAFETY: the caller's duty.
    unsafe { arch::raw(nr, args) }
}

//! Interception of a running process's system calls, made by patching `syscall` instructions in
//! memory.
//!
//! It is made for a preloaded library that needs to see what libc and the loader request from the
//! kernel, whichever libc function makes the request. No libc function is wrapped: the `syscall`
//! instructions of `libc.so.6`, of the loader and, for older glibc, of `libpthread`, `librt` and
//! `libdl` become jumps into small trampolines, which lead to one handler. On request, the
//! `syscall` instructions of the program and of other libraries are replaced, too.
//!
//! Guarantees: to the code around it, an intercepted call behaves like the instruction that it
//! replaces (only `rax`, `rcx`, `r11` and the flags change; the stack below the red zone is free to
//! use). Calls that the handler doesn't want cost a few nanoseconds. Unwinding (exceptions,
//! `pthread_cancel`, debuggers) passes through the trampolines. A damaged cache is detected and
//! ignored.
//!
//! Limits: this crate knows nothing of files, and doesn't see `syscall` instructions in functions
//! that `.eh_frame` doesn't describe (Go, hand-written assembly), in static programs, or in the
//! vDSO.

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

pub use hooks::{Call, FOLLOW, File, Hooks, PASS, WATCH, bitmap, has};
pub use report::{Error, MAX_OBJECTS, ObjectReport, Report};

use core::ffi::CStr;

/// Maximum number of bytes between a hook's [`Call`] and the program's stack pointer at the
/// instruction. A caller uses this bound to recognise a child of clone by its stack.
pub const CALL_DEPTH: usize = arch::CALL_DEPTH;

/// Returns the directory of the cache, if it belongs to this user alone.
#[cfg(target_arch = "x86_64")]
fn private(cache_dir: Option<&CStr>) -> Option<&CStr> {
    cache_dir.filter(|dir| cache::is_private(dir))
}

/// Patches the calling process, once. From the first patched instruction on, the hooks are called,
/// also for libc calls that the calling library itself makes.
///
/// `cache_dir` is an existing directory that keeps the sites by build id, so that later processes
/// needn't search for them. The directory may be absent or unwritable. The directory isn't used
/// unless it belongs to the effective user and nobody else can write to it. A cache file isn't used
/// if others can write it, or if it belongs to neither this user nor root.
///
/// # Safety
///
/// The hooks must keep the contract of [`Hooks`], and be ready to be called. No other thread may be
/// inside a system call of libc or about to make one: a library's constructor runs before there are
/// other threads.
/// (Most sites tolerate other threads, since the `syscall` instruction stays in place, but not
/// all.)
///
/// # Errors
/// [`Error`] with the reason; the process is then unchanged.
pub unsafe fn install(hooks: &'static Hooks, cache_dir: Option<&CStr>) -> Result<Report, Error> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    return unsafe { patch::install(hooks, private(cache_dir)) };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (hooks, cache_dir);
        Err(Error::Unsupported)
    }
}

/// Patches `syscall` instructions of objects other than libc and the loader: those loaded now, and
/// those reported by [`mapped`] later. To be called once, after [`install`], with the same hooks.
///
/// For the hooks, one thing differs: such a call may come from any code, for instance with vector
/// registers in use. Calls of threads that libc doesn't know go to the kernel.
///
/// # Safety
/// As for [`install`]; nothing of these objects has run yet.
pub unsafe fn install_in_others(hooks: &'static Hooks, cache_dir: Option<&CStr>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        others::start(hooks, private(cache_dir))
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (hooks, cache_dir);
}

/// Patches the system calls of code that the loader has just mapped: `len` bytes of `file`, from
/// `offset` on, at address `at`.
///
/// Does nothing without [`install_in_others`].
///
/// # Safety
/// The code is mapped at `at`, privately, and nothing runs in it yet.
pub unsafe fn mapped(file: &File, at: usize, len: usize, offset: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
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
    /// Restores the loader's instructions.
    ///
    /// # Safety
    /// As for [`install`]; and nothing may be inside an intercepted call of the loader.
    pub unsafe fn remove(self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.remove() };
    }
}

/// Patches only the loader. For a library in its own namespace (`LD_AUDIT`), which is loaded before
/// the program's libraries. Another library can call [`install`] after [`LoaderPatch::remove`].
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
    // SAFETY: the caller's promise.
    unsafe { patch::install_in_loader(hooks, private(cache_dir)).map(LoaderPatch) }
}

/// Makes a system call with an instruction of this crate that is never patched. Returns `-errno` on
/// error.
///
/// # Safety
///
/// As for the call itself. Not for calls that return twice or on another stack (fork works, vfork
/// and clone with a stack don't).
#[inline]
pub unsafe fn raw(nr: i64, args: [i64; 6]) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { arch::raw(nr, args) }
}

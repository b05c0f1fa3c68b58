//! Interception of a running process's system calls, made by patching `syscall` instructions in memory.
//!
//! What it is for: a preloaded library that wants to see what libc and the loader ask of the kernel,
//! whichever libc function asks. No libc function is wrapped; the `syscall` instructions of `libc.so.6`,
//! of the loader and, for older glibc, of `libpthread`, `librt` and `libdl` become jumps into small
//! trampolines, which lead to one handler. So do, on request, those of the program and of other libraries.
//!
//! What it promises: an intercepted call behaves to the code around it like the instruction that it replaces
//! (only `rax`, `rcx`, `r11` and the flags change; the stack below `rsp` beyond the red zone is free to use).
//! Calls that the handler doesn't want cost a few nanoseconds. Unwinding (exceptions, `pthread_cancel`,
//! debuggers) passes through the trampolines. A damaged cache is noticed and ignored.
//!
//! What it doesn't do: it knows nothing of files; it doesn't see `syscall` instructions in functions that `.eh_frame`
//! doesn't describe (Go, hand-written assembly), nor static programs, nor the vDSO.

#![warn(missing_docs)]

mod arch;
#[cfg(target_arch = "x86_64")]
mod cache;
#[cfg(target_arch = "x86_64")]
mod frames;
#[cfg(target_arch = "x86_64")]
mod known;
#[cfg(target_arch = "x86_64")]
mod object;
#[cfg(target_arch = "x86_64")]
mod others;
#[cfg(target_arch = "x86_64")]
mod patch;
#[cfg(all(test, target_arch = "x86_64"))]
mod test_hooks;

use core::ffi::CStr;

/// One system call as it was asked for: its number and its six arguments, meaningful or not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number (`rax` at the instruction).
    pub nr: i64,
    /// `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    pub args: [i64; 6],
}

/// Most bytes that a hook's [`Call`] lies below the stack pointer that the program had at the instruction: so a child of
/// clone is known by the stack that it was given.
pub const CALL_DEPTH: usize = arch::CALL_DEPTH;

/// What [`Hooks::syscall`] returns to have the original call executed by the kernel, from the trampoline, with the
/// original registers and with none of the handler's frames on the stack.
///
/// Prefer it to [`raw`] for calls that may block: a `pthread_cancel` then finds nothing of the handler to unwind,
/// and a signal handler that jumps away leaves nothing behind. The kernel never returns this value.
pub const PASS: i64 = i64::MIN;

/// What [`Hooks::syscall`] returns to have the original call executed by the kernel as with [`PASS`], but by the gate:
/// if it fails, [`Hooks::failed`] is asked what to return. While the call blocks, nothing but the gate's own frame is
/// on the stack, through which a `pthread_cancel` can unwind.
pub const WATCH: i64 = PASS + 1;

/// What the process's intercepted calls lead to. It must stay valid and unchanged for ever; it is copied by
/// [`install`].
#[repr(C)]
pub struct Hooks {
    /// Called for each intercepted call that the filter doesn't send straight to the kernel. Returns what the kernel
    /// would have returned (`-errno` on error), or [`PASS`], or [`WATCH`].
    ///
    /// It runs on the caller's stack, with the caller's thread-local storage, in whatever context the call was made
    /// (signal handlers, the child of a vfork, a thread that is being created or is ending). libc functions called
    /// in it come back into it.
    ///
    /// A thread may be cancelled in it at any point: glibc makes cancellation asynchronous around calls that may block,
    /// and then unwinds from wherever the signal (32) hits. A handler that holds locks or half-done work must keep it
    /// out meanwhile, for instance by wrapping the signal handler that libc installs (an `rt_sigaction` that the handler
    /// sees) in one that, inside such work, only notes the signal, to be sent to the thread again afterwards.
    pub syscall: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called after a call for which `syscall` returned [`WATCH`] has failed in the kernel, with its result (`-errno`).
    /// Returns what the program gets. Like `syscall`, it may make the call again by [`raw`].
    pub failed: unsafe extern "C-unwind" fn(&Call, i64) -> i64,
    /// Called before clone, clone3, fork and vfork that don't create a thread. Returns 0, or `-errno` if the program
    /// is to get that instead of a child; `clone_after` isn't called then.
    pub clone_before: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called after them with what the kernel returned: in the parent, and in the child (0), there on the child's
    /// stack. A child of vfork or `CLONE_VM` runs it in the parent's memory, first.
    pub clone_after: unsafe extern "C-unwind" fn(&Call, i64),
    /// Which numbers are wanted, one bit each. Others go straight to the kernel.
    pub wanted: &'static [u64; 8],
    /// The wanted numbers whose first argument is a descriptor, and that go straight to the kernel when that
    /// descriptor's byte in `fd_filter` is zero, or when it isn't below `fd_filter_len`.
    pub by_fd: &'static [u64; 8],
    /// One byte per descriptor; may change at any time.
    pub fd_filter: *const u8,
    /// The number of bytes at `fd_filter`.
    pub fd_filter_len: usize,
}

// SAFETY: the one pointer in it is only ever read through, byte-wise, by all threads; `install`'s contract makes its
// owner keep it valid.
unsafe impl Sync for Hooks {}

/// Why nothing was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not on this processor architecture.
    Unsupported,
    /// It was installed before in this process.
    AlreadyInstalled,
    /// None of the objects that it patches is loaded.
    NoLibc,
    /// No memory for trampolines near the code (the kernel's error number).
    NoRoom(i32),
    /// The kernel refused to make code writable (its error number).
    Refused(i32),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Unsupported => {
                f.write_str("system calls can't be intercepted on this architecture")
            }
            Error::AlreadyInstalled => f.write_str("system calls are intercepted already"),
            Error::NoLibc => {
                f.write_str("no C library found whose system calls could be intercepted")
            }
            Error::NoRoom(e) => write!(
                f,
                "no memory for trampolines near the C library (error {e})"
            ),
            Error::Refused(e) => write!(
                f,
                "the kernel refused to make the C library's code writable (error {e})"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// How many objects a [`Report`] has room for.
pub const MAX_OBJECTS: usize = 6;

/// What was done to one object (`libc.so.6`, the loader, ...).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectReport {
    name: [u8; 32],
    /// `syscall` instructions found.
    pub found: u32,
    /// Those of them that should be patched: their number is wanted, or a clone, or unknown.
    pub wanted: u32,
    /// Those that were patched.
    pub patched: u32,
    /// Those that should have been and weren't, by number, one bit each.
    pub missed: [u64; 8],
    /// Those that should have been and weren't, whose number isn't known.
    pub missed_unknown: u32,
    /// The sites came from the cache and needn't be searched.
    pub cached: bool,
    /// The trampolines lie in a mapping of their own, because the library was loaded out of a jump's reach.
    pub far: bool,
}

impl ObjectReport {
    /// The object's file name, cut to 32 bytes.
    pub fn name(&self) -> &str {
        let end = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).unwrap_or("?")
    }
}

/// What [`install`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    objects: [ObjectReport; MAX_OBJECTS],
    count: usize,
    /// How long it took.
    pub microseconds: u64,
}

impl Report {
    /// The objects that were looked at.
    pub fn objects(&self) -> &[ObjectReport] {
        &self.objects[..self.count]
    }
}

/// The directory of the cache, if it is this user's alone.
#[cfg(target_arch = "x86_64")]
fn private(cache_dir: Option<&CStr>) -> Option<&CStr> {
    cache_dir.filter(|dir| cache::is_private(dir))
}

/// Patches the process that calls it, once. From the first patched instruction on, the hooks are called, also by what
/// the calling library itself asks of libc.
///
/// `cache_dir` is an existing directory in which the sites found are kept by build id, so that later processes needn't
/// search for them. It may be absent or unwritable. It isn't used unless it belongs to the effective user and nobody else can
/// write to it. A cache file that isn't owned by this user or root, or that others
/// can write, isn't used.
///
/// # Safety
///
/// The hooks must keep what [`Hooks`] says, and be ready to be called. No other thread may be inside a system call of
/// libc or about to make one; in a library's constructor that is given. (Most sites tolerate other threads, since the
/// `syscall` instruction stays where it is, but not all.)
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

/// Patches the system calls that other objects make by instructions of their own: those that are loaded now, and those of
/// which [`mapped`] is told later. Once, after [`install`], with the same hooks.
///
/// To the hooks there is no difference, but that such a call may come from any code: from one that has vector registers in
/// use, or from a thread that libc doesn't know (its calls go to the kernel).
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

/// A file that is being loaded.
pub struct File<'a> {
    /// Its descriptor in the kernel, if it has one.
    pub fd: Option<i32>,
    /// Reads at an offset: how many bytes; None if that fails.
    pub read: &'a dyn Fn(&mut [u8], u64) -> Option<usize>,
}

/// The loader has mapped `len` bytes of a file's code, from `offset` on, to `at`: patches what system calls are in it.
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

/// Patches only the loader, for a library in a namespace of its own (`LD_AUDIT`), which is there before the program's
/// libraries are. Another library can install itself once this has been removed.
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

/// Asks the kernel directly, with an instruction of this crate that is never patched. Returns `-errno` on error.
///
/// # Safety
///
/// As the call itself; not for calls that return twice or on another stack (fork is fine, vfork and clone with a stack
/// are not).
#[inline]
pub unsafe fn raw(nr: i64, args: [i64; 6]) -> i64 {
    // SAFETY: the caller's duty.
    unsafe { arch::raw(nr, args) }
}

/// The bit of a number in a bitmap like [`Hooks::wanted`]; false beyond it.
pub const fn has(map: &[u64; 8], nr: i64) -> bool {
    nr >= 0 && nr < 512 && map[(nr / 64) as usize] >> (nr % 64) & 1 == 1
}

/// A bitmap like [`Hooks::wanted`] of the given numbers.
pub const fn bitmap(numbers: &[i64]) -> [u64; 8] {
    let mut map = [0; 8];
    let mut i = 0;
    while i < numbers.len() {
        map[(numbers[i] / 64) as usize] |= 1 << (numbers[i] % 64);
        i += 1;
    }
    map
}

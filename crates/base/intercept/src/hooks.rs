//! The hooks that intercepted calls lead to, and the types of their arguments and results.

/// One system call as the program made it: the number and the six arguments, used or not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number (`rax` at the instruction).
    pub nr: i64,
    /// `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    pub args: [i64; 6],
}

/// Result of [`Hooks::syscall`]: the trampoline executes the original call, with the original
/// registers and none of the handler's frames on the stack.
///
/// Prefer this result to a call by [`raw`] if the call may block: a `pthread_cancel` then has
/// nothing of the handler to unwind, and a signal handler that jumps away leaves nothing behind.
/// The kernel never returns this value.
pub const PASS: i64 = i64::MIN;

/// Result of [`Hooks::syscall`]: like [`PASS`], but the gate executes the call, and if it fails,
/// [`Hooks::failed`] determines the result. While the call blocks, only the gate's own frame is on
/// the stack, through which a `pthread_cancel` can unwind.
pub const WATCH: i64 = PASS + 1;

/// Result of [`Hooks::syscall`]: like [`WATCH`], but [`Hooks::failed`] determines the result even
/// if the call has succeeded.
pub const FOLLOW: i64 = PASS + 2;

/// The hooks of a process. The hooks must stay valid and unchanged for ever; [`install`] copies
/// them.
#[repr(C)]
pub struct Hooks {
    /// Called for each intercepted call that the filter doesn't pass to the kernel. Returns what
    /// the kernel would have returned (`-errno` on error), or [`PASS`], [`WATCH`], [`FOLLOW`].
    ///
    /// The function runs on the caller's stack, with the caller's thread-local storage, in any
    /// context (signal handlers, the child of a vfork, a thread that is starting or ending). The
    /// function's own calls of libc functions are intercepted, too.
    ///
    /// A thread may be cancelled inside the function at any point: glibc makes cancellation
    /// asynchronous around calls that may block, and then unwinds from wherever the signal (32)
    /// hits. A handler that holds locks or incomplete state must defer cancellation meanwhile. For
    /// instance, it can wrap the signal handler that libc installs (an `rt_sigaction` that the
    /// handler sees) in one that only records the signal, and sends it to the thread again later.
    pub syscall: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called with the kernel's result after a call for which `syscall` returned [`WATCH`] has
    /// failed, or one for which it returned [`FOLLOW`] has ended. Returns the program's result.
    /// Like `syscall`, it may repeat the call by [`raw`].
    pub failed: unsafe extern "C-unwind" fn(&Call, i64) -> i64,
    /// Called before clone, clone3, fork and vfork that don't create a thread. Returns 0, or a
    /// `-errno` that the program gets instead of a child; then `clone_after` isn't called.
    pub clone_before: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called with the kernel's result after a call that `clone_before` let through: in the parent,
    /// and in the child (result 0) on the child's stack. A child of vfork or `CLONE_VM` calls it in
    /// the parent's memory (after vfork, before the parent does).
    pub clone_after: unsafe extern "C-unwind" fn(&Call, i64),
    /// The numbers of the calls to be intercepted, one bit each. Other calls go to the kernel.
    pub wanted: &'static [u64; 8],
    /// The wanted numbers whose first argument is a descriptor. Such a call is passed to the kernel
    /// if the descriptor's byte in `fd_filter` is zero, or if the descriptor isn't below
    /// `fd_filter_len`.
    pub by_fd: &'static [u64; 8],
    /// One byte per descriptor, see `by_fd`; a byte may change at any time.
    pub fd_filter: *const u8,
    /// The number of bytes at `fd_filter`.
    pub fd_filter_len: usize,
}

// SAFETY: threads only read single bytes through `fd_filter`, which stays valid by `install`'s
// contract.
unsafe impl Sync for Hooks {}

/// Whether a bitmap like [`Hooks::wanted`] has the bit of this number; false outside of the bitmap.
pub const fn has(map: &[u64; 8], nr: i64) -> bool {
    nr >= 0 && nr < 512 && map[(nr / 64) as usize] >> (nr % 64) & 1 == 1
}

/// Returns a bitmap like [`Hooks::wanted`] with the bits of these numbers.
pub const fn bitmap(numbers: &[i64]) -> [u64; 8] {
    let mut map = [0; 8];
    let mut i = 0;
    while i < numbers.len() {
        map[(numbers[i] / 64) as usize] |= 1 << (numbers[i] % 64);
        i += 1;
    }
    map
}

/// A file that is being loaded.
pub struct File<'a> {
    /// The file's kernel descriptor, if it has one.
    pub fd: Option<i32>,
    /// Reads at an offset into the buffer. Returns the number of bytes; None on failure.
    pub read: &'a dyn Fn(&mut [u8], u64) -> Option<usize>,
}

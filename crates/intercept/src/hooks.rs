//! What intercepted calls lead to: the hooks, and what they get and return.

/// One system call as it was asked for: its number and its six arguments, meaningful or not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number (`rax` at the instruction).
    pub nr: i64,
    /// `rdi`, `rsi`, `rdx`, `r10`, `r8`, `r9`.
    pub args: [i64; 6],
}

/// What [`Hooks::syscall`] returns to have the original call executed by the kernel, from the
/// trampoline, with the original registers and with none of the handler's frames on the stack.
///
/// Prefer it to [`raw`] for calls that may block: a `pthread_cancel` then finds nothing of the
/// handler to unwind, and a signal handler that jumps away leaves nothing behind. The kernel never
/// returns this value.
pub const PASS: i64 = i64::MIN;

/// What [`Hooks::syscall`] returns to have the original call executed by the kernel as with
/// [`PASS`], but by the gate: if it fails, [`Hooks::failed`] is asked what to return. While the
/// call blocks, nothing but the gate's own frame is on the stack, through which a `pthread_cancel`
/// can unwind.
pub const WATCH: i64 = PASS + 1;

/// What the process's intercepted calls lead to. It must stay valid and unchanged for ever; it is
/// copied by [`install`].
#[repr(C)]
pub struct Hooks {
    /// Called for each intercepted call that the filter doesn't send straight to the kernel.
    /// Returns what the kernel would have returned (`-errno` on error), or [`PASS`], or [`WATCH`].
    ///
    /// It runs on the caller's stack, with the caller's thread-local storage, in whatever context
    /// the call was made (signal handlers, the child of a vfork, a thread that is being created or
    /// is ending). libc functions called in it come back into it.
    ///
    /// A thread may be cancelled in it at any point: glibc makes cancellation asynchronous around
    /// calls that may block, and then unwinds from wherever the signal (32) hits. A handler that
    /// holds locks or half-done work must keep it out meanwhile, for instance by wrapping the
    /// signal handler that libc installs (an `rt_sigaction` that the handler sees) in one that,
    /// inside such work, only notes the signal, to be sent to the thread again afterwards.
    pub syscall: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called after a call for which `syscall` returned [`WATCH`] has failed in the kernel, with
    /// its result (`-errno`). Returns what the program gets. Like `syscall`, it may make the call
    /// again by [`raw`].
    pub failed: unsafe extern "C-unwind" fn(&Call, i64) -> i64,
    /// Called before clone, clone3, fork and vfork that don't create a thread. Returns 0, or
    /// `-errno` if the program is to get that instead of a child; `clone_after` isn't called then.
    pub clone_before: unsafe extern "C-unwind" fn(&Call) -> i64,
    /// Called after them with what the kernel returned: in the parent, and in the child (0), there
    /// on the child's stack. A child of vfork or `CLONE_VM` runs it in the parent's memory, first.
    pub clone_after: unsafe extern "C-unwind" fn(&Call, i64),
    /// Which numbers are wanted, one bit each. Others go straight to the kernel.
    pub wanted: &'static [u64; 8],
    /// The wanted numbers whose first argument is a descriptor, and that go straight to the kernel
    /// when that descriptor's byte in `fd_filter` is zero, or when it isn't below `fd_filter_len`.
    pub by_fd: &'static [u64; 8],
    /// One byte per descriptor; may change at any time.
    pub fd_filter: *const u8,
    /// The number of bytes at `fd_filter`.
    pub fd_filter_len: usize,
}

// SAFETY: the one pointer in it is only ever read through, byte-wise, by all threads; `install`'s
// contract makes its owner keep it valid.
unsafe impl Sync for Hooks {}

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

/// A file that is being loaded.
pub struct File<'a> {
    /// Its descriptor in the kernel, if it has one.
    pub fd: Option<i32>,
    /// Reads at an offset: how many bytes; None if that fails.
    pub read: &'a dyn Fn(&mut [u8], u64) -> Option<usize>,
}

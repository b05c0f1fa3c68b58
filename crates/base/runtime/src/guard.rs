//! Access to memory of the program that may not be mapped.
//!
//! A program may pass any address to a system call, and the kernel answers EFAULT where nothing is
//! mapped. Forebay serves the call in the program's own address space, so a bad address is a fault
//! in Forebay's code. [`attempt`] records where to continue. The handler of SIGSEGV and SIGBUS (in
//! `forebay-preload`) calls [`landing`] and continues there. Without a handler a fault kills the
//! process, as in any program.

use std::cell::Cell;

thread_local! {
    /// Stack pointer of the attempt in progress; 0 outside of one.
    static ARMED: Cell<usize> = const { Cell::new(0) };
}

/// Where to continue after a fault: the values for the faulting thread's registers.
pub struct Landing {
    pub stack_pointer: usize,
    pub instruction_pointer: usize,
}

/// Returns where to continue if this thread is inside an [`attempt`], and ends the attempt, which
/// then returns None. For a fault handler, on the thread that faulted.
pub fn landing() -> Option<Landing> {
    let stack_pointer = ARMED.with(|a| a.replace(0));
    (stack_pointer != 0).then(|| Landing {
        stack_pointer,
        instruction_pointer: arch::landing(),
    })
}

/// Runs `f`; None if it touched memory that isn't mapped.
///
/// # Safety
/// A fault may end `f` at any instruction that touches memory of the program, without running its
/// destructors. So `f` must hold nothing at these instructions (no lock, no allocation), and what
/// it writes may be half written. Attempts don't nest.
#[inline]
pub unsafe fn attempt<T: Copy, F: FnOnce() -> T>(f: F) -> Option<T> {
    struct Call<F, T> {
        f: Option<F>,
        result: Option<T>,
    }
    unsafe extern "C" fn run<T: Copy, F: FnOnce() -> T>(call: *mut u8) {
        // SAFETY: `attempt` passes its own Call of these types.
        let call = unsafe { &mut *call.cast::<Call<F, T>>() };
        if let Some(f) = call.f.take() {
            call.result = Some(f());
        }
    }
    let mut call = Call {
        f: Some(f),
        result: None,
    };
    ARMED.with(|armed| {
        debug_assert_eq!(armed.get(), 0);
        // SAFETY: `run` gets the Call it is made for; `armed` lives as long as the thread.
        unsafe { arch::call((&raw mut call).cast(), run::<T, F>, armed.as_ptr()) }
    });
    call.result
}

/// Copies `len` bytes; false if either range isn't mapped.
///
/// # Safety
/// The ranges don't overlap, and no reference to the target is alive. Either range may be unmapped.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise; memcpy holds no lock and no allocation.
    unsafe { attempt(|| std::ptr::copy_nonoverlapping(from, to, len)) }.is_some()
}

/// Writes `len` zeros; false if the memory isn't mapped.
///
/// # Safety
/// No reference to the target is alive. The target may be unmapped.
#[inline]
pub unsafe fn zero(to: *mut u8, len: usize) -> bool {
    // SAFETY: the caller's promise; memset holds no lock and no allocation.
    unsafe { attempt(|| std::ptr::write_bytes(to, 0, len)) }.is_some()
}

#[cfg(target_arch = "x86_64")]
mod arch {
    // rdi: argument; rsi: function; rdx: where the stack pointer is stored.
    std::arch::global_asm!(
        ".pushsection .text.forebay_guard,\"ax\",@progbits",
        ".hidden forebay_guard_call",
        ".globl forebay_guard_call",
        ".type forebay_guard_call,@function",
        "forebay_guard_call:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx",
        "mov [rdx], rsp",
        "call rsi",
        // A normal return and a fault both continue here: the stack is as it was at the call.
        ".hidden forebay_guard_landing",
        ".globl forebay_guard_landing",
        "forebay_guard_landing:",
        "cld",
        "pop rdx",
        "mov qword ptr [rdx], 0",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".size forebay_guard_call, . - forebay_guard_call",
        ".popsection",
    );

    unsafe extern "C" {
        fn forebay_guard_call(arg: *mut u8, f: unsafe extern "C" fn(*mut u8), note: *mut usize);
        fn forebay_guard_landing();
    }

    pub fn landing() -> usize {
        forebay_guard_landing as *const () as usize
    }

    /// Calls `f`. A fault inside `f` ends this call.
    ///
    /// # Safety
    /// `f` may be called with `arg`, and may be ended by a fault as [`super::attempt`] describes.
    /// `note` is this thread's `ARMED`.
    #[inline]
    pub unsafe fn call(arg: *mut u8, f: unsafe extern "C" fn(*mut u8), note: *mut usize) {
        // SAFETY: the caller's promise; the routine keeps the ABI.
        unsafe { forebay_guard_call(arg, f, note) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    pub fn landing() -> usize {
        0
    }

    /// Calls `f` without recovery: a fault kills the process.
    ///
    /// # Safety
    /// `f` may be called with `arg`.
    pub unsafe fn call(arg: *mut u8, f: unsafe extern "C" fn(*mut u8), _note: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { f(arg) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    unsafe extern "C" fn on_segv(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a ucontext, which is valid until the handler returns.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let Some(to) = landing() else {
            // SAFETY: no attempt was in progress, so the process ends here.
            unsafe { libc::_exit(99) }
        };
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = to.stack_pointer as i64;
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = to.instruction_pointer as i64;
    }

    #[test]
    fn a_fault_inside_an_attempt_is_an_answer() {
        // SAFETY: `on_segv` has the type of a handler with SA_SIGINFO; nothing else in the test's
        // process handles the signal.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_segv as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(
                libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()),
                0
            );
        }
        let mut to = vec![0u8; 1 << 16];
        let from = vec![7u8; 1 << 16];
        let nowhere = 16usize as *mut u8;
        for len in [1, 3900, 1 << 16] {
            // SAFETY: `nowhere` is never mapped; the other memory is this test's.
            unsafe {
                assert!(copy(from.as_ptr(), to.as_mut_ptr(), len));
                assert_eq!(to[..len], from[..len]);
                assert!(!copy(nowhere, to.as_mut_ptr(), len));
                assert!(!copy(from.as_ptr(), nowhere, len));
                assert!(!zero(nowhere, len));
                assert!(zero(to.as_mut_ptr(), len));
            }
            assert!(to.iter().all(|&b| b == 0));
        }
        // SAFETY: the closure holds nothing that a fault could leave behind.
        assert_eq!(unsafe { attempt(|| 5) }, Some(5));
    }
}

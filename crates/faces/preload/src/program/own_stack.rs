//! Separate stacks for work inside a signal handler: the program may have given its handlers only a
//! few KiB (`sigaltstack`), half of which the kernel's frame takes.
//!
//! To the kernel, a thread on such a stack has left its signal stack: the next signal's frame would
//! begin at the top of the signal stack and overwrite frames in use. So all signals are blocked
//! while a thread is on a separate stack.

use crate::program::mask;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

const LEN: usize = 256 << 10;
/// Size of the guard area at the low end of a stack: an overflow faults there instead of changing
/// another mapping. Bytes.
const GUARD: usize = 4096;

/// Mapped stacks that no thread uses.
static FREE: [AtomicPtr<c_void>; 8] = [const { AtomicPtr::new(null_mut()) }; 8];

/// Runs `f` on a separate stack; on the current stack if there is no memory for one.
pub fn run<T>(f: impl FnOnce() -> T) -> T {
    struct Call<F, T> {
        f: Option<F>,
        result: Option<T>,
    }
    unsafe extern "C" fn call<F: FnOnce() -> T, T>(at: *mut c_void) {
        // SAFETY: `run` passes the address of its own `Call`, and waits for this function.
        let c = unsafe { &mut *at.cast::<Call<F, T>>() };
        c.result = c.f.take().map(|f| f());
    }
    fn thunk<F: FnOnce() -> T, T>(_: &Call<F, T>) -> unsafe extern "C" fn(*mut c_void) {
        call::<F, T>
    }
    let mut c = Call {
        f: Some(f),
        result: None,
    };
    let Some(stack) = take() else {
        // SAFETY: `c` is what `call` takes.
        unsafe { thunk(&c)((&raw mut c).cast()) };
        return c.result.expect("it was called");
    };
    let before = mask::block_all();
    // SAFETY: no other thread is on the stack; its top is page-aligned.
    unsafe { arch::call_on(stack.byte_add(LEN), thunk(&c), (&raw mut c).cast()) };
    mask::set(before);
    give_back(stack);
    c.result.expect("it was called")
}

fn take() -> Option<*mut c_void> {
    let kept = FREE.iter().find_map(|place| {
        let stack = place.swap(null_mut(), AcqRel);
        (!stack.is_null()).then_some(stack)
    });
    kept.or_else(|| {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address, and only the new mapping is protected.
        unsafe {
            let stack = mmap_anonymous(null_mut(), LEN, protection, MapFlags::PRIVATE).ok()?;
            let _ = mprotect(stack, GUARD, MprotectFlags::empty());
            Some(stack)
        }
    })
}

fn give_back(stack: *mut c_void) {
    let empty = |place: &&AtomicPtr<c_void>| {
        place
            .compare_exchange(null_mut(), stack, AcqRel, Relaxed)
            .is_ok()
    };
    if FREE.iter().find(empty).is_none() {
        // SAFETY: `take` mapped the stack, and no thread is on it.
        let _ = unsafe { munmap(stack, LEN) };
    }
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::ffi::c_void;

    // rdi: the stack's top; rsi: function; rdx: argument.
    std::arch::global_asm!(
        ".pushsection .text.forebay_own_stack,\"ax\",@progbits",
        ".hidden forebay_call_on",
        ".globl forebay_call_on",
        ".type forebay_call_on,@function",
        "forebay_call_on:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".size forebay_call_on, . - forebay_call_on",
        ".popsection",
    );

    unsafe extern "C" {
        #[link_name = "forebay_call_on"]
        pub fn call_on(
            top: *mut c_void,
            f: unsafe extern "C" fn(*mut c_void),
            argument: *mut c_void,
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn work_is_done_on_another_stack() {
        let here = 0u8;
        for n in 0..20u64 {
            let (there, m) = super::run(|| {
                let there = 0u8;
                // Far more than fits on a signal stack.
                let mut room = [n as u8; 100_000];
                std::hint::black_box(&mut room);
                (&raw const there as usize, u64::from(room[99_999]))
            });
            assert!(there.abs_diff(&raw const here as usize) > 1 << 18);
            assert_eq!(m, n);
        }
    }
}

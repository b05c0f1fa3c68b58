//! The gates: the assembly between a site's trampoline and the hooks, and what it reads.
//!
//! Promises what the module above says of gates, and `raw`, an instruction that is never patched. The symbols are
//! hidden; a process can hold several libraries with this crate, of which one should install.

use super::{NR_SIGRETURN, OWN_SLOTS, SLOT, STUB};
use crate::Hooks;
use core::cell::UnsafeCell;

/// The numbers that create a process or thread.
pub(super) const NR_CLONES: [i64; 4] = [56, 57, 58, 435];

/// What the gates read: copied once from the hooks.
#[repr(C)]
struct Settings {
    class: [u8; 512],
    handler: usize,
    failed: usize,
    before: usize,
    after: usize,
    fd_filter: usize,
    fd_filter_len: usize,
}

#[repr(transparent)]
struct Shared(UnsafeCell<Settings>);
// SAFETY: written once by `set_hooks`, before the first site is patched; only read afterwards.
unsafe impl Sync for Shared {}

static SETTINGS: Shared = Shared(UnsafeCell::new(Settings {
    class: [0; 512],
    handler: 0,
    failed: 0,
    before: 0,
    after: 0,
    fd_filter: 0,
    fd_filter_len: 0,
}));

pub(super) const CLASS_KERNEL: u8 = 0;
pub(super) const CLASS_CALL: u8 = 1;
pub(super) const CLASS_FD: u8 = 2;
pub(super) const CLASS_CLONE: u8 = 3;

/// Whether the number creates a process or thread.
pub(super) fn is_clone(nr: i64) -> bool {
    NR_CLONES.contains(&nr)
}

/// The class of a number.
pub(super) fn class(hooks: &Hooks, nr: i64) -> u8 {
    if is_clone(nr) {
        CLASS_CLONE
    } else if nr == NR_SIGRETURN || !crate::has(hooks.wanted, nr) {
        CLASS_KERNEL
    } else if crate::has(hooks.by_fd, nr) {
        CLASS_FD
    } else {
        CLASS_CALL
    }
}

/// Gives the gates their hooks.
///
/// # Safety
/// Only before anything is patched, by one thread.
pub(crate) unsafe fn set_hooks(hooks: &Hooks) {
    // SAFETY: nothing is patched yet, so no gate reads it.
    let s = unsafe { &mut *SETTINGS.0.get() };
    for (nr, c) in s.class.iter_mut().enumerate() {
        *c = class(hooks, nr as i64);
    }
    s.handler = hooks.syscall as usize;
    s.failed = hooks.failed as usize;
    s.before = hooks.clone_before as usize;
    s.after = hooks.clone_after as usize;
    s.fd_filter = hooks.fd_filter as usize;
    s.fd_filter_len = hooks.fd_filter_len;
}

core::arch::global_asm!(
    r#"
    .pushsection .text.forebay_gates,"ax",@progbits

    # Keeps what the handler may change. xmm0-15 count: libc may keep values there over an inlined call. The upper
    # halves of ymm and zmm don't: libc's sites are in code compiled for the baseline, and everything outside libc has
    # called a function to get there. After it: rsp -> Call (56 bytes), 8 free, xmm; rbp -> saved rbp, saved rcx.
    .macro FOREBAY_SAVE
    lea -128(%rsp), %rsp
    .cfi_def_cfa_offset 128
    push %rcx
    .cfi_def_cfa_offset 136
    .cfi_offset %rip, -136
    push %rbp
    .cfi_def_cfa_offset 144
    .cfi_offset %rbp, -144
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    and $-16, %rsp
    sub $320, %rsp
    mov %rax, (%rsp)
    mov %rdi, 8(%rsp)
    mov %rsi, 16(%rsp)
    mov %rdx, 24(%rsp)
    mov %r10, 32(%rsp)
    mov %r8, 40(%rsp)
    mov %r9, 48(%rsp)
    movaps %xmm0, 64(%rsp)
    movaps %xmm1, 80(%rsp)
    movaps %xmm2, 96(%rsp)
    movaps %xmm3, 112(%rsp)
    movaps %xmm4, 128(%rsp)
    movaps %xmm5, 144(%rsp)
    movaps %xmm6, 160(%rsp)
    movaps %xmm7, 176(%rsp)
    movaps %xmm8, 192(%rsp)
    movaps %xmm9, 208(%rsp)
    movaps %xmm10, 224(%rsp)
    movaps %xmm11, 240(%rsp)
    movaps %xmm12, 256(%rsp)
    movaps %xmm13, 272(%rsp)
    movaps %xmm14, 288(%rsp)
    movaps %xmm15, 304(%rsp)
    .endm

    .macro FOREBAY_RESTORE
    movaps 64(%rsp), %xmm0
    movaps 80(%rsp), %xmm1
    movaps 96(%rsp), %xmm2
    movaps 112(%rsp), %xmm3
    movaps 128(%rsp), %xmm4
    movaps 144(%rsp), %xmm5
    movaps 160(%rsp), %xmm6
    movaps 176(%rsp), %xmm7
    movaps 192(%rsp), %xmm8
    movaps 208(%rsp), %xmm9
    movaps 224(%rsp), %xmm10
    movaps 240(%rsp), %xmm11
    movaps 256(%rsp), %xmm12
    movaps 272(%rsp), %xmm13
    movaps 288(%rsp), %xmm14
    movaps 304(%rsp), %xmm15
    mov 8(%rsp), %rdi
    mov 16(%rsp), %rsi
    mov 24(%rsp), %rdx
    mov 32(%rsp), %r10
    mov 40(%rsp), %r8
    mov 48(%rsp), %r9
    leave
    .cfi_def_cfa %rsp, 136
    .cfi_same_value %rbp
    pop %rcx
    .cfi_def_cfa_offset 128
    .cfi_register %rip, %rcx
    lea 128(%rsp), %rsp
    .cfi_def_cfa_offset 0
    .endm

    # Each gate is entered by a jump with rcx = the slot's "ret" and everything else as at the instruction. To the
    # unwinder, the slot is a caller whose frame is empty.
    .macro FOREBAY_GATE name
    .balign 32
    .globl \name
    .hidden \name
    .type \name, @function
\name:
    .cfi_startproc simple
    .cfi_def_cfa %rsp, 0
    .cfi_register %rip, %rcx
    .endm

    .macro FOREBAY_END name
    .cfi_endproc
    .size \name, . - \name
    .endm

    FOREBAY_GATE forebay_gate_any
    cmp $511, %rax
    ja forebay_kernel
    lea {settings}(%rip), %r11
    movzbl (%r11,%rax), %r11d
    cmp ${fd}, %r11d
    je forebay_gate_fd
    ja forebay_gate_clone
    test %r11d, %r11d
    jnz forebay_gate_call
    .globl forebay_kernel
    .hidden forebay_kernel
forebay_kernel:
    sub $2, %rcx
    jmp *%rcx
    FOREBAY_END forebay_gate_any

    FOREBAY_GATE forebay_gate_fd
    mov %edi, %r11d
    cmp {settings}+{o_len}(%rip), %r11
    jae forebay_kernel
    add {settings}+{o_filter}(%rip), %r11
    cmpb $0, (%r11)
    jne forebay_gate_call
    sub $2, %rcx
    jmp *%rcx
    FOREBAY_END forebay_gate_fd

    FOREBAY_GATE forebay_gate_call
    FOREBAY_SAVE
    mov %rsp, %rdi
    call *{settings}+{o_handler}(%rip)
    movabs ${pass}, %r11
    cmp %r11, %rax
    je 1f
    inc %r11
    cmp %r11, %rax
    jne 2f
    # WATCH: the kernel is asked from here, so that an error can be looked at.
    mov (%rsp), %rax
    mov 8(%rsp), %rdi
    mov 16(%rsp), %rsi
    mov 24(%rsp), %rdx
    mov 32(%rsp), %r10
    mov 40(%rsp), %r8
    mov 48(%rsp), %r9
    syscall
    cmp $-4095, %rax
    jb 2f
    mov %rsp, %rdi
    mov %rax, %rsi
    call *{settings}+{o_failed}(%rip)
    jmp 2f
1:
    mov (%rsp), %rax
    subq $2, 8(%rbp)
2:
    FOREBAY_RESTORE
    jmp *%rcx
    FOREBAY_END forebay_gate_call

    # A new thread is none of the hooks' business, and its parent may go on before the hooks could.
    FOREBAY_GATE forebay_gate_clone
    cmp ${nr_clone}, %eax
    jne 1f
    test $0x10000, %edi
    jnz forebay_kernel
    jmp 3f
1:  cmp ${nr_clone3}, %eax
    jne 3f
    cmp $64, %rsi
    jb forebay_kernel
    test %rdi, %rdi
    jz forebay_kernel
    testl $0x10000, (%rdi)
    jnz forebay_kernel
3:
    FOREBAY_SAVE
    mov %rsp, %rdi
    call *{settings}+{o_before}(%rip)
    mov %rax, %r11
    mov (%rsp), %rax
    FOREBAY_RESTORE
    test %r11, %r11
    js 5f
    and $-{slot}, %rcx
    lea {slot}(%rcx), %r11
    cmp ${nr_clone}, %eax
    je 4f
    lea {slot}+{stub}(%rcx), %r11
    cmp ${nr_fork}, %eax
    je 4f
    lea {slot}+2*{stub}(%rcx), %r11
    cmp ${nr_vfork}, %eax
    je 4f
    lea {slot}+3*{stub}(%rcx), %r11
4:  jmp *%r11
5:  mov %r11, %rax
    jmp *%rcx
    FOREBAY_END forebay_gate_clone

    FOREBAY_GATE forebay_after_clone
    mov ${nr_clone}, %r11d
    jmp forebay_after
    FOREBAY_END forebay_after_clone
    FOREBAY_GATE forebay_after_fork
    mov ${nr_fork}, %r11d
    jmp forebay_after
    FOREBAY_END forebay_after_fork
    FOREBAY_GATE forebay_after_vfork
    mov ${nr_vfork}, %r11d
    jmp forebay_after
    FOREBAY_END forebay_after_vfork
    FOREBAY_GATE forebay_after_clone3
    mov ${nr_clone3}, %r11d
    jmp forebay_after
    FOREBAY_END forebay_after_clone3

    # rax = what the kernel returned, r11 = the number.
    FOREBAY_GATE forebay_after
    FOREBAY_SAVE
    mov %rax, 56(%rsp)
    mov %r11, (%rsp)
    mov %rsp, %rdi
    mov %rax, %rsi
    call *{settings}+{o_after}(%rip)
    mov 56(%rsp), %rax
    FOREBAY_RESTORE
    jmp *%rcx
    FOREBAY_END forebay_after

    # i64 forebay_raw(nr, *args)
    .balign 32
    .globl forebay_raw
    .hidden forebay_raw
    .type forebay_raw, @function
forebay_raw:
    .cfi_startproc
    mov %rdi, %rax
    mov %rsi, %r11
    mov (%r11), %rdi
    mov 8(%r11), %rsi
    mov 16(%r11), %rdx
    mov 24(%r11), %r10
    mov 32(%r11), %r8
    mov 40(%r11), %r9
    syscall
    ret
    .cfi_endproc
    .size forebay_raw, . - forebay_raw

    # The region for slots inside the library, on pages of its own. To the unwinder a slot is a function without a frame
    # that was called from the address in its last 8 bytes: rip = *((rip & -64) + 56), cfa = rsp.
    .balign 4096
    .globl forebay_slots
    .hidden forebay_slots
    .type forebay_slots, @function
forebay_slots:
    .cfi_startproc simple
    .cfi_def_cfa %rsp, 0
    .cfi_escape 0x16, 16, 8, 0x80, 0x00, 0x09, 0xc0, 0x1a, 0x23, 0x38, 0x06
    .fill {slot}*{own_slots}, 1, 0xcc
    .cfi_endproc
    .size forebay_slots, . - forebay_slots
    .popsection
    "#,
    settings = sym SETTINGS,
    fd = const CLASS_FD,
    pass = const crate::PASS,
    slot = const SLOT,
    stub = const STUB,
    own_slots = const OWN_SLOTS,
    o_handler = const core::mem::offset_of!(Settings, handler),
    o_failed = const core::mem::offset_of!(Settings, failed),
    o_before = const core::mem::offset_of!(Settings, before),
    o_after = const core::mem::offset_of!(Settings, after),
    o_filter = const core::mem::offset_of!(Settings, fd_filter),
    o_len = const core::mem::offset_of!(Settings, fd_filter_len),
    nr_clone = const NR_CLONES[0],
    nr_fork = const NR_CLONES[1],
    nr_vfork = const NR_CLONES[2],
    nr_clone3 = const NR_CLONES[3],
    options(att_syntax)
);

// "C", though a cancellation may hit a blocked call and unwind from there: declared "C-unwind", it would get a landing
// pad that aborts (panics abort in this workspace). Like this, unwinding passes through the Rust functions around it.
unsafe extern "C" {
    fn forebay_raw(nr: i64, args: *const i64) -> i64;
    fn forebay_gate_any();
    fn forebay_gate_fd();
    fn forebay_gate_call();
    fn forebay_gate_clone();
    fn forebay_after_clone();
    fn forebay_after_fork();
    fn forebay_after_vfork();
    fn forebay_after_clone3();
    fn forebay_slots();
}

#[inline]
pub(crate) unsafe fn raw(nr: i64, args: [i64; 6]) -> i64 {
    // SAFETY: it reads six arguments; the call itself is the caller's duty.
    unsafe { forebay_raw(nr, args.as_ptr()) }
}

/// The page-aligned region for [`OWN_SLOTS`] slots inside the library.
pub(crate) fn own_region() -> usize {
    forebay_slots as *const () as usize
}

/// The gates, a site's first four by class (0: known at run time), then `clone_after`'s by [`NR_CLONES`].
pub(super) fn gates() -> [usize; 8] {
    [
        forebay_gate_any as *const () as usize,
        forebay_gate_call as *const () as usize,
        forebay_gate_fd as *const () as usize,
        forebay_gate_clone as *const () as usize,
        forebay_after_clone as *const () as usize,
        forebay_after_fork as *const () as usize,
        forebay_after_vfork as *const () as usize,
        forebay_after_clone3 as *const () as usize,
    ]
}

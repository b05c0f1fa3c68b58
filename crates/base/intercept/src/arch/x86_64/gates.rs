//! The gates: the assembly between a site's trampoline and the hooks, and its data.
//!
//! The assembly has the properties of gates that the parent module describes. It also defines
//! `raw`, an instruction that is never patched. The symbols are hidden: a process may load several
//! libraries with this crate, of which only one should install hooks.

use super::{NR_SIGRETURN, OWN_SLOTS, SLOT, STUB};
use crate::hooks::{self, Hooks};
use core::cell::UnsafeCell;

/// The numbers of calls that create a process or thread.
pub(super) const NR_CLONES: [i64; 4] = [56, 57, 58, 435];

/// Data that the gates read, copied once from the hooks.
#[repr(C)]
struct Settings {
    class: [u8; 512],
    handler: usize,
    failed: usize,
    before: usize,
    after: usize,
    fd_filter: usize,
    fd_filter_len: usize,
    /// Components of the vector state that the wide gates save (bits as in XCR0).
    wide_state: u64,
}

#[repr(transparent)]
struct Shared(UnsafeCell<Settings>);
// SAFETY: written once by `set_hooks`, before the first site is patched, and by `widen`, before the
// first site with a wide gate is; only read afterwards.
unsafe impl Sync for Shared {}

static SETTINGS: Shared = Shared(UnsafeCell::new(Settings {
    class: [0; 512],
    handler: 0,
    failed: 0,
    before: 0,
    after: 0,
    fd_filter: 0,
    fd_filter_len: 0,
    wide_state: 0,
}));

pub(super) const CLASS_KERNEL: u8 = 0;
pub(super) const CLASS_CALL: u8 = 1;
pub(super) const CLASS_FD: u8 = 2;
pub(super) const CLASS_CLONE: u8 = 3;

/// Whether the call with this number creates a process or thread.
pub(super) fn is_clone(nr: i64) -> bool {
    NR_CLONES.contains(&nr)
}

/// Returns the class of a call number.
pub(super) fn class(hooks: &Hooks, nr: i64) -> u8 {
    if is_clone(nr) {
        CLASS_CLONE
    } else if nr == NR_SIGRETURN || !hooks::has(hooks.wanted, nr) {
        CLASS_KERNEL
    } else if hooks::has(hooks.by_fd, nr) {
        CLASS_FD
    } else {
        CLASS_CALL
    }
}

/// Sets the hooks of the gates.
///
/// # Safety
/// Only before anything is patched, by one thread.
pub(crate) unsafe fn set_hooks(hooks: &Hooks) {
    // SAFETY: nothing is patched yet, so no gate reads the settings.
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

/// Bits of SSE, AVX and the three components of AVX-512 in XCR0. Components that the system doesn't
/// enable aren't saved.
const WIDE_STATE: u64 = 0b1110_0110;
/// Size of the saved vector state: up to the end of its last component, rounded up to cache lines.
/// Bytes.
const WIDE_LEN: usize = 2752;
/// Maximum number of bytes between a [`Call`](crate::Call) and the stack pointer at its site, as in
/// `FOREBAY_SAVE`: the red zone, two registers, alignment, the state.
pub(crate) const CALL_DEPTH: usize = 128 + 16 + 63 + 64 + WIDE_LEN;

fn wide_state() -> u64 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return 0;
    }
    #[target_feature(enable = "xsave")]
    unsafe fn enabled() -> u64 {
        // SAFETY: OSXSAVE says that the instruction exists.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: OSXSAVE is set, so the processor has the feature `xsave`.
    let parts = unsafe { enabled() } & WIDE_STATE;
    let end = |part: u32| {
        let part_info = __cpuid_count(0xd, part);
        part_info.eax as usize + part_info.ebx as usize
    };
    let fits = (2..8).all(|part| parts >> part & 1 == 0 || end(part) <= WIDE_LEN);
    if fits { parts } else { 0 }
}

/// Prepares the wide gates; false if this machine doesn't support them. To be called only when wide
/// gates are needed: in a virtual machine, cpuid takes longer than the rest of a program's start.
///
/// # Safety
/// Called by one thread at a time; the first time before any site leads to a wide gate.
pub(crate) unsafe fn widen() -> bool {
    // SAFETY: no gate reads `wide_state` yet, or its value doesn't change.
    unsafe {
        let state = &raw mut (*SETTINGS.0.get()).wide_state;
        if *state == 0 {
            *state = wide_state();
        }
        *state != 0
    }
}

core::arch::global_asm!(
    r#"
    .pushsection .text.forebay_gates,"ax",@progbits

    # Keeps what the handler may change. xmm0-15 count: libc may keep values there over an inlined call. The upper
    # halves of ymm and zmm don't: libc's sites are in code compiled for the baseline, and everything outside libc has
    # called a function to get there. After it: rsp -> Call (56 bytes), 8 free, xmm; rbp -> saved rbp, saved rcx.
    # Wide, for other code: all of the vector registers are kept.
    .macro FOREBAY_SAVE wide
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
    .if \wide
    and $-64, %rsp
    sub $64+{wide_len}, %rsp
    .else
    and $-16, %rsp
    sub $320, %rsp
    .endif
    mov %rax, (%rsp)
    mov %rdi, 8(%rsp)
    mov %rsi, 16(%rsp)
    mov %rdx, 24(%rsp)
    mov %r10, 32(%rsp)
    mov %r8, 40(%rsp)
    mov %r9, 48(%rsp)
    .if \wide
    xor %eax, %eax
    mov %rax, 64+512(%rsp)
    mov %rax, 64+520(%rsp)
    mov %rax, 64+528(%rsp)
    mov %rax, 64+536(%rsp)
    mov %rax, 64+544(%rsp)
    mov %rax, 64+552(%rsp)
    mov %rax, 64+560(%rsp)
    mov %rax, 64+568(%rsp)
    xor %edx, %edx
    mov {settings}+{o_wide}(%rip), %eax
    xsave 64(%rsp)
    mov (%rsp), %rax
    .else
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
    .endif
    .endm

    .macro FOREBAY_RESTORE wide
    .if \wide
    mov %rax, 56(%rsp)
    xor %edx, %edx
    mov {settings}+{o_wide}(%rip), %eax
    xrstor 64(%rsp)
    mov 56(%rsp), %rax
    .else
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
    .endif
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

    # Only on a thread area of libc's, which begins with its own address, and has it again behind that: a runtime of
    # another kind (Go's, say) has areas without data of this library.
    .macro FOREBAY_OWN_THREADS s
    mov %fs:0, %r11
    cmp %fs:16, %r11
    jne forebay_kernel\s
    .endm

    .macro FOREBAY_GATES s, wide
    FOREBAY_GATE forebay_gate_any\s
    .if \wide
    FOREBAY_OWN_THREADS \s
    .endif
    cmp $511, %rax
    ja forebay_kernel\s
    lea {settings}(%rip), %r11
    movzbl (%r11,%rax), %r11d
    cmp ${fd}, %r11d
    je forebay_gate_fd\s
    ja forebay_gate_clone\s
    test %r11d, %r11d
    jnz forebay_gate_call\s
    .globl forebay_kernel\s
    .hidden forebay_kernel\s
forebay_kernel\s:
    sub $2, %rcx
    jmp *%rcx
    FOREBAY_END forebay_gate_any\s

    FOREBAY_GATE forebay_gate_fd\s
    mov %edi, %r11d
    cmp {settings}+{o_len}(%rip), %r11
    jae forebay_kernel\s
    add {settings}+{o_filter}(%rip), %r11
    cmpb $0, (%r11)
    jne forebay_gate_call\s
    sub $2, %rcx
    jmp *%rcx
    FOREBAY_END forebay_gate_fd\s

    FOREBAY_GATE forebay_gate_call\s
    .if \wide
    FOREBAY_OWN_THREADS \s
    .endif
    FOREBAY_SAVE \wide
    mov %rsp, %rdi
    call *{settings}+{o_handler}(%rip)
    movabs ${pass}, %r11
    cmp %r11, %rax
    je 1f
    sub %r11, %rax
    cmp ${follow}, %rax
    ja 6f
    # WATCH, FOLLOW: the call is made from here, so that its result can be examined.
    mov %rax, 56(%rsp)
    mov (%rsp), %rax
    mov 8(%rsp), %rdi
    mov 16(%rsp), %rsi
    mov 24(%rsp), %rdx
    mov 32(%rsp), %r10
    mov 40(%rsp), %r8
    mov 48(%rsp), %r9
    syscall
    cmpq ${follow}, 56(%rsp)
    je 7f
    cmp $-4095, %rax
    jb 2f
7:  mov %rsp, %rdi
    mov %rax, %rsi
    call *{settings}+{o_failed}(%rip)
    jmp 2f
1:
    mov (%rsp), %rax
    subq $2, 8(%rbp)
    jmp 2f
6:  add %r11, %rax
2:
    FOREBAY_RESTORE \wide
    jmp *%rcx
    FOREBAY_END forebay_gate_call\s

    # A new thread with a thread area of its own is none of the hooks' business, and its parent may go on before the
    # hooks could.
    FOREBAY_GATE forebay_gate_clone\s
    .if \wide
    FOREBAY_OWN_THREADS \s
    .endif
    mov %edi, %r11d
    cmp ${nr_clone}, %eax
    je 1f
    cmp ${nr_clone3}, %eax
    jne 3f
    cmp $64, %rsi
    jb forebay_kernel\s
    # The program's memory, which may not be there: rt_sigprocmask with a `how` that isn't reads it first, and says
    # EFAULT then.
    lea -128(%rsp), %rsp
    push %rax
    push %rcx
    push %rdx
    push %rsi
    push %rdi
    push %r10
    mov %rdi, %rsi
    mov ${no_how}, %edi
    xor %edx, %edx
    mov $8, %r10d
    mov ${nr_sigprocmask}, %eax
    syscall
    mov %rax, %r11
    pop %r10
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rax
    lea 128(%rsp), %rsp
    cmp ${invalid}, %r11
    jne forebay_kernel\s
    mov (%rdi), %r11d
1:  not %r11d
    test ${own_thread}, %r11d
    jz forebay_kernel\s
3:
    FOREBAY_SAVE \wide
    mov %rsp, %rdi
    call *{settings}+{o_before}(%rip)
    mov %rax, %r11
    mov (%rsp), %rax
    FOREBAY_RESTORE \wide
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
    FOREBAY_END forebay_gate_clone\s

    FOREBAY_GATE forebay_after_clone\s
    mov ${nr_clone}, %r11d
    jmp forebay_after\s
    FOREBAY_END forebay_after_clone\s
    FOREBAY_GATE forebay_after_fork\s
    mov ${nr_fork}, %r11d
    jmp forebay_after\s
    FOREBAY_END forebay_after_fork\s
    FOREBAY_GATE forebay_after_vfork\s
    mov ${nr_vfork}, %r11d
    jmp forebay_after\s
    FOREBAY_END forebay_after_vfork\s
    FOREBAY_GATE forebay_after_clone3\s
    mov ${nr_clone3}, %r11d
    jmp forebay_after\s
    FOREBAY_END forebay_after_clone3\s

    # rax = what the kernel returned, r11 = the number.
    FOREBAY_GATE forebay_after\s
    FOREBAY_SAVE \wide
    mov %rax, 56(%rsp)
    mov %r11, (%rsp)
    mov %rsp, %rdi
    mov %rax, %rsi
    call *{settings}+{o_after}(%rip)
    mov 56(%rsp), %rax
    FOREBAY_RESTORE \wide
    jmp *%rcx
    FOREBAY_END forebay_after\s

    .endm

    FOREBAY_GATES "", 0
    FOREBAY_GATES _wide, 1

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
    pass = const hooks::PASS,
    follow = const hooks::FOLLOW - hooks::PASS,
    slot = const SLOT,
    stub = const STUB,
    own_slots = const OWN_SLOTS,
    o_handler = const core::mem::offset_of!(Settings, handler),
    o_failed = const core::mem::offset_of!(Settings, failed),
    o_before = const core::mem::offset_of!(Settings, before),
    o_after = const core::mem::offset_of!(Settings, after),
    o_filter = const core::mem::offset_of!(Settings, fd_filter),
    o_len = const core::mem::offset_of!(Settings, fd_filter_len),
    o_wide = const core::mem::offset_of!(Settings, wide_state),
    wide_len = const WIDE_LEN,
    own_thread = const libc::CLONE_THREAD | libc::CLONE_SETTLS,
    nr_clone = const NR_CLONES[0],
    nr_fork = const NR_CLONES[1],
    nr_vfork = const NR_CLONES[2],
    nr_clone3 = const NR_CLONES[3],
    nr_sigprocmask = const libc::SYS_rt_sigprocmask,
    no_how = const i32::MAX,
    invalid = const -libc::EINVAL,
    options(att_syntax)
);

// The ABI is "C", although cancellation may hit a blocked call and unwind from there. "C-unwind"
// would add a landing pad that aborts, because panics abort in this workspace. With "C", unwinding
// passes through the Rust functions around the call.
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
    fn forebay_gate_any_wide();
    fn forebay_gate_fd_wide();
    fn forebay_gate_call_wide();
    fn forebay_gate_clone_wide();
    fn forebay_after_clone_wide();
    fn forebay_after_fork_wide();
    fn forebay_after_vfork_wide();
    fn forebay_after_clone3_wide();
    fn forebay_slots();
}

#[inline]
pub(crate) unsafe fn raw(nr: i64, args: [i64; 6]) -> i64 {
    // SAFETY: the assembly reads six arguments; the call itself is the caller's promise.
    unsafe { forebay_raw(nr, args.as_ptr()) }
}

/// Returns the address of the page-aligned region for [`OWN_SLOTS`] slots inside the library.
pub(crate) fn own_region() -> usize {
    forebay_slots as *const () as usize
}

/// Returns the addresses of the gates: four that a site jumps to, by class (0: number known only at
/// run time), then four that call `clone_after`, in the order of [`NR_CLONES`]. The wide gates are
/// for code other than libc's. The wide gates save all vector registers, and pass to the kernel the
/// calls of threads that libc doesn't know.
pub(super) fn gates(wide: bool) -> [usize; 8] {
    let narrow: [unsafe extern "C" fn(); 8] = [
        forebay_gate_any,
        forebay_gate_call,
        forebay_gate_fd,
        forebay_gate_clone,
        forebay_after_clone,
        forebay_after_fork,
        forebay_after_vfork,
        forebay_after_clone3,
    ];
    let all = if wide {
        [
            forebay_gate_any_wide,
            forebay_gate_call_wide,
            forebay_gate_fd_wide,
            forebay_gate_clone_wide,
            forebay_after_clone_wide,
            forebay_after_fork_wide,
            forebay_after_vfork_wide,
            forebay_after_clone3_wide,
        ]
    } else {
        narrow
    };
    all.map(|gate| gate as *const () as usize)
}

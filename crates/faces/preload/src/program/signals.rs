//! Signals: the program's handlers don't run in the middle of this library's work, and a bad
//! address is an error, not a crash.
//!
//! Every handler that the program installs is recorded in a table here; the kernel gets this
//! library's handler instead. This library's handler calls the program's at once, unless the thread
//! is inside a [`Critical`](forebay_store::process::Critical) section. Inside a section, this
//! library's handler blocks all signals in the context to which it returns; the section's end sends
//! the signal again and restores the mask. Blocking signals around each operation would do the
//! same, but cost two more system calls. (libc cancels threads by a signal, too, whose handler it
//! installs through the same call.)
//!
//! Faults (SIGSEGV or SIGBUS caused by an instruction) can't wait. If this library was touching the
//! program's memory, the operation fails with EFAULT ([`forebay_runtime::guard`]); if the page of a
//! mapped file has appeared meanwhile, the program continues ([`Above::on_fault`]); otherwise the
//! program's handler runs.

use crate::program::process::{in_vfork_child, own_pid};
use crate::program::results::{errno, value};
use crate::program::{mask, own_stack, shared_vm_clones, unwinder, user};
use forebay_intercept::{PASS, raw};
use forebay_runtime::guard;
use forebay_store::NOTICE;
use forebay_store::process as sections;
use forebay_store::process::ProcessLock;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// Functions of the layer that serves mapped files, which the signal handler calls before the
/// program's handler. That layer is above this module and uses it for notices, so its functions are
/// passed to [`start`].
pub struct Above {
    /// Handles SIGBUS at an address, and SIGSEGV if `is_ended_by_other`. Returns whether the
    /// program can continue.
    pub on_fault: fn(u64) -> bool,
    /// Whether another thread is ending the process.
    pub is_ended_by_other: fn() -> bool,
    /// Handles [`NOTICE`]. Returns whether the signal was only a notice, so that the program
    /// needn't see it.
    pub on_notice: fn(&libc::siginfo_t) -> bool,
}

static ABOVE: AtomicPtr<Above> = AtomicPtr::new(std::ptr::null_mut());

fn asks(what: impl FnOnce(&Above) -> bool) -> bool {
    // SAFETY: the pointer is null, or the argument of `start`, which stays valid.
    unsafe { ABOVE.load(Acquire).as_ref() }.is_some_and(what)
}

const SIGNALS: usize = 65;
/// The signal by which glibc cancels threads.
const CANCEL: i32 = 32;
const SA_RESTORER: u64 = 0x0400_0000;
const MASK_LEN: i64 = 8;

/// The kernel's struct sigaction.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

/// The program's action for a signal for which the kernel has this library's handler.
struct Wanted {
    /// SIG_DFL, SIG_IGN or a function.
    handler: AtomicUsize,
    flags: AtomicU64,
    /// The signals of [`mask::FAULTS`] in the action's mask. The kernel's action doesn't block
    /// them.
    faults: AtomicU64,
}

static WANTED: [Wanted; SIGNALS] = [const {
    Wanted {
        handler: AtomicUsize::new(0),
        flags: AtomicU64::new(0),
        faults: AtomicU64::new(0),
    }
}; SIGNALS];
/// Held while the table and the kernel's actions are made to agree.
static CHANGING: ProcessLock = ProcessLock::new();
/// Whether SIGSEGV and SIGBUS run this library's handler, whatever action the program sets.
static WATCHING: AtomicBool = AtomicBool::new(false);
/// Whether [`NOTICE`] (a mapped file has become shorter) runs this library's handler, too.
static NOTICED: AtomicBool = AtomicBool::new(false);
/// Whether the program hasn't begun yet.
static BEGINS: AtomicBool = AtomicBool::new(false);
/// Whether all handlers that were installed before this library's have been wrapped.
static ALL: AtomicBool = AtomicBool::new(false);

/// A signal held back until a critical section ends. The first one held back blocks all other
/// signals except faults.
struct Held {
    signal: Cell<i32>,
    info: Cell<MaybeUninit<libc::siginfo_t>>,
    /// The thread's mask before the signal was held back.
    mask: Cell<u64>,
}

thread_local! {
    static HELD: Held = const {
        Held {
            signal: Cell::new(0),
            info: Cell::new(MaybeUninit::uninit()),
            mask: Cell::new(0),
        }
    };
}

fn our_handler() -> usize {
    entry::handler()
}

fn is_function(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

fn is_watched(signal: usize) -> bool {
    match signal as i32 {
        libc::SIGSEGV | libc::SIGBUS => WATCHING.load(Acquire),
        NOTICE => NOTICED.load(Acquire),
        _ => false,
    }
}

/// Reads a signal's action from the kernel, or sets it.
fn kernel(signal: usize, new: Option<&Action>, old: Option<&mut Action>) -> i64 {
    let new = new.map_or(0, |a| a as *const Action as i64);
    let old = old.map_or(0, |a| a as *mut Action as i64);
    // SAFETY: `new` and `old` are null, or addresses of structures of the kernel's layout.
    unsafe {
        raw(
            libc::SYS_rt_sigaction,
            [signal as i64, new, old, MASK_LEN, 0, 0],
        )
    }
}

/// Returns the action to set in the kernel for the action that the program wants.
fn wrapped(signal: usize, wanted: &Action) -> Action {
    let mut action = *wanted;
    if is_function(wanted.handler) {
        action.handler = our_handler();
        action.mask &= !mask::FAULTS;
        // This library removes a one-shot handler itself, once the program's handler has run.
        action.flags &= !(libc::SA_RESETHAND as u32 as u64);
        action.flags |= libc::SA_SIGINFO as u64;
    } else if is_watched(signal) {
        action = watching();
    }
    action
}

/// Returns the action that is set for faults where the program has no handler.
fn watching() -> Action {
    Action {
        handler: our_handler(),
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: entry::restorer(),
        mask: 0,
    }
}

/// Serves the program's rt_sigaction.
///
/// # Safety
/// The arguments are those of the call.
pub unsafe fn sigaction(a: &[i64; 6]) -> i64 {
    let signal = a[0] as usize;
    if !(1..SIGNALS).contains(&signal) || a[3] != MASK_LEN {
        return PASS;
    }
    let new: Option<Action> = match a[1] {
        0 => None,
        // SAFETY: any bytes are an Action; a bad address is caught.
        _ => match unsafe { user::take(a[1]) } {
            Err(e) => return errno(e),
            Ok(new) => Some(new),
        },
    };
    let entry = &WANTED[signal];
    let mut before = Action::default();
    {
        // A vfork child shares the table but not the kernel's handlers: the child's changes are
        // passed to the kernel unchanged.
        let own = !in_vfork_child();
        let _one = CHANGING.hold();
        let was = (entry.handler.load(Acquire), entry.flags.load(Acquire));
        let faults = entry.faults.load(Acquire);
        let given = new.map(|n| if own { wrapped(signal, &n) } else { n });
        if let (Some(n), true) = (&new, own) {
            // The table is changed first: the kernel may call this library's handler at once.
            if is_function(n.handler) || is_watched(signal) {
                entry.flags.store(n.flags, Release);
                entry.handler.store(n.handler, Release);
                entry.faults.store(n.mask & mask::FAULTS, Release);
            }
        }
        let result = kernel(signal, given.as_ref(), Some(&mut before));
        if result < 0 {
            entry.flags.store(was.1, Release);
            entry.handler.store(was.0, Release);
            entry.faults.store(faults, Release);
            return result;
        }
        if before.handler == our_handler() {
            before.handler = was.0;
            before.flags = was.1;
            before.mask |= faults;
        }
    }
    match a[2] {
        0 => 0,
        // SAFETY: the program passed this address to be written; a bad address is caught.
        old => value(unsafe { user::give(before, old) }),
    }
}

/// Installs the handlers of faults and the delivery of held signals. Called before anything else:
/// even before the pool is open, a path may be read at a bad address.
pub fn start(above: &'static Above) {
    ABOVE.store(std::ptr::from_ref(above).cast_mut(), Release);
    sections::deliver_with(deliver);
    mask::start();
    WATCHING.store(true, Release);
    take_over(libc::SIGSEGV as usize);
    take_over(libc::SIGBUS as usize);
}

/// Wraps the handlers that were installed before this library's. Called once the pool is open.
pub fn watch() {
    if in_vfork_child() || ALL.load(Acquire) {
        return;
    }
    let _one = CHANGING.hold();
    if !ALL.swap(true, AcqRel) && !BEGINS.load(Acquire) {
        (1..SIGNALS).for_each(take_over);
    }
}

/// Records whether the program has yet to begin. Such a program has no handlers, since exec resets
/// them.
pub fn note_beginning(begins: bool) {
    BEGINS.store(begins, Release);
}

/// Installs the handler of notices. Called before the first mapping of a file.
pub fn watch_notices() {
    if in_vfork_child() || NOTICED.load(Acquire) {
        return;
    }
    let _one = CHANGING.hold();
    if !NOTICED.swap(true, AcqRel) {
        take_over(NOTICE as usize);
    }
}

/// Wraps the action that the kernel has for a signal.
fn take_over(signal: usize) {
    let mut now = Action::default();
    if kernel(signal, None, Some(&mut now)) < 0 || now.handler == our_handler() {
        return;
    }
    if is_function(now.handler) || is_watched(signal) {
        let entry = &WANTED[signal];
        entry.flags.store(now.flags, Release);
        entry.handler.store(now.handler, Release);
        entry.faults.store(now.mask & mask::FAULTS, Release);
        kernel(signal, Some(&wrapped(signal, &now)), None);
    }
}

/// Undoes [`start`] and [`watch`]: another instance of this library will handle the signals.
pub fn stop() {
    if !WATCHING.swap(false, AcqRel) {
        return;
    }
    ALL.store(false, Release);
    for (signal, entry) in WANTED.iter().enumerate().skip(1) {
        let mut now = Action::default();
        if kernel(signal, None, Some(&mut now)) >= 0 && now.handler == our_handler() {
            now.handler = entry.handler.load(Acquire);
            now.flags = entry.flags.load(Acquire);
            now.mask |= entry.faults.load(Acquire);
            kernel(signal, Some(&now), None);
        }
    }
}

/// Resets the lock in a forked child: another thread of the parent may have held it.
pub fn after_fork_in_child() {
    CHANGING.reset();
}

/// Decides how a signal is handled. Returns the program's handler to jump to, or 0. This library's
/// handler jumps there, so that no frame of this library is on the stack: exceptions and the
/// cancellation of threads unwind the stack.
///
/// # Safety
/// Called by this library's handler with the kernel's arguments.
unsafe extern "C" fn decide(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> usize {
    let _inside = shared_vm_clones::any().then(shared_vm_clones::enter);
    // SAFETY: this library's handler passes the kernel's arguments.
    unsafe { what_next(signal, info, context) }
}

#[inline(never)]
unsafe fn what_next(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> usize {
    // SAFETY: the kernel passes `info` and `context`, since SA_SIGINFO is set.
    let info = unsafe { &*info };
    if signal == CANCEL {
        unwinder::register_kept();
    }
    if is_fault(signal, info) {
        if let Some(to) = guard::landing() {
            // SAFETY: the kernel passes `context`, since SA_SIGINFO is set.
            land(unsafe { &mut *context }, to);
            return 0;
        }
        // SAFETY: the kernel stores an address for each fault.
        let address = unsafe { info.si_addr() } as u64;
        let may_be_mapped = signal == libc::SIGBUS
            || signal == libc::SIGSEGV && asks(|above| (above.is_ended_by_other)());
        if may_be_mapped && own_stack::run(|| asks(|above| (above.on_fault)(address))) {
            return 0;
        }
        if mask::is_blocked(signal) {
            as_without_handler(signal, info, libc::SIG_DFL);
            return 0;
        }
    } else if mask::is_blocked(signal) {
        // SAFETY: the kernel passed `info` and `context`, which are valid until the handler
        // returns.
        unsafe { let_wait(signal, info, context) };
        return 0;
    } else if sections::is_critical() {
        // SAFETY: the kernel passed `info` and `context`, which are valid until the handler
        // returns.
        unsafe { hold_back(signal, info, context) };
        return 0;
    } else if signal == NOTICE && own_stack::run(|| asks(|above| (above.on_notice)(info))) {
        return 0;
    }
    let entry = &WANTED[signal as usize];
    let handler = entry.handler.load(Acquire);
    if !is_function(handler) {
        as_without_handler(signal, info, handler);
        return 0;
    }
    if entry.flags.load(Acquire) & u64::from(libc::SA_RESETHAND as u32) != 0 {
        let default = Action::default();
        entry.handler.store(libc::SIG_DFL, Release);
        kernel(
            signal as usize,
            Some(&wrapped(signal as usize, &default)),
            None,
        );
    }
    let restarts = entry.flags.load(Acquire) & u64::from(libc::SA_RESTART as u32) != 0;
    forebay_store::locks::handler_begins(restarts);
    handler
}

/// Whether an instruction of this thread caused the signal, rather than a process that sent it.
fn is_fault(signal: i32, info: &libc::siginfo_t) -> bool {
    use libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    info.si_code > 0
        && matches!(
            signal,
            SIGSEGV | SIGBUS | SIGFPE | SIGILL | SIGTRAP | SIGSYS
        )
}

fn land(context: &mut libc::ucontext_t, to: guard::Landing) {
    #[cfg(target_arch = "x86_64")]
    {
        let registers = &mut context.uc_mcontext.gregs;
        registers[libc::REG_RSP as usize] = to.stack_pointer as i64;
        registers[libc::REG_RIP as usize] = to.instruction_pointer as i64;
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (context, to);
}

/// Defers a signal until the critical section ends.
///
/// # Safety
/// `context` is what the kernel passed to this library's handler.
unsafe fn hold_back(signal: i32, info: &libc::siginfo_t, context: *mut libc::ucontext_t) {
    // No further signal may arrive between checking whether another is held and holding this one.
    mask::block_all();
    // SAFETY: the kernel's mask has 8 bytes (libc's type has more).
    let mask = unsafe { (&raw mut (*context).uc_sigmask).cast::<u64>() };
    // SAFETY: as above. In the handler of a fault, faults are blocked; in the interrupted code they
    // aren't.
    let before = unsafe { mask.read_unaligned() } & !mask::FAULTS;
    HELD.with(|h| {
        if h.signal.get() == 0 {
            h.signal.set(signal);
            h.info.set(MaybeUninit::new(*info));
            h.mask.set(before);
            sections::owe_signal();
        } else {
            // One of the two handlers interrupted the other, perhaps before its first instruction:
            // the kernel delivers all pending signals at once. The inner one saw the outer one's
            // signals blocked. So the program's mask contains the signals that are in both masks.
            h.mask.set(h.mask.get() & before);
            // SAFETY: the caller passes the context that the kernel passed to the handler.
            unsafe { let_wait(signal, info, context) };
        }
        // SAFETY: the kernel's mask has 8 bytes. All other signals stay blocked until `deliver`
        // sets the mask. Faults don't: an address of the program may be bad. But a fault signal
        // that a process sent stays blocked, too.
        unsafe { mask.write_unaligned(!mask::FAULTS | mask.read_unaligned() & mask::bit(signal)) };
    });
}

/// Blocks a signal and sends it again.
///
/// # Safety
/// As for [`hold_back`].
unsafe fn let_wait(signal: i32, info: &libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's mask has 8 bytes.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        mask.write_unaligned(mask.read_unaligned() | mask::bit(signal));
        // The kernel blocks a signal while its handler (this code) runs, but not with SA_NODEFER;
        // so this code blocks the signal.
        let args = [libc::SIG_BLOCK.into(), mask as i64, 0, MASK_LEN, 0, 0];
        raw(libc::SYS_rt_sigprocmask, args);
    }
    send_again(signal, info);
}

/// Sends a signal to this thread.
fn send_again(signal: i32, info: &libc::siginfo_t) {
    let (me, signal) = (i64::from(own_pid()), i64::from(signal));
    // SAFETY: the calls get numbers, and the address of `info`. If rt_tgsigqueueinfo fails (no
    // memory to queue the signal), the signal is sent without its information.
    unsafe {
        let thread = raw(libc::SYS_gettid, [0; 6]);
        let at = info as *const libc::siginfo_t as i64;
        if raw(libc::SYS_rt_tgsigqueueinfo, [me, thread, signal, at, 0, 0]) < 0 {
            raw(libc::SYS_tgkill, [me, thread, signal, 0, 0, 0]);
        }
    }
}

/// Ends a critical section in which a signal was held back: sends the signal again, and unblocks
/// signals.
fn deliver() {
    HELD.with(|h| {
        let info = h.info.get();
        // SAFETY: `hold_back` has stored the signal's information.
        send_again(h.signal.replace(0), unsafe { info.assume_init_ref() });
        mask::set(h.mask.get());
    });
}

/// Does what the kernel would have done for a signal that has a handler of this library, but none
/// of the program.
fn as_without_handler(signal: i32, info: &libc::siginfo_t, handler: usize) {
    let fault = is_fault(signal, info);
    if !fault && (handler == libc::SIG_IGN || signal == NOTICE) {
        return;
    }
    kernel(signal as usize, Some(&Action::default()), None);
    if !fault {
        // The signal is blocked while this handler runs, and kills the process when the handler
        // returns.
        let me = i64::from(own_pid());
        // SAFETY: gettid and tgkill take no pointers.
        unsafe {
            let thread = raw(libc::SYS_gettid, [0; 6]);
            raw(libc::SYS_tgkill, [me, thread, i64::from(signal), 0, 0, 0]);
        }
    }
    // A fault happens again when the handler returns, and then kills the process.
}

#[cfg(target_arch = "x86_64")]
mod entry {
    std::arch::global_asm!(
        ".pushsection .text.forebay_signal,\"ax\",@progbits",
        ".hidden forebay_on_signal",
        ".globl forebay_on_signal",
        ".type forebay_on_signal,@function",
        "forebay_on_signal:",
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {decide}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        ".cfi_endproc",
        ".size forebay_on_signal, . - forebay_on_signal",
        // The bytes by which unwinders and debuggers recognise the end of a handler.
        "nop",
        ".hidden forebay_restorer",
        ".globl forebay_restorer",
        ".type forebay_restorer,@function",
        "forebay_restorer:",
        "mov rax, 15",
        "syscall",
        ".size forebay_restorer, . - forebay_restorer",
        ".popsection",
        decide = sym super::decide,
    );

    unsafe extern "C" {
        fn forebay_on_signal();
        fn forebay_restorer();
    }

    /// Returns the address of the handler that the kernel calls for every wrapped signal. The
    /// handler calls [`super::decide`], then jumps to the program's handler with the same
    /// arguments.
    pub fn handler() -> usize {
        forebay_on_signal as *const () as usize
    }

    /// Returns the address of the code that a handler returns to.
    pub fn restorer() -> usize {
        forebay_restorer as *const () as usize
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod entry {
    pub fn handler() -> usize {
        super::decide as *const () as usize
    }

    pub fn restorer() -> usize {
        0
    }
}

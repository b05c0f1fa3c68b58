//! Signal masks: faults must reach us, or the process dies where it should get EFAULT
//! ([`forebay_runtime::guard`]) or a page of a mapped file (`map/follow.rs`).
//!
//! So the kernel is never told to block SIGSEGV and SIGBUS for longer than one call waits. The mask
//! that the program wants is noted for each thread and returned when it asks. A fault of its own
//! kills, as in a thread that really blocks it; a signal that somebody sends is blocked when it
//! arrives, and waits in the kernel.

use crate::program::process::in_vfork_child;
use crate::program::results::{errno, value};
use crate::program::user;
use forebay_intercept::{PASS, raw};
use std::cell::Cell;

/// In the kernel's format: the lowest bit is signal 1.
pub const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
const LEN: i64 = 8;

thread_local! {
    /// Signals of [`FAULTS`] that this thread has blocked, as far as the program knows.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
}

pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Whether the program believes that this thread blocks `signal`, and the kernel doesn't know.
pub fn is_blocked(signal: i32) -> bool {
    BLOCKED.get() & FAULTS & bit(signal) != 0
}

/// Asks the kernel for this thread's mask, and changes it if `set` isn't None.
fn kernel(how: i32, set: Option<u64>) -> Result<u64, i64> {
    let mut old = 0u64;
    let at = set.as_ref().map_or(0, |s| &raw const *s as i64);
    let args = [how.into(), at, &raw mut old as i64, LEN, 0, 0];
    // SAFETY: masks of ours, or none.
    match unsafe { raw(libc::SYS_rt_sigprocmask, args) } {
        e if e < 0 => Err(e),
        _ => Ok(old),
    }
}

/// Sets this thread's mask, as the kernel has it.
pub fn set(mask: u64) {
    let _ = kernel(libc::SIG_SETMASK, Some(mask));
}

/// Blocks all signals. Returns this thread's previous mask.
pub fn block_all() -> u64 {
    kernel(libc::SIG_SETMASK, Some(u64::MAX)).unwrap_or(0)
}

/// Blocks all signals but [`FAULTS`], which guarded accesses of ours may cause; this thread's
/// mask before.
pub fn block_all_but_faults() -> u64 {
    kernel(libc::SIG_SETMASK, Some(!FAULTS)).unwrap_or(0)
}

/// Signals of [`FAULTS`] that this thread has blocked, as far as the program knows.
pub fn blocked_faults() -> u64 {
    BLOCKED.get()
}

/// A thread begins, with these signals blocked as far as the program knows.
pub fn begin(mask: u64) {
    BLOCKED.set(mask & FAULTS);
    set(mask & !FAULTS);
}

/// The program before may have blocked them.
pub fn start() {
    if let Ok(old) = kernel(libc::SIG_BLOCK, None)
        && old & FAULTS != 0
    {
        BLOCKED.set(old & FAULTS);
        let _ = kernel(libc::SIG_UNBLOCK, Some(FAULTS));
    }
}

/// rt_sigprocmask(how, set, old, size).
pub unsafe fn sigprocmask(a: &[i64; 6]) -> i64 {
    // The notes of a vfork child's thread are its parent's.
    if a[3] != LEN || in_vfork_child() {
        return PASS;
    }
    let (how, before) = (a[0] as i32, BLOCKED.get());
    let set = match a[1] {
        0 => None,
        // SAFETY: the program's own masks; here and below.
        at => match unsafe { user::take::<u64>(at) } {
            Err(e) => return errno(e),
            Ok(set) => Some(set),
        },
    };
    if before == 0 && (how == libc::SIG_UNBLOCK || set.is_none_or(|s| s & FAULTS == 0)) {
        return PASS; // Most of them.
    }
    let (given, after) = match (set, how) {
        (None, _) => (None, before),
        (Some(set), libc::SIG_UNBLOCK) => (Some(set), before & !set),
        (Some(set), libc::SIG_BLOCK) => (Some(set & !FAULTS), before | set & FAULTS),
        (Some(set), libc::SIG_SETMASK) => (Some(set & !FAULTS), set & FAULTS),
        _ => return PASS, // EINVAL.
    };
    // First: pending signals are delivered on return.
    BLOCKED.set(after);
    let old = match kernel(how, given) {
        Ok(old) => old | before,
        Err(e) => return e,
    };
    match a[2] {
        0 => 0,
        // SAFETY: as above.
        at => value(unsafe { user::give(old, at) }),
    }
}

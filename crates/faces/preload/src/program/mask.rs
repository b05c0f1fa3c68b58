//! Signal masks: SIGSEGV and SIGBUS must always reach the library. Otherwise the process dies where
//! the program should get EFAULT ([`forebay_runtime::guard`]) or a page of a mapped file
//! (`map/follow.rs`).
//!
//! So the kernel is never told to block SIGSEGV and SIGBUS, except while a single call (ppoll, for
//! instance) waits with a mask of the program. The mask that the program wants is recorded for each
//! thread, and returned when the program reads its mask. If the program believes that it blocks one
//! of these signals, a fault by its own instruction kills it, as in the kernel. If another process
//! sends such a signal, this library blocks the signal on arrival, and it stays pending in the
//! kernel.

use crate::program::process::in_vfork_child;
use crate::program::results::{errno, value};
use crate::program::user;
use forebay_intercept::{PASS, raw};
use std::cell::Cell;

/// SIGSEGV and SIGBUS in the kernel's format of a mask: the lowest bit is signal 1.
pub const FAULTS: u64 = bit(libc::SIGSEGV) | bit(libc::SIGBUS);
const LEN: i64 = 8;

thread_local! {
    /// Signals of [`FAULTS`] that this thread has blocked, as far as the program knows.
    static BLOCKED: Cell<u64> = const { Cell::new(0) };
}

pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Whether the program believes that this thread blocks `signal`, although the kernel doesn't.
pub fn is_blocked(signal: i32) -> bool {
    BLOCKED.get() & FAULTS & bit(signal) != 0
}

/// Reads this thread's mask from the kernel, and changes it if `set` isn't None.
fn kernel(how: i32, set: Option<u64>) -> Result<u64, i64> {
    let mut old = 0u64;
    let at = set.as_ref().map_or(0, |s| &raw const *s as i64);
    let args = [how.into(), at, &raw mut old as i64, LEN, 0, 0];
    // SAFETY: the kernel gets pointers to local masks, or null.
    match unsafe { raw(libc::SYS_rt_sigprocmask, args) } {
        e if e < 0 => Err(e),
        _ => Ok(old),
    }
}

/// Sets this thread's mask in the kernel.
pub fn set(mask: u64) {
    let _ = kernel(libc::SIG_SETMASK, Some(mask));
}

/// Blocks all signals. Returns this thread's previous mask.
pub fn block_all() -> u64 {
    kernel(libc::SIG_SETMASK, Some(u64::MAX)).unwrap_or(0)
}

/// Blocks all signals but [`FAULTS`], which this library's guarded accesses may cause. Returns this
/// thread's previous mask.
pub fn block_all_but_faults() -> u64 {
    kernel(libc::SIG_SETMASK, Some(!FAULTS)).unwrap_or(0)
}

/// Returns the signals of [`FAULTS`] that this thread has blocked, as far as the program knows.
pub fn blocked_faults() -> u64 {
    BLOCKED.get()
}

/// Gives a starting thread the mask `mask`, as far as the program knows.
pub fn begin(mask: u64) {
    BLOCKED.set(mask & FAULTS);
    set(mask & !FAULTS);
}

/// Unblocks SIGSEGV and SIGBUS: a process may have blocked them before it called exec. Records
/// which of them were blocked.
pub fn start() {
    if let Ok(old) = kernel(libc::SIG_BLOCK, None)
        && old & FAULTS != 0
    {
        BLOCKED.set(old & FAULTS);
        let _ = kernel(libc::SIG_UNBLOCK, Some(FAULTS));
    }
}

/// Serves rt_sigprocmask(how, set, old, size).
pub unsafe fn sigprocmask(a: &[i64; 6]) -> i64 {
    // A vfork child shares `BLOCKED` with its parent's thread, so the kernel handles the child's
    // call.
    if a[3] != LEN || in_vfork_child() {
        return PASS;
    }
    let (how, before) = (a[0] as i32, BLOCKED.get());
    let set = match a[1] {
        0 => None,
        // SAFETY: the program passed this address for a mask; a bad address is caught.
        at => match unsafe { user::take::<u64>(at) } {
            Err(e) => return errno(e),
            Ok(set) => Some(set),
        },
    };
    if before == 0 && (how == libc::SIG_UNBLOCK || set.is_none_or(|s| s & FAULTS == 0)) {
        return PASS; // Nearly all calls.
    }
    let (given, after) = match (set, how) {
        (None, _) => (None, before),
        (Some(set), libc::SIG_UNBLOCK) => (Some(set), before & !set),
        (Some(set), libc::SIG_BLOCK) => (Some(set & !FAULTS), before | set & FAULTS),
        (Some(set), libc::SIG_SETMASK) => (Some(set & !FAULTS), set & FAULTS),
        _ => return PASS, // EINVAL.
    };
    // `BLOCKED` is set before the kernel's mask: the kernel delivers pending signals when the call
    // returns.
    BLOCKED.set(after);
    let old = match kernel(how, given) {
        Ok(old) => old | before,
        Err(e) => return e,
    };
    match a[2] {
        0 => 0,
        // SAFETY: the program passed this address for a mask; a bad address is caught.
        at => value(unsafe { user::give(old, at) }),
    }
}

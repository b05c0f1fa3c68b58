//! Code that depends on the processor: finding and patching sites, the gates that lead to the
//! handler, and the unpatched system call (`raw`).
//!
//! `raw` exists on every architecture; the rest, used by `patch`, only on x86-64.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const CALL_DEPTH: usize = 0;

/// Calls the C library's syscall(2): on other architectures nothing is ever patched.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn raw(nr: i64, a: [i64; 6]) -> i64 {
    // SAFETY: the caller promises that the system call itself is sound.
    unsafe {
        let r = libc::syscall(nr as _, a[0], a[1], a[2], a[3], a[4], a[5]) as i64;
        if r == -1 {
            -i64::from(*libc::__errno_location())
        } else {
            r
        }
    }
}

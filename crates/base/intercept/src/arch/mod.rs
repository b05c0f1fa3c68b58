//! Code that depends on the processor: finding and patching sites, the gates that lead to the
//! handler, the raw call.
//!
//! `raw` exists on every supported architecture; the rest is used by `patch` where it exists.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const CALL_DEPTH: usize = 0;

/// On other architectures the C library's own function is the raw call; nothing is ever patched.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn raw(nr: i64, a: [i64; 6]) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        let r = libc::syscall(nr as _, a[0], a[1], a[2], a[3], a[4], a[5]) as i64;
        if r == -1 {
            -i64::from(*libc::__errno_location())
        } else {
            r
        }
    }
}

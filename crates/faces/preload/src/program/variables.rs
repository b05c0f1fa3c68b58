//! The environment variables that lead a process to its pool, and the environment as the kernel
//! laid it on the stack: libc doesn't know it yet when the library starts, before all other
//! libraries.
//!
//! Values are copied and leaked: they live as long as the process, whatever the program does to its
//! environment.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The environment variables that lead a process to its pool.
pub const DIR: &CStr = c"FOREBAY_DIR";

pub const MOUNT: &CStr = c"FOREBAY_MOUNT";

/// The process's slot, handed over exec.
pub const SLOT: &CStr = c"FOREBAY_SLOT";

pub const PRELOAD: &CStr = c"LD_PRELOAD";

pub const AUDIT: &CStr = c"LD_AUDIT";

/// The program's file, see [`exe`].
pub const PROGRAM: &CStr = c"FOREBAY_PROGRAM";

/// By which the library's two instances find each other, see `loader/early.rs`, and its value
/// before.
pub const EARLY: &CStr = c"FOREBAY_EARLY";

/// Room for thread-local storage, and what GLIBC_TUNABLES was, see [`static_tls`].
pub const STATIC_TLS: &CStr = c"FOREBAY_STATIC_TLS";

pub const NOT_YET: &[u8] = b"0000000000000000";

/// Whether `text` sets a variable of ours that every program of the pool has, beside [`DIR`] and
/// [`MOUNT`].
pub fn is_pools(text: &[u8]) -> bool {
    let own = [DIR, MOUNT, SLOT, PROGRAM, EARLY, STATIC_TLS, BARE];
    let is = |name: &&CStr| {
        let rest = text.strip_prefix(name.to_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'='))
    };
    text.starts_with(b"FOREBAY_") && !own.iter().any(is)
}

/// Set by the command line for itself: it wants no interception.
pub const BARE: &CStr = c"FOREBAY_CLI_BARE";

/// The environment that the kernel laid on the stack. libc doesn't know it yet when we
/// start, before all other libraries.
static ENVIRONMENT: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

static ARGUMENTS: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Records where arguments and environment lie.
///
/// # Safety
/// Null-terminated arrays of C strings, which stay.
pub unsafe fn note(arguments: *mut *const libc::c_char, environment: *mut *const libc::c_char) {
    ARGUMENTS.store(arguments, Release);
    ENVIRONMENT.store(environment, Release);
}

/// Arguments and environment as the kernel laid them on the stack.
pub fn given() -> (*mut *const libc::c_char, *mut *const libc::c_char) {
    (ARGUMENTS.load(Acquire), ENVIRONMENT.load(Acquire))
}

/// The place of an environment variable, and its value, where it lies.
pub fn place(name: &CStr) -> Option<(*mut *const libc::c_char, &'static CStr)> {
    let mut at = ENVIRONMENT.load(Acquire);
    // SAFETY: the promise of `note`: strings up to a null pointer.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let text = CStr::from_ptr(*at);
            let rest = text.to_bytes().strip_prefix(name.to_bytes());
            if rest.is_some_and(|r| r.first() == Some(&b'=')) {
                let value = (*at).add(name.count_bytes() + 1);
                return Some((at, CStr::from_ptr(value)));
            }
            at = at.add(1);
        }
    }
    None
}

/// A copy of an environment variable that lives as long as the process.
pub fn value(name: &CStr) -> Option<&'static CStr> {
    let copy = place(name)?.1.to_owned();
    (!copy.is_empty()).then(|| &*Box::leak(copy.into_boxed_c_str()))
}

/// As [`variable`], and removes it from the environment.
pub fn take(name: &CStr) -> Option<&'static CStr> {
    let value = value(name);
    if let Some((mut at, _)) = place(name) {
        // SAFETY: moves the pointers behind it, up to the null pointer.
        unsafe {
            while !(*at).is_null() {
                *at = *at.add(1);
                at = at.add(1);
            }
        }
    }
    value
}

/// The slot that the program before exec had.
pub fn handed_slot() -> Option<u32> {
    value(SLOT)?.to_str().ok()?.parse().ok()
}

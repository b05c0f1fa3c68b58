//! The environment variables that tell a process its pool, read from the environment as the kernel
//! laid it on the stack. libc's copy isn't set yet when this library starts, before all other
//! libraries.
//!
//! Values are copied and leaked: the copies live as long as the process, whatever the program does
//! to its environment.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The pool's directory.
pub const DIR: &CStr = c"FOREBAY_DIR";

pub const MOUNT: &CStr = c"FOREBAY_MOUNT";

/// The process slot of the program before an exec.
pub const SLOT: &CStr = c"FOREBAY_SLOT";

pub const PRELOAD: &CStr = c"LD_PRELOAD";

pub const AUDIT: &CStr = c"LD_AUDIT";

/// Path of the program's file, see `paths/exe.rs`.
pub const PROGRAM: &CStr = c"FOREBAY_PROGRAM";

/// Lets the library's two instances find each other, see `loader/early.rs`. The variable's first
/// value is [`NOT_YET`].
pub const EARLY: &CStr = c"FOREBAY_EARLY";

/// Size reserved for thread-local storage, and the former value of GLIBC_TUNABLES, see
/// `loader/static_tls.rs`.
pub const STATIC_TLS: &CStr = c"FOREBAY_STATIC_TLS";

pub const NOT_YET: &[u8] = b"0000000000000000";

/// Whether `text` sets a FOREBAY_ variable other than [`DIR`], [`MOUNT`] and those that are meant
/// for one program only.
pub fn is_pools(text: &[u8]) -> bool {
    let own = [DIR, MOUNT, SLOT, PROGRAM, EARLY, STATIC_TLS, BARE];
    let is = |name: &&CStr| {
        let rest = text.strip_prefix(name.to_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'='))
    };
    text.starts_with(b"FOREBAY_") && !own.iter().any(is)
}

/// Set by Forebay's command line for its own process, in which no calls are to be intercepted.
pub const BARE: &CStr = c"FOREBAY_CLI_BARE";

/// The environment that the kernel laid on the stack. libc's copy isn't set yet when this library
/// starts, before all other libraries.
static ENVIRONMENT: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

static ARGUMENTS: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Records the addresses of arguments and environment.
///
/// # Safety
/// Both are null-terminated arrays of C strings, which are never freed.
pub unsafe fn note(arguments: *mut *const libc::c_char, environment: *mut *const libc::c_char) {
    ARGUMENTS.store(arguments, Release);
    ENVIRONMENT.store(environment, Release);
}

/// Returns the arguments and the environment as the kernel laid them on the stack.
pub fn given() -> (*mut *const libc::c_char, *mut *const libc::c_char) {
    (ARGUMENTS.load(Acquire), ENVIRONMENT.load(Acquire))
}

/// Returns the address of an environment variable's pointer, and the variable's value.
pub fn place(name: &CStr) -> Option<(*mut *const libc::c_char, &'static CStr)> {
    let mut at = ENVIRONMENT.load(Acquire);
    // SAFETY: the caller of `note` promised pointers to C strings, up to a null pointer.
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

/// Returns a copy of an environment variable's value that lives as long as the process; None if the
/// variable is unset or empty.
pub fn value(name: &CStr) -> Option<&'static CStr> {
    let copy = place(name)?.1.to_owned();
    (!copy.is_empty()).then(|| &*Box::leak(copy.into_boxed_c_str()))
}

/// Like [`value`], and removes the variable from the environment.
pub fn take(name: &CStr) -> Option<&'static CStr> {
    let value = value(name);
    if let Some((mut at, _)) = place(name) {
        // SAFETY: only moves the pointers after this one, up to the null pointer.
        unsafe {
            while !(*at).is_null() {
                *at = *at.add(1);
                at = at.add(1);
            }
        }
    }
    value
}

/// Returns the process slot that the program before the exec had.
pub fn handed_slot() -> Option<u32> {
    value(SLOT)?.to_str().ok()?.parse().ok()
}

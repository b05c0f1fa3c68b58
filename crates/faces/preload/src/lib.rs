//! The preload face: an unmodified, dynamically linked program sees a pool under a path
//! prefix.
//!
//! Loaded with `LD_PRELOAD`, it patches libc's system calls (crate `forebay-intercept`). Calls on
//! paths under the prefix, and on descriptors opened there, are answered from the pool; all others
//! go to the kernel. The library's guarantees:
//! - a descriptor of the pool is a real kernel descriptor number: a duplicate of one `O_PATH`
//!   descriptor, on which the kernel refuses to read or write. A table in shared memory maps the
//!   number to its open file ([`pool::fds`]), so that fork, exec and vfork carry it over
//!   ([`lifecycle`]);
//! - nothing of the pool is opened before the program first needs it;
//! - it has its own allocator ([`alloc`]), starts no threads and writes nothing to the program's
//!   terminal but one line if the pool can't be reached, or if a defect of the library ends the
//!   program ([`program::messages`]).
//!
//! `FOREBAY_DIR` (the pool's directory) and `FOREBAY_MOUNT` (the prefix) say where the pool is;
//! `forebay exec` sets them. Without these variables the library does nothing.
//!
//! The library's modules import each other downwards, files within a folder too:
//!
//! ```text
//! loader      called by the loader: patches libc with the handler in dispatch
//! dispatch    the handler of all intercepted calls: which function serves which
//! lifecycle   fork, exec, exit: state passed on to children and to the next program
//! served      the system calls, by topic
//! paths, map  path resolution; mapped files
//! pool        the pool once it is open, descriptors, working directory
//! program     memory, environment, signals and threads of the program; calls, alloc
//! ```
//!
//! Two lower modules call functions of higher modules, through function pointers: the signal
//! handler ([`program::signals::Above`]), and the code that repeats a call with another path
//! ([`paths::links::served_by`]).

#![cfg(target_os = "linux")]

mod alloc;
mod calls;
mod counted;
mod dispatch;
mod lifecycle;
mod loader;
mod map;
mod paths;
mod pool;
mod program;
mod served;

use loader::{bindings, early, start, static_tls};

/// Starts the audit library, the first instance of this code in a process, see [`loader::early`].
pub fn begin_early() {
    early::begin();
}

pub use loader::link_map::LinkMap;

/// Checks that there is enough static thread-local storage for an object that the loader has mapped
/// into the program's namespace, see [`loader::static_tls`].
///
/// # Safety
/// Called by the loader, with its record of the object.
pub unsafe fn object_mapped(map: &LinkMap) {
    // SAFETY: the caller passes the loader's record of the object.
    unsafe { static_tls::mapped(map) };
}

/// Initialises the library; the loader calls it before the program's `main`.
unsafe extern "C" fn begin(
    _: std::ffi::c_int,
    arguments: *mut *const libc::c_char,
    environment: *mut *const libc::c_char,
) {
    // SAFETY: no code of this library has run before; glibc passes main's arguments to
    // constructors.
    unsafe {
        bindings::to_their_own();
        start::start(arguments, environment);
    }
}

// SAFETY: the loader calls the functions in this section, and glibc passes them these arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(
    std::ffi::c_int,
    *mut *const libc::c_char,
    *mut *const libc::c_char,
) = begin;

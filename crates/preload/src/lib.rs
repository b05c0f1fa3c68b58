//! The preload face: an unmodified, dynamically linked program sees a pool under a path
//! prefix.
//!
//! Loaded with `LD_PRELOAD`, it patches libc's system calls (crate `forebay-intercept`)
//! so that those on paths under the prefix, and on descriptors opened there, are answered
//! from the pool; all others go to the kernel. What it promises:
//! - a descriptor of the pool is a real kernel descriptor number: a duplicate of one
//!   `O_PATH` descriptor, on which the kernel refuses to read or write. Which open file
//!   it stands for is kept in shared memory, by number ([`fds`]), so that fork, exec and
//!   vfork carry it over ([`fork`], [`exec`]);
//! - nothing of the pool is opened before the program first needs it;
//! - it has its own allocator ([`alloc`]), starts no threads and writes nothing to the
//!   program's terminal but one line if the pool can't be reached.
//!
//! `FOREBAY_DIR` (the pool's directory) and `FOREBAY_MOUNT` (the prefix) tell it where to
//! look; `forebay exec` sets them. Without them it does nothing.

#![cfg(target_os = "linux")]

mod aio;
mod alloc;
mod attributes;
mod bindings;
mod calls;
mod copies;
mod cwd;
mod dispatch;
mod dnotify;
mod early;
mod environ;
mod exe;
mod exec;
mod executable;
mod exit;
mod fd_table;
mod fds;
mod filter;
mod fork;
mod image;
mod inotify;
mod io;
mod limits;
mod link_map;
mod links;
mod loading;
mod locate;
mod locks;
mod map;
mod mask;
mod messages;
mod names;
mod nodes;
mod openat2;
mod own_stack;
mod passing;
mod paths;
mod placeholder;
mod poll;
mod pool;
mod prefix;
mod proc_paths;
mod process;
mod refuse;
mod results;
mod resume;
mod search;
mod seccomp;
mod settings;
mod shared_vm_clones;
mod signals;
mod size_limit;
mod start;
mod stat;
mod static_binary_hint;
mod static_tls;
mod table_change;
mod umask;
mod user;
mod variables;
mod working_dir;

/// Begins the work of the library's first instance in a process, see [`early`].
pub fn begin_early() {
    early::begin();
}

pub use link_map::LinkMap;

/// The loader has mapped an object into the program's namespace, see [`static_tls`].
///
/// # Safety
/// Called by the loader, with its record.
pub unsafe fn object_mapped(map: &LinkMap) {
    // SAFETY: passed on.
    unsafe { static_tls::mapped(map) };
}

/// Runs when the library is loaded, before the program's `main`.
unsafe extern "C" fn begin(
    _: std::ffi::c_int,
    arguments: *mut *const libc::c_char,
    environment: *mut *const libc::c_char,
) {
    // SAFETY: nothing of ours has run; and glibc passes constructors what main gets.
    unsafe {
        bindings::to_their_own();
        start::start(arguments, environment);
    }
}

// SAFETY: the loader calls the functions in this section, as glibc does with these arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(
    std::ffi::c_int,
    *mut *const libc::c_char,
    *mut *const libc::c_char,
) = begin;

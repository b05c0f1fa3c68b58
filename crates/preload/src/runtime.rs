//! The library's state in a process: where the pool is, and the pool once it is open.

use crate::{dispatch, fds, limits, process, signals};
use forebay_client::Pool;
use forebay_posix::Fs;
use forebay_store::Errno;
use forebay_store::process::Critical;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// The environment variables that lead a process to its pool.
pub const DIR: &CStr = c"FOREBAY_DIR";
pub const MOUNT: &CStr = c"FOREBAY_MOUNT";
/// The process's slot, handed over exec.
pub const SLOT: &CStr = c"FOREBAY_SLOT";
pub const PRELOAD: &CStr = c"LD_PRELOAD";
/// Set by the command line for itself: it wants no interception.
pub const BARE: &CStr = c"FOREBAY_CLI_BARE";

/// What `start` read from the environment. Leaked: lives as long as the process.
pub struct Settings {
    pub dir: &'static CStr,
    pub mount: &'static [u8],
    /// The last component of the mount prefix: a path that leads into the pool without
    /// starting with the prefix contains it.
    pub mark: &'static [u8],
    /// LD_PRELOAD as this process was started with.
    pub preload: &'static CStr,
}

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());
static FS: AtomicPtr<Fs> = AtomicPtr::new(std::ptr::null_mut());
static OPENING: process::ProcessLock = process::ProcessLock::new();
/// The pool was opened by a vfork child, in our memory.
static OPENED_BY_CHILD: AtomicBool = AtomicBool::new(false);
static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// A copy of an environment variable that lives as long as the process.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: getenv in a constructor: no other thread changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a C string.
    let copy = unsafe { CStr::from_ptr(value) }.to_owned();
    (!copy.is_empty()).then(|| &*Box::leak(copy.into_boxed_c_str()))
}

/// The settings, once `start` has found them.
pub fn settings() -> Option<&'static Settings> {
    // SAFETY: leaked, never freed or changed.
    unsafe { SETTINGS.load(Acquire).as_ref() }
}

/// Reads the environment, patches libc, and takes over what exec handed on.
pub fn start() {
    let (Some(dir), Some(mount)) = (variable(DIR), variable(MOUNT)) else {
        return;
    };
    let mount = mount.to_bytes();
    let mount = mount.strip_suffix(b"/").unwrap_or(mount);
    if mount.first() != Some(&b'/') {
        return;
    }
    let mark = mount.rsplit(|&b| b == b'/').next().unwrap_or(b"");
    let preload = variable(PRELOAD).unwrap_or(c"");
    let settings = Box::new(Settings {
        dir,
        mount,
        mark,
        preload,
    });
    SETTINGS.store(Box::leak(settings), Release);
    signals::start();
    // What was found out about this libc serves all pools of the user.
    let cache = dir.to_bytes().rsplitn(2, |&b| b == b'/').nth(1);
    let cache = cache.and_then(|home| CString::new(home).ok());
    // SAFETY: a constructor, before the program's own threads; the hooks are static.
    if let Err(e) = unsafe { forebay_intercept::install(&dispatch::HOOKS, cache.as_deref()) } {
        complain(&format!(
            "the pool under {} is out of reach: {e}",
            text(mount)
        ));
        return;
    }
    if let Some(slot) = variable(SLOT).and_then(|s| s.to_str().ok()?.parse().ok()) {
        process::resume_after_exec(slot);
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// One line on standard error, once per process.
pub fn complain(what: &str) {
    if !COMPLAINED.swap(true, AcqRel) {
        let line = format!("forebay: {what}\n");
        // SAFETY: a valid buffer; a raw system call, whatever libc's state.
        unsafe {
            forebay_intercept::raw(
                libc::SYS_write,
                [2, line.as_ptr() as i64, line.len() as i64, 0, 0, 0],
            );
        }
    }
}

/// The pool, if it is open already.
pub fn open_fs() -> Option<&'static Fs> {
    // SAFETY: leaked, never freed.
    unsafe { FS.load(Acquire).as_ref() }
}

/// The pool, opened if need be.
///
/// # Errors
/// ENOTCONN if it can't be opened; a line on standard error says why.
pub fn fs() -> Result<&'static Fs, Errno> {
    if let Some(fs) = open_fs() {
        return Ok(fs);
    }
    let _one = OPENING.hold();
    if let Some(fs) = open_fs() {
        return Ok(fs);
    }
    let settings = settings().ok_or(Errno::NOTCONN)?;
    let dir = std::path::Path::new(std::ffi::OsStr::from_bytes(settings.dir.to_bytes()));
    match Pool::open_dir(dir) {
        Ok(pool) => {
            let fs = Box::leak(Box::new(Fs::new(Arc::new(pool))));
            limits::refresh(fs);
            FS.store(fs, Release);
            OPENED_BY_CHILD.store(process::in_vfork_child(), Release);
            fds::protect_internal();
            signals::watch();
            Ok(fs)
        }
        Err(e) => {
            complain(&format!("{}: {e}", text(settings.mount)));
            Err(Errno::NOTCONN)
        }
    }
}

/// Opens whatever of the pool would otherwise be opened when it is first needed: before a
/// vfork, whose child shares our memory but not our descriptors.
pub fn open_all() {
    if let Some(fs) = open_fs() {
        let _critical = Critical::enter();
        // What can't be opened now fails in the child as it would here.
        let _ = fs.store().open_all();
        let _ = fds::placeholder(fs);
    }
}

/// After a vfork: if it was the child that opened the pool, its descriptors went with it.
/// The pool is opened anew when it is needed.
pub fn forget_childs() {
    if OPENED_BY_CHILD.swap(false, AcqRel) {
        FS.store(std::ptr::null_mut(), Release);
        fds::forget_placeholder();
    }
}

/// In a forked child: another thread may have been inside `fs` when the process forked.
pub fn after_fork_in_child() {
    OPENING.reset();
    signals::after_fork_in_child();
    if let Some(fs) = open_fs() {
        fs.after_fork_in_child();
    }
}

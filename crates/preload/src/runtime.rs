//! The library's state in a process: where the pool is, and the pool once it is open.

use crate::{
    cwd, dispatch, early, environ, exe, fds, limits, loading, paths, process, signals, static_tls,
};
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
pub const AUDIT: &CStr = c"LD_AUDIT";
/// What the program is, see [`exe`].
pub const PROGRAM: &CStr = c"FOREBAY_PROGRAM";
/// Where the library's two instances meet, see [`early`], and what is there before.
pub const EARLY: &CStr = c"FOREBAY_EARLY";
/// Room for thread-local storage, and what GLIBC_TUNABLES was, see [`static_tls`].
pub const STATIC_TLS: &CStr = c"FOREBAY_STATIC_TLS";
pub const NOT_YET: &[u8] = b"0000000000000000";
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

/// The environment that the kernel laid on the stack. libc doesn't know it yet when we
/// start, before all other libraries.
static ENVIRONMENT: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

static ARGUMENTS: AtomicPtr<*const libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

/// Arguments and environment as the kernel laid them on the stack.
pub fn given() -> (*mut *const libc::c_char, *mut *const libc::c_char) {
    (ARGUMENTS.load(Acquire), ENVIRONMENT.load(Acquire))
}

/// The place of an environment variable, and its value, where it lies.
pub fn variable_at(name: &CStr) -> Option<(*mut *const libc::c_char, &'static CStr)> {
    let mut at = ENVIRONMENT.load(Acquire);
    // SAFETY: the promise of start: strings up to a null pointer.
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
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    let copy = variable_at(name)?.1.to_owned();
    (!copy.is_empty()).then(|| &*Box::leak(copy.into_boxed_c_str()))
}

/// As [`variable`], and takes it out of the environment.
pub fn take_variable(name: &CStr) -> Option<&'static CStr> {
    let value = variable(name);
    if let Some((mut at, _)) = variable_at(name) {
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

/// The settings, once `start` has found them.
pub fn settings() -> Option<&'static Settings> {
    // SAFETY: leaked, never freed or changed.
    unsafe { SETTINGS.load(Acquire).as_ref() }
}

/// The slot that the program before exec had.
pub fn handed_slot() -> Option<u32> {
    variable(SLOT)?.to_str().ok()?.parse().ok()
}

/// Reads where the pool is. Some if there is one; in it, the directory for what was found
/// out about this libc, which serves all pools of the user.
pub fn read_settings() -> Option<Option<CString>> {
    let (dir, mount) = (variable(DIR)?, variable(MOUNT)?.to_bytes());
    let mount = mount.strip_suffix(b"/").unwrap_or(mount);
    if mount.first() != Some(&b'/') {
        return None;
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
    // Guards our own descriptors against a program that closes everything.
    forebay_media::tell(fds::watch);
    let home = dir.to_bytes().rsplitn(2, |&b| b == b'/').nth(1);
    Some(home.and_then(|home| CString::new(home).ok()))
}

/// Reads the environment, patches libc, and takes over what exec handed on.
///
/// # Safety
/// Called by the loader as a constructor, with arguments and environment on the stack:
/// null-terminated arrays of C strings, which stay.
pub unsafe fn start(arguments: *mut *const libc::c_char, environment: *mut *const libc::c_char) {
    ARGUMENTS.store(arguments, Release);
    ENVIRONMENT.store(environment, Release);
    if !early::is_in_program() {
        return;
    }
    let Some(cache) = read_settings() else {
        return;
    };
    let early = early::take_over();
    if let Some(name) = take_variable(PROGRAM).and_then(exe::note) {
        // SAFETY: the caller's promise.
        unsafe { exe::introduce(name, environment) };
    }
    forget_audit();
    static_tls::restore();
    signals::start();
    // SAFETY: a constructor, before the program's own threads; the hooks are static.
    if let Err(e) = unsafe { forebay_intercept::install(&dispatch::HOOKS, cache.as_deref()) } {
        let mount = settings().map_or(&b""[..], |s| s.mount);
        complain(&format!(
            "the pool under {} is out of reach: {e}",
            text(mount)
        ));
        return;
    }
    // SAFETY: as above; what the loader has loaded hasn't begun.
    unsafe { forebay_intercept::install_in_others(&dispatch::HOOKS, cache.as_deref()) };
    let resumed = match (early, handed_slot()) {
        (Some(slot), _) => process::resume_after_exec(slot, false),
        (None, Some(slot)) => process::resume_after_exec(slot, true),
        (None, None) => false,
    };
    if !resumed {
        cwd::recover();
    }
}

/// Takes our library out of LD_AUDIT, where it has done its work.
fn forget_audit() {
    let (Some((at, list)), Some(settings)) = (variable_at(AUDIT), settings()) else {
        return;
    };
    let ours = environ::audit_library(settings.preload.to_bytes());
    let others = list
        .to_bytes()
        .split(|&b| b == b':')
        .filter(|p| **p != *ours);
    let others = others.collect::<Vec<_>>().join(&b':');
    if others.is_empty() {
        take_variable(AUDIT);
    } else if others != list.to_bytes()
        && let Ok(text) = CString::new([AUDIT.to_bytes(), b"=", &others].concat())
    {
        // SAFETY: a place in the environment, and a text that stays.
        unsafe { *at = text.into_raw() };
    }
}

/// Closes the pool, for good, without releasing what the process holds there: the slot.
pub fn close() -> Option<u32> {
    let fs = FS.swap(std::ptr::null_mut(), AcqRel);
    if fs.is_null() {
        return None;
    }
    // SAFETY: leaked in `fs`; the caller vouches that nothing uses it any more.
    let fs = unsafe { Box::from_raw(fs) };
    fs.store().give_up_slot()
}

/// As text for a message.
pub fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// One line on standard error, once per process.
pub fn complain(what: &str) {
    if !COMPLAINED.swap(true, AcqRel) {
        say(what);
    }
}

/// One line on standard error.
pub fn say(what: &str) {
    let line = format!("forebay: {what}\n");
    // SAFETY: a valid buffer; a raw system call, whatever libc's state.
    unsafe {
        forebay_intercept::raw(
            libc::SYS_write,
            [2, line.as_ptr() as i64, line.len() as i64, 0, 0, 0],
        );
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
            let fs = Box::leak(Box::new(Fs::for_program(Arc::new(pool))));
            limits::refresh();
            FS.store(fs, Release);
            OPENED_BY_CHILD.store(process::in_vfork_child(), Release);
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

/// Before prctl and seccomp. The program may be about to forbid itself, and so us, to open
/// anything: all that work in the pool needs is opened first. What is left then are calls on memory
/// and descriptors, getpid and futex.
pub fn before_filter(nr: i64, a: &[i64; 6]) {
    let filters = match nr {
        libc::SYS_prctl => a[0] == i64::from(libc::PR_SET_SECCOMP),
        _ => a[0] <= i64::from(libc::SECCOMP_SET_MODE_FILTER),
    };
    if !filters {
        return;
    }
    loading::stop();
    let _critical = Critical::enter();
    if let Ok(fs) = fs() {
        open_all();
        let _ = fs.store().area();
        cwd::prepare(fs);
        forebay_store::watches::be_silent();
    }
}

/// After a vfork: if it was the child that opened the pool, its descriptors went with it.
/// The pool is opened again when it is needed.
pub fn forget_childs() {
    if OPENED_BY_CHILD.swap(false, AcqRel) {
        FS.store(std::ptr::null_mut(), Release);
        fds::forget_placeholder();
    }
}

/// In a forked child that can't use the pool as its parent has opened it.
pub fn leave_behind() {
    FS.store(std::ptr::null_mut(), Release);
    fds::forget_placeholder();
    paths::child_without_slot();
}

/// In a forked child: another thread may have been inside `fs` when the process forked.
pub fn after_fork_in_child() {
    OPENING.reset();
    cwd::after_fork_in_child();
    signals::after_fork_in_child();
    crate::aio::after_fork_in_child();
    if let Some(fs) = open_fs() {
        fs.after_fork_in_child();
    }
}

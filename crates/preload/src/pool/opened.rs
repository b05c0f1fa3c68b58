//! The pool of this process, opened when it is first needed.
//!
//! `fs` opens it, under a lock that works across threads of one process; `open_fs` only looks. An
//! open pool is leaked: other threads may be in the middle of a call at any time.

use crate::pool::placeholder;
use crate::program::{messages, process, settings, signals, size_limit};
use forebay_client::Pool;
use forebay_posix::Fs;
use forebay_store::Errno;
use forebay_store::process::Critical;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

static FS: AtomicPtr<Fs> = AtomicPtr::new(std::ptr::null_mut());

static OPENING: process::ProcessLock = process::ProcessLock::new();

/// The pool was opened by a vfork child, in our memory.
static OPENED_BY_CHILD: AtomicBool = AtomicBool::new(false);

/// Closes the pool, for good, without releasing what the process holds there: the slot.
pub fn close() -> Option<u32> {
    let fs = FS.swap(std::ptr::null_mut(), AcqRel);
    if fs.is_null() {
        return None;
    }
    // SAFETY: leaked in `fs`; the caller vouches that nothing uses it any more.
    let fs = unsafe { Box::from_raw(fs) };
    fs.process().give_up_slot()
}

/// The pool, if it is open already.
#[inline]
pub fn open_fs() -> Option<&'static Fs> {
    // SAFETY: leaked, never freed.
    unsafe { FS.load(Acquire).as_ref() }
}

/// The pool, opened if need be.
///
/// # Errors
/// ENOTCONN if it can't be opened; a line on standard error says why.
#[inline]
pub fn fs() -> Result<&'static Fs, Errno> {
    if let Some(fs) = open_fs() {
        return Ok(fs);
    }
    let _one = OPENING.hold();
    if let Some(fs) = open_fs() {
        return Ok(fs);
    }
    let settings = settings::settings().ok_or(Errno::NOTCONN)?;
    let dir = std::path::Path::new(std::ffi::OsStr::from_bytes(settings.dir.to_bytes()));
    match Pool::open_dir(dir) {
        Ok(pool) => {
            let fs = Box::leak(Box::new(Fs::for_program(Arc::new(pool))));
            size_limit::refresh();
            FS.store(fs, Release);
            OPENED_BY_CHILD.store(process::in_vfork_child(), Release);
            signals::watch();
            Ok(fs)
        }
        Err(e) => {
            messages::complain(&format!("{}: {e}", messages::text(settings.mount)));
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
        let _ = fs.process().open_all();
        let _ = placeholder::descriptor(fs);
    }
}

/// After a vfork: if it was the child that opened the pool, its descriptors went with it.
/// The pool is opened again when it is needed.
pub fn forget_childs() {
    if OPENED_BY_CHILD.swap(false, AcqRel) {
        FS.store(std::ptr::null_mut(), Release);
        placeholder::forget();
    }
}

/// In a forked child: another thread may have been inside [`fs`] when the process forked.
pub fn after_fork_in_child() {
    OPENING.reset();
}

/// In a forked child that can't use the pool as its parent has opened it.
pub fn leave_behind() {
    FS.store(std::ptr::null_mut(), Release);
    placeholder::forget();
}

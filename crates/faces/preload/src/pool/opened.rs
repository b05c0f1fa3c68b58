//! The pool of this process, opened when it is first needed.
//!
//! `fs` opens it, under a lock that works across threads of one process; `open_fs` only looks. An
//! open pool is leaked: other threads may be in the middle of a call at any time.

use crate::pool::placeholder;
use crate::program::{
    credentials, messages, process, settings, shared_vm_clones, signals, size_limit,
};
use forebay_client::Pool;
use forebay_posix::Fs;
use forebay_store::Errno;
use forebay_store::process::Critical;
use forebay_store::process::ProcessLock;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};

static FS: AtomicPtr<Fs> = AtomicPtr::new(std::ptr::null_mut());

static OPENING: ProcessLock = ProcessLock::new();

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
/// ENOTCONN if it can't be opened; a line on standard error gives the reason.
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
            if credentials::differ() {
                fs.credentials_differ(false);
            }
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

/// Opens all files of the pool that would otherwise be opened when they are first needed: before a
/// vfork, whose child shares our memory but not our descriptors.
pub fn open_all() {
    if let Some(fs) = open_fs() {
        let _critical = Critical::enter();
        // A descriptor that can't be opened now fails in the child as it would here.
        let _ = fs.process().open_all();
        let _ = placeholder::descriptor(fs);
    }
}

/// Records that are open before a vfork: bits of shards. The others are its child's alone.
static OPEN_BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Before a vfork, whose child shares our memory but not our descriptors. Records that the child
/// opens it closes at its end ([`close_childs`]); other threads would use them meanwhile, so a
/// process with threads, or with others that share its memory, opens them all.
pub fn before_vfork() {
    if !forebay_store::process::is_alone() || shared_vm_clones::any() {
        // At once: children of other threads' vforks read it, and must close nothing.
        OPEN_BEFORE.store(u64::MAX, Release);
        return open_all();
    }
    let Some(fs) = open_fs() else {
        return OPEN_BEFORE.store(0, Release);
    };
    let _critical = Critical::enter();
    // A descriptor that can't be opened now fails in the child as it would here.
    let _ = fs.process().open_files();
    let _ = placeholder::descriptor(fs);
    OPEN_BEFORE.store(fs.process().open_records(), Release);
}

/// Called before a vfork child executes a program or ends: closes the records that it has opened.
pub fn close_childs() {
    if process::in_vfork_child()
        && let Some(fs) = open_fs()
    {
        fs.process().close_records(OPEN_BEFORE.load(Acquire));
    }
}

/// After a vfork: if the child opened the pool, its descriptors ended with it. The pool is opened
/// again when it is needed.
pub fn forget_childs() {
    if let Some(fs) = open_fs() {
        // The process was killed before it could close them.
        fs.process().forget_records(OPEN_BEFORE.load(Acquire));
    }
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

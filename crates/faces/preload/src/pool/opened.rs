//! The pool of this process, opened when it is first needed.
//!
//! [`fs`] opens it, under a lock between the threads of this process; [`open_fs`] only returns it
//! if it is open. Only [`close`] frees an open pool, when this instance of the library ends: until
//! then, other threads may be in the middle of a call at any time.

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

/// Whether a vfork child has opened the pool, in this process's memory.
static OPENED_BY_CHILD: AtomicBool = AtomicBool::new(false);

/// Closes the pool when this instance of the library ends. Returns the process slot, which isn't
/// released.
pub fn close() -> Option<u32> {
    let fs = FS.swap(std::ptr::null_mut(), AcqRel);
    if fs.is_null() {
        return None;
    }
    // SAFETY: `fs` made and leaked the box; the caller guarantees that no thread uses the pool.
    let fs = unsafe { Box::from_raw(fs) };
    fs.process().give_up_slot()
}

/// Returns the pool, if it is open already.
#[inline]
pub fn open_fs() -> Option<&'static Fs> {
    // SAFETY: the pointer is null, or of a pool that `close` frees only once no thread uses it.
    unsafe { FS.load(Acquire).as_ref() }
}

/// Returns the pool; opens it if necessary.
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
            let why = other_user(dir).unwrap_or_else(|| e.to_string());
            messages::complain(&format!("{}: {why}", messages::text(settings.mount)));
            Err(Errno::NOTCONN)
        }
    }
}

/// Whether `user` owns the directory of this process's pool, and so may open the pool.
pub fn is_owner(user: u32) -> bool {
    let stat = settings::settings().and_then(|s| rustix::fs::stat(s.dir).ok());
    stat.is_some_and(|stat| stat.st_uid == user)
}

/// Says why this process can't open the pool in `dir`, if the reason is that it has become another
/// user than the one who started the pool.
fn other_user(dir: &std::path::Path) -> Option<String> {
    let me = rustix::process::geteuid().as_raw();
    let is_other = match rustix::fs::stat(dir) {
        Ok(stat) => stat.st_uid != me,
        Err(e) => e == Errno::ACCESS,
    };
    is_other.then(|| {
        format!(
            "this process runs as user {me}, and only the user who started the pool may open \
             it: let the program use the pool before it changes its user, or mount the pool for \
             other users, too (forebay mount --allow-other)"
        )
    })
}

/// Opens all files of the pool that would otherwise be opened when they are first needed. Called
/// before a vfork, whose child shares this process's memory but not its descriptors, and before the
/// process may become a user who may not open them.
pub fn open_all() {
    if let Some(fs) = open_fs() {
        let _critical = Critical::enter();
        // Failures are ignored: if a file can't be opened here, the child gets the error that this
        // process would get when it uses the file.
        let _ = fs.process().open_all();
        let _ = placeholder::descriptor(fs);
    }
}

/// The shards whose record files are open before a vfork, one bit each. The child opens the record
/// files of the other shards.
static OPEN_BEFORE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Opens files of the pool before a vfork, whose child shares this process's memory but not its
/// descriptors. Record files that the child opens are closed at its end ([`close_childs`]). Other
/// threads could use those descriptors meanwhile; so a process with several threads, or whose
/// memory other processes share, opens all record files now.
pub fn before_vfork() {
    if !forebay_store::process::is_alone() || shared_vm_clones::any() {
        // The mask is stored before the files are opened: vfork children of other threads read it,
        // and must not close any record file.
        OPEN_BEFORE.store(u64::MAX, Release);
        return open_all();
    }
    let Some(fs) = open_fs() else {
        return OPEN_BEFORE.store(0, Release);
    };
    let _critical = Critical::enter();
    // Failures are ignored: if a file can't be opened here, the child gets the error that this
    // process would get when it uses the file.
    let _ = fs.process().open_files();
    let _ = placeholder::descriptor(fs);
    OPEN_BEFORE.store(fs.process().open_records(), Release);
}

/// Closes the record files that a vfork child has opened. Called before the child executes a
/// program or ends.
pub fn close_childs() {
    if process::in_vfork_child()
        && let Some(fs) = open_fs()
    {
        fs.process().close_records(OPEN_BEFORE.load(Acquire));
    }
}

/// Forgets the files that a vfork child has opened, whose descriptors ended with the child. If the
/// child opened the pool, the pool is opened again when it is needed.
pub fn forget_childs() {
    if let Some(fs) = open_fs() {
        // The child may have been killed before it could close its record files.
        fs.process().forget_records(OPEN_BEFORE.load(Acquire));
    }
    if OPENED_BY_CHILD.swap(false, AcqRel) {
        FS.store(std::ptr::null_mut(), Release);
        placeholder::forget();
    }
}

/// Resets the lock in a forked child: another thread may have been inside [`fs`] when the process
/// forked.
pub fn after_fork_in_child() {
    OPENING.reset();
}

/// Forgets the pool in a forked child that can't use the pool as its parent has opened it.
pub fn leave_behind() {
    FS.store(std::ptr::null_mut(), Release);
    placeholder::forget();
}

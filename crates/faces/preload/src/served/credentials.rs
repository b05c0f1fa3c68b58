//! Calls that change a thread's rights on files (its ids and capabilities, its user namespace), or
//! its working directory and umask.
//!
//! In the kernel each thread has its own values of these. As long as the values are the same in all
//! threads, this library keeps them in memory. From the first call by which they may differ, each
//! operation reads the calling thread's values from the kernel.

use crate::pool::{self, fds, working_dir};
use crate::program::credentials::{is_shared, note_changed_user, note_differ};
use crate::program::process;
use crate::program::results::errno;
use crate::served::{cwd, refuse};
use forebay_client::dead_end;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs, thread_fs};
use forebay_store::process::thread_ids::{fsuid, thread_count};

/// Takes over a change of the user namespace. (A process with several threads can't change it.)
fn changed(fs: &Fs) {
    if !is_shared() {
        fs.refresh_user_namespace();
    } else if process::in_vfork_child() {
        vfork_child_apart(fs);
    }
}

/// Records that only this thread is left: in a forked child (`apart`: in a new user namespace), or
/// after a vfork child has ended.
pub fn alone_again(fs: &Fs, apart: bool) {
    if (apart || fs.do_credentials_differ()) && !is_shared() {
        note_differ(false);
        fs.refresh_user_namespace();
    }
}

/// Records that a vfork child begins in a new user namespace.
pub fn vfork_child_apart(fs: &Fs) {
    note_differ(true);
    fs.credentials_differ(true);
}

/// The user for files that the call gives the calling thread; u32::MAX if it leaves that user as it
/// is. None: the call changes something else than users.
fn new_user(nr: i64, a: &[i64; 6]) -> Option<u32> {
    // The kernel ignores the upper half of the arguments.
    match nr {
        libc::SYS_setuid | libc::SYS_setfsuid => Some(a[0] as u32),
        libc::SYS_setreuid | libc::SYS_setresuid => Some(a[1] as u32),
        _ => None,
    }
}

/// Makes a call that changes user, groups or capabilities.
pub unsafe fn change(nr: i64, a: &[i64; 6]) -> i64 {
    // The pool and all of its files are opened first: after the change, the user may have no
    // permission to open them.
    let user = new_user(nr, a);
    let stays = user.is_some_and(|user| user == u32::MAX || user == fsuid());
    if user.is_some() && !stays {
        note_changed_user();
    }
    // A vfork child only executes another program, which opens the pool itself.
    if pool::open_fs().is_none()
        && user.is_some()
        && !stays
        && !process::in_vfork_child()
        && pool::is_owner(fsuid())
    {
        // The program's first operation in the pool reports a failure.
        let _ = pool::fs();
    }
    if let Some(fs) = pool::open_fs().filter(|_| !stays) {
        pool::open_all();
        cwd::prepare(fs);
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(nr, *a) };
    match pool::open_fs() {
        Some(fs) if is_shared() => {
            note_differ(true);
            fs.credentials_differ(false);
        }
        Some(fs) => fs.refresh_credentials(),
        None => note_differ(is_shared()),
    }
    result
}

/// Serves unshare.
pub fn unshare(a: &[i64; 6]) -> i64 {
    let has = |flags: i32| a[0] & i64::from(flags) != 0;
    if let Err(e) = refuse::unshare(a) {
        return e;
    }
    // A new mount namespace comes with a separate working directory and umask.
    let own_fs = has(libc::CLONE_FS | libc::CLONE_NEWNS);
    let splits = own_fs && !process::in_vfork_child() && thread_count() > 1;
    let own = splits.then(thread_fs::reserve).flatten();
    if splits && own.is_none() {
        return errno(Errno::NOMEM);
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(libc::SYS_unshare, *a) };
    match (own, pool::open_fs()) {
        (Some(own), _) if result != 0 => thread_fs::give_back(own),
        (Some(own), Some(fs)) => fs.process().begin_own_fs(own),
        (Some(own), None) => thread_fs::begin(own, 0, 0),
        (None, _) => {}
    }
    let Some(fs) = pool::open_fs().filter(|_| result == 0) else {
        return result;
    };
    if has(libc::CLONE_NEWUSER) {
        changed(fs);
    }
    result
}

/// Serves setns.
pub unsafe fn setns(a: &[i64; 6]) -> i64 {
    if fds::pool_object(a[0] as i32).is_some() {
        return errno(Errno::INVAL);
    }
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(libc::SYS_setns, *a) };
    if let Some(fs) = pool::open_fs().filter(|_| result == 0) {
        changed(fs);
        // setns makes the root of the new mount namespace the working directory.
        if working_dir::may_be_inside() && !dead_end::is_here() {
            cwd::leave();
        }
    }
    result
}

//! Serving of system calls that take a path: a function runs on the object in the pool to which the
//! path leads ([`on_path`]), or the kernel makes the call.
//!
//! A symbolic link may lead out of the pool and back again: then the new path is located, up to
//! [`MAX_DETOURS`] times. No signal handler runs meanwhile.

use crate::paths::links::{self, Onwards};
use crate::paths::locate::{self, Where};
use crate::pool::working_dir;
use crate::program::results;
use forebay_intercept::{Call, PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, Goal, ObjectId, Place};
use forebay_store::process::Critical;
use std::ffi::CString;

/// Maximum number of times that a path may lead out of the pool and back.
const MAX_DETOURS: usize = 8;

/// A system call that takes a path: its number and arguments.
#[derive(Clone, Copy)]
pub struct PathCall<'a> {
    pub nr: i64,
    pub args: &'a [i64; 6],
    /// Number of times that the call's path has gone into the pool and out of it again.
    pub crossings: u32,
}

/// Runs `f` on the place to which a path argument leads. Returns [`PASS`] if the path isn't in the
/// pool. `dirfd`: index of the directory descriptor, if there is one; `path`: index of the path.
///
/// # Safety
/// The arguments are those of a system call of the program.
pub unsafe fn on_path(
    call: PathCall<'_>,
    dirfd: Option<usize>,
    path: usize,
    goal: impl Into<Goal>,
    mut f: impl FnMut(&Fs, &Place) -> Result<i64, Errno>,
) -> i64 {
    let goal = goal.into();
    let follow = goal.follow;
    let mut args = *call.args;
    // The path outside the pool to which a symbolic link leads; that path may lead back into the
    // pool.
    let mut outside: Option<CString> = None;
    for _ in 0..MAX_DETOURS {
        let base = match (dirfd, &outside) {
            (Some(i), None) => args[i] as i32,
            _ => libc::AT_FDCWD,
        };
        // SAFETY: the path is the program's, or the C string in `outside`, which outlives the call.
        let located = unsafe { locate::locate(base, args[path]) };
        if matches!(located, Ok(Where::Kernel))
            && outside.is_none()
            && !working_dir::may_be_inside()
        {
            return PASS;
        }
        // `critical` is dropped last: until then no signal handler runs, and the thread can't be
        // cancelled.
        let critical = Critical::enter();
        let result = match located {
            Ok(Where::Pool(fs, base, p)) => fs.resolver().at(base, &p, goal, |place| f(fs, place)),
            Ok(Where::Descriptor(fs, open)) if follow == Follow::Yes => {
                f(fs, &fs.description(open).place()).map_err(Fail::Errno)
            }
            Ok(Where::Exe(fs, p)) if follow == Follow::Yes => {
                fs.resolver()
                    .at(ObjectId::ROOT, p, follow, |place| f(fs, place))
            }
            Ok(Where::Kernel | Where::Descriptor(..) | Where::Exe(..)) => {
                // SAFETY: the path is the program's, or the C string in `outside`.
                let cwd = unsafe { locate::working_directory(args[path]) };
                match cwd.filter(|_| follow == Follow::Yes) {
                    Some((fs, cwd)) => fs.resolver().at(cwd, b".", follow, |place| f(fs, place)),
                    None => {
                        drop(critical);
                        if outside.is_none() {
                            return PASS;
                        }
                        if let Some(i) = dirfd {
                            args[i] = i64::from(libc::AT_FDCWD);
                        }
                        // SAFETY: the program's call; only the path is replaced, by a C string that
                        // outlives the call.
                        return unsafe {
                            let result = raw(call.nr, args);
                            links::again(&Call { nr: call.nr, args }, result, call.crossings)
                        };
                    }
                }
            }
            Err(e) => Err(Fail::Errno(e)),
        };
        match result {
            Ok(value) => return value,
            Err(Fail::Errno(e)) => return results::errno(e),
            Err(Fail::Outside(to)) => match CString::new(to) {
                Ok(to) => args[path] = outside.insert(to).as_ptr() as i64,
                Err(_) => return results::errno(Errno::NOENT),
            },
            Err(Fail::Origin(to)) => match links::onwards(to, follow) {
                Ok(Onwards::Pool(to)) => args[path] = outside.insert(to).as_ptr() as i64,
                Ok(Onwards::Kernel(to)) => {
                    drop(critical);
                    // SAFETY: the program's call; only the path is replaced, by a C string that
                    // outlives the call.
                    return unsafe { again_outside(call, dirfd, path, to) };
                }
                Err(e) => return results::errno(e),
            },
        }
    }
    results::errno(Errno::LOOP)
}

/// Makes the call in the kernel with the absolute path `to` as its path.
///
/// # Safety
/// As for the call itself.
pub unsafe fn again_outside(
    call: PathCall<'_>,
    dirfd: Option<usize>,
    path: usize,
    to: CString,
) -> i64 {
    let mut args = *call.args;
    args[path] = to.as_ptr() as i64;
    if let Some(i) = dirfd {
        args[i] = i64::from(libc::AT_FDCWD);
    }
    // SAFETY: the caller passes the program's call; only the path is replaced, by a C string.
    unsafe {
        let result = raw(call.nr, args);
        links::again(&Call { nr: call.nr, args }, result, call.crossings)
    }
}

//! openat2: opens a path under rules for its resolution.

use crate::paths::PathCall;
use crate::paths::locate::{Where, locate};
use crate::pool::{self, fds, working_dir};
use crate::program::{results, settings, user};
use crate::served::{names, nodes};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, ObjectId, Rules};
use forebay_store::process::Critical;
use std::borrow::Cow;
use std::ffi::CString;

const NO_XDEV: u64 = 1;
const NO_MAGICLINKS: u64 = 2;
const NO_SYMLINKS: u64 = 4;
const BENEATH: u64 = 8;
const IN_ROOT: u64 = 16;
const CACHED: u64 = 32;

/// The flags of open(2).
const FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | 0o100_000
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;

/// The program's struct open_how.
struct How {
    flags: i32,
    mode: u32,
    resolve: u64,
}

/// # Safety
/// `at` points to `size` bytes.
unsafe fn read(at: i64, size: i64) -> Result<How, Errno> {
    if size < 24 {
        return Err(Errno::INVAL);
    }
    if size > 4096 {
        return Err(Errno::TOOBIG);
    }
    if !user::plausible(at) {
        return Err(Errno::FAULT);
    }
    // SAFETY: any bytes are valid; a bad address is caught.
    let bytes: Vec<u8> = unsafe { user::take_list(at, size as usize)? };
    if bytes[24..].iter().any(|&b| b != 0) {
        return Err(Errno::TOOBIG);
    }
    let word = |i: usize| u64::from_ne_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
    let [flags, mode, resolve] = std::array::from_fn(word);
    let making = libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY);
    let known = u64::from(FLAGS as u32);
    if flags & !known != 0
        || resolve >= 2 * CACHED
        || resolve & (BENEATH | IN_ROOT) == BENEATH | IN_ROOT
        || mode & !0o7777 != 0
        || mode != 0 && flags & making as u64 == 0
    {
        return Err(Errno::INVAL);
    }
    Ok(How {
        flags: flags as i32,
        mode: mode as u32,
        resolve,
    })
}

/// Returns the pool's directory for which a descriptor (or AT_FDCWD) stands.
fn base(dirfd: i32) -> Option<(&'static Fs, ObjectId)> {
    if dirfd == libc::AT_FDCWD {
        let fs = pool::open_fs()?;
        return Some((fs, working_dir::current(fs)?));
    }
    let (fs, open) = fds::pool_file(dirfd)?;
    Some((fs, fs.description(open).id()))
}

/// Serves openat2(directory, path, how, size).
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn open(p: PathCall<'_>) -> i64 {
    // SAFETY: the caller passes the arguments of the program's call.
    results::value(unsafe { open_as_told(p) })
}

unsafe fn open_as_told(p: PathCall<'_>) -> Result<i64, Errno> {
    let a = p.args;
    let dirfd = a[0] as i32;
    if !user::plausible(a[1]) {
        return Ok(PASS);
    }
    let from = base(dirfd);
    if from.is_none() && settings::settings().is_none() {
        return Ok(PASS);
    }
    // SAFETY: the caller passes the arguments of the program's call.
    let how = match unsafe { read(a[2], a[3]) } {
        Ok(how) => how,
        // The kernel returns the same error, whatever the path.
        Err(_) => return Ok(PASS),
    };
    // SAFETY: any byte is valid; a bad address is caught.
    let absolute = unsafe { user::take::<u8>(a[1])? } == b'/';
    if absolute && how.resolve & (BENEATH | IN_ROOT) != 0 {
        match from {
            // With IN_ROOT, an absolute path is resolved from the directory.
            Some((fs, dir)) if how.resolve & IN_ROOT != 0 => {
                // SAFETY: the program's path is a bad address, or a C string that isn't freed
                // meanwhile.
                let path = unsafe { user::text(a[1]) }.ok_or(Errno::FAULT)?;
                return under_rules(fs, dir, path, &how, a);
            }
            _ => return Ok(PASS),
        }
    }
    // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
    match unsafe { locate(dirfd, a[1])? } {
        Where::Kernel => Ok(PASS),
        _ if how.resolve == 0 => {
            let args = [a[0], a[1], how.flags.into(), how.mode.into(), 0, 0];
            let call = PathCall {
                nr: libc::SYS_openat,
                args: &args,
                crossings: p.crossings,
            };
            // SAFETY: the program is making this call; only its form is that of openat.
            Ok(unsafe { names::open(call, Some(0), 1) })
        }
        Where::Descriptor(..) if how.resolve & (NO_MAGICLINKS | NO_SYMLINKS) != 0 => {
            Err(Errno::LOOP)
        }
        // The path leads from outside into the pool.
        _ if (absolute || from.is_none()) && how.resolve & (NO_XDEV | BENEATH | IN_ROOT) != 0 => {
            Err(Errno::XDEV)
        }
        Where::Exe(..) => Ok(PASS),
        Where::Pool(fs, dir, path) => under_rules(fs, dir, path, &how, a),
        Where::Descriptor(fs, open) => {
            let mut fifo = None;
            let place = fs.description(open).place();
            names::open_place(fs, &place, how.flags, how.mode, &mut fifo)
        }
    }
}

fn under_rules(
    fs: &Fs,
    dir: ObjectId,
    path: Cow<'static, [u8]>,
    how: &How,
    a: &[i64; 6],
) -> Result<i64, Errno> {
    if how.resolve & CACHED != 0 {
        return Err(Errno::AGAIN);
    }
    let rules = Rules {
        beneath: how.resolve & BENEATH != 0,
        in_root: how.resolve & IN_ROOT != 0,
        no_links: how.resolve & NO_SYMLINKS != 0,
        inside_only: how.resolve & NO_XDEV != 0,
    };
    let flags = how.flags;
    let exclusive = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    let follow = if flags & libc::O_NOFOLLOW != 0 || exclusive {
        Follow::No
    } else {
        Follow::Yes
    };
    let mut fifo = None;
    let critical = Critical::enter();
    let result = fs.resolver().at_with(dir, &path, follow, rules, |place| {
        names::open_place(fs, place, flags, how.mode, &mut fifo)
    });
    drop(critical);
    match (result, fifo) {
        (Ok(_), Some((id, path))) => Ok(nodes::open_fifo(id, &path, flags)),
        (Ok(fd), None) => Ok(fd),
        (Err(Fail::Errno(e)), _) => Err(e),
        (Err(Fail::Outside(to) | Fail::Origin(to)), _) => {
            let to = CString::new(to).map_err(|_| Errno::NOENT)?;
            let at = i64::from(libc::AT_FDCWD);
            // SAFETY: the program's call; only the path is replaced, by a C string that outlives
            // the call.
            Ok(unsafe {
                raw(
                    libc::SYS_openat2,
                    [at, to.as_ptr() as i64, a[2], a[3], 0, 0],
                )
            })
        }
    }
}

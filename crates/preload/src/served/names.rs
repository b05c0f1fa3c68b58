//! System calls on names: open, mkdir, rename, link and their like.

use crate::map;
use crate::paths::links::Onwards;
use crate::paths::locate::{Where, locate};
use crate::paths::{PathCall, links, on_path, prefix};
use crate::pool::{self, fds, umask, working_dir};
use crate::program::filter;
use crate::program::results::{errno, value};
use crate::program::user::{self, copy_cut};
use crate::served::{fd_table, nodes, stat};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, Goal, ObjectId, Place, RenameMode};
use forebay_store::process::Critical;
use std::ffi::CString;

/// Most times that a path may lead to the origin and back.
const MAX_DETOURS: usize = 8;

/// open, creat, openat: arguments as openat's.
pub unsafe fn open(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (flags, mode) = match p.nr {
        libc::SYS_creat => (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, a[1]),
        libc::SYS_open => (a[1] as i32, a[2]),
        _ => (a[2] as i32, a[3]),
    };
    // SAFETY: the program's own arguments; here and in all functions below.
    unsafe { open_with(p, dirfd, path, flags, mode as u32) }
}

unsafe fn open_with(
    p: PathCall<'_>,
    dirfd: Option<usize>,
    path: usize,
    flags: i32,
    mode: u32,
) -> i64 {
    if forebay_store::lmdb::is_opening() {
        // LMDB's own files: out of the program's sight.
        // SAFETY: LMDB's call.
        let fd = unsafe { raw(p.nr, *p.args) };
        return lift(fd);
    }
    let mut fifo = None;
    // SAFETY: see open.
    let result = unsafe {
        on_path(p, dirfd, path, Goal::of_open(flags), |fs, place| {
            open_place(fs, place, flags, mode, &mut fifo)
        })
    };
    match fifo {
        Some((id, path)) => nodes::open_fifo(id, &path, flags),
        None => result,
    }
}

/// Opens what is at a place; a FIFO is left to be opened by the caller, out of the section in
/// which signals are held back.
pub fn open_place(
    fs: &Fs,
    place: &Place,
    flags: i32,
    mode: u32,
    fifo: &mut Option<(ObjectId, CString)>,
) -> Result<i64, Errno> {
    *fifo = fs.fifo(place, flags)?;
    if fifo.is_some() {
        return Ok(0);
    }
    let mode = if flags & (libc::O_CREAT | libc::O_TMPFILE) != 0 {
        mode & 0o7777 & !umask::current(fs)
    } else {
        0
    };
    let open = fs.open_place(place, flags, mode)?;
    let cut = flags & libc::O_TRUNC != 0;
    fs.description(open)
        .tell_opened(cut && place.existing().is_ok());
    if cut {
        map::after_cut(fs, open, 0);
    }
    fd_table::install(fs, open, flags & libc::O_CLOEXEC != 0).map(i64::from)
}

fn lift(fd: i64) -> i64 {
    use rustix::fd::{FromRawFd, IntoRawFd, OwnedFd};
    if fd < 0 {
        return fd;
    }
    // SAFETY: just opened, nobody else's.
    let lifted = forebay_media::lift(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    let fd = lifted.into_raw_fd();
    filter::watch(fd);
    i64::from(fd)
}

/// mkdir, mkdirat.
pub unsafe fn mkdir(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let mode = a[path + 1] as u32;
    // SAFETY: see open.
    unsafe {
        on_path(p, dirfd, path, Goal::DIRECTORY, |fs, place| {
            fs.make_dir(place, mode & 0o7777 & !umask::current(fs))
                .map(|()| 0)
        })
    }
}

/// mknod, mknodat.
pub unsafe fn mknod(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (mode, dev) = (a[path + 1] as u32, a[path + 2] as u64);
    // SAFETY: see open.
    unsafe {
        on_path(p, dirfd, path, Follow::No, |fs, place| {
            fs.make_node(place, mode & !umask::current(fs), dev)
                .map(|_| 0)
        })
    }
}

/// unlink, rmdir, unlinkat.
pub unsafe fn unlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let dir = p.nr == libc::SYS_rmdir
        || p.nr == libc::SYS_unlinkat && a[2] as i32 & libc::AT_REMOVEDIR != 0;
    // The kernel says EINVAL, whatever the path; here and below.
    if p.nr == libc::SYS_unlinkat && a[2] as i32 & !libc::AT_REMOVEDIR != 0 {
        return PASS;
    }
    // SAFETY: see open.
    unsafe {
        on_path(p, dirfd, path, Follow::No, |fs, place| {
            if dir {
                fs.remove_dir(place)
            } else {
                fs.remove_file(place)
            }
            .map(|()| 0)
        })
    }
}

/// symlink, symlinkat.
pub unsafe fn symlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    if !user::plausible(a[0]) {
        return PASS; // The kernel says EFAULT.
    }
    // SAFETY: see open.
    unsafe {
        on_path(p, dirfd, path, Follow::No, |fs, place| {
            let target = user::text(a[0]).ok_or(Errno::FAULT)?;
            fs.make_symlink(&target, place).map(|()| 0)
        })
    }
}

/// readlink, readlinkat.
pub unsafe fn readlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (buffer, size) = (a[path + 1], a[path + 2]);
    // SAFETY: see open.
    unsafe {
        if dirfd.is_some() && stat::is_empty(a[path]) {
            // A symbolic link opened with O_PATH.
            return match fds::pool_file(a[0] as i32) {
                Some((fs, open)) => {
                    let place = fs.description(open).place();
                    value(
                        fs.read_symlink(&place)
                            .map_err(|_| Errno::NOENT)
                            .map(|t| copy_cut(&t, buffer, size as usize)),
                    )
                }
                None => PASS,
            };
        }
        let base = dirfd.map_or(libc::AT_FDCWD, |i| a[i] as i32);
        match locate(base, a[path]) {
            Ok(Where::Descriptor(fs, open)) => {
                return value(fs.path_of_open(open).map(|p| {
                    let full = prefix::visible(fs, &p);
                    copy_cut(&full, buffer, size as usize)
                }));
            }
            Ok(Where::Exe(fs, inside)) => {
                return copy_cut(&prefix::visible(fs, inside), buffer, size as usize);
            }
            Ok(Where::Kernel) => return readlink_cwd(a[path], buffer, size),
            _ => {}
        }
        if size <= 0 {
            return errno(Errno::INVAL);
        }
        on_path(p, dirfd, path, Follow::No, |fs, place| {
            Ok(copy_cut(&fs.read_symlink(place)?, buffer, size as usize))
        })
    }
}

/// `/proc/self/cwd` with the working directory in the pool.
unsafe fn readlink_cwd(path: i64, buffer: i64, size: i64) -> i64 {
    // SAFETY: the program's path; null was sorted out by locate, but may come here.
    let is_cwd = unsafe { user::text(path) }.is_some_and(|p| *p == *b"/proc/self/cwd");
    if is_cwd
        && let Some(fs) = pool::open_fs()
        && let Some(cwd) = working_dir::current(fs)
    {
        // SAFETY: the program's buffer.
        return value(
            fs.cluster()
                .path_of(cwd)
                .map(|p| unsafe { copy_cut(&prefix::visible(fs, &p), buffer, size as usize) }),
        );
    }
    PASS
}

/// One end of a rename or link.
enum End {
    Kernel,
    Inside(&'static Fs, Box<Place>),
    Outside(Vec<u8>),
    /// /proc/self/fd/N of ours.
    Open(&'static Fs, u32),
}

unsafe fn end(dirfd: i32, path: i64, goal: impl Into<Goal>) -> Result<End, Errno> {
    // SAFETY: passed on.
    unsafe { end_after(0, dirfd, path, goal.into()) }
}

/// As [`end`], after a path has led to the origin and back so many times.
unsafe fn end_after(turns: usize, dirfd: i32, path: i64, goal: Goal) -> Result<End, Errno> {
    // SAFETY: the program's path; here and below.
    if unsafe { user::path(path) }.is_none() {
        return Err(Errno::FAULT);
    }
    // SAFETY: as above.
    Ok(match unsafe { locate(dirfd, path)? } {
        Where::Kernel | Where::Exe(..) => End::Kernel,
        Where::Descriptor(fs, open) => End::Open(fs, open),
        Where::Pool(fs, base, p) => match fs.walk_for(base, &p, goal) {
            Ok(place) => End::Inside(fs, Box::new(place)),
            Err(Fail::Errno(e)) => return Err(e),
            Err(Fail::Outside(to)) => End::Outside(to),
            Err(Fail::Origin(to)) => match links::onwards(to, goal.follow == Follow::Yes)? {
                Onwards::Kernel(to) => End::Outside(to.into_bytes()),
                Onwards::Pool(_) if turns == MAX_DETOURS => return Err(Errno::LOOP),
                Onwards::Pool(to) => {
                    let path = to.as_ptr() as i64;
                    // SAFETY: a C string that outlives the walk.
                    return unsafe { end_after(turns + 1, libc::AT_FDCWD, path, goal) };
                }
            },
        },
    })
}

/// The new name of what is at `source`.
unsafe fn new_end(source: &Result<End, Errno>, dirfd: i32, path: i64) -> Result<End, Errno> {
    let is_dir = match source {
        Ok(End::Inside(_, place)) => place.existing().is_ok_and(|e| e.kind == libc::S_IFDIR),
        _ => false,
    };
    let goal = match is_dir {
        true => Goal::DIRECTORY,
        false => Follow::No.into(),
    };
    // SAFETY: passed on.
    unsafe { end(dirfd, path, goal) }
}

/// If one end is in the pool and the other isn't: the latter may be so through a link.
/// `other`: its descriptor, path, and whether a link is followed.
unsafe fn meet(found: &mut End, other: &End, (dirfd, path, follow): (i32, i64, Follow)) {
    let is_met = match (&*found, other) {
        (End::Kernel, End::Inside(..) | End::Open(..)) => true,
        // The other one may be at the origin.
        (End::Kernel, End::Outside(_)) => links::is_shadowing(),
        _ => false,
    };
    if !is_met {
        return;
    }
    // SAFETY: the program's path, then one of ours that outlives its use.
    unsafe {
        let follows = follow == Follow::Yes;
        let inside = user::path(path).and_then(|text| match other {
            End::Outside(_) => links::shadowed(dirfd, text, follows),
            _ => links::into_pool(dirfd, text, follows),
        });
        if let Some(text) = inside
            && let Ok(new) = end(libc::AT_FDCWD, text.as_ptr() as i64, follow)
        {
            *found = new;
        }
    }
}

/// Makes the call in the kernel with the ends that lead out of the pool replaced.
unsafe fn two_outside(p: PathCall<'_>, at: [(Option<usize>, usize); 2], ends: [End; 2]) -> i64 {
    let mut args = *p.args;
    let mut texts = Vec::new();
    for ((dirfd, path), end) in at.into_iter().zip(ends) {
        let End::Outside(to) = end else { continue };
        let Ok(text) = CString::new(to) else {
            return errno(Errno::NOENT);
        };
        args[path] = text.as_ptr() as i64;
        if let Some(i) = dirfd {
            args[i] = i64::from(libc::AT_FDCWD);
        }
        texts.push(text);
    }
    // SAFETY: the program's own call; the texts live until here.
    unsafe { raw(p.nr, args) }
}

/// rename, renameat, renameat2.
pub unsafe fn rename(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let (from, to) = match p.nr {
        libc::SYS_rename => ((None, 0), (None, 1)),
        _ => ((Some(0), 1), (Some(2), 3)),
    };
    let flags = if p.nr == libc::SYS_renameat2 {
        a[4] as u32
    } else {
        0
    };
    let fd = |i: Option<usize>| i.map_or(libc::AT_FDCWD, |i| a[i] as i32);
    for _ in 0..10_000 {
        // SAFETY: see open.
        let ends = unsafe {
            let source = end(fd(from.0), a[from.1], Follow::No);
            let target = new_end(&source, fd(to.0), a[to.1]);
            match (source, target) {
                (Err(e), _) | (_, Err(e)) => return errno(e),
                (Ok(mut s), Ok(mut t)) => {
                    meet(&mut s, &t, (fd(from.0), a[from.1], Follow::No));
                    meet(&mut t, &s, (fd(to.0), a[to.1], Follow::No));
                    [s, t]
                }
            }
        };
        match ends {
            [End::Inside(fs, source), End::Inside(_, target)] => {
                let mode = match flags {
                    0 => RenameMode::Replace,
                    libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                    libc::RENAME_EXCHANGE => RenameMode::Exchange,
                    _ => return errno(Errno::INVAL),
                };
                let _once = Critical::enter();
                match fs.rename_places(&source, &target, mode) {
                    Err(Errno::STALE) => {}
                    other => return value(other.map(|()| 0)),
                }
            }
            [End::Kernel, End::Kernel] => return PASS,
            [End::Inside(_, p), _] => {
                return errno(p.existing().err().unwrap_or(Errno::XDEV));
            }
            [_, End::Inside(..)] | [End::Open(..), _] | [_, End::Open(..)] => {
                return errno(Errno::XDEV);
            }
            // SAFETY: see open.
            ends => return unsafe { two_outside(p, [from, to], ends) },
        }
    }
    errno(Errno::BUSY)
}

/// link, linkat.
pub unsafe fn link(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let at = p.nr == libc::SYS_linkat;
    let (from, to) = if at {
        ((Some(0), 1), (Some(2), 3))
    } else {
        ((None, 0), (None, 1))
    };
    let flags = if at { a[4] as i32 } else { 0 };
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return PASS;
    }
    let fd = |i: Option<usize>| i.map_or(libc::AT_FDCWD, |i| a[i] as i32);
    // SAFETY: see open.
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && unsafe { stat::is_empty(a[1]) };
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        Follow::Yes
    } else {
        Follow::No
    };
    for _ in 0..10_000 {
        // SAFETY: see open.
        let ends = unsafe {
            let source = if by_descriptor {
                match fds::pool_file(a[0] as i32) {
                    Some((fs, open)) => Ok(End::Open(fs, open)),
                    None => Ok(End::Kernel),
                }
            } else {
                end(fd(from.0), a[from.1], follow)
            };
            match (source, end(fd(to.0), a[to.1], Follow::No)) {
                (Err(e), _) | (_, Err(e)) => return errno(e),
                (Ok(mut s), Ok(mut t)) => {
                    meet(&mut s, &t, (fd(from.0), a[from.1], follow));
                    meet(&mut t, &s, (fd(to.0), a[to.1], Follow::No));
                    [s, t]
                }
            }
        };
        let result = match ends {
            [End::Inside(fs, source), End::Inside(_, target)] => fs.make_link_to(&source, &target),
            [End::Open(..), End::Inside(..)] if follow == Follow::No && !by_descriptor => {
                Err(Errno::XDEV)
            }
            [End::Open(fs, open), End::Inside(_, target)] => fs.description(open).link(&target),
            [End::Kernel, End::Kernel] => return PASS,
            [End::Inside(..) | End::Open(..), _] | [_, End::Inside(..) | End::Open(..)] => {
                Err(Errno::XDEV)
            }
            // SAFETY: see open.
            ends => return unsafe { two_outside(p, [from, to], ends) },
        };
        if result != Err(Errno::STALE) {
            return value(result.map(|()| 0));
        }
    }
    errno(Errno::BUSY)
}

//! System calls on names: open, mkdir, rename, link and similar calls.

use crate::map;
use crate::paths::links::Onwards;
use crate::paths::locate::{Where, locate};
use crate::paths::{PathCall, links, on_path, prefix};
use crate::pool::{self, fds, umask, working_dir};
use crate::program::filter;
use crate::program::results::{self, errno, value};
use crate::program::user::{self, copy_cut};
use crate::served::{cwd, fd_table, leases, nodes, stat};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, Goal, ObjectId, PATH_MAX, Place, RenameMode};
use forebay_store::process::Critical;
use std::ffi::CString;

/// Maximum number of times that a path may lead to the origin and back.
const MAX_DETOURS: usize = 8;

/// Serves open, creat and openat.
pub unsafe fn open(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (flags, mode) = match p.nr {
        libc::SYS_creat => (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, a[1]),
        libc::SYS_open => (a[1] as i32, a[2]),
        _ => (a[2] as i32, a[3]),
    };
    const OF_PATHS: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let has = |flag: i32| flags & flag == flag;
    let flags = if has(libc::O_PATH) {
        flags & OF_PATHS
    } else {
        flags
    };
    // Errors that don't depend on the path.
    let reads_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    let unnamed = flags & libc::O_TMPFILE & !libc::O_DIRECTORY != 0;
    if has(libc::O_DIRECTORY | libc::O_CREAT)
        || unnamed && (!has(libc::O_TMPFILE) || has(libc::O_CREAT) || reads_only)
    {
        return errno(Errno::INVAL);
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
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
        // LMDB's own files get high descriptor numbers, which the program doesn't use.
        // SAFETY: LMDB makes this call; its arguments are passed on unchanged.
        let fd = unsafe { raw(p.nr, *p.args) };
        return lift(fd);
    }
    let mut fifo = None;
    // No file can be made at a path that ends in `/`, whether or not a link is followed.
    // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
    let is_directory = || unsafe { user::path(p.args[path]) }.is_some_and(|p| p.ends_with(b"/"));
    let goal = if flags & libc::O_CREAT != 0 && is_directory() {
        Follow::Never.into()
    } else {
        Goal::of_open(flags)
    };
    // SAFETY: the caller passes the arguments of a call that the program makes.
    let result = unsafe {
        on_path(p, dirfd, path, goal, |fs, place| {
            open_place(fs, place, flags, mode, &mut fifo)
        })
    };
    match fifo {
        Some((id, path)) => nodes::open_fifo(id, &path, flags),
        None => result,
    }
}

/// Opens the object at `place`. A FIFO is left for the caller to open, after the section in which
/// signals are held back.
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
    let open = leases::note(fs.open_place(place, flags, mode))?;
    let cut = flags & libc::O_TRUNC != 0;
    fs.description(open)
        .notify_opened(cut && place.existing().is_ok());
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
    // SAFETY: `fd` was just opened, and nothing else owns it.
    let lifted = forebay_runtime::fd::lift(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    let fd = lifted.into_raw_fd();
    filter::watch(fd);
    i64::from(fd)
}

/// Serves mkdir and mkdirat.
pub unsafe fn mkdir(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let mode = a[path + 1] as u32;
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, dirfd, path, Goal::DIRECTORY, |fs, place| {
            fs.make_dir(place, mode & 0o7777 & !umask::current(fs))
                .map(|()| 0)
        })
    }
}

/// Serves mknod and mknodat.
pub unsafe fn mknod(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (mode, dev) = (a[path + 1] as u32, a[path + 2] as u64);
    // Errors that don't depend on the path.
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK => {}
        libc::S_IFDIR => return errno(Errno::PERM),
        _ => return errno(Errno::INVAL),
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, dirfd, path, Follow::Never, |fs, place| {
            fs.make_node(place, mode & !umask::current(fs), dev)
                .map(|_| 0)
        })
    }
}

/// Serves unlink, rmdir and unlinkat.
pub unsafe fn unlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let dir = p.nr == libc::SYS_rmdir
        || p.nr == libc::SYS_unlinkat && a[2] as i32 & libc::AT_REMOVEDIR != 0;
    // The kernel returns EINVAL, whatever the path.
    if p.nr == libc::SYS_unlinkat && a[2] as i32 & !libc::AT_REMOVEDIR != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, dirfd, path, Follow::Never, |fs, place| {
            if dir {
                let is_there = place.existing().is_ok_and(|e| e.kind == libc::S_IFDIR);
                if is_there && cwd::is_mount_point(fs, place) {
                    return Err(Errno::BUSY);
                }
                fs.remove_dir(place)
            } else {
                fs.remove_file(place)
            }
            .map(|()| 0)
        })
    }
}

/// Serves symlink and symlinkat.
pub unsafe fn symlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        // Errors that don't depend on the new path.
        let target = match user::path(p.args[0]) {
            None => return errno(Errno::FAULT),
            Some(b"") => return errno(Errno::NOENT),
            Some(target) if target.len() >= PATH_MAX => return errno(Errno::NAMETOOLONG),
            Some(target) => target,
        };
        on_path(p, dirfd, path, Follow::Never, |fs, place| {
            fs.make_symlink(target, place).map(|()| 0)
        })
    }
}

/// Serves readlink and readlinkat.
pub unsafe fn readlink(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    // The size is an int, as in the kernel.
    let (buffer, size) = (a[path + 1], i64::from(a[path + 2] as i32));
    if size <= 0 {
        return errno(Errno::INVAL);
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if dirfd.is_some() && stat::is_empty(a[path]) {
            // Reads a symbolic link that was opened with O_PATH.
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
        on_path(p, dirfd, path, Follow::No, |fs, place| {
            Ok(copy_cut(&fs.read_symlink(place)?, buffer, size as usize))
        })
    }
}

/// Reads the link `/proc/self/cwd` if the working directory is in the pool.
unsafe fn readlink_cwd(path: i64, buffer: i64, size: i64) -> i64 {
    // SAFETY: the program's path is null, a bad address, or a C string that isn't freed meanwhile.
    let is_cwd = unsafe { user::text(path) }.is_some_and(|p| *p == *b"/proc/self/cwd");
    if is_cwd
        && let Some(fs) = pool::open_fs()
        && let Some(cwd) = working_dir::current(fs)
    {
        // SAFETY: the program passed a buffer of `size` bytes; a bad address is caught.
        return value(
            fs.cluster()
                .namespace()
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
    /// /proc/self/fd/N, where N is a pool descriptor.
    Open(&'static Fs, u32),
}

/// Whether the program's path has PATH_MAX bytes or more, or its address is bad.
///
/// # Safety
/// `path` is a path of the program.
unsafe fn is_too_long(path: i64) -> bool {
    // SAFETY: the caller passes a path of the program.
    unsafe { user::path(path) }.is_none_or(|path| path.len() >= PATH_MAX)
}

/// The object that must exist at a path outside the pool.
#[derive(Clone, Copy)]
enum Look {
    /// The directory that contains the last name.
    Directory,
    /// The directory that contains the last name; the last name itself must not exist.
    New,
    /// Any object; a symbolic link isn't followed.
    There,
    /// Any object; a symbolic link is followed.
    Followed,
    /// An open file, given by its descriptor: the path is empty.
    Descriptor,
}

impl End {
    /// Returns the kernel's error for a path outside, when the other path is in the pool. That
    /// error must come before EXDEV, on which programs copy.
    ///
    /// # Safety
    /// `path` is the program's path from which this end was found.
    unsafe fn look_up_outside(&self, dirfd: i32, path: i64, look: Look) -> Result<(), Errno> {
        let path = match self {
            // SAFETY: the caller passes the program's path.
            End::Kernel => unsafe { user::path(path) }.ok_or(Errno::FAULT)?,
            End::Outside(path) => path,
            End::Inside(..) | End::Open(..) => return Ok(()),
        };
        let is_there = |path: &[u8], flags: i32| {
            let path = CString::new(path).map_err(|_| Errno::NOENT)?;
            let (at, flags) = (path.as_ptr() as i64, i64::from(flags));
            let args = [dirfd.into(), at, libc::F_OK.into(), flags, 0, 0];
            // SAFETY: `path` is a C string that outlives the call.
            results::check(unsafe { raw(libc::SYS_faccessat2, args) }).map(|_| ())
        };
        let no_follow = libc::AT_SYMLINK_NOFOLLOW;
        match look {
            Look::Followed => return is_there(path, 0),
            Look::There => return is_there(path, no_follow),
            Look::Descriptor => return is_there(path, libc::AT_EMPTY_PATH),
            Look::Directory | Look::New => {}
        }
        let end = path.len() - path.iter().rev().take_while(|&&b| b == b'/').count();
        let cut = path[..end].iter().rposition(|&b| b == b'/');
        let directory = cut.map_or(&b""[..], |cut| &path[..=cut]);
        is_there(&[directory, b"."].concat(), 0)?;
        match look {
            Look::New if is_there(&path[..end], no_follow).is_ok() => Err(Errno::EXIST),
            _ => Ok(()),
        }
    }
}

unsafe fn end(dirfd: i32, path: i64, goal: impl Into<Goal>) -> Result<End, Errno> {
    // SAFETY: the caller passes a bad address, or a C string that outlives the call.
    unsafe { end_after(0, dirfd, path, goal.into()) }
}

/// Finds one end of a rename or link, like [`end`], after its path has led to the origin and back
/// `turns` times.
unsafe fn end_after(turns: usize, dirfd: i32, path: i64, goal: Goal) -> Result<End, Errno> {
    // SAFETY: the caller passes a bad address, or a C string that outlives the call.
    match unsafe { user::path(path) } {
        None => return Err(Errno::FAULT),
        Some(b"") => return Err(Errno::NOENT),
        Some(_) => {}
    }
    // SAFETY: the caller passes a C string that outlives the call.
    Ok(match unsafe { locate(dirfd, path)? } {
        Where::Kernel | Where::Exe(..) => End::Kernel,
        Where::Descriptor(fs, open) => End::Open(fs, open),
        Where::Pool(fs, base, p) => match fs.resolver().walk_for(base, &p, goal) {
            Ok(place) => End::Inside(fs, Box::new(place)),
            Err(Fail::Errno(e)) => return Err(e),
            Err(Fail::Outside(to)) => End::Outside(to),
            Err(Fail::Origin(to)) => match links::onwards(to, goal.follow)? {
                Onwards::Kernel(to) => End::Outside(to.into_bytes()),
                Onwards::Pool(_) if turns == MAX_DETOURS => return Err(Errno::LOOP),
                Onwards::Pool(to) => {
                    let path = to.as_ptr() as i64;
                    // SAFETY: `to` is a C string that outlives the walk.
                    return unsafe { end_after(turns + 1, libc::AT_FDCWD, path, goal) };
                }
            },
        },
    })
}

/// Finds the new name for the object at `source`.
unsafe fn new_end(source: &Result<End, Errno>, dirfd: i32, path: i64) -> Result<End, Errno> {
    let is_dir = match source {
        Ok(End::Inside(_, place)) => place.existing().is_ok_and(|e| e.kind == libc::S_IFDIR),
        _ => false,
    };
    let goal = if is_dir {
        Goal::DIRECTORY
    } else {
        Follow::Never.into()
    };
    // SAFETY: the caller passes a bad address, or a C string that outlives the call.
    unsafe { end(dirfd, path, goal) }
}

/// Replaces `found`, a path outside, if a link leads from it into the pool and `other` is in the
/// pool. The tuple describes `found`: the descriptor, the path, and whether links are followed.
unsafe fn meet(found: &mut End, other: &End, (dirfd, path, follow): (i32, i64, Follow)) {
    let is_met = match (&*found, other) {
        (End::Kernel, End::Inside(..) | End::Open(..)) => true,
        // `other` may be a path of the origin.
        (End::Kernel, End::Outside(_)) => links::is_shadowing(),
        _ => false,
    };
    if !is_met {
        return;
    }
    // SAFETY: `path` is the program's; the path used after it is a C string that outlives its use.
    unsafe {
        let inside = user::path(path).and_then(|text| match other {
            End::Outside(_) => links::shadowed(dirfd, text, follow),
            _ => links::into_pool(dirfd, text, follow),
        });
        if let Some(text) = inside
            && let Ok(new) = end(libc::AT_FDCWD, text.as_ptr() as i64, follow)
        {
            *found = new;
        }
    }
}

/// Makes the call in the kernel, with new paths for the ends that lead out of the pool.
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
    // SAFETY: the program's call; only paths are replaced, by C strings that outlive the call.
    unsafe { raw(p.nr, args) }
}

/// Serves rename, renameat and renameat2.
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
    // Errors that don't depend on the paths.
    let mode = match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        // RENAME_WHITEOUT between two paths of the pool fails with EINVAL below.
        libc::RENAME_WHITEOUT => RenameMode::Replace,
        _ => return errno(Errno::INVAL),
    };
    let fd = |i: Option<usize>| i.map_or(libc::AT_FDCWD, |i| a[i] as i32);
    for _ in 0..10_000 {
        // SAFETY: the caller passes the arguments of a call that the program makes.
        let ends = unsafe {
            let source = end(fd(from.0), a[from.1], Follow::Never);
            let target = new_end(&source, fd(to.0), a[to.1]);
            match (source, target) {
                // A last name that is too long is reported only after errors of the other path.
                (Err(Errno::NAMETOOLONG), Err(e)) if !is_too_long(a[from.1]) => return errno(e),
                (Err(e @ Errno::NAMETOOLONG), Ok(t)) if !is_too_long(a[from.1]) => {
                    if matches!(&t, End::Inside(_, place) if matches!(**place, Place::Dir { .. })) {
                        return errno(Errno::BUSY);
                    }
                    let outside = t.look_up_outside(fd(to.0), a[to.1], Look::Directory);
                    return errno(outside.err().unwrap_or(e));
                }
                (Err(e), _) => return errno(e),
                (Ok(End::Inside(_, place)), Err(e @ Errno::NAMETOOLONG))
                    if !is_too_long(a[to.1]) =>
                {
                    return errno(match *place {
                        Place::Dir { .. } => Errno::BUSY,
                        _ if place.existing() == Err(Errno::NOENT) => Errno::NOENT,
                        _ => e,
                    });
                }
                (Ok(s), Err(e)) => {
                    let outside = s.look_up_outside(fd(from.0), a[from.1], Look::Directory);
                    return errno(outside.err().unwrap_or(e));
                }
                (Ok(mut s), Ok(mut t)) => {
                    meet(&mut s, &t, (fd(from.0), a[from.1], Follow::Never));
                    meet(&mut t, &s, (fd(to.0), a[to.1], Follow::Never));
                    [s, t]
                }
            }
        };
        match ends {
            [End::Inside(fs, source), End::Inside(_, target)] => {
                if flags == libc::RENAME_WHITEOUT {
                    return errno(Errno::INVAL);
                }
                let _once = Critical::enter();
                match fs.rename_places(&source, &target, mode) {
                    Err(Errno::STALE) => {}
                    other => return value(other.map(|()| 0)),
                }
            }
            [End::Kernel, End::Kernel] => return PASS,
            [End::Inside(_, p), other] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let outside = unsafe { other.look_up_outside(fd(to.0), a[to.1], Look::Directory) };
                return errno(outside.and(p.existing()).err().unwrap_or(Errno::XDEV));
            }
            [other, End::Inside(..)] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let outside =
                    unsafe { other.look_up_outside(fd(from.0), a[from.1], Look::Directory) };
                return errno(outside.err().unwrap_or(Errno::XDEV));
            }
            [End::Open(..), other] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let outside = unsafe { other.look_up_outside(fd(to.0), a[to.1], Look::Directory) };
                return errno(outside.err().unwrap_or(Errno::XDEV));
            }
            [other, End::Open(..)] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let outside =
                    unsafe { other.look_up_outside(fd(from.0), a[from.1], Look::Directory) };
                return errno(outside.err().unwrap_or(Errno::XDEV));
            }
            // SAFETY: the caller passes the arguments of a call that the program makes.
            ends => return unsafe { two_outside(p, [from, to], ends) },
        }
    }
    errno(Errno::BUSY)
}

/// Serves link and linkat.
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
    // SAFETY: the caller passes the arguments of a call that the program makes.
    let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && unsafe { stat::is_empty(a[1]) };
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        Follow::Yes
    } else {
        Follow::No
    };
    let look = match (by_descriptor, follow) {
        (true, _) => Look::Descriptor,
        (false, Follow::Yes) => Look::Followed,
        (false, _) => Look::There,
    };
    for _ in 0..10_000 {
        // SAFETY: the caller passes the arguments of a call that the program makes.
        let ends = unsafe {
            let source = if by_descriptor {
                match fds::pool_file(a[0] as i32) {
                    Some((fs, open)) => Ok(End::Open(fs, open)),
                    None => Ok(End::Kernel),
                }
            } else {
                end(fd(from.0), a[from.1], follow)
            };
            match (source, end(fd(to.0), a[to.1], Follow::Never)) {
                (Err(e), _) => return errno(e),
                (Ok(End::Inside(_, place)), Err(e)) => {
                    return errno(place.existing().err().unwrap_or(e));
                }
                (Ok(s), Err(e)) => {
                    let outside = s.look_up_outside(fd(from.0), a[from.1], look);
                    return errno(outside.err().unwrap_or(e));
                }
                (Ok(mut s), Ok(mut t)) => {
                    meet(&mut s, &t, (fd(from.0), a[from.1], follow));
                    meet(&mut t, &s, (fd(to.0), a[to.1], Follow::Never));
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
            [End::Inside(_, source), other] => {
                let new = || match &other {
                    End::Open(..) => Err(Errno::EXIST),
                    // SAFETY: this is the program's path, from which `other` was found.
                    other => unsafe { other.look_up_outside(fd(to.0), a[to.1], Look::New) },
                };
                source.existing().and_then(|_| new()).and(Err(Errno::XDEV))
            }
            [other, End::Inside(_, target)] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let old = unsafe { other.look_up_outside(fd(from.0), a[from.1], look) };
                old.and(match target.existing() {
                    Ok(_) => Err(Errno::EXIST),
                    Err(_) => Err(Errno::XDEV),
                })
            }
            [End::Open(..), other] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let new = unsafe { other.look_up_outside(fd(to.0), a[to.1], Look::New) };
                new.and(Err(Errno::XDEV))
            }
            [other, End::Open(..)] => {
                // SAFETY: this is the program's path, from which `other` was found.
                let old = unsafe { other.look_up_outside(fd(from.0), a[from.1], look) };
                old.and(Err(Errno::EXIST))
            }
            // SAFETY: the caller passes the arguments of a call that the program makes.
            ends => return unsafe { two_outside(p, [from, to], ends) },
        };
        if result != Err(Errno::STALE) {
            return value(result.map(|()| 0));
        }
    }
    errno(Errno::BUSY)
}

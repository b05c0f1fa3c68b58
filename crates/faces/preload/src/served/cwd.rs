//! The working directory: chdir, fchdir, getcwd, and the kernel's working directory while the
//! program's is in the pool.
//!
//! The kernel doesn't know a working directory in the pool. Such a directory is recorded in the
//! process area (`cwd`). Meanwhile the kernel's working directory is a dead end
//! ([`forebay_client::dead_end`]). An executed program that this library can't intercept finds
//! nothing there by a relative path, and can't create files outside the pool by mistake. Where the
//! pool is mounted, such a program gets the mount's directory ([`mounted`]).
//!
//! Order: entering the pool records the directory first and changes the kernel's afterwards;
//! leaving the pool is the other way round. So a relative path of another thread never leads to a
//! dead end in between.

use crate::paths::links::Onwards;
use crate::paths::locate::{self, Where, locate};
use crate::paths::prefix::visible;
use crate::paths::{PathCall, again_outside, links};
use crate::pool::{self, fds, working_dir};
use crate::program::results::{self, errno, value};
use crate::program::user::{self, copy_cut};
use crate::program::{process, settings, variables};
use forebay_client::dead_end;
use forebay_intercept::{Call, PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, ObjectId, PATH_MAX};
use forebay_runtime::fd::{Lent, Place};
use forebay_store::process::{Critical, ProcessLock};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SeekFrom};
use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// This process's dead end, made when it first enters a pool.
static HELD: Place = Place::empty();
/// Held while this process's working directory and the kernel's are made to agree.
static CHANGING: ProcessLock = ProcessLock::new();

/// File system type of FUSE (FUSE_SUPER_MAGIC).
const FUSE: i64 = 0x6573_5546;

/// Returns this process's dead end; makes it if necessary.
///
/// # Errors
/// Those of making the dead end.
fn dead_end_of(fs: &Fs) -> Result<Lent, Errno> {
    HELD.lend_or_open(|| dead_end::make(fs.pool().dir()))
}

/// Makes the dead end before the process may lose the right to make directories.
pub fn prepare(fs: &Fs) {
    // If the dead end can't be made now, it can't be made later; chdir reports that.
    let _ = dead_end_of(fs);
}

/// Makes a dead end the kernel's working directory.
fn go_to_dead_end(end: &Lent) -> Result<(), Errno> {
    let fd = end.as_raw_fd();
    // SAFETY: fchdir takes no pointer; a closed descriptor gives EBADF.
    results::check(unsafe { raw(libc::SYS_fchdir, [fd.into(), 0, 0, 0, 0, 0]) }).map(|_| ())
}

/// Makes the dead end the kernel's working directory again, after an exec that failed.
pub fn back_to_dead_end(fs: &Fs) {
    if !dead_end::is_here()
        && let Ok(end) = dead_end_of(fs)
    {
        let _ = go_to_dead_end(&end);
    }
}

/// Whether the process is still in the pool's directory `id` after an exec. A program that doesn't
/// see the pool may have run in between, with the same process id, and have changed its directory.
pub fn is_still_inside(fs: &Fs, id: ObjectId) -> bool {
    if dead_end::is_here() {
        return true;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let is_mounted =
        rustix::fs::open("/proc/self/cwd", flags, Mode::empty()).is_ok_and(|dir| is_ours(&dir, id));
    if is_mounted {
        back_to_dead_end(fs);
    }
    is_mounted
}

/// Takes over a working directory in the pool, if the process is still in it. Called in a program
/// started by one that doesn't see the pool, or by the command line.
pub fn recover() {
    if settings::settings().is_some_and(|s| s.shadows)
        && let Some(to) = links::shadowed(libc::AT_FDCWD, b".", Follow::Yes)
    {
        let args = [to.as_ptr() as i64, 0, 0, 0, 0, 0];
        let call = PathCall {
            nr: libc::SYS_chdir,
            args: &args,
            crossings: 0,
        };
        // SAFETY: `to` is a C string. (If the call fails, the directory isn't the pool's.)
        unsafe { chdir(call) };
        return;
    }
    let Some(value) = variables::value(dead_end::VARIABLE) else {
        return;
    };
    let Some((id, dir)) = dead_end::read(value.to_bytes()) else {
        return;
    };
    if !dead_end::is_here() {
        return;
    }
    let here = settings::settings().is_some_and(|s| s.dir.to_bytes() == dir) && id != 0;
    let noted = here
        && pool::fs().is_ok_and(|fs| fs.process().note_working_dir(Some(ObjectId(id))).is_ok());
    if noted {
        working_dir::note(true)
    } else {
        working_dir::note_lost(true)
    }
}

/// Resets the lock in a forked child: another thread of the parent may have held it.
pub fn after_fork_in_child() {
    CHANGING.reset();
}

/// Serves chdir.
pub unsafe fn chdir(call: PathCall<'_>) -> i64 {
    let a = call.args;
    // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
    let located = unsafe { locate(libc::AT_FDCWD, a[0]) };
    let result = match located {
        Err(e) => return errno(e),
        Ok(Where::Descriptor(fs, open)) => return value(enter_open(fs, open)),
        // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
        Ok(Where::Kernel) if unsafe { locate::working_directory(a[0]) }.is_some() => return 0,
        Ok(Where::Kernel | Where::Exe(..)) => {
            if let Some(to) = shadowed(a[0]) {
                let args = [to.as_ptr() as i64, 0, 0, 0, 0, 0];
                // SAFETY: the program's call; only the path is replaced, by a C string that
                // outlives the call.
                return unsafe {
                    chdir(PathCall {
                        args: &args,
                        ..call
                    })
                };
            }
            // SAFETY: the program makes this call; its arguments are passed on unchanged.
            let result = unsafe { raw(libc::SYS_chdir, *a) };
            if result == 0 {
                leave();
                return result;
            }
            let again = Call {
                nr: libc::SYS_chdir,
                args: *a,
            };
            // SAFETY: `again` is the program's own call.
            return unsafe { links::again(&again, result, call.crossings) };
        }
        Ok(Where::Pool(fs, base, p)) => fs.resolver().at(base, &p, Follow::Yes, |place| {
            let e = place.existing()?;
            if e.kind != libc::S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            fs.access(place, forebay_posix::EXEC)?;
            enter(fs, e.id)
        }),
    };
    match result {
        Ok(()) => 0,
        Err(Fail::Errno(e)) => errno(e),
        Err(Fail::Outside(to)) => match CString::new(to) {
            // SAFETY: `call` is the program's chdir; only its path is replaced.
            Ok(to) => unsafe { leave_for(call, to) },
            Err(_) => errno(Errno::NOENT),
        },
        Err(Fail::Origin(to)) => match links::onwards(to, Follow::Yes) {
            Ok(Onwards::Pool(to)) => {
                let args = [to.as_ptr() as i64, 0, 0, 0, 0, 0];
                // SAFETY: the program's call; only the path is replaced, by a C string that
                // outlives the call.
                unsafe {
                    chdir(PathCall {
                        args: &args,
                        ..call
                    })
                }
            }
            // SAFETY: `call` is the program's chdir; only its path is replaced.
            Ok(Onwards::Kernel(to)) => unsafe { leave_for(call, to) },
            Err(e) => errno(e),
        },
    }
}

/// Changes to a directory of the kernel.
unsafe fn leave_for(call: PathCall<'_>, to: CString) -> i64 {
    // SAFETY: the program's call; only the path is replaced, by a C string that outlives the call.
    let result = unsafe { again_outside(call, None, 0, to) };
    if result == 0 {
        leave();
    }
    result
}

/// Returns the pool's path for a path into the directory of the pool's origin.
fn shadowed(path: i64) -> Option<CString> {
    settings::settings().filter(|s| s.shadows)?;
    // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
    let path = unsafe { user::path(path) }?;
    links::shadowed(libc::AT_FDCWD, path, Follow::Yes)
}

/// Serves fchdir.
pub unsafe fn fchdir(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some((fs, open)) => value(enter_open(fs, open)),
        None => {
            // SAFETY: the program makes this call; its arguments are passed on unchanged.
            let result = unsafe { raw(libc::SYS_fchdir, *a) };
            if result == 0 {
                leave();
            }
            result
        }
    }
}

/// Makes an open directory the working directory.
fn enter_open(fs: &Fs, open: u32) -> Result<i64, Errno> {
    let dir = fs.description(open);
    if !dir.is_dir() {
        return Err(Errno::NOTDIR);
    }
    fs.access(&dir.place(), forebay_posix::EXEC)?;
    enter(fs, dir.id()).map(|()| 0)
}

fn enter(fs: &Fs, dir: ObjectId) -> Result<(), Errno> {
    fs.process().attach()?;
    let _critical = Critical::enter();
    let is_inside = || working_dir::current(fs).is_some() || working_dir::is_lost();
    // Steps that can fail come before the record is changed.
    let end = (!is_inside()).then(|| dead_end_of(fs)).transpose()?;
    let _one = (!process::in_vfork_child()).then(|| CHANGING.hold());
    let inode = fs.cluster().namespace().stat(dir);
    // The directory may be on a node that can't be reached now.
    let _ = fs.process().note_entered(dir, inode);
    let before = fs.process().note_working_dir(Some(dir))?;
    let was_lost = working_dir::is_lost();
    working_dir::note_lost(false);
    working_dir::note(true);
    if before.is_none() && !was_lost {
        let gone = match end {
            Some(end) => go_to_dead_end(&end),
            // Another thread has left the pool meanwhile.
            None => dead_end_of(fs).and_then(|end| go_to_dead_end(&end)),
        };
        gone.inspect_err(|_| {
            let _ = fs.process().note_working_dir(None);
            working_dir::note(false);
        })?;
    }
    Ok(())
}

/// Removes the record of a working directory in the pool, after the kernel's has been changed.
pub fn leave() {
    let _critical = Critical::enter();
    let Some(fs) = pool::open_fs() else {
        return working_dir::note_lost(false);
    };
    if working_dir::current(fs).is_none() && !working_dir::is_lost() {
        return;
    }
    let _one = (!process::in_vfork_child()).then(|| CHANGING.hold());
    // Another thread may have entered the pool meanwhile; then the directory that it entered is the
    // current one.
    if dead_end::is_here() {
        return;
    }
    working_dir::note_lost(false);
    if fs.process().note_working_dir(None).is_ok() {
        working_dir::note(false);
    }
}

/// Serves getcwd.
pub unsafe fn getcwd(a: &[i64; 6]) -> i64 {
    if working_dir::is_lost() {
        return errno(Errno::NOTCONN);
    }
    let Some(fs) = pool::open_fs() else {
        return PASS;
    };
    let Some(cwd) = working_dir::current(fs) else {
        return PASS;
    };
    match fs.cluster().namespace().path_of(cwd) {
        Err(e) => errno(e),
        Ok(path) => {
            let mut full = visible(fs, &path);
            full.push(0);
            // Fails whatever the buffer's size, as the kernel does: libc then uses another method.
            if full.len() > PATH_MAX {
                return errno(Errno::NAMETOOLONG);
            }
            if full.len() as u64 > a[1] as u64 {
                return errno(Errno::RANGE);
            }
            // SAFETY: the program's buffer has room, as checked above.
            unsafe { copy_cut(&full, a[0], full.len()) }
        }
    }
}

/// Opens the working directory through a mount of this pool; None if there is no such mount.
pub fn mounted() -> Option<OwnedFd> {
    let fs = pool::open_fs()?;
    let cwd = working_dir::current(fs)?;
    let path = fs.cluster().namespace().path_of(cwd).ok()?;
    let prefix = Path::new(std::ffi::OsStr::from_bytes(settings::settings()?.mount));
    let mut mounts = mounts(fs.pool().dir());
    mounts.sort_by_key(|at| at != prefix);
    mounts.iter().find_map(|at| {
        let dir = [at.as_os_str().as_bytes(), &path].concat();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&dir[..], flags, Mode::empty()).ok()?;
        is_ours(&dir, cwd).then_some(dir)
    })
}

/// Opens an open file or directory again through a mount of this pool, at the same offset; None if
/// that isn't possible.
pub fn open_mounted(fs: &Fs, open: u32) -> Option<OwnedFd> {
    // Flags that concern only the creation, which isn't repeated.
    const ONCE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let description = fs.description(open);
    let path = fs.path_of_open(open).ok()?;
    let flags = OFlags::from_bits_retain((description.shown_flags() & !ONCE) as u32);
    let settings = settings::settings()?;
    let prefix = Path::new(std::ffi::OsStr::from_bytes(settings.mount));
    let mut mounts = mounts(fs.pool().dir());
    mounts.sort_by_key(|at| at != prefix);
    mounts.iter().find_map(|at| {
        let file = [at.as_os_str().as_bytes(), &path].concat();
        // Another file may be at this path by now, even a FIFO.
        let how = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(&file[..], how, Mode::empty()).ok()?;
        rustix::fs::fcntl_setfl(&file, flags).ok()?;
        let at = description.offset();
        let there = is_ours(&file, description.id())
            && (description.is_dir() || rustix::fs::seek(&file, SeekFrom::Start(at)).is_ok());
        there.then_some(file)
    })
}

/// Whether a directory is on a mount of the pool and is the pool's `id`: another file system may be
/// mounted there by now.
fn is_ours(dir: &OwnedFd, id: ObjectId) -> bool {
    let is_fuse = rustix::fs::fstatfs(dir).is_ok_and(|s| s.f_type == FUSE);
    let root = id == ObjectId::ROOT;
    is_fuse && rustix::fs::fstat(dir).is_ok_and(|s| root || s.st_ino == id.0)
}

/// Returns the directories where a pool is mounted on this host, as `forebay mount` records them.
fn mounts(pool: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(pool.join("mounts")) else {
        return Vec::new();
    };
    let number = |e: &std::fs::DirEntry| e.file_name().to_str()?.parse::<u32>().ok();
    let records = entries.flatten().filter(|e| number(e).is_some());
    let dir = |e: std::fs::DirEntry| {
        let text = std::fs::read(e.path()).ok().filter(|t| !t.is_empty())?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(text)))
    };
    records.filter_map(dir).collect()
}

/// Whether this pool has been mounted at `dir`, according to the records of `forebay mount`.
pub fn is_mounted_at(fs: &Fs, dir: &[u8]) -> bool {
    let is_it = |at: &PathBuf| at.as_os_str().as_bytes() == dir;
    mounts(fs.pool().dir()).iter().any(is_it)
}

/// Whether something is mounted on the directory at `place`: on its path in a mount of the pool,
/// as this process's mount namespace shows it.
pub fn is_mount_point(fs: &Fs, place: &forebay_posix::Place) -> bool {
    let forebay_posix::Place::Entry { dir, name, .. } = place else {
        return false;
    };
    let mounts = mounts(fs.pool().dir());
    if mounts.is_empty() {
        return false;
    }
    let Ok(above) = fs.cluster().namespace().path_of(dir.id) else {
        return false;
    };
    let above = above.strip_suffix(b"/").unwrap_or(&above);
    let points = mounts.iter().map(|at| {
        let path = [at.as_os_str().as_bytes(), above, b"/", &name[..]].concat();
        in_table(&path)
    });
    let points: Vec<Vec<u8>> = points.collect();
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = table.split(|&b| b == b'\n');
    // The fifth field of a line is the mount point.
    lines.any(|line| {
        let point = line.split(|&b| b == b' ').nth(4);
        points.iter().any(|p| Some(&p[..]) == point)
    })
}

/// Returns a path as the kernel writes it in mountinfo.
fn in_table(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len());
    for &b in path {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend(format!("\\{b:03o}").bytes()),
            _ => text.push(b),
        }
    }
    text
}

/// Whether the pool is mounted at its prefix: then the pool's paths are the same for programs
/// without this library.
pub fn is_prefix_mounted(settings: &settings::Settings) -> bool {
    let statfs = rustix::fs::statfs(settings.mount);
    statfs.is_ok_and(|s| s.f_type == FUSE)
}

/// Changes to a directory of the kernel, for an exec.
///
/// # Errors
/// Those of fchdir(2).
pub fn go_to(dir: i32) -> Result<(), Errno> {
    // SAFETY: fchdir takes no pointer; a closed descriptor gives EBADF.
    results::check(unsafe { raw(libc::SYS_fchdir, [dir.into(), 0, 0, 0, 0, 0]) }).map(|_| ())
}

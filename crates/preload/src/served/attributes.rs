//! System calls on attributes: modes, owners, times, sizes by path, extended attributes.

use crate::paths::{PathCall, on_path};
use crate::pool::{self, fds, working_dir};
use crate::program::results::{errno, value};
use crate::program::user;
use crate::served::io;
use crate::served::stat::is_empty;
use forebay_intercept::PASS;
use forebay_posix::{EXEC, Errno, Follow, Fs, ObjectId, Place, READ, WRITE};
use std::ffi::CStr;

const NS: i64 = 1_000_000_000;
/// The flags that most calls know. With others the kernel says EINVAL, whatever the path.
const AT_FLAGS: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// The object behind a descriptor.
fn object(fd: i64) -> Option<(&'static Fs, ObjectId)> {
    let (fs, open) = fds::pool_object(fd as i32)?;
    Some((fs, fs.description(open).id()))
}

/// What an empty path at AT_FDCWD means, if the working directory is in the pool.
fn working_directory(fd: i64) -> Option<(&'static Fs, ObjectId)> {
    if fd as i32 != libc::AT_FDCWD {
        return None;
    }
    let fs = pool::open_fs()?;
    Some((fs, working_dir::current(fs)?))
}

/// Tells those who watch what happened to an object by a descriptor, or to the working directory.
fn told_by(fs: &Fs, fd: i64, id: ObjectId, what: u32) {
    if !fs.watches().any() {
        return;
    }
    match fds::pool_object(fd as i32) {
        Some((fs, open)) => fs.tell_place(&fs.description(open).place(), what),
        None => fs.watches().tell_dir(id, what),
    }
}

/// Of a change of owner.
fn owner_mask(uid: Option<u32>, gid: Option<u32>) -> u32 {
    match uid.or(gid) {
        Some(_) => libc::IN_ATTRIB,
        None => 0,
    }
}

fn follow(no_follow: bool) -> Follow {
    if no_follow { Follow::No } else { Follow::Yes }
}

/// access, faccessat, faccessat2.
pub unsafe fn access(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let mode = a[path + 1] as u32;
    let flags = if p.nr == libc::SYS_faccessat2 {
        a[3] as i32
    } else {
        0
    };
    if mode & !7 != 0 || flags & !(AT_FLAGS | libc::AT_EACCESS) != 0 {
        return PASS;
    }
    let want = (if mode & libc::R_OK as u32 != 0 {
        READ
    } else {
        0
    }) | (if mode & libc::W_OK as u32 != 0 {
        WRITE
    } else {
        0
    }) | (if mode & libc::X_OK as u32 != 0 {
        EXEC
    } else {
        0
    });
    // SAFETY: the program's own arguments; here and in all functions below.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match (fds::pool_file(a[0] as i32), working_directory(a[0])) {
                (Some((fs, open)), _) => {
                    value(fs.access(&fs.description(open).place(), want).map(|()| 0))
                }
                // One can be in it, so it is there.
                (None, Some(_)) => 0,
                (None, None) => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.access(place, want).map(|()| 0)
        })
    }
}

/// chmod, fchmodat, fchmodat2.
pub unsafe fn chmod(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let mode = a[path + 1] as u32;
    let flags = if p.nr == 452 { a[3] as i32 } else { 0 };
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: see access.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match object(a[0]).or_else(|| working_directory(a[0])) {
                Some((fs, id)) => {
                    let changed = fs.change_mode(id, mode).map(|()| 0);
                    value(changed.inspect(|_| told_by(fs, a[0], id, libc::IN_ATTRIB)))
                }
                None => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.change_mode(place.existing()?.id, mode)?;
            fs.tell_place(place, libc::IN_ATTRIB);
            Ok(0)
        })
    }
}

/// fchmod.
pub fn fchmod(a: &[i64; 6]) -> i64 {
    let Some((fs, id)) = object(a[0]) else {
        return PASS;
    };
    let changed = fs.change_mode(id, a[1] as u32).map(|()| 0);
    value(changed.inspect(|_| told_by(fs, a[0], id, libc::IN_ATTRIB)))
}

fn owner(n: i64) -> Option<u32> {
    let n = n as u32;
    (n != u32::MAX).then_some(n)
}

/// chown, lchown, fchownat.
pub unsafe fn chown(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let (uid, gid) = (owner(a[path + 1]), owner(a[path + 2]));
    let flags = if p.nr == libc::SYS_fchownat {
        a[4] as i32
    } else {
        0
    };
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: see access.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match object(a[0]).or_else(|| working_directory(a[0])) {
                Some((fs, id)) => {
                    let changed = fs.change_owner(id, uid, gid).map(|()| 0);
                    value(changed.inspect(|_| told_by(fs, a[0], id, owner_mask(uid, gid))))
                }
                None => PASS,
            };
        }
        let f = follow(p.nr == libc::SYS_lchown || flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.change_owner(place.existing()?.id, uid, gid)?;
            fs.tell_place(place, owner_mask(uid, gid));
            Ok(0)
        })
    }
}

/// fchown.
pub fn fchown(a: &[i64; 6]) -> i64 {
    let Some((fs, id)) = object(a[0]) else {
        return PASS;
    };
    let (uid, gid) = (owner(a[1]), owner(a[2]));
    let changed = fs.change_owner(id, uid, gid).map(|()| 0);
    value(changed.inspect(|_| told_by(fs, a[0], id, owner_mask(uid, gid))))
}

/// What utimensat and its older forms ask for.
struct Times {
    atime: Option<i64>,
    mtime: Option<i64>,
    /// Both are "now".
    now: bool,
}

/// # Safety
/// `ptr` is null or two struct timespec.
unsafe fn timespecs(fs: &Fs, ptr: i64) -> Result<Times, Errno> {
    let now = fs.now();
    if ptr == 0 {
        return Ok(Times {
            atime: Some(now),
            mtime: Some(now),
            now: true,
        });
    }
    // SAFETY: the caller's promise.
    let t: [libc::timespec; 2] = unsafe { user::take(ptr)? };
    let one = |t: &libc::timespec| match t.tv_nsec {
        libc::UTIME_NOW => Ok(Some(now)),
        libc::UTIME_OMIT => Ok(None),
        0..NS => Ok(Some(t.tv_sec.saturating_mul(NS).saturating_add(t.tv_nsec))),
        _ => Err(Errno::INVAL),
    };
    let both_now = t.iter().all(|t| t.tv_nsec == libc::UTIME_NOW);
    Ok(Times {
        atime: one(&t[0])?,
        mtime: one(&t[1])?,
        now: both_now,
    })
}

/// # Safety
/// `ptr` is null or two struct timeval (`micro`), or a struct utimbuf.
unsafe fn older_times(fs: &Fs, ptr: i64, micro: bool) -> Result<Times, Errno> {
    if ptr == 0 {
        // SAFETY: null is fine.
        return unsafe { timespecs(fs, 0) };
    }
    if !micro {
        // SAFETY: the caller's promise: actime, modtime.
        let [a, m]: [i64; 2] = unsafe { user::take(ptr)? };
        let ns = |s: i64| Some(s.saturating_mul(NS));
        return Ok(Times {
            atime: ns(a),
            mtime: ns(m),
            now: false,
        });
    }
    // SAFETY: the caller's promise.
    let t: [libc::timeval; 2] = unsafe { user::take(ptr)? };
    let one = |t: &libc::timeval| match t.tv_usec {
        0..1_000_000 => Ok(Some(t.tv_sec.saturating_mul(NS) + t.tv_usec * 1000)),
        _ => Err(Errno::INVAL),
    };
    Ok(Times {
        atime: one(&t[0])?,
        mtime: one(&t[1])?,
        now: false,
    })
}

impl Times {
    fn set(&self, fs: &Fs, id: ObjectId) -> Result<i64, Errno> {
        fs.change_times(id, self.atime, self.mtime, self.now)
            .map(|()| 0)
    }

    /// As what the kernel tells those who watch.
    fn mask(&self) -> u32 {
        match (self.atime, self.mtime) {
            (Some(_), Some(_)) => libc::IN_ATTRIB,
            (Some(_), None) => libc::IN_ACCESS,
            (None, Some(_)) => libc::IN_MODIFY,
            (None, None) => 0,
        }
    }
}

/// utimensat; a null path means the descriptor.
pub unsafe fn utimensat(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[3] as i32;
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: see access.
    unsafe {
        if a[1] == 0 || flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[1]) {
            if a[1] == 0 && fds::is_path_only(a[0] as i32) {
                return errno(Errno::BADF);
            }
            if a[1] == 0 && (flags != 0 || a[0] as i32 == libc::AT_FDCWD) {
                return PASS; // EINVAL, EFAULT.
            }
            let Some((fs, id)) = object(a[0]).or_else(|| working_directory(a[0])) else {
                return PASS;
            };
            return value(timespecs(fs, a[2]).and_then(|t| {
                let set = t.set(fs, id)?;
                told_by(fs, a[0], id, t.mask());
                Ok(set)
            }));
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, |fs, place| {
            let t = timespecs(fs, a[2])?;
            let set = t.set(fs, place.existing()?.id)?;
            fs.tell_place(place, t.mask());
            Ok(set)
        })
    }
}

/// utime, utimes, futimesat.
pub unsafe fn utimes(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    // SAFETY: see access.
    unsafe {
        if dirfd.is_some()
            && a[1] == 0
            && let Some((fs, id)) = object(a[0])
        {
            return value(older_times(fs, a[2], true).and_then(|t| {
                let set = t.set(fs, id)?;
                told_by(fs, a[0], id, t.mask());
                Ok(set)
            }));
        }
        on_path(p, dirfd, path, Follow::Yes, |fs, place| {
            let t = older_times(fs, a[path + 1], p.nr != libc::SYS_utime)?;
            let set = t.set(fs, place.existing()?.id)?;
            fs.tell_place(place, t.mask());
            Ok(set)
        })
    }
}

/// truncate.
pub unsafe fn truncate(p: PathCall<'_>) -> i64 {
    let a = p.args;
    // SAFETY: see access.
    unsafe {
        on_path(p, None, 0, Follow::Yes, |fs, place| {
            let size = u64::try_from(a[1]).map_err(|_| Errno::INVAL)?;
            if place.existing()?.kind == libc::S_IFDIR {
                return Err(Errno::ISDIR);
            }
            let open = fs.open_place(place, libc::O_WRONLY, 0)?;
            let result = io::cut(fs, open, size);
            fs.description(open).release().and(result)?;
            fs.tell_place(place, libc::IN_MODIFY);
            Ok(0)
        })
    }
}

// ---- extended attributes ----

/// The longest value, as in Linux.
const MAX_VALUE: usize = 64 << 10;

/// # Safety
/// `ptr` is a C string.
unsafe fn name<'a>(ptr: i64) -> Result<&'a [u8], Errno> {
    let text = ptr as *const libc::c_char;
    // SAFETY: the caller's promise; if it breaks it, that is EFAULT.
    let name = unsafe { user::touch(|| CStr::from_ptr(text)) };
    name.map(CStr::to_bytes).ok_or(Errno::FAULT)
}

/// Hands `bytes` to the program; with size 0 it only wants to know how many there are.
///
/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn give(bytes: &[u8], buffer: i64, size: i64) -> Result<i64, Errno> {
    if size == 0 {
        return Ok(bytes.len() as i64);
    }
    if (size as usize) < bytes.len() {
        return Err(Errno::RANGE);
    }
    // SAFETY: the caller's promise.
    match unsafe { forebay_media::guard::copy(bytes.as_ptr(), buffer as *mut u8, bytes.len()) } {
        true => Ok(bytes.len() as i64),
        false => Err(Errno::FAULT),
    }
}

fn names(fs: &Fs, id: ObjectId) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    for name in fs.attribute_names(id)? {
        all.extend_from_slice(&name);
        all.push(0);
    }
    Ok(all)
}

/// What the twelve calls do to an object, the descriptor or path in `a[0]` apart.
unsafe fn xattr(nr: i64, a: &[i64; 6], fs: &Fs, place: &Place) -> Result<i64, Errno> {
    let id = place.existing()?.id;
    // SAFETY: see access.
    unsafe {
        match nr {
            libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr => {
                give(&fs.get_attribute(id, name(a[1])?)?, a[2], a[3])
            }
            libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_fsetxattr => {
                let (name, len) = (name(a[1])?, a[3] as usize);
                if len > MAX_VALUE {
                    return Err(Errno::TOOBIG);
                }
                let value = user::take_list(a[2], len)?;
                let known = Some(place.parent_and_name());
                fs.set_attribute(id, name, &value, a[4] as i32, known)?;
                fs.tell_place(place, libc::IN_ATTRIB);
                Ok(0)
            }
            libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr => {
                give(&names(fs, id)?, a[1], a[2])
            }
            _ => {
                fs.remove_attribute(id, name(a[1])?)?;
                fs.tell_place(place, libc::IN_ATTRIB);
                Ok(0)
            }
        }
    }
}

/// The calls that take a path.
pub unsafe fn path_xattr(p: PathCall<'_>, no_follow: bool) -> i64 {
    let a = p.args;
    // SAFETY: see access.
    unsafe {
        on_path(p, None, 0, follow(no_follow), |fs, place| {
            xattr(p.nr, a, fs, place)
        })
    }
}

/// setxattrat, getxattrat, listxattrat, removexattrat.
pub unsafe fn xattr_at(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[2] as i32;
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // A value and its flags lie in a struct: value:8, size:4, flags:4.
    let value_of = |room: i64| {
        if room < 16 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the program's struct.
        unsafe { user::take::<(i64, u32, u32)>(a[4]) }
    };
    // SAFETY: see access.
    let work = |fs: &Fs, place: &Place| unsafe {
        let (nr, args) = match p.nr {
            463 | 464 => {
                let (value, size, flags) = value_of(a[5])?;
                let nr = if p.nr == 463 {
                    libc::SYS_setxattr
                } else {
                    libc::SYS_getxattr
                };
                (nr, [0, a[3], value, size.into(), flags.into(), 0])
            }
            465 => (libc::SYS_listxattr, [0, a[3], a[4], 0, 0, 0]),
            _ => (libc::SYS_removexattr, [0, a[3], 0, 0, 0, 0]),
        };
        xattr(nr, &args, fs, place)
    };
    // SAFETY: see access.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && (a[1] == 0 || is_empty(a[1])) {
            return match (fds::pool_object(a[0] as i32), working_directory(a[0])) {
                (Some((fs, open)), _) => value(work(fs, &fs.description(open).place())),
                (None, Some((fs, dir))) => value(fs.dir_place(dir).and_then(|p| work(fs, &p))),
                (None, None) => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, work)
    }
}

/// The calls that take a descriptor.
pub unsafe fn fd_xattr(nr: i64, a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_object(a[0] as i32) else {
        return PASS;
    };
    // SAFETY: see access.
    unsafe { xattr(nr, a, fs, &fs.description(open).place()) }.unwrap_or_else(errno)
}

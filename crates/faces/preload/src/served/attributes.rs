//! System calls on attributes: modes, owners, times, sizes by path, extended attributes.

use crate::paths::{PathCall, on_path};
use crate::pool::{self, fds, working_dir};
use crate::program::results::{errno, value};
use crate::program::user;
use crate::served::stat::is_empty;
use crate::served::{io, leases};
use forebay_intercept::PASS;
use forebay_posix::{EXEC, Errno, Follow, Fs, ObjectId, Place, READ, WRITE};
use forebay_store::NAME_MAX;
use std::ffi::CStr;

const NS: i64 = 1_000_000_000;
/// The flags that most calls support. With other flags the kernel returns EINVAL, whatever the
/// path.
const AT_FLAGS: i32 = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// Returns the object behind a pool descriptor.
fn object(fd: i64) -> Option<(&'static Fs, ObjectId)> {
    let (fs, open) = fds::pool_object(fd as i32)?;
    Some((fs, fs.description(open).id()))
}

/// Returns the working directory if `fd` is AT_FDCWD and the directory is in the pool. An empty
/// path then means this directory.
fn working_directory(fd: i64) -> Option<(&'static Fs, ObjectId)> {
    if fd as i32 != libc::AT_FDCWD {
        return None;
    }
    let fs = pool::open_fs()?;
    Some((fs, working_dir::current(fs)?))
}

/// Notifies the watchers of a change `what` of object `id`, made by a descriptor or on the working
/// directory.
fn notified_by(fs: &Fs, fd: i64, id: ObjectId, what: u32) {
    if !fs.store().watches().has_watches() {
        return;
    }
    match fds::pool_object(fd as i32) {
        Some((fs, open)) => fs.notify_place(&fs.description(open).place(), what),
        None => fs.store().watches().tell(id, libc::S_IFDIR, None, what),
    }
}

/// Returns the inotify bits for a change of owner.
fn owner_mask(uid: Option<u32>, gid: Option<u32>) -> u32 {
    match uid.or(gid) {
        Some(_) => libc::IN_ATTRIB,
        None => 0,
    }
}

fn follow(no_follow: bool) -> Follow {
    if no_follow { Follow::No } else { Follow::Yes }
}

/// Serves access, faccessat and faccessat2.
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
    let real = flags & libc::AT_EACCESS == 0;
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match (fds::pool_file(a[0] as i32), working_directory(a[0])) {
                (Some((fs, open)), _) => {
                    let place = fs.description(open).place();
                    value(fs.access_as(&place, want, real).map(|()| 0))
                }
                // A process can be in the working directory, so the directory exists.
                (None, Some(_)) => 0,
                (None, None) => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.access_as(place, want, real).map(|()| 0)
        })
    }
}

/// Serves chmod, fchmodat and fchmodat2.
pub unsafe fn chmod(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    let mode = a[path + 1] as u32;
    let flags = if p.nr == 452 { a[3] as i32 } else { 0 };
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match object(a[0]).or_else(|| working_directory(a[0])) {
                Some((fs, id)) => {
                    let changed = fs.change_mode(id, mode).map(|()| 0);
                    value(changed.inspect(|_| notified_by(fs, a[0], id, libc::IN_ATTRIB)))
                }
                None => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.change_mode(place.existing()?.id, mode)?;
            fs.notify_place(place, libc::IN_ATTRIB);
            Ok(0)
        })
    }
}

/// Serves fchmod.
pub fn fchmod(a: &[i64; 6]) -> i64 {
    let Some((fs, id)) = object(a[0]) else {
        return PASS;
    };
    let changed = of_open(a[0], fs.change_mode(id, a[1] as u32));
    value(changed.inspect(|_| notified_by(fs, a[0], id, libc::IN_ATTRIB)))
}

/// Returns the result of a change by descriptor. A change of a removed directory or link succeeds
/// without effect.
fn of_open(fd: i64, changed: Result<(), Errno>) -> Result<i64, Errno> {
    // A regular file exists as long as it is open.
    let is_kept = || {
        let open = fds::pool_object(fd as i32);
        open.is_some_and(|(fs, open)| fs.description(open).kind() == libc::S_IFREG)
    };
    match changed {
        Err(Errno::NOENT) if !is_kept() => Ok(0),
        changed => changed.map(|()| 0),
    }
}

fn owner(n: i64) -> Option<u32> {
    let n = n as u32;
    (n != u32::MAX).then_some(n)
}

/// Serves chown, lchown and fchownat.
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
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && is_empty(a[path]) {
            return match object(a[0]).or_else(|| working_directory(a[0])) {
                Some((fs, id)) => {
                    let changed = fs.change_owner(id, uid, gid).map(|()| 0);
                    value(changed.inspect(|_| notified_by(fs, a[0], id, owner_mask(uid, gid))))
                }
                None => PASS,
            };
        }
        let f = follow(p.nr == libc::SYS_lchown || flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, dirfd, path, f, |fs, place| {
            fs.change_owner(place.existing()?.id, uid, gid)?;
            fs.notify_place(place, owner_mask(uid, gid));
            Ok(0)
        })
    }
}

/// Serves fchown.
pub fn fchown(a: &[i64; 6]) -> i64 {
    let Some((fs, id)) = object(a[0]) else {
        return PASS;
    };
    let (uid, gid) = (owner(a[1]), owner(a[2]));
    let changed = of_open(a[0], fs.change_owner(id, uid, gid));
    value(changed.inspect(|_| notified_by(fs, a[0], id, owner_mask(uid, gid))))
}

/// The times that utimensat and its older forms set.
#[derive(Clone, Copy)]
struct Times {
    atime: Option<i64>,
    mtime: Option<i64>,
    /// Whether both times are "now".
    now: bool,
}

/// Reads two times of the program; None for null.
///
/// # Safety
/// `ptr` is null or points to two struct timespec.
unsafe fn two_times(ptr: i64) -> Result<Option<[libc::timespec; 2]>, Errno> {
    match ptr {
        0 => Ok(None),
        // SAFETY: any bytes are two timespecs; a bad address is caught.
        ptr => unsafe { user::take(ptr) }.map(Some),
    }
}

/// # Errors
/// EINVAL.
fn timespecs(fs: &Fs, times: Option<[libc::timespec; 2]>) -> Result<Times, Errno> {
    let now = fs.now();
    let Some(t) = times else {
        return Ok(Times {
            atime: Some(now),
            mtime: Some(now),
            now: true,
        });
    };
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
/// `ptr` is null or points to two struct timeval (`micro`), or to a struct utimbuf.
unsafe fn older_times(ptr: i64, micro: bool) -> Result<Option<Times>, Errno> {
    if ptr == 0 {
        return Ok(None);
    }
    if !micro {
        // SAFETY: any bytes are two numbers (actime and modtime); a bad address is caught.
        let [a, m]: [i64; 2] = unsafe { user::take(ptr)? };
        let ns = |s: i64| Some(s.saturating_mul(NS));
        return Ok(Some(Times {
            atime: ns(a),
            mtime: ns(m),
            now: false,
        }));
    }
    // SAFETY: any bytes are two timevals; a bad address is caught.
    let t: [libc::timeval; 2] = unsafe { user::take(ptr)? };
    let one = |t: &libc::timeval| match t.tv_usec {
        0..1_000_000 => Ok(Some(
            t.tv_sec.saturating_mul(NS).saturating_add(t.tv_usec * 1000),
        )),
        _ => Err(Errno::INVAL),
    };
    Ok(Some(Times {
        atime: one(&t[0])?,
        mtime: one(&t[1])?,
        now: false,
    }))
}

impl Times {
    fn set(&self, fs: &Fs, id: ObjectId) -> Result<i64, Errno> {
        fs.change_times(id, self.atime, self.mtime, self.now)
            .map(|()| 0)
    }

    /// Returns the change as bits of inotify(7).
    fn mask(&self) -> u32 {
        match (self.atime, self.mtime) {
            (Some(_), Some(_)) => libc::IN_ATTRIB,
            (Some(_), None) => libc::IN_ACCESS,
            (None, Some(_)) => libc::IN_MODIFY,
            (None, None) => 0,
        }
    }
}

/// Serves utimensat. A null path means the descriptor's object.
pub unsafe fn utimensat(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[3] as i32;
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        let times = match two_times(a[2]) {
            Ok(times) => times,
            Err(e) => return errno(e),
        };
        if times.is_some_and(|t| t.iter().all(|t| t.tv_nsec == libc::UTIME_OMIT)) {
            return 0; // Whatever the path.
        }
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
            return value(timespecs(fs, times).and_then(|t| {
                let set = t.set(fs, id)?;
                notified_by(fs, a[0], id, t.mask());
                Ok(set)
            }));
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, |fs, place| {
            let id = place.existing()?.id;
            let t = timespecs(fs, times)?;
            let set = t.set(fs, id)?;
            fs.notify_place(place, t.mask());
            Ok(set)
        })
    }
}

/// Serves utime, utimes and futimesat.
pub unsafe fn utimes(p: PathCall<'_>, dirfd: Option<usize>, path: usize) -> i64 {
    let a = p.args;
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        // The times are read before the path is checked.
        let times = match older_times(a[path + 1], p.nr != libc::SYS_utime) {
            Ok(times) => times,
            Err(e) => return errno(e),
        };
        if dirfd.is_some()
            && a[1] == 0
            && let Some((fs, id)) = object(a[0])
        {
            if fds::is_path_only(a[0] as i32) {
                return errno(Errno::BADF);
            }
            return value(times.map_or_else(|| timespecs(fs, None), Ok).and_then(|t| {
                let set = t.set(fs, id)?;
                notified_by(fs, a[0], id, t.mask());
                Ok(set)
            }));
        }
        on_path(p, dirfd, path, Follow::Yes, |fs, place| {
            let t = times.map_or_else(|| timespecs(fs, None), Ok)?;
            let set = t.set(fs, place.existing()?.id)?;
            fs.notify_place(place, t.mask());
            Ok(set)
        })
    }
}

/// Serves truncate.
pub unsafe fn truncate(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let Ok(size) = u64::try_from(a[1]) else {
        return errno(Errno::INVAL);
    };
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 0, Follow::Yes, |fs, place| {
            match place.existing()?.kind {
                libc::S_IFREG => {}
                libc::S_IFDIR => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            let open = leases::note(fs.open_place(place, libc::O_WRONLY, 0))?;
            let result = io::cut(fs, open, size);
            fs.description(open).release().and(result)?;
            fs.notify_place(place, libc::IN_MODIFY);
            Ok(0)
        })
    }
}

// ---- extended attributes ----

/// Maximum length of a value, as in Linux. Bytes.
const MAX_VALUE: usize = 64 << 10;

/// Reads the name of an attribute from the program.
///
/// # Errors
/// EFAULT; ERANGE for a name that is empty or too long.
///
/// # Safety
/// `ptr` is a C string.
unsafe fn name<'a>(ptr: i64) -> Result<&'a [u8], Errno> {
    let text = ptr as *const libc::c_char;
    // SAFETY: the caller promises a C string; a bad address gives EFAULT.
    let name = unsafe { user::touch(|| CStr::from_ptr(text)) };
    match name.ok_or(Errno::FAULT)?.to_bytes() {
        name if name.is_empty() || name.len() > NAME_MAX => Err(Errno::RANGE),
        name => Ok(name),
    }
}

/// Copies `bytes` to the program's buffer. Returns their number. With size 0 nothing is copied.
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
    // SAFETY: the caller promises room for `size` bytes; a bad address gives EFAULT.
    if unsafe { forebay_runtime::guard::copy(bytes.as_ptr(), buffer as *mut u8, bytes.len()) } {
        Ok(bytes.len() as i64)
    } else {
        Err(Errno::FAULT)
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

/// A call on extended attributes, with its arguments copied before the object is looked up.
enum AttributeCall<'a> {
    Get(&'a [u8], i64, i64),
    Set(&'a [u8], Vec<u8>, i32),
    List(i64, i64),
    Remove(&'a [u8]),
}

impl AttributeCall<'_> {
    /// Reads the arguments of the twelve older calls on extended attributes, except the descriptor
    /// or path in `a[0]`.
    ///
    /// # Errors
    /// EINVAL for flags, ERANGE for a name, E2BIG, EFAULT: these errors don't depend on the object.
    ///
    /// # Safety
    /// The arguments are those of a system call of the program.
    unsafe fn read<'a>(nr: i64, a: &[i64; 6]) -> Result<AttributeCall<'a>, Errno> {
        // SAFETY: the caller passes the arguments of a call that the program makes.
        unsafe {
            Ok(match nr {
                libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr => {
                    AttributeCall::Get(name(a[1])?, a[2], a[3])
                }
                libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_fsetxattr => {
                    let (len, flags) = (a[3] as usize, a[4] as i32);
                    if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
                        return Err(Errno::INVAL);
                    }
                    let name = name(a[1])?;
                    if len > MAX_VALUE {
                        return Err(Errno::TOOBIG);
                    }
                    AttributeCall::Set(name, user::take_list(a[2], len)?, flags)
                }
                libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr => {
                    AttributeCall::List(a[1], a[2])
                }
                _ => AttributeCall::Remove(name(a[1])?),
            })
        }
    }

    fn carry_out(&self, fs: &Fs, place: &Place) -> Result<i64, Errno> {
        let id = place.existing()?.id;
        match self {
            AttributeCall::Get(name, to, room) => {
                let value = fs.get_attribute(id, name)?;
                // SAFETY: the program passed this buffer and its size to the call.
                unsafe { give(&value, *to, *room) }
            }
            AttributeCall::Set(name, value, flags) => {
                let known = Some(place.parent_and_name());
                fs.set_attribute(id, name, value, *flags, known)?;
                fs.notify_place(place, libc::IN_ATTRIB);
                Ok(0)
            }
            // SAFETY: the program passed this buffer and its size to the call.
            AttributeCall::List(to, room) => unsafe { give(&names(fs, id)?, *to, *room) },
            AttributeCall::Remove(name) => {
                fs.remove_attribute(id, name)?;
                fs.notify_place(place, libc::IN_ATTRIB);
                Ok(0)
            }
        }
    }
}

/// Serves the extended-attribute calls that take a path.
pub unsafe fn path_xattr(p: PathCall<'_>, no_follow: bool) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        match AttributeCall::read(p.nr, p.args) {
            Ok(call) => on_path(p, None, 0, follow(no_follow), |fs, place| {
                call.carry_out(fs, place)
            }),
            Err(e) => errno(e),
        }
    }
}

/// The kernel's struct xattr_args: the value of setxattrat and getxattrat.
#[derive(Clone, Copy)]
#[repr(C)]
struct XattrArgs {
    /// Address of the value.
    value: i64,
    /// Length of the value or room for it. Bytes.
    size: u32,
    /// Flags of setxattr(2).
    flags: u32,
}

/// Converts setxattrat, getxattrat, listxattrat or removexattrat to the number and arguments of the
/// older call.
///
/// # Errors
/// EINVAL, EFAULT.
unsafe fn as_older(p: PathCall<'_>) -> Result<(i64, [i64; 6]), Errno> {
    let a = p.args;
    let value_of = |room: i64| {
        if room < 16 {
            return Err(Errno::INVAL);
        }
        // SAFETY: any bytes are valid; a bad address is caught.
        unsafe { user::take::<XattrArgs>(a[4]) }
    };
    Ok(match p.nr {
        463 | 464 => {
            let XattrArgs { value, size, flags } = value_of(a[5])?;
            let nr = if p.nr == 463 {
                libc::SYS_setxattr
            } else {
                libc::SYS_getxattr
            };
            (nr, [0, a[3], value, size.into(), flags.into(), 0])
        }
        465 => (libc::SYS_listxattr, [0, a[3], a[4], 0, 0, 0]),
        _ => (libc::SYS_removexattr, [0, a[3], 0, 0, 0, 0]),
    })
}

/// Serves setxattrat, getxattrat, listxattrat and removexattrat.
pub unsafe fn xattr_at(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[2] as i32;
    if flags & !AT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        let call = match as_older(p).and_then(|(nr, args)| AttributeCall::read(nr, &args)) {
            Ok(call) => call,
            Err(e) => return errno(e),
        };
        let work = |fs: &Fs, place: &Place| call.carry_out(fs, place);
        if flags & libc::AT_EMPTY_PATH != 0 && (a[1] == 0 || is_empty(a[1])) {
            return match (fds::pool_object(a[0] as i32), working_directory(a[0])) {
                (Some((fs, open)), _) => value(work(fs, &fs.description(open).place())),
                (None, Some((fs, dir))) => {
                    value(fs.resolver().dir_place(dir).and_then(|p| work(fs, &p)))
                }
                (None, None) => PASS,
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, work)
    }
}

/// Serves the extended-attribute calls that take a descriptor.
pub unsafe fn fd_xattr(nr: i64, a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_object(a[0] as i32) else {
        return PASS;
    };
    // SAFETY: the caller passes the arguments of a call that the program makes.
    value(unsafe { AttributeCall::read(nr, a) }.and_then(|call| {
        if fs.description(open).is_path_only() {
            return Err(Errno::BADF);
        }
        call.carry_out(fs, &fs.description(open).place())
    }))
}

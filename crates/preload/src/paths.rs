//! Which paths lead into the pool.
//!
//! A path concerns us if it is absolute and under the mount prefix, or relative to a
//! directory of the pool (the working directory, or a descriptor), or names one of our
//! descriptors (`/proc/self/fd/N`, `/dev/stdin`). Everything else goes to the kernel
//! untouched; that decision takes a few comparisons.

use crate::{exe, fds, links, proc_paths, runtime};
use forebay_intercept::{Call, PASS, raw};
use forebay_media::guard;
use forebay_posix::{Entry, Errno, Fail, Follow, Fs, Goal, Name, ObjectId, PATH_MAX, Place};
use forebay_store::Store;
use forebay_store::process::Critical;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Where a path leads.
pub enum Where {
    Kernel,
    /// Into the pool: to this path, seen from this directory.
    Pool(&'static Fs, ObjectId, Cow<'static, [u8]>),
    /// To the open file behind a descriptor of ours.
    Descriptor(&'static Fs, u32),
    /// Through `/proc/self/exe` to the program itself, at this path inside the pool.
    Exe(&'static Fs, &'static [u8]),
}

/// Most times that a path may lead out of the pool and back.
const MAX_DETOURS: usize = 8;

static CWD_INSIDE: AtomicBool = AtomicBool::new(false);
/// The working directory lies in a pool that this process couldn't reach when it started.
static CWD_LOST: AtomicBool = AtomicBool::new(false);

/// Notes whether the working directory is out of reach: relative paths fail, rather than
/// lead to where the kernel believes the process to be.
pub fn note_lost_cwd(lost: bool) {
    CWD_LOST.store(lost, Release);
}

/// In a forked child for which there was no slot, or none was needed.
pub fn child_without_slot() {
    if CWD_INSIDE.load(Acquire) {
        note_lost_cwd(true);
    }
}

/// Whether the working directory is out of reach.
pub fn is_cwd_lost() -> bool {
    CWD_LOST.load(Acquire)
}

/// Notes whether the working directory may lie in the pool (in this process or in a vfork
/// child of it: the area of the process says it exactly).
pub fn note_cwd(inside: bool) {
    if inside {
        CWD_INSIDE.store(true, Release);
    } else if !crate::process::in_vfork_child() {
        CWD_INSIDE.store(false, Release);
    }
}

/// The working directory, if it lies in the pool.
pub fn cwd(fs: &Fs) -> Option<ObjectId> {
    if !CWD_INSIDE.load(Acquire) {
        return None;
    }
    match fs.store().area().ok()?.cwd.load(Acquire) {
        0 => None,
        id => Some(ObjectId(id)),
    }
}

/// The umask, if it was asked for before.
pub fn known_umask(store: &Store) -> Option<u32> {
    store.area().ok()?.umask.load(Acquire).checked_sub(1)
}

/// The umask.
pub fn umask(fs: &Fs) -> u32 {
    if let Some(mask) = known_umask(fs.store()) {
        return mask;
    }
    let mask = forebay_posix::umask();
    if let Ok(area) = fs.store().area() {
        area.umask.store(mask + 1, Release);
    }
    mask
}

/// umask(2).
pub fn set_umask(mask: i64) -> i64 {
    // SAFETY: the program's own call.
    let old = unsafe { raw(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]) };
    if let Some(fs) = runtime::open_fs()
        && fs.store().is_attached()
        && let Ok(area) = fs.store().area()
    {
        area.umask.store((mask as u32 & 0o777) + 1, Release);
    }
    old
}

/// The end of a program's addresses.
const USER_END: i64 = 0x7fff_ffff_f000;

/// Whether something of the program may lie at this address at all: not in the first
/// page, and not where the kernel is.
pub fn plausible(ptr: i64) -> bool {
    (4096..USER_END).contains(&ptr)
}

/// Whether a buffer isn't where the kernel is. That is an error even if nothing is to be copied.
pub fn is_user(ptr: i64, len: usize) -> bool {
    ptr as u64 <= USER_END as u64 && len as u64 <= USER_END as u64 - ptr as u64
}

/// The bytes of a path that the program passed; none if the kernel has to say EFAULT.
///
/// # Safety
/// `ptr` isn't plausible, or is a C string that stays for the call.
pub unsafe fn bytes(ptr: i64) -> Option<&'static [u8]> {
    if !plausible(ptr) {
        return None;
    }
    let text = ptr as *const libc::c_char;
    // SAFETY: the caller's promise; if it breaks it, the kernel is to say so.
    let path = unsafe { touch(|| CStr::from_ptr(text)) }?;
    Some(path.to_bytes())
}

/// A path that the program passed.
///
/// # Safety
/// A C string that stays for the call.
pub unsafe fn text(ptr: i64) -> Option<Cow<'static, [u8]>> {
    // SAFETY: passed on.
    unsafe { bytes(ptr) }.map(Cow::Borrowed)
}

fn contains(path: &[u8], mark: &[u8]) -> bool {
    path.len() >= mark.len() && path.windows(mark.len()).any(|w| w == mark)
}

/// Whether any component is empty, `.` or `..`.
fn has_dots(path: &[u8]) -> bool {
    contains(path, b"//") || contains(path, b"/.")
}

/// Joins and resolves `.`, `..` and doubled slashes by the text alone.
pub fn normalise(base: &[u8], path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(base.len() + path.len() + 1);
    let base = if path.first() == Some(&b'/') {
        &b""[..]
    } else {
        base
    };
    for part in base.split(|&b| b == b'/').chain(path.split(|&b| b == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                let cut = out.iter().rposition(|&b| b == b'/').unwrap_or(0);
                out.truncate(cut);
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(part);
            }
        }
    }
    if out.is_empty() || (path.last() == Some(&b'/') && !out.is_empty()) {
        out.push(b'/');
    }
    out
}

/// The part behind the mount prefix, if the path is under it.
pub fn under<'a>(mount: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(mount)? {
        b"" => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

/// Where `path`, relative to descriptor `dirfd`, leads.
///
/// # Errors
/// ENOTDIR, EBADF; ENOTCONN if the pool can't be reached.
///
/// # Safety
/// `ptr` is null or a C string.
pub unsafe fn locate(dirfd: i32, ptr: i64) -> Result<Where, Errno> {
    let Some(settings) = runtime::settings() else {
        return Ok(Where::Kernel);
    };
    // SAFETY: passed on.
    let Some(path) = (unsafe { bytes(ptr) }) else {
        return Ok(Where::Kernel);
    };
    match path.first() {
        Some(b'/') => {
            if let Some(rest) = under(settings.mount, path) {
                if path.len() >= PATH_MAX {
                    return Err(Errno::NAMETOOLONG);
                }
                return Ok(Where::Pool(
                    runtime::fs()?,
                    ObjectId::ROOT,
                    Cow::Borrowed(rest),
                ));
            }
            if has_dots(path) && contains(path, settings.mark) {
                let _critical = Critical::enter();
                let full = normalise(b"", path);
                if let Some(rest) = under(settings.mount, &full) {
                    let rest = keep_end(rest, path);
                    return Ok(Where::Pool(
                        runtime::fs()?,
                        ObjectId::ROOT,
                        Cow::Owned(rest),
                    ));
                }
            }
            if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
                let _critical = Critical::enter();
                if let Some((fs, inside)) = exe::locate(path) {
                    return Ok(Where::Exe(fs, inside));
                }
                return Ok(proc_paths::locate(path)?.unwrap_or(Where::Kernel));
            }
            Ok(Where::Kernel)
        }
        None => Ok(Where::Kernel),
        _ if dirfd == libc::AT_FDCWD => {
            if is_cwd_lost() {
                return Err(Errno::NOTCONN);
            }
            if CWD_INSIDE.load(Acquire)
                && let Some(fs) = runtime::open_fs()
                && let Some(cwd) = cwd(fs)
            {
                return Ok(Where::Pool(fs, cwd, Cow::Borrowed(path)));
            }
            relative_to_kernel(settings, path, None)
        }
        _ => {
            if let Some((fs, open)) = fds::pool_file(dirfd) {
                let o = fs.store().open_file(open);
                if o.kind.load(Relaxed) != libc::S_IFDIR {
                    return Err(Errno::NOTDIR);
                }
                let id = ObjectId(o.id.load(Relaxed));
                return Ok(Where::Pool(fs, id, Cow::Borrowed(path)));
            }
            relative_to_kernel(settings, path, Some(dirfd))
        }
    }
}

/// A trailing `/`, `/.` or `/..` says that a directory is meant: keep the slash.
fn keep_end(rest: &[u8], path: &[u8]) -> Vec<u8> {
    let mut rest = rest.to_vec();
    if (path.ends_with(b"/.") || path.ends_with(b"/..")) && !rest.ends_with(b"/") {
        rest.push(b'/');
    }
    rest
}

/// A path relative to a directory of the kernel's that still may lead under the prefix.
fn relative_to_kernel(
    settings: &runtime::Settings,
    path: &[u8],
    dirfd: Option<i32>,
) -> Result<Where, Errno> {
    if !contains(path, settings.mark) {
        return Ok(Where::Kernel);
    }
    let _critical = Critical::enter();
    let Some(base) = path_of_kernel(dirfd.unwrap_or(libc::AT_FDCWD)) else {
        return Ok(Where::Kernel);
    };
    let full = normalise(&base, path);
    match under(settings.mount, &full) {
        Some(rest) => {
            let rest = keep_end(rest, path);
            Ok(Where::Pool(
                runtime::fs()?,
                ObjectId::ROOT,
                Cow::Owned(rest),
            ))
        }
        None => Ok(Where::Kernel),
    }
}

/// The path of a directory of the kernel's that is open, or of the working directory.
pub fn path_of_kernel(dirfd: i32) -> Option<Vec<u8>> {
    let mut link = [0u8; 40];
    let name: &[u8] = if dirfd == libc::AT_FDCWD {
        b"/proc/self/cwd\0"
    } else {
        use std::io::Write;
        let mut at = &mut link[..];
        let _ = write!(at, "/proc/self/fd/{dirfd}\0");
        &link
    };
    let mut base = [0u8; PATH_MAX];
    // SAFETY: a C string and a buffer with its length.
    let n = unsafe {
        raw(
            libc::SYS_readlink,
            [
                name.as_ptr() as i64,
                base.as_mut_ptr() as i64,
                base.len() as i64,
                0,
                0,
                0,
            ],
        )
    };
    (n > 0).then(|| base[..n as usize].to_vec())
}

/// A place that stands for an open file.
pub fn place_of_open(fs: &Fs, open: u32) -> Place {
    let o = fs.store().open_file(open);
    let entry = Entry {
        id: ObjectId(o.id.load(Relaxed)),
        kind: o.kind.load(Relaxed),
    };
    let mut name = Vec::new();
    if entry.kind != libc::S_IFDIR {
        fs.store().open_name(o, &mut name);
    }
    let parent = ObjectId(o.parent.load(Relaxed));
    fs.place_of(
        parent,
        Name::new(&name).unwrap_or_else(|_| Name::empty()),
        entry,
    )
}

/// A system call that takes a path: its number and arguments.
#[derive(Clone, Copy)]
pub struct PathCall<'a> {
    pub nr: i64,
    pub args: &'a [i64; 6],
}

/// Runs `f` on the place that a path argument leads to; [`PASS`] if it isn't in the pool.
/// `dirfd`: index of the directory descriptor, if there is
/// one; `path`: index of the path.
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
    // The path that a symbolic link out of the pool leads to: it may lead back.
    let mut outside: Option<CString> = None;
    for _ in 0..MAX_DETOURS {
        let base = match (dirfd, &outside) {
            (Some(i), None) => args[i] as i32,
            _ => libc::AT_FDCWD,
        };
        // SAFETY: the program's path, or ours.
        let located = unsafe { locate(base, args[path]) };
        if matches!(located, Ok(Where::Kernel)) && outside.is_none() && !CWD_INSIDE.load(Acquire) {
            return PASS;
        }
        // Dropped last: no signal handler runs while we work, nor a cancellation.
        let critical = Critical::enter();
        let result = match located {
            Ok(Where::Pool(fs, base, p)) => fs.at(base, &p, goal, |place| f(fs, place)),
            Ok(Where::Descriptor(fs, open)) if follow == Follow::Yes => {
                f(fs, &place_of_open(fs, open)).map_err(Fail::Errno)
            }
            Ok(Where::Exe(fs, p)) if follow == Follow::Yes => {
                fs.at(ObjectId::ROOT, p, follow, |place| f(fs, place))
            }
            Ok(Where::Kernel | Where::Descriptor(..) | Where::Exe(..)) => {
                // SAFETY: as above.
                let cwd = unsafe { working_directory(args[path]) };
                match cwd.filter(|_| follow == Follow::Yes) {
                    Some((fs, cwd)) => fs.at(cwd, b".", follow, |place| f(fs, place)),
                    None => {
                        drop(critical);
                        if outside.is_none() {
                            return PASS;
                        }
                        if let Some(i) = dirfd {
                            args[i] = i64::from(libc::AT_FDCWD);
                        }
                        // SAFETY: the program's own call, with the path it really means.
                        return unsafe {
                            let result = raw(call.nr, args);
                            links::again(&Call { nr: call.nr, args }, result)
                        };
                    }
                }
            }
            Err(e) => Err(Fail::Errno(e)),
        };
        match result {
            Ok(value) => return value,
            Err(Fail::Errno(e)) => return errno(e),
            Err(Fail::Outside(to)) => match CString::new(to) {
                Ok(to) => args[path] = outside.insert(to).as_ptr() as i64,
                Err(_) => return errno(Errno::NOENT),
            },
        }
    }
    errno(Errno::LOOP)
}

/// The working directory, if it lies in the pool and the path is its name in /proc.
///
/// # Safety
/// As for [`locate`].
pub unsafe fn working_directory(ptr: i64) -> Option<(&'static Fs, ObjectId)> {
    if !CWD_INSIDE.load(Acquire) {
        return None;
    }
    // SAFETY: passed on.
    proc_paths::is_working_directory(unsafe { bytes(ptr) }?)
}

/// Makes the call with another, absolute path.
///
/// # Safety
/// As for the call itself.
pub unsafe fn again_outside(
    call: PathCall<'_>,
    dirfd: Option<usize>,
    path: usize,
    to: Vec<u8>,
) -> i64 {
    let Ok(to) = CString::new(to) else {
        return errno(Errno::NOENT);
    };
    let mut args = *call.args;
    args[path] = to.as_ptr() as i64;
    if let Some(i) = dirfd {
        args[i] = i64::from(libc::AT_FDCWD);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let result = raw(call.nr, args);
        links::again(&Call { nr: call.nr, args }, result)
    }
}

/// Touches the program's memory; None if it isn't there. No handler of the program runs in the
/// middle of it, where a fault of its own would be taken for ours.
///
/// # Safety
/// As for [`guard::attempt`].
pub unsafe fn touch<T: Copy>(f: impl FnOnce() -> T) -> Option<T> {
    let _critical = Critical::enter();
    // SAFETY: the caller's promise.
    unsafe { guard::attempt(f) }
}

/// Reads a list of the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a T.
pub unsafe fn take_list<T: Copy>(from: i64, len: usize) -> Result<Vec<T>, Errno> {
    let _critical = Critical::enter();
    let mut list: Vec<T> = Vec::with_capacity(len);
    // SAFETY: the caller's promise; there is room.
    unsafe {
        let to = list.as_mut_ptr().cast::<u8>();
        if !guard::copy(from as *const u8, to, len * size_of::<T>()) {
            return Err(Errno::FAULT);
        }
        list.set_len(len);
    }
    Ok(list)
}

/// Writes a value to the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// No reference to what is written is alive.
pub unsafe fn give<T: Copy>(value: T, to: i64) -> Result<i64, Errno> {
    // SAFETY: the caller's promise; plain data.
    let done = unsafe { touch(|| (to as *mut T).write_unaligned(value)) };
    done.map(|()| 0).ok_or(Errno::FAULT)
}

/// Reads a value of the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a T.
pub unsafe fn take<T: Copy>(from: i64) -> Result<T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { touch(|| (from as *const T).read_unaligned()) }.ok_or(Errno::FAULT)
}

/// An error as a system call returns it.
pub fn errno(e: Errno) -> i64 {
    -i64::from(e.raw_os_error())
}

/// A result as a system call returns it.
pub fn value(result: Result<i64, Errno>) -> i64 {
    result.unwrap_or_else(errno)
}

/// Copies a path or link target to the program, cut to its buffer.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn copy_cut(bytes: &[u8], buffer: i64, size: usize) -> i64 {
    let n = bytes.len().min(size);
    let _critical = Critical::enter();
    // SAFETY: the caller's promise.
    match unsafe { guard::copy(bytes.as_ptr(), buffer as *mut u8, n) } {
        true => n as i64,
        false => errno(Errno::FAULT),
    }
}

//! Symbolic links outside the pool that lead into it.
//!
//! The kernel follows such a link and finds nothing under the prefix. So when the kernel reports
//! that a path doesn't exist, this module searches the path for such a link. If there is one, it
//! repeats the call with the path in the pool. Calls that succeed cost nothing extra.

#![allow(
    non_upper_case_globals,
    reason = "the names of system calls are libc's"
)]

use crate::calls;
use crate::paths::locate;
use crate::paths::prefix::{normalise, under};
use crate::pool;
use crate::program::results::errno;
use crate::program::{settings, user};
use forebay_intercept::{Call, PASS, bitmap, raw};
use forebay_posix::{Errno, Follow, PATH_MAX};
use forebay_store::process::Critical;
use libc::*;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Maximum number of links in one path, as in Linux.
const MAX_LINKS: usize = 40;
/// Maximum number of times that a call is repeated because a link on its path has changed.
const MAX_TURNS: u32 = 16;
/// Maximum number of times that a path goes into the pool and out of it again.
const MAX_CROSSINGS: u32 = 8;

/// Calls that are examined when they fail: a link on their path may lead into the pool.
pub static WATCHED: [u64; 8] = bitmap(&[
    SYS_open,
    SYS_openat,
    SYS_openat2,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_inotify_add_watch,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_access,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_mkdir,
    SYS_mkdirat,
    SYS_rmdir,
    SYS_unlink,
    SYS_unlinkat,
    SYS_rename,
    SYS_renameat,
    SYS_renameat2,
    SYS_link,
    SYS_linkat,
    SYS_symlink,
    SYS_symlinkat,
    SYS_readlink,
    SYS_readlinkat,
    SYS_chmod,
    SYS_fchmodat,
    calls::FCHMODAT2,
    SYS_chown,
    SYS_lchown,
    SYS_fchownat,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_utimensat,
    SYS_mknod,
    SYS_mknodat,
    SYS_truncate,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_removexattr,
    SYS_lremovexattr,
]);

/// Type of the function that serves a system call: number, arguments, and how many times the call's
/// path has gone into the pool and out of it again. The function returns [`PASS`] if the kernel is
/// to make the call.
pub type Answer = unsafe fn(i64, &[i64; 6], u32) -> i64;

/// The dispatcher's function, which serves a repeated call. The dispatcher is above this module, so
/// [`served_by`] sets the function. (Passing it as an argument would slow down each call, even
/// calls without a path.)
static ANSWER: OnceLock<Answer> = OnceLock::new();

/// Sets the function that serves repeated calls. Called before any call is intercepted.
pub fn served_by(answer: Answer) {
    let _ = ANSWER.set(answer);
}

/// A path among a call's arguments: index of its directory descriptor (if any), index of the path,
/// and whether a link is followed if it is the last component.
type PathArgument = (Option<usize>, usize, Follow);

fn follow_if(follows: bool) -> Follow {
    if follows { Follow::Yes } else { Follow::No }
}

/// Whether a link is followed that is the last component of a path, and behind which are slashes if
/// `slash`.
fn is_last_followed(follow: Follow, slash: bool) -> bool {
    match follow {
        Follow::Yes => true,
        Follow::No => slash,
        Follow::Never => false,
    }
}

fn open_follows(flags: i32) -> Follow {
    follow_if(flags & O_NOFOLLOW == 0 && flags & (O_CREAT | O_EXCL) != O_CREAT | O_EXCL)
}

/// # Safety
/// The arguments are those of a system call of the program.
unsafe fn path_arguments(nr: i64, a: &[i64; 6]) -> [Option<PathArgument>; 2] {
    let follows = |flags: i64| follow_if(flags as i32 & AT_SYMLINK_NOFOLLOW == 0);
    let at = |path: usize, follow: Follow| [Some((Some(0), path, follow)), None];
    let plain = |follow: Follow| [Some((None, 0, follow)), None];
    match nr {
        SYS_open => plain(open_follows(a[1] as i32)),
        SYS_openat => at(1, open_follows(a[2] as i32)),
        SYS_openat2 => {
            // SAFETY: any bytes are three u64; a bad address is caught.
            match unsafe { user::take::<[u64; 3]>(a[2]) } {
                Ok([flags, _, 0]) if a[3] >= 24 => at(1, open_follows(flags as i32)),
                _ => [None, None],
            }
        }
        SYS_creat | SYS_stat | SYS_statfs | SYS_access | SYS_chdir | SYS_chmod | SYS_chown
        | SYS_utime | SYS_utimes | SYS_truncate | SYS_getxattr | SYS_setxattr | SYS_listxattr
        | SYS_removexattr => plain(Follow::Yes),
        SYS_lstat | SYS_readlink | SYS_lchown | SYS_lgetxattr | SYS_lsetxattr | SYS_llistxattr
        | SYS_lremovexattr => plain(Follow::No),
        SYS_mkdir | SYS_mknod | SYS_rmdir | SYS_unlink => plain(Follow::Never),
        SYS_newfstatat | SYS_faccessat2 | SYS_utimensat => at(1, follows(a[3])),
        calls::FCHMODAT2 => at(1, follows(a[3])),
        SYS_statx => at(1, follows(a[2])),
        SYS_fchownat => at(1, follows(a[4])),
        SYS_faccessat | SYS_fchmodat | SYS_futimesat => at(1, Follow::Yes),
        SYS_mkdirat | SYS_mknodat | SYS_unlinkat => at(1, Follow::Never),
        SYS_readlinkat => at(1, Follow::No),
        SYS_symlink => [Some((None, 1, Follow::Never)), None],
        SYS_inotify_add_watch => {
            let follow = follow_if(a[2] as u32 & IN_DONT_FOLLOW == 0);
            [Some((None, 1, follow)), None]
        }
        SYS_symlinkat => [Some((Some(1), 2, Follow::Never)), None],
        SYS_rename => [
            Some((None, 0, Follow::Never)),
            Some((None, 1, Follow::Never)),
        ],
        SYS_link => [Some((None, 0, Follow::No)), Some((None, 1, Follow::Never))],
        SYS_renameat | SYS_renameat2 => [
            Some((Some(0), 1, Follow::Never)),
            Some((Some(2), 3, Follow::Never)),
        ],
        SYS_linkat => {
            let follow = follow_if(a[4] as i32 & AT_SYMLINK_FOLLOW != 0);
            [
                Some((Some(0), 1, follow)),
                Some((Some(2), 3, Follow::Never)),
            ]
        }
        _ => [None, None],
    }
}

/// Whether a call creates the file at its path if it doesn't exist.
///
/// # Safety
/// The arguments are those of a system call of the program.
unsafe fn creates(nr: i64, a: &[i64; 6]) -> bool {
    let flags = match nr {
        SYS_creat => return true,
        SYS_open => a[1],
        SYS_openat => a[2],
        // SAFETY: any bytes are a u64; a bad address is caught.
        SYS_openat2 => unsafe { user::take::<u64>(a[2]) }.map_or(0, |flags| flags as i64),
        _ => 0,
    };
    flags as i32 & O_CREAT != 0
}

/// Whether an error may come from a link that the kernel couldn't follow into the pool.
pub fn is_suspicious(result: i64) -> bool {
    matches!(-result as i32, ENOENT | ENOTDIR | EACCES)
}

/// Repeats a call that has failed in the kernel, with the path in the pool, if a link on the call's
/// path leads there. Returns the call's result. `crossings`: how many times its path went into the
/// pool and out of it again.
///
/// # Safety
/// The call is one that the program makes.
pub unsafe fn again(call: &Call, mut result: i64, crossings: u32) -> i64 {
    let Some(answer) = ANSWER.get() else {
        return result;
    };
    let mut args = call.args;
    let mut texts: [Option<CString>; 2] = [None, None];
    for turn in 0.. {
        if !is_suspicious(result) || turn == MAX_TURNS {
            return result;
        }
        let mut has_turned = false;
        // SAFETY: the caller passes a call that the program makes.
        let arguments = unsafe { path_arguments(call.nr, &call.args) };
        // SAFETY: as above.
        let is_made = result == errno(Errno::NOENT) && unsafe { creates(call.nr, &call.args) };
        for (text, (dirfd, path, follow)) in texts.iter_mut().zip(arguments.into_iter().flatten()) {
            let base = dirfd.map_or(AT_FDCWD, |i| args[i] as i32);
            // SAFETY: the program's path is a bad address, or a C string that isn't freed
            // meanwhile.
            let Some(given) = (unsafe { user::path(args[path]) }) else {
                continue;
            };
            match leads(base, given, follow, is_made) {
                Leads::IntoThePool(to) => {
                    args[path] = to.as_ptr() as i64;
                    if let Some(i) = dirfd {
                        args[i] = AT_FDCWD.into();
                    }
                    *text = Some(to);
                }
                Leads::Outside => has_turned = true,
                Leads::Nowhere => {}
            }
        }
        if texts.iter().any(Option::is_some) {
            break;
        }
        if !has_turned {
            return result;
        }
        // The link led into the pool when the kernel followed it, but now leads elsewhere.
        // SAFETY: the program makes this call; its arguments are passed on unchanged.
        result = unsafe { raw(call.nr, call.args) };
    }
    if crossings >= MAX_CROSSINGS {
        return errno(Errno::LOOP);
    }
    // SAFETY: the program's call; only the path is replaced, by a C string that outlives the call.
    match unsafe { answer(call.nr, &args, crossings + 1) } {
        // SAFETY: as above.
        PASS => unsafe { raw(call.nr, args) },
        found => found,
    }
}

/// Whether the prefix is also a directory of the kernel: then a path that the kernel finds may be
/// one of the pool.
#[inline]
pub fn is_shadowing() -> bool {
    settings::settings().is_some_and(|s| s.shadows)
}

/// If a path of the call leads under the prefix, makes the call with the path in the pool and
/// returns its result. None if no path does, or if the prefix isn't a directory of the kernel, too.
///
/// # Safety
/// The call is one that the program makes.
pub unsafe fn around_the_shadowed(call: &Call) -> Option<i64> {
    if !is_shadowing() {
        return None;
    }
    let answer = ANSWER.get()?;
    let mut args = call.args;
    let mut texts: [Option<CString>; 2] = [None, None];
    // SAFETY: the caller passes a call that the program makes.
    let arguments = unsafe { path_arguments(call.nr, &call.args) };
    for (text, (dirfd, path, follow)) in texts.iter_mut().zip(arguments.into_iter().flatten()) {
        let base = dirfd.map_or(AT_FDCWD, |i| args[i] as i32);
        // SAFETY: the program's path is a bad address, or a C string that isn't freed meanwhile.
        let given = unsafe { user::path(args[path]) };
        if let Some(to) = given.and_then(|given| shadowed(base, given, follow)) {
            args[path] = to.as_ptr() as i64;
            if let Some(i) = dirfd {
                args[i] = AT_FDCWD.into();
            }
            *text = Some(to);
        }
    }
    texts.iter().any(Option::is_some).then(|| {
        // SAFETY: the program's call; only paths are replaced, by C strings that outlive the call.
        let found = unsafe { answer(call.nr, &args, 0) };
        match found {
            // SAFETY: as above.
            PASS => unsafe { raw(call.nr, args) },
            found => found,
        }
    })
}

/// Returns the path under the prefix to which a path outside leads in the kernel, if the pool has
/// this path: an existing object, or a name in an existing directory.
pub fn shadowed(dirfd: i32, path: &[u8], follow: Follow) -> Option<CString> {
    let real = really_under(dirfd, path, follow)?;
    let inside = under(settings::settings()?.mount, real.to_bytes())?;
    // The kernel finds a file that exists only at the origin under the path as given, even after
    // renames. So the path isn't replaced.
    if pool::fs().is_ok_and(|fs| fs.resolver().is_at_origin(inside)) {
        None
    } else {
        Some(real)
    }
}

/// Returns the path under the prefix to which a path leads in the kernel. All of it must exist
/// except the last name. The last name is taken from the path, or from a link's target, not from
/// the kernel's answer, which may be out of date: the object may have another name by now.
fn really_under(dirfd: i32, path: &[u8], follow: Follow) -> Option<CString> {
    let settings = settings::settings()?;
    if path.is_empty() || path.len() >= PATH_MAX || path.starts_with(b"/proc/") {
        return None;
    }
    let _critical = Critical::enter();
    let (mut dirfd, mut path) = (dirfd, path.to_vec());
    for _ in 0..MAX_LINKS {
        let end = path.len() - path.iter().rev().take_while(|&&b| b == b'/').count();
        let cut = path[..end].iter().rposition(|&b| b == b'/');
        let (parent, name) = match cut {
            None => (&b"."[..], &path[..end]),
            Some(0) => (&b"/"[..], &path[1..end]),
            Some(cut) => (&path[..cut], &path[cut + 1..end]),
        };
        let mut real = match name {
            b"" | b".." => real_directory(dirfd, &path)?,
            // The path of a process's descriptor.
            _ if path.starts_with(b"/proc/") => real_path(dirfd, &path, follow)?,
            name => {
                let mut real = real_directory(dirfd, parent)?;
                let is_followed = is_last_followed(follow, end < path.len());
                if is_followed && let Some(target) = read_link(dirfd, &path[..end]) {
                    let mut next = match target.first() {
                        Some(b'/') => Vec::new(),
                        _ => [&real[..], b"/"].concat(),
                    };
                    next.extend_from_slice(&target);
                    next.extend_from_slice(&path[end..]);
                    if next.len() >= PATH_MAX {
                        return None;
                    }
                    (path, dirfd) = (next, AT_FDCWD);
                    continue;
                }
                if real != b"/" {
                    real.push(b'/');
                }
                real.extend_from_slice(name);
                real
            }
        };
        if path.len() > end && !real.ends_with(b"/") {
            // A trailing slash: the path must be a directory.
            real.push(b'/');
        }
        under(settings.mount, &real)?;
        return CString::new(real).ok();
    }
    None
}

/// How a call whose path leads to the pool's origin continues.
pub enum Onwards {
    /// In the kernel, with this path.
    Kernel(CString),
    /// In the pool: a link at the origin leads to this path under the prefix.
    Pool(CString),
}

/// Returns how a call continues whose path `to` is at the pool's origin. Where the prefix is the
/// origin's own path, a link there, or `..`, may lead into the pool.
///
/// # Errors
/// ENOENT: the path contains a zero byte.
pub fn onwards(to: Vec<u8>, follow: Follow) -> Result<Onwards, Errno> {
    let is_shadowed = settings::settings().is_some_and(|s| under(s.mount, &to).is_some());
    // With `Never` the last name itself is meant: its trailing slashes are set aside while the path
    // is resolved, and appended to the result.
    let slashes = match follow {
        Follow::Never => to.iter().rev().take_while(|&&b| b == b'/').count(),
        Follow::Yes | Follow::No => 0,
    };
    let (name, slashes) = to.split_at(to.len() - slashes);
    let real = if is_shadowed {
        really_under(AT_FDCWD, name, follow)
    } else {
        None
    };
    match real {
        // `real` is the path with its links, `.` and `..` resolved.
        Some(real) if real.to_bytes() != name => {
            let there = [real.to_bytes(), slashes].concat();
            let there = CString::new(there).map_err(|_| Errno::NOENT)?;
            Ok(Onwards::Pool(there))
        }
        _ => CString::new(to)
            .map(Onwards::Kernel)
            .map_err(|_| Errno::NOENT),
    }
}

/// Returns the path under the prefix to which `path`, which the kernel doesn't find, leads through
/// a symbolic link, if it does.
pub fn into_pool(dirfd: i32, path: &[u8], follow: Follow) -> Option<CString> {
    if is_shadowing() {
        let found = shadowed(dirfd, path, follow);
        if found.is_some() {
            return found;
        }
    }
    match leads(dirfd, path, follow, false) {
        Leads::IntoThePool(to) => Some(to),
        _ => None,
    }
}

/// Where a path leads that the kernel hasn't found.
enum Leads {
    IntoThePool(CString),
    /// A link on the path leads to an object outside that exists, or that the call would have made:
    /// when the kernel followed the link, it led elsewhere.
    Outside,
    Nowhere,
}

/// Finds out where a path leads that the kernel hasn't found. `is_made`: the call creates the file
/// at the path, so it suffices that its directory exists.
fn leads(dirfd: i32, path: &[u8], follow: Follow, is_made: bool) -> Leads {
    let Some(settings) = settings::settings() else {
        return Leads::Nowhere;
    };
    if path.is_empty() || path.len() >= PATH_MAX {
        return Leads::Nowhere;
    }
    let _critical = Critical::enter();
    let Some(mut path) = follow_one(dirfd, path, follow) else {
        return Leads::Nowhere;
    };
    for _ in 0..MAX_LINKS {
        if under(settings.mount, &path).is_some() {
            return CString::new(path).map_or(Leads::Nowhere, Leads::IntoThePool);
        }
        match follow_one(AT_FDCWD, &path, follow) {
            Some(next) => path = next,
            None if is_there(&path, is_made) => return Leads::Outside,
            None => break,
        }
    }
    Leads::Nowhere
}

/// Whether an object exists at an absolute path outside the pool. With `or_its_directory`, it
/// suffices that its directory exists.
fn is_there(path: &[u8], or_its_directory: bool) -> bool {
    let mut text = Text::new(path);
    let cut = path.iter().rposition(|&b| b == b'/');
    text.exists(AT_FDCWD, path.len())
        || or_its_directory && cut.is_some_and(|cut| cut == 0 || text.exists(AT_FDCWD, cut))
}

/// A path as a C string, of which any beginning can be passed to the kernel. The C string is on the
/// stack: most paths that aren't found have no links, and need no allocation.
struct Text([MaybeUninit<u8>; PATH_MAX]);

impl Text {
    /// Copies `path`, which is shorter than PATH_MAX: the zero at its end needs room.
    fn new(path: &[u8]) -> Text {
        let mut text = Text([MaybeUninit::uninit(); PATH_MAX]);
        for (to, from) in text.0.iter_mut().zip(path) {
            to.write(*from);
        }
        text
    }

    /// Returns the result of `call` on the first `len` bytes of the path.
    fn ask(&mut self, len: usize, call: impl FnOnce(i64) -> i64) -> i64 {
        let at = self.0.as_ptr() as i64;
        let kept = std::mem::replace(&mut self.0[len], MaybeUninit::new(0));
        let result = call(at);
        self.0[len] = kept;
        result
    }

    /// Whether the first `len` bytes of the path are the path of an existing object. `len` is less
    /// than PATH_MAX.
    fn exists(&mut self, dirfd: i32, len: usize) -> bool {
        // SAFETY: `ask` puts a zero at the path's end for the duration of the call.
        self.ask(len, |path| unsafe {
            raw(SYS_faccessat, [dirfd.into(), path, F_OK.into(), 0, 0, 0])
        }) == 0
    }

    fn is_link(&mut self, dirfd: i32, len: usize) -> bool {
        let mut byte = 0u8;
        let to = &raw mut byte as i64;
        // SAFETY: as in `exists`; the kernel writes at most one byte, to `byte`.
        self.ask(len, |path| unsafe {
            raw(SYS_readlinkat, [dirfd.into(), path, to, 1, 0, 0])
        }) > 0
    }
}

/// Follows the first link on `path` whose target doesn't exist. Returns the resulting path:
/// absolute, and without dots.
fn follow_one(dirfd: i32, path: &[u8], follow: Follow) -> Option<Vec<u8>> {
    let trimmed = path.len() - path.iter().rev().take_while(|&&b| b == b'/').count();
    let last = path[..trimmed].iter().rposition(|&b| b == b'/');
    let follow = is_last_followed(follow, trimmed < path.len());
    let mut text = Text::new(path);
    let parent_there = last.is_none_or(|cut| cut == 0 || text.exists(dirfd, cut));
    let link = if parent_there {
        // Only the last component can be such a link.
        trimmed
    } else {
        let mut ends = (1..=last?).filter(|&i| path[i] == b'/' && path[i - 1] != b'/');
        ends.find(|&end| !text.exists(dirfd, end))?
    };
    if parent_there && !follow || !text.is_link(dirfd, link) {
        return None;
    }
    let mut full = read_link(dirfd, &path[..link])?;
    full.extend_from_slice(&path[link..]);
    if full.len() >= PATH_MAX {
        return None;
    }
    if full[0] == b'/' {
        return Some(normalise(b"", &full));
    }
    let dir = path[..link].iter().rposition(|&b| b == b'/');
    let dir = dir.map_or(&b"."[..], |cut| &path[..cut.max(1)]);
    Some(normalise(&real_directory(dirfd, dir)?, &full))
}

fn read_link(dirfd: i32, path: &[u8]) -> Option<Vec<u8>> {
    let path = CString::new(path).ok()?;
    let mut target = vec![0; PATH_MAX];
    let (at, len) = (target.as_mut_ptr() as i64, target.len() as i64);
    // SAFETY: `path` is a C string; `target` has room for `len` bytes.
    let n = unsafe {
        raw(
            SYS_readlinkat,
            [dirfd.into(), path.as_ptr() as i64, at, len, 0, 0],
        )
    };
    target.truncate(usize::try_from(n).ok().filter(|&n| n > 0)?);
    Some(target)
}

/// Returns the path of a directory of the kernel, without links.
fn real_directory(dirfd: i32, path: &[u8]) -> Option<Vec<u8>> {
    real(dirfd, path, O_DIRECTORY)
}

/// Returns the path of the object that the kernel finds, without links.
fn real_path(dirfd: i32, path: &[u8], follow: Follow) -> Option<Vec<u8>> {
    let flags = match follow {
        Follow::Yes => 0,
        Follow::No | Follow::Never => O_NOFOLLOW,
    };
    real(dirfd, path, flags)
}

fn real(dirfd: i32, path: &[u8], flags: i32) -> Option<Vec<u8>> {
    let path = CString::new(path).ok()?;
    let flags = i64::from(O_PATH | O_CLOEXEC | flags);
    // SAFETY: `path` is a C string; the descriptor is closed again below.
    let fd = unsafe {
        raw(
            SYS_openat,
            [dirfd.into(), path.as_ptr() as i64, flags, 0, 0, 0],
        )
    };
    if fd < 0 {
        return None;
    }
    let found = locate::path_of_kernel(fd as i32);
    // SAFETY: closes the descriptor opened above, which nothing else uses.
    unsafe { raw(SYS_close, [fd, 0, 0, 0, 0, 0]) };
    found
}

//! Decides which paths lead into the pool.
//!
//! A path concerns the pool if it is absolute and under the mount prefix, or relative to a
//! directory of the pool: the working directory, or a descriptor. So does a path that names a pool
//! descriptor (`/proc/self/fd/N`, `/dev/stdin`). All other paths go to the kernel unchanged. The
//! decision takes a few comparisons.

use crate::paths::proc_paths::{self, Named};
use crate::paths::{exe, prefix};
use crate::pool::{self, fds, working_dir};
use crate::program::{settings, user};
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs, ObjectId, PATH_MAX};
use forebay_store::process::Critical;
use std::borrow::Cow;

/// Where a path leads.
pub enum Where {
    Kernel,
    /// Into the pool: the path `.2`, relative to the directory `.1`.
    Pool(&'static Fs, ObjectId, Cow<'static, [u8]>),
    /// To the open file behind a pool descriptor.
    Descriptor(&'static Fs, u32),
    /// Through `/proc/self/exe` to the program's own file, at this path in the pool.
    Exe(&'static Fs, &'static [u8]),
}

/// Returns where the path at `ptr`, relative to descriptor `dirfd`, leads.
///
/// # Errors
/// ENAMETOOLONG, ENOTDIR, EBADF; ENOTCONN if the pool can't be reached.
///
/// # Safety
/// `ptr` is null or a C string.
pub unsafe fn locate(dirfd: i32, ptr: i64) -> Result<Where, Errno> {
    let Some(settings) = settings::settings() else {
        return Ok(Where::Kernel);
    };
    // SAFETY: the caller promises that `ptr` is null or a C string.
    let Some(path) = (unsafe { user::path(ptr) }) else {
        return Ok(Where::Kernel);
    };
    // The length is checked before the directory argument.
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    match path.first() {
        Some(b'/') => {
            if let Some(rest) = prefix::under(settings.mount, path) {
                return Ok(Where::Pool(
                    pool::fs()?,
                    ObjectId::ROOT,
                    Cow::Borrowed(rest),
                ));
            }
            if prefix::has_dots(path) && prefix::contains(path, settings.mark) {
                let _critical = Critical::enter();
                let full = prefix::normalise(b"", path);
                if let Some(rest) = prefix::under(settings.mount, &full) {
                    let rest = prefix::keep_end(rest, path);
                    return Ok(Where::Pool(pool::fs()?, ObjectId::ROOT, Cow::Owned(rest)));
                }
            }
            if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
                let _critical = Critical::enter();
                if let Some((fs, inside)) = exe::locate(path) {
                    return Ok(Where::Exe(fs, inside));
                }
                return Ok(match proc_paths::locate(path)? {
                    Some(Named::Open(fs, open)) => Where::Descriptor(fs, open),
                    Some(Named::Beneath(fs, dir, rest)) => {
                        Where::Pool(fs, dir, Cow::Borrowed(rest))
                    }
                    None => Where::Kernel,
                });
            }
            Ok(Where::Kernel)
        }
        None => Ok(Where::Kernel),
        _ if dirfd == libc::AT_FDCWD => {
            if working_dir::is_lost() {
                return Err(Errno::NOTCONN);
            }
            if working_dir::may_be_inside()
                && let Some(fs) = pool::open_fs()
                && let Some(cwd) = working_dir::current(fs)
            {
                return Ok(Where::Pool(fs, cwd, Cow::Borrowed(path)));
            }
            relative_to_kernel(settings, path, None)
        }
        _ => {
            if let Some((fs, open)) = fds::pool_file(dirfd) {
                let dir = fs.description(open);
                if !dir.is_dir() {
                    return Err(Errno::NOTDIR);
                }
                return Ok(Where::Pool(fs, dir.id(), Cow::Borrowed(path)));
            }
            relative_to_kernel(settings, path, Some(dirfd))
        }
    }
}

/// Locates a path relative to a directory of the kernel. The path may still lead under the prefix.
fn relative_to_kernel(
    settings: &settings::Settings,
    path: &[u8],
    dirfd: Option<i32>,
) -> Result<Where, Errno> {
    if !prefix::contains(path, settings.mark) {
        return Ok(Where::Kernel);
    }
    let _critical = Critical::enter();
    let Some(base) = path_of_kernel(dirfd.unwrap_or(libc::AT_FDCWD)) else {
        return Ok(Where::Kernel);
    };
    let full = prefix::normalise(&base, path);
    match prefix::under(settings.mount, &full) {
        Some(rest) => {
            let rest = prefix::keep_end(rest, path);
            Ok(Where::Pool(pool::fs()?, ObjectId::ROOT, Cow::Owned(rest)))
        }
        None => Ok(Where::Kernel),
    }
}

/// Returns the path of an open directory of the kernel, or of the kernel's working directory.
pub fn path_of_kernel(dirfd: i32) -> Option<Vec<u8>> {
    let mut link = [0u8; 40];
    let name: &[u8] = if dirfd == libc::AT_FDCWD {
        b"/proc/thread-self/cwd\0"
    } else {
        use std::io::Write;
        let mut at = &mut link[..];
        let _ = write!(at, "/proc/self/fd/{dirfd}\0");
        &link
    };
    let mut base = [0u8; PATH_MAX];
    // SAFETY: `name` is a C string; `base` has room for the length passed.
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

/// Returns the working directory, if it lies in the pool and the path at `ptr` is `/proc/self/cwd`
/// or a similar name.
///
/// # Safety
/// As for [`locate`].
pub unsafe fn working_directory(ptr: i64) -> Option<(&'static Fs, ObjectId)> {
    if !working_dir::may_be_inside() {
        return None;
    }
    // SAFETY: the caller promises that `ptr` is null or a C string.
    proc_paths::is_working_directory(unsafe { user::path(ptr) }?)
}

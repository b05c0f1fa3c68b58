//! The settings: where the pool is, read once from the environment at the start.

use crate::program::{filter, variables};
use forebay_client::origin::SIGN;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The settings that [`read`] took from the environment. Leaked: they live as long as the process.
pub struct Settings {
    pub dir: &'static CStr,
    pub mount: &'static [u8],
    /// The last component of the mount prefix. Any path that leads into the pool contains it, even
    /// one that doesn't start with the prefix.
    pub mark: &'static [u8],
    /// The value of LD_PRELOAD with which this process was started.
    pub preload: &'static CStr,
    /// Whether the prefix may also be a directory of the kernel: the pool's origin. Paths that lead
    /// under the prefix by a link or from a working directory mustn't go to the kernel.
    pub shadows: bool,
}

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the settings, once [`read`] has stored them.
#[inline]
pub fn settings() -> Option<&'static Settings> {
    // SAFETY: the pointer is null, or of leaked settings, which are never freed or changed.
    unsafe { SETTINGS.load(Acquire).as_ref() }
}

/// Reads the settings. None if the environment names no pool. The inner value is the directory of
/// all pools of this user, which holds the cache of libc's system call sites, used with every pool.
pub fn read() -> Option<Option<CString>> {
    let (dir, mount) = (
        variables::value(variables::DIR)?,
        variables::value(variables::MOUNT)?.to_bytes(),
    );
    let mount = mount.strip_suffix(b"/").unwrap_or(mount);
    if mount.first() != Some(&b'/') {
        return None;
    }
    let mark = mount.rsplit(|&b| b == b'/').next().unwrap_or(b"");
    let preload = variables::value(variables::PRELOAD).unwrap_or(c"");
    let exists = |path: &[u8]| rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok();
    let sign = [dir.to_bytes(), b"/", SIGN.as_bytes()].concat();
    let settings = Box::new(Settings {
        dir,
        mount,
        mark,
        preload,
        // Whether the kernel has a file at the prefix isn't checked: if the origin is dead, the
        // check would block each program.
        shadows: exists(&sign),
    });
    SETTINGS.store(Box::leak(settings), Release);
    // Watches the library's own descriptors, so that a program that closes all descriptors can't
    // close these.
    forebay_runtime::fd::tell(filter::watch);
    let home = dir.to_bytes().rsplitn(2, |&b| b == b'/').nth(1);
    Some(home.and_then(|home| CString::new(home).ok()))
}

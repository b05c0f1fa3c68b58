//! The umask, as the process's area has it once it is known.

use crate::pool;
use forebay_intercept::raw;
use forebay_posix::Fs;
use forebay_store::Store;
use std::sync::atomic::Ordering::*;

/// The umask, if it was asked for before.
pub fn known(store: &Store) -> Option<u32> {
    store.area().ok()?.umask.load(Acquire).checked_sub(1)
}

/// The umask.
pub fn current(fs: &Fs) -> u32 {
    if let Some(mask) = known(fs.store()) {
        return mask;
    }
    let mask = forebay_posix::umask();
    if let Ok(area) = fs.store().area() {
        area.umask.store(mask + 1, Release);
    }
    mask
}

/// current(2).
pub fn set(mask: i64) -> i64 {
    // SAFETY: the program's own call.
    let old = unsafe { raw(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]) };
    if let Some(fs) = pool::open_fs()
        && fs.store().is_attached()
        && let Ok(area) = fs.store().area()
    {
        area.umask.store((mask as u32 & 0o777) + 1, Release);
    }
    old
}

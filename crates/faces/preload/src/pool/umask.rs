//! The umask, stored in the process's area once it is known.

use crate::pool::opened;
use forebay_intercept::raw;
use forebay_posix::Fs;

/// Returns the umask.
pub fn current(fs: &Fs) -> u32 {
    let process = fs.process();
    process.umask().unwrap_or_else(|| {
        let mask = forebay_posix::umask();
        process.note_umask(mask);
        mask
    })
}

/// Serves umask(2).
pub fn set(mask: i64) -> i64 {
    // SAFETY: umask takes no pointer.
    let old = unsafe { raw(libc::SYS_umask, [mask, 0, 0, 0, 0, 0]) };
    if let Some(fs) = opened::open_fs()
        && fs.process().is_attached()
    {
        fs.process().note_umask(mask as u32 & 0o777);
    }
    old
}

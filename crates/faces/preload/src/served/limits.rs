//! RLIMIT_FSIZE: limits the size of files that the process writes.

use crate::pool;
use crate::program::{process, size_limit};
use forebay_intercept::raw;

/// Serves setrlimit and prlimit64. A limit that another process sets for this one isn't noticed.
pub unsafe fn change(nr: i64, a: &[i64; 6]) -> i64 {
    // SAFETY: the program makes this call; its arguments are passed on unchanged.
    let result = unsafe { raw(nr, *a) };
    if pool::open_fs().is_some() && !process::in_vfork_child() {
        size_limit::refresh();
    }
    result
}

/// Sends the program SIGXFSZ, as the kernel does, if RLIMIT_FSIZE was the reason for which a call
/// has failed with EFBIG.
#[cold]
pub fn exceeded() {
    if let Some(fs) = pool::open_fs()
        && forebay_media::size_limit() != libc::RLIM_INFINITY
    {
        // Buffered writes are within the limit, and would be lost if the signal ends the process.
        fs.buffers().publish_all();
        // SAFETY: these calls take no pointers; the signal is for the calling thread.
        unsafe {
            let thread = raw(libc::SYS_gettid, [0; 6]);
            let process = raw(libc::SYS_getpid, [0; 6]);
            let signal = i64::from(libc::SIGXFSZ);
            raw(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]);
        }
    }
}

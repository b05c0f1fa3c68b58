//! RLIMIT_FSIZE: how large a file the process may write.

use crate::{process, runtime};
use forebay_intercept::raw;

/// Asks the kernel for the limit.
pub fn refresh() {
    let mut limit = [libc::RLIM_INFINITY; 2];
    let args = [
        0,
        i64::from(libc::RLIMIT_FSIZE),
        0,
        limit.as_mut_ptr() as i64,
        0,
        0,
    ];
    // SAFETY: this process; room for a struct rlimit64.
    unsafe { raw(libc::SYS_prlimit64, args) };
    forebay_media::set_size_limit(limit[0]);
}

/// setrlimit and prlimit64. A limit that another process sets for this one isn't noticed.
pub unsafe fn change(nr: i64, a: &[i64; 6]) -> i64 {
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, *a) };
    if runtime::open_fs().is_some() && !process::in_vfork_child() {
        refresh();
    }
    result
}

/// After a call has failed with EFBIG: if that was for the limit, the program gets a
/// signal, as from the kernel.
#[cold]
pub fn exceeded() {
    if let Some(fs) = runtime::open_fs()
        && forebay_media::size_limit() != libc::RLIM_INFINITY
    {
        // The signal may be the end, and what was written before isn't too much.
        fs.publish_all();
        // SAFETY: a signal for the calling thread.
        unsafe {
            let thread = raw(libc::SYS_gettid, [0; 6]);
            let process = raw(libc::SYS_getpid, [0; 6]);
            let signal = i64::from(libc::SIGXFSZ);
            raw(libc::SYS_tgkill, [process, thread, signal, 0, 0, 0]);
        }
    }
}

//! Calls after which the process may open nothing any more: prctl, seccomp, and changes of its
//! user. What work in the pool needs is opened before them.

use crate::pool;
use crate::served::{cwd, loading};
use forebay_intercept::raw;
use forebay_store::process::Critical;

/// Before prctl and seccomp. The program may be about to forbid itself, and so us, to open
/// anything: all that work in the pool needs is opened first. What is left then are calls on memory
/// and descriptors, getpid and futex.
pub fn before_filter(nr: i64, a: &[i64; 6]) {
    let filters = match nr {
        libc::SYS_prctl => a[0] == i64::from(libc::PR_SET_SECCOMP),
        _ => a[0] <= i64::from(libc::SECCOMP_SET_MODE_FILTER),
    };
    if !filters {
        return;
    }
    loading::stop();
    let _critical = Critical::enter();
    if let Ok(fs) = pool::fs() {
        pool::open_all();
        let _ = fs.process().attach();
        cwd::prepare(fs);
        forebay_store::watches::be_silent();
    }
}

/// A change of user or groups.
pub unsafe fn credentials(nr: i64, a: &[i64; 6]) -> i64 {
    // Another user may not be able to open the pool's files.
    pool::open_all();
    if let Some(fs) = pool::open_fs() {
        cwd::prepare(fs);
    }
    // SAFETY: the program's own call.
    let result = unsafe { raw(nr, *a) };
    if let Some(fs) = pool::open_fs() {
        fs.refresh_credentials();
    }
    result
}

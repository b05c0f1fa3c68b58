//! Calls after which the process may open nothing any more: prctl, seccomp. All descriptors that
//! work in the pool needs are opened before them.

use crate::pool;
use crate::served::{cwd, loading};
use forebay_store::process::Critical;

/// Before prctl and seccomp. The program may be about to forbid itself, and so us, to open
/// anything: all that work in the pool needs is opened first. The remaining calls then are those on
/// memory and descriptors, getpid and futex.
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

//! Installing of system call filters: prctl, seccomp. Descriptors that work in the pool needs are
//! opened before.

use crate::pool;
use crate::served::{cwd, loading};
use forebay_store::process::Critical;

/// Opens all descriptors that work in the pool needs, before prctl or seccomp. The program may be
/// about to forbid itself, and so this library, to open anything. Afterwards the library needs only
/// calls on memory and descriptors, getpid and futex.
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

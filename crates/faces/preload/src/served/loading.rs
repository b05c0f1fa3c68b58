//! Loading of libraries while the program runs: their own system calls are patched as the loader
//! maps their code.

use crate::map;
use crate::pool::fds;
use forebay_intercept::{File, PASS, raw};
use forebay_store::process::Critical;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Whether the program has installed a system call filter, which may forbid calls that patching
/// needs.
static FILTERED: AtomicBool = AtomicBool::new(false);

/// Stops patching: see [`FILTERED`].
pub fn stop() {
    FILTERED.store(true, Relaxed);
}

/// Whether an mmap is the loader mapping code of a library: only the loader passes MAP_DENYWRITE,
/// which has had no effect for decades. Code that a runtime generates isn't patched.
pub fn is_code(a: &[i64; 6]) -> bool {
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_DENYWRITE;
    let (prot, flags) = (a[2] as i32, a[3] as i32);
    prot & (libc::PROT_EXEC | libc::PROT_WRITE) == libc::PROT_EXEC
        && !FILTERED.load(Relaxed)
        && flags & (libc::MAP_TYPE | libc::MAP_DENYWRITE | libc::MAP_ANONYMOUS) == FLAGS
}

/// Serves the loader's mmap of code, and patches that code.
///
/// # Safety
/// The arguments are those of the call.
pub unsafe fn mmap(a: &[i64; 6]) -> i64 {
    let (len, fd, offset) = (a[1] as usize, a[4] as i32, a[5] as u64);
    // SAFETY: the caller passes the arguments of the loader's call.
    let at = match unsafe { map::mmap(a) } {
        // SAFETY: as above.
        PASS => unsafe { raw(libc::SYS_mmap, *a) },
        done => done,
    };
    if at < 0 {
        return at;
    }
    let _critical = Critical::enter();
    let ours = fds::pool_file(fd);
    let read = |to: &mut [u8], at: u64| match ours {
        Some((fs, open)) => {
            let live = fs.live_of(open).ok()?;
            // SAFETY: `to` is a slice, writable for its length.
            unsafe {
                fs.cluster()
                    .data()
                    .read(live, at, to.as_mut_ptr(), to.len())
            }
            .ok()
        }
        None => {
            let args = [
                fd.into(),
                to.as_mut_ptr() as i64,
                to.len() as i64,
                at as i64,
                0,
                0,
            ];
            // SAFETY: `to` is a slice, writable for its length.
            usize::try_from(unsafe { raw(libc::SYS_pread64, args) }).ok()
        }
    };
    let file = File {
        fd: ours.is_none().then_some(fd),
        read: &read,
    };
    // SAFETY: the code was just mapped, privately, and the loader runs it later.
    unsafe { forebay_intercept::mapped(&file, at as usize, len, offset) };
    at
}

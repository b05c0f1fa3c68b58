//! Stand-ins: empty files of the kernel that replace pool files in calls which no regular file can
//! serve (for sockets, pipes, timers). The kernel then returns the errors, in its own order.
//!
//! There is one stand-in for each access mode, made when it is first needed.

use crate::pool::fds;
use forebay_intercept::{PASS, raw};
use forebay_posix::Errno;
use forebay_runtime::fd::{Lent, Place};
use rustix::fd::AsRawFd;
use rustix::fs::{MemfdFlags, Mode, OFlags};

/// The stand-ins by access mode (O_ACCMODE).
static FILES: [Place; 4] = [const { Place::empty() }; 4];

/// Returns the stand-in that is open with an access mode.
///
/// # Errors
/// EMFILE, ENFILE.
pub fn empty(access: i32) -> Result<Lent, Errno> {
    FILES[(access & libc::O_ACCMODE) as usize].lend_or_open(|| {
        let file = rustix::fs::memfd_create("forebay-empty", MemfdFlags::CLOEXEC)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::from_bits_retain(access as u32) | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    })
}

/// Returns the stand-in for `fd`, if that is a pool descriptor. (A descriptor opened with O_PATH
/// has no stand-in.)
fn of(fd: i64) -> Option<Lent> {
    let (fs, open) = fds::pool_file(fd as i32)?;
    let open = fs.description(open);
    if open.is_path_only() {
        return None;
    }
    empty(open.flags() & libc::O_ACCMODE).ok()
}

/// Makes a call with stand-ins in place of pool descriptors. `at`: indices of the arguments that
/// are descriptors. [`PASS`] if none of them is a pool descriptor.
///
/// # Safety
/// The call is one that the program makes.
pub unsafe fn call(nr: i64, a: &[i64; 6], at: &[usize]) -> i64 {
    let mut args = *a;
    let mut lent = Vec::new();
    for &i in at {
        if let Some(stand_in) = of(a[i]) {
            args[i] = stand_in.as_raw_fd().into();
            lent.push(stand_in);
        }
    }
    if lent.is_empty() {
        return PASS;
    }
    // SAFETY: the program makes this call; only descriptors are replaced, by those of empty files.
    unsafe { raw(nr, args) }
}

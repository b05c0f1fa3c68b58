//! Leases: fcntl's commands, and opening files on which other processes have a lease.

use crate::program::results::{errno, value};
use crate::program::user;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use forebay_store::leases::Lease;
use std::cell::Cell;

/// Pause of an open between two checks whether a lease still conflicts.
const LEASE_POLL_INTERVAL: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Records whether opening a file must wait for another process to give up a lease.
pub fn note<T>(opened: Result<T, Errno>) -> Result<T, Errno> {
    opened.inspect_err(|e| {
        if *e == Errno::TXTBSY {
            WAITS.set(true);
        }
    })
}

/// Repeats `call` while another process's lease blocks it; the wait is bounded by
/// `/proc/sys/fs/lease-break-time`. EINTR if a signal handler has run.
pub fn until_free(call: impl Fn() -> i64) -> i64 {
    loop {
        WAITS.set(false);
        let result = call();
        if !WAITS.get() {
            return result;
        }
        let pause = std::ptr::from_ref(&LEASE_POLL_INTERVAL) as i64;
        // SAFETY: `pause` is the address of a constant; the remaining time isn't requested.
        if unsafe { raw(libc::SYS_nanosleep, [pause, 0, 0, 0, 0, 0]) } < 0 {
            return errno(Errno::INTR);
        }
    }
}

/// Serves fcntl(F_SETLEASE).
pub fn set(fs: &Fs, open: u32, want: i64) -> i64 {
    let want = match want as i32 {
        libc::F_UNLCK => Lease::None,
        libc::F_RDLCK => Lease::Read,
        libc::F_WRLCK => Lease::Write,
        _ => return errno(Errno::INVAL),
    };
    value(fs.description(open).set_lease(want).map(|()| 0))
}

/// Serves fcntl(F_GETLEASE).
pub fn get(fs: &Fs, open: u32) -> i64 {
    i64::from(match fs.description(open).lease() {
        Lease::None => libc::F_UNLCK,
        Lease::Read => libc::F_RDLCK,
        Lease::Write => libc::F_WRLCK,
    })
}

/// Sets the receiver of the lease's signal: a process, or a process group if negative. 0 means
/// none. -1 means none, too: kill(2) would take it for all processes.
fn set_owner(fs: &Fs, open: u32, owner: i32) -> i64 {
    if owner == i32::MIN {
        return errno(Errno::INVAL);
    }
    if matches!(owner, 0 | -1) {
        fs.description(open).set_signal_owner(0);
        return 0;
    }
    // SAFETY: signal 0 only checks whether the receiver exists.
    let there = unsafe { raw(libc::SYS_kill, [owner.into(), 0, 0, 0, 0, 0]) };
    if there == -i64::from(libc::ESRCH) {
        return errno(Errno::SRCH);
    }
    fs.description(open).set_signal_owner(owner);
    0
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;

/// Whether [`signals`] handles this command of fcntl.
pub fn is_about_signals(cmd: i32) -> bool {
    matches!(cmd, F_SETSIG | F_GETSIG | F_SETOWN_EX | F_GETOWN_EX)
        || matches!(cmd, libc::F_SETOWN | libc::F_GETOWN)
}

/// Serves F_SETSIG, F_GETSIG, F_SETOWN and similar commands on a file. They concern the signals of
/// the file's lease.
///
/// # Safety
/// The arguments are those of the program's call.
pub unsafe fn signals(fs: &Fs, open: u32, cmd: i32, arg: i64) -> i64 {
    /// Type of a process group in struct f_owner_ex.
    const GROUP: i32 = 2;
    match cmd {
        F_SETSIG if !(0..=64).contains(&arg) => errno(Errno::INVAL),
        F_SETSIG => {
            fs.description(open).set_signal(arg as u32);
            0
        }
        F_GETSIG => fs.description(open).signal().into(),
        libc::F_SETOWN => set_owner(fs, open, arg as i32),
        libc::F_GETOWN => fs.description(open).signal_owner().into(),
        F_SETOWN_EX => {
            // SAFETY: any bytes are two i32; a bad address is caught.
            let owner = unsafe { user::take::<[i32; 2]>(arg) };
            match owner {
                Err(e) => errno(e),
                Ok([0..=GROUP, id]) if id < 0 => errno(Errno::SRCH),
                Ok([GROUP, id]) => set_owner(fs, open, -id),
                Ok([0 | 1, id]) => set_owner(fs, open, id),
                Ok(_) => errno(Errno::INVAL),
            }
        }
        F_GETOWN_EX => {
            let owner = fs.description(open).signal_owner();
            let kind = if owner < 0 { GROUP } else { 1 };
            // SAFETY: the program passed this address to be written; a bad address is caught.
            value(unsafe { user::give([kind, owner.saturating_abs()], arg) })
        }
        _ => errno(Errno::INVAL),
    }
}

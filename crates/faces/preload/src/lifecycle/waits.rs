//! wait4 and waitid, which return a child's end only once the bytes that the child has written are
//! in the pool.
//!
//! A program that doesn't see the pool may have a courier between it and files of the pool
//! ([`crate::lifecycle::courier`]). A process that waits for the program also waits for the
//! courier. If bytes are lost, exit code 0 becomes [`LOST`].

use crate::lifecycle::courier_note::{self, Wait};
use crate::program::user;
use forebay_intercept::Call;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Exit code for a program that ended with 0 although bytes of it are lost: EX_IOERR.
pub const LOST: i32 = 74;

/// Waits for the courier of a child whose end wait4 or waitid has reported. Returns the program's
/// result of the call.
pub fn after(call: &Call, result: i64) -> i64 {
    match call.nr {
        libc::SYS_wait4 if result > 0 => after_wait4(result as u32, call.args[1]),
        libc::SYS_waitid if result == 0 && call.args[2] != 0 => after_waitid(call),
        _ => {}
    }
    result
}

fn after_wait4(pid: u32, at: i64) {
    let status: i32 = match at {
        0 => 0,
        // SAFETY: any bytes are an i32; a bad address is caught.
        at => unsafe { user::take(at) }.unwrap_or(0),
    };
    let has_ended = match at {
        // The program passed no status pointer: a child that has only stopped still exists.
        0 => Pid::from_raw(pid as i32).is_some_and(|p| test_kill_process(p) == Err(Errno::SRCH)),
        _ => libc::WIFEXITED(status) || libc::WIFSIGNALED(status),
    };
    if has_ended && !courier_note::await_settled(pid, Wait::Last) && at != 0 && status == 0 {
        // SAFETY: the program passed this address to be written; a bad address is caught.
        let _ = unsafe { user::give(LOST << 8, at) };
    }
}

fn after_waitid(call: &Call) {
    let (at, options) = (call.args[2], call.args[3]);
    let wait = if options & i64::from(libc::WNOWAIT) == 0 {
        Wait::Last
    } else {
        Wait::Again
    };
    // SAFETY: any bytes are a siginfo_t; a bad address is caught.
    let Ok(mut info) = (unsafe { user::take::<libc::siginfo_t>(at) }) else {
        return;
    };
    // SAFETY: for a child that has ended, waitid fills these fields.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let ends = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    let has_ended = pid > 0 && ends.contains(&info.si_code);
    if !has_ended || courier_note::await_settled(pid as u32, wait) {
        return;
    }
    if info.si_code == libc::CLD_EXITED && status == 0 {
        // si_status lies behind signal, errno and code (16 bytes with padding), pid and user.
        const STATUS_AT: usize = 24;
        // SAFETY: the field is inside `info`.
        unsafe {
            (&raw mut info)
                .cast::<u8>()
                .add(STATUS_AT)
                .cast::<i32>()
                .write(LOST);
            let _ = user::give(info, at);
        }
    }
}

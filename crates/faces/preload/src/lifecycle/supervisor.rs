//! The supervisor: a process that waits for a program with a courier, where the program's parent
//! doesn't wait for couriers.
//!
//! A parent with this library learns of lost bytes when it waits for the program
//! ([`waits`](super::waits)). Others can't: the shell or launcher that has started `forebay exec`,
//! `forebay run`, a static program, `strace -f`. They see only the exit code of the process that
//! they have started. So at exec of a program that gets a courier, below such a parent, that
//! process doesn't become the program:
//!
//! - It forks ([`execute`]). The child executes the program, as ever.
//! - The process itself executes `/bin/sh` with this library, which frees its memory and ends its
//!   other threads. The library takes over before the shell begins ([`run`]).
//! - The supervisor passes signals on, stops and continues with the program, waits for the program
//!   and its courier, and ends as the program did. If bytes are lost, exit code 0 becomes
//!   [`LOST`]. If the supervisor is killed, so is the program.
//!
//! So the program's process id isn't that of the process that called exec.

use crate::lifecycle::carrier::{self, Carrier};
use crate::lifecycle::courier_note::Wait;
use crate::lifecycle::waits::LOST;
use crate::lifecycle::{courier, courier_note, exit, fork, inherited};
use crate::program::signals::Action;
use crate::program::variables;
use crate::program::{mask, messages, results, settings};
use crate::{map, pool};
use forebay_intercept::{Call, raw};
use forebay_store::process::{self as slots, Critical};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ffi::CStr;

/// The environment variable that makes a process a supervisor. The variable's value is the process
/// id of the supervised child.
pub const VARIABLE: &CStr = c"FOREBAY_SUPERVISOR";
const PROCESS_NAME: &CStr = c"forebay-waits";

/// Size of the kernel's signal masks. Bytes.
const MASK_SIZE: i64 = 8;
/// Bytes of a child's report: the errno of exec, or [`NOT_TRACED`].
const REPORT_SIZE: usize = 4;
/// The child's report that it isn't traced although its parent is.
const NOT_TRACED: i32 = -1;

/// Whether this process's parent waits for couriers: it has this library, uses the same pool, and
/// doesn't trace this process. False if unknown.
pub fn parent_waits() -> bool {
    let Some(settings) = settings::settings() else {
        return false;
    };
    let Some(parent) = rustix::process::getppid() else {
        return false; // The parent is in another PID namespace.
    };
    let parent = parent.as_raw_nonzero().get() as u32;
    if tracer() == parent {
        return false;
    }
    // The environment and the files mapped, both at the start of the parent's program.
    let environ = std::fs::read(format!("/proc/{parent}/environ")).unwrap_or_default();
    let dir = [variables::DIR.to_bytes(), b"=", settings.dir.to_bytes()].concat();
    let library = super::environ::library(settings.preload.to_bytes());
    let name = library.rsplit(|&b| b == b'/').next().unwrap_or(library);
    let maps = std::fs::read(format!("/proc/{parent}/maps")).unwrap_or_default();
    environ.split(|&b| b == 0).any(|text| text == dir)
        && maps
            .split(|&b| b == b'\n')
            .any(|line| line.rsplit(|&b| b == b'/').next() == Some(name))
}

/// Returns the process that traces this process; 0 if none does.
fn tracer() -> u32 {
    courier_note::tracer_of(std::process::id()).unwrap_or(0)
}

/// Executes a program in a child, by `exec`, and makes this process the child's supervisor. `exec`
/// is called in the child, and returns only if exec fails. In this process the function returns
/// only if the program wasn't executed: None if the program is to be executed without a
/// supervisor.
pub fn execute(exec: impl FnOnce() -> i64) -> Option<i64> {
    let is_traced = tracer() != 0;
    let (outcome, report) = match inherited::pipe() {
        Ok(ends) => ends,
        Err(e) => return Some(results::errno(e)),
    };
    // Blocks signals: those that arrive from here on stay pending until the supervisor handles them.
    let blocked = mask::block_all_but_faults();
    let on_child = reap_children();
    let parent = slots::pid();
    let call = Call {
        nr: libc::SYS_clone,
        args: [libc::SIGCHLD.into(), 0, 0, 0, 0, 0],
    };
    // SAFETY: a fork, with this library's preparations for one. The child continues on a copy of
    // this stack, only until exec.
    let child = unsafe {
        let mut child = fork::before_clone(&call);
        if child == 0 {
            child = raw(call.nr, call.args);
            fork::after_clone(&call, child);
        }
        child
    };
    if child == 0 {
        drop(outcome);
        let failed = if is_traced && tracer() == 0 {
            NOT_TRACED
        } else {
            end_with(parent);
            set_action(libc::SIGCHLD, &on_child);
            mask::set(blocked);
            -exec() as i32
        };
        let _ = rustix::io::write(&report, &failed.to_ne_bytes());
        exit::before_exit();
        end(127);
    }
    drop(report);
    let failed = match results::check(child) {
        Err(e) => Some(results::errno(e)),
        Ok(child) => match read_report(&outcome) {
            None => become_supervisor(child),
            Some(failed) => {
                let _ = wait(child, 0);
                (failed != NOT_TRACED).then_some(-i64::from(failed))
            }
        },
    };
    set_action(libc::SIGCHLD, &on_child);
    mask::set(blocked);
    failed
}

/// Makes the kernel keep this process's children until it waits for them. Returns the earlier
/// action for SIGCHLD.
fn reap_children() -> Action {
    let before = action(libc::SIGCHLD);
    if before.handler == libc::SIG_IGN || before.flags & libc::SA_NOCLDWAIT as u64 != 0 {
        set_action(libc::SIGCHLD, &Action::default());
    }
    before
}

fn action(signal: i32) -> Action {
    let mut found = Action::default();
    let at = &raw mut found as i64;
    // SAFETY: the kernel writes its structure to `found`.
    unsafe {
        raw(
            libc::SYS_rt_sigaction,
            [signal.into(), 0, at, MASK_SIZE, 0, 0],
        )
    };
    found
}

fn set_action(signal: i32, action: &Action) {
    let at = &raw const *action as i64;
    // SAFETY: the default, or an action that the kernel has returned for this process.
    unsafe {
        raw(
            libc::SYS_rt_sigaction,
            [signal.into(), at, 0, MASK_SIZE, 0, 0],
        )
    };
}

/// Makes this process end when its parent, process `parent`, is killed.
fn end_with(parent: u32) {
    let args = [libc::PR_SET_PDEATHSIG.into(), libc::SIGKILL.into()];
    // SAFETY: takes no pointer.
    unsafe { raw(libc::SYS_prctl, [args[0], args[1], 0, 0, 0, 0]) };
    // SAFETY: as above.
    if unsafe { raw(libc::SYS_getppid, [0; 6]) } != i64::from(parent) {
        end(127); // The parent has ended before it could be noted.
    }
}

/// Waits until the child has executed the program, or has reported why not.
fn read_report(outcome: &OwnedFd) -> Option<i32> {
    let mut bytes = [0; REPORT_SIZE];
    loop {
        match rustix::io::read(outcome, &mut bytes) {
            Ok(REPORT_SIZE) => return Some(i32::from_ne_bytes(bytes)),
            Err(Errno::INTR) => {}
            // The kernel has closed the pipe at exec, or the child was killed.
            _ => return None,
        }
    }
}

/// Executes the supervisor in this process; if that fails, this process itself waits. Doesn't
/// return.
fn become_supervisor(child: i64) -> ! {
    let text = [VARIABLE.to_bytes(), b"=", child.to_string().as_bytes()].concat();
    if let Ok(carrier) = Carrier::new(PROCESS_NAME, &text) {
        map::before_exec();
        exit::publish_all();
        exit::end_readers();
        let _executing = slots::begin_exec();
        {
            let _critical = Critical::enter();
            pool::close_childs();
        }
        carrier.exec();
    }
    supervise(child)
}

/// Supervises the child whose process id is `text`. Doesn't return.
pub fn run(text: &CStr) -> ! {
    let child = text.to_str().ok().and_then(|t| t.parse().ok());
    mask::block_all();
    courier::close_descriptors(&[libc::STDERR_FILENO]);
    let _ = rustix::process::chdir("/");
    carrier::rename(PROCESS_NAME);
    match child {
        Some(child) => supervise(child),
        None => end(LOST),
    }
}

fn supervise(child: i64) -> ! {
    loop {
        match wait(child, libc::WUNTRACED | libc::WNOHANG) {
            Ok(None) => {}
            Ok(Some(status)) if libc::WIFSTOPPED(status) => {
                send(slots::pid().into(), libc::SIGSTOP);
                // This process has been continued.
                send(child, libc::SIGCONT);
                continue;
            }
            Ok(Some(status)) => {
                let settled = courier_note::await_settled(child as u32, Wait::Supervisor);
                if status == 0 && !settled {
                    end(LOST);
                }
                if libc::WIFSIGNALED(status) {
                    end_by(libc::WTERMSIG(status));
                }
                end(libc::WEXITSTATUS(status));
            }
            Err(e) => {
                messages::write_line(&format!(
                    "can't find out how process {child} has ended: {e}"
                ));
                end(LOST);
            }
        }
        let all = u64::MAX;
        // SAFETY: any bytes are a siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let args = [
            &raw const all as i64,
            &raw mut info as i64,
            0,
            MASK_SIZE,
            0,
            0,
        ];
        // SAFETY: a mask, and a record that the kernel fills.
        let signal = unsafe { raw(libc::SYS_rt_sigtimedwait, args) };
        // The terminal sends its signals (SI_KERNEL) to the program, too.
        if signal > 0 && signal != i64::from(libc::SIGCHLD) && info.si_code != libc::SI_KERNEL {
            send(child, signal as i32);
        }
    }
}

/// Waits for `child`. None if nothing has happened to it (WNOHANG).
fn wait(child: i64, options: i32) -> Result<Option<i32>, Errno> {
    let mut status = 0i32;
    let options = i64::from(options | libc::__WALL);
    loop {
        let args = [child, &raw mut status as i64, options, 0, 0, 0];
        // SAFETY: the kernel writes to `status`.
        match results::check(unsafe { raw(libc::SYS_wait4, args) }) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(status)),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

fn send(process: i64, signal: i32) {
    // SAFETY: takes no pointer; the child hasn't been waited for, so the number is its own.
    unsafe { raw(libc::SYS_kill, [process, signal.into(), 0, 0, 0, 0]) };
}

/// Ends this process by `signal`, as the program ended.
fn end_by(signal: i32) -> ! {
    // The program's core dump was written; this process must not replace it.
    let none = [0u64; 2];
    let limit = [0, libc::RLIMIT_CORE.into(), &raw const none as i64, 0, 0, 0];
    // SAFETY: a limit of two numbers.
    unsafe { raw(libc::SYS_prlimit64, limit) };
    set_action(signal, &Action::default());
    mask::set(0);
    send(slots::pid().into(), signal);
    end(128 + signal)
}

/// Ends this process. If it has a slot in the pool, others free that, as after a kill.
fn end(code: i32) -> ! {
    loop {
        // SAFETY: takes no pointer.
        unsafe { raw(libc::SYS_exit_group, [code.into(), 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_an_errno_or_the_end_of_the_pipe() {
        let (outcome, report) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&report, &13i32.to_ne_bytes()).unwrap();
        assert_eq!(read_report(&outcome), Some(13));
        drop(report);
        assert_eq!(read_report(&outcome), None);
    }
}

//! The keeper: the background process of a pool, and how it is started.

use crate::fail::Fail;
use crate::output::say;
use forebay_client::Pool;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a keeper may take to be ready.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts the keeper of the pool in `dir`; returns when it is ready.
pub fn start(dir: &Path) -> Result<(), Fail> {
    let log = dir.join("keeper.log");
    let failed = |what: String| Fail::failed(format!("can't start the pool's keeper: {what}"));
    let error = |e: std::io::Error| failed(e.to_string());
    let output = File::options()
        .create(true)
        .append(true)
        .open(&log)
        .map_err(|e| failed(format!("{}: {e}", log.display())))?;
    let executable = std::env::current_exe()
        .ok()
        .filter(|e| e.exists())
        .unwrap_or_else(|| "/proc/self/exe".into());
    let mut child = Command::new(executable)
        .args(["keeper", "--dir"])
        .arg(dir)
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output)
        .spawn()
        .map_err(error)?;
    let ready = child.stdout.take().is_some_and(|out| is_ready(&out));
    if !ready {
        let _ = child.kill();
        let _ = child.wait();
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let why = text
            .lines()
            .last()
            .unwrap_or("it did not become ready in time")
            .to_owned();
        return Err(failed(format!("{why} (see {})", log.display())));
    }
    // As long as this process runs, it is the keeper's parent.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
    Ok(())
}

/// Waits for the line that says so.
fn is_ready(out: &std::process::ChildStdout) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let until = Instant::now() + PATIENCE;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let wait = rustix::time::Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(out, PollFlags::IN)], wait.as_ref()) {
            Ok(0) => return false,
            Ok(_) => return rustix::io::read(out, &mut [0u8; 16]).is_ok_and(|n| n > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    false
}

/// `forebay keeper`: runs until the pool is removed.
pub fn main(dir: &Path) -> Result<u8, Fail> {
    // Of a session of its own, so that no terminal ends it. Fails where it leads one already.
    let _ = rustix::process::setsid();
    // `forebay run` starts it with signals blocked; it must end when it is told to. SIGTERM
    // is waited for by a thread: a node that shuts down tells it so.
    // SAFETY: a set of our own and this thread's mask.
    let term = unsafe {
        let mut term: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_SETMASK, &term, std::ptr::null_mut());
        term
    };
    // SAFETY: only descriptors that this process has inherited and knows nothing of.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    let ready = |pool: &Arc<Pool>| {
        let pool = pool.clone();
        let _ = std::thread::Builder::new().spawn(move || save_and_exit(&pool, &term));
        // SAFETY: both are open; the standard output becomes the log, which tells the
        // starter that nothing more is to come.
        unsafe {
            libc::write(1, c"ready\n".as_ptr().cast(), 6);
            libc::dup2(2, 1);
        }
    };
    forebay_client::run_keeper(dir, ready).map_err(|e| {
        say(&e);
        Fail::failed("")
    })?;
    Ok(0)
}

/// Waits for SIGTERM, then ends the process with everything on stable storage.
fn save_and_exit(pool: &Pool, term: &libc::sigset_t) {
    let mut signal = 0;
    // SAFETY: both are valid; the signal is blocked in all threads.
    while unsafe { libc::sigwait(term, &mut signal) } != 0 {}
    if let Err(e) = pool.store().sync_all() {
        say(format!("keeper: can't save the pool: {e}"));
    }
    let _ = pool.store().detach();
    std::process::exit(0);
}

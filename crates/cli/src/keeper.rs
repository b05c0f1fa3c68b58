//! The keeper: the background process of a pool, and how it is started.

use crate::addresses;
use crate::fail::Fail;
use crate::output::say;
use forebay_client::{Pool, PoolConfig};
use forebay_pool::Limits;
use forebay_pool::launch::{Plan, Running};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
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
    let term = hold_term();
    // SAFETY: only descriptors that this process has inherited and knows nothing of.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    let ready = |pool: &Arc<Pool>| {
        save_on_term(term, Arc::new(OnceLock::from(pool.clone())));
        // SAFETY: both are open; the standard output becomes the log, which tells the
        // starter that nothing more is to come.
        unsafe {
            libc::write(1, c"ready\n".as_ptr().cast(), 6);
            libc::dup2(2, 1);
        }
    };
    if let Ok(plan) = Plan::read(dir) {
        spare_memory(&plan.limits);
    }
    let member = PoolConfig::read(dir).is_ok_and(|c| c.member.is_some());
    let ended = if member {
        Running::again(dir, &addresses::own()).and_then(|running| {
            ready(running.pool());
            running.run()
        })
    } else {
        forebay_client::run_keeper(dir, ready)
    };
    ended.map_err(|e| {
        say(&e);
        Fail::failed("")
    })?;
    Ok(0)
}

/// Where memory is limited, the allocator gives back at once what is free, and keeps little for each thread.
pub fn spare_memory(limits: &Limits) {
    if limits.memory.is_some() {
        // SAFETY: plain settings.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 2);
            libc::mallopt(libc::M_MMAP_THRESHOLD, 64 << 10);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 10);
        }
    }
}

/// SIGTERM is waited for by a thread ([`save_on_term`]): a node that shuts down tells it so. All other signals
/// are let through: `forebay run` starts keepers with some blocked.
pub fn hold_term() -> libc::sigset_t {
    // SAFETY: a set of our own and this thread's mask.
    unsafe {
        let mut term: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_SETMASK, &term, std::ptr::null_mut());
        term
    }
}

/// From now on SIGTERM ends the process with everything of its pool, if it has one by then, on stable
/// storage.
pub fn save_on_term(term: libc::sigset_t, pool: Arc<OnceLock<Arc<Pool>>>) {
    let _ = std::thread::Builder::new().spawn(move || {
        let mut signal = 0;
        // SAFETY: both are valid; the signal is blocked in all threads.
        while unsafe { libc::sigwait(&term, &mut signal) } != 0 {}
        let Some(pool) = pool.get() else {
            std::process::exit(128 + libc::SIGTERM);
        };
        if let Err(e) = pool.store().sync_all() {
            say(format!("keeper: can't save the pool: {e}"));
        }
        let _ = pool.store().detach();
        std::process::exit(0);
    });
}

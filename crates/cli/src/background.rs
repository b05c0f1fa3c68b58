//! Starts background processes: the caller waits until the started process reports that it is
//! ready.

use crate::fail::Fail;
use std::fs::File;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a background process may take to be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns a command that runs this program's own executable.
pub fn command() -> Command {
    let executable = std::env::current_exe()
        .ok()
        .filter(|e| e.exists())
        .unwrap_or_else(|| "/proc/self/exe".into());
    let mut command = Command::new(executable);
    command.current_dir("/").env_remove("LD_PRELOAD");
    command
}

/// Starts `command`, whose messages go to the file `log`; returns when it is ready.
pub fn start(mut command: Command, log: &Path, what: &str) -> Result<(), Fail> {
    let failed = |why: String| Fail::failed(format!("can't start {what}: {why}"));
    let output = File::options().create(true).append(true).open(log);
    let output = output.map_err(|e| failed(format!("{}: {e}", log.display())))?;
    let begins = output.metadata().map_or(0, |m| m.len());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output)
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let ready = child.stdout.take().is_some_and(|out| waits_for(&out));
    if !ready {
        let _ = child.kill();
        let _ = child.wait();
        let text = std::fs::read(log).unwrap_or_default();
        let new = text.get(begins as usize..).unwrap_or_default();
        let new = String::from_utf8_lossy(new);
        let why = new
            .lines()
            .last()
            .unwrap_or("it did not become ready in time");
        let why = why.strip_prefix("forebay: ").unwrap_or(why);
        return Err(failed(format!("{why} (see {})", log.display())));
    }
    // Reaps the background process, should it end before this process.
    let _ = std::thread::Builder::new().spawn(move || child.wait());
    Ok(())
}

/// Closes all inherited descriptors, from 3 on; this process doesn't use them.
///
/// Makes the system call itself, since glibc has a function for it only from 2.34 on. Linux has the
/// call from 5.9 on; on older kernels the open descriptors are listed and closed one by one.
pub fn close_inherited() {
    // SAFETY: closes only descriptors that nothing in this process uses.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    if done == 0 {
        return;
    }
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect(),
        Err(_) => return,
    };
    for fd in open.into_iter().filter(|&fd| fd > 2) {
        // SAFETY: nothing in this process uses `fd`; the listing's own descriptor is closed
        // (EBADF).
        unsafe { libc::close(fd) };
    }
}

/// Waits at most [`READY_TIMEOUT`] for the line that reports readiness. Returns whether it came.
fn waits_for(out: &ChildStdout) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let until = Instant::now() + READY_TIMEOUT;
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

/// Reports that this background process is ready.
pub fn is_ready() {
    // SAFETY: descriptors 1 and 2 are open. The standard output becomes the log, so that the
    // starting process sees the end of the pipe.
    unsafe {
        libc::write(1, c"ready\n".as_ptr().cast(), 6);
        libc::dup2(2, 1);
    }
}

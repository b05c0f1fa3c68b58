//! The guard of a node during its start: the process that the launcher waits for.
//!
//! The guard forks the daemon and watches it. When the pool runs, the guard ends, and so does the
//! command that launched it (ssh, for instance); the daemon continues alone. If the daemon is
//! killed before it serves, the guard removes what the daemon had begun to create. Once the daemon
//! serves, even before the pool is reported as up, nothing is removed: the node can be started
//! again. The death of a guard does no harm.

use crate::fail::Fail;
use crate::keeper::{self, OnTerm};
use forebay_client::{PoolConfig, remove_node};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};

/// The daemon's end of the pipe by which it reports to its guard.
pub struct Ward(PipeWriter);

impl Ward {
    /// Reports that the daemon is about to create a pool with this config.
    pub fn makes(&mut self, config: &PoolConfig) {
        let text = serde_json::to_string(config).unwrap_or_default();
        let _ = writeln!(self.0, "{text}");
    }

    /// Reports that nothing needs to be removed any more: the pool runs, or nothing is left of it.
    pub fn is_settled(&mut self) {
        let _ = writeln!(self.0);
    }
}

/// Forks this process, which has only one thread. In the daemon, returns the ward. In the guard,
/// returns the guard's exit code after the daemon has ended or dropped the ward.
pub fn divide() -> Result<Result<Ward, u8>, Fail> {
    let failed = |e: std::io::Error| Fail::failed(format!("can't start a daemon: {e}"));
    let (hears, tells) = std::io::pipe().map_err(failed)?;
    // SAFETY: no other thread runs, so the child can't inherit a lock that is held.
    match unsafe { libc::fork() } {
        -1 => Err(failed(std::io::Error::last_os_error())),
        0 => Ok(Ok(Ward(tells))),
        _ => {
            drop(tells);
            Ok(Err(watch(hears)))
        }
    }
}

fn watch(from: PipeReader) -> u8 {
    // The launcher reads the standard descriptors until they close: only the daemon may hold them
    // open.
    silence();
    if keeper::on_term(false) == OnTerm::Stays {
        // If SIGTERM ended the guard, Slurm would kill the daemon, too.
        // SAFETY: no handler of this program is replaced.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
    }
    let mut making: Option<PoolConfig> = None;
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        // An empty line (nothing needs to be removed any more) is no config.
        making = serde_json::from_str(&line).ok();
    }
    match making {
        Some(config) => {
            remove_node(&config);
            1
        }
        None => 0,
    }
}

/// Redirects standard input, output and error to /dev/null.
pub fn silence() {
    let Ok(null) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
    else {
        return;
    };
    for fd in 0..3 {
        turn(fd, &null);
    }
}

/// Redirects one of the standard descriptors to `file`.
pub fn turn(fd: i32, file: &std::fs::File) {
    use std::os::fd::AsRawFd;
    // SAFETY: both descriptors are open; no owned descriptor is one of the standard ones.
    unsafe { libc::dup2(file.as_raw_fd(), fd) };
}

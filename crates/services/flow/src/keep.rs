//! The keeper of a run: the process beside the run's Snakemake (`forebay flow keep`), as the run's
//! user.
//!
//! The keeper has its own session, so it outlives the service. While the keeper or Snakemake is
//! alive, the file `lock` in the run's directory is locked. When Snakemake ends, the keeper writes
//! Snakemake's exit code to `exit-ATTEMPT`. So a run that isn't locked and has no exit code was
//! killed.

use crate::{Result, disk, slurm};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time that a keeper waits for the lock. The service holds the lock for an instant when it
/// checks the run.
const LOCK: Duration = Duration::from_secs(3);
/// Maximum time for planning the jobs.
const PLAN: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An attempt of a run. The keeper starts and watches the attempt.
#[derive(Debug)]
pub struct Kept {
    /// The run's directory, and Snakemake's working directory.
    pub dir: PathBuf,
    pub work: PathBuf,
    pub attempt: u32,
    /// The run's id, if its jobs run in Slurm.
    pub slurm: Option<String>,
    /// Command line of the plan, a pass of Snakemake that lists all jobs before the first attempt.
    pub plan: Vec<OsString>,
    /// Command line of Snakemake.
    pub words: Vec<OsString>,
}

/// Runs Snakemake, and returns its exit code.
///
/// # Errors
/// Another keeper has locked the run, or the directory can't be used.
pub fn keep(kept: &Kept) -> Result<i32> {
    let failed = |e: &dyn std::fmt::Display| format!("{}: {e}", kept.dir.display());
    // setsid() succeeds because the service doesn't start the keeper as the leader of a process
    // group.
    rustix::process::setsid().map_err(|e| failed(&e))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let lock = rustix::fs::open(kept.dir.join("lock"), flags, mode).map_err(|e| failed(&e))?;
    let until = Instant::now() + LOCK;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Err(e) => return Err(failed(&e)),
        }
    }
    // Snakemake inherits the lock's descriptor, but doesn't pass it to its jobs.
    rustix::io::fcntl_setfd(&lock, FdFlags::empty()).map_err(|e| failed(&e))?;
    let exit = kept.dir.join(format!("exit-{}", kept.attempt));
    if exit.exists() {
        return Err(failed(&"this attempt has ended already"));
    }
    let log = File::options()
        .append(true)
        .create(true)
        .open(kept.dir.join("log"))
        .map_err(|e| failed(&e))?;
    let code = match run(kept, &log) {
        Ok(code) => code,
        Err(why) => {
            let _ = writeln!(&log, "forebay flow: {why}");
            127
        }
    };
    // The keeper still holds the lock, so that no check finds the run unlocked and without an exit
    // code.
    disk::replace(&exit, code.to_string().as_bytes(), 0o600)?;
    Ok(code)
}

fn run(kept: &Kept, log: &File) -> Result<i32> {
    let command = |words: &[OsString], events: &str| {
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&kept.work)
            .env("FOREBAY_FLOW_EVENTS", kept.dir.join(events))
            .stdin(Stdio::null())
            .process_group(0);
        command
    };
    let into_log = |command: &mut Command| -> Result<()> {
        let copies = (log.try_clone(), log.try_clone());
        command.stdout(copies.0.map_err(|e| e.to_string())?);
        command.stderr(copies.1.map_err(|e| e.to_string())?);
        Ok(())
    };
    let before = kept.attempt.saturating_sub(1);
    if before > 0 && !kept.dir.join(format!("exit-{before}")).exists() {
        // The previous attempt was killed, so its lock on Snakemake's working directory has no
        // owner.
        if let Some(run) = &kept.slurm {
            slurm::clear(run, &|program| Command::new(program))?;
        }
        let mut unlock = command(&kept.words[..1], "events");
        unlock.args(["--unlock", "--snakefile", "Snakefile"]);
        into_log(&mut unlock)?;
        bounded(&mut unlock, kept)?;
    }
    if !kept.dir.join("planned").exists() && !kept.plan.is_empty() {
        let mut plan = command(&kept.plan, "plan");
        plan.stdout(Stdio::null()).stderr(Stdio::null());
        // If planning fails, Snakemake reports the reason when it runs.
        let _ = bounded(&mut plan, kept);
        disk::replace(&kept.dir.join("planned"), b"", 0o600)?;
    }
    let mut snakemake = command(&kept.words, "events");
    into_log(&mut snakemake)?;
    let shown = kept.words[0].to_string_lossy().into_owned();
    let mut child = snakemake.spawn().map_err(|e| format!("{shown}: {e}"))?;
    note_pid(kept, child.id())?;
    let status = child.wait().map_err(|e| e.to_string())?;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

fn note_pid(kept: &Kept, pid: u32) -> Result<()> {
    disk::replace(&kept.dir.join("pid"), pid.to_string().as_bytes(), 0o600)
}

/// Runs a command, for at most [`PLAN`].
fn bounded(command: &mut Command, kept: &Kept) -> Result<()> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|e| format!("{shown}: {e}"))?;
    note_pid(kept, child.id())?;
    let until = Instant::now() + PLAN;
    loop {
        match child.try_wait().map_err(|e| format!("{shown}: {e}"))? {
            Some(_) => return Ok(()),
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{shown} took longer than {} s", PLAN.as_secs()));
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

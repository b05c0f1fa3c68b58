//! `forebay mount` and `umount`: a pool as a file system of the kernel's, and the process that
//! serves it.
//!
//! Each mount has a file in its pool's directory, `mounts/PID`, with the directory: by it
//! `forebay down` finds what it has to take away.

use crate::args::{Mount, Umount};
use crate::down::runs;
use crate::fail::{Fail, code};
use crate::output::say;
use crate::{background, exec};
use forebay_client::Pool;
use forebay_client::private::{self, Above};
use forebay_fuse::{Mounted, Options, mounted, unmount};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json as value};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process has to end after its mount is gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one that is told to end lets those go on who use the mount.
const GRACE: Duration = Duration::from_millis(300);

pub fn mount(name: &str, a: &Mount) -> Result<u8, Fail> {
    let dir = resolve(&a.dir)?;
    let pool = exec::open(name, a.node)?;
    if a.foreground {
        serve(pool, &dir, a)?;
        return Ok(code::OK);
    }
    let log = registry(&pool)?.join("log");
    let mut command = background::command();
    command.args(["mount", "--foreground", "--pool", name]);
    if let Some(node) = pool.config().member.map(|m| m.node) {
        command.args(["--node", &node.to_string()]);
    }
    if a.allow_other {
        command.arg("--allow-other");
    }
    if a.read_only {
        command.arg("--read-only");
    }
    command.arg("--").arg(&dir);
    background::start(command, &log, "the process that serves the mount")?;
    Ok(code::OK)
}

pub fn umount(a: &Umount) -> Result<u8, Fail> {
    // Not resolved by looking at it: whoever served it may be dead.
    let dir = std::path::absolute(&a.dir).unwrap_or_else(|_| PathBuf::from(&a.dir));
    let shown = dir.display();
    if mounted(&dir).is_none() {
        return Err(Fail::failed(format!(
            "{shown}: no pool is mounted there; forebay status shows where"
        )));
    }
    unmount(&dir, a.lazy).map_err(|e| match e.raw_os_error() {
        Some(busy) if busy == Errno::BUSY.raw_os_error() => Fail::failed(format!(
            "{shown} is in use: end the programs that use it, or take it away as soon as they end with: forebay umount --lazy {shown}"
        )),
        _ => Fail::failed(format!("can't unmount {shown}: {e}")),
    })?;
    Ok(code::OK)
}

/// The directory to mount at. One whose server has died is freed first.
fn resolve(dir: &std::ffi::OsStr) -> Result<PathBuf, Fail> {
    let given = std::path::absolute(dir)
        .map_err(|e| Fail::usage(format!("{}: {e}", dir.to_string_lossy())))?;
    let shown = given.display();
    let is = |e: &io::Error, errno: Errno| e.raw_os_error() == Some(errno.raw_os_error());
    let dead = std::fs::metadata(&given).is_err_and(|e| is(&e, Errno::NOTCONN));
    if dead && mounted(&given).is_some() {
        say(format!(
            "{shown}: the process that served the mount there is dead; mounting again"
        ));
        let _ = unmount(&given, true);
    }
    let dir = given.canonicalize().map_err(|e| {
        Fail::failed(format!(
            "can't mount at {shown}: {e}; give an empty directory of your own"
        ))
    })?;
    // Where another user can put something else in its place, that would be mounted over.
    private::check(&dir, Above::Any).map_err(|e| {
        Fail::failed(format!(
            "can't mount at {shown}: {e}; give an empty directory of your own"
        ))
    })?;
    if let Some(source) = mounted(&dir) {
        return Err(Fail::failed(format!(
            "{shown}: {source} is mounted there; take it away with: forebay umount {shown}"
        )));
    }
    Ok(dir)
}

/// Mounts, and answers until the mount is taken away.
fn serve(pool: Arc<Pool>, dir: &Path, a: &Mount) -> Result<(), Fail> {
    let _ = rustix::process::setsid();
    let signals = hold_signals();
    let shown = dir.display().to_string();
    let options = Options {
        name: format!("forebay:{}", pool.config().name),
        allow_other: a.allow_other,
        read_only: a.read_only,
    };
    let record = registry(&pool)?.join(std::process::id().to_string());
    let failed = |e: io::Error| Fail::failed(format!("can't mount at {shown}: {e}"));
    let mounted = Mounted::new(pool.clone(), dir, &options).map_err(failed)?;
    // Whoever finds the mount finds the record.
    let written = std::fs::write(&record, dir.as_os_str().as_bytes());
    let (at, mine, ours) = (dir.to_owned(), record.clone(), pool.clone());
    let _ = std::thread::Builder::new().spawn(move || {
        let mut signal = 0;
        // SAFETY: both are valid; the signals are blocked in all threads.
        while unsafe { libc::sigwait(&signals, &mut signal) } != 0 {}
        // Then the kernel says that it is gone, and we end below: unless somebody uses it.
        let _ = unmount(&at, true);
        std::thread::sleep(GRACE);
        end(&ours, &mine);
        std::process::exit(code::OK.into());
    });
    let served = written
        .and_then(|()| mounted.serve(background::is_ready))
        .map_err(failed);
    if served.is_err() {
        let _ = unmount(dir, true);
    }
    end(&pool, &record);
    served
}

/// The end of a process that serves a mount.
fn end(pool: &Pool, record: &Path) {
    let _ = pool.store().detach();
    // Last: by it `forebay down` waits for us.
    let _ = std::fs::remove_file(record);
}

/// Signals that end a process are waited for by a thread.
fn hold_signals() -> libc::sigset_t {
    // SAFETY: a set of our own and this thread's mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        set
    }
}

fn registry(pool: &Pool) -> Result<PathBuf, Fail> {
    let dir = pool.dir().join("mounts");
    match std::fs::create_dir(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(Fail::failed(format!("can't make {}: {e}", dir.display())))
        }
        _ => Ok(dir),
    }
}

/// A mount of a pool.
pub struct Served {
    /// The process that serves it.
    pub pid: u32,
    pub dir: PathBuf,
    /// It isn't while that process ends.
    is_mounted: bool,
}

impl Served {
    pub fn as_json(&self) -> Value {
        value!({ "dir": self.dir, "process": self.pid })
    }

    /// For `forebay status`.
    pub fn words(&self) -> String {
        let shown = self.dir.display();
        match runs(self.pid) {
            true => format!("{shown}, served by process {}", self.pid),
            false => format!(
                "{shown}, whose process is dead; take it away with: forebay umount --lazy {shown}"
            ),
        }
    }
}

/// The mounts of a pool on this host.
pub fn mounts(pool: &Pool) -> Vec<Served> {
    let mut mounts = list(pool);
    mounts.retain(|m| m.is_mounted);
    mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
    mounts
}

fn list(pool: &Pool) -> Vec<Served> {
    let Ok(entries) = std::fs::read_dir(pool.dir().join("mounts")) else {
        return Vec::new();
    };
    let record = |e: std::fs::DirEntry| {
        let pid = e.file_name().to_str()?.parse().ok()?;
        let dir = std::ffi::OsString::from_vec(std::fs::read(e.path()).ok()?);
        let dir = PathBuf::from(dir);
        let ours = format!("forebay:{}", pool.config().name);
        let is_mounted = mounted(&dir) == Some(ours);
        (is_mounted || runs(pid)).then_some(Served {
            pid,
            dir,
            is_mounted,
        })
    };
    entries.flatten().filter_map(record).collect()
}

/// Takes all mounts of these away, also those in use if `force`; waits for who serves them.
pub fn end_all(pools: &[Arc<Pool>], force: bool) -> Result<(), Fail> {
    let mounts: Vec<Served> = pools.iter().flat_map(|p| list(p)).collect();
    for mount in mounts.iter().filter(|m| m.is_mounted) {
        match unmount(&mount.dir, force) {
            _ if force => {
                if let Some(pid) = Pid::from_raw(mount.pid as i32) {
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            Err(e) => {
                return Err(Fail::failed(format!(
                    "the pool is mounted at {} and can't be taken away from there: {e}; end the programs that use it",
                    mount.dir.display()
                )));
            }
            Ok(()) => {}
        }
    }
    let until = Instant::now() + PATIENCE;
    while mounts.iter().any(|m| runs(m.pid)) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

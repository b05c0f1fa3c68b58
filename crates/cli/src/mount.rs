//! `forebay mount` and `umount`: a pool as a file system of the kernel, and the process that serves
//! it.
//!
//! Each mount has two files in its pool's directory. `mounts/PID` holds the path of the mount, by
//! which `forebay down` finds what to unmount. `mounts/PID.device` holds the mount's device number,
//! by which copies in other mount namespaces are found.

use crate::args::{Mount, Umount};
use crate::fail::{Fail, code};
use crate::found::runs;
use crate::output::print_notice;
use crate::{background, found, keeper, mount_copies as copies, mount_users as users};
use forebay_client::origin::OriginMode;
use forebay_client::private::{self, Above};
use forebay_client::{Pool, PoolError, places};
use forebay_fuse::{Mounted, Options, mount_at, mounted, unmount};
use forebay_runtime::threads::start;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json as value};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How long `forebay down` waits for the servers of removed mounts before it looks for copies of
/// the mounts.
const QUICK_END_TIMEOUT: Duration = Duration::from_millis(500);
/// How long `forebay down` waits for the servers after it has looked for copies.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server that has received a signal to end waits for programs that use the mount.
const GRACE: Duration = Duration::from_millis(300);
/// How long a server continues after its last program has ended, to reply to the kernel's last
/// messages.
const SETTLING: Duration = Duration::from_millis(20);
/// Stack size of threads that wait for a signal, or for the last program to end. Bytes.
const STACK: usize = 512 << 10;

pub fn mount(name: &str, a: &Mount) -> Result<u8, Fail> {
    if a.remount {
        return remount(a);
    }
    let dir = resolve(&a.dir)?;
    if (a.suid || a.dev) && !rustix::process::geteuid().is_root() {
        return Err(Fail::usage(
            "--suid and --dev are for root; leave them out (a mount of yours has neither)",
        ));
    }
    if a.foreground {
        // This process writes for other processes, to which the kernel applies their own limits.
        let _ = keeper::raise(rustix::process::Resource::Fsize);
    }
    let pool = found::open(name, a.node)?;
    may_be_mounted(&pool)?;
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
    let more = [
        ("--no-exec", a.no_exec),
        ("--suid", a.suid),
        ("--dev", a.dev),
    ];
    command.args(
        more.iter()
            .filter(|(_, is_set)| *is_set)
            .map(|(flag, _)| flag),
    );
    if let Some(pid) = a.until {
        command.args(["--until", &pid.to_string()]);
    }
    if a.made {
        command.arg("--made");
    }
    command.arg("--").arg(&dir);
    background::start(command, &log, "the process that serves the mount")?;
    Ok(code::OK)
}

fn options(a: &Mount, name: String) -> Options {
    Options {
        name,
        allow_other: a.allow_other,
        read_only: a.read_only,
        no_exec: a.no_exec,
        suid: a.suid,
        dev: a.dev,
    }
}

/// `mount -o remount`: changes those options of a mount that the kernel lets change.
fn remount(a: &Mount) -> Result<u8, Fail> {
    let dir = std::path::absolute(&a.dir).unwrap_or_else(|_| PathBuf::from(&a.dir));
    let shown = dir.display();
    if mounted(&dir).is_none() {
        return Err(Fail::failed(format!("{shown}: no pool is mounted there")));
    }
    forebay_fuse::remount(&dir, &options(a, String::new()))
        .map_err(|e| Fail::failed(format!("can't change the mount at {shown}: {e}")))?;
    Ok(code::OK)
}

/// Refuses a pool that a mount can't show: the mount would have to contain files of its origin.
fn may_be_mounted(pool: &Pool) -> Result<(), Fail> {
    let origin = pool.config().origin.as_ref();
    if origin.is_some_and(|origin| origin.may_be(OriginMode::Off)) {
        Err(Fail::usage(format!(
            "the pool '{}' can't be mounted: paths of its origin have the mode off, which a mount can't show; \
             use forebay exec, or start a pool without them: --origin-mode read-only",
            pool.config().name
        )))
    } else {
        Ok(())
    }
}

pub fn umount(a: &Umount) -> Result<u8, Fail> {
    // The path isn't resolved through the mount, since the mount's server may be dead.
    let dir = std::path::absolute(&a.dir).unwrap_or_else(|_| PathBuf::from(&a.dir));
    let shown = dir.display();
    let Some(source) = mounted(&dir) else {
        return Err(Fail::failed(format!(
            "{shown}: no pool is mounted there; forebay status shows where"
        )));
    };
    if a.force {
        kill_server(&source, &dir);
    }
    unmount(&dir, a.lazy || a.force).map_err(|e| match e.raw_os_error() {
        Some(busy) if busy == Errno::BUSY.raw_os_error() => Fail::failed(format!(
            "{shown} is in use: end the programs that use it, or take it away as soon as they end \
                with: forebay umount --lazy {shown}"
        )),
        _ => Fail::failed(format!("can't unmount {shown}: {e}")),
    })?;
    Ok(code::OK)
}

/// Kills the process that serves the mount of `source` at `dir`, if it is one of ours. When the
/// last descriptor of that process closes, the kernel releases all processes that wait for a reply.
/// Doesn't access the mount.
fn kill_server(source: &str, dir: &Path) {
    let pool = source.strip_prefix("forebay:").unwrap_or(source);
    for place in places(pool) {
        for entry in (std::fs::read_dir(place.dir.join("mounts"))
            .into_iter()
            .flatten())
        .flatten()
        {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let is_it =
                std::fs::read(entry.path()).is_ok_and(|at| at == dir.as_os_str().as_bytes());
            if is_it && serves(pid, dir) {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
                let until = Instant::now() + MOUNT_TIMEOUT;
                while runs(pid as u32) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }
}

/// Whether the process has the arguments of a server of a mount.
fn is_server(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    runs(pid) && words.split(|&b| b == 0).nth(1) == Some(b"mount")
}

/// Whether the process has the arguments of a server of a mount at `dir`: another process may have
/// got the server's process id meanwhile.
fn serves(pid: i32, dir: &Path) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|&b| b == 0);
    let mounts = words.nth(1) == Some(b"mount");
    // A server in the foreground may have been started with another form of the path.
    mounts
        && words.any(|w| {
            w == dir.as_os_str().as_bytes()
                || Path::new(std::ffi::OsStr::from_bytes(w)).file_name() == dir.file_name()
        })
}

/// Returns the directory to mount at. If the server of a mount there has died, unmounts it first.
fn resolve(dir: &std::ffi::OsStr) -> Result<PathBuf, Fail> {
    let given = std::path::absolute(dir)
        .map_err(|e| Fail::usage(format!("{}: {e}", dir.to_string_lossy())))?;
    let shown = given.display();
    if is_dead(&given) && mounted(&given).is_some() {
        print_notice(format!(
            "{shown}: the process that served the mount there is dead; mounting again"
        ));
        let _ = unmount(&given, true);
    }
    let dir = given.canonicalize().map_err(|e| {
        Fail::failed(format!(
            "can't mount at {shown}: {e}; give an empty directory of your own"
        ))
    })?;
    // If another user could replace the directory, we would mount over the replacement.
    private::check(&dir, Above::Any).map_err(|e| {
        let why = match e {
            PoolError::Foreign(at, why) => format!("{}: it {why}", at.display()),
            e => e.to_string(),
        };
        Fail::failed(format!(
            "can't mount at {shown}: {why}; give an empty directory of your own"
        ))
    })?;
    if let Some(source) = mounted(&dir) {
        return Err(Fail::failed(format!(
            "{shown}: {source} is mounted there; take it away with: forebay umount {shown}"
        )));
    }
    Ok(dir)
}

/// Whether the process that served a mount at `dir` is dead.
fn is_dead(dir: &Path) -> bool {
    std::fs::metadata(dir).is_err_and(|e| Errno::from_io_error(&e) == Some(Errno::NOTCONN))
}

/// Mounts the pool at `dir`, and serves it until it is unmounted.
fn serve(pool: Arc<Pool>, dir: &Path, a: &Mount) -> Result<(), Fail> {
    let _ = rustix::process::setsid();
    // The working directory must not be on the mount, not even for a core dump.
    let _ = std::env::set_current_dir("/");
    let signals = hold_signals();
    let shown = dir.display().to_string();
    let options = options(a, source_of(&pool));
    let record = registry(&pool)?.join(std::process::id().to_string());
    let failed = |e: io::Error| Fail::failed(format!("can't mount at {shown}: {e}"));
    let mounted = Mounted::new(pool.clone(), dir, &options).map_err(failed)?;
    if let Some(pid) = a.until {
        users::begin(&record, pid).map_err(failed)?;
    }
    // The device is written before the record: a process that finds the record finds both.
    if let Some((_, device)) = mount_at(dir) {
        let _ = std::fs::write(device_of(&record), device);
    }
    let written = std::fs::write(&record, dir.as_os_str().as_bytes());
    if a.until.is_some() {
        let (at, mine) = (dir.to_owned(), record.clone());
        let _ = start(Builder::new(), STACK, 0, move || {
            users::wait(&mine);
            // The reply to this request comes after the kernel's messages about the last closed
            // files.
            let _ = rustix::fs::statfs(&at);
            std::thread::sleep(SETTLING);
            // Programs with open files of the mount can continue. This process ends after the last
            // of them.
            let _ = unmount(&at, true);
        });
    }
    let (at, mine, ours) = (dir.to_owned(), record.clone(), pool.clone());
    let stopper = mounted.stopper();
    let stops = stopper.clone();
    let _ = start(Builder::new(), STACK, 0, move || {
        let mut signal = 0;
        // SAFETY: both pointers are valid; the signals are blocked in all threads.
        while unsafe { libc::sigwait(&signals, &mut signal) } != 0 {}
        // After this call the kernel reports the unmount, and `serve` returns, unless the mount is
        // in use.
        let _ = unmount(&at, true);
        std::thread::sleep(GRACE);
        end(&ours, &mine, stops.stop());
        std::process::exit(code::OK.into());
    });
    let served = written
        .and_then(|()| mounted.serve(background::is_ready))
        .map_err(failed);
    if served.is_err() {
        let _ = unmount(dir, true);
    }
    end(&pool, &record, stopper.stop());
    if a.made {
        let _ = std::fs::remove_dir(dir);
    }
    served
}

/// Ends the process that serves a mount. If the service couldn't be stopped `in_order`, other
/// processes clean up behind this one, as behind any killed process.
fn end(pool: &Pool, record: &Path, in_order: bool) {
    if in_order {
        let _ = pool.store().recovery().detach();
    }
    // The record is removed last, since `forebay down` waits for its removal.
    let _ = std::fs::remove_file(record);
    let _ = std::fs::remove_file(device_of(record));
    users::end(record);
}

/// Returns the path of the file that holds the mount's device, beside its record.
fn device_of(record: &Path) -> PathBuf {
    record.with_extension("device")
}

/// How long `exec --with-mount` waits for a mount at the prefix that begins or ends just then.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two looks at such a mount.
const CHANGE_INTERVAL: Duration = Duration::from_millis(2);

/// Mounts the pool for this process, and for the program that it becomes. The mount is at the
/// prefix, or else at a private directory, which serves only working directories.
///
/// Joins the pool's mount at the prefix if there is one. One that is about to go, because its last
/// program has just ended, can't be joined: this process waits until it is gone.
pub fn for_this_process(pool: &Pool) -> Result<(), Fail> {
    may_be_mounted(pool)?;
    let prefix = Path::new(&pool.config().mount);
    let me = std::process::id();
    let until = Instant::now() + CHANGE_TIMEOUT;
    // Two processes that mount at the same moment would mount one on the other.
    let _alone = users::lock_until(&registry(pool)?, until);
    loop {
        if joins(pool, prefix, me)? {
            return Ok(());
        }
        let may_wait = Instant::now() < until;
        let is_ours = mounted(prefix) == Some(source_of(pool));
        let is_dead = is_ours && is_dead(prefix);
        if may_wait && is_ours && !is_dead && !is_of_another_node(pool, prefix) {
            std::thread::sleep(CHANGE_INTERVAL);
            continue;
        }
        // The server of a new mount takes away one whose server is dead.
        let place = if is_dead { Ok(false) } else { place_at(prefix) };
        let (dir, made) = match place {
            Ok(made) => (prefix.to_owned(), made),
            // Another process has mounted the pool there since this one looked.
            Err(_) if may_wait && !is_ours && mounted(prefix) == Some(source_of(pool)) => continue,
            Err(why) => {
                print_notice(format!(
                    "can't mount at {}: {why}; programs that don't see the pool find their working \
                        directory in it by a private mount, but no path under {0}",
                    prefix.display()
                ));
                let dir = registry(pool)?.join(format!("at-{me}"));
                let _ = std::fs::create_dir(&dir);
                (dir, true)
            }
        };
        let Err(tried) = start_for(pool, &dir, made, me) else {
            return Ok(());
        };
        // Another process may have mounted there first, or a mount that ended have removed the
        // directory that was made for it.
        let may_succeed = mounted(prefix).is_some() || !prefix.exists();
        if dir == prefix && may_wait && may_succeed {
            std::thread::sleep(CHANGE_INTERVAL);
            continue;
        }
        if made {
            let _ = std::fs::remove_dir(&dir);
        }
        return Err(tried);
    }
}

/// Adds this process to those for which the pool is mounted at the prefix. Returns false if it
/// isn't mounted there, or not much longer.
fn joins(pool: &Pool, prefix: &Path, me: u32) -> Result<bool, Fail> {
    let is_it = |m: &Served| m.is_mounted && m.dir == prefix && runs(m.pid);
    match list(pool).into_iter().find(is_it) {
        Some(there) => Ok(users::join(
            &registry(pool)?.join(there.pid.to_string()),
            me,
        )),
        None => Ok(false),
    }
}

/// Whether another node on this host has mounted the pool at the prefix.
fn is_of_another_node(pool: &Pool, prefix: &Path) -> bool {
    let others = places(&pool.config().name).into_iter();
    others
        .filter(|place| place.dir != pool.dir())
        .flat_map(|place| list_in(&place.dir, &source_of(pool)))
        .any(|m| m.is_mounted && m.dir == prefix)
}

/// Makes sure that the prefix is an empty directory. Returns whether it had to be created.
///
/// # Errors
/// Why nothing can be mounted there.
fn place_at(prefix: &Path) -> Result<bool, String> {
    if let Some(other) = mounted(prefix) {
        return Err(format!("{other} is mounted there"));
    }
    match std::fs::read_dir(prefix) {
        Ok(mut entries) => match entries.next() {
            None => Ok(false),
            Some(_) => Err("it is a directory with files in it".to_owned()),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => match std::fs::create_dir(prefix) {
            Ok(()) => Ok(true),
            // Another process has just made it, or mounted the pool on it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(format!("it isn't there and can't be made: {e}")),
        },
        Err(e) => Err(e.to_string()),
    }
}

/// Starts the process that serves the mount. The server isn't a child of this process, since this
/// process becomes a program that doesn't expect children.
fn start_for(pool: &Pool, dir: &Path, made: bool, pid: u32) -> Result<(), Fail> {
    let mut command = background::command();
    command.args(["mount", "--pool", &pool.config().name]);
    if let Some(node) = pool.config().member.map(|m| m.node) {
        command.args(["--node", &node.to_string()]);
    }
    command.args(["--until", &pid.to_string()]);
    if made {
        command.arg("--made");
    }
    let done = command
        .arg("--")
        .arg(dir)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|e| Fail::failed(format!("can't mount the pool: {e}")))?;
    if done.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&done.stderr);
    let message = message.trim();
    Err(Fail::failed(
        message.strip_prefix("forebay: ").unwrap_or(message),
    ))
}

/// Blocks the signals that end a process, and returns their set. A thread waits for them.
fn hold_signals() -> libc::sigset_t {
    // SAFETY: the calls change a local set and this thread's mask.
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

/// Beginning of the source of each pool's mounts.
const SOURCE: &str = "forebay:";

/// Returns the source of the pool's mounts, as mount(8) shows it.
fn source_of(pool: &Pool) -> String {
    format!("{SOURCE}{}", pool.config().name)
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
    /// Process id of the server.
    pub pid: u32,
    pub dir: PathBuf,
    /// False if the mount is gone and the server is about to end.
    is_mounted: bool,
}

impl Served {
    pub fn as_json(&self) -> Value {
        value!({ "dir": self.dir, "process": self.pid })
    }

    /// Describes the mount in words, for `forebay status`.
    pub fn words(&self) -> String {
        let shown = self.dir.display();
        if runs(self.pid) {
            format!("{shown}, served by process {}", self.pid)
        } else {
            format!(
                "{shown}, whose process is dead; take it away with: forebay umount --lazy {shown}"
            )
        }
    }
}

/// Lists the mounts of a pool on this host.
pub fn mounts(pool: &Pool) -> Vec<Served> {
    let mut mounts = list(pool);
    mounts.retain(|m| m.is_mounted);
    mounts.sort_by(|a, b| a.dir.cmp(&b.dir));
    mounts
}

fn list(pool: &Pool) -> Vec<Served> {
    list_in(pool.dir(), &source_of(pool))
}

/// Lists the mounts of the pool or node in `dir`, whose mounts have this source. Includes those that
/// end just now: their directory is empty.
fn list_in(dir: &Path, source: &str) -> Vec<Served> {
    let Ok(entries) = std::fs::read_dir(dir.join("mounts")) else {
        return Vec::new();
    };
    let record = |e: std::fs::DirEntry| {
        let name = e.file_name();
        let name = name.to_str()?;
        if let Some(pid) = name.strip_suffix(".device") {
            // The server of a mount that ends removes the record first, and this file last.
            let has_record = e.path().with_file_name(pid).exists();
            let pid = pid
                .parse()
                .ok()
                .filter(|&pid| !has_record && is_server(pid))?;
            return Some(Served {
                pid,
                dir: PathBuf::new(),
                is_mounted: false,
            });
        }
        let pid = name.parse().ok()?;
        let dir = std::ffi::OsString::from_vec(std::fs::read(e.path()).ok()?);
        let dir = PathBuf::from(dir);
        let is_mounted = mounted(&dir).as_deref() == Some(source);
        (is_mounted || runs(pid)).then_some(Served {
            pid,
            dir,
            is_mounted,
        })
    };
    entries.flatten().filter_map(record).collect()
}

/// Unmounts all mounts of these pools, with `force` also those in use; waits for their servers to
/// end.
pub fn end_all(pools: &[Arc<Pool>], force: bool) -> Result<(), Fail> {
    let mounts: Vec<Served> = pools.iter().flat_map(|p| list(p)).collect();
    for mount in &mounts {
        let unmounted = if mount.is_mounted {
            unmount(&mount.dir, force)
        } else {
            Ok(())
        };
        match unmounted {
            _ if force => {
                if let Some(pid) = Pid::from_raw(mount.pid as i32) {
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            // The mount went away by itself after it was listed.
            Err(_) if mounted(&mount.dir).is_none_or(|m| !m.starts_with(SOURCE)) => {}
            Err(e) => {
                return Err(Fail::failed(format!(
                    "the pool is mounted at {} and can't be taken away from there: {e}; end the programs that use it",
                    mount.dir.display()
                )));
            }
            Ok(()) => {}
        }
    }
    if all_end(&mounts, QUICK_END_TIMEOUT) {
        return Ok(());
    }
    if !force {
        pools.iter().try_for_each(|p| end_copies(p, &mounts))?;
    }
    all_end(&mounts, MOUNT_TIMEOUT);
    Ok(())
}

/// Waits at most `timeout` for the servers of these mounts to end. Returns whether all have ended.
fn all_end(mounts: &[Served], timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    while mounts.iter().any(|m| runs(m.pid)) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Ends those servers of this pool that only copies of their mounts keep alive, unless a process
/// uses a copy.
///
/// # Errors
/// If a copy is in use.
fn end_copies(pool: &Pool, mounts: &[Served]) -> Result<(), Fail> {
    let device = |m: &Served| {
        let record = pool.dir().join("mounts").join(m.pid.to_string());
        std::fs::read_to_string(device_of(&record)).ok()
    };
    let devices: Vec<String> = mounts.iter().filter_map(device).collect();
    match copies::users(&devices) {
        None => Ok(()),
        Some(users) if users.is_empty() => {
            for server in mounts.iter().filter_map(|m| Pid::from_raw(m.pid as i32)) {
                let _ = kill_process(server, Signal::TERM);
            }
            Ok(())
        }
        Some(users) => Err(Fail::failed(format!(
            "the pool is still mounted in another mount namespace (of a container, say), where it \
                is in use by {}; end them first",
            found::named(&users)
        ))),
    }
}

//! Checks of things outside of this host or of Forebay: FUSE, the network, remote shells, Slurm.
//! Also the trial pool.

use super::Finding;
use crate::addresses;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a remote host may take to answer.
const HOST_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the trial may take.
const TRIAL: Duration = Duration::from_secs(60);

pub fn checks() -> Vec<Finding> {
    vec![fuse(), ports(), slurm()]
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|dir| dir.join(program));
    all.find(|p| p.is_file() && rustix::fs::access(p, rustix::fs::Access::EXEC_OK).is_ok())
}

fn fuse() -> Finding {
    let why = "forebay mount, for programs that exec can't reach; exec and run don't need it";
    let ok = |found: &str| Finding::ok("FUSE", why, found);
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    match rustix::fs::access("/dev/fuse", access) {
        Err(rustix::io::Errno::NOENT) => {
            return ok("there is no /dev/fuse")
                .misses("modprobe fuse; in Docker: --device /dev/fuse");
        }
        Err(e) => {
            let found = format!("/dev/fuse: {}", forebay_backing::explain(e));
            return ok(&found).misses("let users read and write /dev/fuse: chmod 666 /dev/fuse");
        }
        Ok(()) => {}
    }
    if rustix::process::geteuid().is_root() {
        return ok("/dev/fuse, as root");
    }
    match on_path("fusermount3").or_else(|| on_path("fusermount")) {
        Some(helper) => ok(&format!("/dev/fuse and {}", helper.display())),
        None => ok("/dev/fuse, without fusermount3").misses("install the package fuse3"),
    }
}

fn ports() -> Finding {
    let why = "daemons of a pool of several nodes listen on TCP ports that the kernel chooses";
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let range = range.unwrap_or_default();
    let range = range.split_whitespace().collect::<Vec<_>>().join("-");
    let others = addresses::own();
    let others: Vec<String> = others
        .iter()
        .filter(|ip| !ip.is_loopback())
        .map(ToString::to_string)
        .collect();
    let found = if others.is_empty() {
        format!("ports {range}; loopback only")
    } else {
        format!("ports {range} on {}", others.join(", "))
    };
    let finding = Finding::ok("ports", why, found);
    match (TcpListener::bind(("0.0.0.0", 0)), others.is_empty()) {
        (Err(e), _) => finding.misses(format!("allow processes to listen on TCP ports ({e})")),
        (Ok(_), true) => finding
            .warns("pools on this host work (--nodes); for --hosts, bring up a network interface"),
        (Ok(_), false) => finding,
    }
}

fn slurm() -> Finding {
    let why = "in a Slurm job, a pool takes the nodes and the end of the job";
    let job = std::env::var("SLURM_JOB_ID")
        .ok()
        .filter(|id| !id.is_empty());
    let srun = on_path("srun");
    let ok = |found: String| Finding::ok("Slurm", why, found);
    match (job, srun) {
        (Some(id), Some(_)) => ok(format!("job {id}")),
        (Some(id), None) => ok(format!("job {id}, without srun on PATH"))
            .warns("put srun on PATH: daemons on the job's other nodes are started with it"),
        (None, Some(_)) => ok("installed; not in a job".into()),
        (None, None) => ok("not installed; not needed elsewhere".into()),
    }
}

/// Runs a command for at most `timeout`. Returns the first 64 KiB of what it printed on both
/// outputs. If the command fails, the error is its status and its last line.
fn run(mut command: Command, timeout: Duration) -> Result<String, String> {
    let (mut reader, writer) = std::io::pipe().map_err(|e| e.to_string())?;
    let errors = writer.try_clone().map_err(|e| e.to_string())?;
    command.stdin(Stdio::null()).stdout(writer).stderr(errors);
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    // `command` holds write ends of the pipe, too: close them, so that the reader sees its end.
    drop(command);
    let text = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = reader.by_ref().take(64 << 10).read_to_end(&mut text);
        String::from_utf8_lossy(&text).trim().to_owned()
    });
    let until = Instant::now() + timeout;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => {
                let text = text.join().unwrap_or_default();
                return if status.success() {
                    Ok(text)
                } else {
                    Err(format!(
                        "{status}: {}",
                        text.lines().last().unwrap_or("no output")
                    ))
                };
            }
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no answer within {} s", timeout.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Checks whether the remote shell can start a daemon of the same version on a host.
pub fn remote(host: &str, rsh: &str) -> Finding {
    let why = "up --hosts starts a daemon there with the remote shell, from the same path";
    let finding = |found: String| Finding::ok("host", why, found);
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => return finding(format!("{host}: {e}")).misses("reinstall forebay"),
    };
    let mut command = Command::new(rsh);
    if rsh.rsplit('/').next() == Some("ssh") {
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    }
    let words = format!(
        "{} --version",
        crate::output::quoted(&program.to_string_lossy())
    );
    command.arg(host).arg(words);
    let ours = format!("forebay {}", env!("CARGO_PKG_VERSION"));
    match run(command, HOST_TIMEOUT) {
        Ok(text) if text.lines().any(|line| line == ours) => finding(format!("{host}: {ours}")),
        Ok(text) => {
            let last = text.lines().last().unwrap_or("nothing").to_owned();
            let remedy = format!("install {ours} at {} on {host}", program.display());
            finding(format!("{host}: said {last}")).misses(remedy)
        }
        Err(why) => finding(format!("{host}: {rsh}: {why}")).misses(format!(
            "make '{rsh} {host} true' work without a password, and install forebay at {} there",
            program.display()
        )),
    }
}

/// Starts a small pool, runs a program in it, and removes it.
pub fn trial() -> Finding {
    let why = "a pool of 64 MiB, a program that writes and reads a file in it";
    let began = Instant::now();
    let program = std::env::current_exe().unwrap_or_else(|_| "forebay".into());
    let script = "echo trial > \"$FOREBAY_MOUNT/x\" && grep -qx trial \"$FOREBAY_MOUNT/x\"";
    let name = format!("doctor-{}", std::process::id());
    let mut command = Command::new(&program);
    command
        .args(["run", "--quiet", "--media", "memory:64M", "--pool", &name])
        .args(["--", "sh", "-c", script]);
    match run(command, TRIAL) {
        Ok(_) => {
            let took = crate::output::seconds(began.elapsed().as_secs_f64());
            Finding::ok("trial", why, format!("works, in {took}"))
        }
        Err(what) => {
            // A trial that timed out may have left its pool.
            let mut down = Command::new(&program);
            down.args(["down", "--force", "--quiet", "--pool", &name]);
            let _ = run(down, TRIAL);
            Finding::ok("trial", why, what).prevents(
                "do as the message says; if it says nothing, report it with the output of \
                 forebay version and forebay doctor --json",
            )
        }
    }
}

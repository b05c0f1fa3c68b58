//! Snakemake's command line, and starting and signalling runs as their users.

use crate::account::Account;
use crate::config::Config;
use crate::records::{Executor, Run, Workflow};
use crate::{Result, disk, programs, slurm};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Default maximum number of jobs in Slurm at the same time.
const JOBS: u32 = 50;

/// The paths of a run's directory, the workflow's directory and the plug-in.
pub struct Places {
    pub run: PathBuf,
    pub work: PathBuf,
    pub plugin: PathBuf,
}

/// Returns the command lines of Snakemake for the run, and for the pass that lists its jobs.
pub fn words(config: &Config, workflow: &Workflow, run: &Run) -> (Vec<OsString>, Vec<OsString>) {
    let p = &run.parameters;
    let mut all: Vec<String> = vec![config.snakemake.clone()];
    let mut add = |words: &[&str]| all.extend(words.iter().map(|w| (*w).to_owned()));
    add(&[
        "--snakefile",
        "Snakefile",
        "--logger",
        "forebay",
        "--nocolor",
    ]);
    if p.keep_going {
        add(&["--keep-going"]);
    }
    let pairs = |values: &std::collections::BTreeMap<String, String>| -> Vec<String> {
        values.iter().map(|(k, v)| format!("{k}={v}")).collect()
    };
    if !p.config.is_empty() {
        all.push("--config".into());
        all.extend(pairs(&p.config));
    }
    let mut plan = all.clone();
    plan.extend(["--dry-run", "--quiet", "all"].map(String::from));
    plan.extend(["--cores".into(), config.cores.to_string(), "--".into()]);
    plan.extend(p.targets.iter().cloned());
    all.push("--rerun-incomplete".into());
    match workflow.executor {
        Executor::Local => {
            let cores = p.jobs.unwrap_or(config.cores).min(config.cores);
            all.extend(["--cores".into(), cores.to_string()]);
            all.extend(config.local.iter().cloned());
        }
        Executor::Slurm => {
            let jobs = p.jobs.unwrap_or(JOBS).to_string();
            all.extend(["--executor", "slurm", "--jobs", &jobs].map(String::from));
            all.extend(["--slurm-jobname-prefix".into(), slurm::prefix(&run.id)]);
            all.extend(config.slurm.iter().cloned());
        }
    }
    if !p.resources.is_empty() {
        all.push("--default-resources".into());
        all.extend(pairs(&p.resources));
    }
    if !run.omitted.is_empty() {
        all.push("--omit-from".into());
        all.extend(run.omitted.iter().cloned());
    }
    all.push("--".into());
    all.extend(p.targets.iter().cloned());
    let os = |all: Vec<String>| all.into_iter().map(OsString::from).collect();
    (os(all), os(plan))
}

/// Starts a run's next attempt: starts its keeper, which continues without this process. The
/// keeper's output goes to `log`.
///
/// # Errors
/// The keeper can't be started.
pub fn start(
    config: &Config,
    account: &Account,
    workflow: &Workflow,
    run: &Run,
    places: &Places,
    log: File,
) -> Result<Child> {
    let (words, plan) = words(config, workflow, run);
    let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let mut command = account.command(own);
    command.args(["flow", "keep", "--attempt", &run.attempt.to_string()]);
    command.arg("--dir").arg(&places.run);
    command.arg("--work").arg(&places.work);
    if workflow.executor == Executor::Slurm {
        command.args(["--slurm", &run.id]);
    }
    command.args(["--plan-words", &plan.len().to_string(), "--"]);
    command.args(plan).args(words);
    command.envs(&config.environment);
    command.env("PYTHONPATH", &places.plugin);
    command.env_remove("PYTHONHOME");
    command.stdout(Stdio::null()).stderr(log);
    command.current_dir("/");
    command
        .spawn()
        .map_err(|e| format!("the run can't be started: {e}"))
}

/// Makes a run's directory, and opens its log, with this thread's current rights.
///
/// # Errors
/// The directory or the log can't be made.
pub fn prepare(places: &Places) -> Result<File> {
    disk::make_dir(places.run.parent().unwrap_or(&places.run), 0o700)?;
    disk::make_dir(&places.run, 0o700)?;
    let path = places.run.join("log");
    File::options()
        .append(true)
        .create(true)
        // If the user has replaced the log by a link or FIFO, opening it neither follows nor
        // blocks.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// Sends a signal to the process group of a run's Snakemake. The signal is sent as the run's user,
/// because `pid` comes from a file of that user.
pub fn signal(account: &Account, pid: &str, name: &str) {
    let is_pid = pid.parse::<u32>().is_ok_and(|pid| pid > 1);
    if is_pid {
        let mut command = account.command("kill");
        command.args([&format!("-{name}"), "--", &format!("-{pid}")]);
        // The process group may have ended meanwhile, so an error is ignored.
        let _ = programs::output(&mut command);
    }
}

/// Runs a short command of Forebay as a user, and returns its standard output.
///
/// # Errors
/// The command's message, if it fails or takes too long.
pub fn forebay(account: &Account, config: &Config, words: &[&str]) -> Result<String> {
    let own = std::env::current_exe().map_err(|e| format!("this program's path: {e}"))?;
    let mut command = account.command(own);
    programs::output(command.args(words).envs(&config.environment))
}

/// Returns the directory of a run.
pub fn run_dir(area: &Path, number: u32) -> PathBuf {
    area.join("runs").join(number.to_string())
}

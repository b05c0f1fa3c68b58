//! The pool that is measured, and the directories of one measurement. Both are removed at the end
//! in any case: dropping the pool takes it down by force.

use crate::children;
use crate::options::Options;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Which of the two compared file systems a run uses.
#[derive(Clone, Copy, PartialEq)]
pub enum Side {
    Plain,
    Pool,
}

pub struct Pool {
    forebay: PathBuf,
    me: PathBuf,
    name: String,
    media: String,
    /// Number of nodes on this host.
    nodes: usize,
    /// The directory of the pool's state (`FOREBAY_HOME`).
    home: PathBuf,
    /// The plain side's directory in `/dev/shm`.
    plain: PathBuf,
    /// Whether there may be a pool to take down; and whether it was started successfully.
    begun: bool,
    is_up: bool,
}

const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "/fb/bench";

impl Pool {
    /// Makes the directories; [`Pool::up`] makes the pool. `kind` is part of all names, so that
    /// several pools of one measurement don't collide.
    pub fn new(options: &Options, kind: &str, nodes: usize, media: &str) -> Result<Pool, String> {
        let id = std::process::id();
        let me = std::env::current_exe().map_err(|e| format!("my own program: {e}"))?;
        let pool = Pool {
            forebay: options.forebay.clone(),
            me,
            name: format!("bench{kind}-{id}"),
            media: media.into(),
            nodes,
            home: format!("{MEMORY}/fbbench{kind}-home-{id}").into(),
            plain: format!("{MEMORY}/fbbench{kind}-{id}").into(),
            begun: false,
            is_up: false,
        };
        for directory in [&pool.home, &pool.plain] {
            std::fs::DirBuilder::new()
                .mode(0o700)
                .create(directory)
                .map_err(|e| format!("{}: {e}", directory.display()))?;
        }
        Ok(pool)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a directory on the plain file system for files that aren't measured.
    pub fn scratch(&self) -> &Path {
        &self.home
    }

    /// Returns the plain side's directory, which workers with the pool may use as well.
    pub fn plain(&self) -> &Path {
        &self.plain
    }

    /// Returns the directory for the runs of a side. The directories of both sides have the same
    /// depth, as in /dev/shm/fbbench-1 and /fb/bench/1, since the cost of resolving a path depends
    /// on it.
    pub fn directory(&self, side: Side) -> String {
        match side {
            Side::Plain => self.plain.display().to_string(),
            Side::Pool => format!("{PREFIX}/{}", std::process::id()),
        }
    }

    /// Returns a command in the environment of this measurement, without an inherited interception.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("FOREBAY_HOME", &self.home)
            .env_remove("FOREBAY_POOL")
            .env_remove("FOREBAY_NODE")
            .env_remove("LD_PRELOAD");
        command
    }

    pub fn forebay(&self) -> Command {
        self.command(&self.forebay)
    }

    /// Returns the command of one worker: on the pool's side, it is run by `forebay exec`.
    pub fn worker(&self, side: Side, words: &[String]) -> Command {
        self.worker_at(side, 0, words)
    }

    /// As [`Pool::worker`], with the pool at node `node`.
    pub fn worker_at(&self, side: Side, node: usize, words: &[String]) -> Command {
        let mut command = match side {
            Side::Plain => self.command(&self.me),
            Side::Pool => {
                let mut command = self.forebay();
                command.args(["exec", "--pool", &self.name]);
                if self.nodes > 1 {
                    command.args(["--node", &node.to_string()]);
                }
                command.arg("--").arg(&self.me);
                command
            }
        };
        command.arg("worker").args(words);
        command
    }

    /// Makes the pool. Returns how long that took.
    pub fn start(&mut self) -> Result<Duration, String> {
        let mut command = self.forebay();
        command.args(["up", "--pool", &self.name, "--media", &self.media]);
        if self.nodes > 1 {
            command.args(["--nodes", &self.nodes.to_string()]);
        }
        self.begun = true;
        let took = children::run_one(command, Duration::from_secs(60), true, &self.home)?;
        self.is_up = true;
        Ok(took)
    }

    /// Sets the distribution of a directory of the pool; makes the directory if needed.
    pub fn distribute(&self, directory: &str, how: &str) -> Result<(), String> {
        let mut command = self.forebay();
        command.args(["set", "--pool", &self.name, "--distribution", how]);
        command.arg(directory);
        children::run_one(command, Duration::from_secs(20), true, &self.home).map(drop)
    }

    /// Declares controls for new files in a directory of the pool.
    pub fn control(&self, directory: &str, controls: &[&str]) -> Result<(), String> {
        let mut command = self.forebay();
        command.args(["set", "--pool", &self.name, directory]);
        command.args(controls);
        children::run_one(command, Duration::from_secs(20), true, &self.home).map(drop)
    }

    /// Number of requests that the pool's nodes have sent each other so far.
    pub fn requests(&self) -> Result<u64, String> {
        let mut command = self.forebay();
        command.args(["status", "--json", "--pool", &self.name]);
        let output = command
            .output()
            .map_err(|e| format!("forebay status: {e}"))?;
        let status: serde_json::Value =
            serde_json::from_slice(&output.stdout).map_err(|e| format!("forebay status: {e}"))?;
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let requests = nodes.map(|node| node["requests"].as_u64());
        requests
            .sum::<Option<u64>>()
            .ok_or("forebay status doesn't report the requests".into())
    }

    /// Makes the pool, and in it the directory for the runs.
    pub fn up(&mut self) -> Result<(), String> {
        self.start()?;
        for directory in [PREFIX.to_string(), self.directory(Side::Pool)] {
            let words = ["make", &directory, "0", "1", "1"].map(String::from);
            let commands = vec![self.worker(Side::Pool, &words)];
            children::run_team(commands, Duration::from_secs(20), &self.home)?;
            if Path::new(&directory).exists() {
                return Err(format!(
                    "{directory} came to lie on the real file system: nothing is intercepted"
                ));
            }
        }
        Ok(())
    }

    /// Takes the pool down, if there is one.
    pub fn down(&mut self) -> Result<(), String> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        let mut command = self.forebay();
        command.args(["down", "--pool", &self.name, "--force"]);
        children::run_one(command, Duration::from_secs(60), false, &self.home).map(drop)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let is_up = self.is_up;
        // If starting the pool failed, that failure has been reported already.
        if let Err(e) = self.down()
            && is_up
        {
            eprintln!("forebay-bench: {e}");
        }
        for directory in [&self.home, &self.plain] {
            let gone = std::fs::remove_dir_all(directory);
            if let Err(e) = gone
                && e.kind() != std::io::ErrorKind::NotFound
            {
                eprintln!("forebay-bench: {}: {e}", directory.display());
            }
        }
    }
}

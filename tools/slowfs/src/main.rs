//! `forebay-slowfs`: mounts a directory as a file system that tests can make slow, failing or dead.

use clap::{Parser, Subcommand};
use forebay_slowfs::{Effects, Options, Settings, mount, serve, tell, watch};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

/// Number of threads. If this many operations hang, all others hang, too.
const THREADS: usize = 128;

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Show the directory SOURCE at DIR, until standard input ends; prints `ready`
    Mount {
        source: String,
        dir: String,
        /// The socket at which orders are taken
        #[arg(long)]
        control: PathBuf,
        /// The settings at the start: JSON
        #[arg(long, default_value = "{}")]
        settings: String,
        /// Let the kernel keep pages of files
        #[arg(long)]
        cache: bool,
    },
    /// Send an order: '"stats"', '"reset"' or '{"set": {"rate": 1000000, "latency_ms": 2}}'
    Tell { control: PathBuf, order: String },
    /// Unmount DIR when standard input ends
    #[command(hide = true)]
    Watch { dir: PathBuf },
}

/// Starts the process that unmounts `dir` if this one is killed. Its environment is empty: tests
/// kill all processes in whose environment they find their own mark.
fn start_watcher(dir: &str) -> Result<Child, String> {
    let me = std::env::current_exe().map_err(|e| format!("my own program: {e}"))?;
    let mut command = Command::new(me);
    command.arg("watch").arg(dir).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command.spawn().map_err(|e| format!("the watcher: {e}"))
}

fn run(what: What) -> Result<(), String> {
    match what {
        What::Mount {
            source,
            dir,
            control,
            settings,
            cache,
        } => {
            let settings: Settings =
                Settings::parse(&settings).map_err(|e| format!("--settings: {e}"))?;
            let effects = Arc::new(Effects::new(settings));
            let at = control.display();
            serve(&control, effects.clone()).map_err(|e| format!("{at}: {e}"))?;
            let options = Options {
                threads: THREADS,
                caches: cache,
                effects: Some(effects),
            };
            let mut watcher = start_watcher(&dir)?;
            let served = mount(&source, &dir, options);
            drop(watcher.stdin.take());
            let _ = watcher.wait();
            served
        }
        What::Tell { control, order } => {
            let reply = tell(&control, &order);
            print!(
                "{}",
                reply.map_err(|e| format!("{}: {e}", control.display()))?
            );
            Ok(())
        }
        What::Watch { dir } => {
            watch(&dir);
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("forebay-slowfs: {e}");
            ExitCode::FAILURE
        }
    }
}

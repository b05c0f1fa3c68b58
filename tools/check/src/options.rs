//! The command line.

use crate::memory::WORKERS;
use crate::weak::{KINDS, Kind};
use clap::builder::TypedValueParser;
use clap::{Parser, value_parser};

/// Which locks a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    None,
    /// flock, and either F_SETLK or F_OFD_SETLK.
    OneKind,
    Mixed,
}

impl Locks {
    /// The number by which a worker is told which locks to take.
    pub fn number(self) -> u64 {
        self as u64
    }

    pub fn of(number: u64) -> Locks {
        match number {
            0 => Locks::None,
            1 => Locks::OneKind,
            _ => Locks::Mixed,
        }
    }
}

/// The declared consistency of the files, other than sequential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    Commit,
    Session,
    /// The bound of the staleness. Milliseconds.
    Eventual(u64),
}

impl Consistency {
    fn of(text: &str) -> Option<Consistency> {
        match text {
            "commit" => Some(Consistency::Commit),
            "session" => Some(Consistency::Session),
            _ => {
                let ms = text.strip_prefix("eventual(")?.strip_suffix("ms)")?;
                ms.parse().ok().map(Consistency::Eventual)
            }
        }
    }
}

/// forebay-check: random operations of several processes; is there a POSIX file system that could
/// have done this?
///
/// Each worker is started as COMMAND followed by its own words; {} in COMMAND becomes the number of
/// its node.
#[derive(Parser)]
#[command(name = "forebay-check", after_help = weak_help())]
pub struct Options {
    /// An existing directory, as the workers see it
    #[arg(long, value_name = "DIR")]
    pub top: String,
    /// Number of processes
    #[arg(long, default_value = "4", value_parser = value_parser!(u64).range(1..=WORKERS as u64).map(size))]
    pub workers: usize,
    /// Number of nodes N; worker W is on node W modulo N
    #[arg(long, default_value = "1", value_parser = value_parser!(u64).range(1..=1000))]
    pub nodes: u64,
    /// Maximum number of phases [default: no limit]
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_parser = value_parser!(u64).range(1..))]
    pub phases: u64,
    /// Maximum duration of the run. Seconds
    #[arg(long, default_value = "10", value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub seconds: u64,
    /// Repeats the random choices, though not the times [default: from the clock]
    #[arg(long, default_value_t = crate::calls::now() % 1_000_000_007, hide_default_value = true)]
    pub seed: u64,
    /// Unit of reading and writing, a multiple of 8. Bytes
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = cell)]
    pub cell: usize,
    /// Maximum number of operations of a process in a phase
    #[arg(long, default_value = "4", value_parser = value_parser!(u64).range(1..=12))]
    pub operations: u64,
    /// Break a promise, to see that the checker finds it
    #[arg(long = "weak", value_name = "KIND", default_value = "none", value_parser = weak_name)]
    pub weak_name: String,
    /// Nodes may fail: EIO, EHOSTDOWN, ETIMEDOUT and the like are allowed; an operation with such
    /// an error takes effect at any time, in part, or never
    #[arg(long)]
    pub faults: bool,
    /// No locks at all
    #[arg(long)]
    pub no_locks: bool,
    /// Processes take both F_SETLK and F_OFD_SETLK locks, not one of the two each
    #[arg(long, conflicts_with = "no_locks")]
    pub mixed_locks: bool,
    /// A read of several cells, or a write of several beyond the end, may be done cell by cell
    /// (tmpfs)
    #[arg(long)]
    pub by_cells: bool,
    /// A write to several cells doesn't exclude other writes (striped files)
    #[arg(long)]
    pub pieces: bool,
    /// Of a phase that is impossible, print all operations, not just those that matter
    #[arg(long)]
    pub whole: bool,
    /// In N of 1000 phases, a worker is killed
    #[arg(long, value_name = "N", default_value = "0", value_parser = value_parser!(u64).range(0..=1000))]
    pub kill: u64,
    /// Files of DIR are commit, session or eventual(Nms): processes write, commit and read cells,
    /// and nothing else (of the other options, only those on processes, nodes, time, kills, seed
    /// and cell count)
    #[arg(long, value_name = "C", value_parser = consistency)]
    pub consistency: Option<Consistency>,
    /// The directory that is DIR's origin, for an outside process: it changes, reads and removes
    /// files there while others use them in DIR (of the other options, only those on processes,
    /// nodes, time and seed)
    #[arg(long, value_name = "DIR", conflicts_with = "consistency")]
    pub origin: Option<std::path::PathBuf>,
    /// With --origin: the lag after which files are written back. Milliseconds
    #[arg(long, value_name = "MS", default_value = "2000")]
    pub lag: u64,
    /// With --origin: the time within which a change by others must be noticed. Milliseconds
    #[arg(long, value_name = "MS", default_value = "5000")]
    pub look: u64,
    /// With --origin: what a loaded machine may add to each bound. Milliseconds
    #[arg(long, value_name = "MS", default_value = "1500")]
    pub slack: u64,
    /// With --origin: delete the conflict copies, to test that the checker reports their loss
    #[arg(long)]
    pub loses_copies: bool,
    /// Time after which an operation counts as hanging. Seconds
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = value_parser!(u64).range(1..=10_000))]
    pub bound: u64,
    /// The command that starts each worker
    #[arg(last = true, value_name = "COMMAND")]
    pub with: Vec<String>,
}

impl Options {
    /// Returns the options for this directory; all others have their defaults.
    pub fn of(top: &str) -> Options {
        Options::parse_from(["forebay-check", "--top", top])
    }

    /// Which locks a process takes.
    pub fn locks(&self) -> Locks {
        match (self.no_locks, self.mixed_locks) {
            (true, _) => Locks::None,
            (_, true) => Locks::Mixed,
            _ => Locks::OneKind,
        }
    }
}

fn size(n: u64) -> usize {
    n as usize
}

fn cell(text: &str) -> Result<usize, String> {
    let n = number("--cell", text, 8, 1 << 20)? as usize;
    if n.is_multiple_of(8) {
        Ok(n)
    } else {
        Err("a multiple of 8 is wanted".into())
    }
}

fn consistency(text: &str) -> Result<Consistency, String> {
    Consistency::of(text).ok_or("no such consistency; see --help".into())
}

fn weak_name(name: &str) -> Result<String, String> {
    weak(name).map(|_| name.to_owned())
}

fn weak_help() -> String {
    let kinds: Vec<&str> = KINDS.iter().map(|k| k.0).collect();
    format!("Kinds of weakness: {}", kinds.join(", "))
}

/// Returns the kind of weakness with this name.
pub fn weak(name: &str) -> Result<Kind, String> {
    if name == "none" {
        return Ok(Kind::Nothing);
    }
    let found = KINDS.iter().find(|k| k.0 == name);
    found
        .map(|k| k.1)
        .ok_or(format!("no weakness is called {name:?}"))
}

pub fn number(name: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!(
            "{name} wants a number from {least} to {most}, not {text:?}"
        )),
    }
}

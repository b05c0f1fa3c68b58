//! The command line.

use crate::memory::WORKERS;
use crate::weak::{KINDS, Kind};

/// Which locks a process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locks {
    None,
    /// F_SETLK or F_OFD_SETLK, not both; and flock.
    OneKind,
    Mixed,
}

impl Locks {
    /// As a worker is told.
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

/// What was said of the files, other than that all is sequential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    Commit,
    Session,
    /// Milliseconds.
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

pub struct Options {
    /// Where the directories of the rounds are made; seen by the workers.
    pub top: String,
    pub workers: usize,
    pub nodes: u64,
    pub phases: u64,
    pub seconds: u64,
    pub seed: u64,
    pub cell: usize,
    /// Most operations of a process in a phase.
    pub operations: u64,
    pub weak: Kind,
    pub weak_name: String,
    pub faults: bool,
    pub locks: Locks,
    pub by_cells: bool,
    pub pieces: bool,
    /// Tells all of an impossible phase, not just what matters.
    pub whole: bool,
    /// Of 1000 phases, in how many a worker is killed.
    pub kill: u64,
    /// Only cells of files of which this was said.
    pub consistency: Option<Consistency>,
    /// Seconds that a phase may take.
    pub bound: u64,
    /// What the workers are started with.
    pub with: Vec<String>,
}

pub const HELP: &str = "\
forebay-check: random operations of several processes; is there a POSIX file system that could have done this?

usage: forebay-check --top DIR [options] [-- COMMAND...]

Each worker is started as COMMAND followed by its own words; {} in COMMAND becomes the number of its node.

  --top DIR         an existing directory, as the workers see it
  --workers N       processes (4)
  --nodes N         nodes; worker W is on node W modulo N (1)
  --phases N        how much (no end)
  --seconds N       how long, at most (10)
  --seed N          repeats what is asked, though not the times (from the clock)
  --cell BYTES      unit of reading and writing, a multiple of 8 (64)
  --operations N    most of a process in a phase (4)
  --faults          nodes come and go: EIO, EHOSTDOWN, ETIMEDOUT and the like may be; such operations are
                    done at any time, in part, or never
  --no-locks        no locks at all
  --mixed-locks     processes take both F_SETLK and F_OFD_SETLK locks, not one of the two each
  --kill N          in N of 1000 phases, a worker is killed
  --bound SECONDS   what takes longer hangs (20)
  --by-cells        a read of several cells, or a write of several behind the end, may go cell by cell (tmpfs)
  --pieces          writes of several cells take no turns with others (striped files)
  --consistency C   files of DIR are commit, session or eventual(Nms): processes write, commit and read cells, and nothing
                    else (of the other options, only those on processes, nodes, time, kills, seed and cell count)
  --whole           of a phase that is impossible, tell all, too, not just what matters
  --weak KIND       do something worse than promised, to see that it is found: ";

/// Reads the arguments; `None` means that help is asked for.
pub fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut o = Options {
        top: String::new(),
        workers: 4,
        nodes: 1,
        phases: u64::MAX,
        seconds: 10,
        seed: crate::calls::now() % 1_000_000_007,
        cell: 64,
        operations: 4,
        weak: Kind::Nothing,
        weak_name: "none".into(),
        faults: false,
        locks: Locks::OneKind,
        by_cells: false,
        pieces: false,
        whole: false,
        kill: 0,
        consistency: None,
        bound: 20,
        with: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{name} wants a value"));
        match name.as_str() {
            "-h" | "--help" => return Ok(None),
            "--top" => o.top = value()?.clone(),
            "--workers" => o.workers = number(name, value()?, 1, WORKERS as u64)? as usize,
            "--nodes" => o.nodes = number(name, value()?, 1, 1000)?,
            "--phases" => o.phases = number(name, value()?, 1, u64::MAX)?,
            "--seconds" => o.seconds = number(name, value()?, 1, 1_000_000)?,
            "--seed" => o.seed = number(name, value()?, 0, u64::MAX)?,
            "--cell" => o.cell = number(name, value()?, 1, 1 << 20)? as usize,
            "--operations" => o.operations = number(name, value()?, 1, 12)?,
            "--kill" => o.kill = number(name, value()?, 0, 1000)?,
            "--bound" => o.bound = number(name, value()?, 1, 10_000)?,
            "--mixed-locks" => o.locks = Locks::Mixed,
            "--no-locks" => o.locks = Locks::None,
            "--faults" => o.faults = true,
            "--by-cells" => o.by_cells = true,
            "--pieces" => o.pieces = true,
            "--whole" => o.whole = true,
            "--consistency" => {
                let text = value()?;
                let which = Consistency::of(text);
                o.consistency = Some(which.ok_or(format!("no consistency is called {text:?}"))?);
            }
            "--weak" => o.weak_name = value()?.clone(),
            "--" => {
                o.with = rest.cloned().collect();
                break;
            }
            _ => return Err(format!("unknown option {name:?}")),
        }
    }
    if o.top.is_empty() {
        return Err("--top is missing".into());
    }
    if !o.cell.is_multiple_of(8) {
        return Err("--cell wants a multiple of 8".into());
    }
    o.weak = weak(&o.weak_name)?;
    Ok(Some(o))
}

/// The kind of weakness of this name.
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

//! A run of programs, as a report shows it: a plain model that is written as JSON and read again.
//!
//! Totals come from exact counters. Patterns, times of files and sharing come from events, and
//! [`Run::incomplete`] says where these are not whole. [`crate::analyse`] computes a run from a
//! recording, [`crate::darshan`] from the log of a run without Forebay.

use crate::totals::{Counted, Totals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form. A reader refuses later ones.
pub const VERSION: u32 = 1;
/// Bins of a series over time.
pub const BINS: usize = 200;
/// Limit on the files that are listed one by one.
pub const MAX_LISTED_FILES: usize = 200;
/// Limit on the processes that are listed one by one.
pub const MAX_LISTED_PROCESSES: usize = 64;
/// Limit on groups of files.
pub const MAX_GROUPS: usize = 100;
/// Limit on the processes and nodes that are listed for a file, and on its other names.
pub const MAX_LISTED_USERS: usize = 8;

/// Kinds of operations that move bytes; those of [`METADATA`] work on names and attributes.
pub const DATA: [&str; 4] = ["read", "write", "get", "put"];
/// Kinds of operations on names and attributes.
pub const METADATA: [&str; 12] = [
    "open",
    "create",
    "close",
    "stat",
    "list",
    "access",
    "mkdir",
    "remove",
    "rename",
    "link",
    "attributes",
    "truncate",
];

/// Facts about a run besides events and counters. Each may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The page's title.
    pub title: Option<String>,
    /// The command that was run.
    pub command: Option<String>,
    /// When it began. Nanoseconds since 1970.
    pub begin: Option<u64>,
    /// When it ended. Nanoseconds since 1970.
    pub end: Option<u64>,
    /// Nodes of the pool.
    pub nodes: Vec<NodeFacts>,
    /// Media of the nodes.
    pub media: Vec<MediumFacts>,
    /// Mount prefix of the pool, such as `/fb`.
    pub mount: Option<String>,
    /// The slow store behind the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginFacts>,
}

/// The slow store behind a pool, and its traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginFacts {
    /// The file's path.
    pub path: String,
    /// Files and bytes that were read from it.
    pub fetched_files: u64,
    pub fetched_bytes: u64,
    /// Files and bytes that were written to it.
    pub written_files: u64,
    pub written_bytes: u64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// The node's number.
    pub node: u32,
    /// The name of the node's host.
    pub name: Option<String>,
}

/// A medium of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MediumFacts {
    /// The node.
    pub node: u32,
    /// `memory` or `files`, then a colon and more, if more is known.
    pub kind: String,
    /// Size. Bytes.
    pub capacity: Option<u64>,
    /// Peak use. Bytes.
    pub peak: Option<u64>,
}

/// The source of a run's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Events and counters of Forebay.
    #[default]
    Forebay,
    /// A log of Darshan, of a run without Forebay.
    Darshan,
}

/// Bytes and operations over time, in bins of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// Bytes read in each bin. Estimated within an operation: it is spread evenly over its time.
    pub read: Vec<u64>,
    /// Bytes written in each bin.
    pub written: Vec<u64>,
    /// Reads, writes and opens that began in each bin.
    pub operations: Vec<u64>,
}

impl Series {
    /// A series of [`BINS`] bins without anything.
    pub fn empty() -> Series {
        Series {
            read: vec![0; BINS],
            written: vec![0; BINS],
            operations: vec![0; BINS],
        }
    }

    /// Adds another series.
    pub fn add(&mut self, other: &Series) {
        let add = |to: &mut Vec<u64>, from: &[u64]| {
            to.resize(to.len().max(from.len()), 0);
            for (to, from) in to.iter_mut().zip(from) {
                *to += from;
            }
        };
        add(&mut self.read, &other.read);
        add(&mut self.written, &other.written);
        add(&mut self.operations, &other.operations);
    }
}

/// A node's share of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePart {
    /// Its number.
    pub node: u32,
    /// Exact counts.
    pub totals: Totals,
    /// From events.
    pub series: Series,
}

/// A process's share of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessPart {
    /// Its node.
    pub node: u32,
    /// Process id, or MPI rank in a run of [`Source::Darshan`].
    pub process: u32,
    /// Its program.
    pub program: String,
    /// Exact counts.
    pub totals: Totals,
    /// From events.
    pub series: Series,
    /// How many processes this entry stands for.
    pub stands_for: u64,
}

/// Reads or writes, as events show them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Operations.
    pub count: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Their time. Nanoseconds.
    pub nanoseconds: u64,
    /// How many began at the end of the process's last one in the same file.
    pub consecutive: u64,
    /// Number of accesses that began there or later. Includes consecutive ones.
    pub sequential: u64,
    /// How many were a process's first in their file: they have no order.
    pub first: u64,
    /// How many by size: powers of two, as lower bounds; 0: nothing was moved. Bytes.
    pub sizes: BTreeMap<u64, u64>,
}

impl Access {
    /// Adds others.
    pub fn add(&mut self, other: &Access) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.nanoseconds += other.nanoseconds;
        self.consecutive += other.consecutive;
        self.sequential += other.sequential;
        self.first += other.first;
        for (size, n) in &other.sizes {
            *self.sizes.entry(*size).or_default() += n;
        }
    }

    /// Consecutive, merely sequential and random operations, as shares of those that have an
    /// order; None if none has.
    pub fn shares(&self) -> Option<[f64; 3]> {
        let ordered = self.count.saturating_sub(self.first);
        (ordered > 0).then(|| {
            let of = |n: u64| n as f64 / ordered as f64;
            let sequential = self.sequential.min(ordered);
            [
                of(self.consecutive.min(sequential)),
                of(sequential - self.consecutive.min(sequential)),
                of(ordered - sequential),
            ]
        })
    }

    /// Mean size. Bytes.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.bytes as f64 / self.count as f64)
    }
}

/// The lower bound of a size's class.
pub fn class(size: u64) -> u64 {
    match size {
        0 => 0,
        _ => 1 << size.ilog2(),
    }
}

/// A file of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct File {
    /// Path in the pool under which the file was first opened; unknown parts are in parentheses.
    pub path: String,
    /// Whether all of the path is known.
    pub known: bool,
    /// Other paths under which it was opened, [`MAX_LISTED_USERS`] at most.
    pub also: Vec<String>,
    /// How often it was opened.
    pub opens: u64,
    /// Whether it was created in the run.
    pub created: bool,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
    /// The largest end of an operation. Bytes.
    pub size: u64,
    /// Processes that used it, as `NODE:PROCESS`, [`MAX_LISTED_USERS`] at most.
    pub processes: Vec<String>,
    /// How many processes used it.
    pub process_count: u64,
    /// Nodes on which it was used, [`MAX_LISTED_USERS`] at most.
    pub nodes: Vec<u32>,
    /// On how many nodes it was used.
    pub node_count: u64,
    /// Waits for locks that programs take on the file. Only if the recording has these events.
    pub lock_waits: u64,
    /// Their time. Nanoseconds.
    pub lock_nanoseconds: u64,
}

impl File {
    /// Time of its reads and writes. Nanoseconds.
    pub fn time(&self) -> u64 {
        self.reads.nanoseconds + self.writes.nanoseconds
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }
}

/// Files that are not listed one by one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rest {
    /// How many.
    pub files: u64,
    /// How often they were opened.
    pub opens: u64,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
}

/// How many files, and bytes in them, were used by whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Used {
    /// Files.
    pub files: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Files by the number of their users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sharing {
    /// Used by one process.
    pub process: Used,
    /// Used by several processes of one node.
    pub node: Used,
    /// Used on several nodes.
    pub nodes: Used,
}

/// Whether the files of a group may have a control.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// Number of files whose use shows the pattern for which the control is meant.
    pub supports: u64,
    /// Number of files whose use the control would have forbidden or changed.
    pub against: u64,
    /// One of these, and why.
    pub example: Option<String>,
}

impl Verdict {
    /// Adds that of another file.
    pub fn add(&mut self, other: &Verdict) {
        self.supports += other.supports;
        self.against += other.against;
        if self.example.is_none() {
            self.example.clone_from(&other.example);
        }
    }
}

/// Files whose paths match a pattern, and what their use in this run means for controls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// The pattern, as rules write it.
    pub pattern: String,
    /// Whether it stands for all below a directory.
    pub directory: bool,
    /// The path of one of the files.
    pub example: String,
    /// Files that match.
    pub files: u64,
    /// How many of them were created in the run.
    pub created: u64,
    /// How often they were opened.
    pub opens: u64,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
    /// The largest file. Bytes.
    pub largest: u64,
    /// Nodes that used them.
    pub nodes: u64,
    /// Maximum number of nodes that used one file.
    pub nodes_of_a_file: u64,
    /// Maximum number of processes that used one file.
    pub processes_of_a_file: u64,
    /// Directories (of those that hold the files) that were used on several nodes.
    pub shared_directories: u64,
    /// Reads that asked other nodes, estimated from the counters of the processes.
    pub remote_reads: f64,
    /// Writes that asked other nodes, estimated.
    pub remote_writes: f64,
    /// Operations on names and attributes that asked other nodes, estimated.
    pub remote_names: f64,
    /// Bytes that nodes other than the creator's read, each node's first reading left out.
    pub read_again: u64,
    /// MiB that these nodes read at least once: the requests of their first reading.
    pub fetched: u64,
    /// Verdicts by control, such as `mutability=immutable`.
    pub verdicts: BTreeMap<String, Verdict>,
}

/// Events of a process that are missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// Node.
    pub node: u32,
    /// Process id.
    pub process: u32,
    /// Its program.
    pub program: String,
    /// How many are missing.
    pub count: u64,
}

/// Operations of a layer above that reach files by others that are counted: for information.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layer {
    /// Its name, such as `MPI-IO`.
    pub name: String,
    /// Operations.
    pub operations: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Its time. Nanoseconds.
    pub nanoseconds: u64,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// [`VERSION`].
    pub version: u32,
    /// The run's source.
    pub source: Source,
    /// Facts about the run.
    pub facts: Facts,
    /// When it began. Nanoseconds since 1970.
    pub begin: u64,
    /// Duration of the run. Nanoseconds.
    pub length: u64,
    /// All that was counted.
    pub totals: Totals,
    /// Its nodes.
    pub nodes: Vec<NodePart>,
    /// Its processes, the busiest first, [`MAX_LISTED_PROCESSES`] at most.
    pub processes: Vec<ProcessPart>,
    /// All other processes.
    pub other_processes: Option<ProcessPart>,
    /// Reads, from events.
    pub reads: Access,
    /// Writes, from events.
    pub writes: Access,
    /// Files, those that took most time first, [`MAX_LISTED_FILES`] at most.
    pub files: Vec<File>,
    /// All other files.
    pub other_files: Rest,
    /// Files by the number of their users.
    pub sharing: Sharing,
    /// Groups of files, [`MAX_GROUPS`] at most.
    pub groups: Vec<Group>,
    /// Layers above.
    pub layers: Vec<Layer>,
    /// Events that are missing.
    pub lost: Vec<Lost>,
    /// Sentences about incomplete parts of the report.
    pub incomplete: Vec<String>,
}

/// How unequal shares are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// The largest share.
    pub most: f64,
    /// The mean share.
    pub mean: f64,
    /// Number of shares.
    pub count: usize,
}

impl Imbalance {
    /// The imbalance of these shares; None if they are fewer than two, or all 0.
    pub fn of(shares: impl Iterator<Item = f64> + Clone) -> Option<Imbalance> {
        let count = shares.clone().count();
        let mean = shares.clone().sum::<f64>() / count.max(1) as f64;
        let most = shares.fold(0.0, f64::max);
        (count > 1 && mean > 0.0).then_some(Imbalance { most, mean, count })
    }

    /// The largest share as a multiple of the mean.
    pub fn factor(&self) -> f64 {
        self.most / self.mean
    }

    /// A word for where the factor lies between 1 (all have the same) and the number of shares
    /// (one has all).
    pub fn word(&self) -> &'static str {
        match (self.factor() - 1.0) / (self.count as f64 - 1.0) {
            s if s < 0.05 => "even",
            s if s < 0.25 => "slightly uneven",
            s if s < 0.75 => "uneven",
            _ => "nearly all by one",
        }
    }
}

/// The sum of some kinds of operations.
pub fn sum_of(totals: &Totals, kinds: &[&str]) -> Counted {
    let mut sum = Counted::default();
    for kind in kinds {
        if let Some(counted) = totals.operations.get(*kind) {
            sum.count += counted.count;
            sum.bytes += counted.bytes;
            sum.errors += counted.errors;
            sum.remote += counted.remote;
        }
    }
    sum
}

/// The time of some kinds of operations, estimated from those that were timed. Nanoseconds.
pub fn time_of(totals: &Totals, kinds: &[&str]) -> f64 {
    let time = |kind: &&str| totals.operations.get(*kind).map_or(0.0, Counted::time);
    kinds.iter().map(time).sum()
}

/// Bytes that were read and written.
pub fn bytes_of(totals: &Totals) -> u64 {
    sum_of(totals, &DATA).bytes
}

impl Run {
    /// Reads a run's JSON.
    ///
    /// # Errors
    /// A sentence about the mistake in the JSON.
    pub fn from_json(text: &str) -> Result<Run, String> {
        let run: Run =
            serde_json::from_str(text).map_err(|e| format!("this is no report's data: {e}"))?;
        match run.version {
            1..=VERSION => Ok(run),
            0 => Err("this is no report's data: it has no version".into()),
            later => Err(format!(
                "the report is of version {later}, and this program reads up to {VERSION}"
            )),
        }
    }

    /// The run as JSON.
    ///
    /// # Panics
    /// Never: all of it can be written.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, texts, lists and maps by texts and numbers")
    }

    /// The share of operations on names and attributes: of the number, and of the time.
    pub fn metadata_shares(&self) -> (Option<f64>, Option<f64>) {
        let all = self.totals.all().count;
        let time = self.totals.time();
        let count = sum_of(&self.totals, &METADATA).count;
        let spent = time_of(&self.totals, &METADATA);
        (
            (all > 0).then(|| count as f64 / all as f64),
            (time > 0.0).then(|| spent / time),
        )
    }

    /// The share of operations that asked other nodes; None if there are none, or it isn't known.
    pub fn remote_share(&self) -> Option<f64> {
        let all = self.totals.all();
        let known = self.source == Source::Forebay && all.count > 0;
        known.then(|| all.remote as f64 / all.count as f64)
    }

    /// Imbalance of a number between nodes.
    pub fn between_nodes(&self, number: impl Fn(&Totals) -> f64) -> Option<Imbalance> {
        let shares: Vec<f64> = self.nodes.iter().map(|n| number(&n.totals)).collect();
        Imbalance::of(shares.into_iter())
    }

    /// Imbalance of a number between the listed processes.
    pub fn between_processes(&self, number: impl Fn(&Totals) -> f64) -> Option<Imbalance> {
        let shares: Vec<f64> = self.processes.iter().map(|p| number(&p.totals)).collect();
        Imbalance::of(shares.into_iter())
    }

    /// Files of the run.
    pub fn file_count(&self) -> u64 {
        self.files.len() as u64 + self.other_files.files
    }
}

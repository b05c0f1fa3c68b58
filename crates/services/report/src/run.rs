//! The model of a run of programs that reports show. The model can be written as JSON and read
//! again.
//!
//! Totals come from exact counters. Access patterns, times of files and sharing come from events;
//! [`Run::incomplete`] tells where events are missing. [`crate::analyse`] computes a run from a
//! recording, [`crate::darshan`] from the log of a run without Forebay.

use crate::totals::{Counted, Totals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form. A reader refuses later versions.
pub const VERSION: u32 = 1;
/// Number of bins of a series over time.
pub const BINS: usize = 200;
/// Maximum number of files that are listed one by one.
pub const MAX_LISTED_FILES: usize = 200;
/// Maximum number of processes that are listed one by one.
pub const MAX_LISTED_PROCESSES: usize = 64;
/// Maximum number of groups of files.
pub const MAX_GROUPS: usize = 100;
/// Maximum number of listed processes, nodes and further paths of a file.
pub const MAX_LISTED_USERS: usize = 8;

/// Kinds of operations that move bytes.
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

/// Facts about a run that don't come from events or counters. Each may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The page's title.
    pub title: Option<String>,
    /// The command that was run.
    pub command: Option<String>,
    /// Start time. Nanoseconds since 1970.
    pub begin: Option<u64>,
    /// End time. Nanoseconds since 1970.
    pub end: Option<u64>,
    /// The nodes of the pool.
    pub nodes: Vec<NodeFacts>,
    /// The media of the nodes.
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
    /// The origin's path, or the bucket's address.
    pub path: String,
    /// Files and bytes that were read from the origin.
    pub fetched_files: u64,
    pub fetched_bytes: u64,
    /// Files and bytes that were written to the origin.
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
    /// The medium's node.
    pub node: u32,
    /// `memory` or `files`. A colon and details may follow.
    pub kind: String,
    /// Size of the medium. Bytes.
    pub capacity: Option<u64>,
    /// Maximum use during the run. Bytes.
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
    /// Number of bytes read in each bin. The bytes of an operation are distributed evenly over its
    /// time.
    pub read: Vec<u64>,
    /// Number of bytes written in each bin, distributed in the same way.
    pub written: Vec<u64>,
    /// Number of reads, writes and opens that began in each bin.
    pub operations: Vec<u64>,
}

impl Series {
    /// Returns a series of [`BINS`] empty bins.
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
    /// The node's number.
    pub node: u32,
    /// Totals from exact counters.
    pub totals: Totals,
    /// The series from events.
    pub series: Series,
}

/// A process's share of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessPart {
    /// The process's node.
    pub node: u32,
    /// Process id, or MPI rank in a run of [`Source::Darshan`].
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// Totals from exact counters.
    pub totals: Totals,
    /// The series from events.
    pub series: Series,
    /// Number of processes that this entry stands for.
    pub stands_for: u64,
}

/// Reads or writes, as events show them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// Number of operations.
    pub count: u64,
    /// Number of bytes that the operations moved.
    pub bytes: u64,
    /// Sum of the operations' durations. Nanoseconds.
    pub nanoseconds: u64,
    /// Number of operations that began where the process's last one in the same file ended.
    pub consecutive: u64,
    /// Number of operations that began where the process's last one in the same file ended, or at a
    /// higher offset. Includes consecutive ones.
    pub sequential: u64,
    /// Number of operations that were the first of a process in a file, and so neither sequential
    /// nor random.
    pub first: u64,
    /// Number of operations by size. The key is the lower bound of the size, a power of two. Bytes.
    /// 0: nothing was moved.
    pub sizes: BTreeMap<u64, u64>,
}

impl Access {
    /// Adds other accesses.
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

    /// Returns the shares of consecutive, only sequential, and random operations among those that
    /// aren't first ones. None if all operations are first ones.
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

    /// Returns the mean size of an operation. Bytes.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.bytes as f64 / self.count as f64)
    }
}

/// Returns the lower bound of the class of sizes that contains `size`.
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
    /// The path in the pool by which the file was first opened. Unknown parts are in parentheses.
    pub path: String,
    /// Whether the whole path is known.
    pub known: bool,
    /// Other paths by which the file was opened, up to [`MAX_LISTED_USERS`].
    pub also: Vec<String>,
    /// Number of opens.
    pub opens: u64,
    /// Whether the file was created in the run.
    pub created: bool,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
    /// Maximum end offset of an operation. Bytes.
    pub size: u64,
    /// Processes that used the file, as `NODE:PROCESS`, up to [`MAX_LISTED_USERS`].
    pub processes: Vec<String>,
    /// Number of processes that used the file.
    pub process_count: u64,
    /// Nodes on which the file was used, up to [`MAX_LISTED_USERS`].
    pub nodes: Vec<u32>,
    /// Number of nodes on which the file was used.
    pub node_count: u64,
    /// Number of waits for locks that programs take on the file. 0 if the recording doesn't have
    /// these events.
    pub lock_waits: u64,
    /// Sum of the waits' durations. Nanoseconds.
    pub lock_nanoseconds: u64,
}

impl File {
    /// Returns the time of the file's reads and writes. Nanoseconds.
    pub fn time(&self) -> u64 {
        self.reads.nanoseconds + self.writes.nanoseconds
    }

    /// Returns the number of bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.reads.bytes + self.writes.bytes
    }
}

/// The sum of the files that aren't listed one by one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rest {
    /// Number of files.
    pub files: u64,
    /// Number of opens.
    pub opens: u64,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
}

/// A number of files, and the bytes read from and written to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Used {
    /// Files.
    pub files: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// Files by the number of processes and nodes that used them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sharing {
    /// Files used by one process.
    pub process: Used,
    /// Files used by several processes of one node.
    pub node: Used,
    /// Files used on several nodes.
    pub nodes: Used,
}

/// The verdict on declaring a control for the files of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// Number of files whose use shows the pattern for which the control is meant.
    pub supports: u64,
    /// Number of files whose use the control would have forbidden or changed.
    pub against: u64,
    /// One of the files that count against the control, and the reason.
    pub example: Option<String>,
}

impl Verdict {
    /// Adds another verdict.
    pub fn add(&mut self, other: &Verdict) {
        self.supports += other.supports;
        self.against += other.against;
        if self.example.is_none() {
            self.example.clone_from(&other.example);
        }
    }
}

/// Files whose paths match a pattern, with facts about their use in this run and verdicts on
/// controls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// The pattern, in the syntax of rules.
    pub pattern: String,
    /// Whether the pattern stands for everything below a directory.
    pub directory: bool,
    /// The path of one of the files.
    pub example: String,
    /// Number of matching files.
    pub files: u64,
    /// Number of matching files that were created in the run.
    pub created: u64,
    /// Number of opens of the files.
    pub opens: u64,
    /// Reads.
    pub reads: Access,
    /// Writes.
    pub writes: Access,
    /// Size of the largest file. Bytes.
    pub largest: u64,
    /// Number of nodes that used the files.
    pub nodes: u64,
    /// Maximum number of nodes that used one file.
    pub nodes_of_a_file: u64,
    /// Maximum number of processes that used one file.
    pub processes_of_a_file: u64,
    /// Number of directories that contain these files and were used on several nodes.
    pub shared_directories: u64,
    /// Number of reads that sent requests to other nodes, estimated from the processes' counters.
    pub remote_reads: f64,
    /// Number of writes that sent requests to other nodes, estimated.
    pub remote_writes: f64,
    /// Number of operations on names and attributes that sent requests to other nodes, estimated.
    pub remote_names: f64,
    /// Number of bytes that nodes other than the creator's read again, after their first reading.
    pub read_again: u64,
    /// Number of MiB that nodes other than the creator's read at least once. The first reading of
    /// these MiB takes one request for each.
    pub fetched: u64,
    /// Verdicts by control, such as `mutability=immutable`.
    pub verdicts: BTreeMap<String, Verdict>,
}

/// The number of missing events of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lost {
    /// The process's node.
    pub node: u32,
    /// Process id.
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// Number of missing events.
    pub count: u64,
}

/// Operations of a layer, such as MPI-IO, whose accesses to files are counted as operations of a
/// lower layer, too. Shown for information only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Layer {
    /// The layer's name, such as `MPI-IO`.
    pub name: String,
    /// Number of operations.
    pub operations: u64,
    /// Number of bytes read.
    pub read: u64,
    /// Number of bytes written.
    pub written: u64,
    /// Time spent in the layer. Nanoseconds.
    pub nanoseconds: u64,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The version of the JSON form: [`VERSION`].
    pub version: u32,
    /// The source of the run's data.
    pub source: Source,
    /// Facts about the run.
    pub facts: Facts,
    /// Start time. Nanoseconds since 1970.
    pub begin: u64,
    /// Duration of the run. Nanoseconds.
    pub length: u64,
    /// The sum of all counters.
    pub totals: Totals,
    /// The run's nodes.
    pub nodes: Vec<NodePart>,
    /// The run's processes, the busiest first, up to [`MAX_LISTED_PROCESSES`].
    pub processes: Vec<ProcessPart>,
    /// The sum of all processes that aren't listed.
    pub other_processes: Option<ProcessPart>,
    /// Reads, from events.
    pub reads: Access,
    /// Writes, from events.
    pub writes: Access,
    /// The run's files, those that took most time first, up to [`MAX_LISTED_FILES`].
    pub files: Vec<File>,
    /// The sum of all files that aren't listed.
    pub other_files: Rest,
    /// Files by the number of processes and nodes that used them.
    pub sharing: Sharing,
    /// Groups of files, up to [`MAX_GROUPS`].
    pub groups: Vec<Group>,
    /// Layers above the counted operations.
    pub layers: Vec<Layer>,
    /// Numbers of missing events.
    pub lost: Vec<Lost>,
    /// Sentences about parts of the report that are incomplete.
    pub incomplete: Vec<String>,
}

/// The inequality of shares.
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
    /// Returns the imbalance of these shares. None if there are fewer than two, or all are 0.
    pub fn of(shares: impl Iterator<Item = f64> + Clone) -> Option<Imbalance> {
        let count = shares.clone().count();
        let mean = shares.clone().sum::<f64>() / count.max(1) as f64;
        let most = shares.fold(0.0, f64::max);
        (count > 1 && mean > 0.0).then_some(Imbalance { most, mean, count })
    }

    /// Returns the largest share as a multiple of the mean.
    pub fn factor(&self) -> f64 {
        self.most / self.mean
    }

    /// Returns a word for the factor, which is between 1 (all shares are equal) and the number of
    /// shares (one share is everything).
    pub fn word(&self) -> &'static str {
        match (self.factor() - 1.0) / (self.count as f64 - 1.0) {
            s if s < 0.05 => "even",
            s if s < 0.25 => "slightly uneven",
            s if s < 0.75 => "uneven",
            _ => "nearly all by one",
        }
    }
}

/// Returns the sum of some kinds of operations.
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

/// Estimates the time of some kinds of operations from those that were timed. Nanoseconds.
pub fn time_of(totals: &Totals, kinds: &[&str]) -> f64 {
    let time = |kind: &&str| totals.operations.get(*kind).map_or(0.0, Counted::time);
    kinds.iter().map(time).sum()
}

/// Returns the number of bytes that were read and written.
pub fn bytes_of(totals: &Totals) -> u64 {
    sum_of(totals, &DATA).bytes
}

impl Run {
    /// Parses a run's JSON.
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

    /// Returns the run as JSON.
    ///
    /// # Panics
    /// Never: all of it can be written.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, texts, lists and maps by texts and numbers")
    }

    /// Returns the share of operations on names and attributes: of the number, and of the time.
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

    /// Returns the share of operations that sent requests to other nodes. None if there are no
    /// operations, or the share isn't known.
    pub fn remote_share(&self) -> Option<f64> {
        let all = self.totals.all();
        let known = self.source == Source::Forebay && all.count > 0;
        known.then(|| all.remote as f64 / all.count as f64)
    }

    /// Returns the imbalance of a number between nodes.
    pub fn between_nodes(&self, number: impl Fn(&Totals) -> f64) -> Option<Imbalance> {
        let shares: Vec<f64> = self.nodes.iter().map(|n| number(&n.totals)).collect();
        Imbalance::of(shares.into_iter())
    }

    /// Returns the imbalance of a number between the listed processes.
    pub fn between_processes(&self, number: impl Fn(&Totals) -> f64) -> Option<Imbalance> {
        let shares: Vec<f64> = self.processes.iter().map(|p| number(&p.totals)).collect();
        Imbalance::of(shares.into_iter())
    }

    /// Returns the number of the run's files.
    pub fn file_count(&self) -> u64 {
        self.files.len() as u64 + self.other_files.files
    }
}

//! Reading a run without Forebay: from the text that `darshan-parser` makes of a Darshan log.
//!
//! Header lines begin with `#`. Data lines have a module, a rank (-1: all ranks together), a record
//! id, a counter, a value, a path, a mount point and a file system, separated by tabs. The totals
//! come from the modules POSIX and STDIO. MPI-IO is a layer above POSIX, and is shown separately.
//! Other modules are ignored. Input is limited ([`MAX_RECORDS`], [`MAX_LINE_BYTES`]). A line that
//! can't be parsed is an error, which names the line.
//!
//! A log has no single operations. So the series over time distribute a record's bytes evenly
//! between its first and its last operation. Verdicts on controls compare each rank's intervals of
//! time. Where the intervals don't show enough, a control counts as contradicted.

use crate::analyse::{bounded, busiest};
use crate::groups::{self, Member};
use crate::run::*;
use crate::totals::Totals;
use crate::usage::{LARGE, control};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, Read};

/// Maximum number of records. There is one for each module, rank and file.
pub const MAX_RECORDS: usize = 1_000_000;
/// Maximum length of a line. Bytes.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Names of the counters that are read, without the prefix of their module.
const COUNTERS: [&str; 58] = [
    "OPENS",
    "READS",
    "WRITES",
    "SEEKS",
    "STATS",
    "FSYNCS",
    "FDSYNCS",
    "FLUSHES",
    "MMAPS",
    "BYTES_READ",
    "BYTES_WRITTEN",
    "CONSEC_READS",
    "CONSEC_WRITES",
    "SEQ_READS",
    "SEQ_WRITES",
    "MAX_BYTE_READ",
    "MAX_BYTE_WRITTEN",
    "INDEP_OPENS",
    "COLL_OPENS",
    "INDEP_READS",
    "INDEP_WRITES",
    "COLL_READS",
    "COLL_WRITES",
    "SPLIT_READS",
    "SPLIT_WRITES",
    "NB_READS",
    "NB_WRITES",
    "F_READ_TIME",
    "F_WRITE_TIME",
    "F_META_TIME",
    "F_OPEN_START_TIMESTAMP",
    "F_READ_START_TIMESTAMP",
    "F_WRITE_START_TIMESTAMP",
    "F_READ_END_TIMESTAMP",
    "F_WRITE_END_TIMESTAMP",
    "F_CLOSE_END_TIMESTAMP",
    // Names of the start times before version 3.1.
    "F_OPEN_TIMESTAMP",
    "F_CLOSE_TIMESTAMP",
    "SIZE_READ_0_100",
    "SIZE_READ_100_1K",
    "SIZE_READ_1K_10K",
    "SIZE_READ_10K_100K",
    "SIZE_READ_100K_1M",
    "SIZE_READ_1M_4M",
    "SIZE_READ_4M_10M",
    "SIZE_READ_10M_100M",
    "SIZE_READ_100M_1G",
    "SIZE_READ_1G_PLUS",
    "SIZE_WRITE_0_100",
    "SIZE_WRITE_100_1K",
    "SIZE_WRITE_1K_10K",
    "SIZE_WRITE_10K_100K",
    "SIZE_WRITE_100K_1M",
    "SIZE_WRITE_1M_4M",
    "SIZE_WRITE_4M_10M",
    "SIZE_WRITE_10M_100M",
    "SIZE_WRITE_100M_1G",
    "SIZE_WRITE_1G_PLUS",
];
/// Lower bounds of Darshan's classes of operation sizes. Bytes.
const CLASSES: [u64; 10] = [
    0,
    100,
    1 << 10,
    10 << 10,
    100 << 10,
    1 << 20,
    4 << 20,
    10 << 20,
    100 << 20,
    1 << 30,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Module {
    Posix,
    Stdio,
    MpiIo,
}

impl Module {
    /// Returns the module with this name, and the prefix of its counters.
    fn of(name: &str) -> Option<(Module, &'static str)> {
        match name {
            "POSIX" => Some((Module::Posix, "POSIX_")),
            "STDIO" => Some((Module::Stdio, "STDIO_")),
            "MPI-IO" | "MPIIO" => Some((Module::MpiIo, "MPIIO_")),
            _ => None,
        }
    }
}

/// The counters of a module, a rank and a file, by their index in [`COUNTERS`].
type Record = BTreeMap<u8, f64>;

fn value(record: &Record, name: &str) -> f64 {
    let place = COUNTERS.iter().position(|c| *c == name);
    let found = place.and_then(|p| record.get(&(p as u8)));
    // Negative numbers, mostly -1, mean that the value isn't known.
    found.copied().unwrap_or(0.0).max(0.0)
}

fn has(record: &Record, name: &str) -> bool {
    let place = COUNTERS.iter().position(|c| *c == name);
    place.is_some_and(|p| record.contains_key(&(p as u8)))
}

fn whole(record: &Record, name: &str) -> u64 {
    value(record, name) as u64
}

#[derive(Default)]
struct Log {
    exe: Option<String>,
    version: bool,
    processes: u64,
    start: u64,
    end: u64,
    length: Option<f64>,
    mounts: u64,
    warnings: Vec<String>,
    names: BTreeMap<u64, String>,
    records: HashMap<(Module, i64, u64), Record>,
}

/// Reads a run from the output of `darshan-parser`.
///
/// # Errors
/// A sentence: the first line that can't be parsed, or that the text isn't output of
/// `darshan-parser`.
pub fn read(from: impl BufRead) -> Result<Run, String> {
    let mut from = from;
    let mut log = Log {
        processes: 1,
        ..Log::default()
    };
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let length = (&mut from)
            .take(MAX_LINE_BYTES as u64 + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(|e| format!("line {number}: can't be read: {e}"))?;
        if length == 0 {
            break;
        }
        if length > MAX_LINE_BYTES {
            return Err(format!(
                "line {number}: it is longer than {MAX_LINE_BYTES} bytes, so this is no output of darshan-parser"
            ));
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        log.line(line).map_err(|e| format!("line {number}: {e}"))?;
    }
    if log.version {
        Ok(log.run())
    } else {
        Err(
            "this is no output of darshan-parser: it has no line '# darshan log version: ...'"
                .into(),
        )
    }
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    let text = text.trim();
    text.parse()
        .map_err(|_| format!("{what} is '{}', which isn't a number", shown(text)))
}

/// Returns the beginning of a text, for messages.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    short.escape_debug().to_string()
}

impl Log {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix('#') {
            return self.header(comment.trim_start());
        }
        if line.trim().is_empty() {
            return Ok(());
        }
        if !self.version {
            return Err(format!(
                "'{}' comes before '# darshan log version: ...': this is no output of darshan-parser",
                shown(line)
            ));
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let &[module, rank, id, counter, text, ..] = &fields[..] else {
            return Err(format!(
                "'{}' isn't module, rank, record id, counter, value, path, mount point, file \
                    system with tabs between them",
                shown(line)
            ));
        };
        let Some((module, prefix)) = Module::of(module) else {
            return Ok(());
        };
        let rank: i64 = number(rank, "the rank")?;
        if !(-1..=i64::from(u32::MAX)).contains(&rank) {
            return Err(format!("there is no rank {rank}"));
        }
        let id = if id.starts_with('-') {
            number::<i64>(id, "the record id")? as u64
        } else {
            number(id, "the record id")?
        };
        let amount: f64 = number(text, counter)?;
        if !amount.is_finite() {
            return Err(format!("{} is {amount}", shown(counter)));
        }
        let name = match fields.len() {
            // The path contains tabs.
            8.. => fields[5..fields.len() - 2].join("\t"),
            _ => fields.get(5).copied().unwrap_or("").to_owned(),
        };
        let name = name.trim_end();
        let counter = counter.strip_prefix(prefix);
        let place = counter.and_then(|c| COUNTERS.iter().position(|known| *known == c));
        let key = (module, rank, id);
        if !self.records.contains_key(&key) && self.records.len() == MAX_RECORDS {
            return Err(format!("there are more than {MAX_RECORDS} records"));
        }
        self.names.entry(id).or_insert_with(|| name.to_owned());
        let record = self.records.entry(key).or_default();
        if let Some(place) = place {
            record.insert(place as u8, amount);
        }
        Ok(())
    }

    fn header(&mut self, text: &str) -> Result<(), String> {
        if text.contains("*WARNING*") || text.contains("*ERROR*") {
            if self.warnings.len() < 10 {
                self.warnings.push(shown_whole(text));
            }
            return Ok(());
        }
        let Some((key, rest)) = text.split_once(':') else {
            return Ok(());
        };
        match key {
            "darshan log version" => self.version = true,
            "exe" => self.exe = Some(rest.trim().to_owned()),
            "nprocs" => self.processes = number::<u64>(rest, "nprocs")?.max(1),
            "start_time" => self.start = seconds(rest, "start_time")?,
            "end_time" => self.end = seconds(rest, "end_time")?,
            "run time" => {
                let length: f64 = number(rest, "the run time")?;
                self.length = Some(length).filter(|l| l.is_finite() && *l > 0.0);
            }
            "mount entry" => self.mounts += 1,
            _ => {}
        }
        Ok(())
    }

    /// Sorts the records by file and by rank. `length`: the run's duration. Nanoseconds.
    fn sorted(&self, length: u64) -> Sorted {
        let mut files: BTreeMap<u64, Used> = BTreeMap::new();
        let mut ranks: BTreeMap<i64, ProcessPart> = BTreeMap::new();
        let mut layer = Layer {
            name: "MPI-IO".into(),
            ..Layer::default()
        };
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_by_key(|(key, _)| **key);
        for (&(module, rank, id), record) in records {
            if module == Module::MpiIo {
                add_layer(&mut layer, record);
                continue;
            }
            let part = ranks.entry(rank).or_insert_with(|| ProcessPart {
                process: rank.max(0) as u32,
                program: match rank {
                    -1 => "all ranks, in files that they share".into(),
                    rank => format!("rank {rank}"),
                },
                series: Series::empty(),
                stands_for: if rank < 0 { self.processes } else { 1 },
                ..ProcessPart::default()
            });
            add_totals(&mut part.totals, record);
            spread(&mut part.series, record, length);
            files
                .entry(id)
                .or_default()
                .by_rank
                .entry(rank)
                .or_default()
                .add(record);
        }
        Sorted {
            files,
            ranks,
            layer,
        }
    }

    fn run(self) -> Run {
        let begin = self.start.saturating_mul(1_000_000_000);
        let from_times = self.end.saturating_sub(self.start).max(1) as f64;
        let length = (self.length.unwrap_or(from_times) * 1e9) as u64;
        let Sorted {
            files,
            ranks,
            layer,
        } = self.sorted(length);
        let mut totals = Totals::default();
        ranks.values().for_each(|part| totals.add(&part.totals));
        let (mut listed, mut members) = (Vec::new(), Vec::new());
        let (mut reads, mut writes) = (Access::default(), Access::default());
        let mut sharing = Sharing::default();
        for (id, used) in files {
            let path = match self.names.get(&id).filter(|name| !name.is_empty()) {
                Some(name) => name.clone(),
                None => format!("(file {id:x})"),
            };
            let known = path.starts_with('/') && !path.ends_with('/');
            let (group, file) = used.judge(path.clone(), known, self.processes);
            reads.add(&group.reads);
            writes.add(&group.writes);
            let by = match group.processes_of_a_file {
                2.. => &mut sharing.node,
                _ => &mut sharing.process,
            };
            by.files += 1;
            by.bytes += file.bytes();
            listed.push(file);
            if known {
                members.push(Member {
                    path,
                    cut: false,
                    nodes: BTreeSet::new(),
                    group,
                });
            }
        }
        let (files, other_files) = bounded(listed);
        let (processes, other_processes) = busiest(ranks.into_values().collect());
        let mut incomplete = vec![
            "the log has no single operations: series over time are estimates, and sizes are in \
                Darshan's classes"
                .to_owned(),
            "the log doesn't say on which nodes the ranks were".to_owned(),
        ];
        incomplete.extend(self.warnings);
        Run {
            version: VERSION,
            source: Source::Darshan,
            facts: Facts {
                command: self.exe,
                begin: (self.start > 0).then_some(begin),
                end: (self.start > 0).then_some(begin.saturating_add(length)),
                ..Facts::default()
            },
            begin,
            length: length.max(1),
            totals,
            nodes: Vec::new(),
            processes,
            other_processes,
            reads,
            writes,
            files,
            other_files,
            sharing,
            groups: groups::of(&members),
            layers: if layer.operations > 0 {
                vec![layer]
            } else {
                Vec::new()
            },
            lost: Vec::new(),
            incomplete,
        }
    }
}

fn shown_whole(text: &str) -> String {
    text.chars().take(300).collect()
}

/// Parses a time in seconds. Some versions write it with a fraction.
fn seconds(text: &str, what: &str) -> Result<u64, String> {
    let seconds: f64 = number(text, what)?;
    Ok(seconds.max(0.0) as u64)
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

fn add_layer(layer: &mut Layer, record: &Record) {
    let counts = [
        "INDEP_READS",
        "INDEP_WRITES",
        "COLL_READS",
        "COLL_WRITES",
        "SPLIT_READS",
        "SPLIT_WRITES",
        "NB_READS",
        "NB_WRITES",
    ];
    layer.operations += counts.iter().map(|c| whole(record, c)).sum::<u64>();
    layer.read += whole(record, "BYTES_READ");
    layer.written += whole(record, "BYTES_WRITTEN");
    let times = ["F_READ_TIME", "F_WRITE_TIME", "F_META_TIME"];
    layer.nanoseconds += nanoseconds(times.iter().map(|t| value(record, t)).sum());
}

fn add_totals(totals: &mut Totals, record: &Record) {
    let syncs = whole(record, "FSYNCS") + whole(record, "FDSYNCS") + whole(record, "FLUSHES");
    let names = whole(record, "OPENS") + whole(record, "STATS");
    let meta = value(record, "F_META_TIME");
    // The log has one time for all operations on names. That time is divided among opens and stats
    // by their numbers.
    let part = |n: u64| meta * n as f64 / names.max(1) as f64;
    let opens = whole(record, "OPENS");
    let stats = whole(record, "STATS");
    for (kind, count, bytes, time) in [
        ("open", opens, 0, part(opens)),
        ("stat", stats, 0, part(stats)),
        ("seek", whole(record, "SEEKS"), 0, 0.0),
        ("sync", syncs, 0, 0.0),
        ("map", whole(record, "MMAPS"), 0, 0.0),
        (
            "read",
            whole(record, "READS"),
            whole(record, "BYTES_READ"),
            value(record, "F_READ_TIME"),
        ),
        (
            "write",
            whole(record, "WRITES"),
            whole(record, "BYTES_WRITTEN"),
            value(record, "F_WRITE_TIME"),
        ),
    ] {
        if count == 0 {
            continue;
        }
        let counted = totals.operations.entry(kind.into()).or_default();
        counted.count += count;
        counted.bytes += bytes;
        if time > 0.0 {
            counted.durations.timed += count;
            counted.durations.nanoseconds += nanoseconds(time);
        }
    }
}

/// Distributes a record's operations over the time between its first and its last operation.
fn spread(series: &mut Series, record: &Record, length: u64) {
    let bin = |seconds: f64| {
        let at = (seconds * 1e9 / length.max(1) as f64 * BINS as f64) as usize;
        at.min(BINS - 1)
    };
    for (kind, bytes, count) in [
        ("READ", "BYTES_READ", "READS"),
        ("WRITE", "BYTES_WRITTEN", "WRITES"),
    ] {
        let from = bin(value(record, &format!("F_{kind}_START_TIMESTAMP")));
        let to = bin(value(record, &format!("F_{kind}_END_TIMESTAMP"))).max(from);
        let n = (to - from + 1) as u64;
        let (bytes, count) = (whole(record, bytes), whole(record, count));
        for at in from..=to {
            let first = |all: u64| all / n + if at == from { all % n } else { 0 };
            let bins = match kind {
                "READ" => &mut series.read,
                _ => &mut series.written,
            };
            bins[at] += first(bytes);
            series.operations[at] += first(count);
        }
    }
    series.operations[bin(opened_at(record))] += whole(record, "OPENS");
}

fn opened_at(record: &Record) -> f64 {
    value(record, "F_OPEN_START_TIMESTAMP").max(value(record, "F_OPEN_TIMESTAMP"))
}

/// The counters of a file for one rank, or for all ranks together.
#[derive(Debug, Default)]
struct ByRank {
    opens: u64,
    reads: Access,
    writes: Access,
    end: u64,
    written_end: u64,
    maps: u64,
    /// Intervals in seconds since the run's begin: from open to close, of reads, of writes.
    open: Option<(f64, f64)>,
    read: Option<(f64, f64)>,
    write: Option<(f64, f64)>,
}

fn joined(a: Option<(f64, f64)>, b: Option<(f64, f64)>) -> Option<(f64, f64)> {
    match (a, b) {
        (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
        (a, b) => a.or(b),
    }
}

impl ByRank {
    fn add(&mut self, record: &Record) {
        self.opens += whole(record, "OPENS");
        self.maps += whole(record, "MMAPS");
        for (kind, access, letters) in [
            ("READ", &mut self.reads, ("READS", "BYTES_READ")),
            ("WRITE", &mut self.writes, ("WRITES", "BYTES_WRITTEN")),
        ] {
            let mut more = Access {
                count: whole(record, letters.0),
                bytes: whole(record, letters.1),
                nanoseconds: nanoseconds(value(record, &format!("F_{kind}_TIME"))),
                consecutive: whole(record, &format!("CONSEC_{kind}S")),
                sequential: whole(record, &format!("SEQ_{kind}S")),
                ..Access::default()
            };
            more.first = u64::from(more.count > 0);
            if more.count > 0 && !has(record, "CONSEC_READS") {
                // The STDIO module doesn't count consecutive operations. Without seeks, each
                // operation begins where the last one ended.
                match whole(record, "SEEKS") {
                    0 => more.consecutive = more.count - 1,
                    _ => more.first = more.count,
                }
                more.sequential = more.consecutive;
            }
            let classes = COUNTERS
                .iter()
                .filter_map(|c| Some((c, c.strip_prefix(&format!("SIZE_{kind}_"))?)));
            for ((counter, _), lower) in classes.zip(CLASSES) {
                let n = whole(record, counter);
                if n > 0 {
                    more.sizes.insert(lower, n);
                }
            }
            access.add(&more);
        }
        let end = |name: &str, bytes: u64| match bytes {
            0 => 0,
            _ => whole(record, name) + 1,
        };
        let written = end("MAX_BYTE_WRITTEN", whole(record, "BYTES_WRITTEN"));
        self.written_end = self.written_end.max(written);
        let read = end("MAX_BYTE_READ", whole(record, "BYTES_READ"));
        self.end = self.end.max(written).max(read);
        let times = |kind: &str, used: bool| {
            let from = value(record, &format!("F_{kind}_START_TIMESTAMP"));
            let to = value(record, &format!("F_{kind}_END_TIMESTAMP"));
            used.then_some((from, to.max(from)))
        };
        let read = times("READ", whole(record, "READS") > 0);
        let write = times("WRITE", whole(record, "WRITES") > 0);
        self.read = joined(self.read, read);
        self.write = joined(self.write, write);
        let closed = value(record, "F_CLOSE_END_TIMESTAMP").max(value(record, "F_CLOSE_TIMESTAMP"));
        // A file without a close was open until the end.
        let closed = if closed > 0.0 { closed } else { f64::MAX };
        let open = (whole(record, "OPENS") > 0).then_some((opened_at(record), closed));
        self.open = joined(self.open, open);
    }
}

/// The records of a log, by file and by rank.
struct Sorted {
    /// The use of each file, by the file's id.
    files: BTreeMap<u64, Used>,
    /// The part of each rank. -1: all ranks together.
    ranks: BTreeMap<i64, ProcessPart>,
    layer: Layer,
}

/// The use of a file by rank. -1: all ranks together.
#[derive(Debug, Default)]
struct Used {
    by_rank: BTreeMap<i64, ByRank>,
}

impl Used {
    fn judge(self, path: String, known: bool, processes: u64) -> (Group, File) {
        let (mut reads, mut writes) = (Access::default(), Access::default());
        let (mut opens, mut end) = (0, 0);
        for by in self.by_rank.values() {
            reads.add(&by.reads);
            writes.add(&by.writes);
            opens += by.opens;
            end = end.max(by.end);
        }
        let users = if self.by_rank.contains_key(&-1) {
            processes.max(2)
        } else {
            self.by_rank.len() as u64
        };
        let mut verdicts = BTreeMap::new();
        for name in control::ALL {
            let verdict = match self.verdict(name, &reads, &writes, end) {
                Ok(supports) => Verdict {
                    supports: supports.into(),
                    ..Verdict::default()
                },
                Err(why) => Verdict {
                    against: 1,
                    example: Some(format!("{path}: {why}")),
                    supports: 0,
                },
            };
            verdicts.insert(name.to_owned(), verdict);
        }
        let rank = |rank: &i64| match rank {
            -1 => "all".to_owned(),
            rank => format!("rank {rank}"),
        };
        let file = File {
            path,
            known,
            opens,
            reads: reads.clone(),
            writes: writes.clone(),
            size: end,
            processes: self
                .by_rank
                .keys()
                .take(MAX_LISTED_USERS)
                .map(rank)
                .collect(),
            process_count: users,
            ..File::default()
        };
        let group = Group {
            files: 1,
            opens,
            reads,
            writes,
            largest: end,
            processes_of_a_file: users,
            verdicts,
            ..Group::default()
        };
        (group, file)
    }

    /// Returns whether the file's use suggests a control. Err: the use that contradicts the
    /// control.
    fn verdict(
        &self,
        name: &str,
        reads: &Access,
        writes: &Access,
        end: u64,
    ) -> Result<bool, &'static str> {
        let together = self.by_rank.contains_key(&-1);
        let by = || self.by_rank.values();
        let writers = by().filter(|b| b.writes.count > 0).count();
        let others_read = by().any(|b| b.reads.bytes > 0 && b.writes.count == 0);
        let mapped = by().any(|b| b.maps > 0);
        let first_read = by()
            .filter_map(|b| b.read)
            .map(|r| r.0)
            .fold(f64::MAX, f64::min);
        let last_write = by()
            .filter_map(|b| b.write)
            .map(|w| w.1)
            .fold(0.0, f64::max);
        match name {
            control::IMMUTABLE if writers == 0 => {
                Ok(reads.bytes > 0 && (together || opens(by()) > 1))
            }
            control::IMMUTABLE => {
                if together || writers > 1 {
                    return Err("several processes used it, and which of them wrote isn't known");
                }
                if last_write > first_read {
                    return Err("it was written to after it had been read");
                }
                if by().any(|b| b.writes.count > 0 && b.opens > 1) {
                    return Err(
                        "its writer opened it several times, and whether for writing isn't known",
                    );
                }
                Ok(others_read || end >= LARGE)
            }
            control::APPEND if writers > 0 => {
                if together || writers > 1 || mapped {
                    return Err("several processes used it, or it was mapped");
                }
                let grows = |b: &ByRank| {
                    b.writes.count == 0
                        || (b.writes.bytes == b.written_end
                            && b.writes.consecutive + 1 >= b.writes.count)
                };
                if by().all(grows) {
                    Ok(writes.count > 1 && !others_read)
                } else {
                    Err("its writes don't follow each other from the beginning")
                }
            }
            control::EXCLUSIVE | control::EXCLUSIVE_NODE => {
                if together {
                    return Err("several processes used it, and when each had it open isn't known");
                }
                let mut open: Vec<(f64, f64)> = by().filter_map(|b| b.open).collect();
                open.sort_by(|a, b| a.0.total_cmp(&b.0));
                if open.windows(2).any(|w| w[1].0 <= w[0].1) {
                    return Err("processes had it open at once");
                }
                Ok(writers > 0 && self.by_rank.len() <= 2)
            }
            control::COMMIT | control::SESSION if writers > 0 => {
                if mapped {
                    return Err("it was mapped");
                }
                if together {
                    if writes.bytes > end {
                        return Err("bytes were written more than once, and by whom isn't known");
                    }
                    if reads.count > 0 && (first_read < last_write || name == control::SESSION) {
                        return Err(
                            "it was read and written by several processes, and in which order \
                                isn't known",
                        );
                    }
                    return Ok(name == control::COMMIT);
                }
                self.check_order(name).map(|()| true)
            }
            control::ONCE if writers > 0 => {
                if mapped || writes.bytes > end || reads.bytes > end {
                    return Err("bytes were written or read more than once");
                }
                Ok(reads.bytes > 0 && end >= LARGE)
            }
            _ => Ok(false),
        }
    }

    /// Checks that no process used the file while another one, which wrote to it, had it open.
    fn check_order(&self, name: &str) -> Result<(), &'static str> {
        for (rank, reader) in &self.by_rank {
            for (other, writer) in &self.by_rank {
                let (Some(write), true) = (writer.write, rank != other) else {
                    continue;
                };
                let closed = writer.open.map_or(f64::MAX, |o| o.1);
                if let Some(read) = reader.read
                    && read.1 > write.0
                {
                    let since = match name {
                        control::SESSION => reader.open.map_or(0.0, |o| o.0),
                        _ => read.0,
                    };
                    if since < closed {
                        return Err(
                            "a process may have read it while another one, which wrote to \
                                it, had it open",
                        );
                    }
                }
                if let Some(own) = reader.write
                    && own.0 < closed
                    && write.0 < reader.open.map_or(f64::MAX, |o| o.1)
                {
                    return Err("two processes that wrote to it had it open at once");
                }
            }
        }
        Ok(())
    }
}

fn opens<'a>(by: impl Iterator<Item = &'a ByRank>) -> u64 {
    by.map(|b| b.opens).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../tests/data/darshan.txt");

    #[test]
    fn a_log_becomes_a_run() {
        let run = read(SAMPLE.as_bytes()).unwrap();
        assert_eq!(run.source, Source::Darshan);
        let command = run.facts.command.as_deref();
        assert_eq!(command, Some("./solver --input mesh.h5 --steps 10"));
        assert_eq!(run.length, 42_500_000_000);
        assert_eq!(run.begin, 1_700_000_000_000_000_000);
        let of = |kind: &str| &run.totals.operations[kind];
        assert_eq!((of("read").count, of("read").bytes), (64, 64 << 20));
        assert_eq!(
            (of("write").count, of("write").bytes),
            (1050, 410 << 20 | 51_200)
        );
        assert_eq!(run.totals.operations["open"].count, 11);
        let file = |name: &str| run.files.iter().find(|f| f.path.ends_with(name)).unwrap();
        let dump = file("dump.bin");
        assert_eq!((dump.process_count, dump.size), (4, 400 << 20));
        assert_eq!(dump.writes.sizes, [(1 << 20, 400)].into());
        assert_eq!(file("mesh 1.h5").reads.count, 64);
        assert_eq!(run.layers.len(), 1);
        assert_eq!(run.layers[0].operations, 400);
        let series = |pick: fn(&Series) -> &Vec<u64>| -> u64 {
            run.processes.iter().flat_map(|p| pick(&p.series)).sum()
        };
        assert_eq!(series(|s| &s.read), 64 << 20);
        assert_eq!(series(|s| &s.written), of("write").bytes);
        assert!(run.incomplete.iter().any(|i| i.contains("incomplete data")));
        // Checks verdicts on the checkpoints of single ranks, and on files that all ranks share.
        let verdict = |pattern: &str, control: &str| {
            let group = run.groups.iter().find(|g| g.pattern == pattern);
            group
                .unwrap_or_else(|| panic!("{:#?}", run.groups))
                .verdicts[control]
                .clone()
        };
        let checkpoints = "/scratch/run/ckpt/rank*.bin";
        assert_eq!(verdict(checkpoints, control::IMMUTABLE).supports, 2);
        assert_eq!(verdict(checkpoints, control::EXCLUSIVE).supports, 2);
        assert_eq!(
            verdict("/scratch/run/dump.bin", control::IMMUTABLE).against,
            1
        );
        assert_eq!(
            verdict("/scratch/run/dump.bin", control::COMMIT).supports,
            1
        );
        assert_eq!(verdict("/scratch/run/log.txt", control::APPEND).supports, 1);
    }

    #[test]
    fn what_is_no_log_is_an_error_with_its_line() {
        for (text, line, says) in [
            ("", "", "no line '# darshan log version"),
            ("hello\n", "line 1: ", "no output of darshan-parser"),
            (
                "# darshan log version: 3.41\nPOSIX\t0\n",
                "line 2: ",
                "isn't module, rank",
            ),
            (
                "# darshan log version: 3.41\nPOSIX\tx\t1\tPOSIX_OPENS\t1\t/a\t/\text4\n",
                "line 2: ",
                "the rank is 'x'",
            ),
            (
                "# darshan log version: 3.41\n# nprocs: many\n",
                "line 2: ",
                "nprocs is 'many'",
            ),
            (
                "# darshan log version: 3.41\n\nPOSIX\t0\t1\tPOSIX_OPENS\tNaN\t/a\t/\text4\n",
                "line 3: ",
                "NaN",
            ),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(line) && error.contains(says), "{error}");
        }
        let long = format!(
            "# darshan log version: 3.41\n{}",
            "x".repeat(MAX_LINE_BYTES + 1)
        );
        assert!(
            read(long.as_bytes())
                .unwrap_err()
                .contains("line 2: it is longer")
        );
    }

    #[test]
    fn damaged_logs_are_errors_and_no_panics() {
        let good = SAMPLE.as_bytes();
        for seed in 0..2000usize {
            let mut bad = good.to_vec();
            for turn in 0..1 + seed % 4 {
                let at = (seed * 7919 + turn * 104_729) % bad.len();
                bad[at] = b"\t\n-9e#\xff0"[(seed + turn) % 8];
            }
            if seed % 3 == 0 {
                bad.truncate(seed * 31 % bad.len());
            }
            if let Ok(run) = read(&bad[..]) {
                Run::from_json(&run.to_json()).unwrap();
            }
        }
    }
}

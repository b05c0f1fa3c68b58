//! Computing a [`Run`] from a recording, exact counters and facts.
//!
//! The analysis makes one pass over the events in the order of time. For each file it keeps the
//! data that [`crate::usage`] needs. So memory grows with the number of files, of processes that
//! use each file, and of each file's separate ranges.

use crate::groups::{self, Member};
use crate::run::*;
use crate::stream::{Event, Recording};
use crate::totals::{Process, Totals};
use crate::usage::{AT_END, Usage};
use forebay_media::count;
use forebay_trace::Point;
use forebay_trace::ring::TEXT;
use rustix::fs::OFlags;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Maximum depth of directories made in the run. The path of a deeper one counts as unknown.
const DEEPEST: usize = 256;

/// A read or write that has begun.
struct Begun {
    file: u64,
    write: bool,
    at: u64,
    time: u64,
}

struct Named {
    usage: Usage,
    paths: Vec<String>,
    known: bool,
    cut: bool,
    lock_waits: u64,
    lock_nanoseconds: u64,
}

/// The run's totals, whole and by node and process.
struct Parts {
    totals: Totals,
    nodes: BTreeMap<u32, NodePart>,
    processes: Vec<ProcessPart>,
}

fn parts_of(workers: Vec<Worker>, facts: &Facts) -> Parts {
    let mut totals = Totals::default();
    let mut nodes: BTreeMap<u32, NodePart> = BTreeMap::new();
    let mut processes = Vec::new();
    for node in &facts.nodes {
        nodes.entry(node.node).or_default().node = node.node;
    }
    for worker in workers {
        totals.add(&worker.totals);
        let part = nodes.entry(worker.node).or_insert_with(|| NodePart {
            node: worker.node,
            series: Series::empty(),
            ..NodePart::default()
        });
        part.totals.add(&worker.totals);
        part.series.add(&worker.series);
        processes.push(ProcessPart {
            node: worker.node,
            process: worker.process,
            program: worker.program,
            totals: worker.totals,
            series: worker.series,
            stands_for: 1,
        });
    }
    Parts {
        totals,
        nodes,
        processes,
    }
}

struct Worker {
    node: u32,
    process: u32,
    series: Series,
    totals: Totals,
    program: String,
}

struct Analysis<'a> {
    directories: Directories<'a>,
    workers: Vec<Worker>,
    numbers: HashMap<(u32, u32), u32>,
    files: BTreeMap<u64, Named>,
    begun: HashMap<(u32, u32, u32), Begun>,
    lock_waits: HashMap<(u32, u32, u32), (u64, u64)>,
    begin: u64,
    length: u64,
    unended: u64,
    unnamed_directories: u64,
}

/// Whether the event's process (a daemon) was carrying out a request of another process. A daemon
/// has no file open itself.
fn is_for_another(event: &Event) -> bool {
    let (_, process, _) = forebay_trace::parts(event.record.request);
    process != 0 && process != event.record.process
}

/// Paths of directories, including those that were removed before the end.
struct Directories<'a> {
    /// Paths at the end of the recording.
    at_end: &'a BTreeMap<u64, String>,
    /// Parent and name of each directory made in the run.
    made: HashMap<u64, (u64, Vec<u8>)>,
}

impl Directories<'_> {
    fn of(recording: &Recording) -> Directories<'_> {
        let made = |e: &Event| {
            let is_it = e.record.point == Point::POSIX_DIRECTORY_MADE as u16;
            let [directory, parent, ..] = e.record.fields;
            is_it.then(|| {
                (
                    directory,
                    (parent, e.record.text.clone().unwrap_or_default()),
                )
            })
        };
        Directories {
            at_end: &recording.directories,
            made: recording.events.iter().filter_map(made).collect(),
        }
    }

    /// Returns the path of a directory. None: the path isn't known.
    fn path(&self, id: u64) -> Option<String> {
        let (mut id, mut below) = (id, Vec::new());
        while let Some((parent, name)) = self.made.get(&id) {
            if name.len() >= TEXT || below.len() >= DEEPEST {
                return None;
            }
            below.push(String::from_utf8_lossy(name));
            id = *parent;
        }
        let path = self.at_end.get(&id)?.trim_end_matches('/').to_owned();
        Some(
            below
                .iter()
                .rev()
                .fold(path, |path, name| path + "/" + name),
        )
    }
}

/// Computes a run from a recording, counters and facts.
///
/// `counted`: the counters of each process after the run, minus those from before.
pub fn run(recording: &Recording, counted: &[Process], facts: Facts) -> Run {
    let times = || recording.events.iter().map(|e| e.record.time);
    let begin = facts.begin.or(times().next()).unwrap_or(0);
    let end = facts.end.or(times().next_back()).unwrap_or(begin);
    let mut analysis = Analysis {
        directories: Directories::of(recording),
        workers: Vec::new(),
        numbers: HashMap::new(),
        files: BTreeMap::new(),
        begun: HashMap::new(),
        lock_waits: HashMap::new(),
        begin,
        length: end.saturating_sub(begin).max(1),
        unended: 0,
        unnamed_directories: 0,
    };
    for process in counted {
        let worker = analysis.worker(process.node, process.process);
        let worker = &mut analysis.workers[worker as usize];
        worker.totals.add(&process.totals);
        worker.program.clone_from(&process.program);
    }
    for (&(node, process), program) in &recording.programs {
        let worker = analysis.worker(node.into(), process);
        let worker = &mut analysis.workers[worker as usize];
        if worker.program.is_empty() {
            worker.program.clone_from(program);
        }
    }
    for event in &recording.events {
        analysis.event(event);
    }
    analysis.finish(recording, facts)
}

impl Analysis<'_> {
    fn worker(&mut self, node: u32, process: u32) -> u32 {
        let next = self.workers.len() as u32;
        *self.numbers.entry((node, process)).or_insert_with(|| {
            self.workers.push(Worker {
                node,
                process,
                series: Series::empty(),
                totals: Totals::default(),
                program: String::new(),
            });
            next
        })
    }

    fn bin(&self, time: u64) -> usize {
        let since = time.saturating_sub(self.begin).min(self.length - 1);
        (u128::from(since) * BINS as u128 / u128::from(self.length)) as usize
    }

    /// Distributes bytes evenly over the bins between two times.
    fn spread(&mut self, worker: u32, write: bool, from: u64, to: u64, bytes: u64) {
        let (first, last) = (self.bin(from), self.bin(to).max(self.bin(from)));
        let series = &mut self.workers[worker as usize].series;
        let bins = if write {
            &mut series.written
        } else {
            &mut series.read
        };
        let n = (last - first + 1) as u64;
        for bin in &mut bins[first..=last] {
            *bin += bytes / n;
        }
        bins[first] += bytes % n;
    }

    fn file(&mut self, id: u64) -> &mut Named {
        self.files.entry(id).or_insert_with(|| Named {
            usage: Usage::default(),
            paths: Vec::new(),
            known: false,
            cut: false,
            lock_waits: 0,
            lock_nanoseconds: 0,
        })
    }

    fn event(&mut self, event: &Event) {
        let record = &event.record;
        let is = |point: Point| record.point == point as u16;
        let node = u32::from(event.node);
        let [file, second, third, _] = record.fields;
        let (time, thread) = (record.time, (node, record.process, record.thread));
        if is(Point::POSIX_OPENED) {
            let worker = self.worker(node, record.process);
            let bin = self.bin(time);
            self.workers[worker as usize].series.operations[bin] += 1;
            // Directories are opened for listing. The page shows files only.
            let flags = OFlags::from_bits_retain(third as u32);
            if flags.contains(OFlags::DIRECTORY) || self.directories.at_end.contains_key(&file) {
                return;
            }
            self.named(file, second, record.text.as_deref().unwrap_or(b""));
            let usage = &mut self.file(file).usage;
            usage.opened(worker, node, time, third as u32);
        } else if is(Point::STORE_CLOSE) && !is_for_another(event) {
            let worker = self.worker(node, record.process);
            // Descriptors of directories are closed, too. A file that wasn't opened in the
            // recording isn't known.
            if let Some(named) = self.files.get_mut(&file) {
                named.usage.closed(worker);
            }
        } else if is(Point::POSIX_READ_ENTER) || is(Point::POSIX_WRITE_ENTER) {
            let worker = self.worker(node, record.process);
            let bin = self.bin(time);
            self.workers[worker as usize].series.operations[bin] += 1;
            let write = is(Point::POSIX_WRITE_ENTER);
            if write {
                self.file(file).usage.write_begins(worker, node);
            }
            let begun = Begun {
                file,
                write,
                at: second,
                time,
            };
            if self.begun.insert(thread, begun).is_some() {
                self.unended += 1;
            }
        } else if is(Point::POSIX_READ_EXIT) || is(Point::POSIX_WRITE_EXIT) {
            let write = is(Point::POSIX_WRITE_EXIT);
            let Some(begun) = self.begun.remove(&thread) else {
                return;
            };
            if (begun.file, begun.write) != (file, write) {
                self.unended += 1;
                return;
            }
            self.moved(thread, &begun, time, second);
        } else if is(Point::POSIX_RENAMED) {
            let name = record.text.as_deref().unwrap_or(b"");
            self.directories.made.insert(file, (second, name.to_vec()));
            if self.files.contains_key(&file) {
                self.named(file, second, name);
            }
        } else if is(Point::POSIX_TRUNCATED) || is(Point::POSIX_ALLOCATED) {
            let worker = self.worker(node, record.process);
            let is_size = is(Point::POSIX_TRUNCATED);
            let end = if is_size {
                second
            } else {
                second.saturating_add(third)
            };
            let usage = &mut self.file(file).usage;
            usage.resized((worker, node), time, end, is_size);
        } else if is(Point::POSIX_MAPPED) {
            let worker = self.worker(node, record.process);
            self.file(file).usage.mapped(worker, node, second != 0);
        } else if is(Point::FILE_LOCK_WAIT_ENTER) {
            self.lock_waits.insert(thread, (file, time));
        } else if is(Point::FILE_LOCK_WAIT_EXIT)
            && let Some((waited, since)) = self.lock_waits.remove(&thread)
            && waited == file
        {
            let named = self.file(file);
            named.lock_waits += 1;
            named.lock_nanoseconds += time.saturating_sub(since);
        }
    }

    fn moved(&mut self, (node, process, _): (u32, u32, u32), begun: &Begun, end: u64, n: u64) {
        let worker = self.worker(node, process);
        let took = end.saturating_sub(begun.time);
        self.spread(worker, begun.write, begun.time, end, n);
        let usage = &mut self.file(begun.file).usage;
        match begun.write {
            true => usage.wrote(worker, end, begun.at, n, took),
            // A read can't begin at `AT_END`: the event is damaged.
            false if begun.at == AT_END => {}
            false => usage.read(worker, node, begun.at, n, took),
        }
    }

    /// Records the name under which a file was opened.
    fn named(&mut self, file: u64, directory: u64, name: &[u8]) {
        let cut = name.len() >= TEXT;
        let text = String::from_utf8_lossy(name);
        let (path, known) = match self.directories.path(directory) {
            Some(dir) => (format!("{}/{text}", dir.trim_end_matches('/')), true),
            None => (format!("(directory {directory:x})/{text}"), false),
        };
        self.unnamed_directories += u64::from(!known);
        let named = self.file(file);
        if named.paths.is_empty() {
            (named.known, named.cut) = (known && !name.is_empty(), cut);
        }
        if named.paths.len() <= MAX_LISTED_USERS && !named.paths.contains(&path) {
            named.paths.push(path);
        }
    }

    fn finish(mut self, recording: &Recording, facts: Facts) -> Run {
        let mut files = std::mem::take(&mut self.files);
        // A file whose only events are closes or waits for locks wasn't used.
        files.retain(|_, named| !named.usage.users.is_empty());
        let shares = Shares::of(&self.workers, &files);
        let (mut listed, mut members) = (Vec::new(), Vec::new());
        let (mut reads, mut writes) = (Access::default(), Access::default());
        let mut sharing = Sharing::default();
        for (id, named) in &mut files {
            let path = match named.paths.first() {
                Some(path) => path.clone(),
                None => format!("(opened before; file {id:x})"),
            };
            let mut group = named.usage.judge(&path);
            shares.of_file(&named.usage, &mut group);
            reads.add(&group.reads);
            writes.add(&group.writes);
            let usage = &named.usage;
            let used = match (group.nodes_of_a_file, group.processes_of_a_file) {
                (2.., _) => &mut sharing.nodes,
                (_, 2..) => &mut sharing.node,
                _ => &mut sharing.process,
            };
            used.files += 1;
            used.bytes += group.reads.bytes + group.writes.bytes;
            listed.push(self.file_of(named, &group, path.clone()));
            if named.known {
                members.push(Member {
                    path,
                    cut: named.cut,
                    nodes: usage.nodes(),
                    group,
                });
            }
        }
        let groups = groups::of(&members);
        let (files, other_files) = bounded(listed);
        let incomplete = self.incomplete(recording);
        let Parts {
            totals,
            nodes,
            processes,
        } = parts_of(self.workers, &facts);
        let (processes, other_processes) = busiest(processes);
        let program = |node: u32, process: u32| {
            let found = processes
                .iter()
                .find(|p| (p.node, p.process) == (node, process));
            found.map(|p| p.program.clone()).unwrap_or_default()
        };
        let lost = recording.lost.iter().filter(|(_, n)| **n > 0);
        let lost = lost.map(|(&(node, process), &count)| Lost {
            node: node.into(),
            process,
            program: program(node.into(), process),
            count,
        });
        Run {
            version: VERSION,
            source: Source::Forebay,
            begin: self.begin,
            length: self.length,
            totals,
            nodes: nodes.into_values().collect(),
            lost: lost.collect(),
            processes,
            other_processes,
            reads,
            writes,
            files,
            other_files,
            sharing,
            groups,
            layers: Vec::new(),
            incomplete,
            facts,
        }
    }

    /// Returns the entry of a file in the report.
    fn file_of(&self, named: &Named, group: &Group, path: String) -> File {
        let usage = &named.usage;
        let users = usage.users.keys().take(MAX_LISTED_USERS);
        let user = |&worker: &u32| {
            let w = &self.workers[worker as usize];
            format!("{}:{}", w.node, w.process)
        };
        File {
            path,
            known: named.known,
            also: named.paths.iter().skip(1).cloned().collect(),
            opens: usage.opens,
            created: usage.creator.is_some(),
            reads: group.reads.clone(),
            writes: group.writes.clone(),
            size: usage.end,
            processes: users.map(user).collect(),
            process_count: usage.users.len() as u64,
            nodes: usage.nodes().into_iter().take(MAX_LISTED_USERS).collect(),
            node_count: group.nodes_of_a_file,
            lock_waits: named.lock_waits,
            lock_nanoseconds: named.lock_nanoseconds,
        }
    }

    fn incomplete(&self, recording: &Recording) -> Vec<String> {
        let mut all = Vec::new();
        let lost: u64 = recording.lost.values().sum();
        if lost > 0 {
            all.push(format!(
                "lost: {} of {}, which patterns, sizes, series and files lack, but not totals",
                count(lost, "event"),
                count(recording.lost.len() as u64, "process")
            ));
        }
        if let Some(why) = &recording.cut {
            all.push(format!(
                "the stream of events can't be read to its end ({why}): what came later is missing \
                    in patterns, sizes, series and files"
            ));
        }
        if recording.unknown > 0 {
            all.push(format!(
                "left out: {} of tracepoints that this program doesn't know",
                count(recording.unknown, "event")
            ));
        }
        let unended = self.unended + self.begun.len() as u64;
        if unended > 0 {
            all.push(format!(
                "{unended} reads and writes have no end in the recording: they failed, or their \
                    process was killed; their bytes aren't in patterns"
            ));
        }
        if self.unnamed_directories > 0 {
            all.push(format!(
                "the directories of {} opens are unknown: no rule is proposed for their files",
                self.unnamed_directories
            ));
        }
        let moved = |kind: &str| {
            self.workers
                .iter()
                .map(|w| w.totals.bytes(kind))
                .sum::<u64>()
        };
        let counted = moved("read") + moved("write");
        let seen: u64 = (self.workers.iter())
            .map(|w| w.series.read.iter().chain(&w.series.written).sum::<u64>())
            .sum();
        if lost == 0 && counted > 0 && seen < counted / 100 * 99 {
            all.push(format!(
                "events show {seen} of the {counted} bytes that were counted: the others were \
                    moved through calls that have no event, or before the recording began"
            ));
        }
        all
    }
}

/// For each process, the distribution of its remote operations over the files that it used.
struct Shares {
    /// By process: the number of remote operations per read, per write and per open. If the process
    /// read (or wrote) files that were made on other nodes, the number is per read (or write) of
    /// these files.
    of: Vec<[f64; 3]>,
    /// Whether the process read, and whether it wrote, files that were made on other nodes.
    away: Vec<[bool; 2]>,
}

impl Shares {
    fn of(workers: &[Worker], files: &BTreeMap<u64, Named>) -> Shares {
        let (mut away, mut all) = (
            vec![[0u64; 2]; workers.len()],
            vec![[0u64; 3]; workers.len()],
        );
        for named in files.values() {
            let home = named.usage.home();
            for (&worker, user) in &named.usage.users {
                let counts = [user.reads.count, user.writes.count];
                let sums = &mut all[worker as usize];
                sums[0] += counts[0];
                sums[1] += counts[1];
                sums[2] += user.opens;
                if home != Some(user.node) {
                    let away = &mut away[worker as usize];
                    away[0] += counts[0];
                    away[1] += counts[1];
                }
            }
        }
        let share = |(i, worker): (usize, &Worker)| {
            let remote = |kinds: &[&str]| sum_of(&worker.totals, kinds).remote as f64;
            let over = |remote: f64, n: u64| if n > 0 { remote / n as f64 } else { 0.0 };
            let data = |kind: usize, remote: f64| match away[i][kind] {
                0 => over(remote, all[i][kind]).min(1.0),
                n => over(remote, n).min(1.0),
            };
            [
                data(0, remote(&["read"])),
                data(1, remote(&["write"])),
                over(remote(&METADATA), all[i][2]),
            ]
        };
        Shares {
            of: workers.iter().enumerate().map(share).collect(),
            away: away.iter().map(|a| a.map(|n| n > 0)).collect(),
        }
    }

    fn of_file(&self, usage: &Usage, group: &mut Group) {
        let home = usage.home();
        for (&worker, user) in &usage.users {
            let (of, away) = (self.of[worker as usize], self.away[worker as usize]);
            let counts = |kind: usize| !away[kind] || home != Some(user.node);
            if counts(0) {
                group.remote_reads += of[0] * user.reads.count as f64;
            }
            if counts(1) {
                group.remote_writes += of[1] * user.writes.count as f64;
            }
            group.remote_names += of[2] * user.opens as f64;
        }
    }
}

/// Returns the files that took most time or moved most bytes, and the sum of the others.
pub(crate) fn bounded(mut files: Vec<File>) -> (Vec<File>, Rest) {
    files.sort_by_key(|f| (Reverse(f.time()), Reverse(f.bytes()), Reverse(f.opens)));
    let mut rest = Rest::default();
    for file in files.drain(MAX_LISTED_FILES.min(files.len())..) {
        rest.files += 1;
        rest.opens += file.opens;
        rest.reads.add(&file.reads);
        rest.writes.add(&file.writes);
    }
    (files, rest)
}

/// Returns the processes with most operations and bytes, and the sum of the others.
pub(crate) fn busiest(mut processes: Vec<ProcessPart>) -> (Vec<ProcessPart>, Option<ProcessPart>) {
    let used = |p: &ProcessPart| {
        let seen: u64 = p.series.operations.iter().sum();
        (bytes_of(&p.totals), p.totals.all().count, seen)
    };
    processes.retain(|p| used(p) != (0, 0, 0));
    processes.sort_by_key(|p| (Reverse(used(p)), p.node, p.process));
    let mut rest: Option<ProcessPart> = None;
    for process in processes.drain(MAX_LISTED_PROCESSES.min(processes.len())..) {
        let rest = rest.get_or_insert_with(ProcessPart::default);
        rest.totals.add(&process.totals);
        rest.series.add(&process.series);
        rest.stands_for += process.stands_for;
    }
    (processes, rest)
}

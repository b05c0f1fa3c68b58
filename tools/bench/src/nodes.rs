//! Measures a pool of four nodes, all on this host. Where one process works, it is compared with
//! bare TCP on loopback; where several do, with `/dev/shm`.

use crate::children::{self, Outcome};
use crate::options::Options;
use crate::pool::{Pool, Side};
use crate::remote::CONTENT_MIB;
use crate::report::{self, Figure, Goal, Results};
use crate::sys;
use crate::workloads::{MIB, NODE_MEASUREMENTS};
use std::time::{Duration, Instant};

const NODES: usize = 4;
/// The node whose process works. In these measurements, [`THERE`] holds the files.
const HERE: usize = 0;
const THERE: usize = 1;
const THIRD: usize = 2;
/// Two directories that [`THERE`] makes. The first inherits the distribution of its parent, so its
/// entries lie with their files. The entries of the second lie on all nodes.
const FILES_THERE: &str = "there/files";
const FILES_SPREAD: &str = "spread";
/// A directory with controls, and the controls declared for it.
const COMMIT: (&str, &[&str]) = (
    "there/commit",
    &["consistency=commit", "parallelism=exclusive"],
);
/// A directory of laminated files.
const LAMINATED: &str = "laminated";
/// The media of each node.
const MEDIA: &str = "memory:1G";
/// Number of files that are visited one by one.
const FILES: usize = 500;
/// For the long listing: number of files that are made at once, and the time reserved for listing
/// them.
const BATCH: usize = 50_000;
const TO_LIST: Duration = Duration::from_secs(15);
/// Maximum time of all measurements of this module together.
const BUDGET: Duration = Duration::from_secs(175);

const SESSION: (&str, &[&str]) = ("there/session", &["consistency=session"]);

struct Nodes<'a> {
    options: &'a Options,
    pool: Pool,
    started: Instant,
    runs: usize,
}

/// Measures those parts that the options select.
pub fn measure(options: &Options, results: &mut Results) -> Result<(), String> {
    let wants = |part: &(&str, &str)| options.wants_part(part.0);
    if !NODE_MEASUREMENTS.iter().any(wants) {
        return Ok(());
    }
    report::nodes_heading(NODES);
    let mut nodes = Nodes {
        options,
        pool: Pool::new(options, "-nodes", NODES, MEDIA)?,
        started: Instant::now(),
        runs: 0,
    };
    if options.wants_part("starts") {
        nodes.starts(results);
    }
    if NODE_MEASUREMENTS
        .iter()
        .any(|p| p.0 != "starts" && wants(p))
    {
        nodes.pool.up()?;
        // After its start, a pool makes preparations in the background, which shouldn't be
        // measured.
        std::thread::sleep(Duration::from_secs(1));
    }
    let with_files = ["latency", "transfers", "consistency"];
    if with_files.iter().any(|part| options.wants_part(part)) {
        nodes.prepare()?;
    }
    if options.wants_part("latency") {
        nodes.latency(results);
    }
    if options.wants_part("transfers") {
        nodes.transfers(results);
    }
    if options.wants_part("consistency") {
        nodes.consistency(results)?;
    }
    if options.wants_part("copies") {
        nodes.copies(results)?;
    }
    if options.wants_part("laminated") {
        nodes.laminated(results)?;
    }
    if options.wants_part("spread") {
        nodes.spread(results)?;
    }
    if options.wants_part("wide-list") {
        nodes.wide_list(results);
    }
    if sys::interrupted() {
        Err("interrupted".into())
    } else {
        Ok(())
    }
}

fn words(workload: &str, directory: &str, numbers: [usize; 3]) -> Vec<String> {
    let [index, count, passes] = numbers.map(|n| n.to_string());
    vec![workload.into(), directory.into(), index, count, passes]
}

impl Nodes<'_> {
    fn left(&self) -> Duration {
        BUDGET.saturating_sub(self.started.elapsed())
    }

    fn amount(&self, quick: usize, full: usize) -> usize {
        if self.options.quick { quick } else { full }
    }

    fn directory(&self, name: &str) -> String {
        format!("{}/{name}", self.pool.directory(Side::Pool))
    }

    /// Runs workers, each at its node, within the remaining time.
    fn team(&self, side: Side, workers: Vec<(usize, Vec<String>)>) -> Result<Outcome, String> {
        let commands = workers
            .iter()
            .map(|(node, words)| self.pool.worker_at(side, *node, words))
            .collect();
        if self.left().is_zero() {
            return Err("no time is left for it".into());
        }
        children::run_team(commands, self.left(), self.pool.scratch())
    }

    /// Repeats a measurement of both sides in turn and reports the figure, or the error if there is
    /// one.
    fn figure(
        &mut self,
        results: &mut Results,
        mut figure: Figure,
        mut measure: impl FnMut(&mut Self, Side) -> Result<f64, String>,
    ) {
        if sys::interrupted() {
            return;
        }
        for repetition in 0..self.options.reps {
            let mut sides = [Side::Plain, Side::Pool];
            if repetition % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                match measure(self, side) {
                    Ok(value) if side == Side::Plain => figure.raw.push(value),
                    Ok(value) => figure.pool.push(value),
                    Err(e) => {
                        figure.error = Some(e);
                        break;
                    }
                }
            }
            if figure.error.is_some() {
                break;
            }
        }
        self.note(results, figure);
    }

    fn note(&self, results: &mut Results, figure: Figure) {
        if !sys::interrupted() {
            report::figure_row(&figure);
            results.figures.push(figure);
        }
    }

    /// Makes the files that node [`THERE`] holds.
    fn prepare(&mut self) -> Result<(), String> {
        self.pool
            .distribute(&self.directory("there"), "local-all")?;
        let there = self.directory(FILES_THERE);
        for (workload, directory) in [
            ("fill", &there),
            ("remote-content", &there),
            ("fill", &self.directory(FILES_SPREAD)),
        ] {
            let words = words(workload, directory, [0, FILES, 1]);
            self.team(Side::Pool, vec![(THERE, words)])
                .map_err(|e| format!("{workload} on the other node: {e}"))?;
        }
        Ok(())
    }

    fn latency(&mut self, results: &mut Results) {
        let rows = [
            ("stat", "remote-stat", "tcp-message", FILES_THERE),
            ("fstat", "remote-fstat", "tcp-message", FILES_THERE),
            (
                "open+close",
                "remote-open-close",
                "tcp-message",
                FILES_THERE,
            ),
            ("create+close", "remote-create", "tcp-message", FILES_THERE),
            ("read 4 KiB", "remote-read", "tcp-read", FILES_THERE),
            ("write 4 KiB", "remote-write", "tcp-write", FILES_THERE),
            ("stat, spread", "spread-stat", "tcp-message", FILES_SPREAD),
            (
                "create, spread",
                "spread-create",
                "tcp-message",
                FILES_SPREAD,
            ),
        ];
        for (name, remote, tcp, directory) in rows {
            let goal = (directory == FILES_THERE).then_some(Goal::TimesAtMost(2.0));
            let directory = self.directory(directory);
            let passes = self.amount(2, 6);
            let figure = Figure::new(name.to_string(), "us", goal);
            self.figure(results, figure, |nodes, side| {
                let workload = if side == Side::Plain { tcp } else { remote };
                let words = words(workload, &directory, [0, FILES, passes]);
                let outcome = nodes.team(side, vec![(HERE, words)])?;
                Ok(outcome.seconds * 1e6)
            });
        }
    }

    fn transfers(&mut self, results: &mut Results) {
        let rows = [
            ("read", "remote-get", "tcp-get", true),
            ("write", "remote-put", "tcp-put", true),
            ("read, answered", "remote-get", "tcp-get-answered", false),
            ("write, answered", "remote-put", "tcp-put-answered", false),
        ];
        let directory = self.directory(FILES_THERE);
        for (name, remote, tcp, has_goal) in rows {
            for mib in [1, 16] {
                let count = self.amount(128, 256) / mib;
                let goal = has_goal.then_some(Goal::TimesAtLeast(0.8));
                let figure = Figure::new(format!("{name} {mib} MiB"), "GB/s", goal);
                self.figure(results, figure, |nodes, side| {
                    let workload = if side == Side::Plain { tcp } else { remote };
                    let words = words(workload, &directory, [0, count, mib]);
                    let outcome = nodes.team(side, vec![(HERE, words)])?;
                    Ok(outcome.operations * MIB as f64 / outcome.seconds / 1e9)
                });
            }
        }
    }

    /// Measures small blocks to and from another node, in files with and without controls.
    fn consistency(&mut self, results: &mut Results) -> Result<(), String> {
        let rows = [
            (
                "write 8 KiB, commit",
                "remote-small-write",
                COMMIT,
                Some(10.0),
            ),
            ("read 8 KiB, session", "remote-small-read", SESSION, None),
        ];
        let strict = self.directory(FILES_THERE);
        let count = self.amount(2048, 8192);
        for (name, workload, (directory, controls), least) in rows {
            let directory = self.directory(directory);
            let make = |workload: &str| {
                let words = words(workload, &directory, [0, 1, 1]);
                self.team(Side::Pool, vec![(THERE, words)])
                    .map_err(|e| format!("{workload} on the other node: {e}"))
            };
            make("make")?;
            self.pool.control(&directory, controls)?;
            make("remote-content")?;
            let figure = Figure::new(name.into(), "k/s", least.map(Goal::TimesAtLeast));
            self.figure(results, figure, |nodes, side| {
                let directory = if side == Side::Plain {
                    &strict
                } else {
                    &directory
                };
                let words = words(workload, directory, [0, count, 1]);
                // Both sides are measured in the pool.
                let outcome = nodes.team(Side::Pool, vec![(HERE, words)])?;
                Ok(outcome.operations / outcome.seconds / 1e3)
            });
        }
        Ok(())
    }

    /// Measures copying one file over another, for all combinations of nodes; compared with reading
    /// the first and writing the second in the same pool.
    fn copies(&mut self, results: &mut Results) -> Result<(), String> {
        let top = self.directory("copies");
        self.pool.distribute(&top, "local-all")?;
        for node in [HERE, THERE, THIRD] {
            for directory in [format!("{top}/{node}"), format!("{top}/{node}-to")] {
                let words = words("remote-content", &directory, [0, 1, 1]);
                self.team(Side::Pool, vec![(node, words)])?;
            }
        }
        let rows = [
            ("copy here", HERE, HERE),
            ("copy on another node", THERE, THERE),
            ("copy between two others", THERE, THIRD),
            ("copy from another node", THERE, HERE),
            ("copy to another node", HERE, THERE),
        ];
        let count = self.amount(2, 4);
        for (name, from, to) in rows {
            let figure = Figure::new(name.into(), "GB/s", None);
            self.figure(results, figure, |nodes, side| {
                let workload = if side == Side::Plain {
                    "copy-through"
                } else {
                    "copy-range"
                };
                let words = words(workload, &format!("{top}/{from}"), [to, count, 1]);
                // Both sides are measured in the pool.
                let outcome = nodes.team(Side::Pool, vec![(HERE, words)])?;
                Ok(outcome.operations * MIB as f64 / outcome.seconds / 1e9)
            });
        }
        Ok(())
    }

    /// Measures reading laminated files that were fetched from another node before, compared with
    /// files of this node. Each repetition uses another process.
    fn laminated(&mut self, results: &mut Results) -> Result<(), String> {
        let top = self.directory(LAMINATED);
        self.pool.distribute(&top, "local-all")?;
        self.pool.control(&top, &["mutability=immutable"])?;
        let of = |node: usize| format!("{top}/{node}");
        for node in [HERE, THERE] {
            let words = words("remote-content", &of(node), [0, 1, 1]);
            self.team(Side::Pool, vec![(node, words)])?;
        }
        let read = |nodes: &Self, workload: &str, side: Side, [count, size]: [usize; 2]| {
            let node = if side == Side::Plain { HERE } else { THERE };
            let words = words(workload, &of(node), [0, count, size]);
            nodes.team(Side::Pool, vec![(HERE, words)])
        };
        let rate = |o: Outcome| o.operations * MIB as f64 / o.seconds / 1e9;
        let mut first = Figure::new("laminated, first read 1 MiB".into(), "GB/s", None);
        for side in [Side::Plain, Side::Pool] {
            // All of the file except its first MiB.
            match read(self, "remote-get-rest", side, [CONTENT_MIB - 1, 1]).map(rate) {
                Ok(value) if side == Side::Plain => first.raw.push(value),
                Ok(value) => first.pool.push(value),
                Err(e) => first.error = Some(e),
            }
        }
        self.note(results, first);
        let goal = Some(Goal::TimesAtMost(1.2));
        let figure = Figure::new("laminated, read 4 KiB".into(), "us", goal);
        let passes = self.amount(4, 20);
        self.figure(results, figure, |nodes, side| {
            let outcome = read(nodes, "remote-read", side, [FILES, passes])?;
            Ok(outcome.seconds * 1e6)
        });
        let count = self.amount(512, 2048);
        let figure = Figure::new(
            "laminated, read 1 MiB".into(),
            "GB/s",
            Some(Goal::TimesAtLeast(0.8)),
        );
        self.figure(results, figure, |nodes, side| {
            read(nodes, "remote-get", side, [count, 1]).map(rate)
        });
        Ok(())
    }

    /// Measures processes on all nodes: in one directory, where each stats the files of its
    /// neighbour; and in directories that belong to one node each.
    fn spread(&mut self, results: &mut Results) -> Result<(), String> {
        self.pool.distribute(&self.directory("own"), "local-all")?;
        let own = self.pool.plain().join("own");
        std::fs::create_dir(&own).map_err(|e| format!("{}: {e}", own.display()))?;
        let rows = [
            ("create, one directory", "create", false),
            ("stat of others' files", "stat-next", false),
            ("create, local-all", "create", true),
            ("stat, local-all", "stat", true),
        ];
        for (name, workload, is_own) in rows {
            for procs in [4, 8] {
                let count = self.amount(1000, 8_000 / procs);
                let figure = Figure::new(format!("{name}, {procs} processes"), "k/s", None);
                self.figure(results, figure, |nodes, side| {
                    nodes.runs += 1;
                    let run = nodes.runs;
                    let base = nodes.pool.directory(side);
                    let worker = |index: usize| {
                        let directory = if is_own {
                            format!("{base}/own/{run}-{index}")
                        } else {
                            format!("{base}/run-{run}")
                        };
                        let passes = if is_own { 1 } else { procs };
                        let numbers = [index, count, passes];
                        (index % NODES, words(workload, &directory, numbers))
                    };
                    let outcome = nodes.team(side, (0..procs).map(worker).collect())?;
                    Ok(outcome.operations / outcome.seconds / 1e3)
                });
            }
        }
        Ok(())
    }

    fn starts(&mut self, results: &mut Results) {
        for nodes in [1, 2, 4, 8] {
            let goal = (nodes == NODES).then_some(Goal::AtMost(500.0));
            let mut figure = Figure::new(format!("start of {nodes}"), "ms", goal);
            for time in 0..2 * self.options.reps - 1 {
                if sys::interrupted() {
                    return;
                }
                let kind = format!("-start{nodes}-{time}");
                let once = || -> Result<Duration, String> {
                    let mut pool = Pool::new(self.options, &kind, nodes, "memory:64M")?;
                    let took = pool.start()?;
                    pool.down()?;
                    Ok(took)
                };
                match once() {
                    Ok(took) => figure.pool.push(took.as_secs_f64() * 1e3),
                    Err(e) => {
                        figure.error = Some(e);
                        break;
                    }
                }
            }
            self.note(results, figure);
        }
    }

    /// Measures listing a wide directory. If making all files would take too long, lists those that
    /// could be made.
    fn wide_list(&mut self, results: &mut Results) {
        let few = 10_000;
        let most = self.amount(100_000, 1_000_000);
        let made = self.fill("few", 0, few).and_then(|_| {
            let (mut entries, mut seconds) = (0, 0.0);
            while entries < most {
                let begun = Instant::now();
                seconds += self.fill("many", entries, BATCH)?;
                entries += BATCH;
                if self.left() < begun.elapsed() * 2 + TO_LIST {
                    break;
                }
            }
            Ok((entries, entries as f64 / seconds / 1e3))
        });
        let mut making = Figure::new("making files from all nodes".into(), "k/s", None);
        let (entries, rate) = match made {
            Ok(made) => made,
            Err(e) => {
                making.error = Some(e);
                return self.note(results, making);
            }
        };
        making.pool.push(rate);
        self.note(results, making);
        let goal = Some(Goal::AtMost(3.0 * entries as f64 / 1e6));
        let mut listing = Figure::new(format!("listing {entries}"), "s", goal);
        let goal = Some(Goal::MoreAtMost(64.0));
        let mut memory = Figure::new(format!("its memory, and of {few}"), "MiB", goal);
        for _ in 0..self.options.reps {
            for (name, count) in [("few", few), ("many", entries)] {
                let words = words("list", &self.directory(name), [0, count, 1]);
                match self.team(Side::Pool, vec![(HERE, words)]) {
                    Ok(outcome) if name == "few" => memory.raw.push(outcome.peak / 1024.0),
                    Ok(outcome) => {
                        listing.pool.push(outcome.seconds);
                        memory.pool.push(outcome.peak / 1024.0);
                    }
                    Err(e) => listing.error = Some(e),
                }
            }
        }
        memory.error = listing.error.clone();
        self.note(results, listing);
        self.note(results, memory);
    }

    /// Makes `more` files in one directory, by two processes on each node. Returns the time in
    /// seconds.
    fn fill(&self, name: &str, already: usize, more: usize) -> Result<f64, String> {
        let processes = 2 * NODES;
        let directory = self.directory(name);
        // Each batch has its own names, which are made of the workers' numbers.
        let first = already / more * processes;
        let worker = |i: usize| {
            let numbers = [first + i, more / processes, 1];
            (i % NODES, words("fill", &directory, numbers))
        };
        let outcome = self.team(Side::Pool, (0..processes).map(worker).collect())?;
        Ok(outcome.seconds)
    }
}

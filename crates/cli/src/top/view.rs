//! Computes what the screen shows from what is known of a pool: rates over the interval between the
//! two latest readings of each host.
//!
//! Hosts are read at different moments, so each host's counters are divided by that host's
//! interval, and then rates are added. The counters of a node are summed up before they are
//! subtracted, because a process that ends passes its counters to its node's sum of ended
//! processes.

use super::files::Hot;
use super::known::{Counters, Known, Medium, NodeState, Source, Stuck, Survey, Violations};
use crate::slow::SlowOperation;
use crate::survey::State;
use forebay_report::totals::{Counted, Durations, Process, Totals};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// Figures are marked as old if they are older than this many intervals, and older than this time.
const LATE: (u32, Duration) = (3, Duration::from_secs(2));

/// Activity of a node, a process or the pool. Per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub operations: f64,
    /// Rate of operations that sent requests to other nodes.
    pub remote: f64,
    pub read: f64,
    pub written: f64,
    /// Rate of requests to other nodes.
    pub requests: f64,
    /// Time in operations. Seconds per second.
    pub time: f64,
    /// Rate of operations of the kinds that have timed operations; `time` covers only these kinds.
    pub timed: f64,
}

impl Figures {
    fn of(totals: &Totals, seconds: f64) -> Figures {
        let all = totals.all();
        let counts = totals.operations.values();
        let timed: u64 = counts
            .filter(|c| c.durations.timed > 0)
            .map(|c| c.count)
            .sum();
        let per_second = |n: u64| n as f64 / seconds;
        Figures {
            operations: per_second(all.count),
            remote: per_second(all.remote.min(all.count)),
            read: per_second(totals.bytes("read") + totals.bytes("get")),
            written: per_second(totals.bytes("write") + totals.bytes("put")),
            requests: per_second(totals.requests.timed),
            time: totals.time() / 1e9 / seconds,
            timed: per_second(timed),
        }
    }

    fn add(&mut self, other: &Figures) {
        self.operations += other.operations;
        self.remote += other.remote;
        self.read += other.read;
        self.written += other.written;
        self.requests += other.requests;
        self.time += other.time;
        self.timed += other.timed;
    }

    /// Mean time of an operation. Nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        (self.timed > 0.0).then(|| self.time * 1e9 / self.timed)
    }

    /// Share of the operations that sent no request to another node.
    pub fn local(&self) -> Option<f64> {
        (self.operations > 0.0).then(|| 1.0 - self.remote / self.operations)
    }
}

/// A node's row.
#[derive(Clone, Debug)]
pub struct NodeRow {
    pub number: u32,
    pub state: State,
    pub media: Vec<Medium>,
    /// None if the node's counters aren't known.
    pub figures: Option<Figures>,
}

/// The row of a kind of operation. All numbers are per second, except `durations`.
#[derive(Clone, Debug, Default)]
pub struct OperationRow {
    pub name: String,
    /// Operations per second.
    pub rate: f64,
    pub bytes: f64,
    pub errors: f64,
    pub remote: f64,
    /// Time in operations of this kind. Seconds per second.
    pub time: f64,
    pub durations: Durations,
}

/// The row of a process.
#[derive(Clone, Debug)]
pub struct ProcessRow {
    pub node: u32,
    pub process: u32,
    pub program: String,
    pub figures: Figures,
}

/// The column by which operations and processes are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Rate,
    Bytes,
    Mean,
    Time,
    Name,
}

impl Sort {
    /// Returns the next column; the first one follows the last.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::Bytes,
            Sort::Bytes => Sort::Mean,
            Sort::Mean => Sort::Time,
            Sort::Time => Sort::Name,
            Sort::Name => Sort::Rate,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Bytes => "bytes",
            Sort::Mean => "mean",
            Sort::Time => "time",
            Sort::Name => "name",
        }
    }
}

/// All that the screen shows.
#[derive(Clone, Default)]
pub struct View {
    pub pool: String,
    pub up_for: Option<Duration>,
    pub total: Figures,
    /// Time between this host's last two readings of its counters, over which rates are computed;
    /// None before the second reading.
    pub interval: Option<Duration>,
    /// When the oldest figures on the screen were read.
    pub oldest: Option<Instant>,
    pub nodes: Vec<NodeRow>,
    /// Number of attached processes on all nodes.
    pub processes_attached: usize,
    /// The processes that did operations in the interval.
    pub processes: Vec<ProcessRow>,
    pub operations: Vec<OperationRow>,
    /// The latest slow operations, newest first.
    pub slow: Vec<SlowOperation>,
    pub stuck: Vec<Stuck>,
    pub violations: Violations,
    pub hot: Option<Hot>,
    /// Whether some of the pool's nodes are on other hosts.
    pub has_other_hosts: bool,
    /// Sentences for the user about missing data.
    pub notes: Vec<String>,
}

impl View {
    /// Computes the view from the data known at `now`.
    pub fn of(known: &Known, now: Instant) -> View {
        let mut view = View {
            pool: known.pool.clone(),
            stuck: known.stuck.clone(),
            violations: known.violations.clone(),
            hot: known.hot.clone(),
            has_other_hosts: known.sources.len() > 1,
            ..View::default()
        };
        view.notes.extend(known.failed.clone());
        view.notes.extend(known.violations.unread.iter().cloned());
        let late = known.every * LATE.0 + LATE.1;
        if let Some(survey) = &known.survey {
            let age = now.saturating_duration_since(survey.at);
            if age > late {
                let old = format!("the states of nodes are {} s old", age.as_secs());
                view.notes.push(old);
            }
        }
        let mut figures: BTreeMap<u32, Figures> = BTreeMap::new();
        let mut kinds: BTreeMap<String, OperationRow> = BTreeMap::new();
        for (host, source) in &known.sources {
            view.add_source((host, source), (now, late), &mut figures, &mut kinds);
        }
        figures.values().for_each(|f| view.total.add(f));
        view.operations = kinds.into_values().collect();
        view.slow.sort_by_key(|s| Reverse(s.begin));
        view.set_nodes(known.survey.as_ref(), figures, now);
        view
    }

    fn add_source(
        &mut self,
        (host, source): (&str, &Source),
        (now, late): (Instant, Duration),
        figures: &mut BTreeMap<u32, Figures>,
        kinds: &mut BTreeMap<String, OperationRow>,
    ) {
        self.slow.extend(source.slow.iter().cloned());
        let age = source
            .now
            .as_ref()
            .map(|c| now.saturating_duration_since(c.at));
        let old = age.map(|age| format!("its figures are {} s old", age.as_secs()));
        match (&source.failed, old) {
            (Some(why), Some(old)) => self.notes.push(format!("{why}; {old}")),
            (Some(why), None) => self.notes.push(why.clone()),
            (None, Some(old)) if age > Some(late) => {
                let host = if host.is_empty() { "this host" } else { host };
                self.notes.push(format!("{host} doesn't answer; {old}"));
            }
            (None, _) => {}
        }
        let Some(counters) = &source.now else { return };
        self.oldest = Some(self.oldest.map_or(counters.at, |o| o.min(counters.at)));
        let Some(before) = &source.before else { return };
        let length = counters.at.saturating_duration_since(before.at);
        let seconds = length.as_secs_f64().max(1e-3);
        if host.is_empty() {
            self.interval = Some(length);
        }
        let earlier = by_node(before);
        for (node, totals) in by_node(counters) {
            // Without an earlier reading of the node, its counters don't cover an interval.
            let Some(before) = earlier.get(&node) else {
                continue;
            };
            let since = totals.since(before);
            figures
                .entry(node)
                .or_default()
                .add(&Figures::of(&since, seconds));
            for (name, counted) in &since.operations {
                let row = kinds.entry(name.clone()).or_default();
                row.name.clone_from(name);
                row.add(counted, seconds);
            }
        }
        self.processes.extend(processes(before, counters, seconds));
    }

    fn set_nodes(
        &mut self,
        survey: Option<&Survey>,
        mut figures: BTreeMap<u32, Figures>,
        now: Instant,
    ) {
        if let Some(survey) = survey {
            let age = now.saturating_duration_since(survey.at);
            self.up_for = Some(survey.up_for + age);
            self.processes_attached = survey.nodes.iter().map(|n| n.processes).sum();
            self.oldest = Some(self.oldest.map_or(survey.at, |o| o.min(survey.at)));
            for NodeState {
                number,
                state,
                media,
                ..
            } in &survey.nodes
            {
                self.nodes.push(NodeRow {
                    number: *number,
                    state: *state,
                    media: media.clone(),
                    figures: figures.remove(number),
                });
            }
        }
        // Before the first survey ends, nodes are known only from counters.
        self.nodes
            .extend(figures.into_iter().map(|(number, figures)| NodeRow {
                number,
                state: State::Unknown,
                media: Vec::new(),
                figures: Some(figures),
            }));
        self.nodes.sort_by_key(|n| n.number);
    }

    /// Sorts operations and processes by a column.
    pub fn sort(&mut self, by: Sort) {
        // Largest first. Rows with equal values are sorted by name, so that they don't change
        // places.
        let largest = |a: f64, b: f64| b.total_cmp(&a);
        self.operations.sort_by(|a, b| {
            let order = match by {
                Sort::Rate => largest(a.rate, b.rate),
                Sort::Bytes => largest(a.bytes, b.bytes),
                Sort::Mean => largest(
                    a.durations.mean().unwrap_or(0.0),
                    b.durations.mean().unwrap_or(0.0),
                ),
                Sort::Time => largest(a.time, b.time),
                Sort::Name => std::cmp::Ordering::Equal,
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        self.processes.sort_by(|a, b| {
            let (x, y) = (&a.figures, &b.figures);
            let order = match by {
                Sort::Rate => largest(x.operations, y.operations),
                Sort::Bytes => largest(x.read + x.written, y.read + y.written),
                Sort::Mean => largest(x.mean().unwrap_or(0.0), y.mean().unwrap_or(0.0)),
                Sort::Time => largest(x.time, y.time),
                Sort::Name => a.program.cmp(&b.program),
            };
            order.then_with(|| (a.node, a.process).cmp(&(b.node, b.process)))
        });
    }

    /// Returns how many nodes are up, and how many aren't.
    pub fn up_and_down(&self) -> (usize, usize) {
        let up = self.nodes.iter().filter(|n| n.state == State::Up).count();
        (up, self.nodes.len() - up)
    }
}

impl OperationRow {
    fn add(&mut self, counted: &Counted, seconds: f64) {
        self.rate += counted.count as f64 / seconds;
        self.bytes += counted.bytes as f64 / seconds;
        self.errors += counted.errors as f64 / seconds;
        self.remote += counted.remote.min(counted.count) as f64 / seconds;
        self.time += counted.time() / 1e9 / seconds;
        self.durations.add(&counted.durations);
    }
}

/// Sums up the counters of each node.
fn by_node(counters: &Counters) -> BTreeMap<u32, Totals> {
    let mut nodes: BTreeMap<u32, Totals> = BTreeMap::new();
    for process in &counters.processes {
        nodes.entry(process.node).or_default().add(&process.totals);
    }
    nodes
}

/// Returns the living processes that did operations in the interval.
fn processes<'a>(
    before: &'a Counters,
    now: &'a Counters,
    seconds: f64,
) -> impl Iterator<Item = ProcessRow> + 'a {
    let key = |p: &Process| (p.node, p.process);
    let earlier: HashMap<(u32, u32), &Totals> = before
        .processes
        .iter()
        .map(|p| (key(p), &p.totals))
        .collect();
    let nodes: HashSet<u32> = before.processes.iter().map(|p| p.node).collect();
    let living = now.processes.iter().filter(|p| p.process != 0);
    living.filter_map(move |p| {
        let since = match earlier.get(&key(p)) {
            Some(before) => p.totals.since(before),
            None if nodes.contains(&p.node) => p.totals.clone(),
            // The node wasn't known before, so these counters don't cover an interval.
            None => return None,
        };
        let figures = Figures::of(&since, seconds);
        (figures.operations > 0.0).then(|| ProcessRow {
            node: p.node,
            process: p.process,
            program: p.program.chars().filter(|c| !c.is_control()).collect(),
            figures,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(node: u32, process: u32, kind: &str, count: u64, bytes: u64) -> Process {
        let mut totals = Totals::default();
        let counted = Counted {
            count,
            bytes,
            remote: count / 2,
            durations: Durations {
                timed: count / 10,
                nanoseconds: count / 10 * 2000,
                classes: [(3000, count / 10)].into(),
            },
            ..Counted::default()
        };
        totals.operations.insert(kind.into(), counted);
        Process {
            node,
            process,
            program: format!("p{process}"),
            totals,
        }
    }

    fn source(at: Instant, seconds: u64, before: Vec<Process>, now: Vec<Process>) -> Source {
        let later = at + Duration::from_secs(seconds);
        Source {
            before: Some(Counters {
                at,
                processes: before,
            }),
            now: Some(Counters {
                at: later,
                processes: now,
            }),
            ..Source::default()
        }
    }

    #[test]
    fn each_host_has_its_own_interval() {
        let at = Instant::now();
        let mut known = Known::default();
        // 100 operations in 1 s on this host, 100 in 2 s on the other.
        let here = source(
            at,
            1,
            vec![process(0, 5, "read", 100, 1000)],
            vec![process(0, 5, "read", 200, 5000)],
        );
        let mut there = source(
            at,
            2,
            vec![process(1, 5, "read", 100, 0)],
            vec![process(1, 5, "read", 200, 0)],
        );
        there.failed = Some("n1: no route".into());
        known.sources.insert(String::new(), here);
        known.sources.insert("n1".into(), there);
        known.every = Duration::from_secs(10);
        let view = View::of(&known, at + Duration::from_secs(7));
        assert_eq!(view.total.operations, 150.0);
        assert_eq!((view.total.read, view.total.local()), (4000.0, Some(0.5)));
        assert_eq!(view.total.mean(), Some(2000.0));
        assert_eq!(view.interval, Some(Duration::from_secs(1)));
        assert_eq!(view.oldest, Some(at + Duration::from_secs(1)));
        assert_eq!(view.notes, ["n1: no route; its figures are 5 s old"]);
        assert_eq!(view.operations[0].rate, 150.0);
        assert_eq!(view.operations[0].durations.quantile(0.99), Some(3000));
        assert!((view.total.time - 150.0 * 2e-6).abs() < 1e-9);
        let states: Vec<_> = view.nodes.iter().map(|n| (n.number, n.state)).collect();
        assert_eq!(states, [(0, State::Unknown), (1, State::Unknown)]);
        // The other host neither answers nor fails.
        known.every = Duration::from_secs(1);
        known.sources.get_mut("n1").unwrap().failed = None;
        assert!(
            View::of(&known, at + Duration::from_secs(6))
                .notes
                .is_empty()
        );
        let late = View::of(&known, at + Duration::from_secs(12)).notes;
        assert_eq!(late[1], "n1 doesn't answer; its figures are 10 s old");
    }

    #[test]
    fn counters_of_ended_processes_stay_in_the_nodes_sum() {
        let at = Instant::now();
        let mut known = Known::default();
        let now = vec![
            process(0, 0, "read", 130, 0),
            process(0, 6, "write", 10, 40),
        ];
        let before = vec![process(0, 0, "read", 0, 0), process(0, 5, "read", 100, 0)];
        known
            .sources
            .insert(String::new(), source(at, 1, before, now));
        let view = View::of(&known, at);
        assert_eq!(view.total.operations, 40.0);
        assert_eq!(view.total.written, 40.0);
        let shown: Vec<u32> = view.processes.iter().map(|p| p.process).collect();
        assert_eq!(shown, [6]);
    }

    #[test]
    fn a_node_that_appears_has_no_rates_yet_and_one_that_is_silent_keeps_its_row() {
        let at = Instant::now();
        let mut known = Known::default();
        let now = vec![
            process(0, 5, "read", 10, 0),
            process(1, 6, "read", 1_000_000, 0),
        ];
        let before = vec![process(0, 5, "read", 0, 0)];
        known
            .sources
            .insert(String::new(), source(at, 1, before, now));
        let node = |number, state| NodeState {
            number,
            state,
            media: Vec::new(),
            processes: 2,
        };
        known.survey = Some(Survey {
            at,
            up_for: Duration::from_secs(10),
            nodes: vec![node(0, State::Up), node(2, State::Dead)],
        });
        let view = View::of(&known, at + Duration::from_secs(1));
        assert_eq!(view.total.operations, 10.0);
        assert_eq!(view.up_and_down(), (1, 1));
        assert_eq!(view.up_for, Some(Duration::from_secs(11)));
        assert_eq!(view.processes_attached, 4);
        assert!(view.nodes[1].figures.is_none());
    }

    #[test]
    fn rows_are_sorted_by_each_column() {
        let row = |name: &str, rate, bytes, time| OperationRow {
            name: name.into(),
            rate,
            bytes,
            time,
            ..OperationRow::default()
        };
        let mut view = View {
            operations: vec![
                row("b", 2.0, 1.0, 3.0),
                row("a", 1.0, 2.0, 2.0),
                row("c", 2.0, 0.0, 9.0),
            ],
            ..View::default()
        };
        let mut sort = Sort::Rate;
        let mut orders = Vec::new();
        for _ in 0..5 {
            view.sort(sort);
            orders.push(
                view.operations
                    .iter()
                    .map(|o| o.name.as_str())
                    .collect::<String>(),
            );
            sort = sort.next();
        }
        assert_eq!(orders, ["bca", "abc", "abc", "cba", "abc"]);
        assert_eq!(sort, Sort::Rate);
    }
}

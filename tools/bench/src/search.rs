//! Measures searches for 100 of a million collections by the verbs, on pools of one and of four
//! nodes.

use crate::children;
use crate::iov::Workspace;
use crate::options::Options;
use crate::pool::{Pool, Side};
use crate::report::{self, Figure, Goal, Results};
use crate::sys;
use crate::worker::Worker;
use crate::workloads::SEARCH;
use std::process::Command;
use std::time::Duration;

/// Number of collections that a search finds.
const HITS: usize = 100;
/// Number of processes that make collections.
const CREATING_PROCESSES: usize = 4;
/// Number of searches of one kind by one worker.
const SEARCHES: usize = 50;
/// Goal for the duration of a search. Milliseconds.
const GOAL: f64 = 20.0;
const SEARCH_TIMEOUT: Duration = Duration::from_secs(900);

/// Descriptions of the kinds of searches.
const KINDS: [&str; 4] = [
    "numbers in a range",
    "that and a text",
    "a text, a number, exists",
    "texts in a range",
];

/// Measures searches, if the options select them.
pub fn measure(options: &Options, results: &mut Results) -> Result<(), String> {
    if !options.wants(SEARCH.0) || options.quick && options.only.is_empty() {
        return Ok(());
    }
    report::search_heading();
    let many = if options.quick { 40_000 } else { 1_000_000 };
    for nodes in [1, 4] {
        let mut making = Figure::new(format!("{nodes}: making {many}"), "k/s", None);
        let kind = format!("-search{nodes}");
        // An eighth of the media's capacity is for records.
        let media = if nodes == 1 {
            "memory:16G"
        } else {
            "memory:3G"
        };
        let mut pool = Pool::new(options, &kind, nodes, media)?;
        pool.start()?;
        let share = many / CREATING_PROCESSES;
        let creating = (0..CREATING_PROCESSES)
            .map(|n| command(&pool, nodes, n % nodes, "search-make", [n, share, 1]));
        let made = children::run_team(creating.collect(), SEARCH_TIMEOUT, pool.scratch());
        match &made {
            Ok(made) => making.pool.push(made.operations / made.seconds / 1e3),
            Err(e) => making.error = Some(e.clone()),
        }
        note(results, making);
        if made.is_err() {
            continue;
        }
        for (number, what) in KINDS.iter().enumerate() {
            let name = format!("{nodes}: {what}, {HITS} of {many}");
            let mut figure = Figure::new(name, "ms", Some(Goal::AtMost(GOAL)));
            for _ in 0..options.reps {
                let one = command(&pool, nodes, 0, "search", [number, many, SEARCHES]);
                match children::run_team(vec![one], SEARCH_TIMEOUT, pool.scratch()) {
                    Ok(outcome) => figure.pool.push(outcome.seconds / outcome.operations * 1e3),
                    Err(e) => figure.error = Some(e),
                }
                if sys::interrupted() {
                    return Err("interrupted".into());
                }
            }
            note(results, figure);
        }
        pool.down()?;
    }
    Ok(())
}

fn note(results: &mut Results, figure: Figure) {
    report::figure_row(&figure);
    results.search.push(figure);
}

/// Returns the command of a worker that uses the pool by the verbs, at a node.
fn command(pool: &Pool, nodes: usize, node: usize, what: &str, numbers: [usize; 3]) -> Command {
    let [a, b, c] = numbers.map(|n| n.to_string());
    let mut command = pool.worker_at(Side::Plain, node, &[what.into(), "runs".into(), a, b, c]);
    command.env("FOREBAY_POOL", pool.name());
    if nodes > 1 {
        command.env("FOREBAY_NODE", node.to_string());
    }
    command
}

/// Returns a date for a step, one day for a hundred steps, so that there are texts to compare.
fn day(step: usize) -> String {
    format!("{:05}-01-01", step / HITS)
}

/// Worker: makes collections.
pub fn make(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for n in 0..w.count {
        let step = w.index + n * CREATING_PROCESSES;
        let project = ["mcse", "other"][step / CREATING_PROCESSES % 2];
        let meta = [
            ("project", project),
            ("step", &step.to_string()),
            ("day", &day(step)),
        ];
        workspace.create(&format!("c{step:07}"), &meta)?;
    }
    w.done(start, w.count)
}

/// Worker: searches; each search finds other collections.
pub fn search(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for n in 0..w.passes {
        let parts = w.count / HITS;
        let part = (n * 7919 + 13) % (parts - 1);
        let at = part * HITS;
        let (end, twice) = (at + HITS, at + 2 * HITS);
        let predicate = match w.index {
            0 => format!("step >= {at} and step < {end}"),
            1 => format!("project = \"mcse\" and step >= {at} and step < {twice}"),
            2 => format!(
                "day = \"{}\" and step < {end}.5 and exists project",
                day(at)
            ),
            _ => format!("day >= \"{}\" and day < \"{}\"", day(at), day(end)),
        };
        let found = workspace.search(&predicate)?;
        if found != HITS {
            return Err(format!("{predicate} finds {found}"));
        }
    }
    w.done(start, w.passes)
}

//! Measures making and deleting collections by the verbs from one node of four, in batches of a
//! thousand and one by one: the rates, and the number of requests to other nodes for each
//! collection. Three of four names lie on other nodes.

use crate::children;
use crate::iov::Workspace;
use crate::options::Options;
use crate::pool::{Pool, Side};
use crate::report::{self, Figure, Goal, Results};
use crate::sys;
use crate::worker::Worker;
use crate::workloads::BATCHES;
use std::time::Duration;

const NODES: usize = 4;
const BATCH: usize = 1000;
const GOAL: f64 = 5.0;
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Measures batches, if the options select them.
pub fn measure(options: &Options, results: &mut Results) -> Result<(), String> {
    if !options.wants(BATCHES.0) {
        return Ok(());
    }
    report::batches_heading();
    let mut pool = Pool::new(options, "-batches", NODES, "memory:512M")?;
    pool.start()?;
    let kinds = [
        ("create", "requests for each", ["batch-one", "batch-all"]),
        (
            "delete",
            "requests for each gone",
            ["batch-one-gone", "batch-all-gone"],
        ),
    ];
    let mut figures = kinds.map(|(rate, requests, _)| {
        let goal = (rate == "create").then_some(Goal::TimesAtLeast(GOAL));
        let rate = Figure::new(rate.into(), "k/s", goal);
        (rate, Figure::new(requests.into(), "", None))
    });
    let passes = if options.quick { 2 } else { 5 };
    // The first repetition isn't counted: it is the first use of records and connections.
    for repetition in 0..=options.reps {
        for ((rate, requests), (.., whats)) in figures.iter_mut().zip(&kinds) {
            for (side, what) in [Side::Plain, Side::Pool].into_iter().zip(whats) {
                let words = [*what, "batches", &repetition.to_string(), "1000"];
                let mut words: Vec<String> = words.map(String::from).to_vec();
                words.push(passes.to_string());
                let mut worker = pool.worker_at(Side::Plain, 0, &words);
                worker.env("FOREBAY_POOL", pool.name());
                worker.env("FOREBAY_NODE", "0");
                let before = pool.requests()?;
                let outcome = children::run_team(vec![worker], BATCH_TIMEOUT, pool.scratch());
                if sys::interrupted() {
                    return Err("interrupted".into());
                }
                let request_count = pool.requests()? - before;
                let (rates, counts) = match side {
                    Side::Plain => (&mut rate.raw, &mut requests.raw),
                    Side::Pool => (&mut rate.pool, &mut requests.pool),
                };
                match outcome {
                    Ok(outcome) if repetition > 0 => {
                        rates.push(outcome.operations / outcome.seconds / 1e3);
                        counts.push(request_count as f64 / outcome.operations);
                    }
                    Ok(_) => {}
                    Err(e) => rate.error = Some(e),
                }
            }
        }
        if figures.iter().any(|(rate, _)| rate.error.is_some()) {
            break;
        }
    }
    for (rate, mut requests) in figures {
        requests.error = rate.error.clone();
        for figure in [rate, requests] {
            report::figure_row(&figure);
            results.batches.push(figure);
        }
    }
    pool.down()
}

fn names(w: &Worker, kind: &str, pass: usize) -> Vec<String> {
    let name = |n: usize| format!("{kind}-{}-{pass}-{n:04}", w.index);
    (0..w.count.min(BATCH)).map(name).collect()
}

/// Worker: makes collections one by one.
pub fn one(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for pass in 0..w.passes {
        for name in names(w, "one", pass) {
            workspace.create(&name, &[])?;
        }
    }
    w.done(start, w.passes * w.count)
}

/// Worker: makes collections in batches.
pub fn all(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for pass in 0..w.passes {
        workspace.create_all(&names(w, "all", pass))?;
    }
    w.done(start, w.passes * w.count)
}

/// Worker: deletes the collections of [`one`] one by one.
pub fn one_gone(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for pass in 0..w.passes {
        for name in names(w, "one", pass) {
            workspace.delete(&name)?;
        }
    }
    w.done(start, w.passes * w.count)
}

/// Worker: deletes the collections of [`all`] in batches.
pub fn all_gone(w: &Worker) -> Result<(), String> {
    let workspace = Workspace::load(&w.directory)?;
    let start = w.start()?;
    for pass in 0..w.passes {
        workspace.delete_all(&names(w, "all", pass))?;
    }
    w.done(start, w.passes * w.count)
}

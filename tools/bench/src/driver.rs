//! The order of a measurement: costs first, then each workload with each number of processes. Plain
//! and pool take turns; which of them is first alternates, too.

use crate::batches;
use crate::children::{self, Outcome};
use crate::costs;
use crate::fuse;
use crate::nodes;
use crate::options::Options;
use crate::pool::{Pool, Side};
use crate::report::{self, Cost, Results, Row};
use crate::search;
use crate::sys;
use crate::workloads::{Amount, COSTS, WORKLOADS, Workload};
use std::time::{Duration, Instant};

struct Driver<'a> {
    options: &'a Options,
    pool: Pool,
    started: Instant,
    runs: usize,
}

/// Measures everything that the options select. Returns whether all of it could be measured.
pub fn run(options: &Options) -> Result<bool, String> {
    // Checks before the measurement, not after it, whether the file can be written.
    if let Some(path) = &options.json {
        std::fs::write(path, "").map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let mut driver = Driver {
        options,
        pool: Pool::new(options, "", 1, &options.media)?,
        started: Instant::now(),
        runs: 0,
    };
    let mut results = Results::default();
    let started = driver.started;
    let mut measured = driver.measure(&mut results);
    // The next part needs the memory that the driver's pool uses.
    drop(driver);
    measured = measured.and_then(|()| nodes::measure(options, &mut results));
    measured = measured.and_then(|()| fuse::measure(options, &mut results));
    measured = measured.and_then(|()| batches::measure(options, &mut results));
    measured = measured.and_then(|()| search::measure(options, &mut results));
    let elapsed = started.elapsed();
    if measured.is_ok() {
        report::summary(&results, elapsed);
    }
    if let Some(path) = &options.json {
        let text = report::json(&results, options);
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    measured.map(|()| results.complete())
}

impl Driver<'_> {
    fn measure(&mut self, results: &mut Results) -> Result<(), String> {
        let names = WORKLOADS.iter().map(|w| w.name);
        let mut names = names.chain(COSTS.iter().map(|c| c.0));
        if !names.any(|name| self.options.wants(name)) {
            return Ok(());
        }
        report::costs_heading();
        if self.options.wants("run") {
            self.note_cost(results, costs::run);
        }
        self.pool.up()?;
        // After its start, a pool makes preparations in the background, which shouldn't be
        // measured.
        std::thread::sleep(Duration::from_secs(1));
        if self.options.wants("exec") {
            self.note_cost(results, costs::exec);
        }
        if self.options.wants("script") {
            for inside in [false, true] {
                self.note_cost(results, |pool, reps| costs::script(pool, reps, inside));
            }
        }
        if self.options.wants("unrelated") {
            for what in costs::UNRELATED {
                self.note_cost(results, |pool, reps| costs::unrelated(pool, reps, what));
            }
        }
        if sys::interrupted() {
            return Err("interrupted".into());
        }
        report::workloads_heading();
        let wanted: Vec<&Workload> = WORKLOADS
            .iter()
            .filter(|w| self.options.wants(w.name))
            .collect();
        let rows = wanted.len() * self.options.procs.len();
        for (at, workload) in wanted.iter().enumerate() {
            let prepared = self.prepare(workload);
            for (i, &procs) in self.options.procs.iter().enumerate() {
                let part = (at * self.options.procs.len() + i + 1) as f64 / rows as f64;
                let row = match &prepared {
                    _ if self.elapsed() > 2.0 * self.budget() => {
                        Row::new(workload, procs).failed("no time is left for it".into())
                    }
                    Ok(directory) => self.row(workload, procs, directory.as_deref(), part),
                    Err(e) => Row::new(workload, procs).failed(e.clone()),
                };
                if sys::interrupted() {
                    return Err("interrupted".into());
                }
                report::row(&row);
                results.rows.push(row);
            }
        }
        Ok(())
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Maximum time that a whole measurement should take. Seconds.
    fn budget(&self) -> f64 {
        if self.options.quick { 80.0 } else { 440.0 }
    }

    fn note_cost(&mut self, results: &mut Results, measure: impl FnOnce(&Pool, usize) -> Cost) {
        if sys::interrupted() {
            return;
        }
        let cost = measure(&self.pool, self.options.reps);
        report::cost(&cost);
        results.costs.push(cost);
    }

    /// Prepares the directory of `list`, which is made only once. Returns its name below the
    /// directory of a side; None for other workloads.
    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>, String> {
        if workload.name != "list" {
            return Ok(None);
        }
        let directory = "list";
        let entries = workload.amount(self.options.quick, 1).count;
        let fillers = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        for side in [Side::Plain, Side::Pool] {
            let share = |i| entries * (i + 1) / fillers - entries * i / fillers;
            let amounts = (0..fillers).map(|i| Amount {
                count: share(i),
                passes: 1,
            });
            let limit = Duration::from_secs(if self.options.quick { 30 } else { 120 });
            self.team(side, "fill", directory, amounts, limit)
                .map_err(|e| format!("making its files {}: {e}", report::side_name(side)))?;
        }
        Ok(Some(directory.into()))
    }

    /// Runs all repetitions of one workload with one number of processes. `part`: share of all rows
    /// that is done after this one. A measurement that is behind schedule repeats less often.
    fn row(&mut self, w: &Workload, procs: usize, directory: Option<&str>, part: f64) -> Row {
        let mut row = Row::new(w, procs);
        for repetition in 0..self.options.reps {
            let late = self.elapsed() > self.budget() * (0.2 + 0.8 * part);
            if repetition > 0 && self.options.reps <= 3 && late {
                break;
            }
            let mut sides = [Side::Plain, Side::Pool];
            if repetition % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                match self.once(w, procs, side, directory) {
                    Ok(outcome) => row
                        .rates(side)
                        .push(w.unit.shown(outcome.operations / outcome.seconds)),
                    Err(e) => {
                        return row.failed(format!("{}: {e}", report::side_name(side)));
                    }
                }
            }
        }
        row
    }

    fn once(
        &mut self,
        w: &Workload,
        procs: usize,
        side: Side,
        directory: Option<&str>,
    ) -> Result<Outcome, String> {
        let amount = w.amount(self.options.quick, procs);
        self.runs += 1;
        let fresh = format!("{:05}", self.runs);
        let amounts = std::iter::repeat_n(amount, procs);
        let limit = Duration::from_secs(if self.options.quick { 20 } else { 60 });
        self.team(side, w.name, directory.unwrap_or(&fresh), amounts, limit)
    }

    fn team(
        &self,
        side: Side,
        workload: &str,
        directory: &str,
        amounts: impl Iterator<Item = Amount>,
        limit: Duration,
    ) -> Result<Outcome, String> {
        let directory = format!("{}/{directory}", self.pool.directory(side));
        let commands = amounts
            .enumerate()
            .map(|(index, amount)| {
                let words = [
                    workload.to_string(),
                    directory.clone(),
                    index.to_string(),
                    amount.count.to_string(),
                    amount.passes.to_string(),
                ];
                self.pool.worker(side, &words)
            })
            .collect();
        children::run_team(commands, limit, self.pool.scratch())
    }
}

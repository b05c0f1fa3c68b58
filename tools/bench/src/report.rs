//! The figures: medians, ratios and spread, as a table and as JSON.

use crate::options::Options;
use crate::pool::Side;
use crate::workloads::{Unit, Workload};
use serde_json::{Value, json};
use std::time::Duration;

/// One cost: the times of the same operation without and with Forebay.
pub struct Cost {
    pub name: &'static str,
    pub unit: &'static str,
    pub plain: Vec<f64>,
    pub with: Vec<f64>,
    /// Goal: maximum that Forebay may add, in the same unit.
    pub limit: f64,
    pub error: Option<String>,
}

impl Cost {
    pub fn new(name: &'static str, unit: &'static str, limit: f64) -> Cost {
        Cost {
            name,
            unit,
            plain: Vec::new(),
            with: Vec::new(),
            limit,
            error: None,
        }
    }

    /// Repeats `measure` with both sides in turn.
    pub fn repeat(
        mut self,
        times: usize,
        mut measure: impl FnMut(Side) -> Result<f64, String>,
    ) -> Cost {
        for repetition in 0..times {
            let mut sides = [Side::Plain, Side::Pool];
            if repetition % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                match measure(side) {
                    Ok(value) if side == Side::Plain => self.plain.push(value),
                    Ok(value) => self.with.push(value),
                    Err(e) => {
                        self.error = Some(e);
                        return self;
                    }
                }
            }
        }
        self
    }
}

#[derive(Default)]
pub struct Results {
    pub costs: Vec<Cost>,
    pub rows: Vec<Row>,
    /// Figures of pools of several nodes.
    pub figures: Vec<Figure>,
    /// Figures of a mount.
    pub fuse: Vec<Figure>,
    /// Figures of searches.
    pub search: Vec<Figure>,
    /// Figures of batches.
    pub batches: Vec<Figure>,
}

impl Results {
    fn all_figures(&self) -> impl Iterator<Item = &Figure> {
        let verbs = self.search.iter().chain(&self.batches);
        self.figures.iter().chain(&self.fuse).chain(verbs)
    }

    /// Whether everything could be measured.
    pub fn complete(&self) -> bool {
        self.costs.iter().all(|c| c.error.is_none())
            && self.rows.iter().all(|r| r.error.is_none())
            && self.all_figures().all(|f| f.error.is_none())
    }
}

/// The results of one workload with one number of processes. Rates are in the unit in which they
/// are shown.
pub struct Row {
    name: &'static str,
    procs: usize,
    unit: Unit,
    goal: Option<f64>,
    plain: Vec<f64>,
    pool: Vec<f64>,
    error: Option<String>,
}

impl Row {
    pub fn new(workload: &Workload, procs: usize) -> Row {
        Row {
            name: workload.name,
            procs,
            unit: workload.unit,
            goal: workload.goal,
            plain: Vec::new(),
            pool: Vec::new(),
            error: None,
        }
    }

    pub fn failed(mut self, error: String) -> Row {
        self.error = Some(error);
        self
    }

    pub fn rates(&mut self, side: Side) -> &mut Vec<f64> {
        match side {
            Side::Plain => &mut self.plain,
            Side::Pool => &mut self.pool,
        }
    }

    fn ratio(&self) -> f64 {
        median(&self.pool) / median(&self.plain)
    }

    /// Smallest and largest ratio of two consecutive runs.
    fn spread(&self) -> (f64, f64) {
        extremes(self.pool.iter().zip(&self.plain).map(|(p, q)| p / q))
    }

    fn reached(&self) -> Option<bool> {
        self.goal.map(|goal| self.ratio() >= goal)
    }
}

/// The goal of a figure.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Bound of the pool's value divided by the reference's.
    TimesAtMost(f64),
    TimesAtLeast(f64),
    /// Bound of the pool's value minus the reference's.
    MoreAtMost(f64),
    /// Bound of the pool's value.
    AtMost(f64),
}

/// One figure with its unit; `raw` is empty if there is no reference.
pub struct Figure {
    name: String,
    unit: &'static str,
    goal: Option<Goal>,
    pub raw: Vec<f64>,
    pub pool: Vec<f64>,
    /// Values of the same measurement on `/dev/shm`, for orientation.
    pub beside: Vec<f64>,
    pub error: Option<String>,
}

impl Figure {
    pub fn new(name: String, unit: &'static str, goal: Option<Goal>) -> Figure {
        Figure {
            name,
            unit,
            goal,
            raw: Vec::new(),
            pool: Vec::new(),
            beside: Vec::new(),
            error: None,
        }
    }

    fn ratio(&self) -> f64 {
        median(&self.pool) / median(&self.raw)
    }

    /// Smallest and largest ratio of two consecutive runs; if there is no reference, smallest and
    /// largest value.
    fn spread(&self) -> (f64, f64) {
        if self.raw.is_empty() {
            extremes(self.pool.iter().copied())
        } else {
            extremes(self.pool.iter().zip(&self.raw).map(|(p, q)| p / q))
        }
    }

    fn reached(&self) -> Option<bool> {
        let value = median(&self.pool);
        self.goal.map(|goal| match goal {
            Goal::TimesAtMost(most) => self.ratio() <= most,
            Goal::TimesAtLeast(least) => self.ratio() >= least,
            Goal::MoreAtMost(most) => value - median(&self.raw) <= most,
            Goal::AtMost(most) => value <= most,
        })
    }

    fn goal(&self) -> String {
        let goal = match self.goal {
            Some(Goal::TimesAtMost(most)) => format!("<= {most}x"),
            Some(Goal::TimesAtLeast(least)) => format!(">= {least}x"),
            Some(Goal::MoreAtMost(most)) => format!("<= {most} more"),
            Some(Goal::AtMost(most)) => format!("<= {most}"),
            None => return "-".into(),
        };
        match self.reached() {
            Some(reached) => format!("{goal} {}", mark(reached)),
            None => goal,
        }
    }

    fn json(&self) -> Value {
        let (low, high) = self.spread();
        json!({
            "figure": self.name, "unit": self.unit, "raw": self.raw, "pool": self.pool, "beside": self.beside,
            "raw_median": median(&self.raw), "pool_median": median(&self.pool),
            "ratio": self.ratio(), "min": low, "max": high,
            "goal": self.goal(), "reached": self.reached(), "error": self.error,
        })
    }
}

impl Cost {
    fn more(&self) -> f64 {
        median(&self.with) - median(&self.plain)
    }

    fn spread(&self) -> (f64, f64) {
        extremes(self.with.iter().zip(&self.plain).map(|(w, p)| w - p))
    }

    fn reached(&self) -> bool {
        self.more() <= self.limit
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| {
        (low.min(v), high.max(v))
    })
}

pub fn side_name(side: Side) -> &'static str {
    match side {
        Side::Plain => "on /dev/shm",
        Side::Pool => "in the pool",
    }
}

fn mark(reached: bool) -> &'static str {
    if reached { "reached" } else { "MISSED" }
}

/// Formats a value with three significant figures.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub fn costs_heading() {
    println!(
        "{:<30} {:>7} {:>9} {:>9} {:>9}  {:<15} limit",
        "cost (medians)", "", "without", "with", "more", "min..max"
    );
}

pub fn cost(cost: &Cost) {
    if let Some(error) = &cost.error {
        println!("{:<30} FAILED: {error}", cost.name);
        return;
    }
    let (low, high) = cost.spread();
    println!(
        "{:<30} {:>7} {:>9} {:>9} {:>9}  {:<15} {} {}",
        cost.name,
        cost.unit,
        figure(median(&cost.plain)),
        figure(median(&cost.with)),
        figure(cost.more()),
        format!("{}..{}", figure(low), figure(high)),
        cost.limit,
        mark(cost.reached())
    );
}

pub fn workloads_heading() {
    println!(
        "\n{:<14} {:>5} {:>5} {:>9} {:>9} {:>6}  {:<11} {:>4}  goal",
        "workload", "procs", "", "/dev/shm", "pool", "ratio", "min..max", "reps"
    );
}

pub fn nodes_heading(nodes: usize) {
    let title = format!("{nodes} nodes on this host");
    println!(
        "\n{title:<36} {:>5} {:>9} {:>9} {:>6}  {:<13} {:>4}  goal",
        "", "raw", "pool", "ratio", "min..max", "reps"
    );
}

pub fn search_heading() {
    println!(
        "\n{:<36} {:>5} {:>9} {:>9} {:>6}  {:<13} {:>4}  goal",
        "nodes: searches by the verbs", "", "raw", "pool", "ratio", "min..max", "reps"
    );
}

pub fn batches_heading() {
    println!(
        "\n{:<36} {:>5} {:>9} {:>9} {:>6}  {:<13} {:>4}  goal",
        "4 nodes: collections by the verbs", "", "singly", "batches", "ratio", "min..max", "reps"
    );
}

pub fn figure_row(f: &Figure) {
    if let Some(error) = &f.error {
        println!("{:<36} FAILED: {error}", f.name);
        return;
    }
    let (low, high) = f.spread();
    let (raw, ratio) = if f.raw.is_empty() {
        ("-".into(), "-".into())
    } else {
        (figure(median(&f.raw)), format!("{:.2}", f.ratio()))
    };
    println!(
        "{:<36} {:>5} {raw:>9} {:>9} {ratio:>6}  {:<13} {:>4}  {}",
        f.name,
        f.unit,
        figure(median(&f.pool)),
        format!("{}..{}", figure(low), figure(high)),
        f.pool.len(),
        f.goal()
    );
}

pub fn fuse_heading() {
    println!(
        "\n{:<22} {:>5} {:>9} {:>9} {:>9} {:>6}  {:<11} {:>4}",
        "through FUSE", "", "/dev/shm", "passed", "pool", "ratio", "min..max", "reps"
    );
}

/// Prints the row of a mount. The value of `/dev/shm` comes first.
pub fn fuse_row(f: &Figure) {
    if let Some(error) = &f.error {
        println!("{:<22} FAILED: {error}", f.name);
        return;
    }
    let (low, high) = f.spread();
    println!(
        "{:<22} {:>5} {:>9} {:>9} {:>9} {:>6.2}  {:<11} {:>4}",
        f.name,
        f.unit,
        figure(median(&f.beside)),
        figure(median(&f.raw)),
        figure(median(&f.pool)),
        f.ratio(),
        format!("{low:.2}..{high:.2}"),
        f.pool.len()
    );
}

pub fn row(row: &Row) {
    if let Some(error) = &row.error {
        println!("{:<14} {:>5} FAILED {error}", row.name, row.procs);
        return;
    }
    let (low, high) = row.spread();
    let goal = match (row.goal, row.reached()) {
        (Some(goal), Some(reached)) => format!("{goal:.1} {}", mark(reached)),
        _ => "-".into(),
    };
    println!(
        "{:<14} {:>5} {:>5} {:>9} {:>9} {:>6.2}  {:<11} {:>4}  {goal}",
        row.name,
        row.procs,
        row.unit.name(),
        figure(median(&row.plain)),
        figure(median(&row.pool)),
        row.ratio(),
        format!("{low:.2}..{high:.2}"),
        row.plain.len(),
    );
}

pub fn summary(results: &Results, elapsed: Duration) {
    let rows = results.rows.iter().filter(|r| r.error.is_none());
    let goals: Vec<bool> = rows.filter_map(Row::reached).collect();
    let measured = results.costs.iter().filter(|c| c.error.is_none());
    let limits: Vec<bool> = measured.map(Cost::reached).collect();
    let figures = results.all_figures().filter(|f| f.error.is_none());
    let goals: Vec<bool> = goals
        .into_iter()
        .chain(figures.filter_map(Figure::reached))
        .collect();
    let failed = results.rows.iter().filter(|r| r.error.is_some()).count()
        + results.costs.iter().filter(|c| c.error.is_some()).count()
        + results.all_figures().filter(|f| f.error.is_some()).count();
    let of = |reached: &[bool], what| {
        let count = reached.iter().filter(|&&r| r).count();
        (!reached.is_empty()).then(|| format!("{count} of {} {what}, ", reached.len()))
    };
    println!(
        "\n{}{}{failed} failed; {:.0} s",
        of(&goals, "goals reached").unwrap_or_default(),
        of(&limits, "limits of cost kept").unwrap_or_default(),
        elapsed.as_secs_f64()
    );
}

/// Formats all results as JSON, with each repetition.
pub fn json(results: &Results, options: &Options) -> String {
    let rows: Vec<Value> = results
        .rows
        .iter()
        .map(|r| {
            let (low, high) = r.spread();
            json!({
                "workload": r.name, "procs": r.procs, "unit": r.unit.name(),
                "plain": r.plain, "pool": r.pool,
                "plain_median": median(&r.plain), "pool_median": median(&r.pool),
                "ratio": r.ratio(), "ratio_min": low, "ratio_max": high,
                "goal": r.goal, "reached": r.reached(), "error": r.error,
            })
        })
        .collect();
    let costs: Vec<Value> = results
        .costs
        .iter()
        .map(|c| {
            let (low, high) = c.spread();
            json!({
                "cost": c.name, "unit": c.unit, "plain": c.plain, "with": c.with,
                "plain_median": median(&c.plain), "with_median": median(&c.with),
                "more": c.more(), "more_min": low, "more_max": high,
                "limit": c.limit, "reached": c.reached(), "error": c.error,
            })
        })
        .collect();
    let figures: Vec<Value> = results.figures.iter().map(Figure::json).collect();
    let fuse: Vec<Value> = results.fuse.iter().map(Figure::json).collect();
    let batches: Vec<Value> = results.batches.iter().map(Figure::json).collect();
    let search: Vec<Value> = results.search.iter().map(Figure::json).collect();
    let text = json!({
        "machine": {
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "model": cpu_model(),
            "kernel": first_line("/proc/sys/kernel/osrelease"),
        },
        "quick": options.quick, "reps": options.reps, "media": options.media,
        "costs": costs, "workloads": rows, "nodes": figures, "fuse": fuse, "search": search, "batches": batches,
    });
    format!("{text:#}\n")
}

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(String::from)
}

fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::{extremes, median};

    #[test]
    fn medians_and_extremes() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(extremes([2.0, 1.0, 3.0].into_iter()), (1.0, 3.0));
    }
}

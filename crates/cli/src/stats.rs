//! `forebay stats`: shows counters. Also the summary of counters at the end of a run.

use crate::fail::{Fail, code};
use crate::output::{count, json, print_notice, write};
use crate::peers::Peers;
use crate::tables::table;
use crate::trace::{end_by_signals, ended_by_signal, nodes, time};
use crate::trace_args::Stats;
use forebay_media::format_size;
use forebay_report::text::share_of_run;
use forebay_report::totals::{Counted, Process, Totals, of_node};
use std::time::{Duration, Instant};

/// Returns the counters of the processes on this host's nodes.
pub fn here(pool: &str) -> Result<Vec<Process>, Fail> {
    let mut all = Vec::new();
    for node in nodes(pool)? {
        let failed = |e| {
            Fail::failed(format!(
                "can't read the counters of node {}: {e}",
                node.number.0
            ))
        };
        all.extend(of_node(&node).map_err(failed)?);
    }
    Ok(all)
}

/// Returns the arguments of `forebay` that print the counters of a host's nodes, for [`read`].
pub fn ask_host(pool: &str) -> [&str; 6] {
    ["stats", "--json", "--processes", "--here", "--pool", pool]
}

/// Parses the counters that a host has printed.
///
/// # Errors
/// Why there are no counters, as a sentence.
pub fn read(host: &str, output: Result<Vec<u8>, Fail>) -> Result<Vec<Process>, String> {
    let bytes = output.map_err(|e| format!("{}; its counters are left out", e.message))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{host}: its counters can't be read: {e}"))
}

/// Returns the counters of the processes on all nodes. Leaves out hosts that can't be asked, with a
/// message.
pub fn of_all(pool: &str, only_here: bool) -> Result<Vec<Process>, Fail> {
    let mut all = here(pool)?;
    if !only_here && let Some(others) = Peers::look(pool)? {
        for (host, output) in others.outputs(&ask_host(pool)) {
            match read(&host, output) {
                Ok(theirs) => all.extend(theirs),
                Err(why) => print_notice(why),
            }
        }
    }
    Ok(all)
}

/// Returns the sum of the counters of these processes.
pub fn sum(processes: &[Process]) -> Totals {
    let mut sum = Totals::default();
    processes.iter().for_each(|p| sum.add(&p.totals));
    sum
}

pub fn stats(pool: &str, a: &Stats) -> Result<u8, Fail> {
    if let Some(seconds) = a.watch {
        return watch(pool, a, seconds);
    }
    if a.prometheus {
        write(crate::metrics::of_pool(pool)?.as_bytes())?;
        return Ok(code::OK);
    }
    let processes = of_all(pool, a.here)?;
    match (a.json, a.processes) {
        (true, true) => json(&processes)?,
        (true, false) => json(&sum(&processes))?,
        (false, true) => write(process_table(&processes).as_bytes())?,
        (false, false) => {
            let sum = sum(&processes);
            write(operation_table(&sum, 1.0).as_bytes())?;
            write(line_of_requests(&sum).as_bytes())?;
        }
    }
    Ok(code::OK)
}

fn watch(pool: &str, a: &Stats, seconds: f64) -> Result<u8, Fail> {
    if !(0.05..=86_400.0).contains(&seconds) {
        return Err(Fail::usage(format!(
            "--watch {seconds}: from 0.05 to 86400 seconds"
        )));
    }
    end_by_signals();
    let mut before = sum(&of_all(pool, a.here)?);
    let mut next = Instant::now();
    loop {
        next += Duration::from_secs_f64(seconds);
        while Instant::now() < next && !ended_by_signal() {
            std::thread::sleep((next - Instant::now()).min(Duration::from_millis(100)));
        }
        if ended_by_signal() || forebay_client::places(pool).is_empty() {
            return Ok(code::OK);
        }
        let now = sum(&of_all(pool, a.here)?);
        let since = now.since(&before);
        if a.json {
            let line = serde_json::to_string(&since).map_err(|e| Fail::failed(e.to_string()))?;
            write((line + "\n").as_bytes())?;
        } else {
            write((operation_table(&since, seconds) + "\n").as_bytes())?
        }
        before = now;
    }
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".into(),
        _ => format!("{:.1}%", part as f64 * 100.0 / whole as f64),
    }
}

fn duration(nanoseconds: Option<f64>) -> String {
    nanoseconds.map_or("-".into(), time)
}

fn row(name: &str, c: &Counted, seconds: f64) -> Vec<String> {
    let d = &c.durations;
    let rate = |n: u64| n as f64 / seconds;
    vec![
        name.into(),
        match seconds {
            1.0 => c.count.to_string(),
            _ => format!("{:.0}", rate(c.count)),
        },
        match c.bytes {
            0 => "-".into(),
            bytes => format_size(rate(bytes) as u64),
        },
        c.errors.to_string(),
        share(c.count - c.remote.min(c.count), c.count),
        duration(d.mean()),
        duration(d.quantile(0.5).map(|n| n as f64)),
        duration(d.quantile(0.99).map(|n| n as f64)),
    ]
}

const COLUMNS: [&str; 8] = [
    "OPERATION",
    "COUNT",
    "BYTES",
    "ERRORS",
    "LOCAL",
    "MEAN",
    "HALF BELOW",
    "99% BELOW",
];

fn operation_table(totals: &Totals, seconds: f64) -> String {
    let mut rows = vec![COLUMNS.map(String::from).to_vec()];
    let mut kinds: Vec<_> = totals.operations.iter().collect();
    kinds.sort_by_key(|(_, c)| std::cmp::Reverse(c.count));
    rows.extend(kinds.iter().map(|(name, c)| row(name, c, seconds)));
    table(&rows, &[0])
}

fn line_of_requests(totals: &Totals) -> String {
    let (requests, waits) = (&totals.requests, &totals.waits);
    let each = |mean: Option<f64>| mean.map_or(String::new(), |m| format!(", {} each", time(m)));
    format!(
        "\n{} to other nodes{}: {} sent, {} received\n{} for locks{}\n",
        count(requests.timed, "request"),
        each(requests.mean()),
        format_size(totals.sent),
        format_size(totals.received),
        count(waits.timed, "wait"),
        each(waits.mean())
    )
}

fn process_table(processes: &[Process]) -> String {
    let mut rows = vec![
        [
            "NODE",
            "PROCESS",
            "PROGRAM",
            "OPERATIONS",
            "READ",
            "WRITTEN",
            "LOCAL",
            "TIME",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for p in processes.iter().filter(|p| !p.totals.operations.is_empty()) {
        let all = p.totals.all();
        rows.push(vec![
            p.node.to_string(),
            if p.process == 0 {
                "ended".into()
            } else {
                p.process.to_string()
            },
            p.program.chars().filter(|c| !c.is_control()).collect(),
            all.count.to_string(),
            format_size(p.totals.bytes("read")),
            format_size(p.totals.bytes("write")),
            share(all.count - all.remote.min(all.count), all.count),
            time(p.totals.time()),
        ]);
    }
    table(&rows, &[2])
}

/// Summarizes a pool's counters in two lines, or none if no operation was counted. `took` is the
/// run time of the program, if this is the summary of a run.
pub fn summary(totals: &Totals, took: Option<Duration>) -> Vec<String> {
    let all = totals.all();
    if all.count == 0 {
        return Vec::new();
    }
    let kind = |name: &str| totals.operations.get(name).map_or(0, |c| c.count);
    let moved = totals.bytes("read") + totals.bytes("write");
    let remote_bytes = (totals.sent + totals.received).min(moved);
    vec![
        format!(
            "{} in the pool: {} created, {} read, {} written",
            count(all.count, "operation"),
            count(kind("create"), "file"),
            format_size(totals.bytes("read")),
            format_size(totals.bytes("write")),
        ),
        format!(
            "{} of the operations{} stayed on their node; all processes together spent {} in them{}",
            share(all.count - all.remote.min(all.count), all.count),
            match moved {
                0 => String::new(),
                _ => format!(" and {} of the bytes", share(moved - remote_bytes, moved)),
            },
            time(totals.time()),
            took.map_or(String::new(), |took| {
                format!(": {}", share_of_run(totals.time(), took.as_nanos() as f64))
            }),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_what_was_done() {
        let mut totals = Totals::default();
        let took = Some(Duration::from_secs(10));
        assert!(summary(&totals, took).is_empty());
        let counted = |count, bytes, remote| Counted {
            count,
            bytes,
            remote,
            ..Counted::default()
        };
        totals
            .operations
            .insert("write".into(), counted(3, 4 << 20, 1));
        totals.operations.insert("create".into(), counted(1, 0, 0));
        totals.sent = 1 << 20;
        let lines = summary(&totals, took);
        assert_eq!(
            lines[0],
            "4 operations in the pool: 1 file created, 0 B read, 4.0 MiB written"
        );
        assert!(
            lines[1].starts_with("75.0% of the operations and 75.0% of the bytes"),
            "{}",
            lines[1]
        );
        assert!(
            lines[1].ends_with(": 0 % of the run's 10.0 s"),
            "{}",
            lines[1]
        );
        let of = |seconds: f64| share_of_run(seconds * 1e9, 10e9);
        assert_eq!(of(1.25), "12 % of the run's 10.0 s");
        assert_eq!(
            of(45.0),
            "on average 4.5 processes at a time, in the run's 10.0 s"
        );
    }
}

//! The tables of the screen: turns a view into rows of text.

use super::files::{Hot, Row as HotRow};
use super::known::Medium;
use super::table::{Column, Row, Table};
use super::view::{Figures, View};
use crate::output::quoted;
use crate::survey::State;
use crate::tables::percent;
use crate::trace::{clock, time};
use forebay_media::format_size;
use forebay_report::totals::Durations;
use ratatui::style::{Color, Style};

/// Length of a medium's bar, in terminal cells: if its node has only this medium (`BAR`), or
/// several.
const BAR: u64 = 8;
const SMALL_BAR: u64 = 3;
/// Maximum number of rows of a list: more than a screen has lines.
const MAX_ROWS: usize = 300;

/// Formats a rate: `0`, `0.4`, `950`, `12.3k`, `1.2M`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if r <= 0.0 => "0".into(),
        r if r < 0.1 => "<0.1".into(),
        r if r < 9.95 => format!("{r:.1}"),
        r if r < 9_999.5 => format!("{r:.0}"),
        r if r < 999_950.0 => format!("{:.1}k", r / 1e3),
        r if r < 999_950_000.0 => format!("{:.1}M", r / 1e6),
        r => format!("{:.1}G", r / 1e9),
    }
}

/// Formats bytes per second, without `/s`.
pub fn bytes(per_second: f64) -> String {
    match per_second as u64 {
        0 => "-".into(),
        n => format_size(n),
    }
}

/// Formats a fraction between 0 and 1 as a percentage.
pub fn share(share: Option<f64>) -> String {
    share.map_or("-".into(), |s| format!("{:.1}%", s * 100.0))
}

fn duration(nanoseconds: Option<f64>) -> String {
    nanoseconds.map_or("-".into(), time)
}

fn quantile(durations: &Durations, share: f64) -> String {
    duration(durations.quantile(share).map(|n| n as f64))
}

/// Draws a medium's fill level in `cells` cells: `████░░░░  52%`.
fn bar(medium: &Medium, cells: u64) -> String {
    let full = match medium.capacity {
        0 => 0,
        all => (medium.used.min(all) * cells + all / 2) / all,
    };
    let (full, rest) = (full as usize, (cells - full) as usize);
    let share = percent(medium.used, medium.capacity);
    format!("{}{} {share:>4}", "█".repeat(full), "░".repeat(rest))
}

/// Draws the bars of a node's media, in their order; shorter bars if there are several.
fn bars(media: &[Medium]) -> String {
    let cells = if media.len() > 1 { SMALL_BAR } else { BAR };
    let bars = media.iter().map(|m| bar(m, cells));
    let bars = bars.collect::<Vec<_>>().join(" ");
    if bars.is_empty() { "-".into() } else { bars }
}

/// Returns the style of a node's row.
fn style(state: State) -> Style {
    match state {
        State::Up => Style::new(),
        State::Dead | State::Unreachable => Style::new().fg(Color::Red),
        State::Paused | State::Unknown => Style::new().fg(Color::Yellow),
    }
}

/// Returns the table of nodes in the order of their numbers; with `is_up_last`, those that aren't
/// up come first.
pub fn nodes(view: &View, is_up_last: bool) -> Table {
    let mut nodes: Vec<&super::view::NodeRow> = view.nodes.iter().collect();
    if is_up_last {
        nodes.sort_by_key(|n| n.state == State::Up);
    }
    let row = |n: &super::view::NodeRow| {
        let of = |text: &dyn Fn(&Figures) -> String| n.figures.as_ref().map_or("-".into(), text);
        let size = |all: fn(&Medium) -> u64| format_size(n.media.iter().map(all).sum());
        let known = |text: String| if n.media.is_empty() { "-".into() } else { text };
        Row {
            cells: vec![
                n.number.to_string(),
                n.state.word().into(),
                bars(&n.media),
                known(size(|m| m.used)),
                known(size(|m| m.capacity)),
                of(&|f| rate(f.operations)),
                of(&|f| bytes(f.read)),
                of(&|f| bytes(f.written)),
                of(&|f| rate(f.requests)),
                of(&|f| duration(f.mean())),
            ],
            style: style(n.state),
        }
    };
    Table {
        columns: vec![
            Column::number("NODE", 0, 0),
            Column::word("STATE", 0, 0),
            Column::word("MEDIA", 13, 2),
            Column::number("USED", 9, 8),
            Column::number("SIZE", 9, 9),
            Column::number("OPS/S", 6, 0),
            Column::number("READ/S", 10, 1),
            Column::number("WRITE/S", 10, 1),
            Column::number("REQS/S", 6, 4),
            Column::number("MEAN", 7, 3),
        ],
        rows: nodes.into_iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns the table of the kinds of operations.
pub fn operations(view: &View) -> Table {
    let row = |o: &super::view::OperationRow| {
        let local = (o.rate > 0.0).then(|| 1.0 - o.remote / o.rate);
        Row::from(vec![
            o.name.clone(),
            rate(o.rate),
            bytes(o.bytes),
            rate(o.errors),
            share(local),
            format!("{:.1}%", o.time * 100.0),
            duration(o.durations.mean()),
            quantile(&o.durations, 0.5),
            quantile(&o.durations, 0.99),
        ])
    };
    Table {
        columns: vec![
            Column::word("OPERATION", 10, 0),
            Column::number("OPS/S", 6, 0),
            Column::number("BYTES/S", 10, 1),
            Column::number("ERR/S", 5, 5),
            Column::number("LOCAL", 6, 6),
            Column::number("TIME", 6, 7),
            Column::number("MEAN", 7, 2),
            Column::number("HALF BELOW", 7, 4),
            Column::number("99% BELOW", 7, 3),
        ],
        rows: view.operations.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns the table of the processes that did operations.
pub fn processes(view: &View) -> Table {
    let row = |p: &super::view::ProcessRow| {
        let f = &p.figures;
        Row::from(vec![
            p.node.to_string(),
            p.process.to_string(),
            p.program.clone(),
            rate(f.operations),
            bytes(f.read),
            bytes(f.written),
            share(f.local()),
            format!("{:.1}%", f.time * 100.0),
            duration(f.mean()),
        ])
    };
    Table {
        columns: vec![
            Column::number("NODE", 0, 4),
            Column::number("PROCESS", 7, 0),
            Column::word("PROGRAM", 10, 1),
            Column::number("OPS/S", 6, 0),
            Column::number("READ/S", 10, 2),
            Column::number("WRITE/S", 10, 2),
            Column::number("LOCAL", 6, 6),
            Column::number("TIME", 6, 5),
            Column::number("MEAN", 7, 3),
        ],
        rows: view.processes.iter().take(MAX_ROWS).map(row).collect(),
        more: view.processes.len().saturating_sub(MAX_ROWS),
        ..Table::default()
    }
}

/// Returns the table of the latest slow operations.
pub fn slow(view: &View) -> Table {
    let row = |s: &crate::slow::SlowOperation| {
        let error = match s.errno {
            0 => String::new(),
            e => rustix::io::Errno::from_raw_os_error(e).to_string(),
        };
        let asked = match s.requests_to_other_nodes {
            0 => "-".to_owned(),
            n => format!("{} in {n}", time(s.nanoseconds_in_requests as f64)),
        };
        let began = clock(s.begin);
        Row::from(vec![
            began.split('.').next().unwrap_or(&began).to_owned(),
            time(s.nanoseconds as f64),
            s.operation.clone(),
            asked,
            format!("{}.{}", s.node, s.process),
            s.request.clone(),
            error,
        ])
    };
    Table {
        columns: vec![
            Column::word("SLOW AT", 8, 0),
            Column::number("TOOK", 7, 0),
            Column::word("OPERATION", 0, 0),
            Column::number("IN REQUESTS", 0, 3),
            Column::word("PROCESS", 0, 1),
            Column::word("REQUEST", 0, 2),
            Column::word("ERROR", 0, 6),
        ],
        rows: view.slow.iter().map(row).collect(),
        is_open: true,
        ..Table::default()
    }
}

/// Returns the table of the processes that wait for a stopped process.
pub fn stuck(view: &View) -> Table {
    let row = |s: &super::known::Stuck| Row {
        cells: vec![
            s.node.to_string(),
            s.waiter.clone(),
            s.holder.clone(),
            format!("kill -CONT {}", s.holder_pid),
        ],
        style: Style::new().fg(Color::Red),
    };
    Table {
        columns: vec![
            Column::number("NODE", 0, 3),
            Column::word("STUCK PROCESS", 0, 0),
            Column::word("WAITS FOR STOPPED", 0, 0),
            Column::word("TO LET IT GO ON", 0, 2),
        ],
        rows: view.stuck.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns the table of the latest violations of controls.
pub fn violations(view: &View) -> Table {
    let row = |v: &forebay_client::Violation| {
        Row::from(vec![
            clock(v.time.max(0) as u64 * 1_000_000_000)[..8].to_owned(),
            v.pid.to_string(),
            if v.refused { "refused" } else { "done" }.to_owned(),
            v.what.clone(),
            v.control.clone(),
            quoted(&v.path),
        ])
    };
    Table {
        columns: vec![
            Column::word("VIOLATION", 0, 0),
            Column::number("PROCESS", 0, 1),
            Column::word("", 0, 2),
            Column::word("ACTION", 0, 3),
            Column::word("CONTROL", 0, 4),
            Column::path("PATH"),
        ],
        rows: view.violations.latest.iter().map(row).collect(),
        is_open: true,
        ..Table::default()
    }
}

/// Returns the line above the busiest files.
fn about_files(hot: &Hot, other_hosts: bool) -> String {
    if hot.off {
        return "files: another command switched the tracepoints off; press f twice".into();
    }
    let mut line = String::from("files: 3 tracepoints are on, about 50 ns per operation");
    if hot.lost > 0 {
        let all = (hot.lost + hot.seen) as f64;
        line += &format!(
            "; {:.0}% of events lost",
            (hot.lost as f64 * 100.0 / all).ceil()
        );
    }
    if other_hosts {
        line += "; this host";
    }
    line
}

fn hot(rows: &[HotRow], title: &'static str, above: Option<String>) -> Table {
    let row = |r: &HotRow| {
        Row::from(vec![
            r.path.clone(),
            rate(r.operations),
            bytes(r.read),
            bytes(r.written),
        ])
    };
    Table {
        above,
        columns: vec![
            Column::path(title),
            Column::number("OPS/S", 6, 3),
            Column::number("READ/S", 10, 1),
            Column::number("WRITE/S", 10, 1),
        ],
        rows: rows.iter().map(row).collect(),
        more: 0,
        is_open: true,
    }
}

/// Returns the table of the busiest files, and that of the busiest directories.
pub fn files(view: &View, found: &Hot) -> [Table; 2] {
    let above = about_files(found, view.has_other_hosts);
    [
        hot(&found.files, "FILE", Some(above)),
        hot(&found.directories, "DIRECTORY", None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_columns_whatever_their_size() {
        let rates = [
            0.0, 0.01, 0.44, 9.94, 9.96, 9_999.4, 9_999.6, 999_960.0, 2.5e9,
        ]
        .map(rate);
        let expected = [
            "0", "<0.1", "0.4", "9.9", "10", "9999", "10.0k", "1.0M", "2.5G",
        ];
        assert_eq!(rates, expected);
        for exponent in 0..40 {
            let n = 10f64.powf(f64::from(exponent) / 4.0);
            assert!(rate(n).chars().count() <= 6, "{}", rate(n));
            assert!(bytes(n).chars().count() <= 10, "{}", bytes(n));
        }
    }

    #[test]
    fn bars_show_the_share_in_use() {
        let medium = |used, capacity| Medium { used, capacity };
        assert_eq!(bars(&[medium(0, 100)]), "░░░░░░░░   0%");
        assert_eq!(bars(&[medium(52, 100)]), "████░░░░  52%");
        assert_eq!(bars(&[medium(200, 100)]), "████████ 200%");
        let two = [medium(100, 100), medium(0, 100)];
        assert_eq!(bars(&two), "███ 100% ░░░   0%");
        assert_eq!(bars(&[]), "-");
    }
}

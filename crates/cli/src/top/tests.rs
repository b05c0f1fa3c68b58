//! Tests of the screen at common sizes: every number on it is shown whole.

use super::draw::{Look, draw, lines};
use super::files::{Hot, Row};
use super::known::{Medium, Stuck, Violations};
use super::view::{Figures, NodeRow, OperationRow, ProcessRow, View};
use crate::slow::SlowOperation;
use crate::survey::State;
use forebay_client::Violation;
use forebay_report::totals::Durations;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::{Duration, Instant};

const KINDS: [&str; 9] = [
    "read",
    "write",
    "open",
    "close",
    "stat",
    "create",
    "attributes",
    "remove",
    "rename",
];

fn figures(n: f64) -> Figures {
    Figures {
        operations: 123_456.0 * n,
        remote: 1234.0 * n,
        read: 1023.9 * 1048576.0,
        written: 987.6 * 1048576.0,
        requests: 45_678.0,
        time: 0.75,
        ..Figures::default()
    }
}

/// Returns the view of a pool with the widest numbers.
fn busy(nodes: u32, now: Instant) -> View {
    let states = [State::Up, State::Up, State::Unreachable, State::Dead];
    let row = |number: u32| NodeRow {
        number,
        state: states[number as usize % 4],
        media: vec![Medium {
            used: 1000 << 20,
            capacity: 1023 << 20,
        }],
        figures: (number % 4 != 3).then(|| figures(1.0)),
    };
    let operation = |(i, name): (usize, &&str)| OperationRow {
        name: (**name).into(),
        rate: 99_999.0 / (i + 1) as f64,
        bytes: if i < 2 { 1023.9 * 1048576.0 } else { 0.0 },
        time: 0.5,
        durations: Durations {
            timed: 10,
            nanoseconds: 9_990_000,
            classes: [(25_165_824, 8), (99_900_000, 2)].into(),
        },
        ..OperationRow::default()
    };
    let hot = |i: u32| Row {
        path: format!("/project/campaign-2026/run-{i:03}/fields/pressure/step-{i:05}.h5"),
        operations: 12_345.0,
        read: 1023.9 * 1048576.0,
        written: 512.5 * 1048576.0,
    };
    View {
        pool: "campaign".into(),
        up_for: Some(Duration::from_secs(86_000)),
        total: figures(4.0),
        interval: Some(Duration::from_secs(1)),
        oldest: Some(now - Duration::from_millis(300)),
        nodes: (0..nodes).map(row).collect(),
        processes_attached: 1234,
        processes: (0..40)
            .map(|i| ProcessRow {
                node: i % nodes,
                process: 4_194_000 + i,
                program: "openfoam-solver".into(),
                figures: figures(0.1),
            })
            .collect(),
        operations: KINDS.iter().enumerate().map(operation).collect(),
        slow: (0..256)
            .map(|i| SlowOperation {
                node: 3,
                begin: (3600 * 23 + i) * 1_000_000_000,
                nanoseconds: 213_000_000,
                operation: "attributes".into(),
                process: 4_194_303,
                request: "3.4194303.1073741823".into(),
                requests_to_other_nodes: 12,
                nanoseconds_in_requests: 142_000,
                ..SlowOperation::default()
            })
            .collect(),
        stuck: vec![Stuck {
            node: 0,
            waiter: "4194303 (cat)".into(),
            holder: "4194302 (python3)".into(),
            holder_pid: 4_194_302,
        }],
        violations: Violations {
            count: 12,
            refused: 3,
            full: false,
            latest: vec![Violation {
                time: 3600,
                pid: 4_194_000,
                path: "/checkpoints/step-1.h5".into(),
                control: "mutability = \"append\"".into(),
                what: "write at 0 of 10 bytes".into(),
                refused: true,
            }],
            unread: Vec::new(),
        },
        hot: Some(Hot {
            files: (0..30).map(hot).collect(),
            directories: (0..12).map(hot).collect(),
            lost: 1,
            seen: 99,
            off: false,
        }),
        ..View::default()
    }
}

/// Draws the screen and returns its lines.
fn screen(view: &View, look: &Look, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let now = view.oldest.unwrap_or_else(Instant::now) + Duration::from_millis(300);
    terminal
        .draw(|frame| draw(view, look, now, frame.buffer_mut()))
        .unwrap();
    lines(terminal.backend().buffer())
}

fn has(screen: &[String], wanted: &str) {
    let all = screen.join("\n");
    assert!(all.contains(wanted), "no {wanted:?} in\n{all}");
}

/// Checks that the numbers with units are some of those that [`busy`] makes, none truncated.
fn no_number_is_cut(screen: &[String]) {
    let sizes = ["1023.9", "987.6", "512.5", "1000.0", "1023.0"];
    for line in screen.iter().filter(|line| !line.contains("keys")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            if pair[1].starts_with("MiB") {
                assert!(sizes.contains(&pair[0]), "{line}");
            }
        }
        let last = words.last().copied().unwrap_or("");
        assert!(!sizes.contains(&last), "no unit: {line}");
    }
}

#[test]
fn everything_important_is_whole_at_80_by_24() {
    let now = Instant::now();
    for nodes in [1, 4] {
        let mut view = busy(nodes, now);
        let files = Look {
            files: true,
            ..Look::default()
        };
        let all = screen(&view, &files, 80, 24);
        no_number_is_cut(&all);
        has(&all, "pool campaign  up 23 h 53 min");
        has(&all, "493.8k ops/s  read 1023.9 MiB/s  written 987.6 MiB/s");
        has(&all, "256 slow  1 stuck  12 violations, 3 refused");
        has(&all, "OPERATION");
        has(&all, "100.0k");
        has(
            &all,
            "files: 3 tracepoints are on, about 50 ns per operation; 1% of events lost",
        );
        has(&all, "step-00000.h5");
        has(&all, "DIRECTORY");
        has(&all, "4194303 (cat)");
        has(
            &all,
            "q quit  s sort (rate)  p processes  f no files  space pause  ? help",
        );
        let first = if nodes == 1 {
            "1 node up"
        } else {
            "2 nodes up, 2 down"
        };
        has(&all, first);
        view.stuck.clear();
        let all = screen(&view, &Look::default(), 80, 24);
        no_number_is_cut(&all);
        has(&all, "123.5k  1023.9 MiB   987.6 MiB");
        has(&all, "23:00:00");
        has(&all, "213 ms  attributes");
        has(&all, "VIOLATION");
        let processes = Look {
            processes: true,
            ..Look::default()
        };
        let all = screen(&view, &processes, 80, 24);
        no_number_is_cut(&all);
        has(&all, "4194000  openfoam-solver");
    }
}

#[test]
fn more_room_shows_more() {
    let now = Instant::now();
    let view = busy(4, now);
    let files = Look {
        files: true,
        ..Look::default()
    };
    let all = screen(&view, &files, 100, 30);
    no_number_is_cut(&all);
    has(&all, "unreachable");
    has(&all, "99% BELOW");
    has(&all, "kill -CONT 4194302");
    let all = screen(&view, &files, 200, 50);
    no_number_is_cut(&all);
    has(&all, "3.4194303.1073741823");
    has(&all, "99.9 ms");
    has(&all, "rename");
    has(&all, "write at 0 of 10 bytes");
    has(&all, "in I/O 1.9%");
    // The panels are side by side.
    assert!(
        all.iter()
            .any(|l| l.contains("NODE  STATE") && l.contains("STUCK PROCESS"))
    );
    has(&all, "…tep-00000.h5".trim_start_matches('…'));
}

#[test]
fn many_nodes_leave_room_for_the_other_panels() {
    let view = busy(200, Instant::now());
    for (width, height) in [(80, 24), (200, 50)] {
        let all = screen(&view, &Look::default(), width, height);
        has(&all, " more");
        has(&all, "   2  unreachable");
        assert!(!all.iter().any(|line| line.contains("  0  up")));
        has(&all, "VIOLATION");
    }
    let all = screen(&view, &Look::default(), 80, 24);
    has(&all, "OPERATION");
    has(&all, "SLOW AT");
}

#[test]
fn nothing_is_known_yet_and_any_size_is_drawn() {
    let view = View {
        pool: "p".repeat(200),
        ..View::default()
    };
    has(&screen(&view, &Look::default(), 80, 24), "reading counters");
    let look = Look {
        help: true,
        files: true,
        ..Look::default()
    };
    let mut full = busy(4, Instant::now());
    full.notes = vec!["host n1: no route to it at all; its figures are 12 s old".into()];
    for width in 1..220 {
        for height in [1, 2, 5, 6, 7, 9, 12, 24, 70] {
            screen(&full, &look, width, height);
            screen(&view, &look, width, height);
        }
    }
    has(
        &screen(
            &full,
            &Look {
                paused: true,
                ..Look::default()
            },
            80,
            24,
        ),
        "PAUSED",
    );
    has(
        &screen(&full, &look, 80, 24),
        "s               sort by rate",
    );
}

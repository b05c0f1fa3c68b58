//! The layout of the screen: which panels are shown, where, and how many lines each gets.
//!
//! ```text
//! narrow: header        wide (from 150 columns): header
//!         nodes                                  nodes        stuck, slow, violations
//!         operations                             operations   processes, files, directories
//!         stuck, files, slow, violations         keys
//!         keys
//! ```
//! Each panel has a minimum number of lines and a wanted number. All panels get their minimum
//! first, the more important ones before the others. The remaining lines go to nodes and
//! operations, up to their wanted numbers, and then to the others in turn, line by line.

use super::panels;
use super::table::{Table, ending, fitting, width};
use super::view::{Sort, View};
use crate::output::{count, seconds};
use forebay_media::format_size;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use std::time::Instant;

/// Minimum width for panels side by side. Columns.
const WIDE: u16 = 150;
/// Gap between the left and the right side. Columns.
const BETWEEN: u16 = 2;

/// The user's choices of what the screen shows.
#[derive(Clone, Copy, Default)]
pub struct Look {
    pub sort: Sort,
    /// Show processes instead of operations.
    pub processes: bool,
    /// Show files, for which the tracepoints must be on.
    pub files: bool,
    pub paused: bool,
    pub help: bool,
    /// The screen is printed as text, without the line of keys.
    pub plain: bool,
}

/// A panel: a table, and its minimum number of lines.
struct Panel {
    table: Table,
    least: u16,
    /// Gets all lines that it wants before side panels get more than their minimum.
    is_main: bool,
}

impl Panel {
    fn main(table: Table, least: u16) -> Panel {
        Panel {
            table,
            least,
            is_main: true,
        }
    }

    fn side(table: Table, least: u16) -> Panel {
        Panel {
            table,
            least,
            is_main: false,
        }
    }
}

/// Draws a view into `buffer`.
pub fn draw(view: &View, look: &Look, now: Instant, buffer: &mut Buffer) {
    let area = buffer.area;
    if area.width < 20 || area.height < 6 {
        buffer.set_stringn(area.x, area.y, "too small", area.width.into(), Style::new());
        return;
    }
    let mut y = area.y;
    for (line, style) in header(view, look, now, area.width) {
        buffer.set_stringn(area.x, y, line, area.width.into(), style);
        y += 1;
    }
    let foot = u16::from(!look.plain);
    let room = Rect::new(
        area.x,
        y,
        area.width,
        area.bottom().saturating_sub(y + foot),
    );
    let (first, second) = panels_of(view, look, area.width >= WIDE, area.height);
    if area.width >= WIDE {
        let left = (area.width - BETWEEN) / 2;
        let right = area.width - BETWEEN - left;
        stack(
            first,
            Rect {
                width: left,
                ..room
            },
            buffer,
        );
        let x = room.x + left + BETWEEN;
        stack(
            second,
            Rect {
                x,
                width: right,
                ..room
            },
            buffer,
        );
    } else {
        stack(first.into_iter().chain(second).collect(), room, buffer);
    }
    if !look.plain {
        let dim = Style::new().add_modifier(Modifier::DIM);
        buffer.set_stringn(
            area.x,
            area.bottom() - 1,
            keys(look, area.width),
            area.width.into(),
            dim,
        );
    }
    if look.help {
        help(buffer);
    }
}

/// Returns the lines above the panels.
fn header(view: &View, look: &Look, now: Instant, most: u16) -> Vec<(String, Style)> {
    let (up, down) = view.up_and_down();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let up_for = view
        .up_for
        .map(|d| format!("up {}", seconds(d.as_secs().max(1) as f64)));
    let total = &view.total;
    let age = view
        .oldest
        .map(|at| now.saturating_duration_since(at).as_secs_f64());
    let v = &view.violations;
    let first = [
        // A long pool name is truncated to leave space for the numbers.
        format!(
            "pool {}",
            ending(&view.pool, most.saturating_sub(62).max(12))
        ),
        if look.paused {
            "PAUSED".into()
        } else {
            String::new()
        },
        up_for.unwrap_or_default(),
        format!("{} up, {down} down", count(up as u64, "node")),
        match view.processes_attached {
            1 => "1 process".into(),
            n => format!("{n} processes"),
        },
    ];
    let second = match view.interval {
        None => ["reading counters for the first interval".into()].to_vec(),
        Some(_) => vec![
            format!("{} ops/s", panels::rate(total.operations)),
            format!("read {}/s", format_size(total.read as u64)),
            format!("written {}/s", format_size(total.written as u64)),
            format!("local {}", panels::share(total.local())),
            in_io(view),
        ],
    };
    let third = [
        format!("{} slow", view.slow.len()),
        format!("{} stuck", view.stuck.len()),
        match (v.count, v.refused) {
            (0, _) => "no violations".into(),
            (n, 0) => count(n as u64, "violation"),
            (n, refused) => format!("{}, {refused} refused", count(n as u64, "violation")),
        },
        if v.full {
            "the list of violations is full".into()
        } else {
            String::new()
        },
        age.map_or(String::new(), |s| format!("figures {s:.1} s old")),
        view.interval.map_or(String::new(), |d| {
            format!("interval {:.1} s", d.as_secs_f64())
        }),
    ];
    let bad = match down + view.stuck.len() {
        0 => Style::new(),
        _ => Style::new().fg(Color::Red),
    };
    let mut lines = vec![
        (fitting(&first, most), bold),
        (fitting(&second, most), bold),
        (fitting(&third, most), bad),
    ];
    let warn = Style::new().fg(Color::Yellow);
    lines.extend(
        view.notes
            .iter()
            .take(3)
            .map(|note| (fitting(std::slice::from_ref(note), most), warn)),
    );
    lines
}

/// Describes the share of their time that busy processes spent in operations.
fn in_io(view: &View) -> String {
    match view.processes.len() {
        0 => String::new(),
        n => format!("in I/O {:.1}%", view.total.time * 100.0 / n as f64),
    }
}

/// Returns the panels of the left side, and those of the right side.
fn panels_of(view: &View, look: &Look, is_wide: bool, height: u16) -> (Vec<Panel>, Vec<Panel>) {
    // If there are many nodes, those with problems come first and few lines are reserved for nodes,
    // so that the other panels keep theirs.
    let most = (height / 4).max(4) + 1;
    let are_many = view.nodes.len() >= usize::from(most);
    let nodes = Panel {
        table: panels::nodes(view, are_many),
        least: most,
        is_main: !are_many,
    };
    let (operations, processes) = (panels::operations(view), panels::processes(view));
    let (work, other) = if look.processes {
        (processes, operations)
    } else {
        (operations, processes)
    };
    let mut side = Vec::new();
    // An empty table gets no panel.
    let add = |side: &mut Vec<Panel>, table: Table, least: u16| {
        if !table.rows.is_empty() {
            side.push(Panel::side(table, least));
        }
    };
    add(&mut side, panels::stuck(view), 2);
    if is_wide {
        add(&mut side, other, 5);
    }
    if let Some(hot) = view.hot.as_ref().filter(|_| look.files) {
        let [files, directories] = panels::files(view, hot);
        side.push(Panel::side(files, 5));
        side.push(Panel::side(directories, 3));
    } else if look.files {
        let above = Some("files: waiting for the first events".to_owned());
        let table = Table {
            above,
            ..Table::default()
        };
        side.push(Panel::side(table, 2));
    }
    let least = if is_wide { 6 } else { 2 };
    add(&mut side, panels::slow(view), least);
    add(&mut side, panels::violations(view), least);
    (vec![nodes, Panel::main(work, 5)], side)
}

/// Draws panels below each other.
fn stack(panels: Vec<Panel>, area: Rect, buffer: &mut Buffer) {
    // Puts a blank line between two panels if there are enough lines.
    let wanted: u16 = panels.iter().map(|p| p.table.height() + 1).sum();
    let blank = u16::from(wanted <= area.height + 1 || area.height >= 40);
    let mut heights = vec![0; panels.len()];
    let mut left = area.height;
    for (panel, height) in panels.iter().zip(&mut heights) {
        let least = panel.table.height().min(panel.least);
        if least + blank <= left {
            *height = least;
            left -= least + blank;
        } else if left >= 3 {
            *height = left;
            left = 0;
        }
    }
    for (panel, height) in panels.iter().zip(&mut heights) {
        if *height > 0 && panel.is_main {
            let more = (panel.table.height() - *height).min(left);
            *height += more;
            left -= more;
        }
    }
    while left > 0 {
        let before = left;
        for (panel, height) in panels.iter().zip(&mut heights) {
            if *height > 0 && *height < panel.table.height() && left > 0 {
                *height += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    let mut y = area.y;
    for (panel, height) in panels.iter().zip(heights) {
        let height = height.min(area.bottom().saturating_sub(y));
        if height > 0 {
            panel.table.draw(Rect { y, height, ..area }, buffer);
            y += height + blank;
        }
    }
}

/// Returns the line that explains the keys.
fn keys(look: &Look, most: u16) -> String {
    let other = if look.processes {
        "operations"
    } else {
        "processes"
    };
    let files = if look.files { "no files" } else { "files" };
    let pause = if look.paused { "go on" } else { "pause" };
    let parts = [
        "q quit".to_owned(),
        format!("s sort ({})", look.sort.word()),
        format!("p {other}"),
        format!("f {files}"),
        format!("space {pause}"),
        "? help".into(),
    ];
    fitting(&parts, most)
}

const HELP: [&str; 14] = [
    "q, Esc, Ctrl-C  end",
    "s               sort by rate, bytes, mean, time, name",
    "p               processes, or kinds of operations",
    "f               files and directories: on, off",
    "space           pause, go on",
    "?               this help; any key closes it",
    "",
    "OPS/S   operations of programs per second",
    "REQS/S  requests to other nodes per second",
    "LOCAL   share of operations that asked no other node",
    "TIME    time in operations, of one thread's time",
    "MEAN    of the operations of the interval",
    "HALF BELOW, 99% BELOW  upper ends of classes",
    "SLOW    operations above the bound of `trace slow`",
];

/// Draws a box that explains the keys, over the panels.
fn help(buffer: &mut Buffer) {
    let area = buffer.area;
    let wide = HELP.iter().map(|l| width(l)).max().unwrap_or(0) + 4;
    let (wide, high) = (
        wide.min(area.width),
        (HELP.len() as u16 + 2).min(area.height),
    );
    let (x, y) = ((area.width - wide) / 2, (area.height - high) / 2);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    for i in 0..high {
        let text = i
            .checked_sub(1)
            .and_then(|i| HELP.get(usize::from(i)))
            .unwrap_or(&"");
        let line = format!("  {text:<0$}", usize::from(wide.saturating_sub(2)));
        buffer.set_stringn(area.x + x, area.y + y + i, line, wide.into(), style);
    }
}

/// Returns the lines of a buffer as text, without trailing spaces.
pub fn lines(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    let line = |y| {
        let mut line = String::new();
        let mut skip = 0;
        for x in area.left()..area.right() {
            let symbol = buffer[(x, y)].symbol();
            // A wide character also occupies the next cell, which has no text of its own.
            if skip == 0 {
                line += symbol;
                skip = width(symbol).saturating_sub(1);
            } else {
                skip -= 1;
            }
        }
        line.trim_end().to_owned()
    };
    (area.top()..area.bottom()).map(line).collect()
}

//! Comparing two runs: the differences as numbers, as a text and as a page.

use crate::html::{Page, title};
use crate::run::*;
use crate::text::{self, html};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Maximum number of files that are compared one by one.
const MAX_FILES_COMPARED: usize = 50;

/// The unit of a compared number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Time,
    /// A number of things.
    Count,
    /// A part of a whole, 0 to 1.
    Share,
    /// A ratio, such as 1.5.
    Factor,
}

impl Unit {
    /// Formats a number with its unit.
    pub fn show(self, n: f64) -> String {
        match self {
            Unit::Bytes => text::bytes(n),
            Unit::Time => text::time(n),
            Unit::Count => text::count(n as u64),
            Unit::Share => text::percent(n),
            Unit::Factor => format!("{n:.2}"),
        }
    }
}

/// One number of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Name of the number.
    pub name: String,
    /// The unit of both values.
    pub unit: Unit,
    /// Value in the first run. None: not known.
    pub before: Option<f64>,
    /// Value in the second run. None: not known.
    pub after: Option<f64>,
}

impl Difference {
    /// Returns the second value as a multiple of the first.
    pub fn factor(&self) -> Option<f64> {
        match (self.before, self.after) {
            (Some(before), Some(after)) if before > 0.0 => Some(after / before),
            _ => None,
        }
    }

    fn change(&self) -> String {
        match (self.before, self.after, self.factor()) {
            (Some(a), Some(b), _) if a == b => "same".into(),
            (_, _, Some(factor)) if factor >= 10.0 => format!("{factor:.1}×"),
            (_, _, Some(factor)) => {
                format!("{:+.1} %", (factor - 1.0) * 100.0)
            }
            _ => "–".into(),
        }
    }

    fn shown(&self) -> [String; 2] {
        [self.before, self.after].map(|n| n.map_or("–".into(), |n| self.unit.show(n)))
    }
}

/// The numbers of two runs, side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Numbers of the whole runs.
    pub whole: Vec<Difference>,
    /// Number, bytes and time of each kind of operation.
    pub operations: Vec<Difference>,
    /// Time spent in each file that one of the runs lists. The largest change comes first.
    pub files: Vec<Difference>,
}

/// Compares two runs.
pub fn compare(before: &Run, after: &Run) -> Comparison {
    let both = |name: &str, unit: Unit, of: &dyn Fn(&Run) -> Option<f64>| Difference {
        name: name.into(),
        unit,
        before: of(before),
        after: of(after),
    };
    let bytes =
        |kinds: &'static [&'static str]| move |r: &Run| Some(sum_of(&r.totals, kinds).bytes as f64);
    let shares =
        |access: fn(&Run) -> &Access| move |r: &Run| access(r).shares().map(|s| s[0] + s[1]);
    let busy = |r: &Run| {
        r.between_processes(|t| bytes_of(t) as f64)
            .map(|i| i.factor())
    };
    let of_nodes = |r: &Run| r.between_nodes(|t| bytes_of(t) as f64).map(|i| i.factor());
    let lost = |r: &Run| Some(r.lost.iter().map(|l| l.count).sum::<u64>() as f64);
    let whole = vec![
        both("Length", Unit::Time, &|r| Some(r.length as f64)),
        both("Read", Unit::Bytes, &bytes(&["read", "get"])),
        both("Written", Unit::Bytes, &bytes(&["write", "put"])),
        both("Operations", Unit::Count, &|r| {
            Some(r.totals.all().count as f64)
        }),
        both("Failed operations", Unit::Count, &|r| {
            Some(r.totals.all().errors as f64)
        }),
        both("Time in I/O", Unit::Time, &|r| Some(r.totals.time())),
        both("Names and attributes, of operations", Unit::Share, &|r| {
            r.metadata_shares().0
        }),
        both("Names and attributes, of time", Unit::Share, &|r| {
            r.metadata_shares().1
        }),
        both("Remote, of operations", Unit::Share, &Run::remote_share),
        both("Requests to other nodes", Unit::Count, &|r| {
            Some(r.totals.requests.timed as f64)
        }),
        both("Time of a request (mean)", Unit::Time, &|r| {
            r.totals.requests.mean()
        }),
        both("Waits for locks", Unit::Time, &|r| {
            Some(r.totals.waits.nanoseconds as f64)
        }),
        both("Mean read", Unit::Bytes, &|r| r.reads.mean()),
        both("Mean write", Unit::Bytes, &|r| r.writes.mean()),
        both("Reads in order", Unit::Share, &shares(|r| &r.reads)),
        both("Writes in order", Unit::Share, &shares(|r| &r.writes)),
        both("Imbalance between nodes", Unit::Factor, &of_nodes),
        both("Imbalance between processes", Unit::Factor, &busy),
        both("Files", Unit::Count, &|r| Some(r.file_count() as f64)),
        both("Lost events", Unit::Count, &lost),
    ];
    let kinds: BTreeSet<&String> = (before.totals.operations.keys())
        .chain(after.totals.operations.keys())
        .collect();
    let mut operations = Vec::new();
    for kind in kinds {
        let of = |r: &Run| r.totals.operations.get(kind).cloned().unwrap_or_default();
        operations.push(both(kind, Unit::Count, &|r| Some(of(r).count as f64)));
        if of(before).bytes + of(after).bytes > 0 {
            let name = format!("{kind}, bytes");
            operations.push(both(&name, Unit::Bytes, &|r| Some(of(r).bytes as f64)));
        }
        let name = format!("{kind}, time");
        operations.push(both(&name, Unit::Time, &|r| Some(of(r).time())));
    }
    Comparison {
        whole,
        operations,
        files: compare_files(before, after),
    }
}

/// Compares the times spent in each file. The largest changes come first.
fn compare_files(before: &Run, after: &Run) -> Vec<Difference> {
    let times = |run: &Run| -> BTreeMap<String, f64> {
        let files = run.files.iter();
        files.map(|f| (f.path.clone(), f.time() as f64)).collect()
    };
    let (a, b) = (times(before), times(after));
    let paths: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let mut files: Vec<Difference> = paths
        .into_iter()
        .map(|path| Difference {
            name: path.clone(),
            unit: Unit::Time,
            before: a.get(path).copied(),
            after: b.get(path).copied(),
        })
        .collect();
    let change = |d: &Difference| (d.after.unwrap_or(0.0) - d.before.unwrap_or(0.0)).abs();
    files.sort_by(|a, b| change(b).total_cmp(&change(a)));
    files.truncate(MAX_FILES_COMPARED);
    files
}

/// Returns a comparison as a table for a terminal.
pub fn text(before: &Run, after: &Run) -> String {
    let comparison = compare(before, after);
    let mut out = String::new();
    for (name, rows) in [
        ("", &comparison.whole),
        ("operations", &comparison.operations),
        ("time in files", &comparison.files),
    ] {
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(
            out,
            "{name:<40} {:>14} {:>14} {:>10}",
            "before", "after", "change"
        );
        for row in rows {
            let [before, after] = row.shown();
            let name = text::shown(&row.name);
            let _ = writeln!(
                out,
                "{name:<40} {before:>14} {after:>14} {:>10}",
                row.change()
            );
        }
        out.push('\n');
    }
    out
}

/// Returns a comparison as an HTML page.
pub fn page(before: &Run, after: &Run) -> String {
    let comparison = compare(before, after);
    let (a, b) = (title(before), title(after));
    let mut page = Page::new(&format!("{a} and {b} – I/O compared"));
    page.add(&format!(
        "<header><h1>Two runs compared</h1><p>Before: <code>{}</code> ({})</p><p>After: \
            <code>{}</code> ({})</p></header>",
        html(&a),
        text::moment(before.begin),
        html(&b),
        text::moment(after.begin)
    ));
    for run in [before, after].iter().filter(|r| !r.incomplete.is_empty()) {
        page.add(&format!(
            "<section class=\"warn\"><h2>Not complete: {}</h2><ul>",
            html(&title(run))
        ));
        for what in &run.incomplete {
            page.add(&format!("<li>{}</li>", html(what)));
        }
        page.add("</ul></section>");
    }
    for (id, name, rows) in [
        ("whole", "The runs", &comparison.whole),
        ("operations", "Operations", &comparison.operations),
        ("files", "Time in files", &comparison.files),
    ] {
        if rows.is_empty() {
            continue;
        }
        page.add(&format!(
            "<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{name}</h2>"
        ));
        page.differences(name, rows);
        page.add("</section>");
    }
    page.finish(None)
}

impl Page {
    fn differences(&mut self, caption: &str, rows: &[Difference]) {
        let mut table = format!(
            "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\"><table \
                class=\"sort\"><caption><span>{caption}</span></caption><thead><tr><th \
                scope=\"col\">What</th><th scope=\"col\" class=\"n\">Before</th><th scope=\"col\" \
                class=\"n\">After</th><th scope=\"col\" \
                class=\"n\">Change</th></tr></thead><tbody>"
        );
        for row in rows {
            let [before, after] = row.shown();
            let factor = row.factor().unwrap_or(1.0);
            let class = match factor {
                f if f > 1.0 => "up",
                f if f < 1.0 => "down",
                _ => "",
            };
            let _ = write!(
                table,
                "<tr><td>{}</td><td class=\"n\" data-v=\"{}\">{}</td><td class=\"n\" \
                    data-v=\"{}\">{}</td><td class=\"n {class}\" data-v=\"{factor}\">{}</td></tr>",
                html(&row.name),
                row.before.unwrap_or(-1.0),
                html(&before),
                row.after.unwrap_or(-1.0),
                html(&after),
                html(&row.change())
            );
        }
        table += "</tbody></table></div>";
        self.add(&table);
    }
}

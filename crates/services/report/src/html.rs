//! A run and its advice as one self-contained HTML page: it needs no network, and its only script
//! sorts tables and copies blocks.
//!
//! All texts are escaped, and the page's policy allows only its own script, by hash. The page
//! contains the run as JSON (`<script type="application/json" id="run">`), which [`run_of`] reads.

mod page;

use crate::advise::{Advice, Proposal};
use crate::chart;
use crate::run::*;
use crate::text::{self, html};
use crate::totals::{Counted, Durations, Totals};
use page::{Cell, RUN_ELEMENT, block, maybe, number, path, size, time, words};
use std::fmt::Write;

pub(crate) use page::Page;

/// Maximum number of shown characters of a title. A longer title loses its middle.
const MAX_TITLE_CHARS: usize = 100;
/// Maximum number of processes for which a strip is shown.
const MAX_STRIPS: usize = 16;

/// Returns the title of a run's page.
pub fn title(run: &Run) -> String {
    let facts = &run.facts;
    let title = facts.title.clone().or_else(|| facts.command.clone());
    title.unwrap_or_else(|| "A run".into())
}

/// Returns the page of a run.
pub fn page(run: &Run, advice: &Advice) -> String {
    let mut page = Page::new(&format!("{} – I/O report", title(run)));
    head(&mut page, run);
    if run.totals.operations.is_empty() && run.files.is_empty() {
        page.add(
            "<p>No operation was counted: no program used a path of the pool. Programs see it under \
                its prefix, <code>/fb</code> unless <code>--mount</code> says otherwise.</p>",
        );
        media(&mut page, run);
        origin(&mut page, run);
        return page.finish(Some(&run.to_json()));
    }
    summary(&mut page, run);
    over_time(&mut page, run);
    advice_section(&mut page, advice);
    operations(&mut page, run);
    sizes(&mut page, run);
    order(&mut page, run);
    files(&mut page, run);
    users(&mut page, run);
    waits(&mut page, run);
    media(&mut page, run);
    origin(&mut page, run);
    page.add(&format!(
        "<footer><p>Totals are exact counts. Patterns, sizes, series and files are from events{}. \
            Times of operations are estimated from those that were timed. This page holds its data \
            as JSON, in the element with the id <code>run</code>.</p></footer>",
        match run.source {
            Source::Forebay => "",
            Source::Darshan => " that a log of Darshan sums up",
        }
    ));
    page.finish(Some(&run.to_json()))
}

/// Reads the run from a page, or from its JSON.
///
/// # Errors
/// A sentence with the reason why `text` isn't a page with a run.
pub fn run_of(text: &str) -> Result<Run, String> {
    if text.trim_start().starts_with('{') {
        return Run::from_json(text);
    }
    let Some((_, rest)) = text.split_once(RUN_ELEMENT) else {
        return Err("this is no report: it has no element with the run's data".into());
    };
    let Some((json, _)) = rest.split_once("</script>") else {
        return Err("the report is cut off: its data have no end".into());
    };
    Run::from_json(json)
}

fn head(page: &mut Page, run: &Run) {
    let facts = &run.facts;
    let title = text::shortened(&title(run), MAX_TITLE_CHARS);
    page.add(&format!("<header>\n<h1>{}</h1>", html(&title)));
    if let Some(command) = facts.command.as_ref().filter(|c| **c != title) {
        page.add(&format!("<p><code>{}</code></p>", html(command)));
    }
    let mut line = Vec::new();
    if run.begin > 0 {
        line.push(text::moment(run.begin));
    }
    line.push(text::time(run.length as f64));
    if !run.nodes.is_empty() {
        line.push(several(run.nodes.len() as u64, "node"));
    }
    let processes = &run.processes;
    let others = &run.other_processes;
    let all = processes.iter().chain(others).map(|p| p.stands_for);
    let all = match run.source {
        Source::Forebay => all.sum(),
        Source::Darshan => all.max().unwrap_or(0),
    };
    line.push(text::several(all, "process", "processes"));
    line.push(several(run.file_count(), "file"));
    if run.source == Source::Darshan {
        line.push("from a log of Darshan".into());
    }
    page.add(&format!("<p>{}</p>\n</header>", html(&line.join(" · "))));
    if !run.incomplete.is_empty() || !run.lost.is_empty() {
        page.add(
            "<section class=\"warn\" aria-labelledby=\"incomplete\"><h2 id=\"incomplete\">Not \
            complete</h2><ul>",
        );
        for what in &run.incomplete {
            page.add(&format!("<li>{}</li>", html(what)));
        }
        page.add("</ul>");
        if !run.lost.is_empty() {
            let rows = run.lost.iter().take(MAX_LISTED_PROCESSES).map(|lost| {
                vec![
                    number(lost.node.into()),
                    number(lost.process.into()),
                    words(&lost.program),
                    number(lost.count),
                ]
            });
            let columns = ["#Node", "#Process", "Program", "#Lost events"];
            page.table("Lost events", true, &columns, rows.collect());
        }
        page.add("</section>");
    }
}

fn several(n: u64, what: &str) -> String {
    text::several(n, what, &format!("{what}s"))
}

fn summary(page: &mut Page, run: &Run) {
    let totals = &run.totals;
    let (count, spent) = run.metadata_shares();
    let share = |s: Option<f64>| s.map_or("not known".into(), text::percent);
    let factor = |i: Option<Imbalance>| match i {
        Some(i) => format!("{:.2} ({})", i.factor(), i.word()),
        None => "–".into(),
    };
    // Explains the factor's range: from even shares to one node or process having everything.
    let scale = |i: Option<Imbalance>| {
        i.map_or(String::new(), |i| {
            format!("; 1 is even, {} is all by one", i.count)
        })
    };
    let bytes = |t: &Totals| bytes_of(t) as f64;
    let seconds = run.length as f64 / 1e9;
    let rate = |n: u64| format!("{}/s", text::bytes(n as f64 / seconds.max(1e-9)));
    let (read, written) = (
        sum_of(totals, &["read", "get"]).bytes,
        sum_of(totals, &["write", "put"]).bytes,
    );
    page.add(
        "<section aria-labelledby=\"summary\"><h2 id=\"summary\">Summary</h2><dl class=\"cards\">",
    );
    let mut card = |name: &str, value: String, more: String| {
        page.add(&format!(
            "<div><dt>{}</dt><dd>{}</dd><dd class=\"more\">{}</dd></div>",
            html(name),
            html(&value),
            html(&more)
        ));
    };
    card("Read", text::bytes(read as f64), rate(read));
    card("Written", text::bytes(written as f64), rate(written));
    let all = totals.all();
    card(
        "Operations",
        text::count(all.count),
        format!("{} failed", text::count(all.errors)),
    );
    card(
        "Time in I/O",
        text::time(totals.time()),
        format!(
            "summed over processes, estimated: {}",
            text::share_of_run(totals.time(), run.length as f64)
        ),
    );
    card(
        "Names and attributes",
        share(count),
        format!("of operations; {} of their time", share(spent)),
    );
    let several_nodes = run.nodes.len() > 1;
    if run.source == Source::Forebay && several_nodes {
        card(
            "Remote",
            share(run.remote_share()),
            format!(
                "of operations asked other nodes; {} local",
                share(run.remote_share().map(|s| 1.0 - s))
            ),
        );
    }
    let of_processes = run.between_processes(bytes);
    let of_nodes = if several_nodes {
        format!("; nodes: {}", factor(run.between_nodes(bytes)))
    } else {
        String::new()
    };
    card(
        "Imbalance",
        factor(of_processes),
        format!(
            "busiest process to the mean, in bytes{}{of_nodes}",
            scale(of_processes)
        ),
    );
    page.add("</dl></section>");
}

fn over_time(page: &mut Page, run: &Run) {
    let mut all = Series::empty();
    let parts = run.processes.iter().chain(&run.other_processes);
    parts.for_each(|p| all.add(&p.series));
    page.add("<section aria-labelledby=\"time\"><h2 id=\"time\">Over time</h2>");
    let bin = run.length as f64 / all.read.len().max(1) as f64 / 1e9;
    let per_second = |n: u64| n as f64 / bin.max(1e-9);
    for (name, class, bins, unit) in [
        ("Bytes read", "read", &all.read, "B"),
        ("Bytes written", "written", &all.written, "B"),
        ("Reads, writes and opens", "ops", &all.operations, ""),
    ] {
        let most = bins.iter().copied().max().unwrap_or(0);
        let top = match unit {
            "B" => format!("{}/s", text::bytes(per_second(most))),
            _ => format!("{}/s", text::count(per_second(most).ceil() as u64)),
        };
        let label = format!(
            "{name} over time: at most {top}, {} in all",
            match unit {
                "B" => text::bytes(bins.iter().sum::<u64>() as f64),
                _ => text::count(bins.iter().sum()),
            }
        );
        page.add(&format!(
            "<figure><figcaption>{} <span class=\"more\">at most \
                {}</span></figcaption>{}{}</figure>",
            html(name),
            html(&top),
            chart::area(bins, most, class, &html(&label)),
            axis(run.length)
        ));
    }
    let strips = |of: &[(String, &Series)], caption: &str, page: &mut Page| {
        let bytes = |s: &Series| -> Vec<u64> {
            s.read.iter().zip(&s.written).map(|(r, w)| r + w).collect()
        };
        let most = of.iter().flat_map(|(_, s)| bytes(s)).max().unwrap_or(0);
        page.add(&format!(
            "<figure><figcaption>{} <span class=\"more\">bytes read and written; the stronger the \
                colour, the more</span></figcaption><div class=\"strips\">",
            html(caption)
        ));
        for (name, series) in of {
            let bins = bytes(series);
            let sum = text::bytes(bins.iter().sum::<u64>() as f64);
            let label = html(&format!("{name}: {sum} in all"));
            page.add(&format!(
                "<span>{}</span>{}",
                html(name),
                chart::strip(&bins, most, "both", &label)
            ));
        }
        page.add(&format!("<span></span>{}</div></figure>", axis(run.length)));
    };
    if run.nodes.len() > 1 {
        let nodes: Vec<(String, &Series)> = (run.nodes.iter().take(MAX_STRIPS))
            .map(|n| (node_name(run, n.node), &n.series))
            .collect();
        strips(&nodes, "Nodes", page);
    }
    // A process that only opens files and looks up names would have an empty strip.
    let moves = |p: &&ProcessPart| {
        [&p.series.read, &p.series.written]
            .iter()
            .any(|b| b.iter().any(|&n| n > 0))
    };
    let processes: Vec<(String, &Series)> = (run.processes.iter().filter(moves).take(MAX_STRIPS))
        .map(|p| (process_name(run, p), &p.series))
        .collect();
    if processes.len() > 1 {
        strips(&processes, "Busiest processes", page);
    }
    let tenths = all.read.len().max(1).div_ceil(10);
    let rows = (0..all.read.len()).step_by(tenths).map(|i| {
        let end = (i + tenths).min(all.read.len());
        let sum = |bins: &[u64]| bins[i..end].iter().sum::<u64>();
        vec![
            time(i as f64 * bin * 1e9),
            size(sum(&all.read)),
            size(sum(&all.written)),
            number(sum(&all.operations)),
        ]
    });
    page.add("<details><summary>As a table</summary>");
    let columns = ["#From", "#Read", "#Written", "#Reads, writes and opens"];
    page.table("In tenths of the run", false, &columns, rows.collect());
    page.add("</details></section>");
}

fn axis(length: u64) -> String {
    let all = length as f64;
    format!(
        "<div class=\"axis\" \
            aria-hidden=\"true\"><span>0</span><span>{}</span><span>{}</span></div>",
        html(&text::part_of_time(all / 2.0, all)),
        html(&text::time(all))
    )
}

fn node_name(run: &Run, node: u32) -> String {
    let facts = run.facts.nodes.iter().find(|n| n.node == node);
    match facts.and_then(|n| n.name.clone()) {
        Some(name) => format!("{node} ({name})"),
        None => format!("node {node}"),
    }
}

fn process_name(run: &Run, part: &ProcessPart) -> String {
    match (run.source, part.process) {
        (Source::Darshan, _) => part.program.clone(),
        (_, 0) => format!("{}: ended ones", part.node),
        (_, process) => format!("{}:{process} {}", part.node, part.program),
    }
}

fn durations(d: &Durations) -> [Cell; 3] {
    let quantile = |share: f64| d.quantile(share).map(|n| n as f64);
    [
        maybe(d.mean(), text::time),
        maybe(quantile(0.5), text::time),
        maybe(quantile(0.99), text::time),
    ]
}

fn operations(page: &mut Page, run: &Run) {
    page.add("<section aria-labelledby=\"operations\"><h2 id=\"operations\">Operations</h2>");
    let all = run.totals.time();
    let mut kinds: Vec<(&String, &Counted)> = run.totals.operations.iter().collect();
    kinds.sort_by(|a, b| b.1.time().total_cmp(&a.1.time()));
    let rows = kinds.into_iter().map(|(kind, counted)| {
        let share = if all > 0.0 { counted.time() / all } else { 0.0 };
        let [mean, half, slow] = durations(&counted.durations);
        vec![
            words(kind),
            number(counted.count),
            size(counted.bytes),
            number(counted.errors),
            number(counted.remote),
            mean,
            half,
            slow,
            time(counted.time()),
            Cell {
                sort: Some(share),
                html: format!(
                    "{}{}",
                    html(&text::percent(share)),
                    chart::bar(share, "ops")
                ),
            },
        ]
    });
    let columns = [
        "Kind",
        "#Operations",
        "#Bytes",
        "#Failed",
        "#Remote",
        "#Mean",
        "#Half below",
        "#99 % below",
        "#Time",
        "Share of time",
    ];
    page.table(
        "All operations, from exact counters; times are estimated",
        true,
        &columns,
        rows.collect(),
    );
    if !run.layers.is_empty() {
        let rows = run.layers.iter().map(|layer| {
            vec![
                words(&layer.name),
                number(layer.operations),
                size(layer.read),
                size(layer.written),
                time(layer.nanoseconds as f64),
            ]
        });
        let columns = ["Layer", "#Operations", "#Read", "#Written", "#Time"];
        page.table(
            "Layers above, which reach files by the operations in the first table",
            false,
            &columns,
            rows.collect(),
        );
    }
    page.add("</section>");
}

fn sizes(page: &mut Page, run: &Run) {
    page.add("<section aria-labelledby=\"sizes\"><h2 id=\"sizes\">Sizes of reads and writes</h2>");
    let mut classes: Vec<u64> = run.reads.sizes.keys().copied().collect();
    classes.extend(run.writes.sizes.keys());
    classes.sort_unstable();
    classes.dedup();
    let most = (run.reads.sizes.values()).chain(run.writes.sizes.values());
    let most = most.copied().max().unwrap_or(0).max(1);
    let rows = classes.iter().map(|class| {
        let cell = |access: &Access, colour: &str| {
            let n = access.sizes.get(class).copied().unwrap_or(0);
            Cell {
                sort: Some(n as f64),
                html: format!(
                    "{}{}",
                    text::count(n),
                    chart::bar(n as f64 / most as f64, colour)
                ),
            }
        };
        let name = match (class, run.source) {
            (0, Source::Forebay) => "nothing".to_owned(),
            (n, _) => format!("from {}", text::bytes(*n as f64)),
        };
        vec![
            words(&name),
            cell(&run.reads, "read"),
            cell(&run.writes, "written"),
        ]
    });
    let caption = match run.source {
        Source::Forebay => "Bytes moved by one operation: each class reaches to twice its size",
        Source::Darshan => "Bytes moved by one operation, in Darshan's classes",
    };
    page.table(caption, false, &["Size", "Reads", "Writes"], rows.collect());
    page.add("</section>");
}

fn order(page: &mut Page, run: &Run) {
    page.add("<section aria-labelledby=\"order\"><h2 id=\"order\">Order of reads and writes</h2>");
    let rows = [("Reads", &run.reads), ("Writes", &run.writes)].map(|(name, access)| {
        let shares = access.shares();
        let part = |i: usize| maybe(shares.map(|s| s[i]), text::percent);
        let bar = shares.map(|s| {
            let label = format!(
                "{name}: {} consecutive, {} sequential, {} random",
                text::percent(s[0]),
                text::percent(s[1]),
                text::percent(s[2])
            );
            let parts = [(s[0], "a"), (s[1], "b"), (s[2], "c")];
            chart::shares(&parts, &html(&label))
        });
        vec![
            words(name),
            number(access.count),
            part(0),
            part(1),
            part(2),
            Cell {
                sort: None,
                html: bar.unwrap_or_else(|| "–".into()),
            },
        ]
    });
    page.table(
        "Consecutive: from the end of the process's last one in the file on. Sequential: from \
            behind it. Random: from before it. A process's first one in a file has no order.",
        false,
        &[
            "",
            "#Operations",
            "#Consecutive",
            "#Sequential",
            "#Random",
            "Shares",
        ],
        rows.into(),
    );
    page.add(
        "<p class=\"key\"><span class=\"a\"></span>consecutive <span \
        class=\"b\"></span>sequential <span class=\"c\"></span>random</p></section>",
    );
}

fn files(page: &mut Page, run: &Run) {
    page.add("<section aria-labelledby=\"files\"><h2 id=\"files\">Files</h2>");
    users_of_files(page, run);
    let columns = [
        "Path",
        "#Time",
        "#Reads",
        "#Read",
        "#Mean read",
        "#Writes",
        "#Written",
        "#Mean write",
        "#In order",
        "#Opens",
        "Processes",
        "Nodes",
    ];
    let shown = run.files.len() as u64;
    let caption = match run.other_files.files {
        0 => format!("All {}", several(shown, "file")),
        _ => format!("The {} with most time in them", several(shown, "file")),
    };
    let columns = match run.nodes.len() {
        0 | 1 => &columns[..columns.len() - 1],
        _ => &columns[..],
    };
    page.table(
        &caption,
        true,
        columns,
        run.files.iter().map(row_of_file).collect(),
    );
    other_files(page, &run.other_files);
    lock_waits(page, run);
    page.add("</section>");
}

fn users_of_files(page: &mut Page, run: &Run) {
    let sharing = &run.sharing;
    let rows = [
        ("one process", &sharing.process),
        ("several processes of one node", &sharing.node),
        ("several nodes", &sharing.nodes),
    ];
    let rows = rows.map(|(name, used)| vec![words(name), number(used.files), size(used.bytes)]);
    let mut rows = Vec::from(rows);
    if run.source == Source::Darshan {
        rows.remove(2);
        rows[1][0] = words("several processes");
    }
    page.table(
        "Files by their users",
        false,
        &["Used by", "#Files", "#Bytes"],
        rows,
    );
}

/// Returns a text with the users in `all`, and with how many of the `count` users `all` lacks.
fn list(all: &[String], count: u64) -> String {
    let more = count.saturating_sub(all.len() as u64);
    let mut text = all.join(", ");
    if more > 0 {
        let _ = write!(text, " and {}", text::count(more));
    }
    text
}

fn row_of_file(file: &File) -> Vec<Cell> {
    let mut all = file.reads.clone();
    all.add(&file.writes);
    let in_order = all.shares().map(|s| s[0] + s[1]);
    let mut name = path(&file.path);
    if !file.also.is_empty() {
        let also: Vec<String> = file.also.iter().map(|p| path(p)).collect();
        let _ = write!(
            name,
            " <span class=\"more\">also {}</span>",
            also.join(", ")
        );
    }
    let nodes: Vec<String> = file.nodes.iter().map(u32::to_string).collect();
    let sizes = |access: &Access| maybe(access.mean(), text::bytes);
    vec![
        Cell {
            sort: None,
            html: name,
        },
        time(file.time() as f64),
        number(file.reads.count),
        size(file.reads.bytes),
        sizes(&file.reads),
        number(file.writes.count),
        size(file.writes.bytes),
        sizes(&file.writes),
        maybe(in_order, text::percent),
        number(file.opens),
        Cell {
            sort: Some(file.process_count as f64),
            html: html(&list(&file.processes, file.process_count)),
        },
        Cell {
            sort: Some(file.node_count as f64),
            html: html(&list(&nodes, file.node_count)),
        },
    ]
}

fn other_files(page: &mut Page, rest: &Rest) {
    if rest.files > 0 {
        page.add(&format!(
            "<p>{} more: {} read by {} reads, {} written by {} writes, {} opens, {} in all.</p>",
            several(rest.files, "file"),
            text::bytes(rest.reads.bytes as f64),
            text::count(rest.reads.count),
            text::bytes(rest.writes.bytes as f64),
            text::count(rest.writes.count),
            text::count(rest.opens),
            html(&text::time(
                (rest.reads.nanoseconds + rest.writes.nanoseconds) as f64
            ))
        ));
    }
}

fn lock_waits(page: &mut Page, run: &Run) {
    let locked = run.files.iter().filter(|f| f.lock_waits > 0);
    let rows: Vec<Vec<Cell>> = locked
        .map(|file| {
            vec![
                Cell {
                    sort: None,
                    html: path(&file.path),
                },
                number(file.lock_waits),
                time(file.lock_nanoseconds as f64),
            ]
        })
        .collect();
    if !rows.is_empty() {
        page.table(
            "Waits for locks that programs take on files",
            true,
            &["Path", "#Waits", "#Time"],
            rows,
        );
    }
}

fn row_of(name: &str, totals: &Totals) -> Vec<Cell> {
    let part = |kinds: &[&str]| sum_of(totals, kinds);
    let remote = totals.all();
    let share = (remote.count > 0).then(|| remote.remote as f64 / remote.count as f64);
    vec![
        words(name),
        size(part(&["read", "get"]).bytes),
        size(part(&["write", "put"]).bytes),
        number(remote.count),
        number(part(&METADATA).count),
        maybe(share, text::percent),
        time(totals.time()),
        time(totals.waits.nanoseconds as f64),
        time(totals.requests.nanoseconds as f64),
    ]
}

fn users(page: &mut Page, run: &Run) {
    page.add("<section aria-labelledby=\"users\"><h2 id=\"users\">Nodes and processes</h2>");
    let numbers: [fn(&Totals) -> f64; 3] = [
        |t| bytes_of(t) as f64,
        |t| t.all().count as f64,
        Totals::time,
    ];
    let mut rows = Vec::new();
    for (name, of) in [
        ("nodes", numbers.map(|number| run.between_nodes(number))),
        (
            "processes",
            numbers.map(|number| run.between_processes(number)),
        ),
    ] {
        let mut row = vec![words(name)];
        row.extend(of.map(|i| {
            let count = i.map_or(0, |i| i.count);
            maybe(i.map(|i| i.factor()), |f| format!("{f:.2} of {count}"))
        }));
        rows.push(row);
    }
    page.table(
        "Imbalance: the largest share as a multiple of the mean; 1 is even, as many as there are is all by one",
        false,
        &["Between", "#Bytes", "#Operations", "#Time"],
        rows,
    );
    let columns = [
        "",
        "#Read",
        "#Written",
        "#Operations",
        "#Of names",
        "#Remote",
        "#Time",
        "#Lock waits",
        "#Requests",
    ];
    if !run.nodes.is_empty() {
        let rows = run.nodes.iter();
        let rows = rows.map(|n| row_of(&node_name(run, n.node), &n.totals));
        page.table("Nodes, from exact counters", true, &columns, rows.collect());
    }
    let rows = run.processes.iter();
    let mut rows: Vec<_> = rows
        .map(|p| row_of(&process_name(run, p), &p.totals))
        .collect();
    if let Some(rest) = &run.other_processes {
        let name = format!(
            "{} more",
            text::several(rest.stands_for, "process", "processes")
        );
        rows.push(row_of(&name, &rest.totals));
    }
    page.table("Processes, from exact counters", true, &columns, rows);
    page.add("</section>");
}

fn waits(page: &mut Page, run: &Run) {
    if run.source == Source::Darshan {
        return;
    }
    page.add("<section aria-labelledby=\"waits\"><h2 id=\"waits\">Waits</h2>");
    let totals = &run.totals;
    let rows = [
        ("requests to other nodes", &totals.requests),
        ("locks inside the pool", &totals.waits),
    ];
    let rows = rows.map(|(name, d)| {
        let [mean, half, slow] = durations(d);
        let all = time(d.nanoseconds as f64);
        vec![words(name), number(d.timed), all, mean, half, slow]
    });
    page.table(
        "Waits, summed over processes",
        false,
        &[
            "For",
            "#Waits",
            "#Time",
            "#Mean",
            "#Half below",
            "#99 % below",
        ],
        rows.into(),
    );
    page.add(&format!(
        "<p>Sent to other nodes: {}. Received from them: {}.</p></section>",
        text::bytes(totals.sent as f64),
        text::bytes(totals.received as f64)
    ));
}

fn media(page: &mut Page, run: &Run) {
    if run.facts.media.is_empty() {
        return;
    }
    page.add("<section aria-labelledby=\"media\"><h2 id=\"media\">Media</h2>");
    let rows = run.facts.media.iter().map(|medium| {
        let share = match (medium.peak, medium.capacity) {
            (Some(peak), Some(all)) if all > 0 => Some(peak as f64 / all as f64),
            _ => None,
        };
        vec![
            words(&node_name(run, medium.node)),
            words(&medium.kind),
            maybe(medium.capacity.map(|n| n as f64), text::bytes),
            maybe(medium.peak.map(|n| n as f64), text::bytes),
            Cell {
                sort: Some(share.unwrap_or(-1.0)),
                html: share.map_or("–".into(), |s| {
                    format!("{}{}", html(&text::percent(s)), chart::bar(s, "ops"))
                }),
            },
        ]
    });
    let columns = ["Node", "Medium", "#Size", "#Most in use", "Share"];
    page.table("Media and their peak use", true, &columns, rows.collect());
    page.add("</section>");
}

fn origin(page: &mut Page, run: &Run) {
    let Some(origin) = &run.facts.origin else {
        return;
    };
    let used = |kinds: &[&str]| sum_of(&run.totals, kinds).bytes as f64;
    let row = |what: &str, used: f64, files: u64, bytes: u64| {
        let bytes = bytes as f64;
        vec![
            words(what),
            number(files),
            maybe(Some(bytes), text::bytes),
            maybe(Some(used), text::bytes),
            maybe(Some((used - bytes).max(0.0)), text::bytes),
        ]
    };
    let rows = vec![
        row(
            "read",
            used(&["read", "get"]),
            origin.fetched_files,
            origin.fetched_bytes,
        ),
        row(
            "written",
            used(&["write", "put"]),
            origin.written_files,
            origin.written_bytes,
        ),
    ];
    page.add(&format!(
        "<section aria-labelledby=\"origin\"><h2 id=\"origin\">Origin</h2>\
        <p><code>{}</code> is behind the pool. What programs did more than it had to do was the \
        pool's part alone.</p>",
        html(&origin.path)
    ));
    let columns = [
        "",
        "#Files there",
        "#Bytes there",
        "#Bytes of programs",
        "#Spared",
    ];
    page.table("Load of the origin", true, &columns, rows);
    page.add("</section>");
}

fn advice_section(page: &mut Page, advice: &Advice) {
    page.add("<section aria-labelledby=\"advice\"><h2 id=\"advice\">Advice</h2>");
    if advice.proposals.is_empty() {
        page.add("<p>Nothing is proposed for this run.</p>");
    } else {
        page.add(
            "<p>One run is a sample: another one may do what this one didn't. Try rules with \
            <code>on_violation = \"report\"</code> first, and look at <code>forebay \
            violations</code>. Times are estimates, summed over processes.</p>",
        );
        advice.proposals.iter().for_each(|p| page.add(&proposed(p)));
        page.add(&format!(
            "<details><summary>All rules as a file</summary>{}</details>",
            block(&advice.rules(true))
        ));
    }
    if !advice.fitting.is_empty() {
        page.add(&format!(
            "<details><summary>{} for safety, that would save this run nothing</summary>",
            several(advice.fitting.len() as u64, "control")
        ));
        advice.fitting.iter().for_each(|p| page.add(&proposed(p)));
        page.add("</details>");
    }
    if !advice.notes.is_empty() {
        page.add("<details open=\"open\"><summary>What isn't proposed</summary><ul>");
        for note in &advice.notes {
            page.add(&format!("<li>{}</li>", html(note)));
        }
        page.add("</ul></details>");
    }
    page.add("</section>");
}

/// Returns a proposal as HTML. Proposals that would save time are unfolded, others are folded.
fn proposed(proposal: &Proposal) -> String {
    let Proposal {
        path: pattern,
        control,
        value,
        files,
        why,
        saves,
        forbids,
        toml,
        command,
    } = proposal;
    let (open, gain) = match saves.seconds {
        Some(seconds) => (
            " open=\"open\"",
            format!(
                " <span class=\"tag\">saves up to {}</span>",
                html(&text::time(seconds * 1e9))
            ),
        ),
        None => ("", String::new()),
    };
    let mut out = format!(
        "<details class=\"proposal\"{open}><summary><strong><code>{} = {}</code> for {}</strong>{gain} <span \
            class=\"more\">{}</span></summary>\
            <dl><dt>Why</dt><dd>{}</dd><dt>Saves</dt><dd>{}</dd><dt>Forbids</dt><dd>{}</dd></dl>",
        html(control),
        html(value),
        path(pattern),
        several(*files, "file"),
        html(why),
        html(&saves.reasoning),
        html(forbids)
    );
    if let Some(toml) = toml {
        out += &block(toml);
    }
    if let Some(command) = command {
        if toml.is_some() {
            out += "<p>The files were there before the run, and rules decide when a file is made: \
                this one counts when they are made or staged again. For those that exist:</p>";
        }
        out += &block(command);
    }
    out + "</details>"
}

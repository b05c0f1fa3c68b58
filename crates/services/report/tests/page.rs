//! Tests of a run's page: the page is well-formed, has the exact totals, and no name of a file or
//! program breaks out of it. If a browser is installed, the test opens the page in it.

mod programs;

use forebay_report::advise::advise;
use forebay_report::compare;
use forebay_report::darshan;
use forebay_report::html::{page, run_of};
use forebay_report::run::{MAX_LISTED_FILES, MediumFacts, Run};
use programs::*;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Names that an attacker might choose.
const HOSTILE: [&[u8]; 12] = [
    b"</script><script>alert(1)</script>",
    b"\"><img src=x onerror=alert(1)>",
    b"' onmouseover='alert(1)",
    b"<!--<script>",
    b"]]>&lt;&amp;",
    b"line\nbreak\ttab\0nul\x1b[31m",
    b"\xff\xfe\x80 no text",
    "\u{202e}gpj.exe\u{2066}".as_bytes(),
    b"*[{?}]\\!,",
    b"${x} `y` $(z)",
    b"\"\"\"\n[[rule]]\npath = \"/**\"",
    b"a-name-that-is-longer-than-what-an-event-keeps-of-it-48-bytes",
];

/// Returns recordings of all kinds of programs.
fn programs() -> Programs {
    let mut p = Programs::on(4);
    let dump = p.open(0, "/out/dump.h5", made());
    p.close(0, dump);
    (0..8).for_each(|r| _ = p.open(r, "/out/dump.h5", made()));
    for i in 0..200 {
        for r in 0..8 {
            p.write(r, dump, (i * 8 + u64::from(7 - r)) * 47_008, 47_008);
        }
        p.counts(i as u32 % 8, "stat", 3);
    }
    (0..8).for_each(|r| p.close(r, dump));
    for r in 0..8 {
        for n in 0..40 {
            let path = format!("/ckpt/rank{r}/step-{n:03}.bin");
            let file = p.open(r, &path, made());
            p.write(r, file, 0, (1 + u64::from(r)) * MIB);
            p.close(r, file);
        }
        let log = p.open(r, &format!("/logs/rank-{r}.log"), made());
        (0..50).for_each(|i| p.write(r, log, i * 80, 80));
        p.close(r, log);
    }
    let table = p.open_bytes(0, "/in", b"table", made());
    p.write(0, table, 0, 64 * MIB);
    p.close(0, table);
    for r in 1..8 {
        p.open_bytes(r, "/in", b"table", rdonly());
        (0..30).for_each(|i| p.read(r, table, i * 7919 * 13 % (60 * MIB), 4096));
        p.close(r, table);
    }
    for (i, name) in HOSTILE.iter().enumerate() {
        let dir = if i % 2 == 0 { "/odd" } else { "/<b>odd</b>" };
        let file = p.open_bytes(0, dir, name, made());
        p.write(0, file, 0, 100);
        p.close(0, file);
    }
    p
}

fn run() -> Run {
    let programs = programs();
    let mut facts = programs.facts();
    facts.command = Some("./solver '</title><script>alert(2)</script>'".into());
    for node in 0..4 {
        for (kind, capacity, peak) in [
            ("memory", 1 << 30, 900 << 20),
            ("files:/ssd", 1 << 40, 7 << 30),
        ] {
            facts.media.push(MediumFacts {
                node,
                kind: kind.into(),
                capacity: Some(capacity),
                peak: Some(peak),
            });
        }
    }
    let mut processes = programs.processes();
    processes[2].program = "<i>x</i>\u{202e}".into();
    forebay_report::analyse::run(&programs.recording, &processes, facts)
}

/// Checks that a page's elements are closed in order, its attributes quoted, and its texts escaped.
/// Returns the number of elements by name.
fn elements(page: &str) -> std::collections::BTreeMap<String, usize> {
    let mut open: Vec<String> = Vec::new();
    let mut count = std::collections::BTreeMap::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a type");
    let text_is_escaped = |text: &str| {
        assert!(!text.contains('>'), "{text}");
        for after in text.split('&').skip(1) {
            let entity = after.split(';').next().unwrap();
            assert!(
                ["amp", "lt", "gt", "quot", "#39"].contains(&entity),
                "{entity}"
            );
        }
    };
    while let Some(at) = rest.find('<') {
        text_is_escaped(&rest[..at]);
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let name: String = tag
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric())
            .collect();
        assert!(!name.is_empty(), "<{tag}>");
        *count.entry(name.clone()).or_default() += 1;
        let mut attributes = tag[name.len()..].trim_end_matches('/').trim();
        while !attributes.is_empty() {
            let (key, value) = attributes.split_once("=\"").expect(tag);
            let is_name = |c: char| c.is_ascii_alphabetic() || c == '-';
            assert!(key.chars().all(is_name) && !key.starts_with("on"), "{key}");
            let (value, more) = value.split_once('"').expect(tag);
            assert!(!value.contains('<'));
            attributes = more.trim_start();
        }
        if tag.ends_with('/') {
            continue;
        }
        if name == "script" || name == "style" {
            let end = rest.find(&format!("</{name}")).expect("its end");
            rest = &rest[end..];
        }
        open.push(name);
    }
    assert!(open.is_empty(), "{open:?}");
    count
}

#[test]
fn the_page_is_well_formed_whatever_files_are_called() {
    let run = run();
    let advice = advise(&run);
    let page = page(&run, &advice);
    let count = elements(&page);
    assert_eq!(count["script"], 2, "the data and the sorting");
    assert!(!count.contains_key("img") && !count.contains_key("b") && !count.contains_key("i"));
    assert!(!page.contains('\u{202e}') && !page.contains('\0') && !page.contains('\x1b'));
    for control in ["http://", "https://", "url(", "@import", "src="] {
        let shown = page.replace("img src=x onerror", "");
        assert!(!shown.contains(control), "{control}");
    }
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
    let rules = forebay_controls::Rules::parse(&advice.rules(true), "/fb").unwrap();
    for rule in rules.all() {
        assert_ne!(rule.pattern.text(), "/**", "a name isn't a rule");
    }
}

#[test]
fn totals_are_those_of_the_counters_and_come_back() {
    let mut programs = programs();
    let run = programs.run();
    let (mut read, mut written, mut stats) = (0, 0, 0);
    for totals in programs.counted.values() {
        read += totals.bytes("read");
        written += totals.bytes("write");
        stats += totals.operations.get("stat").map_or(0, |c| c.count);
    }
    let of = |run: &Run, kind: &str| run.totals.operations[kind].clone();
    assert_eq!(
        (of(&run, "read").bytes, of(&run, "write").bytes),
        (read, written)
    );
    assert_eq!(of(&run, "stat").count, stats);
    assert_eq!(
        (run.reads.bytes, run.writes.bytes),
        (read, written),
        "events"
    );
    let series: u64 = run.nodes.iter().flat_map(|n| &n.series.written).sum();
    assert_eq!(series, written);
    let listed: u64 = run.files.iter().map(|f| f.writes.bytes).sum();
    assert_eq!(listed + run.other_files.writes.bytes, written);
    assert_eq!(run.files.len(), MAX_LISTED_FILES);
    assert!(run.other_files.files > 0);
    let html = page(&run, &advise(&run));
    let again = run_of(&html).unwrap();
    assert_eq!(again.totals, run.totals);
    assert_eq!(again.files, run.files);
    assert_eq!(again.processes, run.processes);
    assert!(html.contains(&forebay_report::text::bytes(written as f64)));
    assert_eq!(run_of(&run.to_json()).unwrap().files, run.files);
    // Without events, the totals stay the same, and the page lists what is missing.
    let written_events = programs.recording.events.len() / 2;
    programs.recording.events.truncate(written_events);
    programs.recording.lost.insert((1, 101), 4711);
    let short = programs.run();
    assert_eq!(short.totals, run.totals);
    assert!(short.writes.bytes < written);
    let html = page(&short, &advise(&short));
    assert!(html.contains("lost: 4711 events of 1 process,") && html.contains("Not complete"));
    let mut lossy = crate::programs();
    lossy.recording.lost.insert((1, 101), 1);
    let advice = advise(&lossy.run());
    let all = advice.proposals.iter().chain(&advice.fitting);
    assert!(all.clone().all(|p| p.control != "consistency"));
    let rules = all.filter_map(|p| p.toml.as_ref());
    assert!(rules.clone().count() > 0);
    for rule in rules {
        assert!(rule.contains("on_violation = \"report\""), "{rule}");
    }
}

#[test]
fn directories_are_no_files() {
    let mut programs = Programs::on(1);
    let file = programs.open(0, "/a/b/file", made());
    programs.write(0, file, 0, 100);
    programs.close(0, file);
    // A directory that is opened for listing, and one that contains a file: the flags of the second
    // open don't show that it is a directory.
    programs.open(0, "/empty", rdonly() | rustix::fs::OFlags::DIRECTORY);
    let recording = &mut programs.recording;
    let mut known = recording.directories.iter();
    let (&id, _) = known.find(|(_, path)| *path == "/a/b").unwrap();
    let opened = |e: &&forebay_report::stream::Event| {
        e.record.point == forebay_trace::Point::POSIX_OPENED as u16
    };
    let mut again = recording.events.iter().rfind(opened).unwrap().clone();
    (again.record.fields[0], again.record.fields[2]) = (id, 0);
    recording.events.push(again);
    let run = programs.run();
    let paths: Vec<&String> = run.files.iter().map(|f| &f.path).collect();
    assert_eq!(paths, ["/a/b/file"]);
}

#[test]
fn what_is_no_report_is_an_error() {
    let whole = page(&run(), &advise(&run()));
    for (text, says) in [
        ("", "no element"),
        ("{", "no report's data"),
        ("{}", "no version"),
        ("{\"version\": 99}", "version 99"),
        (&whole[..whole.len() / 2], ""),
        (
            "<script type=\"application/json\" id=\"run\">{\"version\": 1}",
            "cut off",
        ),
    ] {
        let error = run_of(text).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn two_runs_are_compared() {
    let a = run();
    let mut programs = programs();
    let more = programs.open(3, "/more", made());
    (0..100).for_each(|i| programs.write(3, more, i * MIB, MIB));
    let b = programs.run();
    let comparison = compare::compare(&a, &b);
    let written = comparison
        .whole
        .iter()
        .find(|d| d.name == "Written")
        .unwrap();
    assert_eq!(
        written.after.unwrap() - written.before.unwrap(),
        100.0 * MIB as f64
    );
    let new = comparison.files.iter().find(|d| d.name == "/more").unwrap();
    assert_eq!(new.before, None);
    let count = elements(&compare::page(&a, &b));
    assert_eq!(count["script"], 1);
    let text = compare::text(&a, &b);
    assert!(text.contains("Written") && !text.contains('\x1b') && !text.contains('\u{202e}'));
    let same = compare::compare(&a, &a);
    assert!(same.whole.iter().all(|d| d.before == d.after));
}

#[test]
fn empty_runs_have_pages_too() {
    for run in [Run::default(), Programs::on(1).run()] {
        let html = page(&run, &advise(&run));
        elements(&html);
        assert!(html.contains("No operation was counted"));
        elements(&compare::page(&run, &Run::default()));
    }
    let log = darshan::read(&include_bytes!("data/darshan.txt")[..]).unwrap();
    let html = page(&log, &advise(&log));
    elements(&html);
    assert!(html.contains("from a log of Darshan"));
}

/// The policy of the page names its script by hash.
#[test]
fn the_policy_allows_the_script() {
    let html = page(&Run::default(), &advise(&Run::default()));
    let script = html
        .rsplit_once("<script>")
        .unwrap()
        .1
        .split("</script>")
        .next()
        .unwrap();
    let Ok(mut sum) = Command::new("openssl")
        .args(["dgst", "-sha256", "-binary"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        println!("skipped: there is no openssl");
        return;
    };
    std::io::Write::write_all(&mut sum.stdin.take().unwrap(), script.as_bytes()).unwrap();
    let sum = sum.wait_with_output().unwrap().stdout;
    let letters: Vec<u8> = (b'A'..=b'Z')
        .chain(b'a'..=b'z')
        .chain(b'0'..=b'9')
        .chain(*b"+/")
        .collect();
    let mut base64 = String::new();
    for three in sum.chunks(3) {
        let n = three.iter().fold(0u32, |n, &b| n << 8 | u32::from(b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            base64.push(if i <= three.len() {
                letters[(n >> (18 - 6 * i) & 63) as usize] as char
            } else {
                '='
            });
        }
    }
    assert!(
        html.contains(&format!("'sha256-{base64}'")),
        "it is {base64}"
    );
}

#[test]
fn long_paths_lose_their_middle_and_keep_it_as_title() {
    let mut programs = Programs::on(1);
    let long = format!(
        "/in/{}/last.dat",
        "directory/".repeat(9).trim_end_matches('/')
    );
    let file = programs.open(0, &long, made());
    programs.write(0, file, 0, 100);
    programs.close(0, file);
    let html = page(&programs.run(), &advise(&programs.run()));
    elements(&html);
    assert!(html.contains(&format!("<code title=\"{long}\">/in/<wbr/>")));
    assert!(html.contains("…") && html.contains("/<wbr/>last.dat</code>"));
}

#[test]
fn a_browser_shows_it() {
    let browser = ["chromium", "chromium-browser", "google-chrome"];
    let works = |b: &&&str| {
        let version = Command::new(b).arg("--version").output();
        version.is_ok_and(|o| o.status.success())
    };
    let Some(browser) = browser.iter().find(works) else {
        println!("skipped: there is no Chromium");
        return;
    };
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = dir.join("report.html");
    let run = run();
    std::fs::write(&file, page(&run, &advise(&run))).unwrap();
    let profile = dir.join("chromium");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    if dom.is_empty() {
        println!(
            "skipped: {browser} shows nothing here: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    // The page's own script ran, and no other one.
    assert!(dom.contains("<button type=\"button\">Path</button>"));
    assert!(dom.contains("</code><button type=\"button\">Copy</button></pre>"));
    assert_eq!(dom.matches("<script").count(), 2);
    assert!(!dom.contains("<img") && !dom.contains("onerror=\""));
    assert_eq!(run_of(&dom).unwrap().totals, run.totals);
}

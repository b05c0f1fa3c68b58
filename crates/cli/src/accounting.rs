//! `forebay status --all`: shows all resources that a pool uses on this host, node by node.

use crate::tables::medium;
use forebay_client::Pool;
use forebay_client::requests::cells_of;
use forebay_media::format_size;
use forebay_store::accounting::{Accounting, Table};
use serde_json::{Value, json as value};
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Counts the files and directories below a directory, and the bytes allocated to them.
fn files_below(dir: &Path) -> (u64, u64) {
    let (mut count, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            let (files, below) = files_below(&entry.path());
            (count, bytes) = (count + files, bytes + below);
        }
        (count, bytes) = (count + 1, bytes + meta.blocks() * 512);
    }
    (count, bytes)
}

/// Returns, as JSON, the machine's resources that a process uses; null for those that can't be
/// read.
fn process(pid: u32) -> Value {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let bytes = |name| field(name).map(|kib| kib << 10);
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
    value!({
        "process": pid, "descriptors": descriptors.ok().map(Iterator::count),
        "threads": field("Threads:"), "rss": bytes("VmRSS:"), "rss_anonymous": bytes("RssAnon:"),
        "rss_shared": bytes("RssShmem:"),
    })
}

fn table(t: &Table) -> Value {
    value!({ "used": t.used, "limit": t.limit })
}

/// Returns, as JSON, how many entries of a node's tables are in use, and the resources of its
/// keeper or daemon.
pub fn as_json(pool: &Pool) -> Value {
    // Wakes the keeper, which may not have cleaned up yet after processes that have ended.
    pool.store().control().wake_keeper();
    let taken = forebay_store::accounting::count(pool.store());
    let (files, bytes) = files_below(pool.dir());
    let media: Vec<Value> = pool.usage().iter().map(medium).collect();
    let watches = std::fs::read_dir(pool.dir().join("watches")).map_or(0, Iterator::count);
    let mut report = value!({
        "media": media, "watches": watches, "files": files, "file_bytes": bytes,
        "record_bytes": pool.store().files.used().ok(),
        "keeper": pool.keeper_pid().map(process),
        "request_cells": cells_of(pool.dir()).ok()
            .map(|(used, limit)| value!({ "used": used, "limit": limit })),
    });
    match taken {
        Ok(taken) => tables(&taken, &mut report),
        // Reports the failure: without it, the tables would look empty.
        Err(e) => report["error"] = value!(std::io::Error::from(e).to_string()),
    }
    report
}

fn tables(taken: &Accounting, report: &mut Value) {
    let sections = [
        ("process_slots", &taken.processes),
        ("live_entries", &taken.live),
        ("descriptions", &taken.open),
        ("locks", &taken.locks),
    ];
    for (name, of) in sections {
        report[name] = table(of);
    }
    report["process_slots"]["ended"] = value!(taken.ended);
    report["lock_notes"] = value!(taken.notes);
    report["sections"] = value!(taken.in_flight);
    report["unsettled"] = value!(taken.unsettled);
    report["reader_slots"] = value!({
        "used": taken.readers.iter().map(|t| t.used).collect::<Vec<_>>(),
        "limit": taken.readers.first().map(|t| t.limit),
        "processes": taken.reading.iter()
            .map(|(pid, slots)| value!({ "process": pid, "slots": slots })).collect::<Vec<_>>(),
    });
}

/// Appends the pool's accounting as lines of text for people.
pub fn in_words(pool: &Pool, text: &mut String) {
    let (files, bytes) = files_below(pool.dir());
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{name:<14} {what}");
    };
    match forebay_store::accounting::count(pool.store()) {
        Ok(t) => {
            let of = |t: &Table| format!("{} of {}", t.used, t.limit);
            line("process slots", of(&t.processes));
            let fullest = t.readers.iter().max_by_key(|t| t.used);
            line(
                "reader slots",
                fullest.map_or("?".into(), |t| format!("{} in the shard with most", of(t))),
            );
            line("live entries", of(&t.live));
            line("descriptions", of(&t.open));
            line("locks", of(&t.locks));
        }
        Err(e) => line(
            "tables",
            format!("can't be read: {}", std::io::Error::from(e)),
        ),
    }
    if let Ok((used, limit)) = cells_of(pool.dir()) {
        line("request cells", format!("{used} of {limit}"));
    }
    line("files", format!("{files}, {}", format_size(bytes)));
}

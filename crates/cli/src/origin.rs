//! `forebay origin`: shows and controls the slow store behind a pool.

use crate::fail::{Fail, code};
use crate::found::{open_all, open_reaching, reaching};
use crate::origin_args::{OriginCommand, OriginWhat};
use crate::output::{count, json, note, write};
use crate::paths;
use forebay_client::origin::{QuotaStatus, Refusal, Request};
use forebay_client::{Pool, places};
use forebay_media::format_size;
use forebay_origin::{Problem, Status};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;

pub fn origin(name: &str, a: &OriginCommand) -> Result<u8, Fail> {
    let pool = open_reaching(name)?;
    if pool.config().origin.is_none() {
        return Err(Fail::failed(format!(
            "the pool '{name}' has no origin; start one with: forebay up --origin DIR"
        )));
    }
    let inside = |path: &Option<OsString>| match path {
        Some(path) => paths::in_pool(path, &pool),
        None => Vec::new(),
    };
    match &a.what {
        OriginWhat::Status { json: true } => json(&status(&pool)?)?,
        OriginWhat::Status { json: false } => write(in_words(&status(&pool)?).as_bytes())?,
        OriginWhat::Sync { path } => {
            pool.ask_origin(&Request::Sync { path: inside(path) })
                .map_err(|refusal| not_written(name, &refusal))?;
            note("all changes are at the origin");
        }
        OriginWhat::Evict { path } => {
            let text = pool
                .ask_origin(&Request::Evict { path: inside(path) })
                .map_err(refused)?;
            let (files, bytes) = text.split_once(' ').unwrap_or(("0", "0"));
            let bytes = format_size(bytes.parse().unwrap_or(0));
            let files = count(files.parse().unwrap_or(0), "file");
            note(format!("evicted {files}, {bytes}"));
        }
        OriginWhat::Pin { paths } => {
            let mut files = 0;
            for path in paths {
                let path = paths::in_pool(path, &pool);
                let pin = Request::Pin {
                    path: path.clone(),
                    is_pinned: true,
                };
                pool.ask_origin(&pin).map_err(refused)?;
                let text = pool
                    .ask_origin(&Request::Prefetch { path })
                    .map_err(refused)?;
                files += text.parse().unwrap_or(0);
            }
            note(format!("pinned; brought in {}", count(files, "file")));
        }
        OriginWhat::Unpin { paths } => {
            for path in paths {
                let path = paths::in_pool(path, &pool);
                let is_pinned = false;
                let unpin = Request::Pin { path, is_pinned };
                pool.ask_origin(&unpin).map_err(refused)?;
            }
        }
        OriginWhat::Hold => {
            pool.ask_origin(&Request::Hold { is_held: true })
                .map_err(refused)?;
            note("nothing is written back until: forebay origin resume");
        }
        OriginWhat::Resume => {
            pool.ask_origin(&Request::Hold { is_held: false })
                .map_err(refused)?;
        }
        OriginWhat::Prefetch { paths } => {
            let mut files = 0;
            for path in paths {
                let path = paths::in_pool(path, &pool);
                let text = pool
                    .ask_origin(&Request::Prefetch { path })
                    .map_err(refused)?;
                files += text.parse().unwrap_or(0);
            }
            note(format!("brought in {}", count(files, "file")));
        }
    }
    Ok(code::OK)
}

fn refused(refusal: Refusal) -> Fail {
    let text = if refusal.text.is_empty() {
        forebay_backing::explain(refusal.error)
    } else {
        refusal.text
    };
    Fail::failed(text)
}

fn not_written(name: &str, refusal: &Refusal) -> Fail {
    let text = if refusal.text.is_empty() {
        forebay_backing::explain(refusal.error)
    } else {
        refusal.text.trim_end().to_owned()
    };
    Fail::new(
        code::STAGE_OUT,
        format!(
            "not all changes of the pool '{name}' are at its origin:\n{text}\n\
             see to that, then: forebay origin sync --pool {name}"
        ),
    )
}

/// Returns the status of a pool's origin; None if the pool has no origin, or if the origin's
/// service doesn't answer.
pub fn status_of(pool: &Pool) -> Option<Status> {
    pool.config().origin.as_ref()?;
    status(pool).ok()
}

/// Describes usage and quota: `2.0 MiB of 3.0 MiB, 20 of 30 files`.
pub fn quota_words(q: &QuotaStatus) -> String {
    let used = format_size(q.used_bytes);
    let bytes = match q.bytes {
        Some(most) => format!("{used} of {}", format_size(most)),
        None => used,
    };
    let files = match q.files {
        Some(most) => format!("{} of {}", q.used_files, count(most, "file")),
        None => count(q.used_files, "file"),
    };
    format!("{bytes}, {files}")
}

/// Returns a line about the quota; empty if the pool has none.
pub fn quota_line(room: &str, pool: &Pool) -> String {
    let words = pool
        .quota()
        .map(|quota| format!("quota   {room} {}\n", quota_words(&quota)));
    words.unwrap_or_default()
}

/// Waits until the origin service of a new pool accepts requests.
///
/// # Errors
/// If the service doesn't start.
pub fn is_ready(name: &str) -> Result<(), Fail> {
    if places(name).is_empty() {
        // All nodes are on other hosts; programs there wait for the service themselves.
        return Ok(());
    }
    let status = Pool::open(name)
        .map_err(Fail::from)
        .and_then(|pool| status(&pool));
    status.map(|_| ()).map_err(|e| {
        let why = format!("the pool '{name}' can't start: its origin: {}", e.message);
        Fail::new(e.code, why)
    })
}

/// Writes back all changes of a pool to its origin, if it has one.
///
/// # Errors
/// If changes couldn't be written back: which, and what to do next.
pub fn write_back(name: &str, pool: &Arc<Pool>) -> Result<(), Fail> {
    if pool.config().origin.is_none() {
        return Ok(());
    }
    let pool = reaching(pool.clone()).map_err(|e| Fail::new(code::STAGE_OUT, e.message))?;
    pool.ask_origin(&Request::Sync { path: Vec::new() })
        .map(|_| ())
        .map_err(|refusal| not_written(name, &refusal))
}

/// Like [`write_back`], for the pool of this name, if it can be opened.
///
/// # Errors
/// As for [`write_back`].
pub fn write_back_all(name: &str) -> Result<(), Fail> {
    match open_all(name).first() {
        Some(pool) => write_back(name, pool),
        None => Ok(()),
    }
}

fn status(pool: &Pool) -> Result<Status, Fail> {
    let text = pool.ask_origin(&Request::Status {}).map_err(refused)?;
    serde_json::from_str(&text).map_err(|e| Fail::failed(format!("the origin's status: {e}")))
}

fn in_words(s: &Status) -> String {
    let mut text = format!("{} behind {} ({})\n", s.origin, s.at, s.mode);
    let mut line = |what: &str, files: u64, bytes: u64| {
        let _ = writeln!(
            text,
            "  {what:<26}{files:>9} {:<5}{:>12}",
            if files == 1 { "file" } else { "files" },
            format_size(bytes)
        );
    };
    line("not yet written back", s.dirty_files, s.dirty_bytes);
    line("in the pool and there", s.archived_files, s.archived_bytes);
    line("there only", s.released_files, s.released_bytes);
    line("of those, partly here", s.partial_files, s.partial_bytes);
    line("brought in so far", s.fetched_files, s.fetched_bytes);
    line("written back so far", s.written_files, s.written_bytes);
    line("evicted so far", s.evicted_files, s.evicted_bytes);
    if s.other_nodes_bytes > 0 {
        let bytes = format_size(s.other_nodes_bytes);
        let _ = writeln!(
            text,
            "  {:<41}{bytes:>12}",
            "copied by other nodes than the first"
        );
    }
    if s.waited > 0 {
        let seconds = s.waited_ms as f64 / 1000.0;
        let _ = writeln!(
            text,
            "  writers waited for room {}, {seconds:.1} s in all",
            count(s.waited, "time")
        );
    }
    if let Some(quota) = &s.quota {
        let _ = writeln!(text, "  {:<26}{}", "quota", quota_words(quota));
    }
    let _ = writeln!(
        text,
        "  {:<26}{:>9} directories",
        "watched for changes", s.watched_dirs
    );
    if s.is_held {
        text.push_str("  writing back is on hold; go on with: forebay origin resume\n");
    }
    let mut list = |head: &str, problems: &[Problem]| {
        if !problems.is_empty() {
            let _ = writeln!(text, "{head}:");
        }
        for p in problems {
            let _ = writeln!(text, "  {}: {}", p.path, p.what);
        }
    };
    list("conflicts", &s.conflicts);
    list("not moved", &s.problems);
    if s.more_problems > 0 {
        let _ = writeln!(text, "  and {} more", s.more_problems);
    }
    text
}

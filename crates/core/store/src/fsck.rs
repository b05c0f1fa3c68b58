//! Checks a whole store, and repairs it.
//!
//! [`inspect`] compares all data structures with each other: the pages of the record
//! files, records, names, link counts, sizes, extents, the maps of free pages, and the control
//! region. The inspection changes nothing, and other processes may use the store meanwhile.
//! [`inspect`] takes its view of the store during quiescence (see [`crate::quiescence`]),
//! when no operation is half done, and checks that view afterwards. [`mend()`] also repairs;
//! no other process may use the store meanwhile.
//!
//! The check applies its repairs to a model of the store in memory as it goes. So consequences of
//! one defect aren't reported as further defects, and the effect of a repair has been tried.

mod control;
mod files;
mod findings;
mod index;
mod mend;
mod model;
mod names;
#[cfg(test)]
mod tests;

pub use findings::{Finding, Report};
pub use mend::mend;

use crate::control_region::MAX_PROCESSES;
use crate::process;
use crate::quiescence;
use crate::record::Change;
use crate::record_tree::{self, Meta};
use crate::records::{ReadRecords, Records};
use crate::recount::{count_uses, view};
use crate::{ObjectId, Store};
use control::{check_control, check_shards, highest_numbers};
use files::{Double, check_extents, check_files, check_maps, check_places};
use model::{all_changes, read_model};
use names::check_names;
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How long a check tries to reach quiescence.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a check makes other processes wait without a break.
const AT_A_TIME: Duration = Duration::from_millis(150);
/// Name, in findings, of the part of the store that lies below the records: LMDB's files.
const TREES: &str = "record files";

/// Finds all contradictions in the store, a sentence each; empty if it is consistent.
///
/// # Errors
/// EIO and the like: the store couldn't be read.
pub fn check(store: &Store) -> Result<Vec<String>> {
    let report = inspect(store)?;
    let left_out = report
        .left_out
        .map(|l| format!("not everything was looked at: {l}"));
    Ok(report
        .findings
        .iter()
        .map(ToString::to_string)
        .chain(left_out)
        .collect())
}

/// Checks everything. Other processes may use the store meanwhile.
///
/// # Errors
/// EIO and the like: the store couldn't be read.
pub fn inspect(store: &Store) -> Result<Report> {
    let (mut report, changes) = examine(store)?;
    if changes.is_none() {
        return Ok(report);
    }
    let sound = |f: &Finding| !["control", "records", TREES].contains(&f.part);
    if !report.findings.iter().all(sound) {
        // The check of the files' bytes reads records and the control region as programs do, so
        // both must be sound.
        let repair = "checksums of files; repair what was found first";
        report.left_out.get_or_insert_with(|| repair.into());
        return Ok(report);
    }
    store.content().verify_all(|id, at| {
        let path = name_of(store, id).map_or_else(
            || format!("object {}", id.0),
            |path| format!("{} (object {})", String::from_utf8_lossy(&path), id.0),
        );
        report.add(
            "files",
            format!(
                "{path}: bytes of the MiB at {at} are not what was written, by their checksums"
            ),
            "reading them fails with EIO; write the file again, or remove it",
        );
    })?;
    Ok(report)
}

/// Returns a path of an object, if an entry of this node refers to it. Reads all entries.
fn name_of(store: &Store, id: ObjectId) -> Option<Vec<u8>> {
    (0..store.files.count()).find_map(|shard| {
        let mut found = None;
        let records = store.records(shard).ok()?;
        let read = records.each_entry(|parent, name, entry| {
            if entry.is_some_and(|e| e.entry.id == id && !e.changing) {
                found = Some((parent, name.to_vec()));
            }
            found.is_none()
        });
        drop(records);
        read.ok()?;
        let (parent, name) = found?;
        let mut path = store.names().path_of(parent).ok()?;
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend(name);
        Some(path)
    })
}

/// Number of attached processes besides this one.
pub(crate) fn others(store: &Store) -> usize {
    let me = store.attachment.is_attached().then(process::pid);
    (0..MAX_PROCESSES)
        .map(|i| store.control.process(i).owner.load(Acquire))
        .filter(|&owner| owner != 0 && process::runs(owner) && Some(process::pid_of(owner)) != me)
        .count()
}

/// Checks everything. Also returns the changes that would repair the store, if all pages of the
/// record files could be read.
#[expect(clippy::type_complexity, reason = "only for mend")]
fn examine(store: &Store) -> Result<(Report, Option<(Vec<Change>, Vec<Double>)>)> {
    let mut report = Report {
        others: others(store),
        ..Report::default()
    };
    // The record files are checked first, since LMDB would follow an invalid page number. If
    // other processes are working, the record files are checked below, as of the quiescence.
    if report.others == 0 {
        let metas: Vec<_> = store.files.iter().map(|env| Meta::of(env.path())).collect();
        check_trees(store, &metas, &mut report)?;
        if !report.is_clean() {
            report.left_out = Some("what the records say: their files are damaged".into());
            return Ok((report, None));
        }
    }
    let until = Instant::now() + QUIESCE_TIMEOUT;
    let quiet = loop {
        match store.quiet(AT_A_TIME) {
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(AT_A_TIME),
            Err(Errno::BUSY) => break None,
            other => break Some(other?),
        }
    };
    let Some(quiet) = quiet else {
        let busy: Vec<String> = quiescence::in_sections(store.control())
            .map(|(_, pid)| in_words(pid))
            .collect();
        report.left_out = Some(format!(
            "extents, free space and counts, since there was no quiet moment: in the middle of something are {}",
            busy.join(", ")
        ));
        let view = view(store)?;
        let mut model = read_model(store, &view, &mut report)?;
        check_names(store, &mut model, &view, &mut report);
        return Ok((report, None));
    };
    let uses = count_uses(store)?;
    check_control(store, &uses, &mut report)?;
    let view = view(store)?;
    drop(quiet);
    if report.others > 0 {
        check_trees(store, &view.metas, &mut report)?;
    }
    let mut model = read_model(store, &view, &mut report)?;
    let highest = highest_numbers(store, model.objects.keys());
    check_shards(store, &highest, &view, &mut report);
    check_names(store, &mut model, &view, &mut report);
    check_files(&mut model, &view, &mut report);
    let (used, doubles) = check_extents(store, &mut model, &view, &mut report);
    check_places(store, &mut model, &view, &mut report);
    check_maps(store, &used, &view, &mut report);
    let changes = all_changes(store, &model);
    Ok((report, Some((changes, doubles))))
}

/// Checks the pages of the record files.
fn check_trees(
    store: &Store,
    metas: &[std::result::Result<Meta, String>],
    report: &mut Report,
) -> Result<()> {
    for ((shard, env), meta) in store.files.iter().enumerate().zip(metas) {
        let file = std::fs::File::open(env.path())
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let found = match meta {
            Ok(meta) => {
                let walked = record_tree::walk(&file, meta, &mut |_, _| ());
                if walked.found.is_empty() {
                    report.lost_pages += walked.lost;
                }
                walked.found
            }
            Err(what) => vec![what.clone()],
        };
        for what in found {
            report.add(
                TREES,
                format!("shard {shard}, {}: {what}", env.path().display()),
                "what can be read of it is written to a new file",
            );
        }
    }
    Ok(())
}

fn in_words(pid: u32) -> String {
    let stopped = if process::is_stopped(pid) {
        ", which is stopped"
    } else {
        ""
    };
    format!(
        "process {pid} ({}){stopped}",
        process::name(pid, &mut [0; 16])
    )
}

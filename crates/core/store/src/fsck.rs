//! Checks a whole store, and repairs it.
//!
//! [`Checker::inspect`] compares all data structures with each other: the pages of the record
//! files, records, names, link counts, sizes, extents, the maps of free pages, and the control
//! region. The inspection changes nothing, and other processes may use the store meanwhile.
//! [`Checker::inspect`] takes its view of the store during quiescence (see [`crate::quiescence`]),
//! when no operation is half done, and checks that view afterwards. [`Checker::mend`] also repairs;
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

use crate::ObjectId;
use crate::control_region::MAX_PROCESSES;
use crate::process;
use crate::record::Change;
use crate::record_tree::{self, Meta};
use crate::records::{ReadRecords, Records};
use crate::views::Checker;
use files::Double;
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How long a check tries to reach quiescence.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for which a check makes other processes wait without a break.
const AT_A_TIME: Duration = Duration::from_millis(150);
/// Name, in findings, of the part of the store that lies below the records: LMDB's files.
const TREES: &str = "record files";

impl Checker<'_> {
    /// Finds all contradictions in the store, a sentence each; empty if it is consistent.
    ///
    /// # Errors
    /// EIO and the like: the store couldn't be read.
    pub fn check(&self) -> Result<Vec<String>> {
        let report = self.inspect()?;
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
    pub fn inspect(&self) -> Result<Report> {
        let (mut report, changes) = self.examine()?;
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
        self.store.content().verify_all(|id, at| {
            let path = self.name_of(id).map_or_else(
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
    fn name_of(&self, id: ObjectId) -> Option<Vec<u8>> {
        (0..self.store.names().shard_count()).find_map(|shard| {
            let mut found = None;
            let records = self.store.records(shard).ok()?;
            let read = records.each_entry(|parent, name, entry| {
                if entry.is_some_and(|e| e.entry.id == id && !e.changing) {
                    found = Some((parent, name.to_vec()));
                }
                found.is_none()
            });
            drop(records);
            read.ok()?;
            let (parent, name) = found?;
            let mut path = self.store.names().path_of(parent).ok()?;
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend(name);
            Some(path)
        })
    }

    /// Number of attached processes besides this one.
    pub(crate) fn others(&self) -> usize {
        let me = self.store.is_attached().then(process::pid);
        (0..MAX_PROCESSES)
            .map(|i| self.store.control.process(i).owner.load(Acquire))
            .filter(|&owner| {
                owner != 0 && process::runs(owner) && Some(process::pid_of(owner)) != me
            })
            .count()
    }

    /// Checks everything. Also returns the changes that would repair the store, if all pages of the
    /// record files could be read.
    #[expect(clippy::type_complexity, reason = "only for mend")]
    fn examine(&self) -> Result<(Report, Option<(Vec<Change>, Vec<Double>)>)> {
        let mut report = Report {
            others: self.others(),
            ..Report::default()
        };
        // The record files are checked first, since LMDB would follow an invalid page number. If
        // other processes are working, the record files are checked below, as of the quiescence.
        if report.others == 0 {
            let metas: Vec<_> = self
                .store
                .envs
                .iter()
                .map(|env| Meta::of(env.path()))
                .collect();
            self.check_trees(&metas, &mut report)?;
            if !report.is_clean() {
                report.left_out = Some("what the records say: their files are damaged".into());
                return Ok((report, None));
            }
        }
        let until = Instant::now() + QUIESCE_TIMEOUT;
        let quiet = loop {
            match self.store.quiet(AT_A_TIME) {
                Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(AT_A_TIME),
                Err(Errno::BUSY) => break None,
                other => break Some(other?),
            }
        };
        let Some(quiet) = quiet else {
            let busy: Vec<String> = self
                .store
                .in_sections()
                .map(|(_, pid)| in_words(pid))
                .collect();
            report.left_out = Some(format!(
                "extents, free space and counts, since there was no quiet moment: in the middle of something are {}",
                busy.join(", ")
            ));
            let view = self.store.recovery().view()?;
            let mut model = self.read_model(&view, &mut report)?;
            self.check_names(&mut model, &view, &mut report);
            return Ok((report, None));
        };
        let uses = self.store.recovery().count_uses()?;
        self.check_control(&uses, &mut report)?;
        let view = self.store.recovery().view()?;
        drop(quiet);
        if report.others > 0 {
            self.check_trees(&view.metas, &mut report)?;
        }
        let mut model = self.read_model(&view, &mut report)?;
        let highest = self.highest_numbers(model.objects.keys());
        self.check_shards(&highest, &view, &mut report);
        self.check_names(&mut model, &view, &mut report);
        self.check_files(&mut model, &view, &mut report);
        let (used, doubles) = self.check_extents(&mut model, &view, &mut report);
        self.check_places(&mut model, &view, &mut report);
        self.check_maps(&used, &view, &mut report);
        let changes = self.all_changes(&model);
        Ok((report, Some((changes, doubles))))
    }

    /// Checks the pages of the record files.
    fn check_trees(
        &self,
        metas: &[std::result::Result<Meta, String>],
        report: &mut Report,
    ) -> Result<()> {
        for ((shard, env), meta) in self.store.envs.iter().enumerate().zip(metas) {
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

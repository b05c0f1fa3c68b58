//! The progress of a staging, and its final report.

use crate::pace::Pace;
use forebay_runtime::threads::lock;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Maximum number of listed failures, and of warnings. Further ones are only counted.
const LISTED: usize = 1000;

/// An object that couldn't be staged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The path as text.
    pub path: String,
    /// The failure, and a remedy where one is known.
    pub what: String,
}

/// The result of a staging.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Files and symbolic links found in the source.
    pub files: u64,
    /// Directories found in the source.
    pub directories: u64,
    /// Bytes of the files found in the source, including holes.
    pub bytes: u64,
    /// Files and links that were copied.
    pub moved_files: u64,
    /// Bytes that were copied, not including holes.
    pub moved_bytes: u64,
    /// Files and links that the destination already had.
    pub unchanged: u64,
    /// FIFOs, sockets, devices and leftover temporary files, which aren't staged.
    pub skipped: u64,
    /// Duration of the staging. Seconds.
    pub seconds: f64,
    /// Number of failures. `failures` lists up to 1000 of them.
    pub failed: u64,
    pub failures: Vec<Failure>,
    pub warnings: Vec<Failure>,
    /// Whether the staging was stopped before its end.
    pub interrupted: bool,
    /// Number of files, links and directories that the patterns have excluded.
    #[serde(default)]
    pub excluded: u64,
    /// The files that a dry run would copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<Planned>,
    /// Each node's share, if several nodes have copied.
    #[serde(default)]
    pub nodes: Vec<Share>,
}

/// A file or link that would be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The file's path in the source, as text; `to`: in the destination.
    pub from: String,
    pub to: String,
    /// Size, including holes; 0 for a further name of a file. Bytes.
    pub bytes: u64,
}

/// One node's share of the copied files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The node's number.
    pub node: u32,
    pub moved_files: u64,
    pub moved_bytes: u64,
}

impl Report {
    /// Whether everything was staged and verified.
    pub fn complete(&self) -> bool {
        self.failed == 0 && !self.interrupted
    }

    /// Adds a report about another source to this one.
    pub fn absorb(&mut self, more: Report) {
        for (sum, part) in [
            (&mut self.files, more.files),
            (&mut self.directories, more.directories),
            (&mut self.bytes, more.bytes),
            (&mut self.moved_files, more.moved_files),
            (&mut self.moved_bytes, more.moved_bytes),
            (&mut self.unchanged, more.unchanged),
            (&mut self.skipped, more.skipped),
            (&mut self.failed, more.failed),
            (&mut self.excluded, more.excluded),
        ] {
            *sum += part;
        }
        self.seconds += more.seconds;
        self.interrupted |= more.interrupted;
        self.failures.extend(more.failures);
        self.failures.truncate(LISTED);
        self.warnings.extend(more.warnings);
        self.warnings.truncate(LISTED);
        self.planned.extend(more.planned);
        for share in more.nodes {
            match self.nodes.iter_mut().find(|s| s.node == share.node) {
                Some(sum) => {
                    sum.moved_files += share.moved_files;
                    sum.moved_bytes += share.moved_bytes;
                }
                None => self.nodes.push(share),
            }
        }
    }
}

/// The reason why a staging couldn't begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageError {
    pub path: String,
    pub what: String,
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

impl std::error::Error for StageError {}

/// Counters of a staging in progress, and a switch to stop the staging. Other threads may read the
/// counters.
#[derive(Debug, Default)]
pub struct Progress {
    pub files_found: AtomicU64,
    pub bytes_found: AtomicU64,
    pub files_done: AtomicU64,
    pub bytes_done: AtomicU64,
    /// Whether the source has been listed completely.
    pub listed: AtomicBool,
    stop: AtomicBool,
    pace: Option<Arc<Pace>>,
}

impl Progress {
    /// Returns counters for a staging with a limit on bytes per second.
    pub fn at(pace: Option<Arc<Pace>>) -> Progress {
        Progress {
            pace,
            ..Progress::default()
        }
    }

    /// Counts copied bytes. Sleeps if a limit requires it.
    pub(crate) fn copied(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
        if let Some(pace) = &self.pace {
            pace.take(bytes);
        }
    }

    /// Makes the staging end soon, with an incomplete report.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether [`Progress::stop`] was called.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// The report of a staging in progress. Several threads write the report.
pub(crate) struct Ledger {
    report: Mutex<Report>,
}

impl Ledger {
    pub fn new() -> Ledger {
        Ledger {
            report: Mutex::new(Report::default()),
        }
    }

    /// Changes the report.
    pub fn with<T>(&self, change: impl FnOnce(&mut Report) -> T) -> T {
        change(&mut lock(&self.report))
    }

    pub fn fail(&self, path: String, what: String) {
        self.with(|r| {
            r.failed += 1;
            if r.failures.len() < LISTED {
                r.failures.push(Failure { path, what });
            }
        });
    }

    pub fn warn(&self, path: String, what: String) {
        self.with(|r| {
            if r.warnings.len() < LISTED {
                r.warnings.push(Failure { path, what });
            }
        });
    }

    /// Adds a mover's report.
    pub fn add(&self, more: Report) {
        self.with(|r| {
            r.moved_files += more.moved_files;
            r.moved_bytes += more.moved_bytes;
            r.unchanged += more.unchanged;
            r.failed += more.failed;
            r.interrupted |= more.interrupted;
            for (all, some) in [
                (&mut r.failures, more.failures),
                (&mut r.warnings, more.warnings),
            ] {
                let room = LISTED.saturating_sub(all.len());
                all.extend(some.into_iter().take(room));
            }
        });
    }

    /// Removes and returns everything that was added since the last call.
    pub fn take(&self) -> Report {
        self.with(std::mem::take)
    }

    pub fn finish(self) -> Report {
        self.report.into_inner().unwrap_or_else(|e| e.into_inner())
    }
}

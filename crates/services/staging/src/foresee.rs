//! Stagings of selected files, and dry runs.
//!
//! In both, the whole source is listed before any directory is made. So directories without any
//! wanted file can be left out.

use crate::job::{Entry, Job};
use crate::report::Planned;
use forebay_backing::{for_each, split};
use forebay_runtime::threads::lock;
use std::collections::HashSet;
use std::sync::Mutex;

/// Returns the directory of a path below the source. Empty for the source itself.
fn above(below: &[u8]) -> &[u8] {
    match split(below).0 {
        b"." => b"",
        directory => directory,
    }
}

impl Job<'_> {
    /// Whether directories are made only after the whole source was listed.
    pub fn makes_later(&self) -> bool {
        self.options.dry_run || self.options.selection.is_narrow()
    }

    /// Removes directories from `levels` that aren't included and contain nothing included.
    pub fn prune(&self, levels: &mut [Vec<Entry>], files: &[Entry]) {
        if !self.options.selection.is_narrow() {
            return;
        }
        let mut needed: HashSet<Vec<u8>> = HashSet::from([Vec::new()]);
        let included = levels.iter().flatten();
        let included = included.filter(|d| self.options.selection.includes(&d.below));
        for entry in files.iter().chain(included.clone()) {
            let mut path = above(&entry.below);
            while needed.insert(path.to_vec()) {
                path = above(path);
            }
        }
        needed.extend(included.map(|d| d.below.clone()).collect::<Vec<_>>());
        for level in levels {
            level.retain(|d| needed.contains(&d.below));
        }
    }

    /// Makes the directories. If a directory can't be made, records the failure, and leaves out
    /// everything below that directory.
    pub fn make_directories(&self, levels: &mut [Vec<Entry>], files: &mut Vec<Entry>) {
        let mut made: HashSet<Vec<u8>> = HashSet::new();
        for level in levels {
            level.retain(|d| d.below.is_empty() || made.contains(above(&d.below)));
            let now = Mutex::new(HashSet::new());
            for_each(self.threads, level, |d| {
                if self.make_directory(d) {
                    lock(&now).insert(d.below.clone());
                }
            });
            let now = now.into_inner().unwrap_or_else(|e| e.into_inner());
            level.retain(|d| now.contains(&d.below));
            made.extend(now);
        }
        files.retain(|f| made.contains(above(&f.below)));
    }

    /// Records in the report what would be copied.
    pub fn foresee(&self, levels: &[Vec<Entry>], files: Vec<Entry>) {
        let directories: usize = levels.iter().map(Vec::len).sum();
        let bytes: u64 = files.iter().map(Entry::bytes).sum();
        self.ledger.with(|r| {
            r.directories += directories as u64;
            r.files += files.len() as u64;
            r.bytes += bytes;
        });
        let planned = Mutex::new(Vec::new());
        for_each(self.threads, &files, |entry| match self.has(entry) {
            Ok(true) => self.ledger.with(|r| r.unchanged += 1),
            Ok(false) => lock(&planned).push(entry),
            Err(what) => self
                .ledger
                .fail(self.to.show(&self.target(&entry.below)), what),
        });
        let mut planned = planned.into_inner().unwrap_or_else(|e| e.into_inner());
        planned.sort_unstable_by(|a, b| a.below.cmp(&b.below));
        // If a file has several names, its bytes are counted for the first one.
        let mut seen = HashSet::new();
        let planned = planned.into_iter().map(|e| {
            let again = e.meta.nlink > 1 && !seen.insert((e.meta.dev, e.meta.ino));
            Planned {
                from: self.from.show(&self.source(&e.below)),
                to: self.to.show(&self.target(&e.below)),
                bytes: if again { 0 } else { e.bytes() },
            }
        });
        let planned: Vec<Planned> = planned.collect();
        self.ledger.with(|r| r.planned = planned);
    }
}

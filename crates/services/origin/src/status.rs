//! Counters of the service, and the problems that the pool's user should know.

use forebay_client::origin::QuotaStatus;
use forebay_runtime::threads::lock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of problems that are stored with their reasons. Of further ones, only the path
/// is stored.
const MAX_PROBLEMS: usize = 1000;
/// Last component of the keys of problems of reading a directory, as opposed to writing it back.
pub const LOOKED_AT: &[u8] = b".";
/// Maximum number of problems in a status, and of conflicts.
const SHOWN: usize = 50;

/// A path that couldn't be fetched or written back, or that has changed on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub path: String,
    /// The failure, and a remedy where one is known.
    pub what: String,
    /// Time of the first failure. Seconds since 1970.
    pub since: u64,
}

/// The status of an origin and its pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub origin: String,
    pub at: String,
    pub mode: String,
    /// Files and bytes of the pool by state. Dirty files are those that only the pool has, and
    /// those that have changed since they were written back.
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    pub archived_files: u64,
    pub archived_bytes: u64,
    pub released_files: u64,
    pub released_bytes: u64,
    /// Released files that are being read by ranges, and their bytes in the pool.
    #[serde(default)]
    pub partial_files: u64,
    #[serde(default)]
    pub partial_bytes: u64,
    /// The next six are counters since the start of the service.
    pub fetched_files: u64,
    pub fetched_bytes: u64,
    pub written_files: u64,
    pub written_bytes: u64,
    pub evicted_files: u64,
    pub evicted_bytes: u64,
    /// Part of the fetched and written bytes: copied by nodes other than the service's.
    #[serde(default)]
    pub other_nodes_bytes: u64,
    /// Number of times that writers have waited for room, and the total time. Milliseconds.
    pub waited: u64,
    pub waited_ms: u64,
    /// Whether writing back in the background is on hold.
    pub is_held: bool,
    /// Number of directories in which the kernel reports changes by other processes of this host.
    #[serde(default)]
    pub watched_dirs: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaStatus>,
    pub problems: Vec<Problem>,
    /// Number of problems that `problems` leaves out.
    pub more_problems: u64,
    pub conflicts: Vec<Problem>,
}

/// Counters and problems. All threads of the service share them.
#[derive(Default)]
pub struct Ledger {
    pub fetched: Count,
    pub written: Count,
    pub evicted: Count,
    /// Number of waits of writers for room (`files`), and their total time in milliseconds
    /// (`bytes`).
    pub waited: Count,
    problems: Mutex<Problems>,
    conflicts: Mutex<Problems>,
}

/// A number of files and a number of bytes.
#[derive(Default)]
pub struct Count {
    pub files: AtomicU64,
    pub bytes: AtomicU64,
}

impl Count {
    pub fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// Problems by path at the origin.
#[derive(Default)]
struct Problems {
    /// At most [`MAX_PROBLEMS`].
    stored: BTreeMap<Vec<u8>, Problem>,
    /// The paths of further problems. Such a path is stored when its problem occurs again and
    /// `stored` has room.
    further: BTreeSet<Vec<u8>>,
}

impl Problems {
    fn note(&mut self, key: &[u8], path: String, what: String) {
        if self.stored.len() >= MAX_PROBLEMS && !self.stored.contains_key(key) {
            self.further.insert(key.to_vec());
            return;
        }
        self.further.remove(key);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = self.stored.get(key).map(|p| p.since);
        let since = since.unwrap_or_else(|| now.map_or(0, |now| now.as_secs()));
        let problem = Problem { path, what, since };
        self.stored.insert(key.to_vec(), problem);
    }

    fn remove(&mut self, key: &[u8]) {
        self.stored.remove(key);
        self.further.remove(key);
    }

    /// Returns the first problems, at most [`SHOWN`], and the number of the others.
    fn shown(&self) -> (Vec<Problem>, u64) {
        let shown: Vec<Problem> = self.stored.values().take(SHOWN).cloned().collect();
        let more = self.stored.len() + self.further.len() - shown.len();
        (shown, more as u64)
    }
}

impl Ledger {
    /// Records that the object at this path of the origin couldn't be fetched or written back.
    pub fn problem(&self, relative: &[u8], path: String, what: String) {
        lock(&self.problems).note(relative, path, what);
    }

    /// Records that an object has changed on both sides.
    pub fn conflict(&self, relative: &[u8], path: String, what: String) {
        lock(&self.conflicts).note(relative, path, what);
    }

    /// Removes the problem of an object that was fetched, written back or removed.
    pub fn is_solved(&self, relative: &[u8]) {
        lock(&self.problems).remove(relative);
    }

    /// Returns the paths of all problems except those of reading a directory.
    pub fn unwritten(&self) -> Vec<Vec<u8>> {
        let problems = lock(&self.problems);
        let is_of_look = |key: &[u8]| key.rsplit(|&b| b == b'/').next() == Some(LOOKED_AT);
        let keys = problems.stored.keys().chain(&problems.further);
        keys.filter(|key| !is_of_look(key)).cloned().collect()
    }

    /// Returns the problems and conflicts for a status, at most [`SHOWN`] of each; between them,
    /// the number of problems left out.
    pub fn listed(&self) -> (Vec<Problem>, u64, Vec<Problem>) {
        let (problems, more) = lock(&self.problems).shown();
        (problems, more, lock(&self.conflicts).shown().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_counted() {
        let ledger = Ledger::default();
        let key = |i: usize| format!("{i:04}").into_bytes();
        let more = || ledger.listed().1 as usize + ledger.listed().0.len();
        for _ in 0..2 {
            for i in 0..MAX_PROBLEMS + 500 {
                ledger.problem(&key(i), String::new(), String::new());
            }
            assert_eq!(more(), MAX_PROBLEMS + 500);
        }
        assert_eq!(ledger.unwritten().len(), MAX_PROBLEMS + 500);
        // Solves a problem without a stored reason, and one with a reason.
        ledger.is_solved(&key(MAX_PROBLEMS + 1));
        ledger.is_solved(&key(0));
        assert_eq!(more(), MAX_PROBLEMS + 498);
        ledger.problem(&key(MAX_PROBLEMS + 2), "now stored".into(), String::new());
        assert_eq!(more(), MAX_PROBLEMS + 498);
    }
}

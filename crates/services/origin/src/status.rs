//! Counters of the service, and the problems that the pool's user should know.

use forebay_client::origin::QuotaStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of stored problems. Further problems are dropped.
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
    /// Counters since the start of the service: these six.
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
    problems: Mutex<BTreeMap<Vec<u8>, Problem>>,
    conflicts: Mutex<BTreeMap<Vec<u8>, Problem>>,
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

fn note(list: &Mutex<BTreeMap<Vec<u8>, Problem>>, key: &[u8], path: String, what: String) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() >= MAX_PROBLEMS && !list.contains_key(key) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = list.get(key).map(|p| p.since);
    let since = since.unwrap_or_else(|| now.map_or(0, |now| now.as_secs()));
    list.insert(key.to_vec(), Problem { path, what, since });
}

impl Ledger {
    /// Records that the object at this path of the origin couldn't be moved.
    pub fn problem(&self, relative: &[u8], path: String, what: String) {
        note(&self.problems, relative, path, what);
    }

    /// Records that an object has changed on both sides.
    pub fn conflict(&self, relative: &[u8], path: String, what: String) {
        note(&self.conflicts, relative, path, what);
    }

    /// Removes the problem of an object that was moved or removed.
    pub fn is_solved(&self, relative: &[u8]) {
        let mut list = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        list.remove(relative);
    }

    /// Returns the paths of all problems except those of reading a directory.
    pub fn unwritten(&self) -> Vec<Vec<u8>> {
        let list = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_look = |key: &[u8]| key.rsplit(|&b| b == b'/').next() == Some(LOOKED_AT);
        list.keys()
            .filter(|key| !is_of_look(key))
            .cloned()
            .collect()
    }

    /// Returns the problems and conflicts for a status, at most [`SHOWN`] of each; between them,
    /// the number of problems left out.
    pub fn listed(&self) -> (Vec<Problem>, u64, Vec<Problem>) {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let conflicts = self
            .conflicts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let listed: Vec<Problem> = problems.values().take(SHOWN).cloned().collect();
        let more = (problems.len() - listed.len()) as u64;
        (
            listed,
            more,
            conflicts.values().take(SHOWN).cloned().collect(),
        )
    }
}

//! A service's knowledge of the other nodes' copiers ([`copier`](crate::copier)).
//!
//! The nodes that were given orders are kept in a file of the node's directory, so that the next
//! service stops them.

use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The file's name.
const NAME: &str = "origin-copiers.json";
/// How long a copier that has failed isn't used.
const REST: Duration = Duration::from_secs(60);

/// The other nodes' copiers.
pub struct Copiers {
    file: PathBuf,
    state: Mutex<State>,
    /// The number of this service.
    pub service: AtomicU64,
    /// Bytes that they have copied.
    pub bytes: AtomicU64,
}

/// The nodes with copiers.
#[derive(Default)]
pub struct State {
    /// Nodes that were given orders, as the file has them.
    used: BTreeSet<u32>,
    /// Nodes that may still carry orders of an earlier number out.
    pub unstopped: BTreeSet<u32>,
    /// Nodes that have failed, and when.
    pub failed: HashMap<u32, Instant>,
    /// Nodes that see the service's writes to the origin.
    pub writers: BTreeSet<u32>,
}

/// A number that is higher than those before, also of earlier services: nanoseconds since 1970.
pub fn number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

impl Copiers {
    /// The copiers that the service of the node in `dir` uses.
    ///
    /// # Errors
    /// If there is a list of them that can't be read.
    pub fn load(dir: &Path) -> std::io::Result<Copiers> {
        let file = dir.join(NAME);
        let used: BTreeSet<u32> = match untrusted::read(&file, Links::Refuse, MAX_SETTINGS) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(e) => return Err(e),
        };
        Ok(Copiers {
            file,
            state: Mutex::new(State {
                unstopped: used.clone(),
                used,
                ..State::default()
            }),
            service: AtomicU64::new(number()),
            bytes: AtomicU64::new(0),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a node is given orders, before the first one.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub fn note(&self, node: u32) -> std::io::Result<()> {
        let mut state = self.state();
        if !state.used.contains(&node) {
            let mut used = state.used.clone();
            used.insert(node);
            let part = self.file.with_extension("part");
            std::fs::write(&part, serde_json::to_vec(&used)?)?;
            std::fs::rename(&part, &self.file)?;
            state.used = used;
        }
        Ok(())
    }

    /// Whether a node may be given orders.
    pub fn is_usable(&self, node: u32) -> bool {
        let state = self.state();
        let rests = state
            .failed
            .get(&node)
            .is_some_and(|at| at.elapsed() < REST);
        !rests && !state.unstopped.contains(&node)
    }
}

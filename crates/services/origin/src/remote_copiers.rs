//! The service's table of the other nodes' copiers ([`copier`](crate::copier)).
//!
//! A file in the node's directory lists the nodes that were given orders, so that the next service
//! stops their copiers.

use forebay_runtime::threads::lock;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Name of the list in the node's directory.
const NAME: &str = "origin-copiers.json";
/// Time for which a failed copier isn't used.
const REST: Duration = Duration::from_secs(60);

/// The copiers of the other nodes.
pub struct Copiers {
    file: PathBuf,
    state: Mutex<State>,
    /// The number in this service's orders.
    pub service: AtomicU64,
    /// Number of bytes that the copiers have copied.
    pub bytes: AtomicU64,
}

/// The state of the other nodes' copiers.
#[derive(Default)]
pub struct State {
    /// Nodes that were given orders; the content of the file.
    used: BTreeSet<u32>,
    /// Nodes whose copiers may still carry out orders with an earlier number.
    pub unstopped: BTreeSet<u32>,
    /// Nodes whose copiers have failed, and the times of the failures.
    pub failed: HashMap<u32, Instant>,
    /// Nodes that see the files which the service makes at the origin.
    pub writers: BTreeSet<u32>,
}

/// Returns a service number higher than all earlier ones: nanoseconds since 1970.
pub fn number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

impl Copiers {
    /// Reads which copiers earlier services of the node in `dir` have used.
    ///
    /// # Errors
    /// The list exists but can't be read.
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
        lock(&self.state)
    }

    /// Records that a node is about to be given its first order.
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

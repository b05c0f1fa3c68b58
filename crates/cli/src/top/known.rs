//! All that top knows of a pool: the latest readings of counters, states and lists, with times.
//!
//! The threads in [`super::collect`] write this state; [`super::view`] computes the screen's
//! content from it. The state is plain data, which tests can make up.

use super::files::Hot;
use crate::slow::SlowOperation;
use crate::survey::State;
use forebay_client::Violation;
use forebay_report::totals::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Counters of all processes of a host, read at one moment.
#[derive(Clone)]
pub struct Counters {
    pub at: Instant,
    pub processes: Vec<Process>,
}

/// The readings of one host.
#[derive(Clone, Default)]
pub struct Source {
    pub before: Option<Counters>,
    pub now: Option<Counters>,
    pub slow: Vec<SlowOperation>,
    /// Why the latest reading failed.
    pub failed: Option<String>,
}

impl Source {
    /// Stores a new reading in `now`; the previous one moves to `before`.
    pub fn update(&mut self, reading: Result<Vec<Process>, String>) {
        match reading {
            Ok(processes) => {
                let at = Instant::now();
                self.before = self.now.replace(Counters { at, processes });
                self.failed = None;
            }
            Err(why) => self.failed = Some(why),
        }
    }
}

/// How full a medium is. Bytes.
#[derive(Clone, Debug)]
pub struct Medium {
    pub used: u64,
    pub capacity: u64,
}

/// The state of a node, without its counters.
#[derive(Clone)]
pub struct NodeState {
    pub number: u32,
    pub state: State,
    /// Empty if the media aren't known.
    pub media: Vec<Medium>,
    /// Number of attached processes.
    pub processes: usize,
}

/// The nodes of a pool at one moment.
#[derive(Clone)]
pub struct Survey {
    pub at: Instant,
    /// How long the pool had existed at that time.
    pub up_for: Duration,
    pub nodes: Vec<NodeState>,
}

/// A process that waits for a lock that a stopped process holds.
#[derive(Clone)]
pub struct Stuck {
    pub node: u32,
    /// The waiting process as `PID (program)`; `holder` has the same form.
    pub waiter: String,
    pub holder: String,
    pub holder_pid: u32,
}

/// The violations of controls that this host's nodes have recorded.
#[derive(Clone, Default)]
pub struct Violations {
    pub count: usize,
    pub refused: usize,
    /// Whether a node's list is full: then there may have been more violations.
    pub full: bool,
    /// The newest violations, newest first.
    pub latest: Vec<Violation>,
    /// Why a node's list can't be read, for each such list.
    pub unread: Vec<String>,
}

/// All that is known of a pool.
#[derive(Clone, Default)]
pub struct Known {
    pub pool: String,
    /// Interval between two readings.
    pub every: Duration,
    /// Readings by host name; the empty name is this host.
    pub sources: BTreeMap<String, Source>,
    pub survey: Option<Survey>,
    pub stuck: Vec<Stuck>,
    pub violations: Violations,
    /// The busiest files, while their tracepoints are on.
    pub hot: Option<Hot>,
    /// Why the nodes' figures can't be read.
    pub failed: Option<String>,
    /// If the pool was removed: a sentence about that, for the user.
    pub gone: Option<String>,
    /// Incremented by every change.
    pub version: u64,
}

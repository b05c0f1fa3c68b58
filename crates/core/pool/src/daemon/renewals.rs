//! Requests that may take longer than the request timeout (a sync on a slow disk, a large copy).
//!
//! The daemon waits for such a request while its home reports progress. At each tick, an eighth of
//! the request timeout, it asks the homes of all open requests for their progress
//! ([`PROGRESS`](super::wire::PROGRESS)). A home that still carries a request out gets the whole
//! timeout again, counted from the time of asking. So a dead or stopped home is noticed within the
//! timeout. The daemon needn't ask about requests that it carries out itself, for its own node.

use super::link::Links;
use super::pending::PendingRequest;
use super::wire::MAX_PROGRESS_REQUESTS;
use forebay_net::NodeId;
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Minimum and maximum length of a tick.
const MIN_TICK: Duration = Duration::from_millis(10);
const MAX_TICK: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    open: Vec<Arc<PendingRequest>>,
    /// Whether the thread sleeps because no request is open.
    idle: bool,
    stopped: bool,
}

/// The long requests of a daemon that may still be open.
#[derive(Default)]
pub struct Renewals {
    state: Mutex<State>,
    wake: Condvar,
}

impl Renewals {
    /// Adds a request: from now on the daemon waits for it while its home reports progress.
    pub fn add(&self, pending: &Arc<PendingRequest>) {
        let mut state = lock(&self.state);
        state.open.push(pending.clone());
        if state.idle {
            state.idle = false;
            self.wake.notify_all();
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        lock(&self.state).stopped = true;
        self.wake.notify_all();
    }

    /// Waits for a tick and returns the open requests; sleeps while there are none. None once
    /// stopped.
    fn next(&self, tick: Duration) -> Option<Vec<Arc<PendingRequest>>> {
        let mut state = lock(&self.state);
        let mut end = Instant::now() + tick;
        loop {
            if state.stopped {
                return None;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.open.retain(|q| !q.is_answered());
                if !state.open.is_empty() {
                    return Some(state.open.clone());
                }
                state.idle = true;
                while state.idle && !state.stopped {
                    let woken = self.wake.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
                end = Instant::now() + tick;
                continue;
            }
            let waited = self.wake.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Body of the thread that asks homes for progress.
pub fn run(links: &Weak<Links>, renewals: &Renewals, request_timeout: Duration) {
    let tick = (request_timeout / 8).clamp(MIN_TICK, MAX_TICK);
    while let Some(open) = renewals.next(tick) {
        let Some(links) = links.upgrade() else { return };
        let now = Instant::now();
        let mut of_node: HashMap<NodeId, Vec<Arc<PendingRequest>>> = HashMap::new();
        for pending in open {
            if pending.node == links.local.me {
                pending.renew(now + request_timeout);
            } else if pending.deadline() <= now {
                match links.get(pending.node) {
                    Some(link) => link.expire(&pending),
                    None => pending.fail(Errno::HOSTDOWN),
                }
            } else if pending.deadline() < now + request_timeout * 7 / 8 {
                of_node.entry(pending.node).or_default().push(pending);
            }
        }
        for (node, requests) in of_node {
            if let Some(link) = links.get(node) {
                for some in requests.chunks(MAX_PROGRESS_REQUESTS) {
                    link.ask_progress(some.to_vec());
                }
            }
        }
    }
}

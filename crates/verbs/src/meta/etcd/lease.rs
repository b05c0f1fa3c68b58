//! The sign of life of a process: a lease that a thread keeps alive. Keys on it are removed some
//! seconds after the process has gone.

use super::Shared;
use crate::process::{Generation, block_signals};
use crate::{Error, Result};
use rustix::io::Errno;
use serde_json::json;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Seconds after which a process counts as dead that gives no sign of life.
const LIFE: u64 = 6;
/// How often it gives one.
const SIGN: Duration = Duration::from_millis(1500);
/// How long one waits for its receipt.
const RECEIPT: Duration = Duration::from_secs(2);

/// See the module. Nothing is asked for before it is needed.
pub(super) struct Lease {
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    generation: Generation,
}

#[derive(Default)]
struct State {
    /// The lease, as far as is known alive.
    id: Option<u64>,
    /// The thread ends when this goes.
    alive: Option<Sender<()>>,
}

impl Shared {
    /// A lease of so many seconds.
    pub(super) fn grant(&self, seconds: u64) -> Result<u64> {
        let request = json!({"TTL": seconds.to_string()});
        match self.client.ask("/v3/lease/grant", &request)?.lease.0 {
            0 => Err(Error::new(Errno::PROTO, "etcd has granted no lease")),
            id => Ok(id),
        }
    }

    /// Whether the lease is alive, and is so for its full time again.
    fn renew(&self, id: u64) -> Result<bool> {
        let mut alive = false;
        let request = json!({"ID": id.to_string()});
        let path = "/v3/lease/keepalive";
        self.client.lines(path, &request, RECEIPT, &mut |line| {
            alive = line.result.is_some_and(|r| r.seconds.0 > 0);
            Ok(false)
        })?;
        Ok(alive)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lease {
    pub fn new(shared: &Arc<Shared>) -> Lease {
        Lease {
            shared: shared.clone(),
            state: Arc::default(),
            generation: Generation::now(),
        }
    }

    /// One that is alive.
    pub fn id(&self) -> Result<u64> {
        let mut state = lock(&self.state);
        if let Some(id) = state.id {
            return Ok(id);
        }
        let id = self.shared.grant(LIFE)?;
        state.id = Some(id);
        if state.alive.is_none() {
            let (alive, end) = channel();
            let (shared, own) = (self.shared.clone(), self.state.clone());
            let sign = move || {
                block_signals();
                while end.recv_timeout(SIGN) == Err(RecvTimeoutError::Timeout) {
                    let id = lock(&own).id;
                    // Without an answer nothing is known: etcd decides.
                    let gone = id.is_some_and(|id| matches!(shared.renew(id), Ok(false)));
                    if gone {
                        lock(&own).id = None;
                    }
                }
            };
            let started = std::thread::Builder::new()
                .name("forebay-lease".into())
                .spawn(sign);
            started.map_err(|e| Error::new(Errno::AGAIN, format!("no thread: {e}")))?;
            state.alive = Some(alive);
        }
        Ok(id)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A child has no such thread, and doesn't touch what the parent's may have held.
        if !self.generation.is_now() {
            std::mem::forget(std::mem::take(&mut self.state));
            return;
        }
        lock(&self.state).alive = None;
    }
}

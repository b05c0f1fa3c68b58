//! Shows that a process lives: a lease that a thread renews. etcd removes the keys attached to it
//! some seconds after the process has ended.

use super::Shared;
use crate::process::{Generation, block_signals};
use crate::{Error, Result};
use rustix::io::Errno;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Life of the lease. Seconds.
const LIFE: u64 = 6;
/// How often the lease is renewed.
const SIGN: Duration = Duration::from_millis(1500);
/// How long to wait for the confirmation.
const RECEIPT: Duration = Duration::from_secs(2);

/// A lease of this process. It is granted when first needed.
pub(super) struct Lease {
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    generation: Generation,
}

#[derive(Default)]
struct State {
    /// The lease, if it is known to be alive.
    id: Option<u64>,
    /// The thread ends when this is dropped.
    alive: Option<Sender<()>>,
}

impl Shared {
    /// Grants a lease of `seconds` seconds.
    pub(super) fn grant(&self, seconds: u64) -> Result<u64> {
        self.client.grant(seconds)
    }

    /// Renews the lease for its full time; false if it has expired.
    fn renew(&self, id: u64) -> Result<bool> {
        self.client.renew(id, RECEIPT)
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

    /// Returns a lease that is alive.
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
                    // Without a reply the outcome isn't known: etcd decides.
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
        // A forked child has no such thread, and doesn't use locks that the parent's may have held.
        if !self.generation.is_now() {
            std::mem::forget(std::mem::take(&mut self.state));
            return;
        }
        lock(&self.state).alive = None;
    }
}

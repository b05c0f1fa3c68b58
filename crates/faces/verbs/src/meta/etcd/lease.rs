//! The lease that shows etcd that this process lives. A thread of the process renews the lease.
//! etcd removes the keys attached to the lease some seconds after the process has ended.

use super::Shared;
use crate::process::{Generation, block_signals};
use crate::{Error, Result};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time after which an unrenewed lease expires. Seconds.
const LIFE: u64 = 6;
/// How often the lease is renewed.
const SIGN: Duration = Duration::from_millis(1500);
/// How long to wait for etcd's reply to a renewal.
const RECEIPT: Duration = Duration::from_secs(2);

/// A lease of this process. The lease is granted when first needed.
pub(super) struct Lease {
    shared: Arc<Shared>,
    state: Arc<Mutex<State>>,
    generation: Generation,
}

#[derive(Default)]
struct State {
    /// The lease's id; None before the first use, and after etcd has reported that it expired.
    id: Option<u64>,
    /// The renewing thread ends when this is dropped.
    alive: Option<Sender<()>>,
}

impl Shared {
    /// Requests a lease that lives for `seconds` seconds, and returns its id.
    pub(super) fn grant(&self, seconds: u64) -> Result<u64> {
        self.client.grant(seconds)
    }

    /// Renews a lease for its full time. Returns false if it has expired.
    fn renew(&self, id: u64) -> Result<bool> {
        self.client.renew(id, RECEIPT)
    }
}

impl Lease {
    pub fn new(shared: &Arc<Shared>) -> Lease {
        Lease {
            shared: shared.clone(),
            state: Arc::default(),
            generation: Generation::now(),
        }
    }

    /// Returns the lease's id. Requests a lease if this process has none.
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
                    // Without a reply, the lease may have been renewed: the reply to the next
                    // renewal tells whether it has expired.
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
        // A forked child doesn't have the renewing thread, and the parent's threads may have held
        // the lock at the fork.
        if !self.generation.is_now() {
            std::mem::forget(std::mem::take(&mut self.state));
            return;
        }
        lock(&self.state).alive = None;
    }
}

//! How the daemon's own store asks other nodes: straight over the network.

#![allow(
    unsafe_code,
    reason = "the trait hands over the program's bytes as pointers"
)]

use super::core::Core;
use super::question::Waiting;
use forebay_net::NodeId;
use forebay_placement::Slot;
use forebay_store::elsewhere::{Bytes, Elsewhere, MAX_BODY, MAX_HEAD, Told};
use rustix::io::{Errno, Result};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What the answer may need beyond the patience, at which it is an error.
const SLACK: Duration = Duration::from_secs(1);

/// The way to other nodes from inside the daemon.
pub struct Direct {
    me: NodeId,
    nodes: Vec<NodeId>,
    core: OnceLock<Weak<Core>>,
}

impl Direct {
    pub fn new(me: NodeId, nodes: Vec<NodeId>) -> Direct {
        Direct {
            me,
            nodes,
            core: OnceLock::new(),
        }
    }

    /// From now on there is a network.
    pub fn set(&self, core: Weak<Core>) {
        let _ = self.core.set(core);
    }

    fn core(&self) -> Option<Arc<Core>> {
        self.core.get()?.upgrade()
    }

    fn begin(
        &self,
        core: &Arc<Core>,
        node: NodeId,
        kind: u16,
        waiting: Arc<Waiting>,
    ) -> (Arc<Waiting>, Instant) {
        core.ask_here(node, kind, waiting.clone());
        (waiting, Instant::now() + core.options.patience + SLACK)
    }
}

/// The answer: its head, and the bytes that came.
fn answered(waiting: &Waiting, until: Instant) -> Result<(Vec<u8>, Vec<u8>)> {
    let (status, head, bytes) = waiting.wait(until).ok_or(Errno::HOSTDOWN)?;
    match status {
        0 => Ok((head, bytes)),
        status @ 1..4096 => Err(Errno::from_raw_os_error(status as i32)),
        _ => Err(Errno::PROTO),
    }
}

impl Elsewhere for Direct {
    fn me(&self) -> NodeId {
        self.me
    }

    fn node_of(&self, slot: Slot) -> NodeId {
        let map = self.core().and_then(|core| core.maps.get());
        map.map_or(NodeId(u32::MAX), |map| map.slices().node_of(slot))
    }

    fn slot_here(&self, hash: u64) -> Option<Slot> {
        let map = self.core()?.maps.get()?;
        map.slices().slot_on(self.me, hash)
    }

    fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<Told> {
        let core = self.core().ok_or(Errno::HOSTDOWN)?;
        let (send, room) = match bytes {
            Bytes::None => (None, 0),
            // SAFETY: the caller's promise; a daemon's own bytes are there.
            Bytes::Send(at, len) if len <= MAX_BODY => unsafe {
                (Some(std::slice::from_raw_parts(at, len).to_vec()), 0)
            },
            Bytes::Receive(_, len) if len <= MAX_BODY => (None, len),
            _ => return Err(Errno::MSGSIZE),
        };
        if head.len() > MAX_HEAD {
            return Err(Errno::MSGSIZE);
        }
        let waiting = Waiting::new(head.to_vec(), send, room);
        let (waiting, until) = self.begin(&core, node, kind, waiting);
        let (head, got) = answered(&waiting, until)?;
        let received = got.len();
        if let Bytes::Receive(to, room) = bytes {
            if received > room {
                return Err(Errno::PROTO);
            }
            // SAFETY: the caller's promise, and it fits.
            unsafe { std::ptr::copy_nonoverlapping(got.as_ptr(), to, received) };
        }
        Ok(Told { head, received })
    }

    fn ask_all(&self, nodes: &[NodeId], kind: u16, head: &[u8]) -> Vec<Result<Told>> {
        let Some(core) = self.core() else {
            return nodes.iter().map(|_| Err(Errno::HOSTDOWN)).collect();
        };
        if head.len() > MAX_HEAD {
            return nodes.iter().map(|_| Err(Errno::MSGSIZE)).collect();
        }
        let open: Vec<_> = nodes
            .iter()
            .map(|&node| self.begin(&core, node, kind, Waiting::new(head.to_vec(), None, 0)))
            .collect();
        open.into_iter()
            .map(|(waiting, until)| {
                let (head, _) = answered(&waiting, until)?;
                Ok(Told { head, received: 0 })
            })
            .collect()
    }

    fn after_fork_in_child(&self) {}
}

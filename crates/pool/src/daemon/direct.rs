//! Requests of the daemon's own store to other nodes: straight over the network.

#![allow(
    unsafe_code,
    reason = "the trait hands over the program's bytes as pointers"
)]

use super::core::Core;
use super::question::Waiting;
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, PeerReply, PeerRequest, Peers};
use forebay_net::NodeId;
use forebay_placement::Slot;
use rustix::io::{Errno, Result};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What the answer may need beyond the request timeout, at which it is an error.
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
}

/// The answer: its head, and the bytes that came.
fn answered(waiting: &Waiting, until: Instant) -> Result<(Vec<u8>, Vec<u8>)> {
    let (status, head, bytes) = waiting.wait(until, SLACK).ok_or(Errno::HOSTDOWN)?;
    match status {
        0 => Ok((head, bytes)),
        status @ 1..4096 => Err(Errno::from_raw_os_error(status as i32)),
        _ => Err(Errno::PROTO),
    }
}

impl Direct {
    /// Sends a request; where its answer comes, and until when it is waited for.
    ///
    /// # Safety
    /// Its bytes are the caller's to read.
    unsafe fn put(&self, question: &PeerRequest<'_>) -> Result<(Arc<Waiting>, Instant)> {
        let core = self.core().ok_or(Errno::HOSTDOWN)?;
        let (send, room) = match question.bytes {
            Bytes::None => (None, 0),
            // SAFETY: the caller's promise; a daemon's own bytes are there.
            Bytes::Send(at, len) if len <= MAX_BODY => unsafe {
                (Some(std::slice::from_raw_parts(at, len).to_vec()), 0)
            },
            Bytes::Receive(_, len) if len <= MAX_BODY => (None, len),
            _ => return Err(Errno::MSGSIZE),
        };
        if question.head.len() > MAX_HEAD {
            return Err(Errno::MSGSIZE);
        }
        let waiting = Waiting::new(question.head.to_vec(), send, room);
        core.ask_here(question.node, question.kind, waiting.clone());
        Ok((waiting, Instant::now() + core.options.patience + SLACK))
    }

    /// Waits for the answer.
    ///
    /// # Safety
    /// The request's bytes are the caller's to write.
    unsafe fn take(
        &self,
        question: &PeerRequest<'_>,
        put: Result<(Arc<Waiting>, Instant)>,
    ) -> Result<PeerReply> {
        let (waiting, until) = put?;
        let (head, got) = answered(&waiting, until)?;
        let received = got.len();
        if let Bytes::Receive(to, room) = question.bytes {
            if received > room {
                return Err(Errno::PROTO);
            }
            // SAFETY: the caller's promise, and it fits.
            unsafe { std::ptr::copy_nonoverlapping(got.as_ptr(), to, received) };
        }
        Ok(PeerReply { head, received })
    }
}

impl Peers for Direct {
    fn this_node(&self) -> NodeId {
        self.me
    }

    fn lease(&self) -> Option<Duration> {
        self.core().map(|core| core.options.gone_after)
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

    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply> {
        let question = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        // SAFETY: passed on.
        unsafe { self.take(&question, self.put(&question)) }
    }

    unsafe fn ask_all(&self, questions: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>> {
        // SAFETY: passed on.
        let open: Vec<_> = questions.iter().map(|q| unsafe { self.put(q) }).collect();
        let both = questions.iter().zip(open);
        // SAFETY: passed on.
        both.map(|(q, put)| unsafe { self.take(q, put) }).collect()
    }

    fn after_fork_in_child(&self) {}
}

//! Requests of the daemon's own store to peers: sent directly over the network, without a cell.

#![allow(
    unsafe_code,
    reason = "the trait hands over the program's bytes as pointers"
)]

use super::core::Core;
use super::home::set_unreachable;
use super::link::Links;
use super::pending::Waiting;
use forebay_client::requests::unreachable_in;
use forebay_cluster::peers::requests::changes_names;
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, PeerReply, PeerRequest, Peers};
use forebay_net::NodeId;
use forebay_placement::Slot;
use rustix::io::{Errno, Result};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long to wait for a reply after the request timeout, at which the link returns an error.
const SLACK: Duration = Duration::from_secs(1);

/// Sends requests to peers from inside the daemon.
pub struct Direct {
    me: NodeId,
    nodes: Vec<NodeId>,
    core: OnceLock<Weak<Core>>,
    /// Through the links the map can be read even when the core is gone: the links exist as long as
    /// workers carry out requests.
    links: OnceLock<Weak<Links>>,
}

impl Direct {
    pub fn new(me: NodeId, nodes: Vec<NodeId>) -> Direct {
        Direct {
            me,
            nodes,
            core: OnceLock::new(),
            links: OnceLock::new(),
        }
    }

    /// Sets the core; from now on requests can be sent.
    pub fn set(&self, core: &Arc<Core>) {
        let _ = self.core.set(Arc::downgrade(core));
        let _ = self.links.set(Arc::downgrade(&core.links));
    }

    fn core(&self) -> Option<Arc<Core>> {
        self.core.get()?.upgrade()
    }

    fn links(&self) -> Option<Arc<Links>> {
        self.links.get()?.upgrade()
    }
}

/// Waits for the reply of `node`: its head, and the bytes received.
fn answered(node: NodeId, waiting: &Waiting, until: Instant) -> Result<(Vec<u8>, Vec<u8>)> {
    let (status, head, bytes) = waiting.wait(until, SLACK).ok_or(Errno::HOSTDOWN)?;
    if status == Errno::HOSTDOWN.raw_os_error() as u32 {
        set_unreachable(unreachable_in(&head).unwrap_or(node));
    }
    match status {
        0 => Ok((head, bytes)),
        status @ 1..4096 => Err(Errno::from_raw_os_error(status as i32)),
        _ => Err(Errno::PROTO),
    }
}

impl Direct {
    /// Sends a request. Returns where its reply arrives, and how long to wait for it.
    ///
    /// # Safety
    /// The request's bytes must be readable.
    unsafe fn put(&self, request: &PeerRequest<'_>) -> Result<(Arc<Waiting>, Instant)> {
        let core = self.core().ok_or(Errno::HOSTDOWN)?;
        let (send, room) = match request.bytes {
            Bytes::None => (None, 0),
            // SAFETY: the caller promises that the bytes are readable; a daemon's own bytes are
            // mapped.
            Bytes::Send(at, len) if len <= MAX_BODY => unsafe {
                (Some(std::slice::from_raw_parts(at, len).to_vec()), 0)
            },
            Bytes::Receive(_, len) if len <= MAX_BODY => (None, len),
            _ => return Err(Errno::MSGSIZE),
        };
        if request.head.len() > MAX_HEAD {
            return Err(Errno::MSGSIZE);
        }
        let waiting = Waiting::new(request.head.to_vec(), send, room);
        core.ask_here(request.node, request.kind, waiting.clone());
        Ok((
            waiting,
            Instant::now() + core.local().options.request_timeout + SLACK,
        ))
    }

    /// Waits for the reply.
    ///
    /// # Safety
    /// The request's bytes must be writable.
    unsafe fn take(
        &self,
        request: &PeerRequest<'_>,
        put: Result<(Arc<Waiting>, Instant)>,
    ) -> Result<PeerReply> {
        let (waiting, until) = put?;
        let (head, got) = answered(request.node, &waiting, until)?;
        let received = got.len();
        if let Bytes::Receive(to, room) = request.bytes {
            if received > room {
                return Err(Errno::PROTO);
            }
            // SAFETY: the caller promises that the bytes are writable, and `received` bytes fit.
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
        self.links().map(|links| links.local.options.gone_after)
    }

    fn node_of(&self, slot: Slot) -> NodeId {
        let map = self.links().and_then(|links| links.local.maps.get());
        map.map_or(NodeId(u32::MAX), |map| map.slices().node_of(slot))
    }

    fn slot_here(&self, hash: u64) -> Option<Slot> {
        let map = self.links()?.local.maps.get()?;
        map.slices().slot_on(self.me, hash)
    }

    fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    fn has_orphans(&self) -> bool {
        self.links()
            .is_some_and(|links| links.local.request_server.has_orphan(changes_names))
    }

    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply> {
        let request = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        // SAFETY: the caller promises that the bytes are readable or writable.
        unsafe { self.take(&request, self.put(&request)) }
    }

    unsafe fn ask_all(&self, requests: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>> {
        // SAFETY: the caller promises that the requests' bytes are readable.
        let open: Vec<_> = requests.iter().map(|q| unsafe { self.put(q) }).collect();
        let both = requests.iter().zip(open);
        // SAFETY: the caller promises that the requests' bytes for replies are writable.
        both.map(|(q, put)| unsafe { self.take(q, put) }).collect()
    }

    fn after_fork_in_child(&self) {}
}

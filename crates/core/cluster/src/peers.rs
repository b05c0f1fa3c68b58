//! Access to the other nodes of the pool, and the messages to them.
//!
//! - [`Peers`] delivers requests. Crates above implement it: a process passes its requests to its
//!   node's daemon, and the daemon sends requests over the network. A request is answered or fails
//!   in bounded time.
//! - [`requests`] declares each request once; [`messages`] encodes arguments and replies.
//!
//! A node has the entries and objects of its slots. An operation on an entry or object of another
//! node is sent to the home of that entry or object. The home carries out the operation on its
//! store as any process there does (`serve.rs`). So each rule has one implementation. See
//! docs/decisions/0020-operations-across-nodes.md.

pub mod messages;
pub mod requests;

use forebay_placement::{NodeId, Slot};
use forebay_store::{Errno, Result};
use std::time::Duration;

/// Bytes that travel with a message, in the caller's memory. Access to that memory may fault, since
/// it may be the program's: copy the bytes with `forebay_runtime::guard`.
#[derive(Clone, Copy, Debug)]
pub enum Bytes {
    /// No bytes.
    None,
    /// Bytes that are sent with the request.
    Send(*const u8, usize),
    /// The reply's bytes, as many as fit here.
    Receive(*mut u8, usize),
}

/// Kind of the request by which a process asks its own node's daemon for the pool's size and use.
/// The reply: the pool's size and use in bytes (8 bytes each); then, for the other nodes with the
/// most room, the number (4 bytes) and the free bytes (8 bytes).
pub const CAPACITY: u16 = 0x7ffe;
/// Maximum number of bytes that travel with one message.
pub const MAX_BODY: usize = 1 << 20;
/// Maximum number of bytes of a request or a reply, without the bytes that travel with it.
pub const MAX_HEAD: usize = 48 << 10;

/// A request to a node.
#[derive(Clone, Copy, Debug)]
pub struct PeerRequest<'a> {
    /// The node that is to carry out the request.
    pub node: NodeId,
    /// One of [`requests::kind`].
    pub kind: u16,
    /// The request's arguments, encoded.
    pub head: &'a [u8],
    /// The bytes that are sent with the request.
    pub bytes: Bytes,
}

/// The reply of another node.
#[derive(Clone, Debug, Default)]
pub struct PeerReply {
    /// The reply's arguments, encoded.
    pub head: Vec<u8>,
    /// Number of bytes received with the reply.
    pub received: usize,
}

/// A request that was sent: [`Peers::answer`] returns its outcome, and must be called.
#[derive(Debug)]
pub enum Sent {
    /// The request has been answered already.
    Answered(Result<PeerReply>),
    /// The request to `node` is in progress, in the request cell `cell`. A process that stops
    /// waiting abandons the request.
    Underway {
        node: NodeId,
        cell: usize,
        until: u64,
    },
}

/// Delivers requests to the other nodes of the pool.
pub trait Peers: Send + Sync {
    /// This node's number.
    fn this_node(&self) -> NodeId;

    /// The home of `slot`.
    fn node_of(&self, slot: Slot) -> NodeId;

    /// One of this node's slots, chosen by `hash`; None if this node has none.
    fn slot_here(&self, hash: u64) -> Option<Slot>;

    /// The numbers of all nodes, ascending.
    fn nodes(&self) -> &[NodeId];

    /// Sends a request to `node` and waits for the reply, at most for the request timeout.
    ///
    /// # Errors
    /// The error that the node replied; EHOSTDOWN if it can't be reached or doesn't answer in time;
    /// EFAULT if `bytes` can't be touched.
    ///
    /// # Safety
    /// `bytes` must be valid for reads if they are sent, for writes if they are received.
    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply>;

    /// Sends all of these requests at once. Returns the replies, in the same order.
    ///
    /// # Safety
    /// As for [`Peers::ask`].
    unsafe fn ask_all(&self, requests: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>>;

    /// Sends a request and returns before it is answered, if that is possible at the moment. After
    /// the return, `bytes` aren't read any more.
    ///
    /// # Safety
    /// `bytes` must be valid for reads, and can't be [`Bytes::Receive`].
    unsafe fn send(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Sent {
        // SAFETY: the caller promises that `bytes` are valid.
        Sent::Answered(unsafe { self.ask(node, kind, head, bytes) })
    }

    /// Waits for the reply to a request that this process has sent.
    ///
    /// # Errors
    /// As for [`Peers::ask`].
    fn answer(&self, sent: Sent) -> Result<PeerReply> {
        match sent {
            Sent::Answered(reply) => reply,
            Sent::Underway { .. } => Err(Errno::PROTO),
        }
    }

    /// Sends the same request to these nodes at once. Returns their replies, in the same order.
    fn ask_each(&self, nodes: &[NodeId], kind: u16, head: &[u8]) -> Vec<Result<PeerReply>> {
        let bytes = Bytes::None;
        let requests: Vec<PeerRequest<'_>> = nodes
            .iter()
            .map(|&node| PeerRequest {
                node,
                kind,
                head,
                bytes,
            })
            .collect();
        // SAFETY: without bytes, no address has to be valid.
        unsafe { self.ask_all(&requests) }
    }

    /// Sends `node` a message and doesn't wait for a reply. The message precedes all later requests
    /// of this thread.
    fn tell(&self, node: NodeId, kind: u16, head: &[u8]) {
        // SAFETY: without bytes, no address has to be valid.
        let _: Result<PeerReply> = unsafe { self.ask(node, kind, head, Bytes::None) };
    }

    /// Returns the time after which an unreachable node loses its programs' locks on other nodes'
    /// files. None: a node never loses them.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// The error of a program's operation on a file of `node` on which this node has lost its
    /// locks.
    fn fenced(&self, _node: NodeId) -> Errno {
        Errno::OWNERDEAD
    }

    /// Whether a request of this node may still be carried out although no process waits for it:
    /// its sender has died, or has abandoned it. While there is such a request, the intents of dead
    /// processes aren't completed: such a request may still create an entry.
    fn has_orphans(&self) -> bool {
        false
    }

    /// Renews the connections in a forked child. The child calls this function before anything
    /// else.
    fn after_fork_in_child(&self);
}

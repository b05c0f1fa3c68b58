//! The way to the other nodes of the pool, and what is sent on it.
//!
//! - [`Peers`] delivers requests. Crates above implement it: a process passes its requests to its
//!   node's daemon, the daemon sends them itself. A request is answered or fails in bounded time.
//! - [`requests`] declares each request once; [`messages`] encodes arguments and replies.
//!
//! A node keeps the entries and objects of its slots. An operation on others is sent to their home,
//! which carries it out on its own store as any process there does (`serve.rs`): so there is one
//! implementation of every rule. See docs/decisions/0020-operations-across-nodes.md.

pub mod messages;
pub mod requests;

use forebay_placement::{NodeId, Slot};
use forebay_store::{Errno, Result};
use std::time::Duration;

/// Bytes that travel with a message, where the caller has them. They may be the program's own, so
/// that touching them may fault: copy them with `forebay_media::guard`.
#[derive(Clone, Copy, Debug)]
pub enum Bytes {
    /// None.
    None,
    /// These go with the question.
    Send(*const u8, usize),
    /// As many as fit here come with the answer.
    Receive(*mut u8, usize),
}

/// The kind of the question that a process asks its own node's daemon: how large the pool is, and
/// how full. The answer: size:8, use:8, then of the nodes with the most room, this one left out,
/// number:4 and free bytes:8.
pub const CAPACITY: u16 = 0x7ffe;
/// Most bytes that travel with one message.
pub const MAX_BODY: usize = 1 << 20;
/// Most bytes of a question or an answer without those.
pub const MAX_HEAD: usize = 48 << 10;

/// What is asked of a node.
#[derive(Clone, Copy, Debug)]
pub struct PeerRequest<'a> {
    /// Of whom.
    pub node: NodeId,
    /// One of [`messages::kind`].
    pub kind: u16,
    /// Its arguments, encoded.
    pub head: &'a [u8],
    /// What travels with it.
    pub bytes: Bytes,
}

/// What another node has answered.
#[derive(Clone, Debug, Default)]
pub struct PeerReply {
    /// The answer, encoded.
    pub head: Vec<u8>,
    /// How many bytes came with it.
    pub received: usize,
}

/// A question that was sent: [`Peers::answer`] says what has come of it, and has to be asked.
#[derive(Debug)]
pub enum Sent {
    /// It has been answered already.
    Answered(Result<PeerReply>),
    /// It is under way to this node, in this cell of the requests; who waits gives up then.
    Underway {
        node: NodeId,
        cell: usize,
        until: u64,
    },
}

/// A way to the other nodes of the pool.
pub trait Peers: Send + Sync {
    /// This node's number.
    fn this_node(&self) -> NodeId;

    /// The node that keeps `slot`.
    fn node_of(&self, slot: Slot) -> NodeId;

    /// One of this node's own slots, chosen by `hash`; None if it has none.
    fn slot_here(&self, hash: u64) -> Option<Slot>;

    /// The numbers of all nodes, ascending.
    fn nodes(&self) -> &[NodeId];

    /// Asks `node` and waits for the answer, for as long as the pool's patience.
    ///
    /// # Errors
    /// What the node answered; EHOSTDOWN if it can't be reached or doesn't answer in time; EFAULT
    /// if `bytes` can't be touched.
    ///
    /// # Safety
    /// `bytes` are the caller's to read, or to write.
    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply>;

    /// Asks all of these at once; the answers, in the same order.
    ///
    /// # Safety
    /// As for [`Peers::ask`].
    unsafe fn ask_all(&self, questions: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>>;

    /// Sends a question and returns before it is answered, where that is possible just now. `bytes`
    /// aren't needed any more then.
    ///
    /// # Safety
    /// `bytes` are the caller's to read; none are received.
    unsafe fn send(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Sent {
        // SAFETY: passed on.
        Sent::Answered(unsafe { self.ask(node, kind, head, bytes) })
    }

    /// Waits for the answer to what this process has sent.
    ///
    /// # Errors
    /// As for [`Peers::ask`].
    fn answer(&self, sent: Sent) -> Result<PeerReply> {
        match sent {
            Sent::Answered(told) => told,
            Sent::Underway { .. } => Err(Errno::PROTO),
        }
    }

    /// Asks these nodes the same at once; their answers, in the same order.
    fn ask_each(&self, nodes: &[NodeId], kind: u16, head: &[u8]) -> Vec<Result<PeerReply>> {
        let bytes = Bytes::None;
        let questions: Vec<PeerRequest<'_>> = nodes
            .iter()
            .map(|&node| PeerRequest {
                node,
                kind,
                head,
                bytes,
            })
            .collect();
        // SAFETY: there are no bytes.
        unsafe { self.ask_all(&questions) }
    }

    /// Tells `node` something and doesn't wait for the answer, whatever it is. It is on its way
    /// before what this thread asks later.
    fn tell(&self, node: NodeId, kind: u16, head: &[u8]) {
        // SAFETY: there are no bytes.
        let _: Result<PeerReply> = unsafe { self.ask(node, kind, head, Bytes::None) };
    }

    /// After how long a node that can't be reached loses the locks that its programs have on other
    /// nodes' files. None: it doesn't.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// A program is refused what it asks of a file of `node`, on which this node's locks are lost:
    /// the error that it gets.
    fn fenced(&self, _node: NodeId) -> Errno {
        Errno::OWNERDEAD
    }

    /// In a forked child, before anything else.
    fn after_fork_in_child(&self);
}

//! The other nodes of the pool, as the store sees them: what has its home elsewhere is asked of
//! them.
//!
//! A store keeps the entries and objects of its node's slots. An operation on others is sent to
//! their home, which carries it out on its own store as any process there does: so there is one
//! implementation of every rule. How messages get there is the business of the floors above
//! ([`Peers`]); what they say is [`messages`], who answers them is [`serve`]. See
//! docs/decisions/0020-operations-across-nodes.md.

mod copy;
mod data;
pub mod leases;
pub mod locks;
pub(crate) mod merge;
pub mod messages;
mod names;
mod parts;
mod pieces;
pub mod requests;
pub mod serve;

use crate::Cluster;
use crate::cross_node::Backoff;
pub(crate) use copy::with_open;
use forebay_placement::{Distribution, NodeId, ObjectId, Slot};
use forebay_store::{Errno, Result, Store};
use messages::{Wire, kind};
pub use pieces::{Pieces, Sending};
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

/// How long after its home was asked a use may be made a live entry. Less than the time between two
/// looks of the home at what is open ([`Server::check_open`]).
pub(crate) const USED_WITHIN: Duration = Duration::from_secs(2);
/// ENOSPC if not all was written.
fn whole(written: usize, all: usize) -> Result<()> {
    match written == all {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
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

impl<'a> Cluster<'a> {
    /// The node that keeps `slot`, if it isn't this one.
    pub(crate) fn away(&self, slot: Slot) -> Option<NodeId> {
        let elsewhere = self.peers()?;
        let node = elsewhere.node_of(slot);
        (node != elsewhere.this_node()).then_some(node)
    }

    /// The size of the pool's media and how much of them is used, on all nodes together; as they
    /// were a moment ago, elsewhere. None in a pool of one node, or if nobody can tell.
    pub fn capacity_of_all(&self) -> Option<(u64, u64)> {
        let e = self.peers()?;
        // SAFETY: there are no bytes.
        let told = unsafe { e.ask(e.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let (size, used) = told.head.split_first_chunk::<8>()?;
        let used = used.first_chunk::<8>()?;
        Some((u64::from_le_bytes(*size), u64::from_le_bytes(*used)))
    }

    /// The nodes with the most room, and their free bytes, as they were a moment ago: the largest
    /// first. None if nobody can tell.
    pub(crate) fn rooms(&self) -> Option<Vec<(NodeId, u64)>> {
        let others = self.peers()?;
        // SAFETY: there are no bytes.
        let told = unsafe { others.ask(others.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let list = told.head.get(16..)?;
        let room = |one: &[u8]| -> Option<(NodeId, u64)> {
            let (node, free) = one.split_first_chunk::<4>()?;
            let free = u64::from_le_bytes(*free.first_chunk::<8>()?);
            Some((NodeId(u32::from_le_bytes(*node)), free))
        };
        list.chunks_exact(12).map(room).collect()
    }

    /// The number of the node on which the data of `id` lie; None if that is several, or in a pool
    /// of one node.
    pub fn home_of(&self, id: ObjectId) -> Option<u32> {
        let elsewhere = self.peers()?;
        if matches!(id.distribution(), Distribution::Striped(_)) {
            return None;
        }
        Some(elsewhere.node_of(id.slot()).0)
    }

    /// The home of the entry `name` of `parent`, if it isn't this node.
    pub(crate) fn entry_away(&self, parent: ObjectId, name: &[u8]) -> Option<NodeId> {
        // Without other nodes, no hash.
        self.peers()?;
        if Store::is_in_view(parent, name) {
            return None;
        }
        self.away(Slot::of_entry(parent, name))
    }

    /// The home of the object `id`, if it isn't this node.
    pub(crate) fn object_away(&self, id: ObjectId) -> Option<NodeId> {
        if id.is_part() || id.is_view() {
            // Each node has its own.
            return None;
        }
        self.away(id.slot())
    }

    /// The other nodes. To be called where something is away.
    pub(crate) fn other_nodes(&self) -> Result<&'a dyn Peers> {
        self.peers().ok_or(Errno::NODEV)
    }

    /// Asks `node` for what needs no bytes besides.
    pub(crate) fn ask<T: Wire>(&self, node: NodeId, kind: u16, question: &impl Wire) -> Result<T> {
        // SAFETY: there are no bytes.
        unsafe { self.ask_with(node, kind, question, Bytes::None) }.map(|(answer, _)| answer)
    }

    /// As [`Cluster::ask`], but says EAGAIN where that would wait for others who are at it.
    pub(crate) fn ask_once<T: Wire>(
        &self,
        node: NodeId,
        kind: u16,
        question: &impl Wire,
    ) -> Result<T> {
        let head = messages::encode(question);
        // SAFETY: there are no bytes.
        let told = unsafe { self.other_nodes()?.ask(node, kind, &head, Bytes::None) }?;
        messages::decode(&told.head).ok_or(Errno::PROTO)
    }

    /// Asks `node`; the answer, and how many bytes came with it.
    ///
    /// # Safety
    /// `bytes` are the caller's to read, or to write.
    pub(crate) unsafe fn ask_with<T: Wire>(
        &self,
        node: NodeId,
        kind: u16,
        question: &impl Wire,
        bytes: Bytes,
    ) -> Result<(T, usize)> {
        let head = messages::encode(question);
        let mut backoff = None;
        let told = loop {
            // SAFETY: passed on.
            match unsafe { self.other_nodes()?.ask(node, kind, &head, bytes) } {
                // Others are at it, and it doesn't wait for them: we do.
                Err(Errno::AGAIN) => backoff.get_or_insert_with(Backoff::new).wait()?,
                told => break told,
            }
        };
        let told = match told {
            Err(Errno::STALE) if kind != kind::EPOCH => {
                // It may know of a change of names that we don't.
                let theirs: u64 = self.ask(node, kind::EPOCH, &())?;
                self.raise_epoch(theirs);
                return Err(Errno::STALE);
            }
            other => other?,
        };
        let answer = messages::decode(&told.head).ok_or(Errno::PROTO)?;
        Ok((answer, told.received))
    }

    /// Whether directories change on this node, for all.
    pub(crate) fn changes_names(&self) -> bool {
        self.peers()
            .is_some_and(|peers| peers.nodes().first() == Some(&peers.this_node()))
    }

    /// The node on which directories change, one at a time.
    pub(crate) fn names_node(&self) -> Option<NodeId> {
        self.peers()?.nodes().first().copied()
    }
}

//! Sends requests to other nodes, decodes the replies, and repeats requests that were refused
//! temporarily.
//!
//! - The reply EAGAIN means that another operation is changing the same entry or object. The
//!   requesting side waits and sends the request again ([`Backoff`]); the serving side never waits.
//! - ESTALE means that the nodes' epochs of names differ. The requesting side fetches the other
//!   node's epoch before it returns the error, so that the caller resolves its path again with the
//!   later epoch.

use crate::Cluster;
use crate::backoff::Backoff;
use crate::peers::messages::Wire;
use crate::peers::requests::{Signature, kind, request};
use crate::peers::{Bytes, Peers};
use forebay_placement::NodeId;
use forebay_store::{Errno, Result};

impl<'a> Cluster<'a> {
    /// Returns the connections to the other nodes. Called for objects that lie on one of them;
    /// ENODEV in a pool of one node.
    pub(crate) fn other_nodes(&self) -> Result<&'a dyn Peers> {
        self.peers().ok_or(Errno::NODEV)
    }

    /// Sends `node` a request without additional bytes, and returns the reply. While the reply is
    /// EAGAIN, waits and sends the request again.
    pub(crate) fn ask<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Result<R> {
        // SAFETY: `Bytes::None` has no address that could be invalid.
        unsafe { self.ask_with(node, request, arguments, Bytes::None) }.map(|(reply, _)| reply)
    }

    /// Sends the same request to these nodes at once. Returns their replies, in the same order.
    /// Doesn't repeat a request whose reply is EAGAIN.
    pub(crate) fn ask_each<A, R: Wire>(
        &self,
        nodes: &[NodeId],
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Vec<Result<R>> {
        let others = match self.other_nodes() {
            Ok(others) => others,
            Err(e) => return nodes.iter().map(|_| Err(e)).collect(),
        };
        let (kind, head) = request.message(arguments);
        let reply = others.ask_each(nodes, kind, &head);
        assert!(
            reply.len() == nodes.len(),
            "each node that is asked has a reply"
        );
        reply
            .into_iter()
            .map(|reply| request.decode(&reply?.head))
            .collect()
    }

    /// As [`Cluster::ask`], but returns EAGAIN instead of waiting for another operation to end.
    pub(crate) fn ask_once<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
    ) -> Result<R> {
        let (kind, head) = request.message(arguments);
        // SAFETY: `Bytes::None` has no address that could be invalid.
        let reply = unsafe { self.other_nodes()?.ask(node, kind, &head, Bytes::None) }?;
        request.decode(&reply.head)
    }

    /// Sends a request to `node`. Returns the reply, and the number of bytes that came with it.
    ///
    /// # Safety
    /// `bytes` must be valid for reads if they are sent, for writes if they are received.
    pub(crate) unsafe fn ask_with<A, R: Wire>(
        &self,
        node: NodeId,
        request: Signature<A, R>,
        arguments: &impl Wire<Owned = A>,
        bytes: Bytes,
    ) -> Result<(R, usize)> {
        let (kind, head) = request.message(arguments);
        forebay_trace::event!(CLUSTER_ASK, node.0, kind);
        let mut backoff = None;
        let reply = loop {
            // SAFETY: the caller promises that `bytes` are valid.
            match unsafe { self.other_nodes()?.ask(node, kind, &head, bytes) } {
                // An operation in progress at `node` conflicts with the request. The serving node
                // never waits for such an operation, so this node does.
                Err(Errno::AGAIN) => backoff.get_or_insert_with(Backoff::new).wait()?,
                reply => break reply,
            }
        };
        let reply = match reply {
            Err(Errno::STALE) if kind != kind::EPOCH => {
                // `node` may know a later epoch of names than this node.
                let theirs = self.ask(node, request::EPOCH, &())?;
                self.store().names_epoch().raise(theirs);
                return Err(Errno::STALE);
            }
            other => other?,
        };
        Ok((request.decode(&reply.head)?, reply.received))
    }

    /// Returns the next message of `node`'s origin service about this node's request `number`; None
    /// if no message has come yet. If `bytes` isn't empty, it is the request itself, which the
    /// service begins to carry out.
    ///
    /// # Errors
    /// ENOTCONN if the service doesn't run, or has no request `number`; EHOSTDOWN if `node` can't
    /// be reached.
    pub fn ask_origin(&self, node: NodeId, number: u64, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        self.ask(node, request::ORIGIN, &(number, bytes))
    }
}

//! Room on a pool's nodes: their capacity, and the quota: each node's grant and usage.
//!
//! This module makes no decisions about quotas: the origin service gives grants
//! (`crates/services/origin/src/quota.rs`), and each node's store keeps its operations within the
//! node's grant (`crates/core/store/src/quota.rs`).

use crate::peers::requests::request;
use crate::peers::{Bytes, CAPACITY};
use crate::views::Room;
use forebay_placement::NodeId;
use forebay_store::quota::Amount;
use forebay_store::{NewObject, ObjectId, Result};

impl Room<'_> {
    /// Returns the numbers of all nodes; only 0 in a pool of one node.
    pub fn quota_nodes(&self) -> Vec<u32> {
        match self.cluster.peers() {
            Some(peers) => peers.nodes().iter().map(|node| node.0).collect(),
            None => vec![0],
        }
    }

    /// Returns the node whose grant is charged for the size of a file.
    pub fn quota_node(&self, id: ObjectId) -> u32 {
        self.cluster
            .peers()
            .map_or(0, |peers| peers.node_of(id.slot()).0)
    }

    /// Returns the node whose grant will be charged for a new object: the node on which the object
    /// will lie if that node has room.
    pub fn quota_node_of_new(&self, parent: ObjectId, name: &[u8], new: &NewObject<'_>) -> u32 {
        let Some(peers) = self.cluster.peers() else {
            return 0;
        };
        // An object without a name is created on this node.
        let remote = if name.is_empty() || self.cluster.namespace().is_made_here(parent, new) {
            None
        } else {
            self.cluster.remote_home_of_entry(parent, name)
        };
        remote.unwrap_or(peers.this_node()).0
    }

    /// Sets a node's total grant, if `granted` is given. Returns the node's usage after that.
    ///
    /// # Errors
    /// EHOSTDOWN and other errors of the request: the grant may be set or not.
    pub fn exchange_quota(&self, node: u32, granted: Option<Amount>) -> Result<Amount> {
        match self.cluster.peers() {
            Some(peers) if peers.this_node() != NodeId(node) => {
                self.cluster.ask(NodeId(node), request::QUOTA, &granted)
            }
            _ => Ok(self.store().quota().exchange(granted)),
        }
    }

    /// Returns the size of all nodes' media, and how much of them is used. Bytes. Figures of other
    /// nodes may be some seconds old. None in a pool of one node, or if they aren't known.
    pub fn capacity_of_all(&self) -> Option<(u64, u64)> {
        let e = self.cluster.peers()?;
        // SAFETY: without bytes, no address has to be valid.
        let reply = unsafe { e.ask(e.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let (size, used) = reply.head.split_first_chunk::<8>()?;
        let used = used.first_chunk::<8>()?;
        Some((u64::from_le_bytes(*size), u64::from_le_bytes(*used)))
    }

    /// Returns the other nodes with the most room and the free bytes that they reported last, in
    /// descending order. None if they aren't known.
    pub fn rooms(&self) -> Option<Vec<(NodeId, u64)>> {
        let others = self.cluster.peers()?;
        // SAFETY: without bytes, no address has to be valid.
        let reply = unsafe { others.ask(others.this_node(), CAPACITY, &[], Bytes::None) }.ok()?;
        let list = reply.head.get(16..)?;
        let room = |one: &[u8]| -> Option<(NodeId, u64)> {
            let (node, free) = one.split_first_chunk::<4>()?;
            let free = u64::from_le_bytes(*free.first_chunk::<8>()?);
            Some((NodeId(u32::from_le_bytes(*node)), free))
        };
        list.chunks_exact(12).map(room).collect()
    }
}

//! The quota of a pool on all its nodes: each node's grant and usage.
//!
//! This module makes no decisions: the origin service gives grants
//! (`crates/services/origin/src/quota.rs`), and each node's store keeps its operations within the
//! node's grant (`crates/core/store/src/quota.rs`).

use crate::Cluster;
use crate::peers::requests::request;
use forebay_placement::NodeId;
use forebay_store::quota::Amount;
use forebay_store::{NewObject, ObjectId, Result};

impl Cluster<'_> {
    /// Returns the numbers of all nodes; only 0 in a pool of one node.
    pub fn quota_nodes(&self) -> Vec<u32> {
        match self.peers() {
            Some(peers) => peers.nodes().iter().map(|node| node.0).collect(),
            None => vec![0],
        }
    }

    /// The node that counts the size of a file.
    pub fn quota_node(&self, id: ObjectId) -> u32 {
        self.peers().map_or(0, |peers| peers.node_of(id.slot()).0)
    }

    /// Returns the node that counts an object which is about to be created: the node on which it
    /// will lie, if that has room.
    pub fn quota_node_of_new(&self, parent: ObjectId, name: &[u8], new: &NewObject<'_>) -> u32 {
        let Some(peers) = self.peers() else { return 0 };
        // An object without a name is created on this node.
        let remote = if name.is_empty() || self.namespace().is_made_here(parent, new) {
            None
        } else {
            self.remote_home_of_entry(parent, name)
        };
        remote.unwrap_or(peers.this_node()).0
    }

    /// Sets a node's total grant, if `granted` is given. Returns the node's usage after that.
    ///
    /// # Errors
    /// EHOSTDOWN and the like: it isn't known whether the grant is set.
    pub fn exchange_quota(&self, node: u32, granted: Option<Amount>) -> Result<Amount> {
        match self.peers() {
            Some(peers) if peers.this_node() != NodeId(node) => {
                self.ask(NodeId(node), request::QUOTA, &granted)
            }
            _ => Ok(self.quota().exchange(granted)),
        }
    }
}

//! The requests to other nodes that the store itself causes, for example when this node closes or
//! unlocks an object of another node.
//!
//! Implements the store's trait `Remote`, by which the store of a node in a pool of several calls
//! this crate.

use crate::peers::requests::request;
use crate::{Cluster, Nodes};
use forebay_store::locks::Owner;
use forebay_store::record::{Entry, Inode};
use forebay_store::{NodeId, ObjectId, Remote, Result, Slot, Store};

impl Remote for Nodes {
    fn node(&self) -> NodeId {
        self.peers.this_node()
    }

    fn keeps(&self, slot: Slot) -> bool {
        self.peers.node_of(slot) == self.peers.this_node()
    }

    /// Notifies the object's home that a use has ended, without waiting for a reply: no later
    /// request depends on the message, and an error at the home doesn't concern the process that
    /// closes the file. If the message gets lost, the home's periodic check ends the use
    /// (`Server::check_open`).
    fn closed(&self, id: ObjectId, number: u64) {
        let home = self.peers.node_of(id.slot());
        let (kind, head) = request::CLOSE.message(&(id, number));
        self.peers.tell(home, kind, &head);
    }

    fn unlocked(&self, store: &Store, id: ObjectId, owner: Owner) -> Result<()> {
        Cluster::new(store, Some(self)).locks().end_locks_there(
            self.peers.node_of(id.slot()),
            id,
            owner,
        )
    }

    fn inode_of(&self, store: &Store, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        Cluster::new(store, Some(self)).namespace().inode_tail(id)
    }

    fn entry_of(&self, store: &Store, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        Cluster::new(store, Some(self))
            .namespace()
            .lookup(parent, name)
    }

    fn written(&self, store: &Store, id: ObjectId, live: Option<u32>) -> Result<()> {
        Cluster::new(store, Some(self))
            .declarations()
            .laminate_written(id, live)
    }
}

//! What is told to the homes of other nodes' objects when uses and locks end here.

use crate::elsewhere::Elsewhere;
use crate::elsewhere::messages::{encode, kind};
use crate::locks::Owner;
use crate::record::Inode;
use crate::{Foreign, NodeId, ObjectId, Result, Slot, Store};
use std::sync::Arc;

/// The homes of what isn't this node's.
pub(crate) struct Homes(pub Arc<dyn Elsewhere>);

impl Foreign for Homes {
    fn node(&self) -> NodeId {
        self.0.me()
    }

    fn keeps(&self, slot: Slot) -> bool {
        self.0.node_of(slot) == self.0.me()
    }

    /// Nobody waits: nothing that is asked later depends on it, and an error of the home's own isn't
    /// known to who closes anyway. Should it get lost, the home asks after a while ([`Store::use_of`]).
    fn closed(&self, id: ObjectId, number: u64) {
        let home = self.0.node_of(id.slot());
        self.0.tell(home, kind::CLOSE, &encode(&(id, number)));
    }

    fn unlocked(&self, store: &Store, id: ObjectId, owner: Owner) -> Result<()> {
        store.end_locks_there(self.0.node_of(id.slot()), id, owner)
    }

    fn inode_of(&self, store: &Store, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        store.inode_tail(id)
    }

    fn written(&self, store: &Store, id: ObjectId, live: Option<u32>) -> Result<()> {
        store.laminate_written(id, live)
    }
}

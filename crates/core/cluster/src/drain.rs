//! Drains files of several nodes: each node moves its bytes of the file from memory to `files`
//! media.
//!
//! The home decides which files are drained and notifies the nodes with parts, without waiting for
//! them.

use crate::peers::requests::request;
use crate::views::Room;
use forebay_store::control_region::live_flag as flag;
use forebay_store::data::Drained;
use forebay_store::{ObjectId, Result};
use std::sync::atomic::Ordering::*;

impl<'a> Room<'a> {
    /// Moves files of this node that were written in bursts and that no process has open, until
    /// `most` bytes or slightly more are moved. Notifies other nodes to move their parts.
    ///
    /// # Errors
    /// ENOSPC if the `files` media have no room; EIO.
    pub fn drain(&self, most: u64) -> Result<Drained> {
        self.store()
            .content()
            .drain_here(most, |index, id| self.notify_parts_landed(index, id))
    }

    /// Notifies the other nodes that their parts of a file are to be moved, without waiting for
    /// them.
    fn notify_parts_landed(&self, index: u32, id: ObjectId) {
        let parts = self.store().objects().live(index).flags.load(Acquire) & flag::PARTS != 0;
        if let (true, Ok(others), Ok(nodes)) = (
            parts,
            self.cluster.other_nodes(),
            self.cluster.stripes().part_nodes(id),
        ) {
            let (kind, head) = request::LANDED.message(&id);
            for node in nodes {
                others.tell(node, kind, &head);
            }
        }
    }
}

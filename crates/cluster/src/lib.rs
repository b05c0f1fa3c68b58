//! The pool as one store: each operation goes to this node's store or to the node that it concerns.
//!
//! The functions here have the names that faces know (`read`, `lookup`, `rename`). Each decides
//! where its object or entry lies; what lies here is done by the local half (`read_here`,
//! `lookup_here`), what lies on another node is asked of that node, and what lies on several is put
//! together. Modules outside of this one never ask another node.

use crate::peers::Peers;
use crate::stripes::placed::Memory;
use forebay_store::Store;
use std::ops::Deref;
use std::sync::Arc;

mod attributes;
mod controls;
mod copies;
mod copy;
mod create;
mod cross_node;
mod data;
mod declare;
mod dirs;
mod drain;
mod ephemeral;
mod find;
mod fsck;
mod homes;
mod live;
mod locks;
mod mapped;
mod names;
mod on_files;
pub mod peers;
mod remove;
mod rename;
mod room;
mod search;
mod stripes;
mod sync;
#[cfg(test)]
mod tests;
mod view;

pub use copy::COPIED_AT_ONCE;
pub(crate) use copy::{Range, Source, Target};
pub use cross_node::NewFile;
pub use live::Away;
pub use names::Found;
pub use peers::merge::Conflict;

/// What a process of a pool of several nodes has besides its node's store: the way to the other
/// nodes.
pub struct Nodes {
    peers: Arc<dyn Peers>,
    /// Where chunks of files lie that have grown on other nodes.
    placed: Memory,
}

impl Nodes {
    /// Nodes that are reached this way.
    pub fn new(peers: Arc<dyn Peers>) -> Arc<Nodes> {
        Arc::new(Nodes {
            peers,
            placed: Memory::default(),
        })
    }

    /// In a forked child, before anything else.
    pub fn after_fork_in_child(&self) {
        self.peers.after_fork_in_child();
    }
}

/// The pool as one store, seen from this node. A view of the node's store and of the way to the
/// other nodes, cheap to make and to copy; what concerns this node alone is the store's
/// ([`Deref`]).
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    store: &'a Store,
    nodes: Option<&'a Nodes>,
}

impl<'a> Cluster<'a> {
    /// The pool of which `store` is this node's share: with the other `nodes`, or alone.
    pub fn new(store: &'a Store, nodes: Option<&'a Nodes>) -> Cluster<'a> {
        Cluster { store, nodes }
    }

    /// Where chunks lie that have grown on other nodes, as far as this process has been told.
    pub(crate) fn placed(&self) -> &'a Memory {
        static NONE: Memory = Memory::new();
        self.nodes.map_or(&NONE, |nodes| &nodes.placed)
    }

    /// The way to the other nodes, if there are any.
    pub(crate) fn peers(&self) -> Option<&'a dyn Peers> {
        self.nodes.map(|nodes| &*nodes.peers)
    }
}

impl Deref for Cluster<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store
    }
}

//! [`Cluster`]: the pool as one store, seen from this node.
//!
//! A view of the node's store and of the way to the other nodes, made for each call and copied
//! freely. Operations that concern this node alone are the store's, reached by [`Deref`]; the other
//! modules of this crate add the operations that may concern other nodes.
//!
//! The homes of entries and objects: that of an entry follows from its directory and name, that of
//! an object from the slot in its id. Neither needs a request.

use crate::peers::Peers;
use crate::placement_cache::PlacementCache;
use crate::salvage::SalvageCell;
use forebay_placement::{Distribution, NodeId, ObjectId, Slot};
use forebay_store::Store;
use forebay_store::views::Index;
use std::ops::Deref;
use std::sync::Arc;

/// The additional state of a process of a pool of several nodes: access to the other nodes.
pub struct Nodes {
    pub(crate) peers: Arc<dyn Peers>,
    /// Where chunks of files lie that have grown on other nodes.
    placed: PlacementCache,
}

impl Nodes {
    /// Nodes that are reached this way.
    pub fn new(peers: Arc<dyn Peers>) -> Arc<Nodes> {
        Arc::new(Nodes {
            peers,
            placed: PlacementCache::default(),
        })
    }

    /// In a forked child, before anything else.
    pub fn after_fork_in_child(&self) {
        self.peers.after_fork_in_child();
    }
}

/// The pool as one store, seen from this node. See the module's documentation.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    store: &'a Store,
    nodes: Option<&'a Nodes>,
    /// See [`Cluster::may_wait`].
    may_wait: bool,
    salvage: &'a SalvageCell,
}

/// For views without a salvage.
static NO_SALVAGE: SalvageCell = SalvageCell::new();

impl<'a> Cluster<'a> {
    /// The pool of which `store` is this node's share: with the other `nodes`, or alone.
    pub fn new(store: &'a Store, nodes: Option<&'a Nodes>) -> Cluster<'a> {
        Cluster {
            store,
            nodes,
            may_wait: true,
            salvage: &NO_SALVAGE,
        }
    }

    /// The same view, which shows what living nodes know while others are dead: see
    /// [`Salvage`](crate::Salvage).
    pub fn with_salvage(self, salvage: &'a SalvageCell) -> Cluster<'a> {
        Cluster { salvage, ..self }
    }

    pub(crate) fn salvage_cell(&self) -> &'a SalvageCell {
        self.salvage
    }

    /// The same view for an operation that returns EAGAIN instead of waiting until another
    /// operation on a name ends. A request that is carried out for another node doesn't wait for
    /// third nodes: the requesting node waits and asks again. So it can't happen that all threads
    /// of two nodes wait for each other.
    pub(crate) fn nonblocking(self) -> Cluster<'a> {
        Cluster {
            may_wait: false,
            ..self
        }
    }

    /// Whether an operation may wait until others are done with a name ([`Cluster::nonblocking`]).
    pub(crate) fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// This node's share, for as long as the view lasts.
    pub(crate) fn store(&self) -> &'a Store {
        self.store
    }

    /// Locations of chunks that have grown on other nodes, as far as this process knows.
    pub(crate) fn placed(&self) -> &'a PlacementCache {
        static NONE: PlacementCache = PlacementCache::new();
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

impl<'a> Cluster<'a> {
    /// The node that keeps `slot`, if it isn't this one.
    pub(crate) fn remote(&self, slot: Slot) -> Option<NodeId> {
        let peers = self.peers()?;
        let node = peers.node_of(slot);
        (node != peers.this_node()).then_some(node)
    }

    /// The number of the node on which the data of `id` lie; None if that is several, or in a pool
    /// of one node.
    pub fn home_of(&self, id: ObjectId) -> Option<u32> {
        let peers = self.peers()?;
        if matches!(id.distribution(), Distribution::Striped(_)) {
            return None;
        }
        Some(peers.node_of(id.slot()).0)
    }

    /// The home of the entry `name` of `parent`, if it isn't this node.
    pub(crate) fn remote_home_of_entry(&self, parent: ObjectId, name: &[u8]) -> Option<NodeId> {
        // Without other nodes, no hash.
        self.peers()?;
        if Index::is_in_view(parent, name) {
            return None;
        }
        self.remote(Slot::of_entry(parent, name))
    }

    /// The home of the object `id`, if it isn't this node.
    pub(crate) fn remote_home(&self, id: ObjectId) -> Option<NodeId> {
        if id.is_part() || id.is_view() {
            // Each node has its own.
            return None;
        }
        self.remote(id.slot())
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

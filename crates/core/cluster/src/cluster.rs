//! [`Cluster`]: the pool as one store, seen from this node.
//!
//! A `Cluster` is a cheap view of the node's store and of its connections to other nodes, made for
//! each call and copied freely. A `Cluster` knows the homes of slots, entries and objects, and
//! sends requests to them. Operations that may concern other nodes are methods of its views by
//! theme (`views.rs`); operations of this node alone are those of [`Cluster::store`].
//!
//! The home of an entry follows from its directory's id and its name; the home of an object follows
//! from the slot in its id. Finding either takes no request.

use crate::peers::Peers;
use crate::placement_cache::PlacementCache;
use crate::salvage::SalvageCell;
use forebay_placement::{Distribution, NodeId, ObjectId, Slot};
use forebay_store::Store;
use forebay_store::views::Index;
use std::sync::Arc;

/// The additional state of a process of a pool of several nodes: access to the other nodes.
pub struct Nodes {
    pub(crate) peers: Arc<dyn Peers>,
    /// The locations of spilled files' chunks that this process knows.
    placed: PlacementCache,
}

impl Nodes {
    /// Returns the state of a process that reaches the other nodes through `peers`.
    pub fn new(peers: Arc<dyn Peers>) -> Arc<Nodes> {
        Arc::new(Nodes {
            peers,
            placed: PlacementCache::default(),
        })
    }

    /// Renews the connections to other nodes in a forked child, which calls this before anything
    /// else.
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

/// The empty salvage of a [`Cluster`] that wasn't made by [`Cluster::with_salvage`].
static NO_SALVAGE: SalvageCell = SalvageCell::new();

impl<'a> Cluster<'a> {
    /// Returns a view of the pool of which `store` is this node's share. `nodes` is None in a pool
    /// of one node.
    pub fn new(store: &'a Store, nodes: Option<&'a Nodes>) -> Cluster<'a> {
        Cluster {
            store,
            nodes,
            may_wait: true,
            salvage: &NO_SALVAGE,
        }
    }

    /// Returns the same view with a salvage. While nodes are dead, the view shows the names that
    /// the living nodes know: see [`Salvage`](crate::Salvage).
    pub fn with_salvage(self, salvage: &'a SalvageCell) -> Cluster<'a> {
        Cluster { salvage, ..self }
    }

    pub(crate) fn salvage_cell(&self) -> &'a SalvageCell {
        self.salvage
    }

    /// Returns the same view for an operation that returns EAGAIN instead of waiting until another
    /// operation on a name ends. A node carries out its peers' requests with such a view; the
    /// requesting node waits and sends the request again. So it can't happen that all threads of
    /// two nodes wait for each other.
    pub(crate) fn nonblocking(self) -> Cluster<'a> {
        Cluster {
            may_wait: false,
            ..self
        }
    }

    /// Whether an operation may wait until another operation on a name ends
    /// ([`Cluster::nonblocking`]).
    pub(crate) fn may_wait(&self) -> bool {
        self.may_wait
    }

    /// Returns this node's store, for operations of this node alone. The reference may outlive this
    /// view.
    #[inline]
    pub fn store(&self) -> &'a Store {
        self.store
    }

    /// Returns the cache of the locations of spilled files' chunks.
    pub(crate) fn placed(&self) -> &'a PlacementCache {
        static NONE: PlacementCache = PlacementCache::new();
        self.nodes.map_or(&NONE, |nodes| &nodes.placed)
    }

    /// Returns the connections to the other nodes; None in a pool of one node.
    pub(crate) fn peers(&self) -> Option<&'a dyn Peers> {
        self.nodes.map(|nodes| &*nodes.peers)
    }
}

impl<'a> Cluster<'a> {
    /// Returns the node that has `slot`; None if that is this node.
    pub(crate) fn remote(&self, slot: Slot) -> Option<NodeId> {
        let peers = self.peers()?;
        let node = peers.node_of(slot);
        (node != peers.this_node()).then_some(node)
    }

    /// Returns the number of the node on which the data of `id` lie. None for a striped object,
    /// whose data lie on several nodes, and in a pool of one node.
    pub fn home_of(&self, id: ObjectId) -> Option<u32> {
        let peers = self.peers()?;
        if matches!(id.distribution(), Distribution::Striped(_)) {
            return None;
        }
        Some(peers.node_of(id.slot()).0)
    }

    /// Returns the home of the entry `name` of `parent`; None if that is this node.
    pub(crate) fn remote_home_of_entry(&self, parent: ObjectId, name: &[u8]) -> Option<NodeId> {
        // In a pool of one node, return before the hash is computed.
        self.peers()?;
        if Index::is_in_view(parent, name) {
            return None;
        }
        self.remote(Slot::of_entry(parent, name))
    }

    /// Returns the home of the object `id`; None if that is this node.
    pub(crate) fn remote_home(&self, id: ObjectId) -> Option<NodeId> {
        if id.is_part() || id.is_view() {
            // Each node has its own parts and views.
            return None;
        }
        self.remote(id.slot())
    }

    /// Whether a request that a dead process of this node has sent may still be carried out.
    pub(crate) fn has_orphans(&self) -> bool {
        self.peers().is_some_and(Peers::has_orphans)
    }

    /// Whether this node is the one that [`Cluster::names_node`] returns.
    pub(crate) fn changes_names(&self) -> bool {
        self.peers()
            .is_some_and(|peers| peers.nodes().first() == Some(&peers.this_node()))
    }

    /// Returns the node of names: the node that carries out all changes of the names of directories
    /// and symbolic links, one at a time. None in a pool of one node.
    pub(crate) fn names_node(&self) -> Option<NodeId> {
        self.peers()?.nodes().first().copied()
    }
}

//! The operations of the pool by theme: each type of this module has the operations of one theme.
//!
//! Such a type is a view: it holds a [`Cluster`], is made by an accessor for each call
//! (`cluster.locks().flock(..)`), and is copied freely. The methods are in the modules of their
//! theme. The methods reach the store by `self.store()`, other nodes by `self.cluster`, and other
//! themes by the accessors, as in `self.cluster.opens()`.

use crate::Cluster;
use forebay_store::Store;

macro_rules! view {
    ($(#[$doc:meta])* $vis:vis $name:ident, $accessor:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $vis struct $name<'a> {
            pub(crate) cluster: Cluster<'a>,
        }

        impl<'a> $name<'a> {
            /// Returns this node's store.
            #[inline]
            pub(crate) fn store(&self) -> &'a Store {
                self.cluster.store()
            }
        }

        impl<'a> Cluster<'a> {
            $(#[$doc])*
            #[inline]
            $vis fn $accessor(&self) -> $name<'a> {
                $name { cluster: *self }
            }
        }
    };
}

view! {
    /// Locks of programs (flock, fcntl), and the leases of such locks on files of other nodes:
    /// `locks.rs`, `locks/`.
    pub Locks, locks
}

view! {
    /// Objects that are open on this node, wherever they lie: `live.rs`.
    pub Opens, opens
}

view! {
    /// Names and attributes while nodes are dead: `dead_nodes.rs`.
    pub DeadNodes, dead_nodes
}

view! {
    /// Names, links, directories and attributes: `names.rs`, `create.rs`, `remove.rs`, `rename.rs`,
    /// `dirs.rs`, `attributes.rs`, and many files at once in `cross_node/`.
    pub Namespace, namespace
}

view! {
    /// Names whose entry and object lie on different nodes, and the steps that change them:
    /// `cross_node.rs`, `cross_node/`.
    pub(crate) CrossNode, cross_node
}

view! {
    /// Files by their attributes, and the view `.by`: `find.rs`, `search.rs`, `attribute_view.rs`.
    pub Search, search
}

view! {
    /// Bytes of open files, wherever they lie: `data.rs`, `data/`, `room.rs`, `copy_range.rs`,
    /// `write_buffer.rs`, `cached_copies.rs`, `sync.rs`.
    pub FileData, data
}

view! {
    /// Memory mappings of files, wherever their bytes lie: `mapped.rs`, `merge.rs`,
    /// `stripes/own.rs`.
    pub Mappings, mappings
}

view! {
    /// Bytes of files whose chunks lie on several nodes: `stripes.rs`, `stripes/`.
    pub(crate) Stripes, stripes
}

view! {
    /// Controls that are declared for files, and their effects on all nodes: `declare.rs`,
    /// `controls.rs`, `on_files.rs`, `ephemeral.rs`, `stripes/seal.rs`.
    pub Declarations, declarations
}

view! {
    /// The check of this node's records against those of other nodes: `fsck.rs`.
    pub Checks, checks
}

view! {
    /// Room on the nodes: capacity and quota (`quota.rs`), and moving files out of
    /// memory (`drain.rs`).
    pub Room, room
}

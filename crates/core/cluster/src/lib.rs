//! The pool as one store: each operation is carried out on this node's store or on the nodes that
//! it concerns.
//!
//! [`Cluster`] holds this node's store and the connections to the other nodes. The operations that
//! the faces call are methods of its views, one for each theme: [`Namespace`] (`lookup`, `rename`),
//! [`FileData`] (`read`), [`Locks`] and others (`views.rs`). Each operation finds the homes of its
//! objects and entries. For objects and entries of this node it calls the store (`read_here`,
//! `lookup_here`). For those of other nodes it sends requests to their homes. The operation
//! combines the results of several nodes. Modules of other crates never send a request to another
//! node.
//!
//! Layers, from the bottom: `backoff`, `placement_cache` and [`peers`] (how requests are sent, and
//! their table); `salvage` (names while nodes are dead); `cluster`; `views` (the types of the
//! operations); `ask` (requests and replies); the operations, each in a module by its theme, among
//! them `cross_node` (names over several nodes) and `stripes` (files over several nodes); [`serve`]
//! (answers to other nodes). A module imports only modules below it.

mod ask;
mod attribute_view;
mod attributes;
mod backoff;
mod cached_copies;
mod cluster;
mod controls;
mod copy_range;
mod create;
mod cross_node;
mod data;
mod dead_nodes;
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
mod merge;
mod names;
mod on_files;
pub mod peers;
mod placement_cache;
mod quota;
mod remove;
mod rename;
mod room;
mod salvage;
mod search;
pub mod serve;
mod stripes;
mod sync;
#[cfg(test)]
mod tests;
mod views;
mod write_buffer;

pub use cluster::{Cluster, Nodes};
pub use copy_range::COPIED_AT_ONCE;
pub use cross_node::NewFile;
pub use live::RemoteOpen;
pub use merge::Conflict;
pub use names::Found;
pub use salvage::{LOST_AND_FOUND, Salvage, SalvageCell};
pub use views::{
    Checks, DeadNodes, Declarations, FileData, Locks, Mappings, Namespace, Opens, Room, Search,
};
pub use write_buffer::{Sending, WriteBuffer};

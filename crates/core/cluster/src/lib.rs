//! The pool as one store: each operation is carried out on this node's store or on the nodes that
//! it concerns.
//!
//! [`Cluster`] has the functions that faces know (`read`, `lookup`, `rename`). Each finds out where
//! its object or entry lies. The local half (`read_here`, `lookup_here`) does what lies here;
//! another node is asked for what lies there; the results of several nodes are put together.
//! Modules of other crates never ask another node.
//!
//! Layers, from the bottom: `backoff`, `placement_cache` and [`peers`] (the way to other nodes and
//! the table of requests); `cluster` (the view); `ask` (requests and replies); `salvage` (names
//! while nodes are dead); the operations, each in a module by its theme, among them `cross_node`
//! (names over several nodes) and `stripes` (files over several nodes); [`serve`] (answers to other
//! nodes). A module imports only modules below it.

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
mod write_buffer;

pub use cluster::{Cluster, Nodes};
pub use copy_range::COPIED_AT_ONCE;
pub use cross_node::NewFile;
pub use live::RemoteOpen;
pub use merge::Conflict;
pub use names::Found;
pub use salvage::{LOST_AND_FOUND, Salvage, SalvageCell};
pub use write_buffer::{Sending, WriteBuffer};

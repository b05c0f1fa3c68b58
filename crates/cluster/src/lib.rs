//! The pool as one store: each operation goes to this node's store or to the nodes that it
//! concerns.
//!
//! [`Cluster`] has the functions that faces know (`read`, `lookup`, `rename`). Each finds out where
//! its object or entry lies. The local half (`read_here`, `lookup_here`) does what lies here;
//! another node is asked for what lies there; the results of several nodes are put together.
//! Modules of other crates never ask another node.
//!
//! Layers, from the bottom: `backoff`, `placement_cache` and [`peers`] (the way to other nodes and
//! the table of requests); `cluster` (the view); `ask` (requests and replies); the operations, each
//! in a module by its theme, among them `cross_node` (names over several nodes) and `stripes`
//! (files over several nodes); [`serve`] (answers to other nodes). A module imports only modules
//! below it.

mod ask;
mod attributes;
mod backoff;
mod cluster;
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
mod merge;
mod names;
mod on_files;
pub mod peers;
mod pieces;
mod placement_cache;
mod quota;
mod remove;
mod rename;
mod room;
mod search;
pub mod serve;
mod stripes;
mod sync;
#[cfg(test)]
mod tests;
mod view;

pub use cluster::{Cluster, Nodes};
pub use copy::COPIED_AT_ONCE;
pub use cross_node::NewFile;
pub use live::Away;
pub use merge::Conflict;
pub use names::Found;
pub use pieces::{Pieces, Sending};

//! The pool as one store: each operation goes to this node's store or to the node that it concerns.
//!
//! The functions here have the names that faces know (`read`, `lookup`, `rename`). Each decides
//! where its object or entry lies; what lies here is done by the local half (`read_here`,
//! `lookup_here`), what lies on another node is asked of that node, and what lies on several is put
//! together. Modules outside of this one never ask another node.

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

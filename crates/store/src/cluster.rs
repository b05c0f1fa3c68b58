//! The pool as one store: each operation goes to this node's store or to the node that it concerns.
//!
//! The functions here have the names that faces know (`read`, `lookup`, `rename`). Each decides where
//! its object or entry lies; what lies here is done by the local half (`read_here`, `lookup_here`),
//! what lies on another node is asked of that node, and what lies on several is put together.
//! Modules outside of this one never ask another node.

mod attributes;
mod copies;
mod copy;
mod create;
mod data;
mod declare;
mod dirs;
mod drain;
mod find;
mod fsck;
mod homes;
mod live;
mod locks;
mod makers;
mod mapped;
mod names;
mod on_files;
mod remove;
mod rename;
mod room;
mod search;
mod sync;
mod uses;
mod view;

pub use copy::COPIED_AT_ONCE;
pub(crate) use copy::{Range, Source, Target};
pub(crate) use homes::Homes;
pub use live::Away;
pub use names::Found;

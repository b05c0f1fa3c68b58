//! The daemons of a pool of several nodes.
//!
//! There is one daemon per node. It is never on the path of an operation whose home is its own
//! node; it serves the node's store to the others, and joins and leaves the pool.
//!
//! How the daemons of a pool start each other ([`start`]) is a protocol without input and output,
//! so that it can be tried with ten thousand nodes ([`sim`]). What one does then is in [`daemon`].

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod daemon;
pub mod launch;
pub mod limits;
pub mod sim;
pub mod start;
mod tree;

pub use limits::Limits;
pub use tree::Tree;

//! The daemons of a pool of several nodes.
//!
//! There is one daemon per node. It is never on the path of an operation whose home is its own
//! node. It serves the node's store to the other nodes, and joins and leaves the pool.
//!
//! The start of a pool's daemons ([`start`]) is a protocol without input and output, so that it can
//! be tested with ten thousand nodes (`tests/support/sim.rs`). A running daemon is in [`daemon`].

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod daemon;
pub mod launch;
pub mod limits;
pub mod start;
mod tree;

pub use limits::Limits;
pub use tree::Tree;

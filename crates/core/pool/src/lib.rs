//! The daemons of a pool of several nodes.
//!
//! Each node has one daemon. The daemon serves the node's store to the other nodes, and joins and
//! leaves the pool. Operations of programs on their own node's store don't involve the daemon.
//!
//! The start of a pool's daemons ([`start`]) is a protocol without input and output, so that it can
//! be tested with ten thousand nodes (`tests/support/sim.rs`). [`daemon`] is a running daemon.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod daemon;
mod error;
pub mod launch;
pub mod limits;
pub mod start;
mod tree;

pub use error::Error;
pub use limits::Limits;
pub use tree::Tree;

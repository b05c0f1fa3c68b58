//! The other end of a connection.

use forebay_placement::NodeId;
use std::fmt;
use std::net::SocketAddr;

/// A node and where it listens (or, if it called us, where it called from).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which node.
    pub node: NodeId,
    /// Its address.
    pub address: SocketAddr,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} ({})", self.node.0, self.address)
    }
}

//! The other end of a connection.

use forebay_placement::NodeId;
use std::fmt;
use std::net::SocketAddr;

/// A node, and its listening address or, if the node has connected to this one, the address from
/// which it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node.
    pub node: NodeId,
    /// The node's address.
    pub address: SocketAddr,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} ({})", self.node.0, self.address)
    }
}

//! The way of a request from a process to its node's daemon, which sends it to another node.
//!
//! All processes of the node map the file `requests` in the node's directory. The file holds
//! *cells*, each for one request and its reply ([`region`]). A process claims a free cell, copies
//! its request into the cell, posts it and waits for the reply ([`Channel`], which the store uses).
//! The daemon takes posted cells and sends their bytes directly from the file ([`RequestServer`]),
//! so it allocates nothing for them. There are no locks: atomic words in a cell say which side owns
//! it ([`cell`]).
//!
//! Any process may die at any time. A process that is short of cells reclaims the cells of dead
//! processes. If the daemon holds such a cell (the network may be reading or writing it), the
//! daemon frees it when done. If the daemon dies, the cells that it has taken aren't changed, and
//! the next daemon continues with them. Every wait is bounded by the pool's request timeout.

mod cell;
mod channel;
mod region;
mod replies;
mod request_server;
#[cfg(test)]
mod tests;

pub use channel::Channel;
pub use region::{cells_of, random, reclaim_cells, requests_sent};
pub use replies::{Known, Left, Replies, ahead};
pub use request_server::{Body, Payload, RequestServer, Room, Taken};

use forebay_placement::NodeId;

/// Maximum number of bytes of a body in a cell without a body area: such a body is stored behind
/// the cell's head.
pub const SMALL_BODY: usize = 16 << 10;

/// Returns the node that a reply with EHOSTDOWN names in its head: the node to which the request
/// was sent couldn't reach it. None: the request itself didn't reach its node.
pub fn unreachable_in(head: &[u8]) -> Option<NodeId> {
    let number: &[u8; 4] = head.try_into().ok()?;
    Some(NodeId(u32::from_le_bytes(*number)))
}

/// The clock that all processes of a node share. Nanoseconds since an arbitrary time.
pub fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

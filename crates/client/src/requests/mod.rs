//! The way of a request from a process to its node's daemon, which sends it to another node.
//!
//! A file in the node's directory, `requests`, is mapped by all: *cells*, each for one request and
//! its answer ([`region`]). A process claims a free cell, copies the request in, posts it and waits
//! for the answer ([`Channel`], which is what the store asks by); the daemon takes what is posted
//! and sends it from where it lies ([`RequestServer`]). Nothing is allocated in the daemon for
//! bytes on their way, and nobody takes a lock: who owns a cell is told by atomic words in it
//! ([`cell`]).
//!
//! Any process may die at any time. A cell of a dead process is taken back by whoever is short of
//! cells; if the daemon still holds it (the network may be reading from it, or writing into it),
//! the daemon frees it when it is done. If the daemon dies, cells stay as they are, and the next
//! daemon goes on with them. Every wait has a bound, the pool's request timeout.

mod cell;
mod channel;
mod region;
mod replies;
mod request_server;
#[cfg(test)]
mod tests;

pub use channel::Channel;
pub use region::{cells_of, questions_of, random, reclaim_cells};
pub use replies::{Known, Left, Replies, ahead};
pub use request_server::{Asked, Body, RequestServer, Room, Taken};

/// Larger bytes need a cell with a body area of its own.
pub const SMALL_BODY: usize = 16 << 10;

/// Nanoseconds of the clock that all processes of a node share.
pub fn clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

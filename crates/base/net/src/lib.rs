//! Messages and bulk transfer between the daemons of a pool's nodes.
//!
//! Two nodes share a [`Connection`]. Either side may send requests. Each request gets one reply or
//! one error, in any order, before its deadline. A message has a kind, a small *head* and
//! optionally a *body*. Messages with a body use a connection of their own (the bulk lane), so that
//! they never delay messages without one (the control lane). Bodies are sent from the caller's
//! memory ([`Source`]) and received straight into the caller's memory ([`Landing`]).
//!
//! A peer without the pool's key ([`PoolKey`]) learns nothing and can do nothing: each lane begins
//! with a Noise handshake of fixed size ([`handshake`]), and no other input is parsed before that.
//! Heads are always encrypted and authenticated; bodies are if either side asks for it.
//!
//! Everything is bounded: sizes ([`envelope`]), requests in progress ([`WINDOW`]), waits (a
//! deadline for each request, a time limit for a peer that stalls within a message), and
//! unauthenticated connections. A connection that is cut isn't made again: requests in progress
//! fail, and the caller connects again. While there is no work, no thread wakes up.
//!
//! The layers above use only the traits in [`transport`]; [`tcp`] is the one implementation.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod envelope;
mod error;
pub mod handshake;
mod key;
mod peer;
pub mod pipe;
mod sum;
pub mod tcp;
pub mod transport;

pub use error::{CutReason, Error};
pub use key::PoolKey;
pub use tcp::{Limits, Options, TcpTransport};
pub use transport::{
    Body, Connection, Done, Handler, Incoming, Landing, NodeId, Peer, PoolId, Reply, Request,
    Responder, Source, Transport, WINDOW,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. Data left by a thread that panicked is used as it is.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

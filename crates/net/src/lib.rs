//! Messages and bulk transfer between the daemons of a pool's nodes.
//!
//! Two nodes share a [`Connection`]. Either side may send requests; each has one answer or one
//! error, in any order, before its deadline. A message is a kind, a small *head* and, if there is
//! much to carry, a *body*. Messages with a body travel on a lane of their own (the bulk lane), so
//! that they never delay those without (the control lane). Bodies are sent from the caller's memory
//! ([`Source`]) and received straight into it ([`Landing`]).
//!
//! A peer without the pool's key ([`PoolKey`]) learns nothing and can do nothing: each lane begins
//! with a Noise handshake of fixed size ([`handshake`]), before which nothing is parsed. Heads are
//! always encrypted and authenticated, bodies if either side asks for it.
//!
//! Everything is bounded: sizes ([`envelope`]), requests in progress ([`WINDOW`]), waits (a
//! deadline for each request, a limit for a peer that stops in the middle), and unauthenticated
//! connections. A connection that was cut stays cut: its requests have failed, and the caller makes
//! another. Without work no thread wakes up.
//!
//! Floors above this crate see the traits in [`transport`] only; [`tcp`] is the one transport.
//! [`faults`] delays, cuts and distorts, for tests.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod envelope;
mod error;
pub mod faults;
pub mod handshake;
mod key;
mod peer;
pub mod pipe;
mod sum;
pub mod tcp;
pub mod transport;

pub use error::Error;
pub use key::PoolKey;
pub use tcp::{Limits, Options, TcpTransport};
pub use transport::{
    Body, Connection, Done, Handler, Incoming, Landing, NodeId, Peer, PoolId, Reply, Request,
    Responder, Source, Transport, WINDOW,
};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; what a thread that panicked left behind is used as it is.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Errors of the network crate. Every error names the peer.

use crate::peer::Peer;
use std::fmt;
use std::net::SocketAddr;

/// Why a request, or a connection, failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing answers at the peer's address.
    Unreachable {
        /// Whom we tried to reach.
        peer: Peer,
        /// What the kernel said.
        why: String,
    },
    /// The peer closed the connection without a word: it doesn't hold our key, or it is flooded.
    Silent {
        /// Whom we tried to reach.
        peer: Peer,
    },
    /// The peer holds our key but speaks another version of the protocol.
    Version {
        /// Whom we tried to reach.
        peer: Peer,
        /// Its version.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// The peer holds our key and refuses the connection.
    Refused {
        /// The peer that refused.
        peer: Peer,
        /// Why, in words.
        why: &'static str,
    },
    /// There was no answer in time. Whether the request was carried out isn't known.
    Deadline {
        /// The peer that didn't answer.
        peer: Peer,
    },
    /// The connection ended. Whether the request was carried out isn't known.
    Cut {
        /// The other end.
        peer: Peer,
        /// What happened.
        why: String,
    },
    /// As many requests as there may be are in progress already.
    Full {
        /// The peer that has so many to answer.
        peer: Peer,
    },
    /// The peer has the request but doesn't serve it.
    NotServed {
        /// The peer that refused.
        peer: Peer,
        /// Why, in words.
        why: &'static str,
    },
    /// The answer's body isn't what was sent, by its checksum.
    Damaged {
        /// The sender.
        peer: Peer,
    },
    /// A message is larger than messages may be. Nothing was sent.
    TooLarge {
        /// Whom it was for.
        peer: Peer,
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// An address can't be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        why: String,
    },
    /// The pool's key can't be read or made.
    Key(String),
    /// This process lacks something: descriptors, threads, randomness.
    Local(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { peer, why } => write!(f, "{peer} can't be reached: {why}"),
            Error::Silent { peer } => write!(
                f,
                "{peer} closed the connection without a word: it belongs to another pool, or has too many connections to answer"
            ),
            Error::Version { peer, theirs, ours } => write!(
                f,
                "{peer} speaks version {theirs} of the protocol, this node version {ours}: use the same release of Forebay on all nodes"
            ),
            Error::Refused { peer, why } => write!(f, "{peer} refused the connection: {why}"),
            Error::Deadline { peer } => write!(f, "{peer} didn't answer in time"),
            Error::Cut { peer, why } => write!(f, "the connection to {peer} ended: {why}"),
            Error::Full { peer } => {
                write!(f, "{peer} has as many requests to answer as there may be")
            }
            Error::NotServed { peer, why } => write!(f, "{peer} didn't serve the request: {why}"),
            Error::Damaged { peer } => write!(f, "what {peer} sent arrived damaged"),
            Error::TooLarge {
                peer,
                what,
                size,
                limit,
            } => write!(
                f,
                "{what} of {size} bytes for {peer} is over the limit of {limit}"
            ),
            Error::Listen { address, why } => write!(f, "can't listen on {address}: {why}"),
            Error::Key(why) => write!(f, "the pool's key: {why}"),
            Error::Local(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

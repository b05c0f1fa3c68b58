//! Errors of the network crate. Errors of a connection or a request name the peer.

use crate::peer::Peer;
use rustix::io::Errno;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// The other side closed the connection.
    Closed,
    /// This node closed the connection, for this reason.
    Here(&'static str),
    /// A message breaks the protocol, or this node can't send a message. The text says why.
    Broken(&'static str),
    /// A message was incomplete, and none of its bytes were transferred for this time.
    Stalled(Duration),
    /// The kernel's error.
    System(Errno),
    /// This node can't serve the connection.
    Failed(Box<Error>),
}

impl fmt::Display for CutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutReason::Closed => f.write_str("the other side closed it"),
            CutReason::Here(why) | CutReason::Broken(why) => f.write_str(why),
            CutReason::Stalled(time) => write!(
                f,
                "no progress for {} ms in the middle of a message",
                time.as_millis()
            ),
            CutReason::System(errno) => write!(f, "{errno}"),
            CutReason::Failed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CutReason {}

/// Why a request or a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Nothing answers at the peer's address.
    Unreachable {
        /// The peer that was called.
        peer: Peer,
        /// The kernel's error.
        why: String,
    },
    /// The peer closed the connection without an answer: the peer doesn't hold the key, or has too
    /// many connections.
    Silent {
        /// The peer that was called.
        peer: Peer,
    },
    /// The peer holds the key but uses another version of the protocol.
    Version {
        /// The peer that was called.
        peer: Peer,
        /// The peer's version.
        theirs: u16,
        /// This node's version.
        ours: u16,
    },
    /// The peer holds the key and refuses the connection.
    Refused {
        /// The peer that refused.
        peer: Peer,
        /// The reason.
        why: &'static str,
    },
    /// There was no reply by the deadline. Whether the request was carried out is unknown.
    Deadline {
        /// The peer that didn't answer.
        peer: Peer,
    },
    /// The connection ended. Whether the request was carried out is unknown.
    Cut {
        /// The other end.
        peer: Peer,
        /// The reason.
        why: CutReason,
    },
    /// [`WINDOW`](crate::WINDOW) requests are already in progress on the connection.
    Full {
        /// The peer with these requests.
        peer: Peer,
    },
    /// The peer received the request but didn't serve it.
    NotServed {
        /// The peer that refused.
        peer: Peer,
        /// The reason.
        why: &'static str,
    },
    /// The checksum of the reply's body is wrong.
    Damaged {
        /// The sender.
        peer: Peer,
    },
    /// A message exceeds a limit. Nothing was sent.
    TooLarge {
        /// The receiver.
        peer: Peer,
        /// The part of the message that exceeds its limit.
        what: &'static str,
        /// The part's size. Bytes.
        size: usize,
        /// The limit. Bytes.
        limit: usize,
    },
    /// This node can't listen on an address.
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        why: String,
    },
    /// The pool's key can't be read or written.
    Key(String),
    /// This process is out of descriptors, threads or random bytes.
    Local(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unreachable { peer, why } => write!(f, "{peer} can't be reached: {why}"),
            Error::Silent { peer } => write!(
                f,
                "{peer} closed the connection without an answer: it belongs to another pool, or has too many connections to answer"
            ),
            Error::Version { peer, theirs, ours } => write!(
                f,
                "{peer} speaks version {theirs} of the protocol, this node version {ours}: use the same release of Forebay on all nodes"
            ),
            Error::Refused { peer, why } => write!(f, "{peer} refused the connection: {why}"),
            Error::Deadline { peer } => write!(f, "{peer} didn't answer in time"),
            Error::Cut { peer, why } => write!(f, "the connection to {peer} ended: {why}"),
            Error::Full { peer } => {
                write!(
                    f,
                    "{peer} has as many requests in progress as the limit allows"
                )
            }
            Error::NotServed { peer, why } => write!(f, "{peer} didn't serve the request: {why}"),
            Error::Damaged { peer } => write!(f, "a body from {peer} arrived damaged"),
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

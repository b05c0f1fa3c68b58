//! The network's interface for the layers above: nodes, connections, requests and their server.
//!
//! TCP is one implementation ([`crate::tcp`]). The interface doesn't depend on TCP, so that
//! libfabric can be another one: a [`Source`] may be memory registered with a network card, a
//! [`Landing`] the target of the card's writes.

pub use crate::peer::Peer;
use crate::{Error, lock};
pub use forebay_placement::NodeId;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of each side's requests in progress on a connection.
pub const WINDOW: usize = 256;

/// Identity of a pool: random, not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(pub [u8; 16]);

/// Bytes to be sent in place, in one or several pieces.
pub trait Source: Send {
    /// Number of bytes.
    fn length(&self) -> usize;
    /// Returns the bytes from `at` to the end of the piece that `at` lies in; not empty if `at` is
    /// below the length.
    fn piece(&self, at: usize) -> &[u8];
}

impl Source for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }
    fn piece(&self, at: usize) -> &[u8] {
        &self[at..]
    }
}

impl<T: Source + Sync> Source for Arc<T> {
    fn length(&self) -> usize {
        T::length(self)
    }
    fn piece(&self, at: usize) -> &[u8] {
        T::piece(self, at)
    }
}

/// Memory that receives a body. The connection owns it until the request is answered. If the
/// request fails, the memory is dropped once no more bytes can arrive.
pub trait Landing: Any + Send {
    /// Number of bytes that fit.
    fn length(&self) -> usize;
    /// Returns the memory from `at` to the end of the piece that `at` lies in; not empty if `at` is
    /// below the length.
    fn piece(&mut self, at: usize) -> &mut [u8];
}

impl Landing for Vec<u8> {
    fn length(&self) -> usize {
        self.len()
    }
    fn piece(&mut self, at: usize) -> &mut [u8] {
        &mut self[at..]
    }
}

/// A body that has arrived completely and with the right checksum.
pub struct Body {
    /// The memory with the bytes.
    pub landing: Box<dyn Landing>,
    /// The body's length, at most that of the landing. Bytes.
    pub length: usize,
}

impl Body {
    /// Returns the landing, if it is a `T`.
    pub fn into_landing<T: Landing>(self) -> Option<Box<T>> {
        let any: Box<dyn Any> = self.landing;
        any.downcast().ok()
    }
}

/// A request to another node.
#[derive(Default)]
pub struct Request {
    /// The operation; the layer above defines the numbers.
    pub kind: u16,
    /// The arguments of the operation.
    pub head: Vec<u8>,
    /// The body, if any.
    pub body: Option<Box<dyn Source>>,
    /// The landing for the reply's body, if it may have one.
    pub landing: Option<Box<dyn Landing>>,
    /// Whether the request may wait until the next message is sent, or until [`Connection::flush`].
    pub lazily: bool,
}

/// A reply of another node.
pub struct Reply {
    /// The status that the serving side has set.
    pub status: u32,
    /// The reply's head.
    pub head: Vec<u8>,
    /// The reply's body.
    pub body: Option<Body>,
}

/// A function that is called once with a request's result: on a thread of the transport or, if the
/// connection ends during the sending, on the sending thread. The function must be quick, never
/// block, and take no lock that is held while sending.
pub type Done = Box<dyn FnOnce(Result<Reply, Error>) + Send>;

/// A connection to one other node. The connection works in both directions, whichever node made it.
pub trait Connection: Send + Sync {
    /// The other end.
    fn peer(&self) -> Peer;

    /// Sends a request and returns. `done` is called exactly once, at `deadline` at the latest; if
    /// this function fails, `done` isn't called. Fails with [`Error::Full`] if [`WINDOW`] requests
    /// are in progress.
    fn start(&self, request: Request, deadline: Instant, done: Done) -> Result<(), Error>;

    /// Sends the lazy requests that are waiting for the next message.
    fn flush(&self);

    /// Blocks until another request may be sent.
    fn wait_for_room(&self, deadline: Instant) -> Result<(), Error>;

    /// Returns why the connection has ended; None if it hasn't.
    fn ended(&self) -> Option<Error>;

    /// Ends the connection. Requests in progress fail on both sides.
    fn close(&self);

    /// Retires the connection, which another one replaces: ends it soon after its last request in
    /// progress, and after some seconds in any case.
    fn retire(&self);

    /// Sends a request and blocks until the reply, at most until `deadline`.
    fn call(&self, request: Request, deadline: Instant) -> Result<Reply, Error> {
        let answer = Arc::new((Mutex::new(None), Condvar::new()));
        let there = answer.clone();
        let done: Done = Box::new(move |result| {
            *lock(&there.0) = Some(result);
            there.1.notify_one();
        });
        self.wait_for_room(deadline)?;
        self.start(request, deadline, done)?;
        let mut result = lock(&answer.0);
        // The transport enforces the deadline. Even if the transport fails to, this thread must not
        // hang.
        let give_up = deadline + Duration::from_secs(1);
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline { peer: self.peer() });
            }
            result = match answer.1.wait_timeout(result, left) {
                Ok((result, _)) => result,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// A node's means to reach other nodes.
pub trait Transport: Send + Sync {
    /// Connects to `peer`. Both sides prove that they hold the pool's key.
    fn connect(&self, peer: Peer, deadline: Instant) -> Result<Arc<dyn Connection>, Error>;
    /// Addresses by which other nodes can reach this one.
    fn addresses(&self) -> Vec<SocketAddr>;
    /// Ends all connections and threads. Requests in progress fail.
    fn shutdown(&self);
}

/// A request from another node.
pub struct Incoming {
    /// The requester's connection. This node may send requests over it, too.
    pub connection: Arc<dyn Connection>,
    /// The operation.
    pub kind: u16,
    /// The arguments of the operation.
    pub head: Vec<u8>,
    /// The body, in the landing that [`Handler::landing`] returned.
    pub body: Option<Body>,
    /// The time at which the requester stops waiting.
    pub deadline: Instant,
}

/// The server for other nodes' requests. Its functions are called on threads of the transport: the
/// functions must be quick, or pass the work to another thread.
pub trait Handler: Send + Sync {
    /// Serves a request. The reply is given through `reply`, during the call or later.
    fn serve(&self, request: Incoming, reply: Responder);

    /// As [`Handler::serve`], on a thread that may be busy for long, since other threads wait for
    /// the network. If the request is served on this thread, no other thread needs to be woken.
    fn serve_here(&self, request: Incoming, reply: Responder) {
        self.serve(request, reply);
    }

    /// Whether requests of this kind are quick. Quick requests may be served before another request
    /// that came with them, on the same thread. Their replies are sent together with that request's
    /// reply.
    fn is_brief(&self, _kind: u16) -> bool {
        false
    }

    /// Returns the landing for an arriving request's body, of at least `length` bytes. None: the
    /// request is refused.
    fn landing(
        &self,
        from: Peer,
        kind: u16,
        head: &[u8],
        length: usize,
    ) -> Option<Box<dyn Landing>>;

    /// Called when another node has connected to this one.
    fn connected(&self, _connection: Arc<dyn Connection>) {}

    /// Called when a connection has ended, whichever node made it.
    fn ended(&self, _peer: Peer, _why: &Error) {}
}

/// Gives one reply. Dropping the responder tells the other side that there will be no reply.
pub struct Responder {
    to: Option<Box<dyn ReplyTo>>,
}

/// The transport's side of a [`Responder`].
pub trait ReplyTo: Send {
    /// Sends the reply. `None` tells the other side that there will be no reply. Never blocks.
    fn reply(self: Box<Self>, answer: Option<Answer>);
}

/// A reply to be sent.
#[derive(Default)]
pub struct Answer {
    /// Defined by the layer above; 0 is success.
    pub status: u32,
    /// At most [`crate::envelope::MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// At most [`crate::envelope::MAX_BODY`] bytes.
    pub body: Option<Box<dyn Source>>,
}

impl Responder {
    /// Returns a responder that answers through `to`. For transports.
    pub fn new(to: Box<dyn ReplyTo>) -> Responder {
        Responder { to: Some(to) }
    }

    /// Replies without a body.
    pub fn reply(self, status: u32, head: Vec<u8>) {
        self.answer(Answer {
            status,
            head,
            body: None,
        });
    }

    /// Sends the reply. If the reply can't be sent (too large, connection cut), the requester gets
    /// an error.
    pub fn answer(mut self, answer: Answer) {
        if let Some(to) = self.to.take() {
            to.reply(Some(answer));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            to.reply(None);
        }
    }
}

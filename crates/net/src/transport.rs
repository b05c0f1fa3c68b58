//! The interface to the floors above: nodes, connections, requests and their server.
//!
//! TCP is one implementation ([`crate::tcp`]). Nothing here depends on it, to leave room for
//! libfabric: a [`Source`] may be memory registered with a card, a [`Landing`] the target of its
//! writes.

pub use crate::peer::Peer;
use crate::{Error, lock};
pub use forebay_placement::NodeId;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Most requests that each side of a connection may have in progress.
pub const WINDOW: usize = 256;

/// Identity of a pool: random, no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(pub [u8; 16]);

/// Bytes to be sent from where they lie, in as many pieces as they lie in.
pub trait Source: Send {
    /// How many bytes.
    fn length(&self) -> usize;
    /// The bytes from `at` on, up to the end of the piece; not empty if `at` is below the length.
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

/// Where a body is received. It belongs to the connection until the request is answered; it is
/// dropped when the request has failed and no more bytes can come.
pub trait Landing: Any + Send {
    /// Bytes that fit.
    fn length(&self) -> usize;
    /// The place from `at` on, up to the end of the piece; not empty if `at` is below the length.
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

/// A body that has arrived, whole and with the right checksum.
pub struct Body {
    /// Where it is.
    pub landing: Box<dyn Landing>,
    /// Its length; the landing may be longer.
    pub length: usize,
}

impl Body {
    /// The landing, if it is a `T`.
    pub fn into_landing<T: Landing>(self) -> Option<Box<T>> {
        let any: Box<dyn Any> = self.landing;
        any.downcast().ok()
    }
}

/// A request to another node.
#[derive(Default)]
pub struct Request {
    /// Which operation: the numbers are given by the floor above.
    pub kind: u16,
    /// Its arguments.
    pub head: Vec<u8>,
    /// The body, if any.
    pub body: Option<Box<dyn Source>>,
    /// Where the answer's body goes, if it may have one.
    pub landing: Option<Box<dyn Landing>>,
    /// It may be left to go with the next message, or at [`Connection::flush`].
    pub lazily: bool,
}

/// What the other node answered.
pub struct Reply {
    /// As the serving side set it.
    pub status: u32,
    /// The answer.
    pub head: Vec<u8>,
    /// The body.
    pub body: Option<Body>,
}

/// Called once with what became of a request: on a thread of the transport, or, if the connection
/// ends just then, on the one that sends. It must be quick, never wait, and take no lock that is
/// held while sending.
pub type Done = Box<dyn FnOnce(Result<Reply, Error>) + Send>;

/// A link to one other node. It works in both directions, whoever made it.
pub trait Connection: Send + Sync {
    /// The other end.
    fn peer(&self) -> Peer;

    /// Sends a request and returns. `done` is called exactly once, at `deadline` at the latest;
    /// not at all if this fails. With [`WINDOW`] requests in progress it fails: [`Error::Full`].
    fn start(&self, request: Request, deadline: Instant, done: Done) -> Result<(), Error>;

    /// Sends what was left to go with the next message.
    fn flush(&self);

    /// Waits until another request may be sent.
    fn wait_for_room(&self, deadline: Instant) -> Result<(), Error>;

    /// Why the connection ended, if it has.
    fn ended(&self) -> Option<Error>;

    /// Ends the connection: what is in progress fails on both sides.
    fn close(&self);

    /// Ends the connection once nothing is in progress on it, soon, and after some seconds in any
    /// case: another one is used from now on.
    fn retire(&self);

    /// Sends a request and waits for the answer, `deadline` at most.
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
        // The transport keeps the deadline. If it doesn't, we don't hang either.
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

/// A way to reach other nodes.
pub trait Transport: Send + Sync {
    /// Connects to `peer` and proves to each other that both hold the key.
    fn connect(&self, peer: Peer, deadline: Instant) -> Result<Arc<dyn Connection>, Error>;
    /// Where other nodes can reach this one.
    fn addresses(&self) -> Vec<SocketAddr>;
    /// Ends all connections and threads. What is under way fails.
    fn shutdown(&self);
}

/// A request from another node.
pub struct Incoming {
    /// The asker's connection. Requests in the other direction may use it, too.
    pub connection: Arc<dyn Connection>,
    /// Which operation.
    pub kind: u16,
    /// Its arguments.
    pub head: Vec<u8>,
    /// The body: what [`Handler::landing`] returned, filled.
    pub body: Option<Body>,
    /// When the other side stops waiting.
    pub deadline: Instant,
}

/// The server for other nodes. Called on threads of the transport: be quick, or pass the work on.
pub trait Handler: Send + Sync {
    /// Serves a request. The answer is given through `reply`, now or later.
    fn serve(&self, request: Incoming, reply: Responder);

    /// As [`Handler::serve`], where others wait for the network meanwhile: it may be served here
    /// and now, even if that takes long. Saves waking another thread.
    fn serve_here(&self, request: Incoming, reply: Responder) {
        self.serve(request, reply);
    }

    /// Whether requests of this kind are served quickly: they may be before one that has come with
    /// them, on the same thread, and their answers go with its.
    fn is_brief(&self, _kind: u16) -> bool {
        false
    }

    /// Where the body of a request goes that is arriving, at least `length` bytes. None: the
    /// request is refused.
    fn landing(
        &self,
        from: Peer,
        kind: u16,
        head: &[u8],
        length: usize,
    ) -> Option<Box<dyn Landing>>;

    /// Another node has connected to this one.
    fn connected(&self, _connection: Arc<dyn Connection>) {}

    /// A connection has ended, whoever had made it.
    fn ended(&self, _peer: Peer, _why: &Error) {}
}

/// Gives one answer. Dropped without, it tells the other side that there will be none.
pub struct Responder {
    to: Option<Box<dyn ReplyTo>>,
}

/// The transport's side of a [`Responder`].
pub trait ReplyTo: Send {
    /// Sends the answer; None: there is none. Never waits.
    fn reply(self: Box<Self>, answer: Option<Answer>);
}

/// An answer on its way out.
#[derive(Default)]
pub struct Answer {
    /// The floor above says what it means; 0 is success.
    pub status: u32,
    /// At most [`crate::envelope::MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// At most [`crate::envelope::MAX_BODY`] bytes.
    pub body: Option<Box<dyn Source>>,
}

impl Responder {
    /// For transports: a responder that answers through `to`.
    pub fn new(to: Box<dyn ReplyTo>) -> Responder {
        Responder { to: Some(to) }
    }

    /// Answers without a body.
    pub fn reply(self, status: u32, head: Vec<u8>) {
        self.answer(Answer {
            status,
            head,
            body: None,
        });
    }

    /// Answers. What can't be sent (too large, connection cut) is an error at the other end.
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

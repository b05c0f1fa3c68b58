//! A request of a process of this node, or of this daemon, that has no reply yet.

use forebay_client::requests::{self, Payload, Taken, clock};
use forebay_net::{Body, Landing, NodeId, Source};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A request that isn't answered yet, or was just answered.
pub struct PendingRequest {
    pub node: NodeId,
    pub kind: u16,
    pub handling: Handling,
    /// Time when the requester stops waiting, unless it is renewed.
    deadline: Mutex<Instant>,
    number: AtomicU64,
    sent_to: AtomicU64,
    /// The program's request of which this one is a part; see [`forebay_trace::request`].
    pub traced: u64,
    /// The requester; None once the request is answered.
    origin: Mutex<Option<Origin>>,
}

/// How requests of one kind are sent.
#[derive(Clone, Copy, Default)]
pub struct Handling {
    /// Whether the request may be carried out twice.
    pub repeatable: bool,
    /// Whether carrying the request out may take longer than the request timeout. If so, the
    /// requester waits while the home reports progress.
    pub is_long: bool,
}

/// The requester.
#[derive(Clone)]
pub enum Origin {
    /// A process of this node.
    Cell(Arc<Taken>),
    /// This daemon.
    Here(Arc<Waiting>),
}

/// Bytes that arrived with a reply.
pub enum Got<'a> {
    Nothing,
    Inline(&'a [u8]),
    Landed(Body),
}

/// A request of this daemon, and its reply.
pub struct Waiting {
    head: Vec<u8>,
    bytes: Option<Arc<Vec<u8>>>,
    room: usize,
    /// A later deadline, set when the home reported progress.
    renewed: Mutex<Option<Instant>>,
    answer: Mutex<Option<Answer>>,
    there: Condvar,
}

/// A reply: 0 or an errno, head, bytes.
type Answer = (u32, Vec<u8>, Vec<u8>);

/// An error: the space for received bytes is still in use.
pub struct Busy;

impl PendingRequest {
    /// Makes a request from a cell. The request must be answered within `request_timeout`.
    pub fn of_cell(
        taken: Arc<Taken>,
        handling: Handling,
        request_timeout: Duration,
    ) -> Arc<PendingRequest> {
        let left = Duration::from_nanos(taken.deadline().saturating_sub(clock()));
        Arc::new(PendingRequest {
            node: taken.node(),
            kind: taken.kind(),
            deadline: Mutex::new(Instant::now() + left.min(request_timeout)),
            handling,
            number: AtomicU64::new(taken.number()),
            sent_to: AtomicU64::new(taken.sent_to()),
            traced: taken.traced(),
            origin: Mutex::new(Some(Origin::Cell(taken))),
        })
    }

    /// Makes a request of the daemon itself.
    pub fn of_here(
        node: NodeId,
        kind: u16,
        handling: Handling,
        request_timeout: Duration,
        waiting: Arc<Waiting>,
    ) -> Arc<PendingRequest> {
        Arc::new(PendingRequest {
            node,
            kind,
            deadline: Mutex::new(Instant::now() + request_timeout),
            handling,
            number: AtomicU64::new(0),
            sent_to: AtomicU64::new(0),
            traced: forebay_trace::request_once(),
            origin: Mutex::new(Some(Origin::Here(waiting))),
        })
    }

    /// When the requester stops waiting.
    pub fn deadline(&self) -> Instant {
        *lock(&self.deadline)
    }

    /// Makes the requester wait until the time `until`, since the home reported progress. Has no
    /// effect after the reply.
    pub fn renew(&self, until: Instant) {
        // Hold this lock: `answer` takes the origin first, so a request that is being answered
        // isn't renewed.
        let origin = lock(&self.origin);
        let mut deadline = lock(&self.deadline);
        if until <= *deadline {
            return;
        }
        *deadline = until;
        match &*origin {
            Some(Origin::Cell(taken)) => {
                let left = until.saturating_duration_since(Instant::now());
                taken.renew(clock() + left.as_nanos() as u64);
            }
            Some(Origin::Here(waiting)) => *lock(&waiting.renewed) = Some(until),
            None => {}
        }
    }

    /// Whether the request is answered.
    pub fn is_answered(&self) -> bool {
        lock(&self.origin).is_none()
    }

    /// The request's number among all requests of this node; 0: none yet.
    pub fn number(&self) -> u64 {
        self.number.load(Acquire)
    }

    pub fn set_number(&self, number: u64) {
        let before = self.number.swap(number, AcqRel);
        assert!(before == 0 && number != 0, "a request gets its number once");
        if let Some(Origin::Cell(taken)) = &*lock(&self.origin) {
            taken.set_number(number);
        }
    }

    /// Id of the home's reply cache to which the request was sent; 0: not sent.
    pub fn sent_to(&self) -> u64 {
        self.sent_to.load(Acquire)
    }

    pub fn set_sent_to(&self, records: u64) {
        if self.sent_to.swap(records, AcqRel) == records {
            return;
        }
        if let Some(Origin::Cell(taken)) = &*lock(&self.origin) {
            taken.set_sent_to(records);
        }
    }

    /// The requester; None once the request is answered.
    pub fn origin(&self) -> Option<Origin> {
        lock(&self.origin).clone()
    }

    /// Answers the request, unless it is answered already.
    pub fn answer(&self, status: u32, head: &[u8], got: Got<'_>) {
        let origin = lock(&self.origin).take();
        match origin {
            Some(Origin::Cell(taken)) => answer_cell(taken, status, head, got),
            Some(Origin::Here(waiting)) => {
                let bytes = match got {
                    Got::Nothing => Vec::new(),
                    Got::Inline(bytes) => bytes.to_vec(),
                    Got::Landed(body) => {
                        let length = body.length;
                        let mut bytes = body.into_landing::<Vec<u8>>().unwrap_or_default();
                        bytes.truncate(length);
                        *bytes
                    }
                };
                let fits = bytes.len() <= waiting.room;
                let status = if fits { status } else { code(Errno::PROTO) };
                *lock(&waiting.answer) = Some((status, head.to_vec(), bytes));
                waiting.there.notify_all();
            }
            None => {}
        }
    }

    /// Answers the request with an error.
    pub fn fail(&self, error: Errno) {
        self.answer(code(error), &[], Got::Nothing);
    }
}

/// An errno as a status.
pub fn code(error: Errno) -> u32 {
    error.raw_os_error() as u32
}

fn answer_cell(taken: Arc<Taken>, status: u32, head: &[u8], got: Got<'_>) {
    let received = match got {
        Got::Nothing => 0,
        Got::Inline([]) => 0,
        Got::Inline(bytes) => {
            let copied = taken.room().and_then(|mut room| {
                let to = room.bytes().get_mut(..bytes.len())?;
                to.copy_from_slice(bytes);
                Some(())
            });
            if copied.is_none() {
                return taken.answer(code(Errno::PROTO), &[], 0);
            }
            bytes.len()
        }
        // The bytes are in the cell already.
        Got::Landed(body) => body.length,
    };
    taken.answer(status, head, received);
}

impl Origin {
    /// The request, encoded by the store.
    pub fn head(&self) -> &[u8] {
        match self {
            Origin::Cell(taken) => taken.head(),
            Origin::Here(waiting) => &waiting.head,
        }
    }

    /// Calls `f` with the bytes that are sent with the request.
    pub fn with_bytes<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Origin::Cell(taken) => match taken.body() {
                Some(body) => f(body.bytes()),
                None => f(&[]),
            },
            Origin::Here(waiting) => f(waiting.bytes.as_deref().map_or(&[], |b| b)),
        }
    }

    /// The bytes that are sent with the request, not copied.
    pub fn source(&self) -> Option<Box<dyn Source>> {
        match self {
            Origin::Cell(taken) => taken.body().map(|b| Box::new(CellBody(b)) as _),
            Origin::Here(waiting) => waiting.bytes.clone().map(|b| Box::new(b) as _),
        }
    }

    /// Number of bytes that are sent with the request.
    pub fn sends(&self) -> usize {
        match self {
            Origin::Cell(taken) => match taken.payload() {
                Payload::Send(len) => len,
                _ => 0,
            },
            Origin::Here(waiting) => waiting.bytes.as_ref().map_or(0, |b| b.len()),
        }
    }

    /// The space for received bytes, if the request has any.
    ///
    /// # Errors
    /// [`Busy`] if an earlier attempt still uses the space.
    pub fn landing(&self) -> Result<Option<Box<dyn Landing>>, Busy> {
        match self {
            Origin::Cell(taken) => match taken.payload() {
                Payload::Receive(len @ 1..) => match taken.room() {
                    Some(room) => Ok(Some(Box::new(CellRoom(room, len)))),
                    None => Err(Busy),
                },
                _ => Ok(None),
            },
            Origin::Here(waiting) => {
                Ok((waiting.room > 0)
                    .then(|| Box::new(vec![0u8; waiting.room]) as Box<dyn Landing>))
            }
        }
    }
}

impl Waiting {
    /// A request with these bytes, or with `room` bytes for received ones.
    pub fn new(head: Vec<u8>, bytes: Option<Vec<u8>>, room: usize) -> Arc<Waiting> {
        Arc::new(Waiting {
            head,
            bytes: bytes.map(Arc::new),
            room,
            renewed: Mutex::default(),
            answer: Mutex::default(),
            there: Condvar::new(),
        })
    }

    /// Waits for the reply. None if there is none by `until`, or by the renewed deadline plus
    /// `slack`.
    pub fn wait(&self, until: Instant, slack: Duration) -> Option<Answer> {
        let mut answer = lock(&self.answer);
        loop {
            if let Some(answer) = answer.take() {
                return Some(answer);
            }
            let renewed = lock(&self.renewed).map(|at| at + slack);
            let until = until.max(renewed.unwrap_or(until));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            answer = self
                .there
                .wait_timeout(answer, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// Bytes sent from a cell.
struct CellBody(requests::Body);

impl Source for CellBody {
    fn length(&self) -> usize {
        self.0.bytes().len()
    }

    fn piece(&self, at: usize) -> &[u8] {
        &self.0.bytes()[at..]
    }
}

/// Space in a cell, and its length in bytes.
struct CellRoom(requests::Room, usize);

impl Landing for CellRoom {
    fn length(&self) -> usize {
        self.1
    }

    fn piece(&mut self, at: usize) -> &mut [u8] {
        &mut self.0.bytes()[at..]
    }
}

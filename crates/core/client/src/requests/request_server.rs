//! The daemon's side of the request cells: takes posted requests and answers them.
//!
//! A process of the same user writes the cell, and may be dying or corrupt. So every length is
//! checked and copied when the cell is taken; later only the copy is used.

use super::cell::{ABANDONED, DONE, HELD, POSTED, TAKEN};
use super::region::{ASLEEP, CELLS, DOZING, Shared};
use forebay_cluster::peers::MAX_HEAD;
use forebay_placement::NodeId;
use forebay_runtime::atomics::{AtomicU32, Ordering::*, futex};
use forebay_store::process;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long to retry the lock: a killed daemon holds it for an instant longer.
const DYING: Duration = Duration::from_secs(3);
/// Maximum time that the daemon sleeps before it checks the cells again, so that a corrupt bell
/// can't make it sleep for ever.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// Maximum time that a one-way request waits so that it needn't wake the daemon. The time is longer
/// than a tick of the kernel: a shorter timer would be programmed for each request, at a cost of 10
/// us in a virtual machine.
const DOZE: Duration = Duration::from_millis(20);

/// The daemon's side of all cells of a node. A lock ensures that there is one per node.
pub struct RequestServer {
    shared: Arc<Shared>,
    /// Owner word of this process.
    me: u64,
    _lock: OwnedFd,
    stopped: AtomicBool,
}

impl RequestServer {
    /// Opens the cells of the node whose directory is `dir`.
    ///
    /// # Errors
    /// EBUSY if there is a daemon already; errors of open and mmap.
    pub fn open(dir: &Path) -> Result<RequestServer> {
        let shared = Arc::new(Shared::open(dir)?);
        let me = process::own_word()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir.join("requests"), flags, Mode::empty())?;
        let until = Instant::now() + DYING;
        while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                return Err(Errno::BUSY);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(RequestServer {
            shared,
            me,
            _lock: lock,
            stopped: AtomicBool::new(false),
        })
    }

    /// Sets the time after which this node's locks on a peer are lost if the peer doesn't answer.
    pub fn set_lease(&self, lease: Duration) {
        let lease = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        self.shared.header().lease.store(lease, Relaxed);
    }

    /// Begins to serve. Returns the requests that the previous daemon had taken but not answered.
    /// Requests that the previous daemon had sent keep their numbers.
    pub fn begin(&self, request_timeout: Duration) -> Vec<Arc<Taken>> {
        let header = self.shared.header();
        let request_timeout = u32::try_from(request_timeout.as_millis()).unwrap_or(u32::MAX);
        header.request_timeout.store(request_timeout, Relaxed);
        header.daemon.store(self.me, Release);
        header.missing.store(0, Release);
        let mut left = Vec::new();
        for index in 0..CELLS {
            let cell = self.shared.cell(index);
            loop {
                let state = cell.state.load(Acquire);
                match state {
                    // The previous daemon may have cleared the cell's bit already.
                    POSTED => drop(header.posted[index / 64].fetch_or(1 << (index % 64), SeqCst)),
                    state if state == TAKEN | HELD => left.extend(self.taken(index)),
                    state if state == ABANDONED | HELD => self.shared.free(index),
                    state if state & HELD != 0 && !cell.pass(state, state & !HELD) => continue,
                    _ => {}
                }
                break;
            }
        }
        left
    }

    /// Whether a request of a kind for which `counts` is true may still be carried out although its
    /// requester has died or abandoned the request.
    pub fn has_orphan(&self, counts: impl Fn(u16) -> bool) -> bool {
        self.shared.has_orphan(counts)
    }

    /// A number that distinguishes this node's requests from those of all other nodes.
    pub fn id(&self) -> u64 {
        self.shared.header().id.load(Relaxed)
    }

    /// Returns a new request number, higher than all earlier ones.
    pub fn next_number(&self) -> u64 {
        let number = self.shared.header().numbers.fetch_add(1, Relaxed) + 1;
        assert!(number != 0, "numbers of requests don't run out");
        number
    }

    /// Announces that the file `map` was replaced.
    pub fn map_changed(&self) {
        self.shared.header().map.fetch_add(1, AcqRel);
    }

    /// Returns the posted requests; sleeps until there are some. After [`RequestServer::stop`],
    /// returns an empty list at once.
    pub fn wait(&self) -> Vec<Arc<Taken>> {
        let header = self.shared.header();
        // The daemon took requests a moment ago, so it first dozes instead of sleeping.
        let mut dozes = true;
        loop {
            // A process may have declared this daemon missing, while the daemon was stopped or got
            // no processor time.
            if header.missing.load(Relaxed) != 0 {
                header.missing.store(0, Release);
            }
            let taken = self.take();
            if !taken.is_empty() {
                return taken;
            }
            let (how, turn) = if dozes {
                (DOZING, DOZE)
            } else {
                (ASLEEP, MAX_SLEEP)
            };
            dozes = false;
            header.sleeps.store(how, SeqCst);
            let seen = header.bell.load(SeqCst);
            let taken = self.take();
            if self.stopped.load(SeqCst) || !taken.is_empty() {
                header.sleeps.store(0, SeqCst);
                return taken;
            }
            let _ = futex::wait(&header.bell, seen, turn);
            header.sleeps.store(0, SeqCst);
        }
    }

    /// Returns the requests that are posted now, without waiting.
    pub fn take(&self) -> Vec<Arc<Taken>> {
        let mut all = Vec::new();
        for (i, word) in self.shared.header().posted.iter().enumerate() {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, SeqCst);
            while bits != 0 {
                let index = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.shared.cell(index).pass(POSTED, TAKEN | HELD) {
                    all.extend(self.taken(index));
                }
            }
        }
        all
    }

    /// Takes a cell. Answers a malformed request at once and returns None.
    fn taken(&self, index: usize) -> Option<Arc<Taken>> {
        let cell = self.shared.cell(index);
        let head = cell.head.load(Relaxed) as usize;
        let body = cell.body.load(Relaxed) as usize;
        let payload = match cell.way.load(Relaxed) {
            0 => Some(Payload::Nothing),
            1 => Some(Payload::Send(body)),
            2 => Some(Payload::Receive(body)),
            _ => None,
        };
        let kind = u16::try_from(cell.kind.load(Relaxed)).ok();
        let fits = head <= MAX_HEAD && self.shared.body_at(index, body).is_some();
        let taken = Arc::new(Taken {
            shared: self.shared.clone(),
            index,
            node: NodeId(cell.node.load(Relaxed)),
            kind: kind.unwrap_or(0),
            head,
            payload: payload.unwrap_or(Payload::Nothing),
            deadline: cell.deadline.load(Acquire),
            lent: AtomicU32::new(0),
            free: AtomicBool::new(false),
        });
        if !fits || payload.is_none() || kind.is_none() {
            taken.answer(Errno::PROTO.raw_os_error() as u32, &[], 0);
            return None;
        }
        Some(taken)
    }

    /// Makes [`RequestServer::wait`] return.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.shared.header().bell.fetch_add(1, SeqCst);
        futex::wake(&self.shared.header().bell, u32::MAX >> 1);
    }
}

impl Drop for RequestServer {
    fn drop(&mut self) {
        let daemon = &self.shared.header().daemon;
        let _ = daemon.compare_exchange(self.me, 0, AcqRel, Relaxed);
    }
}

/// The bytes that are exchanged with a request besides its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// No bytes.
    Nothing,
    /// Number of bytes sent with the request.
    Send(usize),
    /// Maximum number of bytes that are received with the reply.
    Receive(usize),
}

/// A request that the daemon has taken. The daemon owns the cell until this is dropped.
pub struct Taken {
    shared: Arc<Shared>,
    index: usize,
    node: NodeId,
    kind: u16,
    head: usize,
    payload: Payload,
    deadline: u64,
    /// 1 while a [`Room`] of this request exists.
    lent: AtomicU32,
    /// Whether this request no longer owns the cell.
    free: AtomicBool,
}

impl Taken {
    /// The node to which the request is sent.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The request's kind.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The request's payload.
    pub fn payload(&self) -> Payload {
        self.payload
    }

    /// Whether no process waits for the reply.
    pub fn is_one_way(&self) -> bool {
        self.shared.cell(self.index).one_way.load(Relaxed) != 0
    }

    /// When the requester stops waiting ([`super::clock`]).
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Makes the requester wait until `deadline`. Has no effect after the reply.
    pub fn renew(&self, deadline: u64) {
        let cell = self.shared.cell(self.index);
        cell.deadline.fetch_max(deadline, AcqRel);
    }

    /// The encoded request.
    pub fn head(&self) -> &[u8] {
        // SAFETY: the head area has `self.head` bytes (checked when the cell was taken), and a
        // correct requester doesn't touch it until the reply is there.
        unsafe { std::slice::from_raw_parts(self.shared.head_at(self.index), self.head) }
    }

    /// The request's number; 0: none yet.
    pub fn number(&self) -> u64 {
        self.shared.cell(self.index).number.load(Relaxed)
    }

    /// Assigns a number, which outlives this daemon.
    pub fn set_number(&self, number: u64) {
        self.shared.cell(self.index).number.store(number, Release);
    }

    /// The requester's trace id ([`forebay_trace::request`]).
    pub fn traced(&self) -> u64 {
        self.shared.cell(self.index).traced.load(Relaxed)
    }

    /// Id of the home's reply cache to which the request was sent ([`super::Replies::id`]); 0: not
    /// sent.
    pub fn sent_to(&self) -> u64 {
        self.shared.cell(self.index).sent_to.load(Acquire)
    }

    /// Records that the request is being sent to the home with this reply cache.
    pub fn set_sent_to(&self, records: u64) {
        self.shared.cell(self.index).sent_to.store(records, Release);
    }

    /// The bytes sent with the request, if there are any.
    pub fn body(self: &Arc<Self>) -> Option<Body> {
        match self.payload {
            Payload::Send(1..) => Some(Body(self.clone())),
            _ => None,
        }
    }

    /// The space for bytes that are received with the reply. None if the request has no such space,
    /// or while another [`Room`] of it exists.
    pub fn room(self: &Arc<Self>) -> Option<Room> {
        let has = matches!(self.payload, Payload::Receive(1..));
        let got = has && self.lent.swap(1, AcqRel) == 0;
        got.then(|| Room(self.clone()))
    }

    /// Answers the request: 0 or an errno, the reply's head, and the number of bytes received.
    /// Later answers to the same request are ignored.
    pub fn answer(self: Arc<Self>, status: u32, head: &[u8], received: usize) {
        // If no other thread uses the cell's bytes, the requester gets the whole cell at once.
        let (last, rest) = match Arc::try_unwrap(self) {
            Ok(last) => (Some(last), None),
            Err(rest) => (None, Some(rest)),
        };
        let Some(taken) = last.as_ref().or(rest.as_deref()) else {
            return;
        };
        let cell = taken.shared.cell(taken.index);
        if taken.is_one_way() {
            // The last user of the cell frees it.
            cell.pass(TAKEN | HELD, ABANDONED | HELD);
            return;
        }
        if cell.state.load(Acquire) != TAKEN | HELD {
            return;
        }
        let head = head.get(..MAX_HEAD).unwrap_or(head);
        // SAFETY: the area is large enough, and belongs to this request.
        unsafe {
            let to = taken.shared.head_at(taken.index);
            std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
        }
        cell.status.store(status, Relaxed);
        cell.answer.store(head.len() as u32, Relaxed);
        cell.received.store(received as u32, Relaxed);
        // From the next change of state on, the requester may free the cell.
        let done = if last.is_some() { DONE } else { DONE | HELD };
        if last.is_some() {
            taken.free.store(true, Relaxed);
        }
        let done = cell
            .state
            .compare_exchange(TAKEN | HELD, done, SeqCst, Acquire)
            .is_ok();
        if !done {
            taken.free.store(false, Relaxed);
        } else if cell.sleeps.load(SeqCst) != 0 {
            futex::wake(&cell.state, 1);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if *self.free.get_mut() {
            return;
        }
        let cell = self.shared.cell(self.index);
        loop {
            let state = cell.state.load(Acquire);
            if state == ABANDONED | HELD {
                return self.shared.free(self.index);
            }
            // If the request wasn't answered, the next daemon answers it.
            if state != DONE | HELD || cell.pass(state, DONE) {
                return;
            }
        }
    }
}

/// Bytes of a request, sent directly from the cell.
pub struct Body(Arc<Taken>);

impl Body {
    /// All of the bytes.
    pub fn bytes(&self) -> &[u8] {
        let taken = &self.0;
        let Payload::Send(len) = taken.payload else {
            return &[];
        };
        match taken.shared.body_at(taken.index, len) {
            // SAFETY: the body area has `len` bytes. A correct requester doesn't change them; an
            // incorrect one only causes other bytes to be sent.
            Some(at) => unsafe { std::slice::from_raw_parts(at, len) },
            None => &[],
        }
    }
}

/// The space in which a reply's bytes are received.
pub struct Room(Arc<Taken>);

impl Room {
    /// The whole space.
    pub fn bytes(&mut self) -> &mut [u8] {
        let taken = &self.0;
        let Payload::Receive(len) = taken.payload else {
            return &mut [];
        };
        match taken.shared.body_at(taken.index, len) {
            // SAFETY: the body area has `len` bytes, and there is one `Room` of a cell at a time.
            Some(at) => unsafe { std::slice::from_raw_parts_mut(at, len) },
            None => &mut [],
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.lent.store(0, Release);
    }
}

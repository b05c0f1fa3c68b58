//! The daemon's end of the request cells: takes posted requests, and answers them.
//!
//! A cell was written by a process of the same user, which may be dying or corrupt. Every length is
//! checked when the cell is taken, and used as it was then.

use super::cell::{ABANDONED, DONE, HELD, POSTED, TAKEN};
use super::region::{ASLEEP, CELLS, DOZING, Shared};
use forebay_cluster::peers::MAX_HEAD;
use forebay_media::atomics::{AtomicU32, Ordering::*, futex};
use forebay_placement::NodeId;
use forebay_store::process;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// One that was killed holds its lock for some instants more.
const DYING: Duration = Duration::from_secs(3);
/// The daemon looks for what is posted at least so often: a word that was written to by who
/// shouldn't must not make it sleep for ever.
const TURN: Duration = Duration::from_secs(3600);
/// How long what nobody waits for may lie, so that it needn't wake the daemon by itself. Longer
/// than a tick of the kernel's: a nearer timer has the processor's set for each request, 10 us in
/// a virtual machine.
const DOZE: Duration = Duration::from_millis(20);

/// The daemon's end of all cells of a node. There is one per node: it is locked.
pub struct RequestServer {
    shared: Arc<Shared>,
    /// This process's owner word.
    me: u64,
    _lock: OwnedFd,
    stopped: AtomicBool,
}

impl RequestServer {
    /// Opens the cells of the node whose directory is `dir`.
    ///
    /// # Errors
    /// EBUSY if there is a daemon already; what open and mmap say.
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

    /// After how long without an answer of another node the locks there are lost.
    pub fn set_lease(&self, lease: Duration) {
        let lease = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        self.shared.header().lease.store(lease, Relaxed);
    }

    /// Begins to serve: the requests that the daemon before had taken and not answered. What it
    /// had sent keeps its number.
    pub fn begin(&self, patience: Duration) -> Vec<Arc<Taken>> {
        let header = self.shared.header();
        let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        header.patience.store(patience, Relaxed);
        header.daemon.store(self.me, Release);
        header.missing.store(0, Release);
        let mut left = Vec::new();
        for index in 0..CELLS {
            let cell = self.shared.cell(index);
            loop {
                let state = cell.state.load(Acquire);
                match state {
                    // Its bit may have been looked at already.
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

    /// Tells these requests from those of all other nodes.
    pub fn id(&self) -> u64 {
        self.shared.header().id.load(Relaxed)
    }

    /// A number for a request, higher than all before.
    pub fn next_number(&self) -> u64 {
        self.shared.header().numbers.fetch_add(1, Relaxed) + 1
    }

    /// The file `map` is a new one.
    pub fn map_changed(&self) {
        self.shared.header().map.fetch_add(1, AcqRel);
    }

    /// The requests that are posted; sleeps until there are some. Empty once
    /// [`RequestServer::stop`] was called.
    pub fn wait(&self) -> Vec<Arc<Taken>> {
        let header = self.shared.header();
        // Something was asked a moment ago.
        let mut dozes = true;
        loop {
            let taken = self.take();
            if !taken.is_empty() {
                return taken;
            }
            let (how, turn) = match dozes {
                true => (DOZING, DOZE),
                false => (ASLEEP, TURN),
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

    /// The requests that are posted just now.
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

    /// What the cell asks, once it is ours. What makes no sense is answered here.
    fn taken(&self, index: usize) -> Option<Arc<Taken>> {
        let cell = self.shared.cell(index);
        let head = cell.head.load(Relaxed) as usize;
        let body = cell.body.load(Relaxed) as usize;
        let asked = match cell.way.load(Relaxed) {
            0 => Some(Asked::Nothing),
            1 => Some(Asked::Send(body)),
            2 => Some(Asked::Receive(body)),
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
            asked: asked.unwrap_or(Asked::Nothing),
            deadline: cell.deadline.load(Acquire),
            lent: AtomicU32::new(0),
            free: AtomicBool::new(false),
        });
        if !fits || asked.is_none() || kind.is_none() {
            taken.answer(Errno::PROTO.raw_os_error() as u32, &[], 0);
            return None;
        }
        Some(taken)
    }

    /// Lets [`RequestServer::wait`] return.
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

/// The bytes that belong to a request, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// None.
    Nothing,
    /// These go with it.
    Send(usize),
    /// Bytes that come with the answer, at most.
    Receive(usize),
}

/// A request that the daemon has taken. The cell is the daemon's until this is dropped.
pub struct Taken {
    shared: Arc<Shared>,
    index: usize,
    node: NodeId,
    kind: u16,
    head: usize,
    asked: Asked,
    deadline: u64,
    /// Whether a [`Room`] is out.
    lent: AtomicU32,
    /// Whether the cell isn't ours any more.
    free: AtomicBool,
}

impl Taken {
    /// Which node is asked.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The request.
    pub fn kind(&self) -> u16 {
        self.kind
    }

    /// The bytes that belong to it.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Whether nobody waits for the answer.
    pub fn is_told(&self) -> bool {
        self.shared.cell(self.index).told.load(Relaxed) != 0
    }

    /// When nobody waits any more, as in [`super::clock`].
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// The asker goes on waiting until then. Only for what isn't answered yet.
    pub fn renew(&self, deadline: u64) {
        let cell = self.shared.cell(self.index);
        cell.deadline.fetch_max(deadline, AcqRel);
    }

    /// The request, encoded.
    pub fn head(&self) -> &[u8] {
        // SAFETY: the area has so many bytes (checked when it was taken), and whoever plays by the
        // rules leaves it alone until the answer is there.
        unsafe { std::slice::from_raw_parts(self.shared.head_at(self.index), self.head) }
    }

    /// Its number; 0: it has none yet.
    pub fn number(&self) -> u64 {
        self.shared.cell(self.index).number.load(Relaxed)
    }

    /// Gives it a number, which outlives this daemon.
    pub fn set_number(&self, number: u64) {
        self.shared.cell(self.index).number.store(number, Release);
    }

    /// The home's records ([`super::Replies::id`]) that know whether it was begun; 0: it wasn't
    /// sent.
    pub fn sent_to(&self) -> u64 {
        self.shared.cell(self.index).sent_to.load(Acquire)
    }

    /// Notes that it is being sent.
    pub fn set_sent_to(&self, records: u64) {
        self.shared.cell(self.index).sent_to.store(records, Release);
    }

    /// The bytes that go with it, if there are any.
    pub fn body(self: &Arc<Self>) -> Option<Body> {
        match self.asked {
            Asked::Send(1..) => Some(Body(self.clone())),
            _ => None,
        }
    }

    /// The place for bytes that come with the answer. None: there is none, or it is out already.
    pub fn room(self: &Arc<Self>) -> Option<Room> {
        let has = matches!(self.asked, Asked::Receive(1..));
        let got = has && self.lent.swap(1, AcqRel) == 0;
        got.then(|| Room(self.clone()))
    }

    /// Answers: 0 or an error, and what came. Only the first answer counts.
    pub fn answer(self: Arc<Self>, status: u32, head: &[u8], received: usize) {
        // If nobody else uses the cell's bytes, the asker may have all of it.
        let (last, rest) = match Arc::try_unwrap(self) {
            Ok(last) => (Some(last), None),
            Err(rest) => (None, Some(rest)),
        };
        let Some(taken) = last.as_ref().or(rest.as_deref()) else {
            return;
        };
        let cell = taken.shared.cell(taken.index);
        if taken.is_told() {
            // Freed by whoever lets go of it last.
            cell.pass(TAKEN | HELD, ABANDONED | HELD);
            return;
        }
        if cell.state.load(Acquire) != TAKEN | HELD {
            return;
        }
        let head = head.get(..MAX_HEAD).unwrap_or(head);
        // SAFETY: the area has room for it, and is ours.
        unsafe {
            let to = taken.shared.head_at(taken.index);
            std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
        }
        cell.status.store(status, Relaxed);
        cell.answer.store(head.len() as u32, Relaxed);
        cell.received.store(received as u32, Relaxed);
        // At once free for the asker to take back.
        let done = if last.is_some() { DONE } else { DONE | HELD };
        if last.is_some() {
            taken.free.store(true, Relaxed);
        }
        let told = cell
            .state
            .compare_exchange(TAKEN | HELD, done, SeqCst, Acquire)
            .is_ok();
        if !told {
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
            // Without an answer it is left to the daemon after us.
            if state != DONE | HELD || cell.pass(state, DONE) {
                return;
            }
        }
    }
}

/// Bytes that are sent from where they lie.
pub struct Body(Arc<Taken>);

impl Body {
    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        let taken = &self.0;
        let Asked::Send(len) = taken.asked else {
            return &[];
        };
        match taken.shared.body_at(taken.index, len) {
            // SAFETY: the area has so many bytes; whoever plays by the rules leaves them alone, and
            // to others all that happens is that something else is sent.
            Some(at) => unsafe { std::slice::from_raw_parts(at, len) },
            None => &[],
        }
    }
}

/// The place where bytes of an answer are received.
pub struct Room(Arc<Taken>);

impl Room {
    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        let taken = &self.0;
        let Asked::Receive(len) = taken.asked else {
            return &mut [];
        };
        match taken.shared.body_at(taken.index, len) {
            // SAFETY: the area has so many bytes, and there is one `Room` of a cell at a time.
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

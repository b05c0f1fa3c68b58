//! Names (and attributes, see [`KEEPS_ATTRIBUTES`]) that the kernel may keep, as long as no other
//! process uses the pool.
//!
//! While the mount is the sole user of the store ([`Store::take_sole_use`]), nobody but its clients
//! changes anything, so answers say that they hold for long. A process that attaches to the pool
//! first asks for the end of that: then answers hold for no moment again, and the kernel forgets
//! all before the sole use is given back. So what others do beside the mount is seen at once, as it
//! always is. Pools of several nodes have no sole user, nor has a kernel before Linux 6.16.
//!
//! What must hold though an answer may reach its program late:
//! - *Names*: the kernel notes with each name the mount's epoch at the beginning of the look-up,
//!   and takes it for unknown once the epoch is another one (NOTIFY_INC_EPOCH).
//! - *Attributes* are kept by answers to GETATTR alone: then the kernel has the inode, and throws
//!   the answer away if the inode was invalidated after the request began (NOTIFY_INVAL_INODE). So
//!   each object whose attributes the kernel may have is noted before the answer is sent
//!   ([`State::nodes`]). The kernel marks an inode's attributes as good before it stores them, and
//!   others read them without a lock: so an answer may be kept only if the kernel has the same
//!   attributes already, from one that wasn't to be kept ([`Seen`]).
//! - *Changes through the mount*: the kernel keeps its names right by itself. An object whose
//!   attributes a request has changed is invalidated before the request is answered
//!   ([`Keeping::changed`]); answers that were made before, and aren't sent yet, keep nothing
//!   ([`Keeping::changes`]). The thread that answers doesn't wait there: the kernel only looks the
//!   inode up, which the waiting request uses. Files open for writing are left out: their
//!   attributes change with requests for which nobody waits.
//! - The view by attributes (`.by`) changes by itself: nothing of it is kept.
//!
//! [`Store::take_sole_use`]: forebay_store::Store::take_sole_use

use crate::notices::Notices;
use crate::protocol::{self as p, Head, Reply, opcode as op};
use forebay_client::Pool;
use forebay_posix::{Errno, ObjectId};
use forebay_store::Store;
use forebay_store::threads::watch;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long what the kernel keeps holds, if nobody says otherwise. Seconds.
const HOLDS: u64 = 3600;
/// How long sole use isn't asked for after it was wanted back, or refused: at first, and at most;
/// doubled each time that it was short.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Sole use that lasts so long was worth it.
const WORTH: Duration = Duration::from_secs(10);
/// Objects whose attributes the kernel may have, at most; the attributes of others aren't kept.
const MOST_NODES: usize = 1 << 17;
/// Whether attributes are kept, too. Not strictly yet: an older answer that arrives in between has
/// the kernel throw the one away that wasn't to be kept, so that [`Seen`] is no proof (once in some
/// 1,000 changes, while three others look at the object).
const KEEPS_ATTRIBUTES: bool = false;
/// After this time an answer has reached the kernel's inode, if its program hasn't asked again
/// before.
const STORED: Duration = Duration::from_secs(1);
/// Counters of changes; an object has that of its number.
const COUNTERS: usize = 1024;
/// How often the thread that waits for the end looks whether there still is a mount.
const LOOK: Duration = Duration::from_millis(500);

/// What the kernel of a mount may keep.
pub struct Keeping {
    pool: Arc<Pool>,
    notices: Arc<Notices>,
    is_possible: bool,
    /// The number of the present time of sole use; 0: there is none.
    current: AtomicU64,
    changes: [AtomicU32; COUNTERS],
    state: Mutex<State>,
    /// Sole use has begun.
    taken: Condvar,
}

struct State {
    /// Of whose attributes the kernel was told.
    nodes: HashMap<u64, Seen>,
    /// How often files are open for writing through the mount.
    writers: HashMap<u64, u32>,
    /// How many times of sole use there were.
    count: u64,
    begun: Instant,
    /// Not taken before.
    next: Instant,
    pause: Duration,
    is_over: bool,
}

/// An object whose attributes haven't changed since the kernel was told of them.
struct Seen {
    /// When, and which thread it was that asked: when it asks again, the kernel has stored the
    /// answer.
    at: Instant,
    thread: u32,
    /// The kernel may keep them.
    is_kept: bool,
}

/// What an answer is made by.
#[derive(Clone, Copy)]
pub struct Ticket {
    time: u64,
    changes: u32,
}

impl Keeping {
    /// For a mount of this pool, whose kernel can forget all names at once or not.
    pub fn new(pool: Arc<Pool>, notices: Arc<Notices>, forgets: bool) -> Keeping {
        let now = Instant::now();
        Keeping {
            is_possible: forgets && pool.config().member.is_none(),
            pool,
            notices,
            current: AtomicU64::new(0),
            changes: [const { AtomicU32::new(0) }; COUNTERS],
            state: Mutex::new(State {
                nodes: HashMap::new(),
                writers: HashMap::new(),
                count: 0,
                begun: now,
                next: now,
                pause: PAUSE,
                is_over: false,
            }),
            taken: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self) -> &Store {
        self.pool.store()
    }

    fn counter(&self, node: u64) -> &AtomicU32 {
        &self.changes[node as usize % COUNTERS]
    }

    /// Before anything is looked at for the answer to a request.
    pub fn begin(&self, head: &Head) -> Ticket {
        if self.is_possible && self.current.load(SeqCst) == 0 && may_keep(head.opcode) {
            self.try_to_take();
        }
        Ticket {
            time: self.current.load(SeqCst),
            changes: self.counter(head.node).load(SeqCst),
        }
    }

    fn try_to_take(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if now < state.next || state.is_over || self.current.load(SeqCst) != 0 {
            return;
        }
        if self.store().take_sole_use() == Ok(true) {
            state.count += 1;
            state.begun = now;
            self.current.store(state.count, SeqCst);
            self.taken.notify_one();
        } else {
            // Others use the pool: they may do so for long.
            state.next = now + state.pause.min(Duration::from_secs(1));
        }
    }

    /// The answer to a request is about to be sent: if it may be kept, it says so. Without a
    /// `result` because there is no such name, that may be kept, too: then there is an answer.
    pub fn stamp(
        &self,
        ticket: Ticket,
        head: &Head,
        result: Result<(), Errno>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if ticket.time == 0 || ticket.time != self.current.load(SeqCst) || is_view(head.node) {
            return result;
        }
        match (head.opcode, result) {
            (op::LOOKUP, Err(Errno::NOENT)) => {
                reply.clear();
                reply.zeros(p::ENTRY);
                reply.set(p::ENTRY_VALID, HOLDS);
                return Ok(());
            }
            (op::LOOKUP | op::CREATE | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK, Ok(()))
                if !is_view(reply.get(0)) =>
            {
                reply.set(p::ENTRY_VALID, HOLDS)
            }
            (op::GETATTR | op::STATX, Ok(())) if KEEPS_ATTRIBUTES && self.notes(ticket, head) => {
                reply.set(p::ATTR_VALID, HOLDS);
            }
            _ => {}
        }
        result
    }

    /// Whether the kernel may keep this object's attributes as they were when the ticket was given;
    /// then it is noted.
    fn notes(&self, ticket: Ticket, head: &Head) -> bool {
        let (node, thread) = (head.node, head.pid);
        let mut state = self.state();
        let may = ticket.time == self.current.load(SeqCst)
            && ticket.changes == self.counter(node).load(SeqCst)
            && !state.writers.contains_key(&node);
        if !may {
            return false;
        }
        let is_full = state.nodes.len() >= MOST_NODES;
        match state.nodes.get_mut(&node) {
            Some(seen) => {
                seen.is_kept |= seen.thread == thread || seen.at.elapsed() >= STORED;
                seen.is_kept
            }
            None if is_full => false,
            None => {
                let seen = Seen {
                    at: Instant::now(),
                    // 0: it can't be told from others.
                    thread: if thread == 0 { u32::MAX } else { thread },
                    is_kept: false,
                };
                state.nodes.insert(node, seen);
                false
            }
        }
    }

    /// A request that uses this object, and isn't answered yet, has changed its attributes.
    pub fn changed(&self, node: u64) {
        if self.is_possible {
            self.changes_with(node, |_| ());
        }
    }

    fn changes_with(&self, node: u64, f: impl FnOnce(&mut State)) {
        let mut state = self.state();
        self.counter(node).fetch_add(1, SeqCst);
        f(&mut state);
        let was_kept = state.nodes.remove(&node).is_some_and(|s| s.is_kept);
        drop(state);
        if was_kept {
            self.notices.forget_attributes(node);
        }
    }

    /// A request that isn't answered yet has opened the file for writing.
    pub fn opened(&self, node: u64) {
        if self.is_possible {
            self.changes_with(node, |s| *s.writers.entry(node).or_default() += 1);
        }
    }

    /// Nobody writes to the file any more by one of these.
    pub fn closed(&self, node: u64) {
        if !self.is_possible {
            return;
        }
        let mut state = self.state();
        if let Some(writers) = state.writers.get_mut(&node) {
            *writers -= 1;
            if *writers == 0 {
                state.writers.remove(&node);
            }
        }
    }

    /// The end: no sole use any more.
    pub fn end(&self) {
        self.state().is_over = true;
        self.give_back();
    }

    /// The kernel forgets all, and others may use the pool.
    fn give_back(&self) {
        let mut state = self.state();
        if self.current.swap(0, SeqCst) == 0 {
            return;
        }
        let was_worth = state.begun.elapsed() >= WORTH;
        state.pause = match was_worth {
            true => PAUSE,
            false => (2 * state.pause).min(LONGEST_PAUSE),
        };
        state.next = Instant::now() + state.pause;
        let nodes = std::mem::take(&mut state.nodes);
        drop(state);
        self.notices.forget_names();
        for (node, _) in nodes.into_iter().filter(|(_, seen)| seen.is_kept) {
            self.notices.forget_attributes(node);
        }
        self.store().end_sole_use();
    }

    /// Starts the thread that gives the sole use back when it is wanted, for as long as there is a
    /// server.
    ///
    /// # Errors
    /// If there can't be a thread.
    pub fn watch<S: AsRef<Keeping> + Send + Sync + 'static>(server: &Arc<S>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        watch("keeping", move || look(&server))
    }
}

/// Once; None if the server is gone.
fn look<S: AsRef<Keeping>>(server: &Weak<S>) -> Option<()> {
    let server = server.upgrade()?;
    let keeping = (*server).as_ref();
    let state = keeping.state();
    if keeping.current.load(SeqCst) == 0 {
        drop(keeping.taken.wait_timeout(state, LOOK));
        return Some(());
    }
    drop(state);
    if keeping.store().is_sole_use_wanted(LOOK) {
        keeping.give_back();
    }
    Some(())
}

/// Whether something of the answer may be kept.
fn may_keep(opcode: u32) -> bool {
    matches!(opcode, op::LOOKUP | op::GETATTR | op::STATX)
}

fn is_view(node: u64) -> bool {
    ObjectId(node).is_view()
}

//! Which names (and attributes, see [`KEEPS_ATTRIBUTES`]) the kernel may cache.
//!
//! It may cache them while the mount is the sole user of the store ([`Store::take_exclusive`]):
//! then only the mount's clients change anything, and replies are valid for [`HOLDS`]. A process
//! that attaches to the pool first requests the end of that. Then replies have no validity, and
//! that of all names given so far ([`Names`]) is ended before sole use is given back. So changes
//! outside of the mount are seen at once. Pools of several nodes have no sole user; nor do mounts
//! of kernels before Linux 6.2.
//!
//! Names expire, they aren't forgotten (NOTIFY_INVAL_ENTRY with EXPIRE_ONLY): the kernel unmounts
//! anything mounted on a name that it has to forget, in any mount namespace (loop images, bind
//! mounts of containers). For the same reason NOTIFY_INC_EPOCH isn't used.
//!
//! These hold although a reply may reach its program late:
//! - *Names*: the kernel looks up new names, and creates names, with the directory locked; a notice
//!   waits for that lock. It asks again for a known name without the lock: a notice that overtook
//!   the reply would have no effect. So the notices begin [`ARRIVED`] after the last such reply.
//!   Should a program not get a core for that long, the name is valid until [`HOLDS`] is over.
//! - *Attributes* are cached from replies to GETATTR alone. Then the kernel has the inode, and
//!   discards the reply if the inode was invalidated after the request began (NOTIFY_INVAL_INODE).
//!   So each object whose attributes the kernel may have is recorded before the reply is sent
//!   ([`State::nodes`]). The kernel marks an inode's attributes as valid before it stores them, and
//!   readers take no lock. So a reply may be cacheable only if the kernel has the same attributes
//!   already, from a reply that wasn't ([`Seen`]).
//! - *Changes through the mount*: the kernel updates its names itself. An object whose attributes a
//!   request has changed is invalidated before the reply ([`Keeping::changed`]); replies made
//!   before but not sent yet aren't cacheable ([`Keeping::changes`]). The answering thread doesn't
//!   wait there: the kernel only looks up the inode, which the waiting request uses. Files open for
//!   writing are excluded: their attributes change with requests for which nobody waits.
//! - The view by attributes (`.by`) changes by itself and is never cached.
//!
//! [`Store::take_exclusive`]: forebay_store::Store::take_exclusive

use crate::notices::Notices;
use crate::protocol::{self as p, Args, Head, Reply, opcode as op};
use forebay_client::Pool;
use forebay_posix::{Errno, ObjectId};
use forebay_runtime::threads::watch;
use forebay_store::Store;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Validity of cacheable replies. Seconds.
const HOLDS: u64 = 10;
/// Time after which the reply to a look-up has certainly arrived in the kernel.
const ARRIVED: Duration = Duration::from_millis(100);
/// Limit on the names that the kernel may cache; replies with others have no validity.
const MAX_NAMES: usize = 1 << 17;
/// How long sole use isn't requested after it was asked back, or refused: at first, and at most.
/// Doubled each time that it was short.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Sole use of at least this length doesn't count as short.
const WORTH: Duration = Duration::from_secs(10);
/// Limit on the objects whose attributes the kernel may have; those of others aren't cacheable.
const MAX_CACHED_NODES: usize = 1 << 17;
/// Whether attributes are cacheable, too. Not yet strictly safe: if an older reply arrives in
/// between, the kernel discards the one that wasn't cacheable, and then [`Seen`] proves nothing
/// (about once in 1,000 changes, while three others read the object).
const KEEPS_ATTRIBUTES: bool = false;
/// After this time a reply has reached the kernel's inode, unless a later request of its program
/// shows that earlier.
const STORED: Duration = Duration::from_secs(1);
/// Number of counters of changes; an object uses the one of its number.
const COUNTERS: usize = 1024;
/// How often the thread that waits for the end checks whether the mount still exists.
const LOOK: Duration = Duration::from_millis(500);

/// Names and attributes of a mount that the kernel may cache.
pub struct Keeping {
    pool: Arc<Pool>,
    notices: Arc<Notices>,
    is_possible: bool,
    /// Number of the current period of sole use; 0: none.
    current: AtomicU64,
    changes: [AtomicU32; COUNTERS],
    state: Mutex<State>,
    /// Signals that sole use has begun.
    taken: Condvar,
}

struct State {
    names: Names,
    /// When the last name was sent to the kernel that it may have had already.
    looked_up: Option<Instant>,
    /// Whether names are being expired.
    expires: bool,
    /// Objects whose attributes were sent to the kernel.
    nodes: HashMap<u64, Seen>,
    /// How often files are open for writing through the mount.
    writers: HashMap<u64, u32>,
    /// Number of periods of sole use so far.
    count: u64,
    begun: Instant,
    /// Sole use isn't requested before this time.
    next: Instant,
    pause: Duration,
    is_over: bool,
}

/// Names that the kernel may cache, by the node number of their directory. Names added since the
/// last [`Names::rotate`] are young. It forgets the old ones: the kernel got them more than
/// [`HOLDS`] ago and has dropped them by itself.
#[derive(Default)]
struct Names {
    young: HashMap<u64, HashSet<Box<[u8]>>>,
    old: HashMap<u64, HashSet<Box<[u8]>>>,
    /// Number of names that were added since the last rotation, and in the period before it.
    young_count: usize,
    old_count: usize,
    rotated: Option<Instant>,
}

impl Names {
    /// Adds a name; false if there are too many.
    fn add(&mut self, dir: u64, name: &[u8]) -> bool {
        // A second more: the validity begins when the reply arrives.
        let period = Duration::from_secs(HOLDS + 1);
        if self.rotated.is_none_or(|at| at.elapsed() >= period) {
            self.rotate();
        }
        if self.young_count + self.old_count >= MAX_NAMES {
            return false;
        }
        let is_new = self.young.entry(dir).or_default().insert(name.into());
        self.young_count += usize::from(is_new);
        true
    }

    fn rotate(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.old_count = std::mem::take(&mut self.young_count);
        self.rotated = Some(Instant::now());
    }

    fn into_all(self) -> impl Iterator<Item = (u64, HashSet<Box<[u8]>>)> {
        self.young.into_iter().chain(self.old)
    }
}

/// An object whose attributes haven't changed since they were sent to the kernel.
struct Seen {
    /// When they were sent, and to which thread: when it sends another request, the kernel has
    /// stored the reply.
    at: Instant,
    thread: u32,
    /// Whether the kernel may cache them.
    is_kept: bool,
}

/// The state at the beginning of a request.
#[derive(Clone, Copy)]
pub struct Ticket {
    time: u64,
    changes: u32,
}

impl Keeping {
    /// For a mount of this pool. `forgets`: whether the kernel can forget all names at once.
    pub fn new(pool: Arc<Pool>, notices: Arc<Notices>, forgets: bool) -> Keeping {
        let now = Instant::now();
        Keeping {
            is_possible: forgets && pool.config().member.is_none(),
            pool,
            notices,
            current: AtomicU64::new(0),
            changes: [const { AtomicU32::new(0) }; COUNTERS],
            state: Mutex::new(State {
                names: Names::default(),
                looked_up: None,
                expires: false,
                nodes: HashMap::new(),
                writers: HashMap::new(),
                count: 0,
                begun: now,
                next: now,
                pause: FIRST_RETRY_DELAY,
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

    /// Called before anything is read for the reply to a request.
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
        if self.store().declared().take_exclusive() == Ok(true) {
            state.count += 1;
            state.begun = now;
            self.current.store(state.count, SeqCst);
            self.taken.notify_one();
        } else {
            // Other processes use the pool, and may do so for long.
            state.next = now + state.pause.min(Duration::from_secs(1));
        }
    }

    /// Called before the reply is sent: sets its validity if it is cacheable. Without a `result`
    /// because the name doesn't exist, that may be cacheable, too; then there is a reply.
    pub fn stamp(
        &self,
        ticket: Ticket,
        (head, args): (&Head, Args<'_>),
        result: Result<(), Errno>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if ticket.time == 0 || ticket.time != self.current.load(SeqCst) || is_view(head.node) {
            return result;
        }
        match (head.opcode, result) {
            (op::LOOKUP, Err(Errno::NOENT)) if self.adds_name(ticket, head, args.clone()) => {
                reply.clear();
                reply.zeros(p::ENTRY);
                reply.set(p::ENTRY_VALID, HOLDS);
                return Ok(());
            }
            (op::LOOKUP | op::CREATE | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK, Ok(()))
                if !is_view(reply.get(0)) && self.adds_name(ticket, head, args.clone()) =>
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

    /// Whether the kernel may cache the request's name; if so, records it.
    fn adds_name(&self, ticket: Ticket, head: &Head, args: Args<'_>) -> bool {
        let Some(name) = name_in(head.opcode, args) else {
            return false;
        };
        let mut state = self.state();
        if ticket.time != self.current.load(SeqCst) || !state.names.add(head.node, name) {
            return false;
        }
        if head.opcode == op::LOOKUP {
            state.looked_up = Some(Instant::now());
        }
        true
    }

    /// Called before names are renamed: the new ones inherit the validity of the old ones.
    pub fn renames(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        if !self.is_possible {
            return;
        }
        let mut state = self.state();
        if self.current.load(SeqCst) == 0 && !state.expires {
            return;
        }
        for (dir, name) in [from, to] {
            if !state.names.add(dir, name) {
                // Recorded in spite of the limit: the kernel caches these names without asking.
                let young = state.names.young.entry(dir).or_default();
                young.insert(name.into());
            }
        }
    }

    /// Whether the kernel may cache this object's attributes as of the ticket; if so, records it.
    fn notes(&self, ticket: Ticket, head: &Head) -> bool {
        let (node, thread) = (head.node, head.pid);
        let mut state = self.state();
        let may = ticket.time == self.current.load(SeqCst)
            && ticket.changes == self.counter(node).load(SeqCst)
            && !state.writers.contains_key(&node);
        if !may {
            return false;
        }
        let is_full = state.nodes.len() >= MAX_CACHED_NODES;
        match state.nodes.get_mut(&node) {
            Some(seen) => {
                seen.is_kept |= seen.thread == thread || seen.at.elapsed() >= STORED;
                seen.is_kept
            }
            None if is_full => false,
            None => {
                let seen = Seen {
                    at: Instant::now(),
                    // 0: the thread's id isn't known.
                    thread: if thread == 0 { u32::MAX } else { thread },
                    is_kept: false,
                };
                state.nodes.insert(node, seen);
                false
            }
        }
    }

    /// Called when an unanswered request that uses this object has changed its attributes.
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

    /// Called when an unanswered request has opened the file for writing.
    pub fn opened(&self, node: u64) {
        if self.is_possible {
            self.changes_with(node, |s| *s.writers.entry(node).or_default() += 1);
        }
    }

    /// Called when a description that was open for writing is closed.
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

    /// Ends sole use for good, after the last request. Names needn't expire: nothing is answered
    /// any more, and a program that waits for an answer may have a directory locked.
    pub fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        if self.current.swap(0, SeqCst) != 0 {
            self.store().declared().end_exclusive();
        }
    }

    /// Makes the kernel ask again for all names, and lets others use the pool.
    fn give_back(&self) {
        let mut state = self.state();
        if self.current.swap(0, SeqCst) == 0 {
            return;
        }
        let was_worth = state.begun.elapsed() >= WORTH;
        state.pause = if was_worth {
            FIRST_RETRY_DELAY
        } else {
            (2 * state.pause).min(MAX_RETRY_DELAY)
        };
        state.next = Instant::now() + state.pause;
        let nodes = std::mem::take(&mut state.nodes);
        state.expires = true;
        let arrives = state.looked_up.take().map(|at| at + ARRIVED);
        drop(state);
        if let Some(left) = arrives.and_then(|at| at.checked_duration_since(Instant::now())) {
            std::thread::sleep(left);
        }
        self.expire_names();
        for (node, _) in nodes.into_iter().filter(|(_, seen)| seen.is_kept) {
            self.notices.forget_attributes(node);
        }
        self.store().declared().end_exclusive();
    }

    /// Ends the validity of all names, those included that are renamed meanwhile.
    fn expire_names(&self) {
        loop {
            let mut state = self.state();
            let names = std::mem::take(&mut state.names);
            if names.young.is_empty() && names.old.is_empty() {
                state.expires = false;
                return;
            }
            drop(state);
            for (dir, names) in names.into_all() {
                for name in names {
                    self.notices.expire_name(dir, &name);
                }
            }
        }
    }

    /// Starts the thread that gives sole use back on request, while there is a server.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn watch<S: AsRef<Keeping> + Send + Sync + 'static>(server: &Arc<S>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        watch("keeping", move || look(&server))
    }
}

/// One round; None if the server has ended.
fn look<S: AsRef<Keeping>>(server: &Weak<S>) -> Option<()> {
    let server = server.upgrade()?;
    let keeping = (*server).as_ref();
    let state = keeping.state();
    if keeping.current.load(SeqCst) == 0 {
        drop(keeping.taken.wait_timeout(state, LOOK));
        return Some(());
    }
    drop(state);
    if keeping.store().declared().is_exclusive_end_wanted(LOOK) {
        keeping.give_back();
    }
    Some(())
}

/// The name that a request looks up or creates in its directory.
fn name_in(opcode: u32, mut args: Args<'_>) -> Option<&[u8]> {
    // Bytes before the name.
    let before = match opcode {
        op::LOOKUP | op::SYMLINK => 0,
        op::MKDIR | op::LINK => 8,
        op::CREATE | op::MKNOD => 16,
        _ => return None,
    };
    args.skip(before).ok()?;
    args.text().ok()
}

/// Whether parts of the reply may be cacheable.
fn may_keep(opcode: u32) -> bool {
    matches!(opcode, op::LOOKUP | op::GETATTR | op::STATX)
}

fn is_view(node: u64) -> bool {
    ObjectId(node).is_view()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leave_with_the_second_rotation() {
        let mut names = Names::default();
        assert!(names.add(1, b"a") && names.add(1, b"a") && names.add(2, b"a"));
        assert_eq!(names.young_count, 2);
        names.rotate();
        assert!(names.add(1, b"b"));
        assert_eq!((names.young_count, names.old_count), (1, 2));
        names.rotate();
        let left: Vec<_> = names.into_all().collect();
        assert_eq!(left, [(1, HashSet::from([Box::from(&b"b"[..])]))]);
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let mut names = Names::default();
        for n in 0..MAX_NAMES {
            assert!(names.add(n as u64 % 7, &n.to_ne_bytes()));
        }
        assert!(!names.add(1, b"one more"));
        names.rotate();
        names.rotate();
        assert!(names.add(1, b"one more"));
    }
}

//! Decides which names the kernel may cache. It caches no attributes: it can store an older answer
//! over a newer one (decision 0032).
//!
//! The kernel may cache names while the mount is the sole user of the store ([`SoleUse`]).
//! Then only the mount's clients change anything, and replies are valid for [`HOLDS`]. A process
//! that attaches to the pool first requests the end of sole use. From then on replies have no
//! validity. Before sole use is given back, the validity of all names given so far ([`Names`]) is
//! ended. So changes outside of the mount are seen at once. Pools of several nodes have no sole
//! user; nor do mounts of kernels before Linux 6.2.
//!
//! The validity of names is ended by expiring them (NOTIFY_INVAL_ENTRY with EXPIRE_ONLY). Names
//! aren't forgotten: the kernel would unmount anything mounted on a forgotten name, in any mount
//! namespace (loop images, bind mounts of containers). For the same reason NOTIFY_INC_EPOCH isn't
//! used.
//!
//! A reply takes effect only when its program runs, perhaps after a later notice. The kernel looks
//! up new names, and creates names, with the directory locked, and a notice waits for that lock. For
//! a known name, the kernel asks again without the lock: a notice that overtook the reply would have
//! no effect. So the notices begin [`ARRIVED`] after the last reply for a known name. If a program
//! doesn't get a core for that time, the name stays valid until [`HOLDS`] is over. The kernel updates
//! its names itself when requests through the mount change them.
//!
//! The view by attributes (`.by`) changes without requests and is never cached.
//!
//! [`SoleUse`]: forebay_store::views::SoleUse

use crate::notices::Notices;
use crate::protocol::{self as p, Args, Head, Reply, opcode as op};
use forebay_client::Pool;
use forebay_posix::{Errno, ObjectId};
use forebay_runtime::threads::{lock, watch};
use forebay_store::Store;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

/// Validity of cacheable replies. Seconds.
const HOLDS: u64 = 10;
/// How long the reply to a look-up takes at most to arrive in the kernel.
const ARRIVED: Duration = Duration::from_millis(100);
/// Maximum number of names that the kernel may cache. Replies with further names have no validity.
const MAX_NAMES: usize = 1 << 17;
/// First and longest pause before sole use is requested again, after another process ended it or
/// the store refused it. The pause doubles each time that sole use was shorter than [`WORTH`].
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Duration of sole use after which the pause is [`FIRST_RETRY_DELAY`] again.
const WORTH: Duration = Duration::from_secs(10);
/// How often the thread that waits for the end of sole use checks whether the mount still exists.
const LOOK: Duration = Duration::from_millis(500);

/// Names of a mount that the kernel may cache.
pub struct Keeping {
    pool: Arc<Pool>,
    notices: Arc<Notices>,
    is_possible: bool,
    /// Number of the current period of sole use; 0 if there is none.
    current: AtomicU64,
    state: Mutex<State>,
    /// Signals that sole use has begun.
    taken: Condvar,
}

struct State {
    names: Names,
    /// When the kernel was last sent a name that it may have known already.
    looked_up: Option<Instant>,
    /// Whether names are being expired.
    expires: bool,
    /// Number of periods of sole use so far.
    count: u64,
    begun: Instant,
    /// Time before which sole use isn't requested again.
    next: Instant,
    pause: Duration,
    is_over: bool,
}

/// Names that the kernel may cache, by the node number of their directory. Names added since the
/// last [`Names::rotate`] are young, the others old. A rotation forgets the old names: the kernel
/// got them more than [`HOLDS`] ago, so their validity is over.
#[derive(Default)]
struct Names {
    young: HashMap<u64, HashSet<Box<[u8]>>>,
    old: HashMap<u64, HashSet<Box<[u8]>>>,
    /// Number of names added since the last rotation (`young_count`), and between the two last
    /// rotations (`old_count`).
    young_count: usize,
    old_count: usize,
    rotated: Option<Instant>,
}

impl Names {
    /// Adds a name. Returns false, without adding it, if there are too many.
    fn add(&mut self, dir: u64, name: &[u8]) -> bool {
        // A second more than `HOLDS`: the validity begins only when the reply arrives.
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

impl Keeping {
    /// Creates the state of a mount of this pool. `forgets`: whether the kernel can expire names.
    pub fn new(pool: Arc<Pool>, notices: Arc<Notices>, forgets: bool) -> Keeping {
        let now = Instant::now();
        Keeping {
            is_possible: forgets && pool.config().member.is_none(),
            pool,
            notices,
            current: AtomicU64::new(0),
            state: Mutex::new(State {
                names: Names::default(),
                looked_up: None,
                expires: false,
                count: 0,
                begun: now,
                next: now,
                pause: FIRST_RETRY_DELAY,
                is_over: false,
            }),
            taken: Condvar::new(),
        }
    }

    fn store(&self) -> &Store {
        self.pool.store()
    }

    /// Returns the number of the current period of sole use, 0 for none. Must be called before
    /// anything is read for the reply to a request. Tries to begin sole use.
    pub fn begin(&self, head: &Head) -> u64 {
        if self.is_possible && self.current.load(SeqCst) == 0 && may_keep(head.opcode) {
            self.try_to_take();
        }
        self.current.load(SeqCst)
    }

    fn try_to_take(&self) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        if now < state.next || state.is_over || self.current.load(SeqCst) != 0 {
            return;
        }
        if self
            .store()
            .process_slot()
            .is_ok_and(|slot| self.store().sole_use().take(slot))
        {
            state.count += 1;
            state.begun = now;
            self.current.store(state.count, SeqCst);
            self.taken.notify_one();
        } else {
            // Other processes use the pool, perhaps for a long time.
            state.next = now + state.pause.min(Duration::from_secs(1));
        }
    }

    /// Sets the validity of a reply that is cacheable. `period`: as [`Keeping::begin`] returned it.
    /// Must be called before the reply is sent. If the kernel may cache that a name doesn't exist,
    /// replaces the error by a reply.
    pub fn stamp(
        &self,
        period: u64,
        (head, args): (&Head, Args<'_>),
        result: Result<(), Errno>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        if period == 0 || period != self.current.load(SeqCst) || is_view(head.node) {
            return result;
        }
        match (head.opcode, result) {
            (op::LOOKUP, Err(Errno::NOENT)) if self.adds_name(period, head, args.clone()) => {
                reply.clear();
                reply.zeros(p::ENTRY);
                reply.set(p::ENTRY_VALID, HOLDS);
                return Ok(());
            }
            (op::LOOKUP | op::CREATE | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK, Ok(()))
                if !is_view(reply.get(0)) && self.adds_name(period, head, args.clone()) =>
            {
                reply.set(p::ENTRY_VALID, HOLDS)
            }
            _ => {}
        }
        result
    }

    /// Whether the kernel may cache the request's name; if so, records it.
    fn adds_name(&self, period: u64, head: &Head, args: Args<'_>) -> bool {
        let Some(name) = name_in(head.opcode, args) else {
            return false;
        };
        let mut state = lock(&self.state);
        if period != self.current.load(SeqCst) || !state.names.add(head.node, name) {
            return false;
        }
        if head.opcode == op::LOOKUP {
            state.looked_up = Some(Instant::now());
        }
        true
    }

    /// Records both names of a rename, before it is done: the kernel gives the new name the
    /// validity of the old one.
    pub fn renames(&self, from: (u64, &[u8]), to: (u64, &[u8])) {
        if !self.is_possible {
            return;
        }
        let mut state = lock(&self.state);
        if self.current.load(SeqCst) == 0 && !state.expires {
            return;
        }
        for (dir, name) in [from, to] {
            if !state.names.add(dir, name) {
                // Added even beyond the limit: the kernel caches these names without asking.
                let young = state.names.young.entry(dir).or_default();
                young.insert(name.into());
            }
        }
    }

    /// Ends sole use, after the last request, and keeps it from beginning again. Names aren't
    /// expired: no request is answered any more, and a program that waits for a reply may have a
    /// directory locked.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        if self.current.swap(0, SeqCst) != 0 {
            self.store().sole_use().end();
        }
    }

    /// Expires all names, ends sole use, and so lets other processes use the pool.
    fn give_back(&self) {
        let mut state = lock(&self.state);
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
        state.expires = true;
        let arrives = state.looked_up.take().map(|at| at + ARRIVED);
        drop(state);
        if let Some(left) = arrives.and_then(|at| at.checked_duration_since(Instant::now())) {
            std::thread::sleep(left);
        }
        self.expire_names();
        self.store().sole_use().end();
    }

    /// Ends the validity of all names, including those that renames add during the call.
    fn expire_names(&self) {
        loop {
            let mut state = lock(&self.state);
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

    /// Starts the thread that ends sole use on request. The thread runs as long as the server
    /// exists.
    ///
    /// # Errors
    /// If the thread can't be started.
    pub fn watch<S: AsRef<Keeping> + Send + Sync + 'static>(server: &Arc<S>) -> io::Result<()> {
        let server = Arc::downgrade(server);
        watch("keeping", move || look(&server))
    }
}

/// Waits for one event: the beginning of sole use, or a request for its end. Returns None if the
/// server has ended.
fn look<S: AsRef<Keeping>>(server: &Weak<S>) -> Option<()> {
    let server = server.upgrade()?;
    let keeping = (*server).as_ref();
    let state = lock(&keeping.state);
    if keeping.current.load(SeqCst) == 0 {
        drop(keeping.taken.wait_timeout(state, LOOK));
        return Some(());
    }
    drop(state);
    if keeping.store().sole_use().is_end_wanted(LOOK) {
        keeping.give_back();
    }
    Some(())
}

/// Returns the name that a request looks up or creates in its directory.
fn name_in(opcode: u32, mut args: Args<'_>) -> Option<&[u8]> {
    // Number of bytes before the name.
    let before = match opcode {
        op::LOOKUP | op::SYMLINK => 0,
        op::MKDIR | op::LINK => 8,
        op::CREATE | op::MKNOD => 16,
        _ => return None,
    };
    args.skip(before).ok()?;
    args.text().ok()
}

/// Whether the reply to this kind of request is a reason to begin sole use.
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

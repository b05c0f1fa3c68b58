//! Threads with a working directory and umask of their own, as unshare(2) gives them with CLONE_FS.
//!
//! Nearly all threads share their process's working directory and umask, which are in the process's
//! area ([`crate::Process`]). A thread with its own ones, and the threads that it makes, share a
//! [`ThreadFs`] in a small table. A new thread finds out once, with kcmp(2), which one it shares:
//! one in the table if a thread that is recorded there still runs and shares it, otherwise the
//! process's.

use forebay_store::process::thread_ids::{is_thread, shares_fs, thread_id};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Maximum number of [`ThreadFs`] that a process uses at a time.
const MAX_GROUPS: usize = 1024;
/// Maximum number of threads of a [`ThreadFs`] whose ids are recorded.
const MEMBERS: usize = 4;

/// A working directory and umask, and the threads that share them.
pub struct ThreadFs {
    /// Ids of the threads that share this state; 0: free.
    members: [AtomicU32; MEMBERS],
    /// More threads share this state than `members` can hold: the state is never reused for others.
    is_crowded: AtomicBool,
    /// Id of the working directory; 0: it isn't in the pool.
    pub(crate) cwd: AtomicU64,
    /// umask + 1; 0: not known yet.
    pub(crate) umask: AtomicU32,
}

static TABLE: [ThreadFs; MAX_GROUPS] = [const {
    ThreadFs {
        members: [const { AtomicU32::new(0) }; MEMBERS],
        is_crowded: AtomicBool::new(false),
        cwd: AtomicU64::new(0),
        umask: AtomicU32::new(0),
    }
}; MAX_GROUPS];

/// Whether this process has, or had, threads with their own working directory and umask.
static ANY: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy)]
enum Which {
    Unknown,
    OfProcess,
    Own(&'static ThreadFs),
}

thread_local! {
    static WHICH: Cell<Which> = const { Cell::new(Which::Unknown) };
}

impl ThreadFs {
    fn ids(&self) -> impl Iterator<Item = u32> {
        self.members
            .iter()
            .map(|m| m.load(Acquire))
            .filter(|&id| id != 0)
    }

    /// Adds this thread to the threads that share this state.
    fn join(&self) {
        let me = thread_id();
        let free = |m: &AtomicU32| {
            let id = m.load(Acquire);
            (id == 0 || !is_thread(id)) && m.compare_exchange(id, me, AcqRel, Relaxed).is_ok()
        };
        if !self.members.iter().any(free) {
            self.is_crowded.store(true, Release);
        }
    }
}

/// Whether this process has, or had, threads with their own working directory and umask.
#[inline]
pub fn any() -> bool {
    ANY.load(Relaxed)
}

/// The state that this thread uses instead of its process's; None if it uses its process's.
#[inline]
pub fn current() -> Option<&'static ThreadFs> {
    if any() { of_thread() } else { None }
}

#[cold]
fn of_thread() -> Option<&'static ThreadFs> {
    if let Which::Unknown = WHICH.get() {
        let shared = |group: &&ThreadFs| group.ids().any(shares_fs);
        let found = TABLE.iter().find(shared).inspect(|group| group.join());
        WHICH.set(found.map_or(Which::OfProcess, Which::Own));
    }
    match WHICH.get() {
        Which::Own(group) => Some(group),
        _ => None,
    }
}

/// Reserves an entry of the table for this thread; None if all are in use.
pub fn reserve() -> Option<&'static ThreadFs> {
    let me = thread_id();
    TABLE.iter().find(|group| {
        let first = group.members[0].load(Acquire);
        let unused = !group.is_crowded.load(Acquire) && !group.ids().any(is_thread);
        unused
            && group.members[0]
                .compare_exchange(first, me, AcqRel, Relaxed)
                .is_ok()
    })
}

/// Gives this thread the working directory `cwd` and the umask `umask` of its own from now on, in
/// the reserved entry `own`.
pub fn begin(own: &'static ThreadFs, cwd: u64, umask: u32) {
    for other in &own.members[1..] {
        other.store(0, Release);
    }
    own.cwd.store(cwd, Release);
    own.umask.store(umask, Release);
    WHICH.set(Which::Own(own));
    ANY.store(true, Release);
}

/// Frees a reserved entry that isn't needed after all.
pub fn give_back(reserved: &'static ThreadFs) {
    reserved.members[0].store(0, Release);
}

/// Frees the whole table in a forked child: the child's area has the working directory and umask of
/// the thread that forked.
pub fn after_fork_in_child() {
    if any() {
        for group in &TABLE {
            group.members.iter().for_each(|m| m.store(0, Release));
            group.is_crowded.store(false, Release);
        }
        WHICH.set(Which::OfProcess);
        ANY.store(false, Release);
    }
}

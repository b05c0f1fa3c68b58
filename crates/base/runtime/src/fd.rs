//! Forebay's own descriptors inside other programs' processes.
//!
//! When a library opens a file, it gets the lowest free number, but the program may count on
//! getting that number. So every descriptor that Forebay keeps is moved to the upper end of the
//! usual numbers, and listed here. The preloaded library uses the list to hide our descriptors from
//! a program that closes all descriptors.
//!
//! A program may still ask for such a number (dup2). Then Forebay's descriptor moves to another
//! number ([`vacate`]). Threads that are using the number of a listed descriptor are counted
//! ([`Using`], [`Lent`]), and a move waits until no thread is counted. So no thread uses a number
//! that has become the program's. The rest of Forebay therefore stores no numbers: a [`Place`]
//! stores a descriptor's index in the list. LMDB stores numbers, and each move corrects them
//! ([`follow`]).

use crate::critical::Critical;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of descriptor numbers for Forebay's own descriptors. These numbers lie just below
/// [`USUAL_LIMIT`], or below the soft limit if that is lower.
pub const HIGH_FD_ROOM: u64 = 160;

/// The usual soft limit of descriptors. Higher numbers aren't used, since the kernel copies the
/// table of descriptors up to the highest number at each fork: 75 us more at 20,000 than at 1,000.
const USUAL_LIMIT: u64 = 1024;

/// Numbers from here on can't be hidden: the preloaded library's table by number ends here.
const NUMBERS: u64 = 1 << 16;

/// Length of the list of Forebay's descriptors.
const MAX_KEPT: usize = HIGH_FD_ROOM as usize;

/// How long a move waits for threads that are using listed descriptors, before it fails with EBUSY.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1);

/// One of Forebay's descriptors.
struct Kept {
    /// The descriptor's number; -1: the entry is free.
    number: AtomicI32,
    /// One of [`mobility`].
    mobility: AtomicU8,
    /// Another variable that holds the number, and that each move updates; or null.
    copy: AtomicPtr<RawFd>,
    /// The [`Around`] function that makes the move, or null.
    around: AtomicPtr<()>,
}

/// Whether a descriptor can be moved to another number.
mod mobility {
    /// Another component may know the descriptor's number: the descriptor must not move.
    pub const FIXED: u8 = 0;
    pub const MOVABLE: u8 = 1;
}

/// A function that makes a move. The function gets the descriptor and a closure, which moves the
/// descriptor and returns its new number. The function returns that number, or the error; after an
/// error the descriptor hasn't moved.
pub type Around = fn(BorrowedFd<'_>, &mut dyn FnMut() -> Result<RawFd>) -> Result<RawFd>;

static INTERNAL_FDS: [Kept; MAX_KEPT] = [const {
    Kept {
        number: AtomicI32::new(-1),
        mobility: AtomicU8::new(mobility::FIXED),
        copy: AtomicPtr::new(std::ptr::null_mut()),
        around: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MAX_KEPT];

/// Number of threads that are using numbers of Forebay's descriptors.
static USERS: AtomicU32 = AtomicU32::new(0);
/// Whether a thread moves one of Forebay's descriptors, or waits until it may.
static MOVING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Number of [`Using`] values of this thread. A thread with one or more counts once in
    /// [`USERS`].
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Set while this thread runs the child of a vfork. The child shares this memory but has its
    /// own descriptors. One bit for each entry of the list: whether the child has given that number
    /// to its program.
    static CHILD: Cell<Option<[u64; MAX_KEPT.div_ceil(64)]>> = const { Cell::new(None) };
}

/// Declares that this thread runs the child of a vfork from now on: descriptors that it opens or
/// closes are the child's own.
pub fn enter_vfork_child() {
    CHILD.set(Some(Default::default()));
}

/// Declares that this thread runs the parent of the vfork again.
pub fn leave_vfork_child() {
    CHILD.set(None);
}

/// Whether entry `at` is one whose number this vfork child has given away.
fn is_given_away(at: usize) -> bool {
    CHILD
        .get()
        .is_some_and(|given| given[at / 64] & 1 << (at % 64) != 0)
}

/// While a value of this type exists, Forebay's descriptors keep their numbers.
pub struct Using(Critical);

/// Keeps Forebay's descriptors at their numbers until the result is dropped. Nests.
#[inline]
pub fn using() -> Using {
    let critical = Critical::enter();
    DEPTH.with(|depth| {
        if depth.get() == 0 {
            USERS.fetch_add(1, SeqCst);
            while MOVING.load(SeqCst) {
                let_move();
            }
        }
        depth.set(depth.get() + 1);
    });
    Using(critical)
}

/// Lets another thread's move finish: stops counting as a user, waits, and counts again.
#[cold]
fn let_move() {
    USERS.fetch_sub(1, SeqCst);
    while MOVING.load(Relaxed) {
        std::thread::yield_now();
    }
    USERS.fetch_add(1, SeqCst);
}

impl Drop for Using {
    #[inline]
    fn drop(&mut self) {
        let _ = &self.0;
        DEPTH.with(|depth| {
            depth.set(depth.get() - 1);
            if depth.get() == 0 {
                USERS.fetch_sub(1, SeqCst);
            }
        });
    }
}

/// Resets the state in a forked child: its only thread uses none of these numbers, and moves
/// nothing.
pub fn after_fork_in_child() {
    USERS.store(0, SeqCst);
    DEPTH.set(0);
    MOVING.store(false, SeqCst);
    CHILD.set(None);
}

/// One of Forebay's descriptors, which keeps its number while this value exists.
pub struct Lent {
    number: RawFd,
    /// The descriptor, if a vfork child opened it: the list is the parent's and doesn't contain it.
    _own: Option<OwnedFd>,
    _using: Using,
}

impl Lent {
    /// Lends a vfork child's descriptor, which is closed when the result is dropped.
    fn own(fd: OwnedFd) -> Lent {
        Lent {
            number: fd.as_raw_fd(),
            _own: Some(fd),
            _using: using(),
        }
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is `_own`, or that of a `Place`, which keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

impl AsRawFd for Lent {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

/// Where to find one of Forebay's descriptors: an index into the list; or [`MAX_KEPT`] plus the
/// number, if the list was full; or -1 before the descriptor was opened.
pub struct Place(AtomicI32);

impl Place {
    /// A place without a descriptor.
    pub const fn empty() -> Place {
        Place(AtomicI32::new(-1))
    }

    /// Returns the descriptor, if it was opened.
    #[inline]
    pub fn lend(&self) -> Option<Lent> {
        let using = using();
        let at = usize::try_from(self.0.load(Acquire)).ok()?;
        let number = match INTERNAL_FDS.get(at) {
            Some(_) if is_given_away(at) => return None,
            Some(kept) => kept.number.load(Acquire),
            None => (at - MAX_KEPT) as RawFd,
        };
        Some(Lent {
            number,
            _own: None,
            _using: using,
        })
    }

    /// Returns the descriptor; calls `open` if there is none yet. If two threads open it at once,
    /// the second thread's descriptor is closed again. A descriptor that a vfork child opens is
    /// closed when the result is dropped.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn lend_or_open(&self, open: impl FnMut() -> Result<OwnedFd>) -> Result<Lent> {
        if let Some(lent) = self.lend() {
            return Ok(lent);
        }
        let opened = with_room(open)?;
        if CHILD.get().is_some() {
            return Ok(Lent::own(opened));
        }
        let opened = lift(opened).into_raw_fd();
        let at = match INTERNAL_FDS
            .iter()
            .position(|k| k.number.load(Relaxed) == opened)
        {
            Some(at) => {
                INTERNAL_FDS[at].mobility.store(mobility::MOVABLE, Release);
                at as i32
            }
            None => MAX_KEPT as i32 + opened,
        };
        if self.0.compare_exchange(-1, at, AcqRel, Acquire).is_err() {
            // SAFETY: only this thread knows the number, since another thread published its own
            // first.
            drop_kept(unsafe { OwnedFd::from_raw_fd(opened) });
        }
        self.lend().ok_or(Errno::BADF)
    }

    /// Forgets the descriptor without closing it, since another process opened it: a vfork child,
    /// or the parent.
    pub fn forget(&self) {
        self.0.store(-1, Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lent) = self.lend() {
            // SAFETY: `lend_or_open` stored the descriptor, which this place owns.
            drop_kept(unsafe { OwnedFd::from_raw_fd(lent.number) });
        }
    }
}

/// Runs `open`. If the program has used up its descriptors, runs `open` again with the soft limit
/// raised to the hard one meanwhile. The program's own open files aren't affected.
///
/// # Errors
/// Those of `open`.
pub fn with_room<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    match open() {
        Err(Errno::MFILE) => raised(|_| open()).unwrap_or(Err(Errno::MFILE)),
        first => first,
    }
}

/// Runs `f` with the soft limit of descriptors raised to the hard one; `f` gets the program's
/// limit. None if the limit can't be raised.
fn raised<T>(f: impl FnOnce(u64) -> T) -> Option<T> {
    static RAISING: Mutex<()> = Mutex::new(());
    // The lock isn't waited for: a forked child may have inherited it in its held state.
    let _one = RAISING.try_lock().ok()?;
    let limit = getrlimit(Resource::Nofile);
    let above = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let soft = limit.current.filter(|_| limit.current != limit.maximum)?;
    setrlimit(Resource::Nofile, above).ok()?;
    let result = f(soft);
    let _ = setrlimit(Resource::Nofile, limit);
    Some(result)
}

/// The lowest number for Forebay's own descriptors.
fn base() -> u64 {
    let limit = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(NUMBERS)
        .min(USUAL_LIMIT);
    limit.saturating_sub(HIGH_FD_ROOM).max(limit / 2).max(3)
}

/// Duplicates `fd` to a number from `base` on, with close-on-exec set. If the program uses all of
/// these numbers, takes one above the program's soft limit, if the hard limit allows it.
fn above(fd: BorrowedFd<'_>, base: RawFd) -> Result<OwnedFd> {
    let beyond = |limit| rustix::io::fcntl_dupfd_cloexec(fd, limit as RawFd);
    match rustix::io::fcntl_dupfd_cloexec(fd, base) {
        Err(e @ (Errno::MFILE | Errno::INVAL)) => raised(beyond).unwrap_or(Err(e)),
        first => first,
    }
}

/// Moves `fd` to a high number with close-on-exec set, and lists it as Forebay's.
pub fn lift(fd: OwnedFd) -> OwnedFd {
    let base = base() as RawFd;
    let moved = if fd.as_raw_fd() < base {
        above(fd.as_fd(), base).ok()
    } else {
        None
    };
    let fd = moved.unwrap_or(fd);
    keep(fd.as_raw_fd());
    fd
}

/// Sets the function that is called with each descriptor listed from now on.
pub fn tell(watcher: fn(RawFd)) {
    let _ = WATCHER.set(watcher);
}

static WATCHER: OnceLock<fn(RawFd)> = OnceLock::new();

/// Lists `fd` as one of Forebay's descriptors.
pub fn keep(fd: RawFd) {
    if let Some(watcher) = WATCHER.get() {
        watcher(fd);
    }
    for k in &INTERNAL_FDS {
        let old = k.number.load(Relaxed);
        if old == fd {
            return;
        }
        if old < 0 && k.number.compare_exchange(old, fd, AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

fn index(fd: RawFd) -> Option<usize> {
    let is_it = |k: &Kept| k.number.load(Acquire) == fd;
    INTERNAL_FDS.iter().position(is_it).filter(|_| fd >= 0)
}

fn find(fd: RawFd) -> Option<&'static Kept> {
    index(fd).map(|at| &INTERNAL_FDS[at])
}

/// Whether the program must not see or close `fd`.
pub fn is_internal(fd: RawFd) -> bool {
    index(fd).is_some_and(|at| !is_given_away(at))
}

/// Returns the listed descriptors.
pub fn internal() -> Vec<RawFd> {
    let numbers = INTERNAL_FDS.iter().map(|k| k.number.load(Relaxed));
    let ours = numbers
        .enumerate()
        .filter(|&(at, fd)| fd >= 0 && !is_given_away(at));
    ours.map(|(_, fd)| fd).collect()
}

/// Takes `fd` off the list of Forebay's descriptors; the caller is going to close it.
pub fn forget(fd: RawFd) {
    if let Some(kept) = find(fd) {
        kept.mobility.store(mobility::FIXED, Relaxed);
        kept.copy.store(std::ptr::null_mut(), Relaxed);
        kept.around.store(std::ptr::null_mut(), Relaxed);
        kept.number.store(-1, Release);
    }
}

/// Takes one of Forebay's descriptors off the list and closes it.
pub fn drop_kept(fd: OwnedFd) {
    forget(fd.as_raw_fd());
    drop(fd);
}

/// Allows a listed descriptor to move to another number. `copy` holds the number, too, and is
/// updated by each move; `around` is called around each move. Does nothing if the descriptor isn't
/// listed.
///
/// # Safety
/// `copy` stays valid until [`unfollow`] or [`forget`], and is read only by threads that are
/// [`using`] Forebay's descriptors.
pub unsafe fn follow(copy: *mut RawFd, around: Option<Around>) {
    // SAFETY: the caller's promise.
    if let Some(kept) = find(unsafe { copy.read() }) {
        let around = around.map_or(std::ptr::null_mut(), |f| f as *mut ());
        kept.around.store(around, Relaxed);
        kept.copy.store(copy, Relaxed);
        kept.mobility.store(mobility::MOVABLE, Release);
    }
}

/// Whether a vfork child has given the number `fd` of one of Forebay's descriptors to its program.
pub fn is_lost_here(fd: RawFd) -> bool {
    CHILD.get().is_some() && index(fd).is_some_and(is_given_away)
}

/// Ends what [`follow`] began for the descriptor `fd`: from now on it doesn't move.
pub fn unfollow(fd: RawFd) {
    let _using = using();
    if let Some(kept) = find(fd) {
        kept.mobility.store(mobility::FIXED, Release);
        kept.copy.store(std::ptr::null_mut(), Relaxed);
    }
}

/// Gives the number `fd` to the program: moves Forebay's descriptor to another number, then calls
/// `replace`, which makes the old number the program's. Until this function returns, no thread uses
/// the numbers of Forebay's descriptors. (In a vfork child, the descriptor isn't moved: the parent
/// keeps it.)
///
/// # Errors
/// EBUSY if the descriptor can't move, or other threads use Forebay's descriptors for more than
/// 1 s; EMFILE if no number is left. After an error, `replace` wasn't called.
pub fn vacate(fd: RawFd, mut replace: impl FnMut()) -> Result<()> {
    let _critical = Critical::enter();
    if let Some(mut given) = CHILD.get() {
        if let Some(at) = index(fd) {
            given[at / 64] |= 1 << (at % 64);
        }
        CHILD.set(Some(given));
        replace();
        return Ok(());
    }
    let until = Instant::now() + MOVE_TIMEOUT;
    while MOVING
        .compare_exchange(false, true, SeqCst, Relaxed)
        .is_err()
    {
        pause(until)?;
    }
    let result = (|| {
        while USERS.load(SeqCst) > 0 {
            pause(until)?;
        }
        move_away(fd, &mut replace)
    })();
    MOVING.store(false, SeqCst);
    result
}

fn pause(until: Instant) -> Result<()> {
    if Instant::now() > until {
        return Err(Errno::BUSY);
    }
    std::thread::yield_now();
    Ok(())
}

fn move_away(fd: RawFd, replace: &mut dyn FnMut()) -> Result<()> {
    let Some(kept) = find(fd) else {
        replace();
        return Ok(());
    };
    // SAFETY: `fd` is one of Forebay's descriptors, which no other thread closes meanwhile.
    let old = unsafe { BorrowedFd::borrow_raw(fd) };
    if rustix::io::fcntl_getfd(old).is_err() {
        // A vfork child had opened the descriptor, and has ended.
        forget(fd);
        replace();
        return Ok(());
    }
    if kept.mobility.load(Acquire) != mobility::MOVABLE {
        return Err(Errno::BUSY);
    }
    let mut go = || {
        let new = above(old, base() as RawFd)?.into_raw_fd();
        replace();
        Ok(new)
    };
    let around = kept.around.load(Relaxed);
    let new = if around.is_null() {
        go()?
    } else {
        // SAFETY: only `follow` stores here, and it stores an `Around`.
        let around = unsafe { std::mem::transmute::<*mut (), Around>(around) };
        around(old, &mut go)?
    };
    if let Some(watcher) = WATCHER.get() {
        watcher(new);
    }
    kept.number.store(new, Release);
    let copy = kept.copy.load(Relaxed);
    if !copy.is_null() {
        // SAFETY: `follow`'s caller promised that `copy` is valid, and read only by threads that
        // are using Forebay's descriptors.
        unsafe { copy.write(new) };
    }
    Ok(())
}

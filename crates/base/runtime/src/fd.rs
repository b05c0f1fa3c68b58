//! Forebay's own descriptors inside other programs' processes.
//!
//! A library that opens a file gets the lowest free number, which the program may count on. So
//! every descriptor that Forebay keeps is moved to the upper end of the numbers that a program may
//! count on, and listed here, so that the preload can hide it from a program that closes
//! everything.
//!
//! A program may want such a number all the same (dup2). Then our descriptor moves to another one
//! ([`vacate`]). Whoever has a number of ours in hand is counted meanwhile ([`Using`], [`Lent`]),
//! and a move waits until there is none: no thread uses a number that has become the program's.
//! Numbers are therefore never copied: a [`Place`] knows where its descriptor is in the list, and
//! numbers that LMDB has copied are corrected ([`follow`]).

use crate::critical::Critical;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering::*};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Descriptor numbers below [`USUAL_LIMIT`], or the soft limit if that is lower, that are used for
/// Forebay's own descriptors.
pub const HIGH_FD_ROOM: u64 = 160;

/// The usual soft limit. The kernel copies the table of descriptors up to the highest number at
/// each fork: 75 us more at 20,000 than at 1,000.
const USUAL_LIMIT: u64 = 1024;

/// Numbers from here on can't be guarded: the preload's table by number ends here.
const NUMBERS: u64 = 1 << 16;

/// Length of the list of our descriptors.
const MAX_KEPT: usize = HIGH_FD_ROOM as usize;

/// How long a move waits for threads that are using numbers of ours.
const MOVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A descriptor of ours.
struct Kept {
    /// Its number; -1: the entry is free.
    number: AtomicI32,
    /// One of [`mobility`].
    mobility: AtomicU8,
    /// A copy of the number, to be corrected when it moves; or null.
    copy: AtomicPtr<RawFd>,
    /// The [`Around`] that a move has to be surrounded by, or null.
    around: AtomicPtr<()>,
}

/// Whether a descriptor can be moved to another number.
mod mobility {
    /// Another component may know its number: the descriptor must not move.
    pub const FIXED: u8 = 0;
    pub const MOVABLE: u8 = 1;
}

/// Gets the descriptor and a function that moves it and returns its new number. Returns that
/// number, or the error; after an error it hasn't moved.
pub type Around = fn(BorrowedFd<'_>, &mut dyn FnMut() -> Result<RawFd>) -> Result<RawFd>;

static INTERNAL_FDS: [Kept; MAX_KEPT] = [const {
    Kept {
        number: AtomicI32::new(-1),
        mobility: AtomicU8::new(mobility::FIXED),
        copy: AtomicPtr::new(std::ptr::null_mut()),
        around: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MAX_KEPT];

/// How many threads have numbers of ours in hand.
static USERS: AtomicU32 = AtomicU32::new(0);
/// A thread moves a descriptor of ours, or waits until it may.
static MOVING: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// How often this thread is among [`USERS`].
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// This thread runs the child of a vfork, which shares this memory but has its own descriptors:
    /// a bit for each entry of the list whose number the child has given to its program.
    static CHILD: Cell<Option<[u64; MAX_KEPT.div_ceil(64)]>> = const { Cell::new(None) };
}

/// This thread runs the child of a vfork from now on: descriptors that it opens or closes are the
/// child's own.
pub fn enter_vfork_child() {
    CHILD.set(Some(Default::default()));
}

/// This thread runs the parent again.
pub fn leave_vfork_child() {
    CHILD.set(None);
}

/// Whether entry `at` is one whose number this vfork child has given away.
fn is_given_away(at: usize) -> bool {
    CHILD
        .get()
        .is_some_and(|given| given[at / 64] & 1 << (at % 64) != 0)
}

/// While it lives, descriptors of ours keep their numbers.
pub struct Using(Critical);

/// Keeps our descriptors at their numbers until the result is dropped. Nests.
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

/// Waits for a move, in the middle of becoming one of the users.
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

/// In a forked child: its only thread uses no number of ours, and moves none.
pub fn after_fork_in_child() {
    USERS.store(0, SeqCst);
    DEPTH.set(0);
    MOVING.store(false, SeqCst);
    CHILD.set(None);
}

/// A descriptor of ours, which keeps its number as long as this lives.
pub struct Lent {
    number: RawFd,
    /// The descriptor, if a vfork child opened it: its parent doesn't have it.
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
        // SAFETY: its own, or that of a `Place`, open as long as the place has it.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

impl AsRawFd for Lent {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

/// Where a descriptor of ours is found once it was opened: an index into the list; an unlisted
/// number above [`MAX_KEPT`]; or -1.
pub struct Place(AtomicI32);

impl Place {
    /// Without a descriptor.
    pub const fn empty() -> Place {
        Place(AtomicI32::new(-1))
    }

    /// The descriptor, if there is one.
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

    /// The descriptor, which `open` opens if there is none yet. If two threads open it at once, the
    /// second one's is closed again. A descriptor that a vfork child opens is closed when the
    /// result is dropped.
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
            // SAFETY: only known here: it lost the race to be published.
            drop_kept(unsafe { OwnedFd::from_raw_fd(opened) });
        }
        self.lend().ok_or(Errno::BADF)
    }

    /// Forgets the descriptor: it is another process's.
    pub fn forget(&self) {
        self.0.store(-1, Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lent) = self.lend() {
            // SAFETY: published by `lend_or_open`, owned by the place.
            drop_kept(unsafe { OwnedFd::from_raw_fd(lent.number) });
        }
    }
}

/// Runs `open`. If the program has used up its descriptors, runs it again with the soft limit
/// raised to the hard one for that moment, so that the program's open files stay usable.
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
    // Not waited for: a forked child may have inherited this lock in its held state.
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

/// The lowest number for our own descriptors.
fn base() -> u64 {
    let limit = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(NUMBERS)
        .min(USUAL_LIMIT);
    limit.saturating_sub(HIGH_FD_ROOM).max(limit / 2).max(3)
}

/// A duplicate with a number from `base` on, and close-on-exec set. If the program uses these
/// numbers itself: one above the program's limit, if there is one.
fn above(fd: BorrowedFd<'_>, base: RawFd) -> Result<OwnedFd> {
    let beyond = |limit| rustix::io::fcntl_dupfd_cloexec(fd, limit as RawFd);
    match rustix::io::fcntl_dupfd_cloexec(fd, base) {
        Err(e @ (Errno::MFILE | Errno::INVAL)) => raised(beyond).unwrap_or(Err(e)),
        first => first,
    }
}

/// Moves `fd` to a high number with close-on-exec set, and lists it as ours.
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

/// Lists `fd` as ours.
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

/// The descriptors listed as ours.
pub fn internal() -> Vec<RawFd> {
    let numbers = INTERNAL_FDS.iter().map(|k| k.number.load(Relaxed));
    let ours = numbers
        .enumerate()
        .filter(|&(at, fd)| fd >= 0 && !is_given_away(at));
    ours.map(|(_, fd)| fd).collect()
}

/// Takes `fd` off the list: the caller closes it.
pub fn forget(fd: RawFd) {
    if let Some(kept) = find(fd) {
        kept.mobility.store(mobility::FIXED, Relaxed);
        kept.copy.store(std::ptr::null_mut(), Relaxed);
        kept.around.store(std::ptr::null_mut(), Relaxed);
        kept.number.store(-1, Release);
    }
}

/// Takes a descriptor of ours off the list and closes it.
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
/// [`using`] our numbers.
pub unsafe fn follow(copy: *mut RawFd, around: Option<Around>) {
    // SAFETY: the caller's promise.
    if let Some(kept) = find(unsafe { copy.read() }) {
        let around = around.map_or(std::ptr::null_mut(), |f| f as *mut ());
        kept.around.store(around, Relaxed);
        kept.copy.store(copy, Relaxed);
        kept.mobility.store(mobility::MOVABLE, Release);
    }
}

/// Whether a vfork child has given the number `fd` of ours to its program.
pub fn is_lost_here(fd: RawFd) -> bool {
    CHILD.get().is_some() && index(fd).is_some_and(is_given_away)
}

/// Ends what [`follow`] began for the descriptor `fd`: it keeps its number again.
pub fn unfollow(fd: RawFd) {
    let _using = using();
    if let Some(kept) = find(fd) {
        kept.mobility.store(mobility::FIXED, Release);
        kept.copy.store(std::ptr::null_mut(), Relaxed);
    }
}

/// Gives the number `fd` of ours to the program: our descriptor moves to another one, then
/// `replace` makes the old one the program's. Until this returns, no thread uses numbers of ours.
/// (A vfork child does without our descriptor, which its parent keeps.)
///
/// # Errors
/// EBUSY if the descriptor is one that can't move, or other threads use ours for too long; EMFILE
/// if no number is left. `replace` wasn't called then.
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
    // SAFETY: one of ours, which no other thread closes meanwhile.
    let old = unsafe { BorrowedFd::borrow_raw(fd) };
    if rustix::io::fcntl_getfd(old).is_err() {
        // The descriptor was closed with a vfork child that had opened it.
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
        // SAFETY: `follow`'s caller promised that it is valid, and read by users only.
        unsafe { copy.write(new) };
    }
    Ok(())
}

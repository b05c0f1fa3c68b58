//! Asynchronous I/O by system calls (io_setup, io_submit, io_getevents and the rest) on files of
//! the pool and files of the kernel in the same context.
//!
//! The kernel can't carry out a request on a file of the pool, nor can this library put events into
//! the kernel's ring. So a program gets contexts of this library, each of which has a kernel
//! context behind it. Requests on the kernel's files go to the kernel context. Requests on files of
//! the pool are carried out at once, in io_submit, and their events wait in a queue of the context.
//! io_getevents takes events from both. A context's handle is the address of a block without the
//! kernel's mark of a ring: a program that would read the ring itself (libaio, fio) sees that it
//! has to call io_getevents.
//!
//! A thread that sleeps in the kernel's io_getevents is woken by a request that the kernel finishes
//! at once (a read at the end of an empty file); the program never sees the event of that request.
//! [`LOCK`] guards the list of contexts and their queues; no thread waits while it holds the lock.
//! A child made by fork has no contexts, as without this library.

use crate::pool::{fds, stand_in};
use crate::program::results::{self, errno, value};
use crate::program::user;
use crate::served::io;
use forebay_intercept::{PASS, raw};
use forebay_posix::Errno;
use forebay_store::process::ProcessLock;
use rustix::fd::AsRawFd;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// A request (struct iocb in linux/aio_abi.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// The event of a finished request (struct io_event).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Request>() == 64 && size_of::<Event>() == 32);

mod opcode {
    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    pub const FSYNC: u16 = 2;
    pub const FDSYNC: u16 = 3;
    pub const PREADV: u16 = 7;
    pub const PWRITEV: u16 = 8;
}

/// Bit in [`Request::flags`]: an event descriptor is to be notified.
const TELL: u32 = 1;
const PRIORITY: u32 = 2;
/// Number of requests for which each kernel context has room in addition to the program's.
const SPARE: u32 = 8;

struct Context {
    /// The block of zeros whose address is the program's handle.
    word: Box<[u64; 8]>,
    /// Handle of the kernel context behind this context.
    kernel: i64,
    /// Maximum number of events that the program may leave unread.
    room: usize,
    state: UnsafeCell<State>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Number of threads that sleep in the kernel's io_getevents, or are about to.
    asleep: u32,
    /// Whether a request was sent to wake a waiter, and no waiter has seen its event yet.
    waking: bool,
}

// SAFETY: `state` is only used under LOCK.
unsafe impl Send for Context {}
// SAFETY: `state` is only used under LOCK.
unsafe impl Sync for Context {}

struct Contexts(UnsafeCell<Vec<Arc<Context>>>);
// SAFETY: the list is only used while LOCK is held.
unsafe impl Sync for Contexts {}

static LOCK: ProcessLock = ProcessLock::new();
static CONTEXTS: Contexts = Contexts(UnsafeCell::new(Vec::new()));
/// Whether this process has ever made a context.
static ANY: AtomicBool = AtomicBool::new(false);

/// The request that wakes sleeping threads. The kernel writes to the request's key, so the words
/// are atomic.
static WAKE: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Empties the list of contexts in a child made by fork, before anything else: contexts belong to
/// the parent's memory.
pub fn after_fork_in_child() {
    LOCK.reset();
    // SAFETY: this is the only thread. The old list isn't dropped: another thread of the parent may
    // have been changing it.
    unsafe { CONTEXTS.0.get().write(Vec::new()) };
    ANY.store(false, Relaxed);
}

fn contexts<T>(f: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
    let _lock = LOCK.hold();
    // SAFETY: LOCK is held, so no other reference to the list exists.
    f(unsafe { &mut *CONTEXTS.0.get() })
}

fn is(word: i64) -> impl Fn(&Arc<Context>) -> bool {
    move |c| c.word.as_ptr() as i64 == word
}

/// Returns the context with this handle; None if it isn't a context of this library.
fn find(word: i64) -> Option<Arc<Context>> {
    if !ANY.load(Acquire) {
        return None;
    }
    contexts(|all| all.iter().find(|c| is(word)(c)).cloned())
}

impl Context {
    fn state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let _lock = LOCK.hold();
        // SAFETY: LOCK is held, so no other reference to the state exists.
        f(unsafe { &mut *self.state.get() })
    }

    /// Adds a request's event, and wakes one thread that waits for events.
    fn add(&self, event: Event) {
        let wake = self.state(|s| {
            s.events.push_back(event);
            s.is_to_wake()
        });
        if wake {
            self.wake();
        }
    }

    /// Wakes a sleeping thread: submits a request that the kernel finishes at once.
    fn wake(&self) {
        let file = stand_in::empty(libc::O_RDONLY);
        let request = Request {
            opcode: opcode::PREAD,
            fd: file.as_ref().map_or(u32::MAX, |f| f.as_raw_fd() as u32),
            ..Request::default()
        };
        // SAFETY: a Request has 64 bytes without padding, and any bytes are valid numbers.
        let words: [u64; 8] = unsafe { std::mem::transmute(request) };
        for (to, from) in WAKE.iter().zip(words) {
            to.store(from, Relaxed);
        }
        let list = [WAKE.as_ptr() as i64];
        let call = [self.kernel, 1, list.as_ptr() as i64, 0, 0, 0];
        // SAFETY: `list` outlives the call; its only request lies in a static, and reads no bytes.
        let done = unsafe { raw(libc::SYS_io_submit, call) };
        if done != 1 {
            // The ring is full of events. They wake the waiters.
            self.state(|s| s.waking = false);
        }
    }
}

impl State {
    /// Whether a waiter must be woken. If so, the caller must wake it.
    fn is_to_wake(&mut self) -> bool {
        let wake = self.asleep > 0 && !self.waking && !self.events.is_empty();
        self.waking |= wake;
        wake
    }
}

/// Serves io_setup(events, context).
pub unsafe fn setup(a: &[i64; 6]) -> i64 {
    value((|| {
        // SAFETY: the program passed this address for a handle; a bad address is caught.
        if unsafe { user::take::<u64>(a[1])? } != 0 {
            return Err(Errno::INVAL);
        }
        let room = a[0] as u32;
        if room == 0 {
            return Err(Errno::INVAL);
        }
        // The stand-in for wake requests is made now, while an error can still be returned.
        stand_in::empty(libc::O_RDONLY)?;
        let mut kernel = 0i64;
        let mut ask = |n: i64| {
            let call = [n, (&raw mut kernel) as i64, 0, 0, 0, 0];
            // SAFETY: the kernel writes only to `kernel`, a local variable.
            unsafe { raw(libc::SYS_io_setup, call) }
        };
        // The second try lets the kernel refuse or accept exactly the program's number.
        let mut made = ask(i64::from(room.saturating_add(SPARE)));
        if made < 0 {
            made = ask(i64::from(room));
        }
        results::check(made)?;
        let context = Arc::new(Context {
            word: Box::new([0; 8]),
            kernel,
            room: room as usize,
            state: UnsafeCell::default(),
        });
        let word = context.word.as_ptr() as u64;
        contexts(|all| all.push(context));
        ANY.store(true, Release);
        // SAFETY: the program passed this address for a handle; a bad address is caught.
        unsafe { user::give(word, a[1]) }.inspect_err(|_| {
            // SAFETY: destroys the context made above, which no other thread knows.
            unsafe { destroy(&[word as i64, 0, 0, 0, 0, 0]) };
        })
    })())
}

/// Serves io_destroy(context).
pub unsafe fn destroy(a: &[i64; 6]) -> i64 {
    let found = ANY.load(Acquire).then(|| {
        contexts(|all| {
            let n = all.iter().position(|c| is(a[0])(c));
            n.map(|n| all.swap_remove(n))
        })
    });
    match found.flatten() {
        // SAFETY: the program's own call. A thread that waits in the context gets an error from the
        // kernel.
        Some(context) => unsafe { raw(libc::SYS_io_destroy, [context.kernel, 0, 0, 0, 0, 0]) },
        None => PASS,
    }
}

/// Serves io_cancel(context, request, event). Requests on files of the pool are finished in
/// io_submit, so only the kernel has requests to cancel.
pub unsafe fn cancel(a: &[i64; 6]) -> i64 {
    match find(a[0]) {
        // SAFETY: the program's io_cancel; only the kernel's handle replaces the program's.
        Some(context) => unsafe { raw(libc::SYS_io_cancel, [context.kernel, a[1], a[2], 0, 0, 0]) },
        None => PASS,
    }
}

/// Serves io_submit(context, count, requests). Returns the number of requests submitted; an error
/// only if this number is zero.
pub unsafe fn submit(a: &[i64; 6]) -> i64 {
    let Some(context) = find(a[0]) else {
        return PASS;
    };
    // The context has no room for more requests than u32::MAX anyway.
    let (count, list) = (a[1].min(i64::from(u32::MAX)), a[2]);
    if count < 0 {
        return errno(Errno::INVAL);
    }
    let some = |done: i64, error: i64| if done > 0 { done } else { error };
    // Requests from `first` to `n` are for the kernel, and not submitted yet.
    let (mut first, mut n) = (0, 0);
    loop {
        let request = if n < count {
            // SAFETY: any bytes are an address or a Request; a bad address is caught.
            unsafe { user::take::<u64>(list.wrapping_add(8 * n)) }.and_then(|at| {
                // SAFETY: as above.
                unsafe { user::take::<Request>(at as i64) }.map(|r| Some((at, r)))
            })
        } else {
            Ok(None)
        };
        if let Ok(Some((_, request))) = request
            && fds::pool_file(request.fd as i32).is_none()
        {
            n += 1;
            continue;
        }
        if first < n {
            let call = [
                context.kernel,
                n - first,
                list.wrapping_add(8 * first),
                0,
                0,
                0,
            ];
            // SAFETY: the program passed these requests to io_submit; the kernel checks their
            // addresses.
            let taken = unsafe { raw(libc::SYS_io_submit, call) };
            if taken < n - first {
                return some(first + taken.max(0), taken);
            }
        }
        match request {
            Ok(None) => return n,
            Ok(Some((at, request))) => {
                // SAFETY: `request` is a copy of the request at `at`, which the program submitted.
                if let Err(e) = unsafe { serve(&context, at, &request) } {
                    return some(n, errno(e));
                }
            }
            Err(e) => return some(n, errno(e)),
        }
        n += 1;
        first = n;
    }
}

/// Carries out a request on a file of the pool.
///
/// # Errors
/// EAGAIN if the program has left as many events unread as the context has room for; EBADF or
/// EINVAL for an impossible request. Other errors are in the event.
unsafe fn serve(context: &Context, at: u64, request: &Request) -> Result<(), Errno> {
    let is_tell = request.flags & TELL != 0;
    if request.reserved != 0 || request.flags & !(TELL | PRIORITY) != 0 {
        return Err(Errno::INVAL);
    }
    if is_tell && !is_event_fd(request.event_fd)? {
        return Err(Errno::INVAL);
    }
    if context.state(|s| s.events.len()) >= context.room {
        return Err(Errno::AGAIN);
    }
    let (fd, buffer, len) = (
        i64::from(request.fd as i32),
        request.buffer as i64,
        request.len as i64,
    );
    let (offset, flags) = (request.offset, i64::from(request.rw_flags));
    let one = [buffer, len];
    let vector = |list: i64, parts: i64, writing: bool| {
        let call = [fd, list, parts, offset, 0, flags];
        // SAFETY: the program passed the request's buffers to io_submit.
        unsafe { io::vector(&call, Some(offset), flags, writing) }
    };
    let whole = [fd, buffer, len, offset, 0, 0];
    if offset < 0 && !matches!(request.opcode, opcode::FSYNC | opcode::FDSYNC) {
        return Err(Errno::INVAL);
    }
    let result = match request.opcode {
        // SAFETY: the program passed the request's buffer to io_submit.
        opcode::PREAD if flags == 0 => unsafe { io::read(&whole, Some(offset)) },
        // SAFETY: the program passed the request's buffer to io_submit.
        opcode::PWRITE if flags == 0 => unsafe { io::write(&whole, Some(offset)) },
        opcode::PREAD => vector(one.as_ptr() as i64, 1, false),
        opcode::PWRITE => vector(one.as_ptr() as i64, 1, true),
        opcode::PREADV => vector(buffer, len, false),
        opcode::PWRITEV => vector(buffer, len, true),
        opcode::FSYNC | opcode::FDSYNC if flags != 0 => return Err(Errno::INVAL),
        opcode::FSYNC | opcode::FDSYNC if fds::is_path_only(request.fd as i32) => {
            return Err(Errno::BADF);
        }
        opcode::FSYNC | opcode::FDSYNC => io::fsync(&whole),
        _ => return Err(Errno::INVAL),
    };
    if result == PASS || result == errno(Errno::BADF) {
        return Err(Errno::BADF);
    }
    for e in [Errno::INVAL, Errno::OPNOTSUPP] {
        if result == errno(e) {
            return Err(e);
        }
    }
    context.add(Event {
        data: request.data,
        request: at,
        result,
        result2: 0,
    });
    if is_tell {
        let one = 1u64;
        let call = [
            i64::from(request.event_fd as i32),
            (&raw const one) as i64,
            8,
            0,
            0,
            0,
        ];
        // SAFETY: adds one to the program's own event descriptor.
        unsafe { raw(libc::SYS_write, call) };
    }
    Ok(())
}

/// Whether `fd` is an event descriptor.
///
/// # Errors
/// EBADF if `fd` isn't open.
fn is_event_fd(fd: u32) -> Result<bool, Errno> {
    let path = format!("/proc/thread-self/fd/{}", fd as i32);
    match rustix::fs::readlink(path, Vec::new()) {
        Ok(to) => Ok(to.as_bytes() == b"anon_inode:[eventfd]"),
        Err(Errno::NOENT) => Err(Errno::BADF),
        Err(_) => Ok(false),
    }
}

/// Serves io_getevents(context, least, most, events, timeout), and io_pgetevents, which also has a
/// signal mask.
pub unsafe fn events(nr: i64, a: &[i64; 6]) -> i64 {
    let Some(context) = find(a[0]) else {
        return PASS;
    };
    let (least, most) = (a[1], a[2]);
    let end = match a[4] {
        0 => None,
        // SAFETY: any bytes are a timespec; a bad address is caught.
        at => match unsafe { user::take::<libc::timespec>(at) } {
            Ok(t) => Some(now().saturating_add(nanoseconds(&t))),
            Err(e) => return errno(e),
        },
    };
    if nr != libc::SYS_io_getevents
        // SAFETY: `a[5]` is null, or an address that the program passed.
        && let Err(e) = unsafe { look_at_mask(a[5]) }
    {
        return errno(e);
    }
    if least < 0 || least > most {
        return errno(Errno::INVAL);
    }
    let mut have = 0;
    loop {
        // SAFETY: the program passed `a[3]` for `most` events, of which `have` are written.
        match unsafe { take_some(&context, a[3] + 32 * have, most - have) } {
            Ok(n) => have += n,
            Err(e) => return if have > 0 { have } else { errno(e) },
        }
        if have == most {
            // Other threads may wait for the events that this one leaves.
            if context.state(State::is_to_wake) {
                context.wake();
            }
            return have;
        }
        let left = end.map(|end| end.saturating_sub(now()));
        // From here on, a thread that adds an event wakes this one.
        let waits = have < least
            && left != Some(0)
            && context.state(|s| {
                let waits = s.events.is_empty();
                s.asleep += u32::from(waits);
                waits
            });
        let time = libc::timespec {
            tv_sec: left.filter(|_| waits).unwrap_or(0) as i64 / 1_000_000_000,
            tv_nsec: left.filter(|_| waits).unwrap_or(0) as i64 % 1_000_000_000,
        };
        let time = if waits && left.is_none() {
            0
        } else {
            (&raw const time) as i64
        };
        let to = a[3] + 32 * have;
        // Waits for one event at a time: the kernel only wakes a thread when there are as many
        // events as the thread has requested.
        let call = [
            context.kernel,
            i64::from(waits),
            most - have,
            to,
            time,
            a[5],
        ];
        // SAFETY: the program's call, but with the kernel's handle; `to` has room for the events.
        let got = unsafe { raw(nr, call) };
        // SAFETY: the kernel has just written `got` events at `to`.
        let (real, woken) = unsafe { without_wakes(to, got.max(0)) };
        let wake = context.state(|s| {
            s.asleep -= u32::from(waits);
            s.waking &= !woken;
            s.is_to_wake()
        });
        have += real;
        if wake {
            context.wake();
        }
        if got < 0 {
            return if have > 0 { have } else { got };
        }
        let is_over = end.is_some_and(|end| now() >= end);
        // Tries again if the queue may have events by now.
        if have >= least && !woken || is_over && !waits {
            return have;
        }
    }
}

/// Checks the additional argument of io_pgetevents: null, or a pointer to a mask and its size.
///
/// # Errors
/// EFAULT, EINVAL.
///
/// # Safety
/// `at` is null, or the program's own argument.
unsafe fn look_at_mask(at: i64) -> Result<(), Errno> {
    if at == 0 {
        return Ok(());
    }
    // SAFETY: any bytes are two numbers; a bad address is caught.
    match unsafe { user::take::<[i64; 2]>(at)? } {
        [0, _] => Ok(()),
        // SAFETY: as above.
        [mask, 8] => unsafe { user::take::<u64>(mask) }.map(|_| ()),
        _ => Err(Errno::INVAL),
    }
}

/// Copies up to `most` events of the queue to the program. Returns their number.
///
/// # Errors
/// EFAULT; the events stay in the queue.
unsafe fn take_some(context: &Context, to: i64, most: i64) -> Result<i64, Errno> {
    let some: Vec<Event> = context.state(|s| {
        let n = s.events.len().min(most as usize);
        s.events.drain(..n).collect()
    });
    for (n, event) in some.iter().enumerate() {
        // SAFETY: the program passed this address for events; a bad address is caught.
        if let Err(e) = unsafe { user::give(*event, to + 32 * n as i64) } {
            context.state(|s| some[n..].iter().rev().for_each(|e| s.events.push_front(*e)));
            return if n > 0 { Ok(n as i64) } else { Err(e) };
        }
    }
    Ok(some.len() as i64)
}

/// Removes the events of wake requests from `n` events at `at`. Returns how many events are left,
/// and whether any was removed.
unsafe fn without_wakes(at: i64, n: i64) -> (i64, bool) {
    let mut kept = 0;
    for i in 0..n {
        // SAFETY: any bytes are an Event; a bad address is caught.
        let Ok(event) = (unsafe { user::take::<Event>(at + 32 * i) }) else {
            continue;
        };
        if event.request == WAKE.as_ptr() as u64 {
            continue;
        }
        if kept < i {
            // SAFETY: the program passed this address for events; a bad address is caught.
            let _ = unsafe { user::give(event, at + 32 * kept) };
        }
        kept += 1;
    }
    (kept, kept < n)
}

/// Converts a time to nanoseconds; a negative time is 0.
fn nanoseconds(t: &libc::timespec) -> u64 {
    (t.tv_sec.max(0) as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(t.tv_nsec.max(0) as u64)
}

/// Returns the monotonic clock's time. Nanoseconds.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

//! The I/O threads, which wait for sockets, read from them, and continue writing to slow peers.
//!
//! Several threads wait for the control lanes. One of them may serve a request that takes long
//! ([`Group::leave`]) while another one continues to wait.

use super::timers::Timers;
use super::{Core, local};
use crate::Error;
use crate::envelope::MAX_SEALED;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of events taken from epoll at once.
const EVENTS: usize = 64;
/// Number of bytes read from a socket at once.
const READ: usize = 256 << 10;

const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is in [`pass`].
    ///
    /// This has to be a thread-local. A reply may wait for the next message only if it is given
    /// before [`pass`] returns, on this thread. The handler may instead hand the request to a
    /// worker. If the worker's reply waited, too, it would stay unsent, since no message follows. A
    /// mark at the request couldn't distinguish the two threads.
    static IN_PASSING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is an I/O thread outside [`Group::leave`]. Such a thread must not block:
/// messages of other requests may wait for it.
pub(super) fn on_io_thread() -> bool {
    IS_IO.get()
}

/// Runs `f`. A reply that `f` gives on this thread is sent with the next message.
pub(super) fn pass(f: impl FnOnce()) {
    IN_PASSING.set(true);
    f();
    IN_PASSING.set(false);
}

/// Whether this thread is in [`pass`].
pub(super) fn in_passing() -> bool {
    IN_PASSING.get()
}

/// The epoll instance of one thread, or of the threads for the control lanes.
pub(super) struct Group {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Whether epoll is edge-triggered: each event wakes one thread, once.
    edges: bool,
    /// Number of threads that wait for events, or will in a moment.
    left: AtomicUsize,
}

/// A thread's buffers for input.
pub(super) struct Scratch {
    /// Bytes as received.
    pub raw: Vec<u8>,
    /// Decrypted bytes.
    pub plain: Vec<u8>,
    /// Whether this thread has no other event to handle.
    pub last: bool,
}

impl Group {
    /// Creates a group for `threads` threads.
    pub fn new(threads: usize) -> Result<Group, Error> {
        let group = Group {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(local("epoll"))?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(local("eventfd"))?,
            edges: threads > 1,
            left: AtomicUsize::new(threads),
        };
        let (data, flags) = (EventData::new_u64(WAKE), EventFlags::IN);
        epoll::add(&group.epoll, &group.wake, data, flags).map_err(local("epoll"))?;
        Ok(group)
    }

    pub fn watch_timers(&self, timers: &Timers) -> Result<(), Error> {
        self.add(timers, TIMER)
    }

    /// Runs `f`, which may take long, if another thread of the group continues to wait; otherwise
    /// runs `or`.
    pub fn leave(&self, f: impl FnOnce(), or: impl FnOnce()) {
        let others = |left: usize| (left > 1).then(|| left - 1);
        let taken = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, others);
        if taken.is_err() {
            return or();
        }
        IS_IO.set(false);
        f();
        IS_IO.set(true);
        self.left.fetch_add(1, Ordering::AcqRel);
    }

    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Makes the group wait for input of `fd`. The token is a session's id and, in the lowest bit,
    /// the lane.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), self.flags()).map_err(local("epoll"))
    }

    fn flags(&self) -> EventFlags {
        if self.edges {
            EventFlags::IN | EventFlags::RDHUP | EventFlags::ET
        } else {
            EventFlags::IN | EventFlags::RDHUP
        }
    }

    /// Makes the group wait for space for output, too, or stop waiting for it. Space that exists
    /// already is reported as well.
    pub fn want_out(&self, fd: impl AsFd, token: u64, out: bool) {
        let mut flags = self.flags();
        flags.set(EventFlags::OUT, out);
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags);
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }
}

/// The main loop of a thread of group number `index`, until the transport stops.
pub(super) fn run(core: &Core, index: usize) {
    IS_IO.set(true);
    let this = &core.io[index];
    let mut scratch = Scratch {
        raw: vec![0; READ],
        plain: vec![0; MAX_SEALED],
        last: false,
    };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    while !core.stopped.load(Ordering::SeqCst) {
        events.clear();
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&this.epoll, room, None).is_err() {
            continue;
        }
        let count = events.len();
        for (i, event) in events.iter().enumerate() {
            scratch.last = i + 1 == count;
            match event.data.u64() {
                WAKE => {}
                TIMER => {
                    for (session, what) in core.timers.due() {
                        if let Some(session) = core.session(session) {
                            session.expire(what);
                        }
                    }
                }
                token => {
                    if let Some(session) = core.session(token >> 1) {
                        session.on_event((token & 1) as usize, event.flags, &mut scratch);
                    }
                }
            }
        }
    }
}

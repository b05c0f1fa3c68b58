//! Threads that wait for sockets: to read from them, and to go on writing where a peer was slow.

use super::timers::Timers;
use super::{Core, local};
use crate::Error;
use crate::envelope::MAX_SEALED;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Events taken at once.
const EVENTS: usize = 64;
/// Read from a socket at once.
const READ: usize = 256 << 10;

const WAKE: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;

thread_local! {
    static IS_IO: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is a thread that others' messages wait for.
pub(super) fn on_io_thread() -> bool {
    IS_IO.get()
}

/// What a thread waits on.
pub(super) struct IoThread {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// Room that a thread has for what it reads.
pub(super) struct Scratch {
    /// As it came.
    pub raw: Vec<u8>,
    /// Opened.
    pub plain: Vec<u8>,
}

impl IoThread {
    pub fn new() -> Result<IoThread, Error> {
        let thread = IoThread {
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(local("epoll"))?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(local("eventfd"))?,
        };
        thread.add(&thread.wake, WAKE)?;
        Ok(thread)
    }

    pub fn watch_timers(&self, timers: &Timers) -> Result<(), Error> {
        self.add(timers, TIMER)
    }

    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits for input from now on. The token is a session's id and, in the lowest bit, the lane.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)
            .map_err(local("epoll"))
    }

    /// Waits until it can be written, too, or no longer.
    pub fn want_out(&self, fd: impl AsFd, token: u64, out: bool) {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, out);
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags);
    }

    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }
}

/// The thread number `index`, until the transport stops.
pub(super) fn run(core: &Core, index: usize) {
    IS_IO.set(true);
    let this = &core.io[index];
    let mut scratch = Scratch {
        raw: vec![0; READ],
        plain: vec![0; MAX_SEALED],
    };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    while !core.stopped.load(Ordering::SeqCst) {
        events.clear();
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&this.epoll, room, None).is_err() {
            continue;
        }
        for event in &events {
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

//! The requests of this side of a connection that wait for a reply.
//!
//! A request past its deadline keeps its entry until its reply comes or the connection ends: until
//! then the other side is busy with the request, and may be given no more than [`WINDOW`] requests.

use super::timers::Timers;
use crate::transport::{Done, Landing, Peer, Reply, WINDOW};
use crate::{Error, lock};
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

pub(super) struct Calls {
    session: u64,
    peer: Peer,
    state: Mutex<State>,
    room: Condvar,
}

struct State {
    open: HashMap<u64, Call>,
    next: u64,
    waiting: usize,
    ended: Option<Error>,
}

struct Call {
    /// None if no thread waits for the reply any longer.
    done: Option<Done>,
    landing: Option<Box<dyn Landing>>,
    deadline: Instant,
}

impl Calls {
    pub fn new(session: u64, peer: Peer) -> Calls {
        Calls {
            session,
            peer,
            state: Mutex::new(State {
                open: HashMap::new(),
                next: 1,
                waiting: 0,
                ended: None,
            }),
            room: Condvar::new(),
        }
    }

    /// Waits until another request may be sent.
    ///
    /// # Errors
    /// [`Error::Full`] if none may be sent by `deadline`; the reason of the end, if the connection
    /// has ended.
    pub fn wait_for_room(&self, deadline: Instant) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.waiting += 1;
        let result = loop {
            if let Some(error) = &state.ended {
                break Err(error.clone());
            }
            if state.open.len() < WINDOW {
                break Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(Error::Full { peer: self.peer });
            }
            state = self
                .room
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        assert!(state.waiting > 0, "a thread that waited was counted");
        state.waiting -= 1;
        result
    }

    /// Registers a request; returns its id.
    ///
    /// # Errors
    /// [`Error::Full`] if [`WINDOW`] requests are in progress; the reason of the end, if the
    /// connection has ended.
    pub fn begin(
        &self,
        landing: Option<Box<dyn Landing>>,
        deadline: Instant,
        done: Done,
    ) -> Result<u64, Error> {
        let mut state = lock(&self.state);
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        if state.open.len() >= WINDOW {
            return Err(Error::Full { peer: self.peer });
        }
        let id = state.next;
        state.next += 1;
        let call = Call {
            done: Some(done),
            landing,
            deadline,
        };
        let other = state.open.insert(id, call);
        assert!(other.is_none(), "a request has a number of its own: {id}");
        assert!(
            state.open.len() <= WINDOW,
            "requests in progress have a limit"
        );
        Ok(id)
    }

    /// Returns the landing for the body of the reply to request `id`; the inner None if no thread
    /// waits for that reply. None if there is no such request.
    pub fn landing(&self, id: u64) -> Option<Option<Box<dyn Landing>>> {
        let mut state = lock(&self.state);
        let call = state.open.get_mut(&id)?;
        Some(call.landing.take())
    }

    /// Completes request `id`. False if there is no such request.
    pub fn finish(&self, timers: &Timers, id: u64, result: Result<Reply, Error>) -> bool {
        let mut state = lock(&self.state);
        let Some(call) = state.open.remove(&id) else {
            return false;
        };
        if state.waiting > 0 {
            self.room.notify_one();
        }
        drop(state);
        // Drop the landing before `done` is called: the receiver of an error may use the landing's
        // memory again.
        drop(call.landing);
        if let Some(done) = call.done {
            timers.remove(call.deadline, (self.session, id));
            done(result);
        }
        true
    }

    /// Fails request `id` because its deadline has passed.
    pub fn expire(&self, id: u64) {
        let (done, landing) = {
            let mut state = lock(&self.state);
            let Some(call) = state.open.get_mut(&id) else {
                return;
            };
            (call.done.take(), call.landing.take())
        };
        drop(landing);
        if let Some(done) = done {
            done(Err(Error::Deadline { peer: self.peer }));
        }
    }

    /// Ends the connection: all requests fail. False if it had ended already.
    pub fn end(&self, timers: &Timers, error: &Error) -> bool {
        let open = {
            let mut state = lock(&self.state);
            if state.ended.is_some() {
                return false;
            }
            state.ended = Some(error.clone());
            self.room.notify_all();
            std::mem::take(&mut state.open)
        };
        for (id, call) in open {
            drop(call.landing);
            if let Some(done) = call.done {
                timers.remove(call.deadline, (self.session, id));
                done(Err(error.clone()));
            }
        }
        true
    }

    /// Whether all requests have been answered.
    pub fn is_idle(&self) -> bool {
        lock(&self.state).open.is_empty()
    }

    pub fn has_ended(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    pub fn ended(&self) -> Option<Error> {
        lock(&self.state).ended.clone()
    }
}

//! A connection after the handshake: two lanes, and their requests in progress.

use super::calls::Calls;
use super::engine::{Group, Scratch, in_passing, pass};
use super::input::{IncomingRequest, Input, Left};
use super::outbox::{Message, Outbox};
use super::{Core, local};
use crate::envelope::{Header, MAX_BODY, MAX_HEAD, Type};
use crate::handshake::Seal;
use crate::transport::{Answer, Connection, Done, Peer, ReplyTo, Request};
use crate::{CutReason, Error, lock};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use std::cell::Cell;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Index of the control lane.
pub(super) const CONTROL: usize = 0;
/// Index of the bulk lane.
pub(super) const BULK: usize = 1;

/// Ids of the timers that check whether a lane has stalled, by direction and lane. (Other timers of
/// a session have a request's id, which is small.)
pub(super) const OUT_STALLS: [u64; 2] = [u64::MAX, u64::MAX - 1];
pub(super) const IN_STALLS: [u64; 2] = [u64::MAX - 2, u64::MAX - 3];
/// Id of the timer of a retired session. The timer checks whether requests are still in progress.
const RETIRES: u64 = u64::MAX - 4;

/// Interval of the checks whether a retired session still has requests in progress.
const RETIRING: Duration = Duration::from_secs(1);
/// Number of checks after which a retired session is cut, whatever is in progress.
const RETIRING_LOOKS: usize = 10;

/// TCP keepalive: idle time before the first probe, interval between probes; then the number of
/// probes before the kernel gives up.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ASKING: Duration = Duration::from_secs(5);
const KEEP_TRIES: u32 = 3;

pub(super) struct Session {
    pub id: u64,
    pub peer: Peer,
    /// Whether the peer made the connection.
    pub accepted: bool,
    pub core: Arc<Core>,
    pub calls: Calls,
    /// Number of the peer's requests that aren't answered yet.
    pub serving: AtomicUsize,
    /// Whether the peer has abandoned the session. Messages that the peer sent before, but that are
    /// read only now, aren't served: the peer wouldn't learn the result. The peer sends again the
    /// requests that it still needs.
    pub given_up: AtomicBool,
    /// Number of checks since the session was retired.
    looks: AtomicUsize,
    pub encrypt: bool,
    pub seed: u64,
    pub lanes: [Lane; 2],
}

/// Result of a handshake: a socket and its keys.
pub(super) struct Proved {
    pub socket: TcpStream,
    pub seal: Seal,
}

pub(super) struct Lane {
    pub socket: TcpStream,
    pub seal: Seal,
    pub out: Mutex<Outbox>,
    pub input: Mutex<Input>,
    /// Index of the group of threads in `core.io` that serves this lane.
    thread: usize,
    token: u64,
}

impl Session {
    /// Creates a session after the handshakes of both lanes.
    pub fn new(
        core: &Arc<Core>,
        peer: Peer,
        accepted: bool,
        encrypt: bool,
        seed: u64,
        lanes: [Proved; 2],
    ) -> Result<Arc<Session>, Error> {
        let id = core.next.fetch_add(1, Ordering::Relaxed);
        assert!(core.io.len() > 1, "bulk lanes have threads of their own");
        // The handshake's confirm message was message number 0 of the calling side.
        let (first_out, first_in) = if accepted { (0, 1) } else { (1, 0) };
        let bulk_thread = 1 + id as usize % (core.io.len() - 1);
        let mut index = 0;
        let lanes = lanes.map(|proved| {
            let lane = Lane {
                socket: proved.socket,
                seal: proved.seal,
                out: Mutex::new(Outbox::new(first_out, encrypt, seed)),
                input: Mutex::new(Input::new(first_in)),
                thread: if index == CONTROL { 0 } else { bulk_thread },
                token: id << 1 | index as u64,
            };
            index += 1;
            lane
        });
        for lane in &lanes {
            unpaced(&lane.socket);
            lane.socket
                .set_nonblocking(true)
                .and_then(|()| lane.socket.set_nodelay(true))
                .map_err(|e| Error::Local(format!("socket: {e}")))?;
            sockopt::set_socket_keepalive(&lane.socket, true)
                .and_then(|()| sockopt::set_tcp_keepidle(&lane.socket, KEEP_ALIVE))
                .and_then(|()| sockopt::set_tcp_keepintvl(&lane.socket, KEEP_ASKING))
                .and_then(|()| sockopt::set_tcp_keepcnt(&lane.socket, KEEP_TRIES))
                .map_err(local("socket"))?;
        }
        Ok(Arc::new(Session {
            id,
            peer,
            accepted,
            core: core.clone(),
            calls: Calls::new(id, peer),
            serving: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            looks: AtomicUsize::new(0),
            encrypt,
            seed,
            lanes,
        }))
    }

    /// Registers both lanes with the I/O threads.
    pub fn register(&self) -> Result<(), Error> {
        for lane in &self.lanes {
            let out = lock(&lane.out);
            self.io(lane).add(&lane.socket, lane.token)?;
            out.register(|| self.want_out(lane, true));
        }
        Ok(())
    }

    fn io(&self, lane: &Lane) -> &Group {
        &self.core.io[lane.thread]
    }

    /// Requests an event when the lane can be written again, or cancels the request.
    pub fn want_out(&self, lane: &Lane, out: bool) {
        self.io(lane).want_out(&lane.socket, lane.token, out);
    }

    pub fn on_event(self: &Arc<Self>, lane: usize, flags: EventFlags, scratch: &mut Scratch) {
        let mut result = Ok(Left::default());
        if flags.contains(EventFlags::OUT) {
            result = self.go_on_sending(lane).map(|()| Left::default());
        }
        if result.is_ok() && flags.intersects(!EventFlags::OUT) {
            let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            let ends = flags.intersects(ends);
            self.given_up.fetch_or(ends, Ordering::Relaxed);
            result = self.receive(lane, scratch, ends);
        }
        match result {
            Ok(left) => self.serve_left(lane, left, scratch.last),
            Err(why) => self.cut(why),
        }
        // Another thread may have cut the session, but couldn't close the input while this thread
        // had locked it.
        if self.calls.has_ended() {
            lock(&self.lanes[lane].input).close();
        }
    }

    /// Serves the last received requests: on this thread if `alone` (no other event waits for this
    /// thread) and another thread waits for the lane; else by `Handler::serve`.
    fn serve_left(&self, lane: usize, left: Left, alone: bool) {
        let handler = &self.core.handler;
        if left.brief.is_empty() && left.last.is_none() {
            return;
        }
        let pass_on = |(request, reply): IncomingRequest| handler.serve(request, reply);
        let left = Cell::new(Some(left));
        let here = || {
            let Left { brief, last } = left.take().unwrap_or_default();
            let lazily = !brief.is_empty();
            for (request, reply) in brief {
                pass(|| handler.serve_here(request, reply));
            }
            if let Some((request, reply)) = last {
                handler.serve_here(request, reply);
            }
            if lazily {
                Session::flush(self);
            }
        };
        let other_lane = || {
            let Left { brief, last } = left.take().unwrap_or_default();
            brief.into_iter().chain(last).for_each(pass_on);
        };
        if alone {
            self.io(&self.lanes[lane]).leave(here, other_lane)
        } else {
            other_lane()
        }
    }

    /// Handles a timer of this session.
    pub fn expire(&self, what: u64) {
        if what == RETIRES {
            return self.retires();
        }
        let is = |timers: [u64; 2]| timers.iter().position(|t| *t == what);
        let stalled = match (is(OUT_STALLS), is(IN_STALLS)) {
            (Some(lane), _) => self.sending_stalled(lane),
            (_, Some(lane)) => self.receiving_stalled(lane),
            _ => return self.calls.expire(what),
        };
        if stalled {
            self.cut(CutReason::Stalled(self.core.options.limits.stall));
        }
    }

    /// Cuts the session if no request is in progress; otherwise checks again later.
    fn retires(&self) {
        let idle = self.calls.is_idle() && self.serving.load(Ordering::SeqCst) == 0;
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if idle || looks >= RETIRING_LOOKS {
            return self.cut(CutReason::Here("another connection is used"));
        }
        self.retire();
    }

    /// Ends the session. Requests in progress fail.
    pub fn cut(&self, why: CutReason) {
        let error = Error::Cut {
            peer: self.peer,
            why,
        };
        if !self.calls.end(&self.core.timers, &error) {
            return;
        }
        for lane in &self.lanes {
            self.io(lane).remove(&lane.socket);
            let _ = lane.socket.shutdown(Shutdown::Both);
            lock(&lane.out).close();
            // Landings are dropped even if other threads still refer to the session. A thread that
            // is receiving drops them itself.
            if let Ok(mut input) = lane.input.try_lock() {
                input.close();
            }
        }
        self.core.forget(self);
        self.core.handler.ended(self.peer, &error);
    }
}

impl Connection for Session {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn start(&self, request: Request, deadline: Instant, done: Done) -> Result<(), Error> {
        let body = request.body.filter(|b| b.length() > 0);
        let size = body.as_ref().map_or(0, |b| b.length());
        check_sizes(self.peer, request.head.len(), size)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Deadline { peer: self.peer });
        }
        let id = self.calls.begin(request.landing, deadline, done)?;
        self.core.timers.add(deadline, (self.id, id));
        let message = Message {
            header: Header {
                is: Type::Request,
                kind: request.kind,
                value: left.as_millis().clamp(1, u128::from(u32::MAX)) as u32,
                id,
                body: size as u32,
            },
            head: request.head,
            body,
        };
        self.send(message, request.lazily);
        Ok(())
    }

    fn flush(&self) {
        Session::flush(self);
    }

    fn wait_for_room(&self, deadline: Instant) -> Result<(), Error> {
        self.calls.wait_for_room(deadline)
    }

    fn ended(&self) -> Option<Error> {
        self.calls.ended()
    }

    fn close(&self) {
        self.cut(CutReason::Here("closed by this node"));
    }

    fn retire(&self) {
        let at = Instant::now() + RETIRING;
        self.core.timers.add(at, (self.id, RETIRES));
    }
}

/// Avoids BBR, which paces packets with about one timer per packet. BBR is made for long paths and
/// full queues, and costs a third of the throughput between nearby nodes. Other algorithms of the
/// host are left unchanged.
fn unpaced(socket: &TcpStream) {
    if sockopt::tcp_congestion(socket).is_ok_and(|name| name.starts_with("bbr")) {
        // The host determines which algorithms a user may choose.
        let _ = sockopt::set_tcp_congestion(socket, "cubic")
            .or_else(|_| sockopt::set_tcp_congestion(socket, "reno"));
    }
}

fn check_sizes(peer: Peer, head: usize, body: usize) -> Result<(), Error> {
    let too_large = |what, size, limit| Error::TooLarge {
        peer,
        what,
        size,
        limit,
    };
    if head > MAX_HEAD {
        return Err(too_large("a head", head, MAX_HEAD));
    }
    if body > MAX_BODY {
        return Err(too_large("a body", body, MAX_BODY));
    }
    Ok(())
}

/// Reasons why there is no reply, as sent in [`Type::NoReply`].
pub(super) mod no_reply {
    pub const NOBODY: u32 = 1;
    pub const NO_LANDING: u32 = 2;
    pub const DAMAGED: u32 = 3;
    pub const TOO_LARGE: u32 = 4;

    pub fn words(value: u32) -> &'static str {
        match value {
            NOBODY => "there was no answer",
            NO_LANDING => "it didn't take the body",
            DAMAGED => "the body arrived damaged",
            TOO_LARGE => "the answer is larger than messages may be",
            _ => "unknown reason",
        }
    }
}

/// The data needed to send the reply to one request.
pub(super) struct WayBack {
    pub session: Arc<Session>,
    pub id: u64,
    pub kind: u16,
}

impl WayBack {
    pub fn none(&self, why: u32) {
        let before = self.session.serving.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a request is answered once");
        let message = Message {
            header: Header {
                is: Type::NoReply,
                kind: self.kind,
                value: why,
                id: self.id,
                body: 0,
            },
            head: Vec::new(),
            body: None,
        };
        self.session.send(message, in_passing());
    }
}

impl ReplyTo for WayBack {
    fn reply(self: Box<Self>, answer: Option<Answer>) {
        let Some(answer) = answer else {
            return self.none(no_reply::NOBODY);
        };
        let body = answer.body.filter(|b| b.length() > 0);
        let size = body.as_ref().map_or(0, |b| b.length());
        if check_sizes(self.session.peer, answer.head.len(), size).is_err() {
            return self.none(no_reply::TOO_LARGE);
        }
        // Counted before the reply is sent: the reply's receiver may send another request at once.
        let before = self.session.serving.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a request is answered once");
        let message = Message {
            header: Header {
                is: Type::Reply,
                kind: self.kind,
                value: answer.status,
                id: self.id,
                body: size as u32,
            },
            head: answer.head,
            body,
        };
        self.session.send(message, in_passing());
    }
}

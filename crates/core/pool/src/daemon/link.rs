//! The link to one other node: the requests to it, and the connection that carries them. A
//! connection is made when there is a request, and again after it was cut. Both nodes use it,
//! whichever of them made it ([`Link::offer`]). [`Links`] holds the links to all other nodes.
//!
//! If there is a connection, the thread that posts a request sends it. Otherwise the request is
//! queued, and a thread tries to connect ([`super::connect`]), with pauses, until the request
//! timeout. A request that has no reply when the connection is cut is sent again with the same
//! number. By the number the other daemon knows whether it has carried out the request, even across
//! a restart. If that daemon has lost its records ([`forebay_client::requests::Replies`]), the
//! outcome is unknown; then only a repeatable request is sent again.
//!
//! Each request says which earlier requests are settled, so that the other daemon forgets their
//! replies. All requests with numbers below the lowest open one's are settled. If a request also
//! lists the open requests, all unlisted requests up to the last one listed are settled, too.

use super::local_node::LocalNode;
use super::pending::{Got, PendingRequest};
use super::reply_cache::Settled;
use super::wire::{self, Hello, PROGRESS, ProgressQuery, RequestHead};
use forebay_cluster::peers::requests::kind;
use forebay_net::{Connection, Error, NodeId, Reply, Request, WINDOW};
use forebay_placement::{PoolMap, planted};
use forebay_runtime::threads::{lock, read_lock, write_lock};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of requests in progress on a connection. The rest of the window is for the
/// daemons' own messages.
const MAX_REQUESTS_IN_PROGRESS: usize = WINDOW - 16;
/// One in this many requests lists the open requests, if there are several.
const LIST_EVERY: u32 = 64;
/// How long a node that is out of reach, or reported to be, may take to answer an attempt to reach
/// it. Short, since the node answers without doing any work.
pub(super) const PROBE: Duration = Duration::from_millis(500);
/// Kinds of requests whose replies the planted fault `lost-reply` drops.
const CHANGES: [u16; 7] = [
    kind::TRUNCATE,
    kind::ADD_LINK,
    kind::DROP_LINK,
    kind::LINK,
    kind::RENAME,
    kind::CUT_PART,
    kind::END_LOCKS,
];

/// Time limit given to the transport for long requests. The limit is never reached: the daemon
/// decides when to abandon long requests.
const LONG: Duration = Duration::from_secs(7 * 24 * 3600);
/// If each side makes a connection within this time, neither knew of the other's connection. Longer
/// than the time limit for making a connection ([`super::connect`]).
const CROSSING: Duration = Duration::from_secs(5);
/// After a node was given up, how long a failed attempt to connect makes new requests fail at once.
/// Longer than an attempt and the pause before it, so that requests fail at once while attempts
/// continue to fail.
const FAILED_LATELY: Duration = Duration::from_secs(1);

/// The state of the link to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The other node's number.
    pub node: NodeId,
    /// Whether the node can be reached, as far as is known.
    pub reach: Reach,
    /// Time since which `reach` has had this value.
    pub since: SystemTime,
    /// The reason, if the node can't be reached.
    pub why: Option<String>,
}

/// Whether a node can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// No attempt to reach the node was made so far.
    Untried,
    /// Connected, or connected when a connection was last needed.
    Up,
    /// The node doesn't answer.
    Unreachable,
}

/// The links to all other nodes.
pub struct Links {
    pub local: LocalNode,
    all: RwLock<HashMap<NodeId, Arc<Link>>>,
}

pub struct Link {
    pub(super) links: Weak<Links>,
    pub(super) node: NodeId,
    pub(super) state: Mutex<State>,
    pub(super) wake: Condvar,
}

/// A connection on which both sides have sent their hello.
pub(super) struct Live {
    pub connection: Arc<dyn Connection>,
    /// The hello of the other daemon.
    pub hello: Hello,
    /// Whether this daemon made the connection.
    pub ours: bool,
    pub since: Instant,
}

impl Live {
    /// Whether this connection is the one to keep if each side has made one: the connection made by
    /// the node with the lower number is kept.
    fn stays(&self, me: NodeId, other: NodeId) -> bool {
        self.ours == (me < other)
    }

    /// Whether these two connections were made at the same time, one by each side.
    fn crosses(&self, newer: &Live) -> bool {
        self.ours != newer.ours
            && self.hello.incarnation == newer.hello.incarnation
            && self.since.elapsed() < CROSSING
    }
}

pub(super) struct State {
    /// The connection that requests use.
    pub connection: Option<Live>,
    /// Requests to be sent, or to be sent again.
    pub queue: VecDeque<Arc<PendingRequest>>,
    /// Numbers of all unanswered requests.
    pub open: BTreeSet<u64>,
    /// Number of requests sent since the open ones were last listed.
    unlisted: u32,
    pub under_way: usize,
    /// Time when the last reply arrived.
    pub heard: Instant,
    /// Whether a thread is connecting.
    pub connecting: bool,
    /// Whether to find out if the node can be reached, even without a request.
    pub watch: bool,
    pub reach: Reach,
    pub since: SystemTime,
    pub why: Option<String>,
    pub down: Option<Instant>,
    pub failed: Option<Instant>,
    pub reported: Option<Instant>,
    /// Whether [`LocalNode::gone`] was called.
    pub gone: bool,
}

/// Makes the message that asks a node whether it still carries out these requests of this node. If
/// so, this node waits for them `within` longer. Without numbers, the reply only shows that the
/// node can be reached.
fn progress_query(local: &LocalNode, within: Duration, numbers: Vec<u64>) -> Request {
    let query = ProgressQuery {
        requester: local.request_server.id(),
        within: milliseconds(within),
        numbers,
    };
    Request {
        kind: PROGRESS,
        head: query.encode(),
        ..Request::default()
    }
}

impl Links {
    /// Creates an empty set of links.
    pub fn new(local: LocalNode) -> Arc<Links> {
        let all = RwLock::default();
        Arc::new(Links { local, all })
    }

    /// Makes the links to `nodes`, which are all other nodes.
    pub fn set(self: &Arc<Self>, nodes: impl Iterator<Item = NodeId>) {
        let weak = Arc::downgrade(self);
        let links = nodes.map(|node| (node, Link::new(&weak, node))).collect();
        *write_lock(&self.all) = links;
    }

    pub fn get(&self, node: NodeId) -> Option<Arc<Link>> {
        let all = read_lock(&self.all);
        all.get(&node).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Link>> {
        let all = read_lock(&self.all);
        all.values().cloned().collect()
    }

    /// The states of all links, in the order of the nodes.
    pub fn states(&self) -> Vec<NodeState> {
        let mut states: Vec<NodeState> = self.all().iter().map(|l| l.about()).collect();
        states.sort_by_key(|s| s.node);
        states
    }

    /// Notes that `node` has sent a message: the node can be reached, even if an attempt to connect
    /// failed before.
    pub fn heard_from(&self, node: NodeId) {
        if let Some(link) = self.get(node) {
            link.heard();
        }
    }

    /// Merges the map that the daemon of `from` has sent. If other nodes need the result, sends it
    /// to all connected daemons; daemons that aren't connected get it after their next hello.
    pub fn learn(&self, theirs: PoolMap, from: NodeId) {
        if self.local.learn(theirs, from) {
            let connections = self.all().into_iter().filter_map(|link| link.connection());
            connections.for_each(|c| self.local.maps.send(&c));
        }
    }

    /// Gives the side with the older map the newer one. `hello`: the other side's. Called after the
    /// reply to a hello.
    pub(super) fn compare_maps(&self, connection: &Arc<dyn Connection>, hello: &Hello) {
        if let Some(newer) = self.local.maps.compare(connection, hello) {
            self.learn(newer, connection.peer().node);
        }
    }
}

impl Link {
    fn new(links: &Weak<Links>, node: NodeId) -> Arc<Link> {
        Arc::new(Link {
            links: links.clone(),
            node,
            state: Mutex::new(State {
                connection: None,
                queue: VecDeque::new(),
                open: BTreeSet::new(),
                unlisted: 0,
                under_way: 0,
                heard: Instant::now(),
                connecting: false,
                watch: false,
                reach: Reach::Untried,
                since: SystemTime::now(),
                why: None,
                down: None,
                failed: None,
                reported: None,
                gone: false,
            }),
            wake: Condvar::new(),
        })
    }

    /// The state of the link.
    pub fn about(&self) -> NodeState {
        let state = lock(&self.state);
        NodeState {
            node: self.node,
            reach: state.reach,
            since: state.since,
            why: state.why.clone(),
        }
    }

    /// Sends a request; the requester gets the reply, or an error. With `lazily`, the request is
    /// sent together with the next one, or when the connection is flushed.
    pub fn post(self: &Arc<Self>, pending: Arc<PendingRequest>, lazily: bool) {
        let Some(links) = self.links.upgrade() else {
            return pending.fail(Errno::HOSTDOWN);
        };
        let local = &links.local;
        let mut state = lock(&self.state);
        let lately = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < FAILED_LATELY);
        if state.connection.is_none() && state.given_up(local) && lately(state.failed) {
            state.open.remove(&pending.number());
            drop(state);
            return pending.fail(Errno::HOSTDOWN);
        }
        // The number is assigned under the lock of the state, so that the lowest open number never
        // decreases.
        if pending.number() == 0 {
            pending.set_number(local.request_server.next_number());
        }
        state.open.insert(pending.number());
        state.queue.push_back(pending);
        drop(state);
        self.pump_some(local, lazily);
    }

    /// Registers the number of a request that an earlier daemon left, and that is about to be
    /// posted.
    pub fn expect(&self, number: u64) {
        lock(&self.state).open.insert(number);
    }

    /// Asks the node whether it still carries out these requests. If so, extends their deadlines.
    pub(super) fn ask_progress(self: &Arc<Self>, requests: Vec<Arc<PendingRequest>>) {
        let (Some(links), Some(connection)) = (self.links.upgrade(), self.connection()) else {
            return;
        };
        let request_timeout = links.local.options.request_timeout;
        let numbers = requests.iter().map(|q| q.number()).collect();
        let request = progress_query(&links.local, request_timeout, numbers);
        let (this, until) = (self.clone(), Instant::now() + request_timeout);
        let done = Box::new(move |result: Result<Reply, Error>| {
            let Ok(reply) = result else { return };
            lock(&this.state).heard = Instant::now();
            for (pending, at_work) in requests.iter().zip(reply.head) {
                if at_work == 1 {
                    pending.renew(until);
                }
            }
        });
        // If the connection accepts no request now, the next tick asks again.
        let _ = connection.start(request, until, done);
    }

    /// Gives up a request of which the home hasn't reported progress for the request timeout.
    pub(super) fn expire(self: &Arc<Self>, pending: &Arc<PendingRequest>) {
        let Some(links) = self.links.upgrade() else {
            return pending.fail(Errno::HOSTDOWN);
        };
        let request_timeout = links.local.options.request_timeout;
        let mut state = lock(&self.state);
        state.queue.retain(|q| !Arc::ptr_eq(q, pending));
        state.open.remove(&pending.number());
        // As in `done`: if nothing has arrived on the connection, it may be broken.
        let silent = state.heard + request_timeout <= pending.deadline();
        let connection = state.connection.as_ref().map(|c| c.connection.clone());
        drop(state);
        pending.fail(Errno::HOSTDOWN);
        if let Some(connection) = connection.filter(|_| silent) {
            self.is_silent(&links.local, &connection, request_timeout);
        }
    }

    /// Closes a connection on which nothing has arrived for `for_`. From now on requests to the
    /// node fail at once, until an attempt to connect succeeds.
    fn is_silent(
        self: &Arc<Self>,
        local: &LocalNode,
        connection: &Arc<dyn Connection>,
        for_: Duration,
    ) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.drop_ended();
        let is_current = |live: &Live| Arc::ptr_eq(&live.connection, connection);
        if state.connection.as_ref().is_some_and(is_current) {
            state.connection = None;
            state.reach = Reach::Unreachable;
            state.since = SystemTime::now();
            state.why = Some(format!("has sent nothing for {:.1} s", for_.as_secs_f64()));
            // The node counts as unreachable since a request timeout ago, so requests fail at once.
            state.down = now.checked_sub(local.options.request_timeout);
            state.failed = Some(now);
        }
        drop(state);
        connection.close();
        self.watch();
    }

    /// Checks whether this link's node answers, after another node has reported that it doesn't. So
    /// not every daemon has to wait for the whole request timeout.
    pub(super) fn suspect(self: &Arc<Self>) {
        let (Some(links), Some(connection)) = (self.links.upgrade(), self.connection()) else {
            return;
        };
        let request = progress_query(&links.local, Duration::ZERO, Vec::new());
        let (this, asked) = (self.clone(), connection.clone());
        let done = Box::new(move |result: Result<Reply, Error>| match result {
            Ok(_) => lock(&this.state).heard = Instant::now(),
            Err(Error::Deadline { .. }) => this.is_silent(&links.local, &asked, PROBE),
            Err(_) => {}
        });
        // If the connection accepts no request now, the requests in progress show whether the node
        // answers.
        let _ = connection.start(request, Instant::now() + PROBE, done);
    }

    /// Notes that a message of the node has arrived: requests to the node no longer fail at once,
    /// and a connecting thread tries again now.
    pub fn heard(&self) {
        let mut state = lock(&self.state);
        if state.connection.is_none() {
            (state.failed, state.down) = (None, None);
            self.wake.notify_all();
        }
    }

    /// Connects, if there is no connection, to find out whether the node can be reached, and to
    /// send it this node's addresses.
    pub fn watch(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.drop_ended();
        if state.connection.is_none() {
            state.watch = true;
            self.need_connection(state);
        }
    }

    /// Waits until the node knows of this daemon or an attempt to connect has failed, at the latest
    /// until the time `until`.
    pub(super) fn wait_announced(&self, until: Instant) {
        let mut state = lock(&self.state);
        while state.reach == Reach::Untried {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.wake.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let (Some(links), Some(connection)) = (self.links.upgrade(), self.connection()) else {
            return;
        };
        // If the other side made the connection, the other side may not use it yet: wait for a
        // reply on it. If this call fails, the node is out of reach again.
        let query = progress_query(&links.local, Duration::ZERO, Vec::new());
        let _ = connection.call(query, until);
    }

    /// Connects again after a connection to the node has ended, whichever side had made it.
    pub fn ended(self: &Arc<Self>) {
        let links = self.links.upgrade();
        if links.is_some_and(|links| !links.local.stopped()) {
            self.watch();
        }
    }

    /// The connection, if there is one.
    pub fn connection(&self) -> Option<Arc<dyn Connection>> {
        let mut state = lock(&self.state);
        state.drop_ended();
        state.connection.as_ref().map(|c| c.connection.clone())
    }

    /// Begins to use a connection on which both sides have sent their hello, unless the present one
    /// is preferred. Requests in progress on the replaced connection are finished on it, or sent
    /// again if it is closed.
    pub(super) fn offer(self: &Arc<Self>, local: &LocalNode, new: Live) {
        let mut state = lock(&self.state);
        state.drop_ended();
        if new.connection.ended().is_some() {
            return;
        }
        let crossed = (state.connection.as_ref()).is_some_and(|old| old.crosses(&new));
        if crossed && !new.stays(local.me, self.node) {
            drop(state);
            // Only the side that made a connection may retire it.
            if new.ours {
                new.connection.retire();
            }
            return;
        }
        let old = state.connection.replace(new);
        self.connected(local, &mut state);
        self.wake.notify_all();
        drop(state);
        match old {
            Some(old) if !crossed => old.connection.close(),
            Some(old) if old.ours => old.connection.retire(),
            _ => {}
        }
        self.pump(local);
    }

    /// Sends queued requests while a connection accepts them.
    pub(super) fn pump(self: &Arc<Self>, local: &LocalNode) {
        self.pump_some(local, false);
    }

    fn pump_some(self: &Arc<Self>, local: &LocalNode, lazily: bool) {
        loop {
            let mut state = lock(&self.state);
            if state.queue.is_empty() {
                return;
            }
            state.drop_ended();
            let Some(live) = &state.connection else {
                return self.need_connection(state);
            };
            let (connection, records) = (live.connection.clone(), live.hello.records);
            if state.under_way >= MAX_REQUESTS_IN_PROGRESS {
                return;
            }
            let Some(pending) = state.queue.pop_front() else {
                return;
            };
            state.under_way += 1;
            debug_assert!(pending.number() != 0, "a request that is sent has a number");
            let settled = state.settled();
            drop(state);
            self.send(local, pending, &connection, records, settled, lazily);
        }
    }

    fn send(
        self: &Arc<Self>,
        local: &LocalNode,
        pending: Arc<PendingRequest>,
        connection: &Arc<dyn Connection>,
        records: u64,
        settled: Settled,
        lazily: bool,
    ) {
        let before = pending.sent_to();
        if before != 0 && before != records && !pending.handling.repeatable {
            local.log(&format!(
                "{} has lost its records while a request of kind {} was in progress: whether it was carried out is unknown",
                local.name_of(self.node),
                pending.kind
            ));
            return self.settle(&pending, Err(Errno::IO));
        }
        let (deadline, now) = (pending.deadline(), Instant::now());
        if deadline <= now {
            return self.settle(&pending, Err(Errno::HOSTDOWN));
        }
        let Some(origin) = pending.origin() else {
            return self.settle(&pending, Err(Errno::HOSTDOWN));
        };
        let Ok(landing) = origin.landing() else {
            // An earlier attempt to send this request may still be using the buffer for its reply's
            // bytes; it ends soon.
            return self.later(pending);
        };
        pending.set_sent_to(records);
        let request_head = RequestHead {
            requester: local.request_server.id(),
            number: pending.number(),
            within: milliseconds(deadline - now),
            settled,
            traced: pending.traced,
        };
        traced(pending.traced, || {
            forebay_trace::event!(LINK_SEND, self.node.0, pending.kind);
        });
        let inline = wire::goes_inline(origin.head().len(), origin.sends(), local.inline);
        let request = Request {
            kind: pending.kind,
            head: if inline {
                origin.with_bytes(|bytes| request_head.encode(origin.head(), bytes))
            } else {
                request_head.encode(origin.head(), &[])
            },
            body: if inline { None } else { origin.source() },
            landing,
            lazily,
        };
        drop(origin);
        let (this, sent, sent_request) = (self.clone(), Instant::now(), pending.clone());
        let on = Arc::downgrade(connection);
        let done = Box::new(move |result| this.done(sent_request, result, sent, &on));
        let deadline = if pending.handling.is_long {
            now + LONG
        } else {
            deadline
        };
        if let Err(e) = connection.start(request, deadline, done) {
            let on = Arc::downgrade(connection);
            self.done(pending, Err(e), Instant::now(), &on);
        }
    }

    /// Handles the result of a sent request.
    fn done(
        self: &Arc<Self>,
        pending: Arc<PendingRequest>,
        result: Result<Reply, Error>,
        sent: Instant,
        connection: &Weak<dyn Connection>,
    ) {
        match result {
            Ok(reply) => {
                traced(pending.traced, || {
                    let errno = reply.status;
                    forebay_trace::event!(LINK_REPLY, self.node.0, pending.kind, errno);
                });
                lock(&self.state).heard = Instant::now();
                self.settle(&pending, Ok(reply));
            }
            Err(Error::Deadline { .. }) => {
                // If nothing has arrived on the connection since, it may be broken.
                let silent = lock(&self.state).heard < sent;
                self.settle(&pending, Err(Errno::HOSTDOWN));
                if silent && let Some(links) = self.links.upgrade() {
                    match connection.upgrade() {
                        Some(connection) => {
                            self.is_silent(&links.local, &connection, sent.elapsed());
                        }
                        None => self.watch(),
                    }
                }
            }
            Err(Error::TooLarge { .. }) => self.settle(&pending, Err(Errno::MSGSIZE)),
            Err(_) if planted("lost-reply") && CHANGES.contains(&pending.kind) => {
                let head = wire::encode_answer(&[], &[]);
                self.settle(
                    &pending,
                    Ok(Reply {
                        status: 0,
                        head,
                        body: None,
                    }),
                );
            }
            // The request may have been carried out: the other daemon can tell by its number.
            Err(_) => return self.later(pending),
        }
        if let Some(links) = self.links.upgrade() {
            self.pump(&links.local);
        }
    }

    /// Answers the request with the reply or the error.
    fn settle(&self, pending: &PendingRequest, result: Result<Reply, Errno>) {
        let mut state = lock(&self.state);
        assert!(state.under_way > 0, "a request that ends was in progress");
        state.under_way -= 1;
        state.open.remove(&pending.number());
        drop(state);
        match result {
            Ok(reply) => {
                if let Some(links) = self.links.upgrade()
                    && let Some(node) = wire::unreachable(reply.status, &reply.head)
                    && let Some(link) = links.get(node)
                {
                    link.suspect();
                }
                answer(pending, reply);
            }
            Err(e) => pending.fail(e),
        }
    }

    /// Queues the request again.
    fn later(self: &Arc<Self>, pending: Arc<PendingRequest>) {
        let mut state = lock(&self.state);
        assert!(
            state.under_way > 0,
            "a request that is sent again was in progress"
        );
        state.under_way -= 1;
        state.queue.push_back(pending);
        state.drop_ended();
        self.need_connection(state);
    }

    /// Stops sending: the daemon ends. The next daemon answers the waiting requesters.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        state.queue.clear();
        self.wake.notify_all();
    }
}

/// Runs `f`, with its trace events attributed to request `id`.
pub(super) fn traced<T>(id: u64, f: impl FnOnce() -> T) -> T {
    let before = forebay_trace::adopt_request(id);
    let result = f();
    forebay_trace::adopt_request(before);
    result
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl State {
    /// The requests that the next message reports as settled.
    fn settled(&mut self) -> Settled {
        let lowest = self.open.first().copied().unwrap_or(0);
        self.unlisted += 1;
        if self.unlisted < LIST_EVERY || self.open.len() < 2 {
            let (upto, open) = (0, Vec::new());
            return Settled { lowest, upto, open };
        }
        self.unlisted = 0;
        let open: Vec<u64> = self
            .open
            .iter()
            .take(wire::MAX_LISTED_REQUESTS)
            .copied()
            .collect();
        let upto = open.last().map_or(0, |last| last + 1);
        Settled { lowest, upto, open }
    }

    pub fn drop_ended(&mut self) {
        if self
            .connection
            .as_ref()
            .is_some_and(|c| c.connection.ended().is_some())
        {
            self.connection = None;
        }
    }

    /// Whether the node has been out of reach for longer than any request waits.
    pub fn given_up(&self, local: &LocalNode) -> bool {
        self.down
            .is_some_and(|down| down.elapsed() >= local.options.request_timeout)
    }

    /// Removes from the queue the requests for which `fails` returns true, and returns them.
    pub fn give_back(
        &mut self,
        fails: impl Fn(&PendingRequest) -> bool,
    ) -> Vec<Arc<PendingRequest>> {
        let (failed, rest): (VecDeque<_>, _) = self.queue.drain(..).partition(|q| fails(q));
        self.queue = rest;
        let failed = Vec::from(failed);
        for pending in &failed {
            self.open.remove(&pending.number());
        }
        failed
    }
}

/// Answers the request with the home's reply.
fn answer(pending: &PendingRequest, reply: Reply) {
    let Some((head, inline)) = wire::decode_answer(&reply.head) else {
        return pending.fail(Errno::PROTO);
    };
    match reply.body {
        Some(body) => pending.answer(reply.status, head, Got::Landed(body)),
        None => pending.answer(reply.status, head, Got::Inline(inline)),
    }
}

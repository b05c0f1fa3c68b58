//! The simulated network: the connections between daemons, with the interface of [`forebay_net`],
//! over memory that all processes share.
//!
//! A message takes a random time. Messages of one connection and direction arrive in order;
//! messages of different connections or directions may not. A message may be lost, as on a
//! connection that is cut. Then all later messages of the connection are lost as well, and its two
//! ends are notified, at different times. So a daemon sends a request without a reply again on
//! another connection, whether the request had arrived or not.

use crate::world::{NEVER, key, world};
use forebay_net::transport::{Answer, ReplyTo};
use forebay_net::{
    Body, Connection, CutReason, Done, Error, Handler, Incoming, Landing, NodeId, Peer, Reply,
    Request, Responder, Source, Transport, WINDOW,
};
use forebay_pool::daemon::Network;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Maximum number of nodes.
pub const NODES: usize = 8;
/// Maximum number of messages in progress at once.
const MESSAGES: usize = 512;
/// Maximum number of connections at once.
const CONNECTIONS: usize = 256;
/// Maximum size of a message's head, and of its body. Bytes.
const HEAD: usize = 64 << 10;
const BODY: usize = 2 << 20;
/// How long a retired connection continues to exist. Nanoseconds.
const RETIRES: u64 = 2_000_000_000;
/// Replaces the node's number at an end of a connection that was notified of the connection's end.
const NOBODY: u32 = u32::MAX;
/// The port of node 0. Node N has this port plus N.
const PORT: u16 = 7000;

/// Kinds of messages.
const REQUEST: u32 = 1;
const REPLY: u32 = 2;
/// There will be no reply to the request.
const NO_REPLY: u32 = 3;
/// The connection has ended.
const ENDED: u32 = 4;

#[repr(C)]
struct Message {
    /// The kind of message; 0: the entry is free.
    what: AtomicU32,
    from: AtomicU32,
    to: AtomicU32,
    kind: AtomicU32,
    status: AtomicU32,
    has_body: AtomicU32,
    connection: AtomicU64,
    number: AtomicU64,
    due: AtomicU64,
    order: AtomicU64,
    deadline: AtomicU64,
    head: AtomicU64,
    body: AtomicU64,
}

#[repr(C)]
struct Line {
    /// The connection's id; 0: the entry is free.
    id: AtomicU64,
    ends: [AtomicU32; 2],
    /// Arrival time of the last message in each direction. Nanoseconds.
    last: [AtomicU64; 2],
    /// Messages that would arrive later than this are lost. Nanoseconds.
    end: AtomicU64,
}

/// The memory that all processes share.
#[repr(C)]
pub struct Wires {
    next: AtomicU64,
    /// The id of each node's daemon; 0: the node has none.
    daemons: [AtomicU64; NODES],
    /// Number of events that have arrived for each node so far.
    bells: [AtomicU64; NODES],
    /// Time until which two nodes don't reach each other. Nanoseconds.
    apart: [[AtomicU64; NODES]; NODES],
    /// One in this many messages is lost, and cuts its connection; 0: none.
    pub lost: AtomicU32,
    /// Upper bound of the delay of most messages. Nanoseconds.
    pub delay: AtomicU64,
    /// Whether messages are printed.
    pub tell: AtomicU32,
    /// Number of messages lost and connections cut so far.
    pub losses: AtomicU64,
    lines: [Line; CONNECTIONS],
    messages: [Message; MESSAGES],
}

static WIRES: AtomicPtr<Wires> = AtomicPtr::new(std::ptr::null_mut());
static BYTES: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the network for this process's children.
pub fn make() -> &'static Wires {
    WIRES.store(crate::world::shared(size_of::<Wires>()).cast(), SeqCst);
    BYTES.store(crate::world::shared(MESSAGES * (HEAD + BODY)), SeqCst);
    wires().delay.store(200_000, SeqCst);
    wires().next.store(1, SeqCst);
    wires()
}

/// Returns the network.
pub fn wires() -> &'static Wires {
    // SAFETY: the network was made before any caller; it stays mapped, and zeros are a valid value
    // of it.
    unsafe { &*WIRES.load(SeqCst) }
}

/// Returns the address of the bytes of a message.
fn bytes(index: usize) -> *mut u8 {
    // SAFETY: `index` is that of a message, whose bytes lie inside the mapping.
    unsafe { BYTES.load(SeqCst).add(index * (HEAD + BODY)) }
}

fn mailbox(node: u32) -> u64 {
    key(node.into(), 0x3a11)
}

/// Returns the address on which node `node` listens.
pub fn address(node: u32) -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, PORT + node as u16).into()
}

impl Line {
    /// Frees the entry of the connection, if both ends were notified of its end.
    fn give_back(&self) {
        if self.ends.iter().all(|e| e.load(SeqCst) == NOBODY) {
            self.id.store(0, SeqCst);
        }
    }
}

impl Wires {
    /// Wakes node `node`, for which an event has arrived.
    fn ring(&self, node: u32) {
        if node == NOBODY {
            return;
        }
        self.bells[node as usize].fetch_add(1, SeqCst);
        world().wake(mailbox(node), u64::MAX);
    }

    fn line(&self, id: u64) -> Option<&Line> {
        self.lines
            .iter()
            .find(|l| l.id.load(SeqCst) == id && id != 0)
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, SeqCst)
    }

    fn free(&self) -> usize {
        loop {
            let free = |m: &Message| m.what.load(SeqCst) == 0;
            if let Some(index) = self.messages.iter().position(free) {
                return index;
            }
            world().sleep(100_000);
        }
    }

    /// Returns a random delay for a message. Nanoseconds.
    fn takes(&self) -> u64 {
        let most = self.delay.load(SeqCst);
        let usual = most / 8 + world().below(most);
        match world().below(60) {
            0 => usual * 40,
            1..4 => usual * 6,
            _ => usual,
        }
    }

    /// Ends a connection at time `end`. Both sides are notified later.
    fn cut(&self, line: &Line, end: u64) {
        if line.end.load(SeqCst) <= end {
            return;
        }
        line.end.store(end, SeqCst);
        let id = line.id.load(SeqCst);
        for (side, other) in [(0, 1), (1, 0)] {
            let (from, to) = (line.ends[other].load(SeqCst), line.ends[side].load(SeqCst));
            if from == NOBODY || to == NOBODY {
                continue;
            }
            let index = self.free();
            let m = &self.messages[index];
            m.from.store(from, SeqCst);
            m.to.store(to, SeqCst);
            m.connection.store(id, SeqCst);
            let late = if world().once_in(8) { 300 } else { 2 };
            m.due
                .store(end + world().below(late * self.delay.load(SeqCst)), SeqCst);
            m.order.store(self.next(), SeqCst);
            m.what.store(ENDED, SeqCst);
            self.ring(to);
        }
    }

    /// Cuts all connections between two nodes, and refuses new ones until time `until`.
    pub fn part(&self, a: u32, b: u32, until: u64) {
        for (a, b) in [(a, b), (b, a)] {
            self.apart[a as usize][b as usize].store(until, SeqCst);
        }
        let now = world().now();
        for line in self.lines.iter().filter(|l| l.id.load(SeqCst) != 0) {
            let ends = [line.ends[0].load(SeqCst), line.ends[1].load(SeqCst)];
            if ends == [a, b] || ends == [b, a] {
                self.cut(line, now);
            }
        }
    }

    /// Removes a dead daemon of a node, with all its connections.
    pub fn gone(&self, node: u32) {
        self.daemons[node as usize].store(0, SeqCst);
        let now = world().now();
        for line in self.lines.iter().filter(|l| l.id.load(SeqCst) != 0) {
            let Some(end) = line.ends.iter().find(|e| e.load(SeqCst) == node) else {
                continue;
            };
            self.cut(line, now);
            end.store(NOBODY, SeqCst);
            line.give_back();
        }
        let its = |m: &&Message| m.what.load(SeqCst) != 0 && m.to.load(SeqCst) == node;
        self.messages
            .iter()
            .filter(its)
            .for_each(|m| m.what.store(0, SeqCst));
    }

    /// Sends a message on a connection; it may be lost.
    fn send(&self, m: Outgoing<'_>) {
        let now = world().now();
        if self.tell.load(SeqCst) != 0 {
            let what = match m.what {
                REQUEST => format!("asks {:?}", m.head.get(..80).unwrap_or(m.head)),
                REPLY => format!("answers {}", m.status),
                _ => "gives no answer".into(),
            };
            println!(
                "{:12.3} ms: node {} by {}: kind {} number {} {what}",
                world().elapsed() as f64 / 1e6,
                m.from,
                m.connection,
                m.kind,
                m.number
            );
        }
        let Some(line) = self.line(m.connection) else {
            return;
        };
        if line.end.load(SeqCst) <= now {
            return;
        }
        let way = usize::from(line.ends[0].load(SeqCst) != m.from);
        let due = (now + self.takes()).max(line.last[way].load(SeqCst) + 1);
        line.last[way].store(due, SeqCst);
        if world().once_in(self.lost.load(SeqCst).into()) {
            self.losses.fetch_add(1, SeqCst);
            // The connection ends before the message arrives, or directly after it.
            let end = if world().once_in(2) { due - 1 } else { due };
            self.cut(line, end.max(now));
        }
        let index = self.free();
        let message = &self.messages[index];
        message.from.store(m.from, SeqCst);
        message.to.store(line.ends[1 - way].load(SeqCst), SeqCst);
        message.kind.store(m.kind.into(), SeqCst);
        message.status.store(m.status, SeqCst);
        message.connection.store(m.connection, SeqCst);
        message.number.store(m.number, SeqCst);
        message.due.store(due, SeqCst);
        message.order.store(self.next(), SeqCst);
        message.deadline.store(m.deadline, SeqCst);
        message.head.store(m.head.len() as u64, SeqCst);
        message.has_body.store(m.body.is_some().into(), SeqCst);
        // SAFETY: head and body fit into the bytes of message `index`: the lengths were checked.
        unsafe {
            let to = bytes(index);
            to.copy_from(m.head.as_ptr(), m.head.len());
            let (mut at, length) = (0, m.body.map_or(0, Source::length));
            while let Some(body) = m.body.filter(|_| at < length) {
                let piece = body.piece(at);
                let n = piece.len().min(length - at);
                to.add(HEAD + at).copy_from(piece.as_ptr(), n);
                at += n;
            }
            message.body.store(length as u64, SeqCst);
        }
        message.what.store(m.what, SeqCst);
        self.ring(line.ends[1 - way].load(SeqCst));
    }
}

struct Outgoing<'a> {
    what: u32,
    from: u32,
    kind: u16,
    status: u32,
    connection: u64,
    number: u64,
    deadline: u64,
    head: &'a [u8],
    body: Option<&'a dyn Source>,
}

/// One daemon's end of the network.
pub struct Simulated {
    me: u32,
    shared: Arc<Shared>,
}

struct Shared {
    me: u32,
    handler: Arc<dyn Handler>,
    ends: Mutex<HashMap<u64, Arc<End>>>,
    /// Deadlines of requests, each with the ids of its connection and request.
    timers: Mutex<BTreeSet<(Instant, u64, u64)>>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Simulated {
    /// Starts one daemon's end of the network.
    pub fn start(network: Network<'_>) -> Arc<dyn Transport> {
        let me = network.node.0;
        wires().daemons[me as usize].store(wires().next(), SeqCst);
        let shared = Arc::new(Shared {
            me,
            handler: network.handler,
            ends: Mutex::default(),
            timers: Mutex::default(),
        });
        let there = shared.clone();
        let thread = std::thread::Builder::new().name("fb-net".into());
        thread
            .spawn(move || receive(&there))
            .expect("a thread can be started");
        Arc::new(Simulated { me, shared })
    }
}

impl Transport for Simulated {
    fn connect(&self, peer: Peer, _deadline: Instant) -> Result<Arc<dyn Connection>, Error> {
        let (world, wires) = (world(), wires());
        let to = u32::from(peer.address.port() - PORT);
        world.sleep(wires.takes());
        let apart = wires.apart[self.me as usize][to as usize].load(SeqCst) > world.now();
        if apart || wires.daemons[to as usize].load(SeqCst) == 0 {
            let why = "nobody is there".into();
            return Err(Error::Unreachable { peer, why });
        }
        world.sleep(wires.takes());
        let id = wires.next();
        let free = |l: &&Line| l.id.load(SeqCst) == 0;
        let line = wires
            .lines
            .iter()
            .find(free)
            .ok_or(Error::Local("too many connections".into()))?;
        line.ends[0].store(self.me, SeqCst);
        line.ends[1].store(to, SeqCst);
        line.last.iter().for_each(|l| l.store(0, SeqCst));
        line.end.store(NEVER, SeqCst);
        line.id.store(id, SeqCst);
        if wires.daemons[to as usize].load(SeqCst) == 0 {
            wires.cut(line, world.now());
        }
        Ok(self.shared.end(id, peer))
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![address(self.me)]
    }

    fn shutdown(&self) {
        wires().gone(self.me);
    }
}

/// One end of a connection.
struct End {
    id: u64,
    me: u32,
    peer: Peer,
    shared: Weak<Shared>,
    state: Mutex<State>,
}

/// A request without a reply: whom to tell, where its bytes land, and when it fails.
type Waiting = (Done, Option<Box<dyn Landing>>, Instant);

#[derive(Default)]
struct State {
    ended: Option<Error>,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
}

impl Shared {
    fn end(self: &Arc<Self>, id: u64, peer: Peer) -> Arc<End> {
        let new = || {
            Arc::new(End {
                id,
                me: self.me,
                peer,
                shared: Arc::downgrade(self),
                state: Mutex::default(),
            })
        };
        lock(&self.ends).entry(id).or_insert_with(new).clone()
    }
}

impl Connection for End {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn start(&self, request: Request, deadline: Instant, done: Done) -> Result<(), Error> {
        let peer = self.peer;
        let length = request.body.as_ref().map_or(0, |b| b.length());
        for (what, size, limit) in [
            ("a head", request.head.len(), HEAD),
            ("a body", length, BODY),
        ] {
            if size > limit {
                return Err(Error::TooLarge {
                    peer,
                    what,
                    size,
                    limit,
                });
            }
        }
        let number = {
            let mut state = lock(&self.state);
            if let Some(e) = &state.ended {
                return Err(e.clone());
            }
            if state.waiting.len() >= WINDOW {
                return Err(Error::Full { peer });
            }
            state.next += 1;
            let number = state.next;
            state
                .waiting
                .insert(number, (done, request.landing, deadline));
            number
        };
        if let Some(shared) = self.shared.upgrade() {
            lock(&shared.timers).insert((deadline, self.id, number));
            wires().ring(self.me);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        wires().send(Outgoing {
            what: REQUEST,
            from: self.me,
            kind: request.kind,
            status: 0,
            connection: self.id,
            number,
            deadline: world().now().saturating_add(left.as_nanos() as u64),
            head: &request.head,
            body: request.body.as_deref().map(|b| b as &dyn Source),
        });
        Ok(())
    }

    fn flush(&self) {}

    fn wait_for_room(&self, deadline: Instant) -> Result<(), Error> {
        while lock(&self.state).waiting.len() >= WINDOW {
            if Instant::now() >= deadline {
                return Err(Error::Deadline { peer: self.peer });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    fn ended(&self) -> Option<Error> {
        lock(&self.state).ended.clone()
    }

    fn close(&self) {
        let (peer, why) = (self.peer, CutReason::Here("it was closed"));
        lock(&self.state)
            .ended
            .get_or_insert(Error::Cut { peer, why });
        if let Some(line) = wires().line(self.id) {
            wires().cut(line, world().now());
        }
    }

    fn retire(&self) {
        if let Some(line) = wires().line(self.id) {
            wires().cut(line, world().now() + RETIRES);
        }
    }
}

/// The data needed to send the reply to a request.
struct Back {
    me: u32,
    connection: u64,
    number: u64,
}

impl ReplyTo for Back {
    fn reply(self: Box<Self>, answer: Option<Answer>) {
        let what = if answer.is_some() { REPLY } else { NO_REPLY };
        let answer = answer.unwrap_or_default();
        wires().send(Outgoing {
            what,
            from: self.me,
            kind: 0,
            status: answer.status,
            connection: self.connection,
            number: self.number,
            deadline: 0,
            head: &answer.head,
            body: answer.body.as_deref().map(|b| b as &dyn Source),
        });
    }
}

/// The main loop of the thread that receives messages.
fn receive(shared: &Arc<Shared>) {
    let (world, wires, me) = (world(), wires(), shared.me);
    let epoch = (Instant::now(), world.now());
    let at = |i: Instant| epoch.1 + i.saturating_duration_since(epoch.0).as_nanos() as u64;
    loop {
        let bell = wires.bells[me as usize].load(SeqCst);
        let now = world.now();
        let first = lock(&shared.timers).first().copied();
        if let Some(timer) = first.filter(|t| at(t.0) <= now) {
            lock(&shared.timers).remove(&timer);
            let end = lock(&shared.ends).get(&timer.1).cloned();
            let waiting = end
                .as_ref()
                .and_then(|e| lock(&e.state).waiting.remove(&timer.2));
            if let (Some(end), Some((done, ..))) = (end, waiting) {
                done(Err(Error::Deadline { peer: end.peer }));
            }
            continue;
        }
        let mine = |m: &&Message| m.what.load(SeqCst) != 0 && m.to.load(SeqCst) == me;
        let time = |m: &&Message| (m.due.load(SeqCst), m.order.load(SeqCst));
        let next = wires.messages.iter().filter(mine).min_by_key(time);
        let due = next.map_or(NEVER, |m| m.due.load(SeqCst));
        match next.filter(|_| due <= now) {
            Some(message) => take(shared, message),
            None if bell != wires.bells[me as usize].load(SeqCst) => {}
            None => {
                let until = first.map_or(NEVER, |t| at(t.0)).min(due);
                world.wait(mailbox(me), until);
            }
        }
    }
}

/// Handles a message that has arrived: copies it, frees its entry, and acts on it.
fn take(shared: &Arc<Shared>, m: &Message) {
    let wires = wires();
    let index = (m as *const Message).addr() - wires.messages.as_ptr().addr();
    let index = index / size_of::<Message>();
    let (id, number) = (m.connection.load(SeqCst), m.number.load(SeqCst));
    let (what, from) = (m.what.load(SeqCst), m.from.load(SeqCst));
    let address = address(from);
    let peer = Peer {
        node: NodeId(from),
        address,
    };
    if what == ENDED {
        m.what.store(0, SeqCst);
        return ended(shared, id, peer);
    }
    let lost = wires
        .line(id)
        .is_none_or(|l| m.due.load(SeqCst) > l.end.load(SeqCst));
    if lost {
        m.what.store(0, SeqCst);
        return;
    }
    // SAFETY: no process changes the bytes of message `index` until the entry is free.
    let (head, body) = unsafe {
        let at = bytes(index);
        let head = std::slice::from_raw_parts(at, m.head.load(SeqCst) as usize).to_vec();
        (
            head,
            std::slice::from_raw_parts(at.add(HEAD), m.body.load(SeqCst) as usize),
        )
    };
    let has_body = m.has_body.load(SeqCst) != 0;
    let end = shared.end(id, peer);
    let into = |mut landing: Box<dyn Landing>| -> Body {
        let mut at = 0;
        while at < body.len() {
            let piece = landing.piece(at);
            let n = piece.len().min(body.len() - at);
            piece[..n].copy_from_slice(&body[at..at + n]);
            at += n;
        }
        Body {
            landing,
            length: body.len(),
        }
    };
    if what == REQUEST {
        let kind = m.kind.load(SeqCst) as u16;
        let back = Back {
            me: shared.me,
            connection: id,
            number,
        };
        let reply = Responder::new(Box::new(back));
        let landed = if has_body {
            shared
                .handler
                .landing(peer, kind, &head, body.len())
                .map(into)
        } else {
            None
        };
        let refused = has_body && landed.is_none();
        let left = m.deadline.load(SeqCst).saturating_sub(world().now());
        m.what.store(0, SeqCst);
        if refused {
            return drop(reply);
        }
        let incoming = Incoming {
            connection: end,
            kind,
            head,
            body: landed,
            deadline: Instant::now() + Duration::from_nanos(left),
        };
        return shared.handler.serve(incoming, reply);
    }
    let waiting = lock(&end.state).waiting.remove(&number);
    let Some((done, landing, deadline)) = waiting else {
        m.what.store(0, SeqCst);
        return;
    };
    lock(&shared.timers).remove(&(deadline, id, number));
    let fits = landing.as_ref().is_some_and(|l| l.length() >= body.len());
    let result = match what {
        REPLY if has_body && !fits => Err(Error::Damaged { peer }),
        REPLY => Ok(Reply {
            status: m.status.load(SeqCst),
            head,
            body: landing.filter(|_| has_body).map(into),
        }),
        _ => Err(Error::NotServed {
            peer,
            why: "it gave no answer",
        }),
    };
    m.what.store(0, SeqCst);
    done(result);
}

fn ended(shared: &Arc<Shared>, id: u64, peer: Peer) {
    let end = lock(&shared.ends).remove(&id);
    if let Some(line) = wires().line(id) {
        // The entry is freed when the second end has been notified.
        let me = usize::from(line.ends[0].load(SeqCst) != shared.me);
        line.ends[me].store(NOBODY, SeqCst);
        line.give_back();
    }
    let Some(end) = end else { return };
    let error = Error::Cut {
        peer,
        why: CutReason::Here("it was cut"),
    };
    let waiting = {
        let mut state = lock(&end.state);
        state.ended.get_or_insert(error.clone());
        std::mem::take(&mut state.waiting)
    };
    for (number, (done, _, deadline)) in waiting {
        lock(&shared.timers).remove(&(deadline, id, number));
        done(Err(error.clone()));
    }
    shared.handler.ended(peer, &error);
}

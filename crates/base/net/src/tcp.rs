//! The transport over TCP. For each pair of nodes there are two TCP connections: one per lane.
//!
//! One thread accepts connections ([`accept`]), three serve all control lanes, a few serve the bulk
//! lanes ([`engine`]). The number of threads doesn't grow with the number of nodes. The threads
//! sleep in epoll. A sender writes to the socket at once unless another thread does ([`send`]), so
//! that a request and its reply wake as few threads as possible. Messages that other threads send
//! during a write go out with the next write.
//!
//! - [`dial`], [`accept`] and [`half_open`] make connections, up to the end of the handshake;
//! - [`session`] is a connection after the handshake; [`send`] and [`receive`] are its two
//!   directions; [`calls`] has the requests that wait for a reply;
//! - [`timers`] keeps deadlines; [`pace`] limits the bytes per second.

mod accept;
mod calls;
mod dial;
mod engine;
mod half_open;
mod input;
mod outbox;
mod pace;
mod receive;
mod send;
mod session;
mod timers;

use crate::transport::{Connection, Handler, NodeId, Peer, PoolId, Transport};
use crate::{CutReason, Error, PoolKey, lock};
use accept::Acceptor;
use engine::Group;
use pace::Pace;
use session::Session;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use timers::Timers;

/// Maximum number of connections from one other node to this one. When another is made, the oldest
/// is cut.
const SESSIONS_OF_A_NODE: usize = 4;

/// Number of threads for control lanes: all but one may be busy with a request.
const CONTROL_THREADS: usize = 3;

const LEAVES: CutReason = CutReason::Here("this node leaves");

/// Parameters of a node's transport.
pub struct Options {
    /// The pool.
    pub pool: PoolId,
    /// This node's number in the pool.
    pub node: NodeId,
    /// The pool's key.
    pub key: PoolKey,
    /// Whether to encrypt bodies, too. Bodies are encrypted if either side of a connection asks for
    /// it.
    pub encrypt: bool,
    /// Limits on memory, connections and times.
    pub limits: Limits,
}

/// Limits on the resources that a node uses, and on the times that it waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of connections that haven't proved the key. When another is made, the oldest
    /// is closed.
    pub half_open: usize,
    /// As `half_open`, but for one peer address.
    pub half_open_of_one: usize,
    /// Maximum number of connections to and from other nodes.
    pub sessions: usize,
    /// Time limit for a handshake.
    pub handshake: Duration,
    /// Time after which a peer that makes no progress within a message is abandoned.
    pub stall: Duration,
    /// Number of threads for bulk lanes.
    pub bulk_threads: usize,
    /// Maximum number of bytes per second, in each direction, of all connections together.
    pub bandwidth: Option<u64>,
}

/// Returns the limit on half-open connections: an eighth of this process's limit on descriptors,
/// but 16 to 256.
fn half_open_by_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let eighth = limit.map_or(256, |n| n / 8);
    usize::try_from(eighth).unwrap_or(256).clamp(16, 256)
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // Unauthenticated peers use at most an eighth of the descriptors.
            half_open: half_open_by_descriptors(),
            half_open_of_one: half_open_by_descriptors() / 2,
            sessions: 20_000,
            handshake: Duration::from_secs(3),
            stall: Duration::from_secs(10),
            bulk_threads: 2,
            bandwidth: None,
        }
    }
}

/// The transport of one node over TCP.
pub struct TcpTransport {
    core: Arc<Core>,
    acceptor: Arc<Acceptor>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that the threads share.
struct Core {
    options: Options,
    handler: Arc<dyn Handler>,
    sessions: Mutex<Sessions>,
    next: AtomicU64,
    timers: Timers,
    /// The bandwidth limits on sent and on received bytes.
    paces: Option<[Pace; 2]>,
    /// The groups of I/O threads. The first one serves the control lanes.
    io: Vec<Group>,
    stopped: AtomicBool,
}

#[derive(Default)]
struct Sessions {
    all: HashMap<u64, Arc<Session>>,
    /// Connections that peers have made, oldest first.
    accepted: HashMap<NodeId, VecDeque<u64>>,
}

/// Returns the number of threads of a group; the first group serves the control lanes.
fn threads_of(group: usize) -> usize {
    if group == 0 { CONTROL_THREADS } else { 1 }
}

fn local(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |e| Error::Local(format!("{what}: {e}"))
}

impl TcpTransport {
    /// Listens on `addresses` (port 0: any free one) and serves other nodes through `handler`.
    /// Without addresses the node only connects to others.
    ///
    /// # Errors
    /// [`Error::Listen`] for an address that can't be listened on; [`Error::Local`] if a thread,
    /// epoll or a timer can't be made.
    pub fn start(
        options: Options,
        handler: Arc<dyn Handler>,
        addresses: &[SocketAddr],
    ) -> Result<TcpTransport, Error> {
        let io = (0..=options.limits.bulk_threads.max(1))
            .map(|index| Group::new(threads_of(index)))
            .collect::<Result<Vec<_>, Error>>()?;
        let paces = options.limits.bandwidth;
        let core = Arc::new(Core {
            paces: paces.map(|rate| [Pace::new(rate), Pace::new(rate)]),
            options,
            handler,
            sessions: Mutex::default(),
            next: AtomicU64::new(1),
            timers: Timers::new()?,
            io,
            stopped: AtomicBool::new(false),
        });
        core.io[0].watch_timers(&core.timers)?;
        let acceptor = Arc::new(Acceptor::new(core.clone(), addresses)?);
        let transport = TcpTransport {
            core: core.clone(),
            acceptor: acceptor.clone(),
            threads: Mutex::default(),
        };
        transport.spawn("fb-accept".into(), move || acceptor.run())?;
        for index in 0..core.io.len() {
            for _ in 0..threads_of(index) {
                let core = core.clone();
                transport.spawn(format!("fb-net-{index}"), move || engine::run(&core, index))?;
            }
        }
        Ok(transport)
    }

    fn spawn(&self, name: String, f: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(f)
            .map_err(|e| Error::Local(format!("a thread can't be started: {e}")))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Ends all connections and threads. Requests in progress fail.
    pub fn shutdown(&self) {
        self.core.stopped.store(true, Ordering::SeqCst);
        self.acceptor.wake();
        for session in self.core.all() {
            session.cut(LEAVES);
        }
        self.core.io.iter().for_each(Group::wake);
        let me = std::thread::current().id();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // If a handler calls `shutdown`, the calling thread is one of these and can't join
            // itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
        // A session may have been made after the sessions were cut above.
        for session in self.core.all() {
            session.cut(LEAVES);
        }
    }

    /// Number of connections that haven't proved the key yet.
    pub fn half_open(&self) -> usize {
        self.acceptor.half_open()
    }

    /// Number of connections to and from other nodes.
    pub fn connections(&self) -> usize {
        lock(&self.core.sessions).all.len()
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Transport for TcpTransport {
    fn connect(&self, peer: Peer, deadline: Instant) -> Result<Arc<dyn Connection>, Error> {
        let session = dial::connect(&self.core, peer, deadline)?;
        Ok(session)
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.acceptor.addresses()
    }

    fn shutdown(&self) {
        TcpTransport::shutdown(self);
    }
}

/// The direction of bytes.
#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

impl Core {
    /// Counts transferred bytes. With `waits`, sleeps as long as the bandwidth limit demands.
    fn went(&self, way: Way, bytes: usize, waits: bool) {
        if let Some(paces) = &self.paces
            && bytes > 0
        {
            let wait = paces[way as usize].spend(bytes);
            if waits && !wait.is_zero() && !self.stopped.load(Ordering::Relaxed) {
                std::thread::sleep(wait);
            }
        }
    }

    fn session(&self, id: u64) -> Option<Arc<Session>> {
        lock(&self.sessions).all.get(&id).cloned()
    }

    fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).all.values().cloned().collect()
    }

    fn is_full(&self) -> bool {
        lock(&self.sessions).all.len() >= self.options.limits.sessions
    }

    /// Puts a session into service: the session may receive from now on.
    fn adopt(&self, session: &Arc<Session>) -> Result<(), Error> {
        let oldest = {
            let mut sessions = lock(&self.sessions);
            sessions.all.insert(session.id, session.clone());
            if session.accepted {
                let of_node = sessions.accepted.entry(session.peer.node).or_default();
                of_node.push_back(session.id);
                (of_node.len() > SESSIONS_OF_A_NODE).then(|| of_node[0])
            } else {
                None
            }
        };
        if let Some(old) = oldest.and_then(|id| self.session(id)) {
            old.cut(CutReason::Here("the node has connected again"));
        }
        if let Err(e) = session.register() {
            session.cut(CutReason::Failed(Box::new(e.clone())));
            return Err(e);
        }
        if self.stopped.load(Ordering::SeqCst) {
            session.cut(LEAVES);
        }
        // The session may have ended before it was registered.
        if session.calls.ended().is_some() {
            self.forget(session);
        }
        Ok(())
    }

    fn forget(&self, session: &Session) {
        let mut sessions = lock(&self.sessions);
        sessions.all.remove(&session.id);
        if let Some(of_node) = sessions.accepted.get_mut(&session.peer.node) {
            of_node.retain(|id| *id != session.id);
            if of_node.is_empty() {
                sessions.accepted.remove(&session.peer.node);
            }
        }
    }
}

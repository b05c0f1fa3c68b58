//! The daemon of a node: serves the node's store to other nodes, and carries the requests of the
//! node's processes to them. The daemon runs inside the node's keeper.
//!
//! ```text
//! process -> cell -> link -> network -> home -> worker -> store
//! ```
//! Modules import each other downwards only: `direct`, `about` and `capacity` use `core`; `core`
//! uses `home` and `renewals`; both use `link` (with `connect`); and `link` uses `local_node`.
//!
//! - [`local_node`]: this node, as all other modules know it; [`maps`]: its pool map;
//! - [`pending`]: a request and its requester; [`link`]: the requests to one other node;
//! - [`home`]: requests of other nodes; [`reply_cache`]: the requests that were carried out, with
//!   their replies; [`workers`]: the threads that carry them out;
//! - [`self::core`]: passes this node's requests to a link or to [`home`]; [`direct`]: those of the
//!   daemon's own store;
//! - [`renewals`]: requests that take longer than the request timeout;
//! - [`room`]: limits on the memory for requests and replies;
//! - [`about`]: a node's state, for users; [`capacity`]: the pool's, for programs;
//! - [`wire`]: the encoding of messages.

mod about;
mod capacity;
mod connect;
mod core;
mod direct;
mod home;
mod link;
mod local_node;
mod maps;
mod pending;
#[cfg(test)]
mod protocol;
mod renewals;
mod reply_cache;
mod room;
mod wire;
mod workers;

pub use about::{ABOUT, About, Unreachable};
pub use link::{NodeState, Reach};
pub use maps::read as read_map;

use self::core::Core;
use about::AboutHandler;
use capacity::Capacity;
use direct::Direct;
use forebay_client::requests::{Payload, Replies, RequestServer, SMALL_BODY};
use forebay_client::{Pool, PoolConfig, PoolError};
use forebay_cluster::peers::{CAPACITY, Peers};
use forebay_cluster::serve::{BETWEEN_CHECKS, Class, Reply, Server};
use forebay_net::{Handler, Limits, NodeId, PoolId, PoolKey, TcpTransport, Transport};
use forebay_placement::PoolMap;
use forebay_placement::map::Address;
use forebay_runtime::threads::lock;
use home::HomeHandler;
use local_node::LocalNode;
use maps::Maps;
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Settings of a daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses to listen on.
    pub listen: Vec<IpAddr>,
    /// Addresses by which other nodes reach the daemon, if they differ from `listen`.
    pub advertise: Vec<SocketAddr>,
    /// Whether bodies are encrypted on the network, too.
    pub encrypt: bool,
    /// Request timeout: a node that sends no reply for this time counts as down.
    pub request_timeout: Duration,
    /// How long a node may be out of reach before its locks and open files here are released.
    pub gone_after: Duration,
    /// Limits on the daemon's use of the host.
    pub limits: crate::Limits,
    /// Number of cores that `limits` leave to the daemon; None: all.
    pub cores: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            advertise: Vec::new(),
            encrypt: false,
            request_timeout: Duration::from_secs(10),
            gone_after: Duration::from_secs(30),
            limits: crate::Limits::default(),
            cores: None,
        }
    }
}

/// Answers requests: the store, or a replacement in tests.
pub trait Serve: Send + Sync {
    /// The class of the requests of this kind; None if no request has this kind.
    fn class(&self, kind: u16) -> Option<Class>;

    /// Whether a request of this kind may be carried out twice.
    fn repeatable(&self, kind: u16) -> bool;

    /// Whether the reply cache records requests of this kind in a file that outlives the daemon.
    /// True for requests that change something.
    fn recorded(&self, kind: u16) -> bool {
        !self.repeatable(kind)
    }

    /// Whether carrying out a request of this kind may take longer than the request timeout. The
    /// replies to such long requests carry no bytes besides their head.
    fn is_long(&self, _kind: u16) -> bool {
        false
    }

    /// Tells the handler that `from` is about to get the reply that an earlier daemon recorded.
    fn answered_again(&self, _from: NodeId, _kind: u16, _head: &[u8], _answer: &[u8]) {}

    /// Carries out a request. May block.
    ///
    /// # Errors
    /// The errno that the requester gets.
    fn serve(&self, from: NodeId, kind: u16, head: &[u8], body: &[u8]) -> Result<Reply, Errno>;

    /// Releases all that this node keeps for `node` after the daemon of `node` has ended.
    fn gone(&self, node: NodeId);

    /// Reports to the restarted daemon of `node` what the previous one kept for this node, since
    /// the new daemon doesn't know it.
    ///
    /// # Errors
    /// EHOSTDOWN if `node` can't be reached again.
    fn restarted(&self, node: NodeId) -> Result<(), Errno>;
}

/// Minimum and maximum of the interval between two renewals of the locks that programs of this node
/// hold on other nodes. The interval is an eighth of the lease.
const SHORTEST_TICK: Duration = Duration::from_millis(50);
const MAX_TICK: Duration = Duration::from_secs(5);

/// This node's store, as the handler of requests.
struct Store {
    pool: Arc<Pool>,
    server: Server,
    about_handler: Arc<AboutHandler>,
    capacity: Capacity,
}

impl Serve for Store {
    fn class(&self, kind: u16) -> Option<Class> {
        match kind {
            ABOUT => Some(Class::Leaf),
            // The handler sends requests to all other nodes, and waits.
            CAPACITY => Some(Class::Composite),
            kind => Server::class(kind),
        }
    }

    fn repeatable(&self, kind: u16) -> bool {
        matches!(kind, ABOUT | CAPACITY) || Server::repeatable(kind)
    }

    fn recorded(&self, kind: u16) -> bool {
        !matches!(kind, ABOUT | CAPACITY) && Server::recorded(kind)
    }

    fn is_long(&self, kind: u16) -> bool {
        Server::is_long(kind)
    }

    fn answered_again(&self, from: NodeId, kind: u16, head: &[u8], answer: &[u8]) {
        let cluster = self.pool.cluster();
        self.server
            .answered_again(&cluster, from, kind, head, answer);
    }

    fn serve(&self, from: NodeId, kind: u16, head: &[u8], body: &[u8]) -> Result<Reply, Errno> {
        if kind == ABOUT {
            return self.about_handler.answer(&self.pool);
        }
        if kind == CAPACITY {
            let core = self.about_handler.core()?;
            return self.capacity.answer(&core, &self.pool);
        }
        self.server
            .serve(&self.pool.cluster(), from, kind, head, body)
    }

    fn gone(&self, node: NodeId) {
        self.server.gone(&self.pool.cluster(), node);
    }

    fn restarted(&self, node: NodeId) -> Result<(), Errno> {
        let lost = self.pool.cluster().opens().open_again(node)?;
        if lost > 0 {
            eprintln!(
                "forebay keeper: node {} was restarted: files that are open here and gone there: {lost}",
                node.0
            );
        }
        Ok(())
    }
}

/// Starts the thread that periodically checks whether other nodes still have those files open that
/// this node keeps open for them.
fn check_open(dir: &Path, store: Weak<Store>) -> Result<(), PoolError> {
    let check = move || {
        loop {
            std::thread::sleep(BETWEEN_CHECKS);
            let Some(store) = store.upgrade() else { return };
            // A failure is retried at the next tick.
            let _ = store.server.begin_names(&store.pool.cluster());
            store.server.check_open(&store.pool.cluster());
            store.server.release_late(&store.pool.cluster());
        }
    };
    let thread = std::thread::Builder::new().name("fb-open".into());
    thread.spawn(check).map(|_| ()).map_err(|e| PoolError::Io {
        what: "can't start a thread for".into(),
        path: dir.to_owned(),
        error: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
    })
}

/// Starts the thread that renews this node's leases of locks on other nodes in time.
fn keep_locks(dir: &Path, store: Weak<Store>, lease: Duration) -> Result<(), PoolError> {
    let tick = (lease / 8).clamp(SHORTEST_TICK, MAX_TICK);
    let renew = move || {
        // One thread for each home: a home that doesn't answer delays no other.
        let renewing: Arc<Mutex<HashSet<NodeId>>> = Arc::default();
        loop {
            std::thread::sleep(tick);
            let Some(store) = store.upgrade() else { return };
            // A failure is retried at the next tick.
            let leased = store.pool.cluster().locks().leased().unwrap_or_default();
            for (home, files) in leased {
                if !lock(&renewing).insert(home) {
                    continue;
                }
                let (store, in_renewal) = (store.clone(), renewing.clone());
                let ask = move || {
                    // If the home can't be reached, the lease runs out.
                    let _ = store.pool.cluster().locks().renew_leases(home, &files);
                    lock(&in_renewal).remove(&home);
                };
                let thread = std::thread::Builder::new().name("fb-lease".into());
                if thread.spawn(ask).is_err() {
                    lock(&renewing).remove(&home);
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("fb-leases".into());
    thread.spawn(renew).map(|_| ()).map_err(|e| PoolError::Io {
        what: "can't start a thread for".into(),
        path: dir.to_owned(),
        error: Errno::from_io_error(&e).unwrap_or(Errno::AGAIN),
    })
}

/// The pool and the node of a daemon.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The pool.
    pub pool: PoolId,
    /// The node's number.
    pub node: NodeId,
    /// Number of nodes.
    pub nodes: u32,
}

/// Parameters of a transport.
pub struct Network<'a> {
    /// The pool.
    pub pool: PoolId,
    /// This node.
    pub node: NodeId,
    /// The pool's key.
    pub key: PoolKey,
    /// The daemon's settings.
    pub options: &'a Options,
    /// The port at which other nodes know this one; 0: none.
    pub port: u16,
    /// The handler of other nodes' requests.
    pub handler: Arc<dyn Handler>,
}

/// The transport over TCP.
fn tcp(network: Network<'_>) -> Result<Arc<dyn Transport>, forebay_net::Error> {
    let start = |port: u16| {
        let addresses = network.options.listen.iter();
        let addresses: Vec<SocketAddr> = addresses.map(|&ip| (ip, port).into()).collect();
        let options = forebay_net::Options {
            pool: network.pool,
            node: network.node,
            key: network.key.clone(),
            encrypt: network.options.encrypt,
            limits: Limits {
                bandwidth: network.options.limits.bandwidth,
                ..Limits::default()
            },
        };
        TcpTransport::start(options, network.handler.clone(), &addresses)
    };
    let port = network.port;
    // Other nodes know the old port. A daemon that was killed a moment ago may still occupy it.
    let mut transport = start(port);
    for _ in 0..10 {
        if port == 0 || !matches!(transport, Err(forebay_net::Error::Listen { .. })) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        transport = start(port);
    }
    if port != 0 && matches!(transport, Err(forebay_net::Error::Listen { .. })) {
        transport = start(0);
    }
    Ok(Arc::new(transport?))
}

/// A node's daemon.
pub struct Daemon {
    core: Arc<Core>,
    pool: Option<Arc<Pool>>,
    dispatcher: Mutex<Option<JoinHandle<()>>>,
    /// Whether there was a map at the start. If so, other nodes may know outdated addresses of this
    /// node.
    again: bool,
}

fn network(e: forebay_net::Error) -> PoolError {
    PoolError::Daemon(e.to_string())
}

impl Daemon {
    /// Makes the daemon of the node in `dir`. The daemon listens but doesn't serve yet.
    ///
    /// # Errors
    /// [`PoolError`] if the node can't be opened, has a daemon already or no key, or no address can
    /// be listened on.
    pub fn listen(dir: &Path, options: Options) -> Result<Daemon, PoolError> {
        Daemon::listen_over(dir, options, tcp)
    }

    /// As [`Daemon::listen`], with the transport that `start` makes. For simulations.
    ///
    /// # Errors
    /// As for [`Daemon::listen`].
    pub fn listen_over(
        dir: &Path,
        options: Options,
        start: impl FnOnce(Network<'_>) -> Result<Arc<dyn Transport>, forebay_net::Error>,
    ) -> Result<Daemon, PoolError> {
        let config = PoolConfig::read(dir)?;
        let Some(member) = config.member else {
            let why = format!("the pool '{}' has only one node", config.name);
            return Err(PoolError::Daemon(why));
        };
        let mut id = [0; 16];
        for (i, byte) in id.iter_mut().enumerate() {
            let digits = config.uuid.get(2 * i..2 * i + 2);
            *byte = digits
                .and_then(|d| u8::from_str_radix(d, 16).ok())
                .unwrap_or(0);
        }
        let identity = Identity {
            pool: PoolId(id),
            node: NodeId(member.node),
            nodes: member.nodes,
        };
        let mut opened = None;
        let lease = options.gone_after;
        let about_handler = Arc::new(AboutHandler::default());
        let mut daemon = Daemon::begin(dir, identity, options, start, |others| {
            let pool = Arc::new(Pool::open_dir_among(dir, others)?);
            opened = Some(pool.clone());
            let store = Arc::new(Store {
                pool,
                server: Server::default(),
                about_handler: about_handler.clone(),
                capacity: Capacity::default(),
            });
            store.server.set_lease(lease);
            store.server.origins.of(dir.to_owned());
            check_open(dir, Arc::downgrade(&store))?;
            keep_locks(dir, Arc::downgrade(&store), lease)?;
            Ok(store)
        })?;
        if let Some(pool) = &opened {
            let nodes = pool.store().locks().nodes_with_locks();
            nodes
                .iter()
                .for_each(|node| daemon.core.local().has_met(*node));
        }
        daemon.pool = opened;
        about_handler.set(Arc::downgrade(&daemon.core));
        Ok(daemon)
    }

    /// As [`Daemon::listen`], with a replacement for the store. For tests.
    ///
    /// # Errors
    /// As for [`Daemon::listen`].
    pub fn listen_as(
        dir: &Path,
        identity: Identity,
        options: Options,
        serve: impl FnOnce(Arc<dyn Peers>) -> Result<Arc<dyn Serve>, PoolError>,
    ) -> Result<Daemon, PoolError> {
        Daemon::begin(dir, identity, options, tcp, serve)
    }

    fn begin(
        dir: &Path,
        identity: Identity,
        options: Options,
        start: impl FnOnce(Network<'_>) -> Result<Arc<dyn Transport>, forebay_net::Error>,
        serve: impl FnOnce(Arc<dyn Peers>) -> Result<Arc<dyn Serve>, PoolError>,
    ) -> Result<Daemon, PoolError> {
        let io = |what: &str, error| PoolError::Io {
            what: what.into(),
            path: dir.to_owned(),
            error,
        };
        let request_server = RequestServer::open(dir).map_err(|e| match e {
            Errno::BUSY => PoolError::Daemon(format!("{} has a daemon already", dir.display())),
            e => io("can't open the file 'requests' in", e),
        })?;
        // The lock of the request server is held, so no other daemon uses the records.
        let (records, left) =
            Replies::open(dir).map_err(|e| io("can't open the file 'replies' in", e))?;
        let key = PoolKey::read(&dir.join("key")).map_err(network)?;
        let before = read_map(dir);
        let nodes = match &before {
            Some(map) => map.nodes().iter().map(|n| n.number).collect(),
            None => (0..identity.nodes).map(NodeId).collect(),
        };
        let incarnation = new_incarnation().map_err(|e| io("no random numbers for", e))?;
        let me = identity.node;
        let local = LocalNode::new(
            me,
            incarnation,
            records.id(),
            options,
            request_server,
            Maps::new(dir, me),
        );
        let core = Arc::new(Core::new(local, records, left));
        let direct = Arc::new(Direct::new(me, nodes));
        direct.set(&core);
        let local = core.local();
        let _ = local.serve.set(serve(direct)?);

        let own = before.as_ref().and_then(|map| map.node(me));
        let transport = start(Network {
            pool: identity.pool,
            node: me,
            key,
            options: &local.options,
            port: own.and_then(|n| n.addresses.first()).map_or(0, |a| a.port),
            handler: Arc::new(HomeHandler(Arc::downgrade(&core.home))),
        });
        let _ = local.transport.set(transport.map_err(network)?);
        Ok(Daemon {
            core,
            pool: None,
            dispatcher: Mutex::default(),
            again: before.is_some(),
        })
    }

    /// Addresses by which other nodes can reach this daemon.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let transport = self.core.local().transport.get();
        transport.map_or(Vec::new(), |t| t.addresses())
    }

    /// The store's pool; None in tests.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// Begins to serve other nodes and this node's processes. If the daemon's addresses differ from
    /// those in `map`, sends them to the other nodes.
    ///
    /// # Errors
    /// [`PoolError`] if the map is of another pool, or can't be written.
    pub fn serve(&self, map: Arc<PoolMap>) -> Result<(), PoolError> {
        let (core, local) = (&self.core, self.core.local());
        let Some(me) = map.node(local.me) else {
            let why = format!("node {} isn't in the pool's map", local.me.0);
            return Err(PoolError::Daemon(why));
        };
        let bound = match &local.options.advertise[..] {
            [] => self.addresses(),
            others => others.to_vec(),
        };
        let own: Vec<Address> = match bound.iter().find(|a| a.ip().is_unspecified()) {
            // The addresses at which this node is reached are in the map.
            Some(any) => {
                let port = any.port();
                me.addresses
                    .iter()
                    .map(|a| Address { ip: a.ip, port })
                    .collect()
            }
            None => bound
                .iter()
                .map(|a| Address {
                    ip: a.ip(),
                    port: a.port(),
                })
                .collect(),
        };
        local.maps.set_own(own);
        let moved = local
            .adopt(&map)
            .map_err(|e| PoolError::Daemon(format!("can't write the pool's map: {e}")))?;
        let nodes = map.nodes().iter().map(|n| n.number);
        core.links.set(nodes.filter(|node| *node != local.me));
        local.begin_serving();
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let failed = |e| PoolError::Daemon(format!("a thread can't be started: {e}"));
        let (renewals, request_timeout) = (core.renewals.clone(), local.options.request_timeout);
        let weak = Arc::downgrade(&core.links);
        // The thread ends when the links are dropped, or in `Daemon::drop`.
        thread("fb-renew")
            .spawn(move || renewals::run(&weak, &renewals, request_timeout))
            .map_err(failed)?;
        local.request_server.set_lease(local.options.gone_after);
        let left = local.request_server.begin(request_timeout);
        core.expect(&left);
        for taken in left {
            core.ask_for(taken);
        }
        let there = core.clone();
        let dispatcher = thread("fb-dispatch")
            .spawn(move || dispatch(&there))
            .map_err(failed)?;
        *lock(&self.dispatcher) = Some(dispatcher);
        if moved || self.again {
            // Send this node's addresses to the other nodes, and receive the changes of the map
            // that were made meanwhile.
            core.links.all().iter().for_each(|link| link.watch());
        }
        Ok(())
    }

    /// Waits until each other node knows of this daemon or couldn't be reached, at most for
    /// `limit`. Until then, a node for which this node was down fails its processes' requests to
    /// this node.
    pub fn wait_announced(&self, limit: Duration) {
        let until = Instant::now() + limit;
        for link in self.core.links.all() {
            link.wait_announced(until);
        }
    }

    /// The states of the links to the other nodes.
    pub fn states(&self) -> Vec<NodeState> {
        self.core.links.states()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(dispatcher) = lock(&self.dispatcher).take() {
            let _ = dispatcher.join();
        }
    }
}

/// Body of the thread that takes the requests of this node's processes.
fn dispatch(core: &Core) {
    loop {
        let mut all = core.local().request_server.wait();
        if core.local().stopped() {
            return;
        }
        // One-way requests are sent before later requests of the same process, in one write with
        // them. Large bodies are sent last, since that takes a while.
        all.sort_by_key(|t| match t.payload() {
            _ if t.is_one_way() => 0,
            Payload::Send(n) if n > SMALL_BODY => 2,
            _ => 1,
        });
        let told: Vec<NodeId> = all
            .iter()
            .filter(|t| t.is_one_way())
            .map(|t| t.node())
            .collect();
        for taken in all {
            core.ask_for(taken);
        }
        for node in told {
            core.flush(node);
        }
    }
}

fn new_incarnation() -> Result<u64, Errno> {
    forebay_client::requests::random()
}

//! The daemon of a node: serves the node's store to other nodes, and carries the requests of the
//! node's processes to them. It runs inside the node's keeper.
//!
//! ```text
//! process -> cell -> link -> network -> home -> worker -> store
//! ```
//! - [`question`]: a request and who waits for it; [`link`]: the requests for one other node;
//!   [`direct`]: those of the daemon's own store;
//! - [`home`]: what other nodes ask; [`memory`]: what was asked and answered; [`workers`]: who
//!   carries it out;
//! - [`renewals`]: what takes longer than the request timeout;
//! - [`room`]: bounds of what is held in memory meanwhile;
//! - [`about`]: what is told of a node to people; [`capacity`]: and of the pool to programs;
//! - [`maps`]: the pool's map; [`wire`]: messages as bytes.

mod about;
mod capacity;
mod connect;
mod core;
mod direct;
mod home;
mod link;
mod maps;
#[cfg(test)]
mod protocol;
mod question;
mod renewals;
mod reply_cache;
mod room;
mod wire;
mod workers;

pub use about::{ABOUT, About, Unreachable};
pub use link::{NodeState, Reach};
pub use maps::read as read_map;

use self::core::Core;
use about::Teller;
use capacity::{CAPACITY, Capacity};
use direct::Direct;
use forebay_client::requests::{Asked, Replies, RequestServer, SMALL_BODY};
use forebay_client::{Pool, PoolConfig, PoolError};
use forebay_cluster::peers::Peers;
use forebay_cluster::serve::{BETWEEN_CHECKS, Class, Reply, Server};
use forebay_net::{Handler, Limits, NodeId, PoolId, PoolKey, TcpTransport, Transport};
use forebay_placement::PoolMap;
use forebay_placement::map::Address;
use home::Home;
use link::Link;
use maps::Maps;
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a daemon works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: Vec<IpAddr>,
    /// Where other nodes reach it, if that isn't where it listens.
    pub advertise: Vec<SocketAddr>,
    /// Whether bodies are encrypted on the network, too.
    pub encrypt: bool,
    /// How long who asks waits for an answer: then the other node is down.
    pub patience: Duration,
    /// How long a node may be out of reach before its locks and open files here are given up.
    pub gone_after: Duration,
    /// Limits of its use of the host.
    pub limits: crate::Limits,
    /// How many cores that leaves it; None: all.
    pub cores: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: vec![Ipv4Addr::LOCALHOST.into()],
            advertise: Vec::new(),
            encrypt: false,
            patience: Duration::from_secs(10),
            gone_after: Duration::from_secs(30),
            limits: crate::Limits::default(),
            cores: None,
        }
    }
}

/// What answers requests: the store, or what tests have in its place.
pub trait Serve: Send + Sync {
    /// The class of a kind of request; None if there is none.
    fn class(&self, kind: u16) -> Option<Class>;

    /// Whether it may be carried out a second time.
    fn repeatable(&self, kind: u16) -> bool;

    /// Whether that it was carried out is noted where it outlives the daemon: what changes
    /// something.
    fn recorded(&self, kind: u16) -> bool {
        !self.repeatable(kind)
    }

    /// Whether carrying it out may take longer than the request timeout. It comes without room for
    /// bytes.
    fn is_long(&self, _kind: u16) -> bool {
        false
    }

    /// `from` is about to get the answer that an earlier daemon has given to this request.
    fn answered_again(&self, _from: NodeId, _kind: u16, _head: &[u8], _answer: &[u8]) {}

    /// Carries a request out. May wait.
    ///
    /// # Errors
    /// What the asker is told.
    fn serve(&self, from: NodeId, kind: u16, head: &[u8], body: &[u8]) -> Result<Reply, Errno>;

    /// Gives up what is kept for `node`.
    fn gone(&self, node: NodeId);

    /// The daemon of `node` has been started again: it doesn't know what it kept for this node.
    ///
    /// # Errors
    /// EHOSTDOWN: it is gone already.
    fn anew(&self, node: NodeId) -> Result<(), Errno>;
}

/// Between two looks at the locks that programs of this node have on others: an eighth of the
/// lease, within these.
const SHORTEST_TICK: Duration = Duration::from_millis(50);
const LONGEST_TICK: Duration = Duration::from_secs(5);

/// The store of this node.
struct Store {
    pool: Arc<Pool>,
    server: Server,
    teller: Arc<Teller>,
    capacity: Capacity,
}

impl Serve for Store {
    fn class(&self, kind: u16) -> Option<Class> {
        match kind {
            ABOUT => Some(Class::Leaf),
            // It asks all others.
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
            return self.teller.tell(&self.pool);
        }
        if kind == CAPACITY {
            return self.capacity.tell(&self.teller.core()?, &self.pool);
        }
        self.server
            .serve(&self.pool.cluster(), from, kind, head, body)
    }

    fn gone(&self, node: NodeId) {
        self.server.gone(&self.pool.cluster(), node);
    }

    fn anew(&self, node: NodeId) -> Result<(), Errno> {
        let lost = self.pool.cluster().open_again(node)?;
        if lost > 0 {
            eprintln!(
                "forebay keeper: node {} was started anew: {lost} file(s) that are open here are gone there",
                node.0
            );
        }
        Ok(())
    }
}

/// Looks now and then whether other nodes still have open what is kept open for them.
fn check_open(dir: &Path, store: Weak<Store>) -> Result<(), PoolError> {
    let check = move || {
        loop {
            std::thread::sleep(BETWEEN_CHECKS);
            let Some(store) = store.upgrade() else { return };
            // What fails is tried again.
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

/// Tells other nodes, often enough, that this one's programs still have locks there.
fn keep_locks(dir: &Path, store: Weak<Store>, lease: Duration) -> Result<(), PoolError> {
    let tick = (lease / 8).clamp(SHORTEST_TICK, LONGEST_TICK);
    let renew = move || {
        // Each home has its thread: one that doesn't answer holds nobody else up.
        let asked: Arc<Mutex<HashSet<NodeId>>> = Arc::default();
        loop {
            std::thread::sleep(tick);
            let Some(store) = store.upgrade() else { return };
            // What can't be found out now is at the next tick.
            let leased = store.pool.cluster().leased().unwrap_or_default();
            for (home, files) in leased {
                if !core::lock(&asked).insert(home) {
                    continue;
                }
                let (store, at_it) = (store.clone(), asked.clone());
                let ask = move || {
                    // If it isn't there, the lease goes on running out.
                    let _ = store.pool.cluster().renew_leases(home, &files);
                    core::lock(&at_it).remove(&home);
                };
                let thread = std::thread::Builder::new().name("fb-lease".into());
                if thread.spawn(ask).is_err() {
                    core::lock(&asked).remove(&home);
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

/// Which node of which pool a daemon is for.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The pool.
    pub pool: PoolId,
    /// Its number.
    pub node: NodeId,
    /// How many there are.
    pub nodes: u32,
}

/// What a transport is to be made for.
pub struct Network<'a> {
    /// The pool.
    pub pool: PoolId,
    /// This node.
    pub node: NodeId,
    /// The pool's key.
    pub key: PoolKey,
    /// How the daemon works.
    pub options: &'a Options,
    /// The port that other nodes know; 0: none.
    pub port: u16,
    /// What serves other nodes.
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
    // Others know the port it had; who was killed a moment ago may still have it.
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
    /// There was a map before: other nodes may know us by other addresses.
    again: bool,
}

fn network(e: forebay_net::Error) -> PoolError {
    PoolError::Daemon(e.to_string())
}

impl Daemon {
    /// Makes the daemon of the node in `dir` and listens. Nobody is served yet.
    ///
    /// # Errors
    /// If the node can't be opened, has a daemon already, has no key, or no address can be listened
    /// on.
    pub fn listen(dir: &Path, options: Options) -> Result<Daemon, PoolError> {
        Daemon::listen_over(dir, options, tcp)
    }

    /// As [`Daemon::listen`], over the transport that `start` makes; for simulations.
    ///
    /// # Errors
    /// As there.
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
        let teller = Arc::new(Teller::default());
        let mut daemon = Daemon::begin(dir, identity, options, start, |others| {
            let pool = Arc::new(Pool::open_dir_among(dir, others)?);
            opened = Some(pool.clone());
            let store = Arc::new(Store {
                pool,
                server: Server::default(),
                teller: teller.clone(),
                capacity: Capacity::default(),
            });
            store.server.set_lease(lease);
            check_open(dir, Arc::downgrade(&store))?;
            keep_locks(dir, Arc::downgrade(&store), lease)?;
            Ok(store)
        })?;
        if let Some(pool) = &opened {
            let nodes = pool.store().nodes_with_locks();
            nodes.iter().for_each(|node| daemon.core.has_met(*node));
        }
        daemon.pool = opened;
        teller.set(Arc::downgrade(&daemon.core));
        Ok(daemon)
    }

    /// As [`Daemon::listen`], with something else than a store to be served; for tests.
    ///
    /// # Errors
    /// As there.
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
        let desk = RequestServer::open(dir).map_err(|e| match e {
            Errno::BUSY => PoolError::Daemon(format!("{} has a daemon already", dir.display())),
            e => io("can't open the file 'requests' in", e),
        })?;
        // The desk's lock is held: no other daemon has the records.
        let records = Replies::open(dir).map_err(|e| io("can't open the file 'replies' in", e))?;
        let key = PoolKey::read(&dir.join("key")).map_err(network)?;
        let before = read_map(dir);
        let nodes = match &before {
            Some(map) => map.nodes().iter().map(|n| n.number).collect(),
            None => (0..identity.nodes).map(NodeId).collect(),
        };
        let incarnation = new_incarnation().map_err(|e| io("no random numbers for", e))?;
        let (me, maps) = (identity.node, Maps::new(dir));
        let core = Arc::new(Core::new(me, incarnation, options, (desk, records), maps));
        let direct = Arc::new(Direct::new(me, nodes));
        direct.set(Arc::downgrade(&core));
        let _ = core.serve.set(serve(direct)?);

        let own = before.as_ref().and_then(|map| map.node(me));
        let transport = start(Network {
            pool: identity.pool,
            node: me,
            key,
            options: &core.options,
            port: own.and_then(|n| n.addresses.first()).map_or(0, |a| a.port),
            handler: Arc::new(Home(Arc::downgrade(&core))),
        });
        let _ = core.transport.set(transport.map_err(network)?);
        Ok(Daemon {
            core,
            pool: None,
            dispatcher: Mutex::default(),
            again: before.is_some(),
        })
    }

    /// Where other nodes can reach it.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.core
            .transport
            .get()
            .map_or(Vec::new(), |t| t.addresses())
    }

    /// The node that it serves; None in tests.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.pool.as_ref()
    }

    /// Begins to serve: other nodes, and this node's processes. If it listens elsewhere than `map`
    /// says, others are told.
    ///
    /// # Errors
    /// If the map is of another pool, or can't be written.
    pub fn serve(&self, map: Arc<PoolMap>) -> Result<(), PoolError> {
        let core = &self.core;
        let Some(me) = map.node(core.me) else {
            let why = format!("node {} isn't in the pool's map", core.me.0);
            return Err(PoolError::Daemon(why));
        };
        let bound = match &core.options.advertise[..] {
            [] => self.addresses(),
            others => others.to_vec(),
        };
        let own: Vec<Address> = match bound.iter().find(|a| a.ip().is_unspecified()) {
            // The map knows better by which addresses we are reached.
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
        core.maps.set_own(own);
        let moved = core
            .adopt(&map)
            .map_err(|e| PoolError::Daemon(format!("can't write the pool's map: {e}")))?;
        let weak = Arc::downgrade(core);
        let links = map.nodes().iter().filter(|n| n.number != core.me);
        let links = links.map(|n| (n.number, Link::new(&weak, n.number)));
        *core.links.write().unwrap_or_else(PoisonError::into_inner) = links.collect();
        core.begin_serving();
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let failed = |e| PoolError::Daemon(format!("a thread can't be started: {e}"));
        let (renewals, patience) = (core.renewals.clone(), core.options.patience);
        // It ends with the core, or at its end.
        thread("fb-renew")
            .spawn(move || renewals::run(&weak, &renewals, patience))
            .map_err(failed)?;
        core.desk.set_lease(core.options.gone_after);
        let left = core.desk.begin(core.options.patience);
        core.expect(&left);
        for taken in left {
            core.ask_for(taken);
        }
        let there = core.clone();
        let dispatcher = thread("fb-dispatch")
            .spawn(move || dispatch(&there))
            .map_err(failed)?;
        *self::core::lock(&self.dispatcher) = Some(dispatcher);
        if moved || self.again {
            // Where we are now, and what has changed meanwhile.
            core.all_links().iter().for_each(|link| link.watch());
        }
        Ok(())
    }

    /// How it stands with the other nodes.
    pub fn states(&self) -> Vec<NodeState> {
        self.core.states()
    }

    /// The pool's map as it is now.
    pub fn map(&self) -> Option<Arc<PoolMap>> {
        self.core.maps.get()
    }

    /// Ends it. Requests of processes that have no answer are left to the next daemon.
    pub fn shutdown(self) {}
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(dispatcher) = self::core::lock(&self.dispatcher).take() {
            let _ = dispatcher.join();
        }
    }
}

/// Takes what processes of this node ask.
fn dispatch(core: &Arc<Core>) {
    loop {
        let mut all = core.desk.wait();
        if core.stopped() {
            return;
        }
        // What is only told goes before what the same process has asked since, in one write with
        // it. Sending much takes a while; others needn't wait for it.
        all.sort_by_key(|t| match t.asked() {
            _ if t.is_told() => 0,
            Asked::Send(n) if n > SMALL_BODY => 2,
            _ => 1,
        });
        let told: Vec<NodeId> = all
            .iter()
            .filter(|t| t.is_told())
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

//! The state that all threads of a daemon share.

use super::home::{Served, Way};
use super::link::{Link, NodeState};
use super::maps::Maps;
use super::pending::{PendingRequest, Waiting};
use super::renewals::Renewals;
use super::reply_cache::{Nature, ReplyCache, Settled};
use super::wire::Hello;
use super::workers::Workers;
use super::{Options, Serve};
use crate::limits::Budget;
use forebay_client::requests::{Left, Replies, RequestServer, Taken};
use forebay_cluster::serve::Class;
use forebay_net::{Connection, Error, NodeId, Peer, Transport};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Thread names for the requests of each class, in the order of [`Class`], and the maximum number
/// of threads.
const THREADS: [(&str, usize); 5] = [
    ("fb-leaf", usize::MAX),
    ("fb-entry", usize::MAX),
    ("fb-composite", usize::MAX),
    ("fb-names", 1),
    ("fb-bulk", 16),
];
/// With a bandwidth limit, larger bodies are sent as separate messages, which can be delayed.
/// Bytes.
const INLINE_IF_LIMITED: usize = 1 << 10;

pub struct Core {
    pub me: NodeId,
    /// A number that differs after each start of the daemon.
    pub incarnation: u64,
    pub options: Options,
    pub request_server: RequestServer,
    pub maps: Maps,
    pub reply_cache: ReplyCache<Way>,
    /// Numbers of this node's unanswered requests to itself.
    pub own: Mutex<BTreeSet<u64>>,
    pub renewals: Arc<Renewals>,
    pub served: Served,
    /// Maximum size of a body that is sent in the head of a message. Bytes.
    pub inline: usize,
    pub transport: OnceLock<Arc<dyn Transport>>,
    pub serve: OnceLock<Arc<dyn Serve>>,
    pub links: RwLock<HashMap<NodeId, Arc<Link>>>,
    workers: [Arc<Workers>; 5],
    /// The last known incarnation of each other node's daemon; 0: none.
    known: Mutex<HashMap<NodeId, Arc<Mutex<u64>>>>,
    serving: AtomicBool,
    stopped: AtomicBool,
}

pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub fn new(
        me: NodeId,
        incarnation: u64,
        options: Options,
        (request_server, records): (RequestServer, (Replies, Vec<Left>)),
        maps: Maps,
    ) -> Core {
        let budget = Budget::of(&options.limits, options.cores);
        Core {
            me,
            incarnation,
            inline: match options.limits.bandwidth {
                Some(_) => INLINE_IF_LIMITED,
                None => super::wire::INLINE,
            },
            options,
            request_server,
            maps,
            reply_cache: ReplyCache::new(budget.remembered, records),
            own: Mutex::default(),
            renewals: Arc::default(),
            served: Served::new(&budget),
            transport: OnceLock::new(),
            serve: OnceLock::new(),
            links: RwLock::default(),
            workers: THREADS.map(|(name, most)| Workers::new(name, most.min(budget.threads))),
            known: Mutex::default(),
            serving: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }

    /// Writes a line to the keeper's log.
    pub fn log(&self, what: &str) {
        eprintln!("forebay keeper: {what}");
    }

    pub fn stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    pub fn begin_serving(&self) {
        self.serving.store(true, Release);
    }

    /// The request handler, once the daemon serves.
    pub fn serving(&self) -> Option<&Arc<dyn Serve>> {
        if !self.serving.load(Acquire) || self.stopped() {
            return None;
        }
        self.serve.get()
    }

    pub fn workers(&self, class: Class) -> &Arc<Workers> {
        match class {
            Class::Leaf => &self.workers[0],
            Class::Entry => &self.workers[1],
            Class::Composite => &self.workers[2],
            Class::Names => &self.workers[3],
            Class::Bulk => &self.workers[4],
        }
    }

    /// A node's name for messages to users.
    pub fn name_of(&self, node: NodeId) -> String {
        let map = self.maps.get();
        match map.as_ref().and_then(|map| map.node(node)) {
            Some(n) => format!("node {} ({})", node.0, n.name),
            None => format!("node {}", node.0),
        }
    }

    pub fn addresses_of(&self, node: NodeId) -> Vec<SocketAddr> {
        let map = self.maps.get();
        let node = map.as_ref().and_then(|map| map.node(node));
        node.map_or(Vec::new(), |n| {
            n.addresses.iter().map(|&a| a.into()).collect()
        })
    }

    pub fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        links.get(&node).cloned()
    }

    pub fn all_links(&self) -> Vec<Arc<Link>> {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        links.values().cloned().collect()
    }

    pub fn states(&self) -> Vec<NodeState> {
        let mut states: Vec<NodeState> = self.all_links().iter().map(|l| l.about()).collect();
        states.sort_by_key(|s| s.node);
        states
    }

    /// Connects to a peer.
    ///
    /// # Errors
    /// [`Error::Local`] without a network, or while the daemon ends; errors of the transport.
    pub fn connect(
        &self,
        peer: Peer,
        deadline: std::time::Instant,
    ) -> Result<Arc<dyn Connection>, Error> {
        match self.transport.get() {
            Some(transport) if !self.stopped() => transport.connect(peer, deadline),
            _ => Err(Error::Local("this node leaves".into())),
        }
    }

    pub fn hello(&self) -> Hello {
        let map = self.maps.get();
        Hello {
            incarnation: self.incarnation,
            epoch: map.as_ref().map_or(0, |m| m.epoch()),
            map: map.map_or(0, |m| m.encode().len() as u64),
            records: self.reply_cache.id(),
        }
    }

    /// Whether requests of this kind may be repeated, and whether they may take longer than the
    /// request timeout.
    fn sort_of(&self, kind: u16) -> (bool, bool) {
        let serve = self.serve.get();
        serve.map_or((false, false), |s| (s.repeatable(kind), s.is_long(kind)))
    }

    /// How a request of this kind may be repeated.
    pub fn nature(serve: &dyn Serve, kind: u16) -> Nature {
        Nature {
            repeatable: serve.repeatable(kind),
            recorded: serve.recorded(kind),
        }
    }

    // ---- requests of this node ----

    /// Sends the request of a process of this node.
    pub fn ask_for(self: &Arc<Self>, taken: Arc<Taken>) {
        let sort = self.sort_of(taken.kind());
        let request_timeout = self.options.request_timeout;
        let lazily = taken.is_one_way();
        self.ask(
            PendingRequest::of_cell(taken, sort, request_timeout),
            lazily,
        );
    }

    /// Registers requests that an earlier daemon left, and that have numbers, as not settled.
    pub fn expect(&self, left: &[Arc<Taken>]) {
        for taken in left.iter().filter(|t| t.number() != 0) {
            if taken.node() == self.me {
                lock(&self.own).insert(taken.number());
            } else if let Some(link) = self.link(taken.node()) {
                link.expect(taken.number());
            }
        }
    }

    /// Sends one-way requests to `node` that were waiting for another message.
    pub fn flush(&self, node: NodeId) {
        if let Some(connection) = self.link(node).and_then(|link| link.connection()) {
            connection.flush();
        }
    }

    /// Sends a request of this daemon.
    pub fn ask_here(self: &Arc<Self>, node: NodeId, kind: u16, waiting: Arc<Waiting>) {
        let sort = self.sort_of(kind);
        let request_timeout = self.options.request_timeout;
        let pending = PendingRequest::of_here(node, kind, sort, request_timeout, waiting);
        self.ask(pending, false);
    }

    fn ask(self: &Arc<Self>, pending: Arc<PendingRequest>, lazily: bool) {
        if pending.kind >= super::wire::OWN {
            return pending.fail(Errno::PROTO);
        }
        if pending.is_long {
            self.renewals.add(&pending);
        }
        if pending.node == self.me {
            return self.ask_myself(pending);
        }
        match self.link(pending.node) {
            Some(link) => link.post(pending, lazily),
            None => pending.fail(Errno::HOSTDOWN),
        }
    }

    /// Passes a request to this node's own store: this node is its home.
    fn ask_myself(self: &Arc<Self>, pending: Arc<PendingRequest>) {
        let Some(serve) = self.serving().cloned() else {
            return pending.fail(Errno::HOSTDOWN);
        };
        let Some(class) = serve.class(pending.kind) else {
            return pending.fail(Errno::PROTO);
        };
        // Like a remote request, this one may have been begun by an earlier daemon, so it needs a
        // number.
        let mut own = lock(&self.own);
        if pending.number() == 0 {
            pending.set_number(self.request_server.next_number());
        }
        own.insert(pending.number());
        let settled = Settled {
            lowest: own.first().copied().unwrap_or(0),
            upto: own.last().map_or(0, |last| last + 1),
            open: own.iter().copied().collect(),
        };
        drop(own);
        super::home::serve_own_request(self, &serve, class, pending, &settled);
    }

    // ---- other daemons ----

    fn known(&self, node: NodeId) -> Arc<Mutex<u64>> {
        lock(&self.known).entry(node).or_default().clone()
    }

    /// Called when the incarnation of `node`'s daemon has become known. If it isn't the first one,
    /// reports to that daemon what this node has open there. Files and locks that processes of
    /// `node` have here are kept: these processes are alive; `node` releases them for processes
    /// that have died meanwhile.
    pub fn met(&self, node: NodeId, incarnation: u64) {
        let before = std::mem::replace(&mut *lock(&self.known(node)), incarnation);
        if before != 0
            && before != incarnation
            && let Some(serve) = self.serve.get().cloned()
        {
            let work = move || {
                // If the node can't be reached, its next daemon gets the report.
                let _ = serve.restarted(node);
            };
            self.workers(Class::Composite).submit(Box::new(work));
        }
    }

    /// Called when `node` has sent a message: the node can be reached, even if an attempt to
    /// connect failed before.
    pub fn heard_from(&self, node: NodeId) {
        if let Some(link) = self.link(node) {
            link.heard();
        }
    }

    /// Called at the start for a node that an earlier daemon has met, and for which state is kept.
    pub fn has_met(&self, node: NodeId) {
        let known = self.known(node);
        let mut known = lock(&known);
        if *known == 0 {
            *known = u64::MAX;
        }
    }

    /// Called when the node has been out of reach for `gone_after`. Releases what it has here.
    pub fn gone(&self, node: NodeId) {
        let known = self.known(node);
        let mut known = lock(&known);
        if std::mem::take(&mut *known) != 0
            && let Some(serve) = self.serve.get().cloned()
        {
            let after: Duration = self.options.gone_after;
            self.log(&format!(
                "{} is given up after {:.0} s: what it held here is released",
                self.name_of(node),
                after.as_secs_f64()
            ));
            // This waits for earlier requests of the node, so a worker does it.
            let work = move || serve.gone(node);
            self.workers(Class::Composite).submit(Box::new(work));
        }
    }

    /// Stops the threads that wait or work.
    pub fn stop(&self) {
        self.stopped.store(true, Release);
        self.request_server.stop();
        self.renewals.stop();
        self.all_links().iter().for_each(|l| l.stop());
        if let Some(transport) = self.transport.get() {
            transport.shutdown();
        }
        self.workers.iter().for_each(|w| w.stop());
    }
}

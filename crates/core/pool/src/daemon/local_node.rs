//! This node, as the threads of its daemon share it: its settings, its map, the transport and the
//! handler of requests, the worker pools, and the incarnations of the other nodes' daemons.
//! [`LocalNode`] doesn't know the links to other nodes ([`super::link::Links`]), which are built on
//! it.

use super::maps::{Learned, Maps};
use super::wire::{self, Hello};
use super::workers::Workers;
use super::{Options, Serve};
use crate::limits::Budget;
use forebay_client::requests::RequestServer;
use forebay_cluster::serve::Class;
use forebay_net::{Connection, Error, NodeId, Peer, Transport};
use forebay_placement::PoolMap;
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Thread names for the requests of each class, in the order of [`Class`], and the maximum number
/// of threads.
const THREADS: [(&str, usize); 5] = [
    ("fb-leaf", usize::MAX),
    ("fb-entry", usize::MAX),
    ("fb-composite", usize::MAX),
    ("fb-names", 1),
    ("fb-bulk", 16),
];
/// Maximum size of a body that is sent in the head of a message, if bandwidth is limited. Larger
/// bodies are sent as separate messages, which can be delayed. Bytes.
const INLINE_IF_LIMITED: usize = 1 << 10;

pub struct LocalNode {
    pub me: NodeId,
    /// A number that differs after each start of the daemon.
    pub incarnation: u64,
    /// Id of the records of the reply cache.
    pub records: u64,
    pub options: Options,
    pub budget: Budget,
    pub request_server: RequestServer,
    pub maps: Maps,
    /// Maximum size of a body that is sent in the head of a message. Bytes.
    pub inline: usize,
    pub transport: OnceLock<Arc<dyn Transport>>,
    pub serve: OnceLock<Arc<dyn Serve>>,
    workers: [Arc<Workers>; 5],
    /// The last known incarnation of each other node's daemon; 0: none.
    known: Mutex<HashMap<NodeId, Arc<Mutex<u64>>>>,
    serving: AtomicBool,
    stopped: AtomicBool,
}

impl LocalNode {
    pub fn new(
        me: NodeId,
        incarnation: u64,
        records: u64,
        options: Options,
        request_server: RequestServer,
        maps: Maps,
    ) -> LocalNode {
        let budget = Budget::of(&options.limits, options.cores);
        LocalNode {
            me,
            incarnation,
            records,
            inline: match options.limits.bandwidth {
                Some(_) => INLINE_IF_LIMITED,
                None => wire::INLINE,
            },
            options,
            request_server,
            maps,
            transport: OnceLock::new(),
            serve: OnceLock::new(),
            workers: THREADS.map(|(name, most)| Workers::new(name, most.min(budget.threads))),
            budget,
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

    /// Connects to a peer.
    ///
    /// # Errors
    /// [`Error::Local`] without a network, or while the daemon ends; errors of the transport.
    pub fn connect(&self, peer: Peer, deadline: Instant) -> Result<Arc<dyn Connection>, Error> {
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
            records: self.records,
        }
    }

    /// Begins to use `map`, with this node's own addresses. Returns whether these differ from those
    /// in `map`.
    ///
    /// # Errors
    /// If the file `map` can't be written.
    pub fn adopt(&self, map: &PoolMap) -> Result<bool, Errno> {
        let changed = self.maps.adopt(map)?;
        self.request_server.map_changed();
        Ok(changed)
    }

    /// Merges the map that the daemon of `from` has sent. Returns whether the other nodes, the
    /// sender among them, need the result.
    pub fn learn(&self, theirs: PoolMap, from: NodeId) -> bool {
        let learned = self.maps.learn(theirs, from);
        if learned != Learned::Nothing {
            self.request_server.map_changed();
        }
        learned == Learned::More
    }

    fn known(&self, node: NodeId) -> Arc<Mutex<u64>> {
        lock(&self.known).entry(node).or_default().clone()
    }

    /// Records the incarnation of `node`'s daemon. If another incarnation was known before, reports
    /// to the new daemon what this node has open there. Files and locks that processes of `node`
    /// have here are kept, since these processes are alive; for processes that have died meanwhile,
    /// `node` releases them.
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

    /// Records that an earlier daemon has met `node`, and has left state that is kept for `node`.
    /// Called at the start.
    pub fn has_met(&self, node: NodeId) {
        let known = self.known(node);
        let mut known = lock(&known);
        if *known == 0 {
            *known = u64::MAX;
        }
    }

    /// Releases the files and locks that `node` has here. Called when the node has been out of
    /// reach for `gone_after`.
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
            // `Serve::gone` waits for earlier requests of the node, so a worker calls it.
            let work = move || serve.gone(node);
            self.workers(Class::Composite).submit(Box::new(work));
        }
    }

    /// Makes the daemon serve no new requests, and make no more connections. Called before
    /// [`LocalNode::stop`].
    pub fn begin_stop(&self) {
        self.stopped.store(true, Release);
        self.request_server.stop();
    }

    /// Closes the connections and stops the workers.
    pub fn stop(&self) {
        if let Some(transport) = self.transport.get() {
            transport.shutdown();
        }
        self.workers.iter().for_each(|w| w.stop());
    }
}

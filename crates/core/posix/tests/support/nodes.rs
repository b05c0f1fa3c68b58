//! Pools of several nodes in one process. Each node has its store, and sends a request to another
//! node by calling the function that the other node's daemon would call. So all operations over
//! several nodes are tested, without networks.

use super::{Limit, TestPool};
use forebay_client::Pool;
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, PeerReply, PeerRequest as Asked, Peers};
use forebay_cluster::serve::{Reply, Server};
use forebay_placement::{Claim, NodeId, Slices, Slot};
use forebay_posix::{Errno, Fs};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A request: kind, head, bytes.
pub type PeerRequest = (u16, Vec<u8>, Vec<u8>);

/// A function that is called in the middle of an operation: before or after its n-th request.
pub struct Between {
    pub at: usize,
    pub behind: bool,
    pub what: Box<dyn FnOnce()>,
}

thread_local! {
    /// Counts down with each request that this thread sends.
    static BETWEEN: RefCell<Option<Between>> = const { RefCell::new(None) };
}

/// Makes this thread call `between` in the middle of its next operation.
pub fn set_between(between: Between) {
    BETWEEN.set(Some(between));
}

/// Cancels [`set_between`]. Returns whether the function wasn't called.
pub fn end_between() -> bool {
    BETWEEN.take().is_some()
}

/// Counts a request. Returns the function if it is to be called at this request.
fn count_between() -> Option<Between> {
    BETWEEN.with_borrow_mut(|between| {
        let b = between.as_mut()?;
        b.at -= 1;
        match b.at {
            0 => between.take(),
            _ => None,
        }
    })
}

/// The state that the nodes of a pool share.
pub struct Together {
    slices: Slices,
    numbers: Vec<NodeId>,
    pools: OnceLock<Vec<Arc<Pool>>>,
    pub servers: Vec<Server>,
    /// Number of requests sent so far.
    pub asked: AtomicUsize,
    /// Number of those requests that don't wait for a reply.
    pub one_way: AtomicUsize,
    /// For each node: number of requests that it has sent, and number of bytes that were sent with
    /// them or received with the replies.
    pub traffic: Vec<[AtomicUsize; 2]>,
    /// Number of the request at which the process is killed; 0: none.
    pub kill_at: AtomicUsize,
    /// Whether the process is killed after the request `kill_at` is carried out, not before.
    pub kill_behind: AtomicBool,
    /// A node that can't be reached; `usize::MAX`: none.
    pub down: AtomicUsize,
    /// [`Peers::lease`] of all nodes, in milliseconds; 0: none.
    pub lease: AtomicUsize,
    /// [`Peers::has_orphans`] of all nodes.
    pub orphans: AtomicBool,
    /// The requests sent so far; None: they aren't recorded.
    pub kept: Mutex<Option<Vec<PeerRequest>>>,
}

impl Together {
    /// The node that has `slot`.
    pub fn node_of(&self, slot: Slot) -> NodeId {
        self.slices.node_of(slot)
    }
}

/// Sends requests of one node to the others.
struct Near {
    me: NodeId,
    all: Arc<Together>,
}

impl Peers for Near {
    fn this_node(&self) -> NodeId {
        self.me
    }

    fn node_of(&self, slot: Slot) -> NodeId {
        self.all.slices.node_of(slot)
    }

    fn slot_here(&self, hash: u64) -> Option<Slot> {
        self.all.slices.slot_on(self.me, hash)
    }

    fn nodes(&self) -> &[NodeId] {
        &self.all.numbers
    }

    fn has_orphans(&self) -> bool {
        self.all.orphans.load(SeqCst)
    }

    fn lease(&self) -> Option<Duration> {
        let lease = self.all.lease.load(SeqCst);
        (lease != 0).then(|| Duration::from_millis(lease as u64))
    }

    unsafe fn ask(
        &self,
        node: NodeId,
        kind: u16,
        head: &[u8],
        bytes: Bytes,
    ) -> Result<PeerReply, Errno> {
        let n = self.all.asked.fetch_add(1, SeqCst) + 1;
        let last = n == self.all.kill_at.load(SeqCst);
        let kill = |now: bool| {
            if last && now {
                // SAFETY: the call takes no pointers; it only ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        };
        let behind = self.all.kill_behind.load(SeqCst);
        kill(!behind);
        let mut between = count_between();
        if let Some(b) = between.take_if(|b| !b.behind) {
            (b.what)();
        }
        if node.0 as usize == self.all.down.load(SeqCst) {
            return Err(Errno::HOSTDOWN);
        }
        assert!(head.len() <= MAX_HEAD);
        let body = match bytes {
            // SAFETY: the caller of `ask` promises that bytes to be sent are readable.
            Bytes::Send(from, n) if n > 0 => unsafe { std::slice::from_raw_parts(from, n) },
            _ => &[],
        };
        assert!(body.len() <= MAX_BODY);
        let [requests, bytes_moved] = &self.all.traffic[self.me.0 as usize];
        requests.fetch_add(1, SeqCst);
        bytes_moved.fetch_add(body.len(), SeqCst);
        if let Some(kept) = &mut *self.all.kept.lock().unwrap() {
            kept.push((kind, head.to_vec(), body.to_vec()));
        }
        let pool = &self.all.pools.get().expect("all are there")[node.0 as usize];
        let server = &self.all.servers[node.0 as usize];
        let reply = server.serve(&pool.cluster(), self.me, kind, head, body);
        kill(behind);
        if let Some(b) = between {
            (b.what)();
        }
        let reply = reply?;
        assert!(reply.head.len() <= MAX_HEAD && reply.body.len() <= MAX_BODY);
        let received = match bytes {
            Bytes::Receive(to, room) => {
                assert!(reply.body.len() <= room);
                // SAFETY: the caller of `ask` promises that `room` bytes are writable from `to` on.
                unsafe { to.copy_from(reply.body.as_ptr(), reply.body.len()) };
                reply.body.len()
            }
            _ => 0,
        };
        bytes_moved.fetch_add(received, SeqCst);
        Ok(PeerReply {
            head: reply.head,
            received,
        })
    }

    unsafe fn ask_all(&self, requests: &[Asked<'_>]) -> Vec<Result<PeerReply, Errno>> {
        // SAFETY: the caller promises that the bytes of each request are valid.
        let ask = |q: &Asked<'_>| unsafe { self.ask(q.node, q.kind, q.head, q.bytes) };
        requests.iter().map(ask).collect()
    }

    fn tell(&self, node: NodeId, kind: u16, head: &[u8]) {
        self.all.one_way.fetch_add(1, SeqCst);
        // SAFETY: without bytes, no address has to be valid.
        let _ = unsafe { self.ask(node, kind, head, Bytes::None) };
    }

    fn after_fork_in_child(&self) {}
}

/// A pool of several nodes.
pub struct Nodes {
    pub views: Vec<Fs>,
    pub together: Arc<Together>,
    pub dirs: Vec<PathBuf>,
    // These pools remove their directories when they are dropped, which is after `views`.
    pub pools: Vec<TestPool>,
    _limit: Limit,
}

impl Nodes {
    /// A pool of `n` nodes with these media each.
    pub fn new(name: &str, n: u32, media: &[&str], seconds: u64) -> Nodes {
        Nodes::ruled(name, n, media, "", seconds)
    }

    /// As [`Nodes::new`], with these rules.
    pub fn ruled(name: &str, n: u32, media: &[&str], rules: &str, seconds: u64) -> Nodes {
        let made: Vec<TestPool> = (0..n)
            .map(|k| TestPool::ruled(&format!("{name}.{k}"), media, rules, seconds))
            .collect();
        let dirs = made.iter().map(|p| p.pool().dir().to_owned()).collect();
        let mut nodes = Nodes::open(dirs, seconds);
        nodes.pools = made;
        nodes
    }

    /// The pool whose nodes have these directories.
    pub fn open(dirs: Vec<PathBuf>, seconds: u64) -> Nodes {
        let numbers: Vec<NodeId> = (0..dirs.len() as u32).map(NodeId).collect();
        let claims = numbers.iter().map(|&n| (n, Claim::Weight(1))).collect();
        let together = Arc::new(Together {
            slices: Slices::new(&claims).unwrap(),
            servers: numbers.iter().map(|_| Server::default()).collect(),
            numbers,
            pools: OnceLock::new(),
            asked: AtomicUsize::new(0),
            one_way: AtomicUsize::new(0),
            traffic: dirs.iter().map(|_| Default::default()).collect(),
            kill_at: AtomicUsize::new(0),
            kill_behind: AtomicBool::new(false),
            orphans: AtomicBool::new(false),
            down: AtomicUsize::new(usize::MAX),
            lease: AtomicUsize::new(0),
            kept: Mutex::new(None),
        });
        let pools: Vec<Arc<Pool>> = dirs
            .iter()
            .zip(&together.numbers)
            .map(|(dir, &me)| {
                let all = together.clone();
                let near = Arc::new(Near { me, all });
                Arc::new(Pool::open_dir(dir).unwrap().among(near))
            })
            .collect();
        let views = pools.iter().map(|p| Fs::new(p.clone())).collect();
        assert!(together.pools.set(pools).is_ok());
        Nodes {
            views,
            together,
            dirs,
            pools: Vec::new(),
            _limit: Limit::new("nodes", seconds),
        }
    }

    /// The view of a program on node `k`, which may buffer writes.
    pub fn program(&self, k: usize) -> Fs {
        let pools = self.together.pools.get().expect("all are there");
        Fs::for_program(pools[k].clone())
    }

    /// The reply of node `k` to a request of node 0.
    pub fn serve(&self, k: usize, kind: u16, head: &[u8], body: &[u8]) -> Result<Reply, Errno> {
        let cluster = self.views[k].cluster();
        self.together.servers[k].serve(&cluster, NodeId(0), kind, head, body)
    }

    /// Makes node `k` give up `node`, as when `node` was unreachable for long.
    pub fn give_up(&self, k: usize, node: u32) {
        let cluster = self.views[k].cluster();
        self.together.servers[k].gone(&cluster, NodeId(node));
    }

    /// Does what the daemons do after processes, or daemons, have died. Returns how much work is
    /// left.
    pub fn recover(&self) -> usize {
        let mut left = 0;
        for view in &self.views {
            view.store().recovery().reap().unwrap();
        }
        self.views[0].cluster().namespace().begin_names().unwrap();
        for view in &self.views {
            left += view.cluster().namespace().settle_notes().unwrap();
            view.store().recovery().put_in_order().unwrap();
        }
        left
    }

    /// Does the daemons' work after striped files were removed.
    pub fn drop_parts(&self) {
        for view in &self.views {
            view.cluster().namespace().settle_notes().unwrap();
        }
    }

    /// Fails unless all stores are whole and agree with each other.
    pub fn assert_whole(&self) {
        self.drop_parts();
        for (k, view) in self.views.iter().enumerate() {
            let findings = forebay_store::fsck::check(view.store()).unwrap();
            assert!(findings.is_empty(), "node {k} is damaged: {findings:#?}");
            let across = view.cluster().checks().inspect_across().unwrap().findings;
            assert!(across.is_empty(), "node {k} doesn't fit: {across:#?}");
        }
    }

    /// Bytes in use on all nodes.
    pub fn used(&self) -> u64 {
        let of = |v: &Fs| v.pool().usage().iter().map(|u| u.used).sum::<u64>();
        self.views.iter().map(of).sum()
    }
}

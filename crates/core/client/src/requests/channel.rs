//! The requesters' side of the request cells: through it a process's store sends requests to peers.
//!
//! Runs inside any program: on any thread, in forked children, and in vfork children. A vfork child
//! runs in its parent's memory but has cells of its own: the owner of a cell is a process id, which
//! is read from the kernel each time. No lock is held while waiting.

use super::cell::{CLAIMED, Claim, DONE, HELD, POSTED, TAKEN};
use super::region::{Shared, random};
use super::{clock, unreachable_in};
use forebay_cluster::peers::requests::changes_names;
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, PeerReply, PeerRequest, Peers, Sent};
use forebay_placement::{NodeId, PoolMap, Slot};
use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, futex, spin_loop};
use forebay_runtime::guard;
use forebay_store::process::{self, ProcessLock};
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// How much earlier than the requester's own deadline the daemon abandons a request, so that the
/// requester still receives the daemon's error, which may name the node that is down. Nanoseconds.
const EARLY_REPORT: u64 = 300_000_000;
/// Maximum time a waiting thread sleeps before it checks the clock again.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a thread spins for a reply before it sleeps. A reply in that time saves the daemon a
/// wake-up. Nanoseconds.
const SPIN: u64 = 40_000;
/// Two readings of the clock while spinning that are further apart than this mean that other tasks
/// had the core. Nanoseconds.
const PREEMPTED: u64 = 20_000;
/// How long no thread spins after other tasks had the core. Nanoseconds.
const NO_SPIN: u64 = 50_000_000;
/// After `MISSES` spins in a row without a reply, only one request in `ONE_IN` spins.
const MISSES: u32 = 4;
const ONE_IN: u32 = 32;
/// Maximum number of one caller's requests in progress.
const MAX_CALLER_REQUESTS: usize = 64;
/// Minimum time between two messages of a process about the same node. Nanoseconds.
const REPORT_INTERVAL: u64 = 60_000_000_000;

/// A random number that distinguishes this program from the process's program before exec; 0: not
/// set yet.
static IMAGE: AtomicU64 = AtomicU64::new(0);

/// Sends requests to peers, for a process of this node.
pub struct Channel {
    shared: Shared,
    me: NodeId,
    nodes: Vec<NodeId>,
    map_path: PathBuf,
    map: AtomicPtr<PoolMap>,
    /// The version of the map that was loaded last.
    version: AtomicU32,
    loading: ProcessLock,
    /// Owner word of the process that sent the last request.
    owner: AtomicU64,
    /// Number of spins without a reply since the last successful one, and the time until which no
    /// thread spins.
    misses: AtomicU32,
    no_spin_until: AtomicU64,
}

impl Channel {
    /// Opens the channel for a process of node `me`, in a pool of `nodes` nodes. That node's
    /// directory is `dir`.
    ///
    /// # Errors
    /// EINVAL if the file `requests` isn't of this version; errors of open and mmap.
    pub fn open(dir: &Path, me: NodeId, nodes: u32) -> Result<Channel> {
        let shared = Shared::open(dir)?;
        if IMAGE.load(Relaxed) == 0 {
            let _ = IMAGE.compare_exchange(0, random()?, Relaxed, Relaxed);
        }
        let mut channel = Channel {
            shared,
            me,
            nodes: (0..nodes).map(NodeId).collect(),
            map_path: dir.join("map"),
            map: AtomicPtr::new(std::ptr::null_mut()),
            version: AtomicU32::new(0),
            loading: ProcessLock::new(),
            owner: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            no_spin_until: AtomicU64::new(0),
        };
        // Without its start time, this process couldn't be distinguished from a later one with the
        // same id.
        let own = process::own_word()?;
        channel.owner.store(own, Relaxed);
        channel.shared.reclaim_own(own, IMAGE.load(Relaxed));
        if let Some(map) = channel.map() {
            channel.nodes = map.nodes().iter().map(|n| n.number).collect();
        }
        Ok(channel)
    }

    /// This process's owner word.
    fn owner(&self) -> u64 {
        let known = self.owner.load(Relaxed);
        if known != 0 && process::pid_of(known) == process::pid() {
            return known;
        }
        // Reached only in a forked child, to which no error can be returned.
        let own = process::own_word_or_id();
        self.owner.store(own, Relaxed);
        own
    }

    /// The pool map; None until there is one.
    fn map(&self) -> Option<&PoolMap> {
        if self.shared.header().map.load(Acquire) != self.version.load(Acquire) {
            self.load_map();
        }
        // SAFETY: the map was made from a box. It isn't dropped before the channel, since other
        // threads may be using it.
        unsafe { self.map.load(Acquire).as_ref() }
    }

    #[cold]
    fn load_map(&self) {
        let _one = self.loading.hold();
        let version = self.shared.header().map.load(Acquire);
        if version == self.version.load(Acquire) {
            return;
        }
        let read = std::fs::read(&self.map_path).ok();
        let Some(new) = read.and_then(|bytes| PoolMap::decode(&bytes).ok()) else {
            // The map exists but can't be read now (perhaps no descriptor is free); the next call
            // tries again.
            return;
        };
        // SAFETY: the pointer is null, or made from a box that isn't dropped before the channel.
        let old = unsafe { self.map.load(Acquire).as_ref() };
        // Only the slices are needed here; addresses are for the daemon. The old map stays in
        // memory, since other threads may be using it.
        if old.is_none_or(|old| old.slices() != new.slices()) {
            self.map.store(Box::into_raw(Box::new(new)), Release);
        }
        self.version.store(version, Release);
    }

    fn until(&self) -> u64 {
        clock() + u64::from(self.shared.header().request_timeout.load(Relaxed)) * 1_000_000
    }

    /// Copies a request into a cell. The cell belongs to this thread until it is posted.
    ///
    /// # Safety
    /// `request.bytes` must be readable.
    unsafe fn fill(&self, index: usize, request: &PeerRequest<'_>, until: u64) -> Result<()> {
        assert!(
            request.head.len() <= MAX_HEAD,
            "the head of a request has a limit"
        );
        debug_assert_eq!(
            self.shared.cell(index).state.load(Relaxed),
            CLAIMED,
            "a cell that is filled was claimed: {index}"
        );
        let (way, len) = match request.bytes {
            Bytes::None => (0, 0),
            Bytes::Send(_, len) => (1, len),
            Bytes::Receive(_, len) => (2, len),
        };
        self.shared.reserve(index, len)?;
        let cell = self.shared.cell(index);
        let head = request.head;
        // SAFETY: `ask` has checked that the area has space for the head; it belongs to this
        // thread.
        unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), self.shared.head_at(index), head.len())
        };
        if let Bytes::Send(from, len) = request.bytes {
            let to = self.shared.body_at(index, len).ok_or(Errno::INVAL)?;
            // SAFETY: the cell's body area has `len` bytes and belongs to this thread. If the
            // program's bytes aren't mapped, `copy` returns false.
            if !unsafe { guard::copy(from, to, len) } {
                return Err(Errno::FAULT);
            }
        }
        cell.node.store(request.node.0, Relaxed);
        cell.kind.store(request.kind.into(), Relaxed);
        cell.way.store(way, Relaxed);
        cell.head.store(head.len() as u32, Relaxed);
        cell.body.store(len as u32, Relaxed);
        let left = until.saturating_sub(clock());
        let deadline = until - EARLY_REPORT.min(left / 10);
        cell.deadline.store(deadline, Relaxed);
        cell.number.store(0, Relaxed);
        cell.sent_to.store(0, Relaxed);
        cell.traced.store(forebay_trace::request(), Relaxed);
        cell.sleeps.store(0, Relaxed);
        Ok(())
    }

    /// Posts a filled cell. The caller must ring the bell.
    fn post(&self, index: usize) {
        let posted = self.shared.cell(index).pass(CLAIMED, POSTED);
        debug_assert!(posted, "a cell that is posted was claimed: {index}");
        let word = &self.shared.header().posted[index / 64];
        word.fetch_or(1 << (index % 64), SeqCst);
    }

    /// Spins for the reply for a moment, unless another task needs the core.
    fn spin(&self, is_done: &dyn Fn() -> bool) -> bool {
        let begin = clock();
        let misses = self.misses.load(Relaxed);
        let seldom = misses >= MISSES && !misses.is_multiple_of(ONE_IN);
        if seldom || begin < self.no_spin_until.load(Relaxed) {
            self.misses.fetch_add(1, Relaxed);
            return is_done();
        }
        let mut before = begin;
        while before - begin < SPIN {
            for _ in 0..20 {
                if is_done() {
                    self.misses.store(0, Relaxed);
                    return true;
                }
                spin_loop();
            }
            std::thread::yield_now();
            let now = clock();
            if now - before > PREEMPTED {
                self.no_spin_until.store(now + NO_SPIN, Relaxed);
                break;
            }
            before = now;
        }
        self.misses.fetch_add(1, Relaxed);
        false
    }

    /// Waits for the reply. Returns false if it hasn't come by `until`, or by a later deadline that
    /// the daemon has set since the peer reported progress.
    fn wait(&self, index: usize, until: u64) -> bool {
        let cell = self.shared.cell(index);
        if self.spin(&|| cell.state.load(Acquire) & !HELD == DONE) {
            return true;
        }
        loop {
            cell.sleeps.store(1, SeqCst);
            let state = cell.state.load(SeqCst);
            if state & !HELD == DONE {
                return true;
            }
            let end = match cell.deadline.load(Acquire) {
                renewed if renewed > until => renewed.saturating_add(EARLY_REPORT),
                _ => until,
            };
            let left = end.saturating_sub(clock());
            if left == 0 {
                return false;
            }
            let _ = futex::wait(
                &cell.state,
                state,
                CLOCK_CHECK_INTERVAL.min(Duration::from_nanos(left)),
            );
        }
    }

    /// Handles a timeout and returns its error. If this node's daemon is dead or stopped, or hasn't
    /// even taken the request, all requests fail at once from now on, until the daemon takes
    /// requests again.
    #[cold]
    fn gave_up(&self, index: usize) -> Errno {
        let cell = self.shared.cell(index);
        let daemon = self.shared.header().daemon.load(Acquire);
        let is_taken = cell.state.load(Acquire) & !HELD == TAKEN;
        if is_taken && process::runs(daemon) && !process::is_stopped(process::pid_of(daemon)) {
            return self.report_down(NodeId(cell.node.load(Relaxed)));
        }
        self.shared.header().missing.store(1, Release);
        // Makes the daemon check its cells again, if it is alive.
        self.shared.ring();
        self.report_down(self.me)
    }

    /// Returns the result of a request to `node`. If this node has lost its locks on `node`, first
    /// reports that to the user, since no errno says so, and returns EIO.
    fn report<T>(&self, node: NodeId, answer: Result<T>) -> Result<T> {
        if matches!(answer, Err(Errno::OWNERDEAD)) {
            self.report_fenced(node);
            return Err(Errno::IO);
        }
        answer
    }

    #[cold]
    fn report_fenced(&self, node: NodeId) {
        static REPORTED: AtomicU64 = AtomicU64::new(0);
        let (now, last) = (clock().max(1), REPORTED.load(Relaxed));
        let due = last == 0 || now.saturating_sub(last) > REPORT_INTERVAL;
        if due
            && REPORTED
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok()
        {
            process::write_notice(format_args!(
                "node {node} couldn't reach this node for long and has released its file locks: a file that was locked gives EIO until all programs here have closed it"
            ));
        }
    }

    /// Reports to the user which node is down, since the errno doesn't name the node. Returns the
    /// error of the request, EHOSTDOWN.
    #[cold]
    fn report_down(&self, node: NodeId) -> Errno {
        self.tell_down(node);
        Errno::HOSTDOWN
    }

    fn tell_down(&self, node: NodeId) {
        /// When each node was last reported; 0: never. Nodes may share an entry.
        static REPORTED: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
        let header = self.shared.header();
        let daemon = header.daemon.load(Acquire);
        let served = process::runs(daemon);
        let answers = served && header.missing.load(Acquire) == 0;
        let node = if answers { node } else { self.me };
        let (now, reported) = (clock().max(1), &REPORTED[node.0 as usize % REPORTED.len()]);
        let last = reported.load(Relaxed);
        let due = last == 0 || now.saturating_sub(last) > REPORT_INTERVAL;
        if !due
            || reported
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_err()
        {
            return;
        }
        if !served {
            return process::write_notice(format_args!(
                "the daemon of this node is dead: start it again with: forebay node restart {node}"
            ));
        }
        if node == self.me {
            let pid = process::pid_of(daemon);
            return if process::is_stopped(pid) {
                process::write_notice(format_args!(
                    "the daemon of this node (process {pid}) is stopped, so other nodes are out of reach: let it go on with: forebay node resume {node}"
                ));
            } else {
                process::write_notice(format_args!(
                    "the daemon of this node (process {pid}) doesn't answer, so other nodes are out of reach until it does; start it again with: forebay node restart {node}"
                ));
            };
        }
        let name = self.map().and_then(|map| map.node(node));
        let name = name.map_or("?", |node| node.name.as_str());
        process::write_notice(format_args!(
            "node {node} ({name}) doesn't answer: what lies there is out of reach until it does; forebay status says more"
        ));
    }

    /// Copies the reply out of a cell.
    ///
    /// # Safety
    /// `bytes` must be writable.
    unsafe fn collect(&self, index: usize, bytes: Bytes) -> Result<PeerReply> {
        let cell = self.shared.cell(index);
        let len = cell.answer.load(Relaxed) as usize;
        match cell.status.load(Relaxed) {
            0 => {}
            status @ 1..4096 => {
                let error = Errno::from_raw_os_error(status as i32);
                if error == Errno::HOSTDOWN {
                    let asked = NodeId(cell.node.load(Relaxed));
                    let named = (len == 4).then(|| {
                        // SAFETY: the head area has `len` bytes, and belongs to this thread.
                        unsafe { std::slice::from_raw_parts(self.shared.head_at(index), len) }
                    });
                    let named = named.and_then(unreachable_in);
                    return Err(self.report_down(named.unwrap_or(asked)));
                }
                return Err(error);
            }
            _ => return Err(Errno::PROTO),
        }
        let received = cell.received.load(Relaxed) as usize;
        let room = match bytes {
            Bytes::Receive(_, room) => room,
            _ => 0,
        };
        if len > MAX_HEAD || received > room {
            return Err(Errno::PROTO);
        }
        // SAFETY: the head area has `len` bytes, and belongs to this thread.
        let head = unsafe { std::slice::from_raw_parts(self.shared.head_at(index), len) }.to_vec();
        if let Bytes::Receive(to, room) = bytes
            && received > 0
        {
            let from = self.shared.body_at(index, room).ok_or(Errno::PROTO)?;
            // SAFETY: the cell's body area has `received` bytes and belongs to this thread. If the
            // program's buffer isn't mapped, `copy` returns false.
            if !unsafe { guard::copy(from, to, received) } {
                return Err(Errno::FAULT);
            }
        }
        Ok(PeerReply { head, received })
    }

    /// Posts a request in a claimed cell. The caller must ring the bell.
    ///
    /// # Safety
    /// The request's bytes must be readable.
    unsafe fn put(&self, index: usize, request: &PeerRequest<'_>, until: u64) -> Result<Mine<'_>> {
        let shared = &self.shared;
        let mine = Mine { shared, index };
        // SAFETY: the caller promises that the request's bytes are readable.
        unsafe { self.fill(index, request, until)? };
        self.post(index);
        Ok(mine)
    }

    /// Waits for the reply and copies it out of the cell.
    ///
    /// # Safety
    /// The request's bytes must be writable.
    unsafe fn take(
        &self,
        mine: &Mine<'_>,
        request: &PeerRequest<'_>,
        until: u64,
    ) -> Result<PeerReply> {
        if !self.wait(mine.index, until) {
            return Err(self.gave_up(mine.index));
        }
        // SAFETY: the caller promises that the request's bytes are writable.
        unsafe { self.collect(mine.index, request.bytes) }
    }

    fn claim(&self, request: &PeerRequest<'_>) -> Claim {
        Claim {
            me: self.owner(),
            image: IMAGE.load(Relaxed),
            node: request.node,
            body: length(request.bytes),
            is_kept: false,
        }
    }

    fn check(&self, request: &PeerRequest<'_>) -> Result<()> {
        if request.head.len() > MAX_HEAD || length(request.bytes) > MAX_BODY {
            return Err(Errno::MSGSIZE);
        }
        match self.shared.header().missing.load(Acquire) {
            0 => Ok(()),
            _ => Err(self.report_down(self.me)),
        }
    }

    /// Claims a cell; waits for a free one until the time `until`.
    fn claim_waiting(&self, request: &PeerRequest<'_>, until: u64) -> Result<usize> {
        let claimed = self.shared.claim_waiting(&self.claim(request), until);
        claimed.map_err(|e| match e {
            Errno::HOSTDOWN => self.report_down(request.node),
            e => e,
        })
    }
}

/// Counts a request that began at tick `begin`, and its bytes.
fn count(begin: u64, bytes: Bytes, answer: &Result<PeerReply>) {
    let sent = match bytes {
        Bytes::Send(_, len) => len,
        _ => 0,
    };
    let received = answer.as_ref().map_or(0, |answer| answer.received);
    forebay_trace::count::record_request(begin, sent as u64, received as u64);
}

fn length(bytes: Bytes) -> usize {
    match bytes {
        Bytes::None => 0,
        Bytes::Send(_, len) | Bytes::Receive(_, len) => len,
    }
}

/// A cell that belongs to this thread. Dropping this value abandons the cell, whatever its state.
struct Mine<'a> {
    shared: &'a Shared,
    index: usize,
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.index);
    }
}

impl Peers for Channel {
    fn this_node(&self) -> NodeId {
        self.me
    }

    fn node_of(&self, slot: Slot) -> NodeId {
        // Without a map, no slot counts as this node's: no operation may be done on the wrong node.
        self.map()
            .map_or(NodeId(u32::MAX), |map| map.slices().node_of(slot))
    }

    fn slot_here(&self, hash: u64) -> Option<Slot> {
        self.map()?.slices().slot_on(self.me, hash)
    }

    fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    fn has_orphans(&self) -> bool {
        self.shared.has_orphan(changes_names)
    }

    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply> {
        let request = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        let exchange = || {
            self.check(&request)?;
            let until = self.until();
            let index = self.claim_waiting(&request, until)?;
            // SAFETY: the caller promises that `bytes` are readable or, to receive a reply,
            // writable.
            let mine = unsafe { self.put(index, &request, until) }?;
            self.shared.ring();
            // SAFETY: as for `put`.
            unsafe { self.take(&mine, &request, until) }
        };
        let begin = forebay_trace::clock::now();
        forebay_trace::event!(ASK_ENTER, node.0, kind, length(bytes));
        let answer = exchange();
        count(begin, bytes, &answer);
        forebay_trace::event!(ASK_EXIT, node.0, forebay_trace::points::outcome(&answer));
        self.report(node, answer)
    }

    unsafe fn ask_all(&self, requests: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>> {
        let mut replies = Vec::with_capacity(requests.len());
        let mut open = VecDeque::with_capacity(MAX_CALLER_REQUESTS.min(requests.len()));
        let mut next = requests.iter().peekable();
        loop {
            while let Some(&request) = next.peek()
                && open.len() < MAX_CALLER_REQUESTS
            {
                let until = self.until();
                let claim = self.claim(request);
                // A process that has cells already doesn't wait for more, since two such processes
                // could deadlock.
                let claimed = match (self.check(request), open.is_empty()) {
                    (Err(e), _) => Err(e),
                    (_, true) => self.claim_waiting(request, until),
                    (_, false) => match self.shared.claim(&claim) {
                        Ok(index) => Ok(index),
                        Err(_) => break,
                    },
                };
                next.next();
                let begin = forebay_trace::clock::now();
                forebay_trace::event!(
                    ASK_ENTER,
                    request.node.0,
                    request.kind,
                    length(request.bytes)
                );
                // SAFETY: the caller promises that the requests' bytes are readable or writable.
                let posted = claimed.and_then(|index| unsafe { self.put(index, request, until) });
                open.push_back((request, posted, until, begin));
            }
            let Some((request, posted, until, begin)) = open.pop_front() else {
                return replies;
            };
            self.shared.ring();
            // SAFETY: as for `put`.
            let answer = posted.and_then(|mine| unsafe { self.take(&mine, request, until) });
            count(begin, request.bytes, &answer);
            forebay_trace::event!(
                ASK_EXIT,
                request.node.0,
                forebay_trace::points::outcome(&answer)
            );
            replies.push(self.report(request.node, answer));
        }
    }

    unsafe fn send(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Sent {
        let request = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        let claim = Claim {
            is_kept: true,
            ..self.claim(&request)
        };
        let Some(cell) = self
            .check(&request)
            .ok()
            .and_then(|()| self.shared.claim(&claim).ok())
        else {
            // SAFETY: the caller's promise about `bytes` is the one that `ask` requires.
            return Sent::Answered(unsafe { self.ask(node, kind, head, bytes) });
        };
        let until = self.until();
        // SAFETY: the caller promises that `bytes` are readable.
        match unsafe { self.put(cell, &request, until) } {
            Ok(mine) => {
                // From here on, `answer` owns the cell.
                std::mem::forget(mine);
                self.shared.ring();
                Sent::Underway { node, cell, until }
            }
            Err(e) => Sent::Answered(Err(e)),
        }
    }

    fn answer(&self, sent: Sent) -> Result<PeerReply> {
        let (node, index, until) = match sent {
            Sent::Answered(reply) => return reply,
            Sent::Underway { node, cell, until } => (node, cell, until),
        };
        let shared = &self.shared;
        let mine = Mine { shared, index };
        let request = PeerRequest {
            node,
            kind: 0,
            head: &[],
            bytes: Bytes::None,
        };
        let begin = forebay_trace::clock::now();
        // SAFETY: the request has no bytes.
        let answer = unsafe { self.take(&mine, &request, until) };
        count(begin, Bytes::None, &answer);
        self.report(node, answer)
    }

    fn tell(&self, node: NodeId, kind: u16, head: &[u8]) {
        let bytes = Bytes::None;
        let request = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        // If no cell is free, the request is sent as one with a reply, since such a request waits
        // for a cell.
        let claimed = if head.len() <= MAX_HEAD {
            self.shared.claim(&self.claim(&request)).ok()
        } else {
            None
        };
        let Some(index) = claimed else {
            // SAFETY: the request has no bytes.
            let _: Result<PeerReply> = unsafe { self.ask(node, kind, head, bytes) };
            return;
        };
        // SAFETY: the request has no bytes.
        if unsafe { self.fill(index, &request, self.until()) }.is_err() {
            return self.shared.leave(index);
        }
        self.shared.cell(index).one_way.store(1, Release);
        self.post(index);
        self.shared.ring_softly();
    }

    fn lease(&self) -> Option<Duration> {
        let lease = self.shared.header().lease.load(Relaxed);
        (lease != 0).then(|| Duration::from_millis(lease.into()))
    }

    fn fenced(&self, node: NodeId) -> Errno {
        self.report_fenced(node);
        Errno::IO
    }

    fn after_fork_in_child(&self) {
        self.loading.reset();
        // The parent's owner word is forgotten, since a later child may get the parent's process
        // id.
        self.owner.store(0, Relaxed);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let map = self.map.load(Acquire);
        if !map.is_null() {
            // SAFETY: the map was made from a box, and the channel is not used any more.
            drop(unsafe { Box::from_raw(map) });
        }
    }
}

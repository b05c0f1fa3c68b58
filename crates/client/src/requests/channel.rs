//! The asker's end of the request cells: the store of a process asks other nodes through it.
//!
//! Runs inside any program: on any thread, in forked children and in vfork children (which use
//! their parent's memory, but have cells of their own: an owner is a process id, asked of the
//! kernel each time). Nothing here is locked while waiting.

use super::cell::{CLAIMED, Claim, DONE, HELD, POSTED};
use super::clock;
use super::region::{Shared, random};
use forebay_cluster::peers::{Bytes, MAX_BODY, MAX_HEAD, PeerReply, PeerRequest, Peers, Sent};
use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*, futex, spin_loop};
use forebay_media::guard;
use forebay_placement::{NodeId, PoolMap, Slot};
use forebay_store::process::{self, ProcessLock};
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicPtr;
use std::time::Duration;

/// The daemon says so much earlier that the request timeout is over, at most; for who can't wait
/// for that either.
const EARLIER: u64 = 300_000_000;
/// Longest sleep between looks at the clock.
const TURN: Duration = Duration::from_secs(1);
/// How long an answer is looked for before sleeping: it saves the daemon from waking us.
const LOOKS: u64 = 40_000;
/// When others got the core for longer than this meanwhile, they need it.
const OTHERS: u64 = 20_000;
/// Then there is no more looking for so long.
const CALM: u64 = 50_000_000;
/// After so many requests in a row that took longer, one in so many is looked for.
const MISSES: u32 = 4;
const ONE_IN: u32 = 32;
/// Requests of one caller in progress at the same time.
const AT_ONCE: usize = 64;
/// Of a node that is down, a process tells its user once in so long.
const TELLS: u64 = 60_000_000_000;

/// Tells this program from the one before exec; 0: not made yet.
static IMAGE: AtomicU64 = AtomicU64::new(0);

/// The way to the other nodes, for a process of the node.
pub struct Channel {
    shared: Shared,
    me: NodeId,
    nodes: Vec<NodeId>,
    map_path: PathBuf,
    map: AtomicPtr<PoolMap>,
    /// The version of the map that was looked at last.
    version: AtomicU32,
    loading: ProcessLock,
    /// The process that asked last, as an owner of cells.
    owner: AtomicU64,
    /// Answers looked for in vain since the last that wasn't, and until when not to look.
    misses: AtomicU32,
    calm: AtomicU64,
}

impl Channel {
    /// Opens it for a process of node `me`, one of `nodes`, whose directory is `dir`.
    ///
    /// # Errors
    /// What open and mmap say; EINVAL if the file isn't of this version.
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
            calm: AtomicU64::new(0),
        };
        // Without a start time nobody could tell this process from a later one with its id.
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
        // A forked child, which can't be told of an error.
        let own = process::own_word_or_id();
        self.owner.store(own, Relaxed);
        own
    }

    /// The pool's map; None as long as there is none.
    fn map(&self) -> Option<&PoolMap> {
        if self.shared.header().map.load(Acquire) != self.version.load(Acquire) {
            self.load_map();
        }
        // SAFETY: made from a box, and never dropped: others may be using it.
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
            // There is one, so it can't be read just now (no descriptors?): the next try may.
            return;
        };
        // SAFETY: as in `map`.
        let old = unsafe { self.map.load(Acquire).as_ref() };
        // Addresses are the daemon's business. The old map stays in memory.
        if old.is_none_or(|old| old.slices() != new.slices()) {
            self.map.store(Box::into_raw(Box::new(new)), Release);
        }
        self.version.store(version, Release);
    }

    fn until(&self) -> u64 {
        clock() + u64::from(self.shared.header().patience.load(Relaxed)) * 1_000_000
    }

    /// Copies a request into a cell. The cell is this thread's until it is posted.
    ///
    /// # Safety
    /// `bytes` are the caller's to read.
    unsafe fn fill(&self, index: usize, question: &PeerRequest<'_>, until: u64) -> Result<()> {
        let (way, len) = match question.bytes {
            Bytes::None => (0, 0),
            Bytes::Send(_, len) => (1, len),
            Bytes::Receive(_, len) => (2, len),
        };
        self.shared.reserve(index, len)?;
        let cell = self.shared.cell(index);
        let head = question.head;
        // SAFETY: the area has room for it (checked by `ask`), and is this thread's.
        unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), self.shared.head_at(index), head.len())
        };
        if let Bytes::Send(from, len) = question.bytes {
            let to = self.shared.body_at(index, len).ok_or(Errno::INVAL)?;
            // SAFETY: as above; where the program's bytes aren't there, it says so.
            if !unsafe { guard::copy(from, to, len) } {
                return Err(Errno::FAULT);
            }
        }
        cell.node.store(question.node.0, Relaxed);
        cell.kind.store(question.kind.into(), Relaxed);
        cell.way.store(way, Relaxed);
        cell.head.store(head.len() as u32, Relaxed);
        cell.body.store(len as u32, Relaxed);
        let left = until.saturating_sub(clock());
        let deadline = until - EARLIER.min(left / 10);
        cell.deadline.store(deadline, Relaxed);
        cell.number.store(0, Relaxed);
        cell.sent_to.store(0, Relaxed);
        cell.sleeps.store(0, Relaxed);
        Ok(())
    }

    /// Posts what was filled in. The bell is to be rung.
    fn post(&self, index: usize) {
        self.shared.cell(index).pass(CLAIMED, POSTED);
        let word = &self.shared.header().posted[index / 64];
        word.fetch_or(1 << (index % 64), SeqCst);
    }

    /// Looks for the answer for a moment, as long as nobody else needs the core.
    fn look(&self, is_done: &dyn Fn() -> bool) -> bool {
        let begin = clock();
        let misses = self.misses.load(Relaxed);
        let seldom = misses >= MISSES && !misses.is_multiple_of(ONE_IN);
        if seldom || begin < self.calm.load(Relaxed) {
            self.misses.fetch_add(1, Relaxed);
            return is_done();
        }
        let mut before = begin;
        while before - begin < LOOKS {
            for _ in 0..20 {
                if is_done() {
                    self.misses.store(0, Relaxed);
                    return true;
                }
                spin_loop();
            }
            std::thread::yield_now();
            let now = clock();
            if now - before > OTHERS {
                self.calm.store(now + CALM, Relaxed);
                break;
            }
            before = now;
        }
        self.misses.fetch_add(1, Relaxed);
        false
    }

    /// Waits for the answer; false if it hasn't come `until` then, or until the later time to which
    /// the daemon has moved the deadline since the other node is at work.
    fn wait(&self, index: usize, until: u64) -> bool {
        let cell = self.shared.cell(index);
        if self.look(&|| cell.state.load(Acquire) & !HELD == DONE) {
            return true;
        }
        loop {
            cell.sleeps.store(1, SeqCst);
            let state = cell.state.load(SeqCst);
            if state & !HELD == DONE {
                return true;
            }
            let end = match cell.deadline.load(Acquire) {
                renewed if renewed > until => renewed.saturating_add(EARLIER),
                _ => until,
            };
            let left = end.saturating_sub(clock());
            if left == 0 {
                return false;
            }
            let _ = futex::wait(&cell.state, state, TURN.min(Duration::from_nanos(left)));
        }
    }

    /// Nobody has answered in time. If there is no daemon, others needn't wait as long.
    #[cold]
    fn gave_up(&self) {
        let header = self.shared.header();
        if !process::runs(header.daemon.load(Acquire)) {
            header.missing.store(1, Release);
        }
    }

    /// Passes on what came of a request. If the node is down, the user is told which, as no errno
    /// can; and if this node has lost its locks there, that it has.
    fn told<T>(&self, node: NodeId, answer: Result<T>) -> Result<T> {
        match answer {
            Err(Errno::HOSTDOWN) => self.tell_down(node),
            Err(Errno::OWNERDEAD) => {
                self.tell_fenced(node);
                return Err(Errno::IO);
            }
            _ => {}
        }
        answer
    }

    #[cold]
    fn tell_fenced(&self, node: NodeId) {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let (now, last) = (clock().max(1), TOLD.load(Relaxed));
        let due = last == 0 || now.saturating_sub(last) > TELLS;
        if due && TOLD.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            process::write_notice(format_args!(
                "node {node} couldn't reach this node for long and has released its file locks: a file that was locked gives EIO until all programs here have closed it"
            ));
        }
    }

    #[cold]
    fn tell_down(&self, node: NodeId) {
        /// When it was told of a node last; 0: never. Nodes may share one.
        static TOLD: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
        let header = self.shared.header();
        let served = process::runs(header.daemon.load(Acquire));
        let node = if served { node } else { self.me };
        let (now, told) = (clock().max(1), &TOLD[node.0 as usize % TOLD.len()]);
        let last = told.load(Relaxed);
        let due = last == 0 || now.saturating_sub(last) > TELLS;
        if !due || told.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
            return;
        }
        if !served {
            return process::write_notice(format_args!(
                "the daemon of this node is dead: start it again with: forebay node restart {node}"
            ));
        }
        let name = self.map().and_then(|map| map.node(node));
        let name = name.map_or("?", |node| node.name.as_str());
        process::write_notice(format_args!(
            "node {node} ({name}) doesn't answer: what lies there is out of reach until it does; forebay status says more"
        ));
    }

    /// Takes the answer out of a cell.
    ///
    /// # Safety
    /// `bytes` are the caller's to write.
    unsafe fn collect(&self, index: usize, bytes: Bytes) -> Result<PeerReply> {
        let cell = self.shared.cell(index);
        match cell.status.load(Relaxed) {
            0 => {}
            status @ 1..4096 => return Err(Errno::from_raw_os_error(status as i32)),
            _ => return Err(Errno::PROTO),
        }
        let len = cell.answer.load(Relaxed) as usize;
        let received = cell.received.load(Relaxed) as usize;
        let room = match bytes {
            Bytes::Receive(_, room) => room,
            _ => 0,
        };
        if len > MAX_HEAD || received > room {
            return Err(Errno::PROTO);
        }
        // SAFETY: the area has so many bytes, and is this thread's.
        let head = unsafe { std::slice::from_raw_parts(self.shared.head_at(index), len) }.to_vec();
        if let Bytes::Receive(to, room) = bytes
            && received > 0
        {
            let from = self.shared.body_at(index, room).ok_or(Errno::PROTO)?;
            // SAFETY: as above; where the program's place isn't there, it says so.
            if !unsafe { guard::copy(from, to, received) } {
                return Err(Errno::FAULT);
            }
        }
        Ok(PeerReply { head, received })
    }

    /// Posts a request in a cell that was claimed. The bell is to be rung.
    ///
    /// # Safety
    /// Its bytes are the caller's to read.
    unsafe fn put(&self, index: usize, question: &PeerRequest<'_>, until: u64) -> Result<Mine<'_>> {
        let shared = &self.shared;
        let mine = Mine { shared, index };
        // SAFETY: passed on.
        unsafe { self.fill(index, question, until)? };
        self.post(index);
        Ok(mine)
    }

    /// Waits for the answer.
    ///
    /// # Safety
    /// The request's bytes are the caller's to write.
    unsafe fn take(
        &self,
        mine: &Mine<'_>,
        question: &PeerRequest<'_>,
        until: u64,
    ) -> Result<PeerReply> {
        if !self.wait(mine.index, until) {
            self.gave_up();
            return Err(Errno::HOSTDOWN);
        }
        // SAFETY: passed on.
        unsafe { self.collect(mine.index, question.bytes) }
    }

    fn claim(&self, question: &PeerRequest<'_>) -> Claim {
        Claim {
            me: self.owner(),
            image: IMAGE.load(Relaxed),
            node: question.node,
            body: length(question.bytes),
            is_kept: false,
        }
    }

    fn check(&self, question: &PeerRequest<'_>) -> Result<()> {
        if question.head.len() > MAX_HEAD || length(question.bytes) > MAX_BODY {
            return Err(Errno::MSGSIZE);
        }
        match self.shared.header().missing.load(Acquire) {
            0 => Ok(()),
            _ => Err(Errno::HOSTDOWN),
        }
    }
}

fn length(bytes: Bytes) -> usize {
    match bytes {
        Bytes::None => 0,
        Bytes::Send(_, len) | Bytes::Receive(_, len) => len,
    }
}

/// A cell that this thread has; it is left when dropped, whatever has happened.
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
        // Without a map nothing is here: nothing is done on the wrong node.
        self.map()
            .map_or(NodeId(u32::MAX), |map| map.slices().node_of(slot))
    }

    fn slot_here(&self, hash: u64) -> Option<Slot> {
        self.map()?.slices().slot_on(self.me, hash)
    }

    fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    unsafe fn ask(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Result<PeerReply> {
        let question = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        let asked = || {
            self.check(&question)?;
            let until = self.until();
            let index = self.shared.claim_waiting(&self.claim(&question), until)?;
            // SAFETY: the caller's promise.
            let mine = unsafe { self.put(index, &question, until) }?;
            self.shared.ring();
            // SAFETY: the caller's promise.
            unsafe { self.take(&mine, &question, until) }
        };
        self.told(node, asked())
    }

    unsafe fn ask_all(&self, questions: &[PeerRequest<'_>]) -> Vec<Result<PeerReply>> {
        let mut answers = Vec::with_capacity(questions.len());
        let mut open = VecDeque::with_capacity(AT_ONCE.min(questions.len()));
        let mut next = questions.iter().peekable();
        loop {
            while let Some(&question) = next.peek()
                && open.len() < AT_ONCE
            {
                let until = self.until();
                let claim = self.claim(question);
                // A process that has cells already doesn't wait for more: others may do the same.
                let claimed = match (self.check(question), open.is_empty()) {
                    (Err(e), _) => Err(e),
                    (_, true) => self.shared.claim_waiting(&claim, until),
                    (_, false) => match self.shared.claim(&claim) {
                        Ok(index) => Ok(index),
                        Err(_) => break,
                    },
                };
                next.next();
                // SAFETY: the caller's promise.
                let asked = claimed.and_then(|index| unsafe { self.put(index, question, until) });
                open.push_back((question, asked, until));
            }
            let Some((question, asked, until)) = open.pop_front() else {
                return answers;
            };
            self.shared.ring();
            // SAFETY: the caller's promise.
            let answer = asked.and_then(|mine| unsafe { self.take(&mine, question, until) });
            answers.push(self.told(question.node, answer));
        }
    }

    unsafe fn send(&self, node: NodeId, kind: u16, head: &[u8], bytes: Bytes) -> Sent {
        let question = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        let claim = Claim {
            is_kept: true,
            ..self.claim(&question)
        };
        let Some(cell) = self
            .check(&question)
            .ok()
            .and_then(|()| self.shared.claim(&claim).ok())
        else {
            // SAFETY: the caller's promise.
            return Sent::Answered(unsafe { self.ask(node, kind, head, bytes) });
        };
        let until = self.until();
        // SAFETY: as above.
        match unsafe { self.put(cell, &question, until) } {
            Ok(mine) => {
                // `answer` has it from here on.
                std::mem::forget(mine);
                self.shared.ring();
                Sent::Underway { node, cell, until }
            }
            Err(e) => Sent::Answered(Err(e)),
        }
    }

    fn answer(&self, sent: Sent) -> Result<PeerReply> {
        let (node, index, until) = match sent {
            Sent::Answered(told) => return told,
            Sent::Underway { node, cell, until } => (node, cell, until),
        };
        let shared = &self.shared;
        let mine = Mine { shared, index };
        let question = PeerRequest {
            node,
            kind: 0,
            head: &[],
            bytes: Bytes::None,
        };
        // SAFETY: there are no bytes.
        self.told(node, unsafe { self.take(&mine, &question, until) })
    }

    fn tell(&self, node: NodeId, kind: u16, head: &[u8]) {
        let bytes = Bytes::None;
        let question = PeerRequest {
            node,
            kind,
            head,
            bytes,
        };
        // If no cell is free, one waits as for a request.
        let claimed = match head.len() <= MAX_HEAD {
            true => self.shared.claim(&self.claim(&question)).ok(),
            false => None,
        };
        let Some(index) = claimed else {
            // SAFETY: there are no bytes.
            let _: Result<PeerReply> = unsafe { self.ask(node, kind, head, bytes) };
            return;
        };
        // SAFETY: there are no bytes.
        if unsafe { self.fill(index, &question, self.until()) }.is_err() {
            return self.shared.leave(index);
        }
        self.shared.cell(index).told.store(1, Release);
        self.post(index);
        self.shared.ring_softly();
    }

    fn lease(&self) -> Option<Duration> {
        let lease = self.shared.header().lease.load(Relaxed);
        (lease != 0).then(|| Duration::from_millis(lease.into()))
    }

    fn fenced(&self, node: NodeId) -> Errno {
        self.tell_fenced(node);
        Errno::IO
    }

    fn after_fork_in_child(&self) {
        self.loading.reset();
        // A later process may have the parent's id.
        self.owner.store(0, Relaxed);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let map = self.map.load(Acquire);
        if !map.is_null() {
            // SAFETY: made from a box; nobody uses the channel any more.
            drop(unsafe { Box::from_raw(map) });
        }
    }
}

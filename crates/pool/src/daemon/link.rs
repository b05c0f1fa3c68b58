//! The link to one other node: the requests for it, and the connection that carries them. The
//! connection is made when there is a request, and again after it was cut. Both nodes use it,
//! whichever has made it ([`Link::offer`]).
//!
//! The thread that brings a request sends it, if there is a connection. Otherwise the request
//! waits, and a thread connects ([`super::connect`]), again and again with pauses, until the
//! request timeout is over. A request that a cut has left without a reply is sent again with the
//! same number. By the number the other daemon knows whether it has carried the request out, also
//! if it was started again in between. If it has lost its records
//! ([`forebay_client::requests::Replies`]), the outcome is unknown; then the request is only sent
//! again if that can't do harm.
//!
//! Each request says which ones are settled, so that the other daemon forgets their replies: all
//! below the lowest open one, and now and then which ones above that are open.

use super::core::Core;
use super::question::{Got, Question};
use super::reply_cache::Settled;
use super::wire::{self, Asking, AtWork, Hello, PROGRESS};
use forebay_cluster::peers::messages::kind;
use forebay_net::{Connection, Error, NodeId, Reply, Request, WINDOW};
use forebay_placement::planted;
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

/// Requests in progress on a connection; the rest is for the daemons' own.
const MOST: usize = WINDOW - 16;
/// The open requests are listed with every so many, if there are others above the lowest one.
const LIST_EVERY: u32 = 64;
/// Kinds of requests to which the planted fault `lost-reply` applies: they are answered by nothing.
const CHANGES: [u16; 7] = [
    kind::TRUNCATE,
    kind::ADD_LINK,
    kind::DROP_LINK,
    kind::LINK,
    kind::RENAME,
    kind::CUT_PART,
    kind::END_LOCKS,
];

/// The transport's bound for a request that is waited for as long as its home is at work: it is
/// this daemon that gives up.
const LONG: Duration = Duration::from_secs(7 * 24 * 3600);
/// Two connections that are made within this time, one by each side, were made because neither knew
/// of the other's. More than the time for a connection.
const CROSSING: Duration = Duration::from_secs(5);
/// Once a node is given up, a try that failed speaks for so long.
const FAILED_LATELY: Duration = Duration::from_millis(500);

/// How it stands with another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Which one.
    pub node: NodeId,
    /// Whether it can be reached, as far as is known.
    pub reach: Reach,
    /// Since when.
    pub since: SystemTime,
    /// Why not.
    pub why: Option<String>,
}

/// Whether a node can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody has tried so far.
    Untried,
    /// There is a connection, or was when it was needed last.
    Up,
    /// It doesn't answer.
    Unreachable,
}

pub struct Link {
    pub(super) core: Weak<Core>,
    pub(super) node: NodeId,
    state: Mutex<State>,
    pub(super) wake: Condvar,
}

/// A connection on which both sides have said hello.
pub(super) struct Live {
    pub connection: Arc<dyn Connection>,
    /// What the daemon at its other end has said of itself.
    pub hello: Hello,
    /// Made by this daemon.
    pub ours: bool,
    pub since: Instant,
}

impl Live {
    /// Whether it is the one that stays if each side has made one: that of the lower number.
    fn stays(&self, me: NodeId, other: NodeId) -> bool {
        self.ours == (me < other)
    }

    /// Whether each side has made one of these at the same time.
    fn crosses(&self, newer: &Live) -> bool {
        self.ours != newer.ours
            && self.hello.incarnation == newer.hello.incarnation
            && self.since.elapsed() < CROSSING
    }
}

pub(super) struct State {
    /// The one that requests go by.
    pub connection: Option<Live>,
    /// Not sent yet, or to be sent again.
    pub queue: VecDeque<Arc<Question>>,
    /// Numbers of all that isn't answered.
    pub open: BTreeSet<u64>,
    /// Requests sent since these were listed.
    unlisted: u32,
    pub under_way: usize,
    /// When an answer came last.
    pub heard: Instant,
    /// There is a thread that connects.
    pub connecting: bool,
    /// It is to be found out whether the node is there, even without a request.
    pub watch: bool,
    pub reach: Reach,
    pub since: SystemTime,
    pub why: Option<String>,
    pub down: Option<Instant>,
    pub failed: Option<Instant>,
    pub said: Option<Instant>,
    /// [`Core::gone`] was called.
    pub gone: bool,
}

impl Link {
    pub fn new(core: &Weak<Core>, node: NodeId) -> Arc<Link> {
        Arc::new(Link {
            core: core.clone(),
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
                said: None,
                gone: false,
            }),
            wake: Condvar::new(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands with the node.
    pub fn about(&self) -> NodeState {
        let state = self.state();
        NodeState {
            node: self.node,
            reach: state.reach,
            since: state.since,
            why: state.why.clone(),
        }
    }

    /// Sends a request; its answer, or an error, comes to who waits for it. With `lazily` it goes
    /// with the next one, or when the connection is flushed.
    pub fn post(self: &Arc<Self>, question: Arc<Question>, lazily: bool) {
        let Some(core) = self.core.upgrade() else {
            return question.fail(Errno::HOSTDOWN);
        };
        let mut state = self.state();
        let lately = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < FAILED_LATELY);
        if state.connection.is_none() && state.given_up(&core) && lately(state.failed) {
            state.open.remove(&question.number());
            drop(state);
            return question.fail(Errno::HOSTDOWN);
        }
        // Under this lock, so that the lowest open number never goes back.
        if question.number() == 0 {
            question.set_number(core.desk.next_number());
        }
        state.open.insert(question.number());
        state.queue.push_back(question);
        drop(state);
        self.pump_some(&core, lazily);
    }

    /// A request with this number, which an earlier daemon gave it, is about to be posted.
    pub fn expect(&self, number: u64) {
        self.state().open.insert(number);
    }

    /// Asks the node whether it still carries out these requests, and waits longer for those.
    pub(super) fn ask_progress(self: &Arc<Self>, questions: Vec<Arc<Question>>) {
        let (Some(core), Some(connection)) = (self.core.upgrade(), self.connection()) else {
            return;
        };
        let patience = core.options.patience;
        let request = Request {
            kind: PROGRESS,
            head: AtWork {
                asker: core.desk.id(),
                within: milliseconds(patience),
                numbers: questions.iter().map(|q| q.number()).collect(),
            }
            .encode(),
            ..Request::default()
        };
        let (this, until) = (self.clone(), Instant::now() + patience);
        let done = Box::new(move |result: Result<Reply, Error>| {
            let Ok(reply) = result else { return };
            this.state().heard = Instant::now();
            for (question, at_work) in questions.iter().zip(reply.head) {
                if at_work == 1 {
                    question.renew(until);
                }
            }
        });
        // Without room just now, the next tick asks.
        let _ = connection.start(request, until, done);
    }

    /// Nobody has said for the whole request timeout that this request is being carried out.
    pub(super) fn expire(self: &Arc<Self>, question: &Arc<Question>) {
        let Some(core) = self.core.upgrade() else {
            return question.fail(Errno::HOSTDOWN);
        };
        let mut state = self.state();
        state.queue.retain(|q| !Arc::ptr_eq(q, question));
        state.open.remove(&question.number());
        // As for others: a connection that says nothing may be one to nowhere.
        let silent = state.heard + core.options.patience <= question.deadline();
        let connection = state.connection.as_ref().map(|c| c.connection.clone());
        drop(state);
        question.fail(Errno::HOSTDOWN);
        if let Some(connection) = connection.filter(|_| silent) {
            connection.close();
            self.watch();
        }
    }

    /// The node has been heard of: requests to it don't fail at once, and who is connecting tries
    /// again now.
    pub fn heard(&self) {
        let mut state = self.state();
        if state.connection.is_none() {
            (state.failed, state.down) = (None, None);
            self.wake.notify_all();
        }
    }

    /// Finds out whether the node is there, and tells it who we are.
    pub fn watch(self: &Arc<Self>) {
        let mut state = self.state();
        state.drop_ended();
        if state.connection.is_none() {
            state.watch = true;
            self.need_connection(state);
        }
    }

    /// A connection with the node has ended, whoever had made it.
    pub fn ended(self: &Arc<Self>) {
        if self.core.upgrade().is_some_and(|core| !core.stopped()) {
            self.watch();
        }
    }

    /// The connection, if there is one.
    pub fn connection(&self) -> Option<Arc<dyn Connection>> {
        let mut state = self.state();
        state.drop_ended();
        state.connection.as_ref().map(|c| c.connection.clone())
    }

    /// Both sides have said hello on this one: requests go by it from now on, unless there is a
    /// better one. What is in progress on one that has to go for it is sent again, or waited for.
    pub(super) fn offer(self: &Arc<Self>, core: &Arc<Core>, new: Live) {
        let mut state = self.state();
        state.drop_ended();
        if new.connection.ended().is_some() {
            return;
        }
        let crossed = (state.connection.as_ref()).is_some_and(|old| old.crosses(&new));
        if crossed && !new.stays(core.me, self.node) {
            drop(state);
            // Only who has made it knows whether he needs it.
            if new.ours {
                new.connection.retire();
            }
            return;
        }
        let old = state.connection.replace(new);
        self.connected(core, &mut state);
        self.wake.notify_all();
        drop(state);
        match old {
            Some(old) if !crossed => old.connection.close(),
            Some(old) if old.ours => old.connection.retire(),
            _ => {}
        }
        self.pump(core);
    }

    /// Sends what waits, as long as there is a connection that takes it.
    pub(super) fn pump(self: &Arc<Self>, core: &Arc<Core>) {
        self.pump_some(core, false);
    }

    fn pump_some(self: &Arc<Self>, core: &Arc<Core>, lazily: bool) {
        loop {
            let mut state = self.state();
            if state.queue.is_empty() {
                return;
            }
            state.drop_ended();
            let Some(live) = &state.connection else {
                return self.need_connection(state);
            };
            let (connection, records) = (live.connection.clone(), live.hello.records);
            if state.under_way >= MOST {
                return;
            }
            let Some(question) = state.queue.pop_front() else {
                return;
            };
            state.under_way += 1;
            let settled = state.settled();
            drop(state);
            self.send(core, question, (&connection, records), settled, lazily);
        }
    }

    fn send(
        self: &Arc<Self>,
        core: &Arc<Core>,
        question: Arc<Question>,
        (connection, records): (&Arc<dyn Connection>, u64),
        settled: Settled,
        lazily: bool,
    ) {
        let before = question.sent_to();
        if before != 0 && before != records && !question.repeatable {
            core.say(&format!(
                "{} has lost its records while a question of kind {} was under way: nobody knows whether it was carried out",
                core.name_of(self.node),
                question.kind
            ));
            return self.settle(&question, Err(Errno::IO));
        }
        let (deadline, now) = (question.deadline(), Instant::now());
        if deadline <= now {
            return self.settle(&question, Err(Errno::HOSTDOWN));
        }
        let Some(origin) = question.origin() else {
            return self.settle(&question, Err(Errno::HOSTDOWN));
        };
        let Ok(landing) = origin.landing() else {
            // What was cut still has the place, for an instant.
            return self.later(question);
        };
        question.set_sent_to(records);
        let asking = Asking {
            asker: core.desk.id(),
            number: question.number(),
            within: milliseconds(deadline - now),
            settled,
        };
        let inline = wire::goes_inline(origin.head().len(), origin.sends(), core.inline);
        let request = Request {
            kind: question.kind,
            head: match inline {
                true => origin.with_bytes(|bytes| asking.encode(origin.head(), bytes)),
                false => asking.encode(origin.head(), &[]),
            },
            body: if inline { None } else { origin.source() },
            landing,
            lazily,
        };
        drop(origin);
        let (this, sent, asked) = (self.clone(), Instant::now(), question.clone());
        let on = Arc::downgrade(connection);
        let done = Box::new(move |result| this.done(asked, result, sent, &on));
        let deadline = if question.is_long {
            now + LONG
        } else {
            deadline
        };
        if let Err(e) = connection.start(request, deadline, done) {
            let on = Arc::downgrade(connection);
            self.done(question, Err(e), Instant::now(), &on);
        }
    }

    /// What became of a request that was sent.
    fn done(
        self: &Arc<Self>,
        question: Arc<Question>,
        result: Result<Reply, Error>,
        sent: Instant,
        connection: &Weak<dyn Connection>,
    ) {
        match result {
            Ok(reply) => {
                self.state().heard = Instant::now();
                self.settle(&question, Ok(reply));
            }
            Err(Error::Deadline { .. }) => {
                // Has the connection said anything since? If not, it may be one to nowhere.
                let silent = self.state().heard < sent;
                self.settle(&question, Err(Errno::HOSTDOWN));
                if silent {
                    if let Some(connection) = connection.upgrade() {
                        connection.close();
                    }
                    self.watch();
                }
            }
            Err(Error::TooLarge { .. }) => self.settle(&question, Err(Errno::MSGSIZE)),
            Err(_) if planted("lost-reply") && CHANGES.contains(&question.kind) => {
                let head = wire::encode_answer(&[], &[]);
                self.settle(
                    &question,
                    Ok(Reply {
                        status: 0,
                        head,
                        body: None,
                    }),
                );
            }
            // It may have been carried out: the other daemon will know by its number.
            Err(_) => return self.later(question),
        }
        if let Some(core) = self.core.upgrade() {
            self.pump(&core);
        }
    }

    /// It has its answer.
    fn settle(&self, question: &Question, result: Result<Reply, Errno>) {
        let mut state = self.state();
        state.under_way -= 1;
        state.open.remove(&question.number());
        drop(state);
        match result {
            Ok(reply) => answer(question, reply),
            Err(e) => question.fail(e),
        }
    }

    /// It has to be sent again.
    fn later(self: &Arc<Self>, question: Arc<Question>) {
        let mut state = self.state();
        state.under_way -= 1;
        state.queue.push_back(question);
        state.drop_ended();
        self.need_connection(state);
    }

    /// The daemon ends: nothing more is sent. The next one answers waiting askers.
    pub fn stop(&self) {
        let mut state = self.state();
        state.queue.clear();
        self.wake.notify_all();
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

impl State {
    /// What the other daemon is told to be settled with the next request.
    fn settled(&mut self) -> Settled {
        let lowest = self.open.first().copied().unwrap_or(0);
        self.unlisted += 1;
        if self.unlisted < LIST_EVERY || self.open.len() < 2 {
            let (upto, open) = (0, Vec::new());
            return Settled { lowest, upto, open };
        }
        self.unlisted = 0;
        let open: Vec<u64> = self.open.iter().take(wire::MOST_OPEN).copied().collect();
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

    /// Whether it has been out of reach for longer than anybody waits.
    pub fn given_up(&self, core: &Core) -> bool {
        self.down
            .is_some_and(|down| down.elapsed() >= core.options.patience)
    }

    /// Takes those out of the queue that are to fail.
    pub fn give_back(&mut self, fails: impl Fn(&Question) -> bool) -> Vec<Arc<Question>> {
        let (failed, rest): (VecDeque<_>, _) = self.queue.drain(..).partition(|q| fails(q));
        self.queue = rest;
        let failed = Vec::from(failed);
        for question in &failed {
            self.open.remove(&question.number());
        }
        failed
    }
}

/// Hands an answer on.
fn answer(question: &Question, reply: Reply) {
    let Some((head, inline)) = wire::decode_answer(&reply.head) else {
        return question.fail(Errno::PROTO);
    };
    match reply.body {
        Some(body) => question.answer(reply.status, head, Got::Landed(body)),
        None => question.answer(reply.status, head, Got::Inline(inline)),
    }
}

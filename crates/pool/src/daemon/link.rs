//! The link to one other node: the questions for it, and the connection by which they go, made when
//! there is a question, made anew when it was cut.
//!
//! A question goes out on the thread that brings it, if there is a connection. Otherwise it waits, and a
//! thread, of which there is one while it is needed, connects, again and again with pauses, until
//! the patience of who asks is over. A question that a cut has left without an answer is sent again
//! with the same number, by which the other daemon knows whether it has carried it out. If that daemon
//! was started anew in between nobody knows; then it is only sent again if that can't do harm.

use super::core::Core;
use super::question::{Got, Question};
use super::wire::{self, Asking, HELLO, Hello};
use forebay_net::{Connection, Error, NodeId, Peer, Reply, Request, WINDOW};
use rustix::io::Errno;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

/// Questions under way on a connection; the rest is for the daemons' own.
const MOST: usize = WINDOW - 16;
/// Between tries to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Once a node is given up, a try that failed speaks for so long.
const FAILED_LATELY: Duration = Duration::from_millis(500);
/// Time for a connection and the first messages on it.
const CONNECT: Duration = Duration::from_secs(3);
/// A node that stays out of reach is named again after so long.
const SAY_AGAIN: Duration = Duration::from_secs(60);

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
    core: Weak<Core>,
    node: NodeId,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// With the incarnation of the daemon at its other end.
    connection: Option<(Arc<dyn Connection>, u64)>,
    /// Not sent yet, or to be sent again.
    queue: VecDeque<Arc<Question>>,
    /// Numbers of all that isn't answered.
    open: BTreeSet<u64>,
    under_way: usize,
    /// When an answer came last.
    heard: Instant,
    /// There is a thread that connects.
    connecting: bool,
    /// It is to be found out whether the node is there, even without a question.
    watch: bool,
    reach: Reach,
    since: SystemTime,
    why: Option<String>,
    down: Option<Instant>,
    failed: Option<Instant>,
    said: Option<Instant>,
    /// [`Core::gone`] was called.
    gone: bool,
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

    fn state(&self) -> MutexGuard<'_, State> {
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

    /// Sends a question; its answer, or an error, comes to who waits for it.
    pub fn post(self: &Arc<Self>, question: Arc<Question>) {
        let Some(core) = self.core.upgrade() else {
            return question.fail(Errno::HOSTDOWN);
        };
        let mut state = self.state();
        let lately = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < FAILED_LATELY);
        if state.connection.is_none() && state.given_up(&core) && lately(state.failed) {
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
        self.pump(&core);
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
        state.connection.as_ref().map(|c| c.0.clone())
    }

    /// Sends what waits, as long as there is a connection that takes it.
    fn pump(self: &Arc<Self>, core: &Arc<Core>) {
        loop {
            let mut state = self.state();
            if state.queue.is_empty() {
                return;
            }
            state.drop_ended();
            let Some((connection, incarnation)) = state.connection.clone() else {
                return self.need_connection(state);
            };
            if state.under_way >= MOST {
                return;
            }
            let Some(question) = state.queue.pop_front() else {
                return;
            };
            state.under_way += 1;
            let lowest = state.open.first().copied().unwrap_or(0);
            drop(state);
            self.send(core, question, &connection, incarnation, lowest);
        }
    }

    fn send(
        self: &Arc<Self>,
        core: &Arc<Core>,
        question: Arc<Question>,
        connection: &Arc<dyn Connection>,
        incarnation: u64,
        lowest: u64,
    ) {
        let before = question.sent_to();
        if before != 0 && before != incarnation && !question.repeatable {
            core.say(&format!(
                "{} was started anew while a question of kind {} was under way: nobody knows whether it was carried out",
                core.name_of(self.node),
                question.kind
            ));
            return self.settle(&question, Err(Errno::IO));
        }
        if question.deadline <= Instant::now() {
            return self.settle(&question, Err(Errno::HOSTDOWN));
        }
        let Some(origin) = question.origin() else {
            return self.settle(&question, Err(Errno::HOSTDOWN));
        };
        let Ok(landing) = origin.landing() else {
            // What was cut still has the place, for an instant.
            return self.later(question);
        };
        question.set_sent_to(incarnation);
        let asking = Asking {
            asker: core.desk.id(),
            number: question.number(),
            lowest,
        };
        let inline = wire::goes_inline(origin.head().len(), origin.sends());
        let request = Request {
            kind: question.kind,
            head: match inline {
                true => origin.with_bytes(|bytes| asking.encode(origin.head(), bytes)),
                false => asking.encode(origin.head(), &[]),
            },
            body: if inline { None } else { origin.source() },
            landing,
        };
        drop(origin);
        let (this, sent, asked) = (self.clone(), Instant::now(), question.clone());
        let on = Arc::downgrade(connection);
        let done = Box::new(move |result| this.done(asked, result, sent, &on));
        if let Err(e) = connection.start(request, question.deadline, done) {
            let on = Arc::downgrade(connection);
            self.done(question, Err(e), Instant::now(), &on);
        }
    }

    /// What became of a question that was sent.
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

    /// Sees to it that a thread connects, or sends what is left as soon as that can be done.
    fn need_connection(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.connecting {
            return;
        }
        state.connecting = true;
        let this = self.clone();
        let thread = std::thread::Builder::new().name("fb-link".into());
        if thread.spawn(move || this.connect()).is_err() {
            state.connecting = false;
            let failed = state.give_back(|_| true);
            drop(state);
            failed.iter().for_each(|q| q.fail(Errno::HOSTDOWN));
        }
    }

    /// The thread: connects until there is a connection, or nobody needs one.
    fn connect(self: &Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(core) = self.core.upgrade().filter(|core| !core.stopped()) else {
                let mut state = self.state();
                state.connecting = false;
                return;
            };
            let mut state = self.state();
            state.drop_ended();
            if state.connection.is_some() {
                // It wasn't to be had just now.
                state = self.pause(state, &mut pause);
            }
            if state.connection.is_none() {
                drop(state);
                if let Err(why) = self.try_to_connect(&core) {
                    if !self.failed(&core, why) {
                        return;
                    }
                    drop(core);
                    drop(self.pause(self.state(), &mut pause));
                    continue;
                }
                pause = FIRST_PAUSE;
            } else {
                drop(state);
            }
            self.pump(&core);
            let mut state = self.state();
            if state.connection.is_some() && state.queue.is_empty() {
                state.connecting = false;
                return;
            }
        }
    }

    fn pause<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        pause: &mut Duration,
    ) -> MutexGuard<'a, State> {
        let (state, _) = self
            .wake
            .wait_timeout(state, *pause)
            .unwrap_or_else(PoisonError::into_inner);
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        state
    }

    fn try_to_connect(&self, core: &Arc<Core>) -> Result<(), String> {
        let first = self.state().queue.iter().map(|q| q.deadline).min();
        let deadline = (Instant::now() + CONNECT).min(first.unwrap_or(Instant::now() + CONNECT));
        // Where nobody can wait any more, it is still found out what is the matter.
        let deadline = deadline.max(Instant::now() + Duration::from_millis(50));
        let addresses = core.addresses_of(self.node);
        let mut why = format!("{} isn't in the pool's map", core.name_of(self.node));
        for address in addresses {
            let peer = Peer {
                node: self.node,
                address,
            };
            match self.connect_to(core, peer, deadline) {
                Ok((connection, hello)) => {
                    self.connected(core, connection.clone(), hello.incarnation);
                    core.compare_maps(&connection, &hello);
                    return Ok(());
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    fn connect_to(
        &self,
        core: &Core,
        peer: Peer,
        deadline: Instant,
    ) -> Result<(Arc<dyn Connection>, Hello), String> {
        let connection = core.connect(peer, deadline).map_err(|e| e.to_string())?;
        let request = Request {
            kind: HELLO,
            head: core.hello().encode(),
            ..Request::default()
        };
        let reply = connection
            .call(request, deadline)
            .inspect_err(|_| connection.close());
        let reply = reply.map_err(|e| e.to_string())?;
        let hello = Hello::decode(&reply.head).ok_or("it speaks another language")?;
        core.met(self.node, hello.incarnation);
        Ok((connection, hello))
    }

    fn connected(&self, core: &Core, connection: Arc<dyn Connection>, incarnation: u64) {
        let mut state = self.state();
        state.connection = Some((connection, incarnation));
        state.heard = Instant::now();
        if let Some(down) = state.down.take()
            && state.said.is_some()
        {
            let after = down.elapsed().as_secs_f64();
            core.say(&format!(
                "{} can be reached again after {after:.1} s",
                core.name_of(self.node)
            ));
        }
        if state.reach != Reach::Up {
            state.since = SystemTime::now();
        }
        state.reach = Reach::Up;
        (state.why, state.failed, state.said) = (None, None, None);
        (state.watch, state.gone) = (false, false);
    }

    /// A try has failed. Whether to go on.
    fn failed(&self, core: &Core, why: String) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if state.reach != Reach::Unreachable {
            state.since = SystemTime::now();
        }
        state.reach = Reach::Unreachable;
        let down = *state.down.get_or_insert(now);
        state.failed = Some(now);
        let given_up = state.given_up(core);
        let failed = state.give_back(|q| given_up || q.deadline <= now);
        let quiet = (state.said).is_some_and(|at| now - at < SAY_AGAIN);
        if !failed.is_empty() && !quiet {
            state.said = Some(now);
            core.say(&format!(
                "{} can't be reached since {:.1} s: {why}",
                core.name_of(self.node),
                down.elapsed().as_secs_f64()
            ));
        }
        state.why = Some(why);
        let gone = !state.gone && now - down >= core.options.gone_after;
        if gone {
            state.gone = true;
            state.watch = false;
        }
        let go_on = !state.queue.is_empty() || state.watch;
        state.connecting = go_on;
        drop(state);
        failed.iter().for_each(|q| q.fail(Errno::HOSTDOWN));
        if gone {
            core.gone(self.node);
        }
        go_on
    }

    /// The daemon ends: nothing more is sent. Who waits is answered by the next one.
    pub fn stop(&self) {
        let mut state = self.state();
        state.queue.clear();
        self.wake.notify_all();
    }
}

impl State {
    fn drop_ended(&mut self) {
        if self
            .connection
            .as_ref()
            .is_some_and(|c| c.0.ended().is_some())
        {
            self.connection = None;
        }
    }

    /// Whether it has been out of reach for longer than anybody waits.
    fn given_up(&self, core: &Core) -> bool {
        self.down
            .is_some_and(|down| down.elapsed() >= core.options.patience)
    }

    /// Takes those out of the queue that are to fail.
    fn give_back(&mut self, fails: impl Fn(&Question) -> bool) -> Vec<Arc<Question>> {
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

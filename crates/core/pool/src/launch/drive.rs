//! The driver of the start protocol: launches daemons, reads and writes pipes, does the node's own
//! work, and keeps the time limit.

use super::messages::{Begin, encode_up, greet, read_down};
use super::{Child, Launcher};
use crate::Error;
use crate::start::{Act, Down, Event, Missing, Start, Up, subtree_timeout};
use forebay_placement::{Node, PoolMap};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long daemons at lower levels may take to end after a failed start.
const ENDING: Duration = Duration::from_secs(3);

/// A node's own part in a start.
pub trait Work: Send + 'static {
    /// Makes the node's store, and listens.
    ///
    /// # Errors
    /// The reason; then nothing is left behind.
    fn prepare(&mut self) -> Result<Node, Error>;
    /// Serves as a node of this pool.
    ///
    /// # Errors
    /// The reason.
    fn serve(&mut self, map: Arc<PoolMap>) -> Result<(), Error>;
    /// Makes the node outlive this process: from now on nothing is removed if this process is
    /// killed. Called when the node serves and everything is written that a later start needs, and
    /// before any message says that the pool is up.
    fn settle(&mut self);
    /// Stops the start at this node, and removes what was made.
    fn remove(self);
}

/// Carries out the start of the node in `begin`. Reads the parent's messages from `from`, and
/// writes messages to the parent on `to`. Returns the node's work if the pool runs. Otherwise
/// returns None, and nothing is left of this node and its descendants.
pub fn drive<W: Work>(
    begin: &Begin,
    launcher: &dyn Launcher,
    from: impl Read + Send + 'static,
    to: impl Write,
    work: W,
) -> Option<W> {
    let tree = begin.plan.tree();
    let (events, happening) = channel();
    let (start, acts) = Start::new(begin.plan.pool()?, tree, begin.me);
    listen(from, events.clone());
    let mut driver = Driver {
        begin,
        launcher,
        start,
        events,
        to,
        children: BTreeMap::new(),
        own: Own::Waiting(work),
    };
    let late = Instant::now() + subtree_timeout(&tree, begin.me, begin.plan.within);
    let _ = greet(&mut driver.to);
    driver.carry_out(acts);
    driver.follow(&happening, late);
    driver.finish()
}

/// Passes the parent's messages to `events`, up to the last message.
fn listen(mut from: impl Read + Send + 'static, events: Sender<Event>) {
    let listener = move || {
        loop {
            let heard = read_down(&mut from);
            let over = !matches!(heard, Ok(Down::Map(_)));
            let _ = events.send(heard.map_or(Event::Orphaned, Event::Parent));
            if over {
                return;
            }
        }
    };
    let _ = std::thread::Builder::new()
        .name("above".into())
        .spawn(listener);
}

/// The state of the node's own work.
enum Own<W> {
    Waiting(W),
    Preparing(JoinHandle<(W, bool)>),
    Ready(W),
    None,
}

struct Driver<'a, W, T> {
    begin: &'a Begin,
    launcher: &'a dyn Launcher,
    start: Start,
    events: Sender<Event>,
    to: T,
    children: BTreeMap<u32, Child>,
    own: Own<W>,
}

impl<W: Work, T: Write> Driver<'_, W, T> {
    fn follow(&mut self, happening: &Receiver<Event>, late: Instant) {
        let mut said_late = false;
        while !self.start.is_running() && !self.start.has_ended() {
            let left = late.saturating_duration_since(Instant::now());
            let event = match happening.recv_timeout(left) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) if !said_late => {
                    said_late = true;
                    Event::Late
                }
                // After its timeout, this node waits for its parent's decision.
                Err(_) => match happening.recv() {
                    Ok(event) => event,
                    Err(_) => Event::Orphaned,
                },
            };
            let acts = self.start.on(event);
            self.carry_out(acts);
        }
    }

    fn carry_out(&mut self, acts: Vec<Act>) {
        let mut acts = std::collections::VecDeque::from(acts);
        while let Some(act) = acts.pop_front() {
            match act {
                Act::Launch(node) => self.launch(node),
                Act::Prepare => self.prepare(),
                Act::Up(up) => {
                    if up == Up::Ready
                        && let Own::Ready(work) = &mut self.own
                    {
                        work.settle();
                    }
                    if self.start.is_running() {
                        // The next message hands over the pool to the user. Before that, the
                        // messages to the other nodes must be written.
                        self.children.values_mut().for_each(Child::close);
                    }
                    self.send_up(&up);
                }
                Act::Down(node, down) => {
                    if let Some(child) = self.children.get(&node) {
                        child.send(&down);
                    }
                }
                Act::Serve(map) => {
                    if self.begin.me == 0 {
                        // `up` shows the user which nodes there are.
                        self.send_up(&Up::Report(map.nodes().to_vec()));
                    }
                    if let Err(why) = self.serve(map) {
                        // Drop the actions that were to follow a success.
                        acts.clear();
                        let node = self.begin.me;
                        if self.start.is_running() {
                            // This is node 0, which has no parent.
                            self.send_up(&Up::Failed(vec![Missing {
                                node,
                                below: 0,
                                why: why.to_string(),
                            }]));
                            self.remove();
                        } else {
                            acts.extend(self.start.on(Event::Own(Err(why))));
                        }
                    }
                }
                Act::End => self.remove(),
            }
        }
    }

    fn send_up(&mut self, up: &Up) {
        // An error is ignored: the end of the other process is noticed by the thread that reads
        // from it.
        let _ = self
            .to
            .write_all(&encode_up(up))
            .and_then(|()| self.to.flush());
    }

    fn launch(&mut self, node: u32) {
        let begin = Begin {
            me: node,
            ..self.begin.clone()
        };
        match Child::launch(&begin, self.launcher, self.events.clone()) {
            Ok(child) => {
                self.children.insert(node, child);
            }
            Err(e) => {
                let _ = self.events.send(Event::Lost(node, e.to_string()));
            }
        }
    }

    fn prepare(&mut self) {
        let Own::Waiting(mut work) = std::mem::replace(&mut self.own, Own::None) else {
            return;
        };
        let events = self.events.clone();
        let prepare = move || {
            let made = work.prepare();
            let is_made = made.is_ok();
            let _ = events.send(Event::Own(made));
            (work, is_made)
        };
        match std::thread::Builder::new()
            .name("prepare".into())
            .spawn(prepare)
        {
            Ok(thread) => self.own = Own::Preparing(thread),
            Err(e) => {
                let errno = Errno::from_io_error(&e).unwrap_or(Errno::AGAIN);
                let _ = self.events.send(Event::Own(Err(Error::Thread(errno))));
            }
        }
    }

    /// Waits until the thread that prepares the node is done.
    fn await_own(&mut self) {
        if let Own::Preparing(_) = self.own
            && let Own::Preparing(thread) = std::mem::replace(&mut self.own, Own::None)
            && let Ok((work, true)) = thread.join()
        {
            self.own = Own::Ready(work);
        }
    }

    fn serve(&mut self, map: Arc<PoolMap>) -> Result<(), Error> {
        self.await_own();
        match &mut self.own {
            Own::Ready(work) => work.serve(map),
            _ => Err(Error::NoStore),
        }
    }

    fn remove(&mut self) {
        self.await_own();
        if let Own::Ready(work) = std::mem::replace(&mut self.own, Own::None) {
            work.remove();
        }
    }

    fn finish(mut self) -> Option<W> {
        if let Own::Ready(work) = std::mem::replace(&mut self.own, Own::None) {
            self.children.values_mut().for_each(Child::close);
            return Some(work);
        }
        let until = Instant::now() + ENDING;
        for child in std::mem::take(&mut self.children).into_values() {
            child.end(until);
        }
        None
    }
}

/// The result of a start, for its caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The pool runs, on these nodes.
    Running(Vec<Node>),
    /// These nodes are missing; nothing is left behind.
    Failed(Vec<Missing>),
}

/// Launches node 0 and waits until the pool runs, or has failed.
pub fn order(begin: &Begin, launcher: &dyn Launcher) -> Outcome {
    let failed = |why: String| {
        let (node, below) = (0, begin.plan.hosts.len() as u32 - 1);
        Outcome::Failed(vec![Missing { node, below, why }])
    };
    let (events, happening) = channel();
    let mut child = match Child::launch(begin, launcher, events) {
        Ok(child) => child,
        Err(e) => return failed(e.to_string()),
    };
    // Node 0 has the same time limit, and reports more precisely. So this process waits a second
    // longer.
    let late = Instant::now() + begin.plan.within + Duration::from_secs(1);
    let mut nodes = Vec::new();
    loop {
        let left = late.saturating_duration_since(Instant::now());
        let outcome = match happening.recv_timeout(left) {
            Ok(Event::Child(_, Up::Report(all))) => {
                nodes = all;
                continue;
            }
            Ok(Event::Child(_, Up::Ready)) => {
                child.close();
                return Outcome::Running(nodes);
            }
            Ok(Event::Child(_, Up::Failed(missing))) => Outcome::Failed(missing),
            Ok(Event::Lost(_, why)) => failed(why),
            Ok(_) => continue,
            Err(_) => failed("doesn't answer in time".into()),
        };
        child.end(Instant::now() + 2 * ENDING);
        return outcome;
    }
}

//! The protocol by which the daemons of a pool start each other.
//!
//! Each daemon launches its children in the [`Tree`], prepares its own node meanwhile, and reports
//! itself and its descendants to its parent. Node 0 makes the pool map of the reports and sends it
//! down the tree. Each daemon starts to use the map, passes it on, and is ready when all its
//! descendants are. Then node 0 reports to the user, and tells the other daemons that they no
//! longer depend on their parents. So each node sends and gets a handful of messages, and a start
//! takes about as long as one launch per level.
//!
//! A pool has all its nodes or isn't started. A node that can't be launched, can't make its store
//! or doesn't answer within [`subtree_timeout`] is named to the user; all other nodes are told to
//! stop. A daemon that loses its parent stops, and so do its descendants, so that no process or
//! file is left behind.
//!
//! This module is the protocol alone. The protocol's driver carries out the [`Act`]s of a [`Start`]
//! and reports [`Event`]s. The protocol itself never waits, and doesn't depend on how daemons are
//! launched.

use crate::{Error, Tree};
use forebay_placement::{MapError, Node, PoolMap};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A node without which the pool can't start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The node's index in the list of hosts.
    pub node: u32,
    /// Number of the node's descendants: nothing is known about them, since the node didn't report.
    pub below: u32,
    /// The error, for users.
    pub why: String,
}

/// A message of a daemon to its parent.
#[derive(Clone, PartialEq, Debug)]
pub enum Up {
    /// These nodes, the sender and all its descendants, can serve.
    Report(Vec<Node>),
    /// These nodes can't serve. The sender has ended.
    Failed(Vec<Missing>),
    /// The sender and all its descendants have the map.
    Ready,
}

/// A message from a daemon to a child.
#[derive(Clone, PartialEq, Debug)]
pub enum Down {
    /// The pool map.
    Map(Arc<PoolMap>),
    /// All nodes are ready: the pool runs.
    Go,
    /// The start has failed.
    Stop,
}

/// An event.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// This node's own store is made and the daemon listens; or that failed.
    Own(Result<Node, Error>),
    /// A message from a child.
    Child(u32, Up),
    /// A child couldn't be launched, or has ended.
    Lost(u32, String),
    /// A message from the parent.
    Parent(Down),
    /// The parent has ended.
    Orphaned,
    /// The [`subtree_timeout`] of this node has passed.
    Late,
}

/// Actions for the driver, to be carried out in this order.
#[derive(Clone, PartialEq, Debug)]
pub enum Act {
    /// Launch the daemon of a child.
    Launch(u32),
    /// Make this node's store and listen; then report [`Event::Own`].
    Prepare,
    /// Send this message to the parent; node 0 reports it to the user.
    Up(Up),
    /// Send this message to a child.
    Down(u32, Down),
    /// Serve as a node of this pool.
    Serve(Arc<PoolMap>),
    /// Remove what this node has made, and end.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Gathering,
    /// This node has sent its report, and has no map yet.
    Reported,
    /// This node has the map; some descendants don't.
    Spreading,
    /// All descendants have the map, too.
    Ready,
    Running,
    Ended,
}

/// The state of the start, at one node.
#[derive(Debug)]
pub struct Start {
    pool: [u8; 16],
    tree: Tree,
    me: u32,
    phase: Phase,
    /// For each child, whether its answer in the present phase has arrived.
    children: BTreeMap<u32, bool>,
    /// Whether this node's own store has been prepared, or has failed.
    own: bool,
    nodes: Vec<Node>,
    missing: Vec<Missing>,
}

/// How long node `n` waits, from its own beginning, for its children to report and to be ready, if
/// the user waits for `total`. Nodes further from the root wait less, so that the parent of a
/// missing node gives up first: the parent knows which node is missing.
pub fn subtree_timeout(tree: &Tree, n: u32, total: Duration) -> Duration {
    let levels = tree.depth() + 1;
    total * (levels - tree.level(n).min(tree.depth())) / levels
}

impl Start {
    /// Begins the start at node `me` of the pool with this identity. Also returns the first
    /// actions.
    pub fn new(pool: [u8; 16], tree: Tree, me: u32) -> (Start, Vec<Act>) {
        let children: BTreeMap<u32, bool> = tree.children(me).map(|c| (c, false)).collect();
        // Children first: their start takes longest.
        let mut acts: Vec<Act> = children.keys().map(|&c| Act::Launch(c)).collect();
        acts.push(Act::Prepare);
        let start = Start {
            pool,
            tree,
            me,
            phase: Phase::Gathering,
            children,
            own: false,
            nodes: Vec::new(),
            missing: Vec::new(),
        };
        (start, acts)
    }

    /// Whether the pool runs.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether the start has failed.
    pub fn has_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Handles an event. Returns the actions to carry out. Events after the end of the start, or
    /// from a node that isn't a child, are ignored.
    pub fn on(&mut self, event: Event) -> Vec<Act> {
        if matches!(self.phase, Phase::Running | Phase::Ended) {
            return Vec::new();
        }
        match event {
            Event::Own(Ok(node)) => {
                if !self.own {
                    self.nodes.push(node);
                }
                self.own = true;
            }
            Event::Own(Err(why)) => {
                self.own = true;
                self.missing.push(Missing {
                    node: self.me,
                    below: 0,
                    why: why.to_string(),
                });
            }
            Event::Child(child, up) => self.heard(child, up),
            Event::Lost(child, why) => self.lost(child, why),
            Event::Parent(Down::Map(map)) if self.phase == Phase::Reported => {
                return self.serve(map);
            }
            Event::Parent(Down::Go) if self.phase == Phase::Ready => return self.run(),
            Event::Parent(_) | Event::Orphaned => return self.end(Vec::new()),
            Event::Late => {
                let silent = self.children.iter().filter(|c| !c.1).map(|c| *c.0);
                for child in silent.collect::<Vec<_>>() {
                    self.lost(child, "doesn't answer in time".into());
                }
                if !self.own {
                    self.own = true;
                    self.missing.push(Missing {
                        node: self.me,
                        below: 0,
                        why: "its store isn't made in time".into(),
                    });
                }
                let waits = matches!(self.phase, Phase::Reported | Phase::Ready);
                if waits && self.missing.is_empty() {
                    // The parent waits longer, and knows of more nodes.
                    return Vec::new();
                }
            }
        }
        self.go_on()
    }

    fn heard(&mut self, child: u32, up: Up) {
        let Some(answered) = self.children.get_mut(&child) else {
            return;
        };
        match up {
            Up::Report(nodes) if self.phase == Phase::Gathering && !*answered => {
                *answered = true;
                self.nodes.extend(nodes);
            }
            Up::Ready if self.phase == Phase::Spreading => *answered = true,
            Up::Failed(missing) => {
                *answered = true;
                // The child has ended, so messages can't be sent to it.
                self.children.remove(&child);
                self.missing.extend(missing);
            }
            _ => {}
        }
    }

    fn lost(&mut self, child: u32, why: String) {
        if self.children.remove(&child).is_some() {
            self.missing.push(Missing {
                node: child,
                below: self.tree.below(child) - 1,
                why,
            });
        }
    }

    fn go_on(&mut self) -> Vec<Act> {
        // In the first phase, all answers are awaited, to name all missing nodes. In a later phase,
        // the start fails at the first missing node.
        let gathered = self.own && self.children.values().all(|&answered| answered);
        match self.phase {
            Phase::Gathering if !gathered => Vec::new(),
            _ if !self.missing.is_empty() => {
                let mut missing = std::mem::take(&mut self.missing);
                missing.sort_by_key(|m| m.node);
                self.end(vec![Act::Up(Up::Failed(missing))])
            }
            Phase::Gathering if self.me == 0 => {
                match PoolMap::first(self.pool, std::mem::take(&mut self.nodes)) {
                    Ok(map) => self.serve(Arc::new(map)),
                    Err(e) => {
                        let missing = vec![no_map(e)];
                        self.end(vec![Act::Up(Up::Failed(missing))])
                    }
                }
            }
            Phase::Gathering => {
                self.phase = Phase::Reported;
                vec![Act::Up(Up::Report(std::mem::take(&mut self.nodes)))]
            }
            Phase::Spreading if gathered => {
                self.phase = Phase::Ready;
                // Node 0 reports to the user after it has sent the other nodes `Go`: if node 0 dies
                // between these two steps, either all other nodes run, or none.
                let mut acts = if self.me == 0 { self.run() } else { Vec::new() };
                acts.push(Act::Up(Up::Ready));
                acts
            }
            _ => Vec::new(),
        }
    }

    fn serve(&mut self, map: Arc<PoolMap>) -> Vec<Act> {
        self.phase = Phase::Spreading;
        let mut acts: Vec<Act> = Vec::with_capacity(self.children.len() + 2);
        for (child, answered) in &mut self.children {
            *answered = false;
            acts.push(Act::Down(*child, Down::Map(map.clone())));
        }
        acts.push(Act::Serve(map));
        acts.extend(self.go_on());
        acts
    }

    fn run(&mut self) -> Vec<Act> {
        self.phase = Phase::Running;
        let go = |&c: &u32| Act::Down(c, Down::Go);
        self.children.keys().map(go).collect()
    }

    fn end(&mut self, mut acts: Vec<Act>) -> Vec<Act> {
        self.phase = Phase::Ended;
        acts.extend(self.children.keys().map(|&c| Act::Down(c, Down::Stop)));
        acts.push(Act::End);
        acts
    }
}

fn no_map(e: MapError) -> Missing {
    let node = match e {
        MapError::Node(n) | MapError::Unknown(n) | MapError::Keeps(n) => n.0,
        _ => 0,
    };
    Missing {
        node,
        below: 0,
        why: format!("no map can be made: {e}"),
    }
}

//! Simulates the start of a pool in virtual time. The [`Start`]s are real; launches and messages of
//! given durations, and faults, are simulated.
//!
//! For tests, and to measure a start of ten thousand nodes on one host.

use forebay_placement::map::{Address, Medium, MediumKind};
use forebay_placement::{Node, NodeId, PoolMap, State};
use forebay_pool::start::{Act, Down, Event, Missing, Start, Up, subtree_timeout};
use forebay_pool::{Error, Tree};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Durations of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Minimum and maximum time from the order to launch a daemon until it runs.
    pub launch: (Duration, Duration),
    /// Time that the launching daemon spends for each launch.
    pub order: Duration,
    /// Time for making a store and listening.
    pub prepare: Duration,
    /// Time for the transfer of a message.
    pub message: Duration,
    /// Time for handling a message, and the additional time for each node or slice of a map in it.
    pub take: (Duration, Duration),
}

impl Default for Costs {
    /// As with ssh: a launch takes 150 to 400 ms. The rest was measured on two slow cores.
    fn default() -> Costs {
        Costs {
            launch: (Duration::from_millis(150), Duration::from_millis(400)),
            order: Duration::from_millis(2),
            prepare: Duration::from_millis(15),
            message: Duration::from_micros(100),
            take: (Duration::from_micros(20), Duration::from_nanos(600)),
        }
    }
}

/// A fault of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The launch fails.
    NoLaunch,
    /// The node is launched and never sends a message.
    Silent,
    /// The node can't make its store.
    NoStore,
    /// The node dies this long after it began; its parent notices.
    Dies(Duration),
}

/// The result of a start.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time after which the user got the result.
    pub took: Duration,
    /// The missing nodes; none if the pool runs.
    pub missing: Vec<Missing>,
    /// Number of daemons that serve at the end.
    pub serving: u32,
    /// Number of daemons that neither serve nor have ended, except those that are silent or dead by
    /// their fault.
    pub left: u32,
    /// Whether all serving daemons have the same map.
    pub agree: bool,
    /// Maximum number of messages that one node handled.
    pub most_messages: u32,
    /// Size of the encoded map. Bytes.
    pub map_bytes: usize,
}

enum What {
    Runs,
    Event(Event),
    Dies,
}

struct Daemon {
    start: Option<Start>,
    /// Time until which the node is busy.
    busy: Duration,
    map: Option<Arc<PoolMap>>,
    messages: u32,
    fault: Option<Fault>,
    dead: bool,
}

struct World<'a> {
    costs: Costs,
    pool: [u8; 16],
    tree: Tree,
    total: Duration,
    random: &'a mut dyn FnMut() -> u64,
    daemons: Vec<Daemon>,
    /// Time, rank among events of the same time, node. The events themselves are in `things`.
    queue: BinaryHeap<Reverse<(Duration, u64, u32)>>,
    things: HashMap<u64, What>,
    next: u64,
    reported: Option<(Duration, Vec<Missing>)>,
}

/// Starts a pool on `tree` with these costs and faults; the user waits for `total`. `random`
/// returns arbitrary numbers; the same numbers give the same outcome.
pub fn start(
    tree: Tree,
    costs: Costs,
    total: Duration,
    faults: &[(u32, Fault)],
    random: &mut dyn FnMut() -> u64,
) -> Outcome {
    let daemons = (0..tree.nodes()).map(|n| Daemon {
        start: None,
        busy: Duration::ZERO,
        map: None,
        messages: 0,
        fault: faults.iter().find(|f| f.0 == n).map(|f| f.1),
        dead: false,
    });
    let mut world = World {
        costs,
        pool: [7; 16],
        tree,
        total,
        random,
        daemons: daemons.collect(),
        queue: BinaryHeap::new(),
        things: HashMap::new(),
        next: 0,
        reported: None,
    };
    world.later(Duration::ZERO, 0, What::Runs);
    while let Some(Reverse((now, order, n))) = world.queue.pop() {
        let what = world.things.remove(&order).expect("each has one");
        world.happens(now, n, what);
    }
    world.outcome()
}

impl World<'_> {
    fn later(&mut self, at: Duration, node: u32, what: What) {
        self.things.insert(self.next, what);
        self.queue.push(Reverse((at, self.next, node)));
        self.next += 1;
    }

    fn happens(&mut self, now: Duration, n: u32, what: What) {
        let d = &mut self.daemons[n as usize];
        if d.dead {
            return;
        }
        let now = now.max(d.busy);
        let acts = match what {
            What::Runs if d.fault == Some(Fault::Silent) => {
                d.dead = true;
                return;
            }
            What::Runs => {
                let fault = d.fault;
                let (start, acts) = Start::new(self.pool, self.tree, n);
                self.daemons[n as usize].start = Some(start);
                let late = now + subtree_timeout(&self.tree, n, self.total);
                self.later(late, n, What::Event(Event::Late));
                let above = self.tree.parent(n);
                if above.is_some_and(|p| self.daemons[p as usize].dead) {
                    // The parent ended while this node was being launched.
                    self.later(now, n, What::Event(Event::Orphaned));
                }
                if let Some(Fault::Dies(after)) = fault {
                    self.later(now + after, n, What::Dies);
                }
                acts
            }
            What::Dies => return self.gone(now, n),
            What::Event(event) => {
                let names = match &event {
                    Event::Child(_, Up::Report(nodes)) => nodes.len(),
                    Event::Parent(Down::Map(map)) => {
                        map.nodes().len() + map.slices().iter().count()
                    }
                    _ => 0,
                };
                if matches!(event, Event::Child(..) | Event::Parent(_)) {
                    d.messages += 1;
                }
                d.busy = now + self.costs.take.0 + self.costs.take.1 * names as u32;
                let start = d.start.as_mut();
                start.map_or_else(Vec::new, |s| s.on(event))
            }
        };
        let at = now.max(self.daemons[n as usize].busy);
        self.carry_out(at, n, acts);
    }

    fn carry_out(&mut self, mut at: Duration, n: u32, acts: Vec<Act>) {
        let message = self.costs.message;
        for act in acts {
            match act {
                Act::Launch(child) => {
                    at += self.costs.order;
                    let (least, most) = self.costs.launch;
                    let spread = (most - least).as_micros().max(1) as u64;
                    let takes = least + Duration::from_micros((self.random)() % spread);
                    match self.daemons[child as usize].fault {
                        Some(Fault::NoLaunch) => {
                            self.daemons[child as usize].dead = true;
                            let lost = Event::Lost(child, "no such host".into());
                            self.later(at + takes, n, What::Event(lost));
                        }
                        _ => self.later(at + takes, child, What::Runs),
                    }
                }
                Act::Prepare => {
                    let own = match self.daemons[n as usize].fault {
                        Some(Fault::NoStore) => Err(Error::Host("no room".into())),
                        _ => Ok(node(n)),
                    };
                    self.later(at + self.costs.prepare, n, What::Event(Event::Own(own)));
                }
                Act::Up(up) => match (self.tree.parent(n), up) {
                    (Some(parent), up) => {
                        self.later(at + message, parent, What::Event(Event::Child(n, up)));
                    }
                    (None, Up::Failed(missing)) => self.reported = Some((at, missing)),
                    (None, _) => self.reported = Some((at, Vec::new())),
                },
                Act::Down(child, down) => {
                    self.later(at + message, child, What::Event(Event::Parent(down)));
                }
                Act::Serve(map) => self.daemons[n as usize].map = Some(map),
                Act::End => {
                    self.daemons[n as usize].map = None;
                    return self.gone(at, n);
                }
            }
        }
        self.daemons[n as usize].busy = at;
    }

    /// Removes node `n`; its parent and its children notice.
    fn gone(&mut self, now: Duration, n: u32) {
        let d = &mut self.daemons[n as usize];
        d.dead = true;
        d.map = None;
        let at = now + self.costs.message;
        for child in self.tree.children(n) {
            self.later(at, child, What::Event(Event::Orphaned));
        }
        match self.tree.parent(n) {
            Some(parent) => {
                let lost = Event::Lost(n, "its daemon has ended".into());
                self.later(at, parent, What::Event(lost));
            }
            None if self.reported.is_none() => {
                let why = "its daemon has ended".into();
                let below = self.tree.nodes() - 1;
                let missing = vec![Missing {
                    node: n,
                    below,
                    why,
                }];
                self.reported = Some((at, missing));
            }
            None => {}
        }
    }

    fn outcome(self) -> Outcome {
        let (took, missing) = self.reported.unwrap_or((Duration::MAX, Vec::new()));
        let maps: Vec<&Arc<PoolMap>> = self.daemons.iter().filter_map(|d| d.map.as_ref()).collect();
        let left = self.daemons.iter().filter(|d| {
            let runs = d.start.as_ref().is_some_and(|s| !s.has_ended());
            runs && !d.dead && d.map.is_none()
        });
        Outcome {
            took,
            missing,
            serving: maps.len() as u32,
            left: left.count() as u32,
            agree: maps
                .windows(2)
                .all(|m| Arc::ptr_eq(m[0], m[1]) || m[0] == m[1]),
            most_messages: self.daemons.iter().map(|d| d.messages).max().unwrap_or(0),
            map_bytes: maps.first().map_or(0, |m| m.encode().len()),
        }
    }
}

fn node(n: u32) -> Node {
    let media = vec![Medium {
        kind: MediumKind::Memory,
        capacity: 64 << 30,
    }];
    Node {
        number: NodeId(n),
        name: format!("n{n:05}"),
        addresses: vec![Address {
            ip: std::net::Ipv4Addr::from(0x0a00_0000 + n).into(),
            port: 30_000 + (n % 1000) as u16,
        }],
        state: State::Up,
        since: 1_800_000_000,
        weight: Node::weight_of(&media),
        media,
    }
}

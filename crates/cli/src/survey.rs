//! Surveys the state of all nodes of a pool: reads the directories of nodes on this host, and asks
//! the daemons of the others.

use crate::fail::Fail;
use forebay_client::requests::Channel;
use forebay_client::{MediumUsage, Place, Pool, PoolConfig, PoolError, keeper_pid, places};
use forebay_cluster::peers::Peers;
use forebay_placement::{Node, NodeId, PoolMap};
use forebay_pool::daemon::{ABOUT, About, read_map};
use forebay_runtime::process::is_stopped;
use std::collections::HashMap;
use std::sync::Arc;

/// A pool of several nodes, as seen from this host.
pub struct Survey {
    pub config: PoolConfig,
    /// The newest map among the nodes on this host.
    pub map: PoolMap,
    pub nodes: Vec<Known>,
}

/// The state of one node.
pub struct Known {
    pub node: Node,
    pub state: State,
    /// When the node entered this state. Seconds since 1970.
    pub since: Option<u64>,
    /// Why the node can't be reached, or why its data on this host can't be read.
    pub why: Option<String>,
    pub use_of: Option<Use>,
    /// The node's data, if the node is on this host.
    pub here: Option<Here>,
}

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Up,
    /// The node's daemon, on this host, doesn't run.
    Dead,
    /// The node's daemon, on this host, is stopped.
    Paused,
    /// The node's daemon doesn't reply.
    Unreachable,
    /// No daemon on this host could ask the node's daemon.
    Unknown,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Dead => "dead",
            State::Paused => "paused",
            State::Unreachable => "unreachable",
            State::Unknown => "unknown",
        }
    }
}

/// Used space of a node.
pub struct Use {
    pub media: Vec<MediumUsage>,
    pub record_bytes: Option<u64>,
    /// Number of bytes in copies of other nodes' files.
    pub copied: u64,
    pub processes: usize,
}

/// The parts of a node that this host has, as far as they can be read.
pub struct Here {
    pub place: Place,
    pub keeper: Option<u32>,
    pub pool: Option<Arc<Pool>>,
    /// Why the node's data can't be read.
    why: Option<String>,
}

impl Here {
    fn look(place: &Place) -> Here {
        let (pool, why) = match Pool::open_dir(&place.dir) {
            Ok(pool) => (Some(Arc::new(pool)), None),
            Err(e) => (None, Some(e.to_string())),
        };
        Here {
            place: place.clone(),
            keeper: keeper_pid(&place.dir),
            pool,
            why,
        }
    }

    fn state(&self) -> State {
        let Some(pid) = self.keeper else {
            return State::Dead;
        };
        if is_stopped(pid) {
            State::Paused
        } else {
            State::Up
        }
    }

    fn used(&self) -> Option<Use> {
        let pool = self.pool.as_ref()?;
        Some(Use {
            media: pool.usage(),
            record_bytes: pool.store().files.used().ok(),
            copied: pool.store().local_copies().copied().bytes,
            processes: pool.attached().len(),
        })
    }
}

impl Survey {
    /// Surveys the pool `name`, which has several nodes. Waits for silent nodes as long as the
    /// pool's request timeout.
    pub fn of(name: &str) -> Result<Survey, Fail> {
        let places = places(name);
        let newest = places.iter().filter_map(|p| read_map(&p.dir));
        let config = places.iter().find_map(|p| PoolConfig::read(&p.dir).ok());
        let (Some(map), Some(config)) = (newest.max_by_key(PoolMap::epoch), config) else {
            // Reports the error if the pool can't be opened.
            Pool::open(name)?;
            return Err(PoolError::Absent(name.to_owned()).into());
        };
        let mut here: HashMap<u32, Here> = places
            .iter()
            .filter_map(|p| Some((p.node?, Here::look(p))))
            .collect();
        let states: HashMap<u32, State> = here.iter().map(|(n, h)| (*n, h.state())).collect();
        let asker = places.iter().find(|p| {
            let state = p.node.and_then(|n| states.get(&n));
            state == Some(&State::Up)
        });
        let can_answer = |n: &NodeId| matches!(states.get(&n.0), None | Some(State::Up));
        let reachable: Vec<NodeId> = map.nodes().iter().map(|n| n.number).collect();
        let reachable: Vec<NodeId> = reachable.into_iter().filter(can_answer).collect();
        let mut replies =
            asker.map_or_else(HashMap::new, |p| ask(p, map.nodes().len(), &reachable));
        // The asking daemon has tried all nodes by now: ask it what it knows of the silent ones.
        let silent = replies.values().any(Option::is_none);
        let own = asker.filter(|_| silent || reachable.len() < map.nodes().len());
        let own = own.and_then(|p| {
            ask(p, map.nodes().len(), &[NodeId(p.node?)])
                .into_values()
                .next()
        });
        let unreachable = own.flatten().map_or(Vec::new(), |about| about.unreachable);
        let nodes = map.nodes().iter().map(|node| {
            let n = node.number.0;
            let here = here.remove(&n);
            let about = replies.remove(&n);
            let lost = unreachable.iter().find(|u| u.node == n);
            let state = match (&here, &about) {
                (_, Some(Some(_))) => State::Up,
                (Some(h), None) => h.state(),
                (_, Some(None)) => State::Unreachable,
                (None, None) => State::Unknown,
            };
            let about = about.flatten();
            Known {
                since: match (&about, state) {
                    (Some(about), _) => Some(about.since),
                    (None, State::Up) => Some(node.since),
                    _ => lost.map(|l| l.since),
                },
                why: lost
                    .filter(|_| state == State::Unreachable)
                    .and_then(|l| l.why.clone())
                    .or_else(|| here.as_ref()?.why.clone()),
                use_of: match about {
                    Some(about) => Some(Use {
                        media: about.media,
                        record_bytes: about.record_bytes,
                        copied: about.copied,
                        processes: about.processes,
                    }),
                    None => here.as_ref().and_then(Here::used),
                },
                node: node.clone(),
                state,
                here,
            }
        });
        let nodes = nodes.collect();
        Ok(Survey { config, map, nodes })
    }
}

/// Returns the replies of these nodes' daemons, sent by way of the daemon of `place`. None for a
/// node that gave no reply.
fn ask(place: &Place, count: usize, nodes: &[NodeId]) -> HashMap<u32, Option<About>> {
    let me = NodeId(place.node.unwrap_or(0));
    let Ok(channel) = Channel::open(&place.dir, me, count as u32) else {
        return HashMap::new();
    };
    let answers = channel.ask_each(nodes, ABOUT, &[]);
    let abouts = answers
        .into_iter()
        .map(|a| serde_json::from_slice(&a.ok()?.head).ok());
    nodes.iter().map(|n| n.0).zip(abouts).collect()
}

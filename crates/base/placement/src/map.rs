//! The pool map: the nodes of a pool, and which of them keeps which slots, in one epoch.
//!
//! A map never changes; every change makes a new map with the next epoch. The daemons decide which
//! node may make one, and distribute it. Guarantees: a map is valid; from the same input, every
//! node makes the same map; a server that calls [`PoolMap::answer`] before it serves a request
//! never serves slots of another node.

use crate::{Claim, Moved, NodeId, SLOTS, Slices, Slot};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of nodes of a pool, so that there are at least 16 slots for each.
pub const MAX_NODES: usize = SLOTS as usize / 16;
/// Maximum length of a node's name. Bytes.
pub const MAX_NAME: usize = 128;
/// Maximum number of addresses of a node.
pub const MAX_ADDRESSES: usize = 8;
/// Maximum number of media of a node.
pub const MAX_MEDIA: usize = 16;

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The node serves its slots.
    Up,
    /// The node can't be reached, but keeps its slots.
    Down,
    /// The node will get slots.
    Joining,
    /// The node will lose its slots.
    Leaving,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Up => "up",
            State::Down => "down",
            State::Joining => "joining",
            State::Leaving => "leaving",
        })
    }
}

/// A kind of media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MediumKind {
    /// Shared memory.
    Memory,
    /// A directory of any file system.
    Files,
}

/// A medium of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Medium {
    /// The medium's kind.
    pub kind: MediumKind,
    /// The medium's capacity. Bytes.
    pub capacity: u64,
}

/// A TCP address on which a node listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The host.
    pub ip: IpAddr,
    /// The port.
    pub port: u16,
}

impl From<Address> for SocketAddr {
    fn from(a: Address) -> SocketAddr {
        SocketAddr::new(a.ip, a.port)
    }
}

/// A node of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The node's number. No other node of the pool ever gets it.
    pub number: NodeId,
    /// The node's name for users: its host's name, with a suffix where a host has several nodes.
    pub name: String,
    /// The node's addresses, the preferred one first.
    pub addresses: Vec<Address>,
    /// The node's state.
    pub state: State,
    /// When the node got this state. Seconds since 1970.
    pub since: u64,
    /// Weight of the node's share of the slots, in relation to other nodes. 0: no slots.
    pub weight: u32,
    /// The node's media, fastest first.
    pub media: Vec<Medium>,
}

impl Node {
    /// Returns the weight of a node with these media: their capacity in MiB.
    pub fn weight_of(media: &[Medium]) -> u32 {
        let bytes = media.iter().fold(0u64, |n, m| n.saturating_add(m.capacity));
        u32::try_from(bytes >> 20).unwrap_or(u32::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), MapError> {
        let sound = (1..=MAX_NAME).contains(&self.name.len())
            && !self.name.chars().any(char::is_control)
            && self.addresses.len() <= MAX_ADDRESSES
            && self.media.len() <= MAX_MEDIA;
        sound.then_some(()).ok_or(MapError::Node(self.number))
    }
}

/// Why a map can't be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// There are more than [`MAX_NODES`] nodes, or none.
    Count,
    /// The node's name, addresses or media exceed the limits, or another node has its number.
    Node(NodeId),
    /// No node has this number.
    Unknown(NodeId),
    /// The node still keeps slots.
    Keeps(NodeId),
    /// No node has a weight, so none can take the slots.
    NoWeight,
    /// The sources of the moves don't have the slots in this map.
    Moves,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapError::Count => write!(f, "a pool has 1 to {MAX_NODES} nodes"),
            MapError::Node(n) => write!(
                f,
                "node {n}: a name has 1 to {MAX_NAME} bytes without control characters, and there \
                 are at most {MAX_ADDRESSES} addresses and {MAX_MEDIA} media; numbers differ"
            ),
            MapError::Unknown(n) => write!(f, "the pool has no node {n}"),
            MapError::Keeps(n) => write!(f, "node {n} still keeps data"),
            MapError::NoWeight => write!(f, "no node of the pool can take the data"),
            MapError::Moves => write!(f, "the map has changed since the moves were planned"),
        }
    }
}

impl std::error::Error for MapError {}

/// A server's decision about a request, by the epochs of the client's map and its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Serve the request. If `newer`, tell the client that there is a newer map, which it need not
    /// fetch at once.
    Serve {
        /// Whether the client's map is older.
        newer: bool,
    },
    /// Don't serve the request, but send the map: the client's map is older, and the slot has
    /// moved.
    OldMap,
    /// Fetch the client's map, which is newer, and decide again.
    Behind,
    /// Refuse the request: the client has the same map, and has chosen the wrong node.
    Wrong,
}

/// The nodes and slots of a pool in one epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolMap {
    pool: [u8; 16],
    epoch: u64,
    next: u32,
    /// The nodes, sorted by their numbers.
    nodes: Vec<Node>,
    slices: Slices,
}

impl PoolMap {
    /// Makes the first map of the pool with this identity. All nodes get slots by weight at once.
    ///
    /// # Errors
    /// [`MapError`] if there are no or too many nodes, one isn't valid, or none has a weight.
    pub fn first(pool: [u8; 16], mut nodes: Vec<Node>) -> Result<PoolMap, MapError> {
        nodes.sort_by_key(|n| n.number);
        let slices = Slices::new(&claims(&nodes)).ok_or(MapError::NoWeight)?;
        let next = nodes.last().map_or(0, |n| n.number.0.saturating_add(1));
        PoolMap::sound(pool, 1, next, nodes, slices)
    }

    /// Makes the map with these fields, if they are consistent.
    pub(crate) fn sound(
        pool: [u8; 16],
        epoch: u64,
        next: u32,
        nodes: Vec<Node>,
        slices: Slices,
    ) -> Result<PoolMap, MapError> {
        if nodes.is_empty() || nodes.len() > MAX_NODES {
            return Err(MapError::Count);
        }
        for (i, node) in nodes.iter().enumerate() {
            node.check()?;
            let after = i
                .checked_sub(1)
                .is_none_or(|b| nodes[b].number < node.number);
            if !after || node.number.0 >= next {
                return Err(MapError::Node(node.number));
            }
        }
        let map = PoolMap {
            pool,
            epoch,
            next,
            nodes,
            slices,
        };
        let unknown = map.slices.iter().find(|s| map.node(s.1).is_none());
        unknown.map_or(Ok(map), |s| Err(MapError::Unknown(s.1)))
    }

    /// The pool's identity.
    pub fn pool(&self) -> [u8; 16] {
        self.pool
    }

    /// The map's epoch: 1 for the first map, one more for each change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number for the next node that joins.
    pub fn next_number(&self) -> NodeId {
        NodeId(self.next)
    }

    /// The nodes in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number.
    pub fn node(&self, number: NodeId) -> Option<&Node> {
        self.place(number).ok().map(|i| &self.nodes[i])
    }

    fn place(&self, number: NodeId) -> Result<usize, MapError> {
        let place = self.nodes.binary_search_by_key(&number, |n| n.number);
        place.map_err(|_| MapError::Unknown(number))
    }

    /// Which node keeps which slots.
    pub fn slices(&self) -> &Slices {
        &self.slices
    }

    /// Decides what node `me`, which has this map, does with a request for `slot`. `theirs`: epoch
    /// of the client's map.
    ///
    /// A request by an older map is served if the node still keeps the slot: most changes concern
    /// few slots, and the clients of all other slots need not wait.
    pub fn answer(&self, me: NodeId, slot: Slot, theirs: u64) -> Answer {
        let mine = self.slices.node_of(slot) == me;
        match theirs.cmp(&self.epoch) {
            std::cmp::Ordering::Greater => Answer::Behind,
            std::cmp::Ordering::Less if mine => Answer::Serve { newer: true },
            std::cmp::Ordering::Less => Answer::OldMap,
            std::cmp::Ordering::Equal if mine => Answer::Serve { newer: false },
            std::cmp::Ordering::Equal => Answer::Wrong,
        }
    }

    fn changed(&self, nodes: Vec<Node>, slices: Slices) -> Result<PoolMap, MapError> {
        assert!(self.epoch < u64::MAX >> 1, "epochs don't run out");
        PoolMap::sound(self.pool, self.epoch + 1, self.next, nodes, slices)
    }

    /// Returns the map with one more node. The node gets the number [`PoolMap::next_number`] and is
    /// `Joining`. The node has no slots until the moves to [`PoolMap::target`] are made.
    ///
    /// # Errors
    /// [`MapError`] if the node isn't valid, or there are too many.
    pub fn joined(&self, node: Node) -> Result<PoolMap, MapError> {
        let mut nodes = self.nodes.clone();
        nodes.push(Node {
            number: NodeId(self.next),
            state: State::Joining,
            ..node
        });
        let next = self.next.checked_add(1).ok_or(MapError::Count)?;
        PoolMap::sound(self.pool, self.epoch + 1, next, nodes, self.slices.clone())
    }

    /// Returns the map with node `n` in the state `state` since `since` (seconds since 1970).
    ///
    /// # Errors
    /// [`MapError::Unknown`] if there is no such node.
    pub fn with_state(&self, n: NodeId, state: State, since: u64) -> Result<PoolMap, MapError> {
        let (mut nodes, place) = (self.nodes.clone(), self.place(n)?);
        nodes[place].state = state;
        nodes[place].since = since;
        self.changed(nodes, self.slices.clone())
    }

    /// Returns the map with another weight for node `n`.
    ///
    /// # Errors
    /// [`MapError::Unknown`] if there is no such node.
    pub fn with_weight(&self, n: NodeId, weight: u32) -> Result<PoolMap, MapError> {
        let (mut nodes, place) = (self.nodes.clone(), self.place(n)?);
        nodes[place].weight = weight;
        self.changed(nodes, self.slices.clone())
    }

    /// Returns the map with other addresses for the restarted node `n`.
    ///
    /// # Errors
    /// [`MapError`] if there is no such node, or there are too many addresses.
    pub fn with_addresses(&self, n: NodeId, addresses: &[Address]) -> Result<PoolMap, MapError> {
        let (mut nodes, place) = (self.nodes.clone(), self.place(n)?);
        nodes[place].addresses = addresses.to_vec();
        self.changed(nodes, self.slices.clone())
    }

    /// Returns the map without node `n`, which must not keep slots any more.
    ///
    /// # Errors
    /// [`MapError::Unknown`] if there is no such node; [`MapError::Keeps`] if it still keeps slots.
    pub fn without(&self, n: NodeId) -> Result<PoolMap, MapError> {
        let (mut nodes, place) = (self.nodes.clone(), self.place(n)?);
        if self.slices.held(n) > 0 {
            return Err(MapError::Keeps(n));
        }
        nodes.remove(place);
        self.changed(nodes, self.slices.clone())
    }

    /// Returns the slices to which the states and weights of the nodes lead. Leaving nodes keep no
    /// slots. Nodes that are down keep theirs, since nothing can be moved from or to them.
    ///
    /// # Errors
    /// [`MapError::NoWeight`] if slots must be moved but no node can take them.
    pub fn target(&self) -> Result<Slices, MapError> {
        let target = self.slices.balanced(&claims(&self.nodes));
        target.ok_or(MapError::NoWeight)
    }

    /// Returns the map after these moves: all that [`moved`](crate::Slices::moved) returns for the
    /// target, or some of them at a time, in the order of slots.
    ///
    /// # Errors
    /// [`MapError`] if the source of a move no longer has its slots, or a node doesn't exist.
    pub fn after(&self, moves: &[Moved]) -> Result<PoolMap, MapError> {
        let slices = self.slices.after(moves).ok_or(MapError::Moves)?;
        self.changed(self.nodes.clone(), slices)
    }

    /// Returns the slots that have another node in `new`, a later map.
    pub fn moved(&self, new: &PoolMap) -> Vec<Moved> {
        self.slices.moved(&new.slices)
    }
}

fn claims(nodes: &[Node]) -> BTreeMap<NodeId, Claim> {
    let claim = |n: &Node| match n.state {
        State::Up | State::Joining => Some((n.number, Claim::Weight(n.weight))),
        State::Down => Some((n.number, Claim::Keep)),
        State::Leaving => None,
    };
    nodes.iter().filter_map(claim).collect()
}

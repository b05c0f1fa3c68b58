//! Slices: which node keeps which slots.
//!
//! The ring of slots is cut into slices, each of which belongs to one node, after *random slicing*
//! (Miranda et al., ACM TOS 2014). A node's share is the total length of its slices, in proportion
//! to its weight. A change of the nodes moves no more slots than necessary. A look-up is a binary
//! search among the few slices that begin near the slot.

use crate::{SLOTS, Slot};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The number of a node. No other node of the pool ever gets the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A node's claim on slots when they are balanced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A share in proportion to this weight.
    Weight(u32),
    /// Exactly the slots that the node has now, because it can't be reached.
    Keep,
}

/// A run of slots that move from one node to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The slots.
    pub slots: Range<u32>,
    /// The slots' old node.
    pub from: NodeId,
    /// The slots' new node.
    pub to: NodeId,
}

const BUCKETS: usize = 4096;
const BUCKET_BITS: u32 = (SLOTS / BUCKETS as u32).trailing_zeros();

/// All slots, cut into slices. Each slot has exactly one node, and neighbouring slices have
/// different nodes.
#[derive(Clone)]
pub struct Slices {
    /// First slot of each slice, ascending, from 0.
    starts: Vec<u32>,
    /// The node of each slice.
    nodes: Vec<NodeId>,
    /// For each bucket of slots, the slice that contains its first slot. One more entry at the end.
    index: Vec<u32>,
    /// Indexes of the slices, sorted by their nodes.
    by_node: Vec<u32>,
}

impl Slices {
    /// Makes slices of (length, node) pairs in order; neighbours of the same node are joined. None
    /// unless the lengths add up to [`SLOTS`].
    pub fn from_lengths(lengths: impl IntoIterator<Item = (u32, NodeId)>) -> Option<Slices> {
        let (mut starts, mut nodes) = (Vec::new(), Vec::new());
        let mut at = 0u32;
        for (length, node) in lengths {
            if length == 0 {
                continue;
            }
            if nodes.last() != Some(&node) {
                starts.push(at);
                nodes.push(node);
            }
            at = at.checked_add(length).filter(|&at| at <= SLOTS)?;
        }
        debug_assert!(starts.is_sorted_by(|a, b| a < b), "slices are in order");
        (at == SLOTS).then(|| Slices::indexed(starts, nodes))
    }

    fn indexed(starts: Vec<u32>, nodes: Vec<NodeId>) -> Slices {
        let mut index = Vec::with_capacity(BUCKETS + 1);
        let mut slice = 0;
        for bucket in 0..BUCKETS as u32 {
            while starts
                .get(slice + 1)
                .is_some_and(|&s| s <= bucket << BUCKET_BITS)
            {
                slice += 1;
            }
            index.push(slice as u32);
        }
        index.push(starts.len() as u32 - 1);
        let mut by_node: Vec<u32> = (0..starts.len() as u32).collect();
        by_node.sort_by_key(|&s| (nodes[s as usize], s));
        Slices {
            starts,
            nodes,
            index,
            by_node,
        }
    }

    /// The number of slices.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The node that keeps `slot`.
    pub fn node_of(&self, slot: Slot) -> NodeId {
        let slot = slot.0 & (SLOTS - 1);
        let bucket = (slot >> BUCKET_BITS) as usize;
        let (first, last) = (self.index[bucket], self.index[bucket + 1]);
        let later = &self.starts[first as usize + 1..=last as usize];
        let at = first as usize + later.partition_point(|&s| s <= slot);
        debug_assert!(self.range(at).contains(&slot), "a slot lies in its slice");
        self.nodes[at]
    }

    /// All slices in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u32>, NodeId)> + '_ {
        (0..self.len()).map(|s| (self.range(s), self.nodes[s]))
    }

    fn range(&self, slice: usize) -> Range<u32> {
        self.starts[slice]..self.starts.get(slice + 1).copied().unwrap_or(SLOTS)
    }

    /// The slices of `node`, ascending.
    pub fn of_node(&self, node: NodeId) -> impl Iterator<Item = Range<u32>> + '_ {
        let of = |s: &u32| self.nodes[*s as usize];
        let first = self.by_node.partition_point(|s| of(s) < node);
        self.by_node[first..]
            .iter()
            .take_while(move |s| of(s) == node)
            .map(|&s| self.range(s as usize))
    }

    /// Number of slots of `node`.
    pub fn held(&self, node: NodeId) -> u32 {
        self.of_node(node).map(|r| r.end - r.start).sum()
    }

    /// Number of slots of each node that has any.
    pub fn all_held(&self) -> BTreeMap<NodeId, u32> {
        let mut held = BTreeMap::new();
        for (range, node) in self.iter() {
            *held.entry(node).or_insert(0) += range.end - range.start;
        }
        held
    }

    /// Returns one of the slots of `node`, chosen by `hash`. None if the node has no slots.
    pub fn slot_on(&self, node: NodeId, hash: u64) -> Option<Slot> {
        let held = u64::from(self.held(node));
        let mut skip = hash.checked_rem(held)? as u32;
        for range in self.of_node(node) {
            if skip < range.end - range.start {
                return Some(Slot(range.start + skip));
            }
            skip -= range.end - range.start;
        }
        None
    }

    /// Returns the slots that have another node in `new`, in the order of slots.
    pub fn moved(&self, new: &Slices) -> Vec<Moved> {
        let mut all: Vec<Moved> = Vec::new();
        let (mut a, mut b, mut at) = (0, 0, 0);
        while at < SLOTS {
            let end = self.range(a).end.min(new.range(b).end);
            let (from, to) = (self.nodes[a], new.nodes[b]);
            if from != to {
                match all.last_mut() {
                    Some(m) if m.slots.end == at && m.from == from && m.to == to => {
                        m.slots.end = end;
                    }
                    _ => all.push(Moved {
                        slots: at..end,
                        from,
                        to,
                    }),
                }
            }
            assert!(end > at, "slices have slots");
            a += usize::from(end == self.range(a).end);
            b += usize::from(end == new.range(b).end);
            at = end;
        }
        all
    }

    /// Returns the slices after these moves, which must be in the order of slots. None if the
    /// source of a move doesn't have its slots.
    pub fn after(&self, moves: &[Moved]) -> Option<Slices> {
        let mut lengths = Vec::with_capacity(self.len() + 2 * moves.len());
        let mut moves = moves.iter().peekable();
        let mut end = 0;
        for (range, node) in self.iter() {
            // The slots of a move lie in one slice: neighbouring slices have different nodes.
            let mut at = range.start;
            while let Some(m) = moves.next_if(|m| m.slots.start < range.end) {
                let sound = m.from == node && m.slots.start >= at && m.slots.end <= range.end;
                if !sound || m.slots.is_empty() {
                    return None;
                }
                lengths.push((m.slots.start - at, node));
                lengths.push((m.slots.end - m.slots.start, m.to));
                at = m.slots.end;
            }
            lengths.push((range.end - at, node));
            end = range.end;
        }
        debug_assert_eq!(end, SLOTS);
        if moves.next().is_some() {
            return None;
        }
        Slices::from_lengths(lengths)
    }
}

impl PartialEq for Slices {
    fn eq(&self, other: &Slices) -> bool {
        self.starts == other.starts && self.nodes == other.nodes
    }
}

impl Eq for Slices {}

impl fmt::Debug for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

//! Slices: which node keeps which slots.
//!
//! The ring of slots is cut into slices, each of which belongs to one node, after *random slicing*
//! (Miranda et al., ACM TOS 2014). A node's share is the total length of its slices, in proportion
//! to its weight. A look-up is a binary search among the few slices that begin near the slot.

use crate::{SLOTS, Slot};
use std::cmp::Reverse;
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

/// A node's share of the slots.
struct Share {
    node: NodeId,
    slots: u32,
    /// The remainder that rounding `slots` down has cut off.
    rest: u64,
}

impl Slices {
    /// Makes the slices of a new pool: one for each node that gets slots, the longest first. Shares
    /// are in proportion to the weights, rounded down; the remaining slots go to the nodes that
    /// lose most by rounding. None if no node has a weight.
    pub fn new(weights: &BTreeMap<NodeId, u32>) -> Option<Slices> {
        let total: u64 = weights.values().map(|&weight| u64::from(weight)).sum();
        let share = |(&node, &weight): (&NodeId, &u32)| {
            // Below 2^50.
            let product = u64::from(SLOTS) * u64::from(weight);
            Some(Share {
                node,
                slots: product.checked_div(total)? as u32,
                rest: product % total,
            })
        };
        let mut shares: Vec<Share> = weights.iter().map(share).collect::<Option<_>>()?;
        let left = SLOTS.checked_sub(shares.iter().map(|s| s.slots).sum())?;
        shares.sort_by_key(|s| (Reverse(s.rest), s.node));
        for share in shares.iter_mut().take(left as usize) {
            share.slots += 1;
        }
        shares.sort_by_key(|s| (Reverse(s.slots), s.node));
        Slices::from_lengths(shares.iter().map(|s| (s.slots, s.node)))
    }

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

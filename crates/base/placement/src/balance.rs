//! Computes how slots move when the claims on them change.
//!
//! There are three steps. First, [`changes`] computes how many slots each node gives or takes.
//! Second, the slots to give are chosen: whole small slices first, then ends of slices beside
//! existing gaps. Third, the gaps are distributed: to a neighbour, so that slices join; else the
//! largest gap goes to the largest claim that it fits. The aim is few slices. Every choice has a
//! fixed order, so all nodes make the same choices.

use crate::SLOTS;
use crate::slices::{Claim, NodeId, Slices};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A node's slots may be off its fair share by one part in this number, so that fewer nodes change.
const TOLERANCE: u32 = 64;

impl Slices {
    /// Makes the slices of a new pool: one for each node that gets slots. None if no node has a
    /// weight.
    pub fn new(claims: &BTreeMap<NodeId, Claim>) -> Option<Slices> {
        balance(None, claims)
    }

    /// Returns the slices after these claims are met. A node without a claim loses all its slots.
    ///
    /// A node may stay within 1/32 of its fair share (plus one slot), so that few nodes take part
    /// in a change, and slices stay long. No more slots are moved than exact shares would require.
    ///
    /// None if slots have to be moved but no node has a weight.
    pub fn balanced(&self, claims: &BTreeMap<NodeId, Claim>) -> Option<Slices> {
        balance(Some(self), claims)
    }
}

/// Returns the slices for these claims; `old`: the slices to start from, if there are any.
fn balance(old: Option<&Slices>, claims: &BTreeMap<NodeId, Claim>) -> Option<Slices> {
    let mut held = old.map_or_else(BTreeMap::new, Slices::all_held);
    for &node in claims.keys() {
        held.entry(node).or_insert(0);
    }
    let free = if old.is_some() { 0 } else { SLOTS };
    let changes = changes(&held, claims, free)?;
    let mut ring = Ring::new(old);
    let mut takers = Vec::new();
    for (node, change) in changes {
        if change < 0 {
            ring.free(old?.of_node(node).collect(), change.unsigned_abs());
        } else if change > 0 {
            takers.push((node, change.unsigned_abs()));
        }
    }
    ring.fill(takers);
    Some(ring.slices())
}

/// A node in a change: the slots that it has, its exact share (rounded down, up, and to the fair
/// number), and its change so far.
struct Share {
    node: NodeId,
    held: u32,
    floor: u32,
    ceil: u32,
    fair: u32,
    change: i32,
}

impl Share {
    fn new(node: NodeId, held: u32) -> Share {
        Share {
            node,
            held,
            floor: 0,
            ceil: 0,
            fair: 0,
            change: 0,
        }
    }

    /// Number of slots by which the node may be off its share, so that fewer nodes change.
    fn slack(&self) -> u32 {
        self.floor / TOLERANCE
    }

    /// Number of slots the node has after the change so far.
    fn now(&self) -> u32 {
        self.held.strict_add_signed(self.change)
    }

    /// Returns the number of slots that the node must give (negative) or take. A node that is off
    /// its share by more than twice the slack must get within twice the slack; a node with less
    /// than half of its share gets the whole share.
    fn must(&self) -> i32 {
        let (least, most) = (self.floor - 2 * self.slack(), self.ceil + 2 * self.slack());
        let to = match self.held {
            h if 2 * h < self.floor => self.fair,
            h => h.clamp(least, most),
        };
        to as i32 - self.held as i32
    }

    /// Returns the number of slots that the node can still give (`-1`) or take (`1`) until it has
    /// its share.
    fn to_fair(&self, sign: i32) -> u32 {
        (sign * (self.fair as i32 - self.now() as i32)).max(0) as u32
    }

    /// As [`Share::to_fair`], but until the node is off its share by the slack.
    fn to_slack(&self, sign: i32) -> u32 {
        let to = match sign {
            1 => self.ceil + self.slack(),
            _ => self.floor - self.slack(),
        };
        (sign * (to as i32 - self.now() as i32)).max(0) as u32
    }
}

/// Returns how many slots each node takes (positive) or gives. The sum is the number of `free`
/// slots.
fn changes(
    held: &BTreeMap<NodeId, u32>,
    claims: &BTreeMap<NodeId, Claim>,
    free: u32,
) -> Option<Vec<(NodeId, i32)>> {
    let kept = |node| claims.get(node) == Some(&Claim::Keep);
    let open: u32 = free + held.iter().filter(|h| !kept(h.0)).map(|h| h.1).sum::<u32>();
    let weight = |node| match claims.get(node) {
        Some(Claim::Weight(w)) => u64::from(*w),
        _ => 0,
    };
    let total: u64 = held.keys().map(weight).sum();
    if total == 0 {
        return (open == 0).then(Vec::new);
    }
    // Fair shares in whole slots are rounded down. The remaining slots are given to the nodes that
    // lose most by rounding. A weight is below 2^32, so nothing overflows.
    let mut shares = Vec::with_capacity(held.len());
    for (node, &held) in held.iter().filter(|h| !kept(h.0)) {
        let product = u64::from(open) * weight(node);
        let (floor, rest) = ((product / total) as u32, product % total);
        let mut share = Share::new(*node, held);
        (share.floor, share.ceil) = (floor, floor + u32::from(rest > 0));
        share.fair = floor;
        shares.push((share, rest));
    }
    let left = open - shares.iter().map(|s| s.0.floor).sum::<u32>();
    shares.sort_by_key(|(s, rest)| (u64::MAX - rest, s.node));
    for (share, _) in shares.iter_mut().take(left as usize) {
        share.fair += 1;
    }
    let mut shares: Vec<Share> = shares.into_iter().map(|s| s.0).collect();

    let mut rest = i64::from(free);
    for share in &mut shares {
        share.change = share.must();
        rest -= i64::from(share.change);
    }
    // The rest is distributed so that few nodes take part. First, nodes that give or take slots
    // anyway get closer to their shares. Then the nodes furthest from their shares change, each as
    // much as it can.
    let sign = if rest < 0 { -1 } else { 1 };
    even_out(&mut shares, &mut rest, |s| {
        u32::from(s.change * sign > 0) * s.to_fair(sign)
    });
    even_out(&mut shares, &mut rest, |s| {
        u32::from(s.change * sign >= 0) * s.to_slack(sign)
    });
    assert_eq!(rest, 0, "fair shares lie within what a node may have");
    shares.sort_by_key(|s| s.node);
    Some(shares.iter().map(|s| (s.node, s.change)).collect())
}

/// Distributes `rest` among nodes, up to the `room` of each. Begins with the nodes whose `room` is
/// largest in relation to their shares.
fn even_out(shares: &mut [Share], rest: &mut i64, room: impl Fn(&Share) -> u32) {
    let relative = |s: &Share| (u64::from(room(s)) << 32) / u64::from(s.ceil.max(1));
    shares.sort_by_cached_key(|s| (u64::MAX - relative(s), s.node));
    for share in shares {
        let part = i64::from(room(share)).min(rest.abs()) * rest.signum();
        share.change += part as i32;
        *rest -= part;
    }
}

/// The node of each slot while slots are given and taken; None for a free slot.
struct Ring(Vec<Option<NodeId>>);

impl Ring {
    fn new(old: Option<&Slices>) -> Ring {
        let mut ring = vec![None; SLOTS as usize];
        for (range, node) in old.into_iter().flat_map(Slices::iter) {
            ring[range.start as usize..range.end as usize].fill(Some(node));
        }
        Ring(ring)
    }

    fn set(&mut self, range: Range<u32>, node: Option<NodeId>) {
        self.0[range.start as usize..range.end as usize].fill(node);
    }

    fn at(&self, slot: u32) -> Option<NodeId> {
        self.0[slot as usize]
    }

    /// Frees `count` slots of one node. `slices`: the node's slices.
    fn free(&mut self, mut slices: Vec<Range<u32>>, mut count: u32) {
        slices.sort_by_key(|s| (s.end - s.start, s.start));
        let mut rest = Vec::new();
        for slice in slices {
            if slice.end - slice.start <= count {
                count -= slice.end - slice.start;
                self.set(slice, None);
            } else {
                rest.push(slice);
            }
        }
        if count == 0 {
            return;
        }
        let after_gap = |s: &&Range<u32>| s.start > 0 && self.at(s.start - 1).is_none();
        let before_gap = |s: &&Range<u32>| s.end < SLOTS && self.at(s.end).is_none();
        let cut = if let Some(s) = rest.iter().find(before_gap) {
            s.end - count..s.end
        } else if let Some(s) = rest.iter().find(after_gap) {
            s.start..s.start + count
        } else {
            let s = rest.last().expect("a node gives no more than it has");
            s.end - count..s.end
        };
        self.set(cut, None);
    }

    /// Returns the free slots, in runs that are as long as possible.
    fn gaps(&self) -> Vec<Range<u32>> {
        let mut gaps: Vec<Range<u32>> = Vec::new();
        for slot in (0..SLOTS).filter(|&s| self.at(s).is_none()) {
            match gaps.last_mut() {
                Some(gap) if gap.end == slot => gap.end += 1,
                _ => gaps.push(slot..slot + 1),
            }
        }
        gaps
    }

    /// Gives all free slots to the nodes in `takers`. Together these nodes need exactly that many.
    fn fill(&mut self, takers: Vec<(NodeId, u32)>) {
        let mut wants: BTreeMap<NodeId, u32> = takers.into_iter().collect();
        let mut gaps = BTreeSet::new();
        for mut gap in self.gaps() {
            // Neighbours of a gap come first: their slices only become longer.
            let before = gap.start.checked_sub(1).and_then(|s| self.at(s));
            let after = (gap.end < SLOTS).then(|| self.at(gap.end)).flatten();
            if let Some((node, n)) = want(&mut wants, before, &gap) {
                self.set(gap.start..gap.start + n, Some(node));
                gap.start += n;
            }
            if let Some((node, n)) = want(&mut wants, after, &gap) {
                self.set(gap.end - n..gap.end, Some(node));
                gap.end -= n;
            }
            if !gap.is_empty() {
                gaps.insert((gap.end - gap.start, gap.start));
            }
        }
        let mut takers: Vec<(NodeId, u32)> = wants.into_iter().collect();
        takers.sort_by_key(|t| (u32::MAX - t.1, t.0));
        for (node, mut wanted) in takers {
            while wanted > 0 {
                let whole = gaps.range(..=(wanted, u32::MAX)).next_back();
                let &(length, start) = whole
                    .or_else(|| gaps.first())
                    .expect("there are as many free slots as are wanted");
                gaps.remove(&(length, start));
                let n = length.min(wanted);
                self.set(start..start + n, Some(node));
                wanted -= n;
                if n < length {
                    gaps.insert((length - n, start + n));
                }
            }
        }
    }

    fn slices(self) -> Slices {
        let owned = self.0.into_iter().map(|node| Some((1, node?)));
        let all: Option<Vec<_>> = owned.collect();
        all.and_then(Slices::from_lengths)
            .expect("all slots were given")
    }
}

/// Reduces a neighbour's need by the slots of the gap that it gets. Returns the node and the number
/// of these slots.
fn want(
    wants: &mut BTreeMap<NodeId, u32>,
    node: Option<NodeId>,
    gap: &Range<u32>,
) -> Option<(NodeId, u32)> {
    let node = node?;
    let wanted = wants.get_mut(&node)?;
    let n = (*wanted).min(gap.end - gap.start);
    *wanted -= n;
    (n > 0).then_some((node, n))
}

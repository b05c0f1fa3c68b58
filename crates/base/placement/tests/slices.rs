//! Tests with random weights: each slot has one node, and shares are in proportion to weights.

use forebay_fuzz::Random;
use forebay_placement::{NodeId, SLOTS, Slices, Slot};
use std::collections::{BTreeMap, BTreeSet};

type Weights = BTreeMap<NodeId, u32>;

/// Checks that the slices cover each slot once, and that neighbours have different nodes.
fn check_cover(slices: &Slices) {
    let mut at = 0;
    let mut before = None;
    let mut ranges = BTreeMap::<NodeId, Vec<_>>::new();
    for (range, node) in slices.iter() {
        assert!(range.start == at && !range.is_empty() && before != Some(node));
        for slot in [range.start, range.end - 1] {
            assert_eq!(slices.node_of(Slot(slot)), node);
        }
        (at, before) = (range.end, Some(node));
        ranges.entry(node).or_default().push(range);
    }
    assert_eq!(at, SLOTS);
    for (node, ranges) in ranges {
        let held: u32 = ranges.iter().map(|r| r.end - r.start).sum();
        assert_eq!(slices.held(node), held);
        assert!(slices.of_node(node).eq(ranges.into_iter()));
    }
}

/// A pool of random nodes.
fn some_weights(r: &mut Random) -> Weights {
    let most = *r.one_of(&[3, 30, 600, 16_384]);
    let (nodes, kind) = (1 + r.below(most) as u32, r.below(3));
    let weight = |n| {
        let w = match kind {
            0 => 1_000,
            1 => 1_000 + r.below(7_000) as u32,
            _ => r.edge() as u32,
        };
        (NodeId(n), w)
    };
    (0..nodes).map(weight).collect()
}

#[test]
fn shares_are_in_proportion_to_weights() {
    forebay_fuzz::run("shares", |r| {
        let weights = some_weights(r);
        let total: f64 = weights.values().map(|&w| f64::from(w)).sum();
        let Some(slices) = Slices::new(&weights) else {
            assert_eq!(total, 0.0);
            return;
        };
        check_cover(&slices);
        for (&node, &weight) in &weights {
            let share = f64::from(SLOTS) * f64::from(weight) / total;
            let held = f64::from(slices.held(node));
            assert!(
                (held - share).abs() < 1.0,
                "node {node} has {held} slots, its share is {share}"
            );
        }
        assert_eq!(Slices::new(&weights), Some(slices));
    });
    assert_eq!(Slices::new(&Weights::new()), None);
}

#[test]
fn a_slot_of_a_node_is_one_of_its_own() {
    // Several slices of each node.
    let lengths = (0..64).map(|n| (SLOTS / 64, NodeId(1 + n % 7)));
    let slices = Slices::from_lengths(lengths).unwrap();
    check_cover(&slices);
    let mut seen = BTreeSet::new();
    for hash in 0..100_000u64 {
        let slot = slices
            .slot_on(NodeId(3), hash.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .unwrap();
        assert_eq!(slices.node_of(slot), NodeId(3));
        seen.insert(slot);
    }
    assert!(seen.len() > 30_000, "{} different ones", seen.len());
    assert_eq!(slices.slot_on(NodeId(0), 1), None);
    assert_eq!(slices.slot_on(NodeId(9), 1), None);
}

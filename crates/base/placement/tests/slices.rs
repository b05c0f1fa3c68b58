//! Tests with random sequences of joins, leaves and weight changes: each slot always has one node,
//! shares are in proportion to weights, and moves are near the minimum.

use forebay_fuzz::Random;
use forebay_placement::{Claim, Moved, NodeId, SLOTS, Slices, Slot};
use std::collections::{BTreeMap, BTreeSet};

type Claims = BTreeMap<NodeId, Claim>;

fn weight(claim: Option<&Claim>) -> Option<f64> {
    match claim {
        Some(Claim::Weight(w)) => Some(f64::from(*w)),
        Some(Claim::Keep) => None,
        None => Some(0.0),
    }
}

/// Returns the exact share of each node without [`Claim::Keep`], in the slots of these nodes.
fn exact(slices: &Slices, claims: &Claims) -> BTreeMap<NodeId, f64> {
    let held = slices.all_held();
    let nodes: BTreeSet<NodeId> = held.keys().chain(claims.keys()).copied().collect();
    let open = |n: &NodeId| weight(claims.get(n)).is_some();
    let slots: u32 = held.iter().filter(|h| open(h.0)).map(|h| h.1).sum();
    let total: f64 = claims.values().filter_map(|c| weight(Some(c))).sum();
    let share = |w: f64| f64::from(slots) * w / total.max(1.0);
    let of = |n: NodeId| weight(claims.get(&n)).map(|w| (n, share(w)));
    nodes.into_iter().filter_map(of).collect()
}

fn count(moves: &[Moved]) -> u32 {
    moves.iter().map(|m| m.slots.end - m.slots.start).sum()
}

/// Checks that the slices cover each slot once, and that neighbours have different nodes.
fn check_cover(slices: &Slices) {
    let mut at = 0;
    let mut before = None;
    for (range, node) in slices.iter() {
        assert!(range.start == at && !range.is_empty() && before != Some(node));
        for slot in [range.start, range.end - 1] {
            assert_eq!(slices.node_of(Slot(slot)), node);
        }
        (at, before) = (range.end, Some(node));
    }
    assert_eq!(at, SLOTS);
    let mut ranges = BTreeMap::<NodeId, Vec<_>>::new();
    for (range, node) in slices.iter() {
        ranges.entry(node).or_default().push(range);
    }
    for (node, held) in slices.all_held() {
        assert!(slices.of_node(node).eq(ranges[&node].iter().cloned()));
        assert_eq!(slices.held(node), held);
    }
}

/// Checks that a change brings each node near its exact share, and moves no more slots than needed.
/// Returns the number of slots that moved.
fn check_change(old: &Slices, new: &Slices, claims: &Claims) -> u32 {
    let moves = old.moved(new);
    let exact = exact(old, claims);
    for (&node, &share) in &exact {
        let held = f64::from(new.held(node));
        assert!(
            (held - share).abs() <= share / 32.0 + 1.0,
            "node {node} has {held} slots, its share is {share}"
        );
    }
    for (&node, _) in claims.iter().filter(|c| *c.1 == Claim::Keep) {
        assert!(
            old.of_node(node).eq(new.of_node(node)),
            "node {node} was to keep its slots"
        );
    }
    let givers: BTreeSet<NodeId> = moves.iter().map(|m| m.from).collect();
    assert!(
        moves.iter().all(|m| !givers.contains(&m.to)),
        "a node gave and took"
    );
    // No more slots move than exact shares would require.
    let far = |sign: f64| -> f64 {
        let each = exact.iter().map(|(n, share)| {
            let difference = sign * (share - f64::from(old.held(*n)));
            difference.ceil().max(0.0)
        });
        each.sum()
    };
    assert!(f64::from(count(&moves)) <= far(1.0).max(far(-1.0)));
    count(&moves)
}

/// A pool of random nodes.
fn some_claims(r: &mut Random) -> Claims {
    let most = *r.one_of(&[3, 30, 600]);
    let (nodes, even) = (1 + r.below(most) as u32, r.once_in(2));
    let claim = |n| {
        let w = if even {
            1_000
        } else {
            1_000 + r.below(7_000) as u32
        };
        (NodeId(n), Claim::Weight(w))
    };
    (0..nodes).map(claim).collect()
}

#[test]
fn joins_and_leaves_move_little_and_keep_the_balance() {
    forebay_fuzz::run("joins and leaves", |r| {
        let mut claims = some_claims(r);
        let mut slices = Slices::new(&claims).unwrap();
        check_cover(&slices);
        assert_eq!(slices.len(), claims.len());
        let mut next = claims.len() as u32;
        for _ in 0..20 {
            let old = slices;
            let minimum = if claims.len() == 1 || r.once_in(2) {
                let like = *claims.values().next().unwrap();
                let new = if r.once_in(2) {
                    like
                } else {
                    Claim::Weight(500 + r.below(9_000) as u32)
                };
                claims.insert(NodeId(next), new);
                next += 1;
                exact(&old, &claims)[&NodeId(next - 1)]
            } else {
                let gone = *r.one_of(&claims.keys().copied().collect::<Vec<_>>());
                let minimum = exact(&old, &claims)[&gone];
                claims.remove(&gone);
                minimum
            };
            slices = old.balanced(&claims).unwrap();
            check_cover(&slices);
            let moved = f64::from(check_change(&old, &slices, &claims));
            assert!(
                moved <= 1.05 * minimum + 1.0 && moved >= 0.95 * minimum - 1.0,
                "{} nodes: {moved} slots moved, the share was {minimum}",
                claims.len()
            );
            // The same claims require no more moves.
            assert_eq!(slices.balanced(&claims).as_ref(), Some(&slices));
        }
    });
}

#[test]
fn whatever_changes_at_once_the_invariants_hold() {
    forebay_fuzz::run("claims of any kind", |r| {
        let mut claims = some_claims(r);
        let mut slices = Slices::new(&claims).unwrap();
        for _ in 0..10 {
            for _ in 0..r.below(1 + claims.len()) {
                let node = NodeId(r.below(2 * claims.len() + 2) as u32);
                match r.below(5) {
                    0 => drop(claims.remove(&node)),
                    1 => drop(claims.insert(node, Claim::Keep)),
                    _ => drop(claims.insert(node, Claim::Weight(r.edge() as u32))),
                }
            }
            let old = slices;
            slices = match old.balanced(&claims) {
                Some(new) => new,
                None => {
                    // No node may take the slots that must be moved.
                    assert!(
                        claims
                            .values()
                            .all(|c| matches!(c, Claim::Keep | Claim::Weight(0)))
                    );
                    claims.insert(NodeId(0), Claim::Weight(1));
                    old.balanced(&claims).unwrap()
                }
            };
            check_cover(&slices);
            check_change(&old, &slices, &claims);
        }
    });
}

#[test]
fn moves_lead_from_one_to_the_other() {
    forebay_fuzz::run("moves", |r| {
        let old = Slices::new(&some_claims(r)).unwrap();
        let new = Slices::new(&some_claims(r)).unwrap();
        let new = if r.once_in(2) {
            new
        } else {
            old.balanced(&some_claims(r)).unwrap()
        };
        let moves = old.moved(&new);
        assert_eq!(old.after(&moves).as_ref(), Some(&new));
        for _ in 0..100 {
            let slot = r.below(SLOTS as usize) as u32;
            let m = moves.iter().find(|m| m.slots.contains(&slot));
            let (from, to) = (old.node_of(Slot(slot)), new.node_of(Slot(slot)));
            assert_eq!(
                m.map(|m| (m.from, m.to)),
                (from != to).then_some((from, to))
            );
        }
        // Some moves one at a time, in any order.
        let (mut at, mut left) = (old.clone(), moves.clone());
        for _ in 0..left.len().min(20) {
            let one = left.swap_remove(r.below(left.len()));
            at = at.after(std::slice::from_ref(&one)).unwrap();
            check_cover(&at);
            // A move can't be repeated.
            assert_eq!(at.after(&[one]), None);
        }
        left.sort_by_key(|m| m.slots.start);
        assert_eq!(at.after(&left), Some(new));
    });
}

#[test]
fn a_slot_of_a_node_is_one_of_its_own() {
    let claims: Claims = (0..7).map(|n| (NodeId(n), Claim::Weight(n))).collect();
    let slices = Slices::new(&claims).unwrap();
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

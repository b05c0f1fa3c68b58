//! Simulated starts of pools in virtual time, with every kind of fault.

#[path = "support/sim.rs"]
mod sim;

use forebay_fuzz::Random;
use forebay_pool::Tree;
use sim::{Costs, Fault, Outcome, start};
use std::time::Duration;

const TOTAL: Duration = Duration::from_secs(30);

fn run(tree: Tree, faults: &[(u32, Fault)], r: &mut Random) -> Outcome {
    start(tree, Costs::default(), TOTAL, faults, &mut || r.number())
}

#[test]
fn without_faults_all_have_the_same_map() {
    let mut r = Random::new(1);
    for nodes in [1, 2, 3, 16, 17, 18, 300, 2_000] {
        let o = run(Tree::new(nodes, 16), &[], &mut r);
        assert_eq!((o.missing.len(), o.serving, o.left), (0, nodes, 0));
        assert!(o.agree && o.took < Duration::from_secs(3), "{nodes}: {o:?}");
        assert!(o.map_bytes > 0, "{nodes}: {o:?}");
        assert!(nodes == 1 || o.most_messages > 0, "{nodes}: {o:?}");
    }
}

#[test]
fn the_time_grows_with_the_logarithm() {
    let mut r = Random::new(2);
    let mut took = |nodes| run(Tree::new(nodes, 16), &[], &mut r).took;
    let (small, large) = (took(16), took(10_000));
    assert!(large < small * 6, "{small:?} {large:?}");
}

#[test]
fn missing_nodes_are_named_and_no_daemon_is_left() {
    forebay_fuzz::run("start", |r| {
        let nodes = 1 + r.below(200) as u32;
        let tree = Tree::new(nodes, 2 + r.below(15) as u32);
        let mut faults: Vec<(u32, Fault)> = (0..1 + r.below(3))
            .map(|_| {
                let fault = match r.below(4) {
                    0 => Fault::NoLaunch,
                    1 => Fault::Silent,
                    2 => Fault::NoStore,
                    _ => Fault::Dies(Duration::from_millis(r.below(300) as u64)),
                };
                (r.below(nodes as usize) as u32, fault)
            })
            .collect();
        faults.sort_by_key(|f| f.0);
        faults.dedup_by_key(|f| f.0);
        // The user launches node 0, and notices directly when that fails.
        faults.retain(|f| f.0 != 0 || matches!(f.1, Fault::NoStore | Fault::Dies(_)));
        let o = run(tree, &faults, r);
        assert!(o.took <= TOTAL + Duration::from_secs(1), "{o:?}");
        assert_eq!(o.left, 0, "{faults:?} {o:?}");
        if o.missing.is_empty() {
            // The pool runs in spite of a fault only if that node died after the start.
            let died = faults.iter().all(|f| matches!(f.1, Fault::Dies(_)));
            assert!(died && o.agree, "{faults:?} {o:?}");
            return;
        }
        assert_eq!(o.serving, 0, "{faults:?} {o:?}");
        for m in &o.missing {
            // The node has a fault, or a descendant with a fault made it fail.
            let mut row = vec![m.node];
            let mut found = false;
            while let Some(n) = row.pop() {
                found |= faults.iter().any(|f| f.0 == n);
                row.extend(tree.children(n));
            }
            assert!(found, "{m:?} of {faults:?}");
        }
        // Each node that can never serve is named, or is a descendant of a named one.
        for (n, fault) in &faults {
            if matches!(fault, Fault::NoLaunch | Fault::NoStore) {
                let mut above = Some(*n);
                let named = std::iter::from_fn(|| {
                    let now = above?;
                    above = tree.parent(now);
                    Some(now)
                });
                let named = named
                    .into_iter()
                    .any(|n| o.missing.iter().any(|m| m.node == n));
                assert!(named, "{n} of {faults:?}: {o:?}");
            }
        }
    });
}

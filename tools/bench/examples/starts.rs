//! Simulates starts of pools in virtual time, from one node to ten thousand, with trees of several
//! fan-outs: their duration, messages and maps.

#[expect(dead_code, reason = "its faults and what they leave are for tests")]
#[path = "../../../crates/core/pool/tests/support/sim.rs"]
mod sim;

use forebay_fuzz::Random;
use forebay_pool::Tree;
use sim::{Costs, Outcome, start};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

fn main() {
    println!("launch 150 to 400 ms, 2 ms of work for each; medians of 5");
    println!(
        "{:>7} {:>8} {:>6} {:>9} {:>16} {:>10}",
        "nodes", "fan-out", "depth", "ms", "maximum messages", "map bytes"
    );
    for nodes in [1, 4, 10, 100, 1_000, 10_000] {
        for fan_out in [8, 16, 32, nodes.max(33)] {
            let tree = Tree::new(nodes, fan_out);
            let mut runs: Vec<Outcome> = (1..=5)
                .map(|seed| {
                    let mut random = Random::new(seed);
                    start(tree, Costs::default(), TIMEOUT, &[], &mut || {
                        random.number()
                    })
                })
                .collect();
            runs.sort_by_key(|r| r.took);
            let r = &runs[2];
            assert!(r.missing.is_empty() && r.serving == nodes && r.agree);
            println!(
                "{nodes:>7} {fan_out:>8} {:>6} {:>9.0} {:>16} {:>10}",
                tree.depth(),
                r.took.as_secs_f64() * 1e3,
                r.most_messages,
                r.map_bytes
            );
        }
    }
}

//! Simulated cost of starting a pool: `cargo run --release -p forebay-pool --example start`.

use forebay_pool::Tree;
use forebay_pool::sim::{Costs, start};
use std::time::Duration;

fn main() {
    println!("launch 150 to 400 ms, 2 ms of work for each; medians of 5");
    println!(
        "{:>7} {:>8} {:>6} {:>9} {:>14} {:>10}",
        "nodes", "fan-out", "depth", "ms", "most messages", "map bytes"
    );
    for nodes in [1, 4, 10, 100, 1_000, 10_000] {
        for fan_out in [8, 16, 32, nodes.max(33)] {
            let tree = Tree::new(nodes, fan_out);
            let mut runs: Vec<_> = (1..=5)
                .map(|seed: u64| {
                    let mut x = seed;
                    let mut random = || {
                        x = x
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        x >> 33
                    };
                    start(
                        tree,
                        Costs::default(),
                        Duration::from_secs(600),
                        &[],
                        &mut random,
                    )
                })
                .collect();
            runs.sort_by_key(|r| r.took);
            let r = &runs[2];
            assert!(r.missing.is_empty() && r.serving == nodes && r.agree);
            println!(
                "{nodes:>7} {fan_out:>8} {:>6} {:>9.0} {:>14} {:>10}",
                tree.depth(),
                r.took.as_secs_f64() * 1e3,
                r.most_messages,
                r.map_bytes
            );
        }
    }
}

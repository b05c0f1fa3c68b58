//! Simulates placement: balance, look-ups, size of the map, for pools of 10 to 10,000 nodes. `docs/explanation/performance-notes.md` has figures from `cargo run --release -p
//! forebay-bench --example placement`.

use forebay_fuzz::Random;
use forebay_placement::map::{Address, Medium, MediumKind};
use forebay_placement::{Node, NodeId, ObjectId, PoolMap, SLOTS, Slot, State};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

const OBJECTS: u64 = 100_000;
const CHUNKS: u64 = 100;

fn node(number: u32, weight: u32) -> Node {
    let [_, a, b, c] = number.to_be_bytes();
    let media = vec![Medium {
        kind: MediumKind::Memory,
        capacity: u64::from(weight) << 20,
    }];
    Node {
        number: NodeId(number),
        name: format!("node{number:05}"),
        addresses: vec![Address {
            ip: Ipv4Addr::new(10, a, b, c).into(),
            port: 40_000 + (number % 20_000) as u16,
        }],
        state: State::Up,
        since: 1_800_000_000,
        weight: Node::weight_of(&media),
        media,
    }
}

fn pool(nodes: u32, weight: impl Fn(u32) -> u32) -> PoolMap {
    let nodes = (0..nodes).map(|n| node(n, weight(n))).collect();
    PoolMap::first([7; 16], nodes).expect("a sound pool")
}

/// Smallest and largest ratio of a node's amount to its fair share.
fn spread(map: &PoolMap, had: impl Fn(NodeId) -> u64, all: u64) -> (f64, f64) {
    let weights: u64 = map.nodes().iter().map(|n| u64::from(n.weight)).sum();
    let mut spread = (f64::MAX, 0f64);
    for n in map.nodes() {
        let fair = all as f64 * f64::from(n.weight) / weights as f64;
        let part = had(n.number) as f64 / fair;
        spread = (spread.0.min(part), spread.1.max(part));
    }
    spread
}

fn slot_spread(map: &PoolMap) -> (f64, f64) {
    spread(map, |n| u64::from(map.slices().held(n)), u64::from(SLOTS))
}

fn objects() -> impl Iterator<Item = ObjectId> {
    // The objects are like those of a store: slots are hashes of names, sequence numbers count up.
    (0..OBJECTS).map(|o| {
        let slot = Slot::of_entry(ObjectId::ROOT, format!("file.{o:08}").as_bytes());
        ObjectId::new(2 + o / 16, slot)
    })
}

/// Returns the slots of all chunks of all objects: 10^7.
fn chunks() -> Vec<Slot> {
    let all = objects().flat_map(|id| (0..CHUNKS).map(move |c| Slot::of_chunk(id, c)));
    all.collect()
}

fn chunk_spread(map: &PoolMap, chunks: &[Slot]) -> (f64, f64) {
    let mut count = vec![0u64; map.next_number().0 as usize];
    for &slot in chunks {
        count[map.slices().node_of(slot).0 as usize] += 1;
    }
    spread(map, |n| count[n.0 as usize], chunks.len() as u64)
}

fn nanoseconds<T>(times: u32, mut f: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        black_box(f());
    }
    start.elapsed().as_nanos() as f64 / f64::from(times)
}

fn main() {
    let sizes = [10, 1_000, 10_000];
    let chunks = chunks();
    let mut r = Random::new(1);

    println!(
        "balance: share / fair share, min..max ({} chunks)",
        chunks.len()
    );
    println!(" nodes weights    slots          chunks");
    let mut maps = Vec::new();
    for n in sizes {
        for (name, weight) in [("equal", 1), ("1 to 4", 4)] {
            let map = pool(n, |i: u32| (1 + i % weight) << 12);
            let (s, c) = (slot_spread(&map), chunk_spread(&map, &chunks));
            println!(
                "{n:>6} {name:<8} {:.3}..{:.3}   {:.3}..{:.3}",
                s.0, s.1, c.0, c.1
            );
            maps.push((n, name, map));
        }
    }

    println!("\nthe map: slices and bytes; times");
    println!(" nodes weights   slices  bytes  look-up  encode  decode");
    for (n, name, map) in &maps {
        let slots: Vec<Slot> = (0..1 << 16)
            .map(|_| Slot(r.below(SLOTS as usize) as u32))
            .collect();
        let mut at = 0;
        let look_up = nanoseconds(4_000_000, || {
            at = (at + 1) % slots.len();
            map.slices().node_of(slots[at])
        });
        let encode = nanoseconds(20, || map.encode());
        let bytes = map.encode();
        let decode = nanoseconds(20, || PoolMap::decode(&bytes));
        println!(
            "{n:>6} {name:<8} {:>7} {:>6} {look_up:>5.1} ns {:>4.2} ms {:>4.2} ms",
            map.slices().len(),
            bytes.len(),
            encode / 1e6,
            decode / 1e6,
        );
    }

    println!(
        "\nlargest number of one file's consecutive chunks on one node (mean of 10,000 files)"
    );
    println!(" nodes chunks  ideal  ours  by hash");
    for (n, count) in [(4, 16), (4, 64), (10, 16), (10, 64), (100, 64), (100, 1024)] {
        let map = pool(n, |_| 1);
        let most = |map: &PoolMap, slot: &dyn Fn(ObjectId, u64) -> Slot| {
            let mut sum = 0;
            for id in objects().take(10_000) {
                let mut on = vec![0u32; map.next_number().0 as usize];
                for chunk in 0..count {
                    on[map.slices().node_of(slot(id, chunk)).0 as usize] += 1;
                }
                sum += on.iter().max().expect("there are nodes");
            }
            f64::from(sum) / 10_000.0
        };
        let hashed = |id, chunk: u64| Slot::of_entry(id, &chunk.to_le_bytes());
        println!(
            "{n:>6} {count:>6} {:>6.1} {:>5.1} {:>8.1}",
            count as f64 / f64::from(n),
            most(&map, &Slot::of_chunk),
            most(&map, &hashed),
        );
    }
}

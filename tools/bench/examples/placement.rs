//! Simulates placement: balance, movement, slices, look-ups, size of the map, for pools of 10 to
//! 10,000 nodes. `docs/explanation/performance-notes.md` has figures from `cargo run --release -p
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

/// Makes all necessary moves at once. Returns the map after them.
fn settled(map: PoolMap) -> PoolMap {
    let target = map.target().expect("a target");
    let moves = map.slices().moved(&target);
    map.after(&moves).expect("moves of this map")
}

fn join(map: &PoolMap, weight: u32) -> PoolMap {
    let map = map.joined(node(map.next_number().0, weight));
    let map = map.expect("room for a node");
    let number = map.nodes().last().expect("it joined").number;
    let map = settled(map).with_state(number, State::Up, 1_800_000_100);
    map.expect("it is there")
}

fn leave(map: &PoolMap, number: NodeId) -> PoolMap {
    let map = map.with_state(number, State::Leaving, 1_800_000_200);
    let map = settled(map.expect("it is there"));
    map.without(number).expect("it keeps nothing")
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
    let held = map.slices().all_held();
    let had = |n| u64::from(held.get(&n).copied().unwrap_or(0));
    spread(map, had, u64::from(SLOTS))
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

/// Returns the shares of slots and of chunks whose node has changed.
fn moved(old: &PoolMap, new: &PoolMap, chunks: &[Slot]) -> (f64, f64) {
    let moves = old.moved(new);
    let slots: u32 = moves.iter().map(|m| m.slots.end - m.slots.start).sum();
    let (a, b) = (old.slices(), new.slices());
    let other = chunks.iter().filter(|&&s| a.node_of(s) != b.node_of(s));
    (
        f64::from(slots) / f64::from(SLOTS),
        other.count() as f64 / chunks.len() as f64,
    )
}

fn nanoseconds<T>(times: u32, mut f: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        black_box(f());
    }
    start.elapsed().as_nanos() as f64 / f64::from(times)
}

fn print_moved(what: &str, nodes: u32, minimum: f64, (slots, chunks): (f64, f64)) {
    println!(
        "{nodes:>6} {what:<9} {:>10.5} {:>10.5} {:>6.3} {:>10.5} {:>6.3}",
        100.0 * minimum,
        100.0 * slots,
        slots / minimum,
        100.0 * chunks,
        chunks / minimum
    );
}

fn main() {
    let sizes = [10, 1_000, 10_000];
    let chunks = chunks();
    let mut r = Random::new(1);

    println!(
        "balance: share / fair share, min..max ({} chunks)",
        chunks.len()
    );
    println!(" nodes weights    slots          chunks         after 100 joins and leaves");
    let mut aged = Vec::new();
    for n in sizes {
        for (name, weight) in [("equal", 1), ("1 to 4", 4)] {
            let weight = |i: u32| (1 + i % weight) << 12;
            let map = pool(n, weight);
            let (s, c) = (slot_spread(&map), chunk_spread(&map, &chunks));
            let mut old = map.clone();
            for i in 0..100 {
                old = if r.once_in(2) {
                    join(&old, weight(i))
                } else {
                    leave(&old, old.nodes()[r.below(old.nodes().len())].number)
                };
            }
            let a = slot_spread(&old);
            println!(
                "{n:>6} {name:<8} {:.3}..{:.3}   {:.3}..{:.3}   {:.3}..{:.3}",
                s.0, s.1, c.0, c.1, a.0, a.1
            );
            aged.push((n, name, map, old));
        }
    }

    println!(
        "\nmovement, % of all: the minimum; slots, chunks, and how much that is of the minimum"
    );
    println!(" nodes change       minimum      slots         chunks");
    for (_, _, map, old) in aged.iter().filter(|a| a.1 == "equal") {
        for (age, map) in [("", map), (" late", old)] {
            let n = map.nodes().len() as u32;
            let joined = join(map, 1 << 12);
            let minimum = 1.0 / f64::from(n + 1);
            let share = moved(map, &joined, &chunks);
            print_moved(&format!("join{age}"), n, minimum, share);
            let left = leave(map, map.nodes()[n as usize / 2].number);
            let minimum = 1.0 / f64::from(n);
            let share = moved(map, &left, &chunks);
            print_moved(&format!("leave{age}"), n, minimum, share);
        }
    }

    println!("\nthe map: slices and bytes, new and after 100 joins and leaves; times");
    println!(" nodes weights   slices  bytes  later  bytes  look-up  target  encode  decode");
    for (n, name, map, old) in &aged {
        let slots: Vec<Slot> = (0..1 << 16)
            .map(|_| Slot(r.below(SLOTS as usize) as u32))
            .collect();
        let mut at = 0;
        let look_up = nanoseconds(4_000_000, || {
            at = (at + 1) % slots.len();
            old.slices().node_of(slots[at])
        });
        let joined = old
            .joined(node(old.next_number().0, 1 << 12))
            .expect("room");
        let target = nanoseconds(5, || joined.target());
        let encode = nanoseconds(20, || old.encode());
        let bytes = old.encode();
        let decode = nanoseconds(20, || PoolMap::decode(&bytes));
        println!(
            "{n:>6} {name:<8} {:>7} {:>6} {:>6} {:>6} {look_up:>5.1} ns {:>4.1} ms {:>4.2} ms {:>4.2} ms",
            map.slices().len(),
            map.encode().len(),
            old.slices().len(),
            bytes.len(),
            target / 1e6,
            encode / 1e6,
            decode / 1e6,
        );
    }

    // With the argument `long`, continues up to 10,000 nodes, which takes minutes.
    let turns = if std::env::args().any(|a| a == "long") {
        10_000
    } else {
        1_000
    };
    println!("\nslices after many joins and leaves (equal weights), share / fair share");
    for n in [10, 100, 500, 1_000] {
        let mut map = pool(n, |_| 1 << 12);
        let mut line = format!("{n:>6} ");
        for i in 1..=turns {
            map = if map.nodes().len() <= n as usize {
                join(&map, 1 << 12)
            } else {
                leave(&map, map.nodes()[r.below(map.nodes().len())].number)
            };
            if [100, 1_000, 10_000].contains(&i) {
                let s = slot_spread(&map);
                line += &format!("  {i}: {} {:.3}..{:.3}", map.slices().len(), s.0, s.1);
            }
        }
        println!("{line}");
    }

    println!("\nslices of a pool that grew from one node, one node at a time (equal weights)");
    let mut map = pool(1, |_| 1 << 12);
    for n in [10, 100, 1_000] {
        while map.nodes().len() < n {
            map = join(&map, 1 << 12);
        }
        let s = slot_spread(&map);
        println!("{n:>6}   {}  {:.3}..{:.3}", map.slices().len(), s.0, s.1);
    }

    println!(
        "\nlargest number of one file's consecutive chunks on one node (mean of 10,000 files)"
    );
    println!(" nodes chunks  ideal  ours  ours, late  by hash");
    for (n, count) in [(4, 16), (4, 64), (10, 16), (10, 64), (100, 64), (100, 1024)] {
        let map = pool(n, |_| 1);
        let mut old = map.clone();
        for _ in 0..100 {
            old = join(&old, 1);
            old = leave(&old, old.nodes()[r.below(old.nodes().len())].number);
        }
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
            "{n:>6} {count:>6} {:>6.1} {:>5.1} {:>11.1} {:>8.1}",
            count as f64 / f64::from(n),
            most(&map, &Slot::of_chunk),
            most(&old, &Slot::of_chunk),
            most(&map, &hashed),
        );
    }
}

//! Tests of pool maps: changes, requests of clients with other epochs, and encodings, also hostile
//! ones.

use forebay_fuzz::{Random, Watched, largest_allocation};
use forebay_placement::map::{Address, MAX_NODES, Medium, MediumKind};
use forebay_placement::{Answer, DecodeError, MapError, Node, NodeId, PoolMap, SLOTS, Slot, State};
use std::net::{Ipv4Addr, Ipv6Addr};
use twox_hash::XxHash3_64;

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn node(r: &mut Random, number: u32) -> Node {
    let address = |r: &mut Random| Address {
        ip: match r.below(2) {
            0 => Ipv4Addr::from(r.edge() as u32).into(),
            _ => Ipv6Addr::from(u128::from(r.edge()) << 64 | u128::from(r.edge())).into(),
        },
        port: r.edge() as u16,
    };
    let medium = |r: &mut Random| Medium {
        kind: *r.one_of(&[MediumKind::Memory, MediumKind::Files]),
        capacity: r.edge(),
    };
    let names = ["node", "gpü-", "cn-07-", "ä", ""];
    Node {
        number: NodeId(number),
        name: format!("{}{number}", r.one_of(&names)),
        addresses: (0..r.below(9)).map(|_| address(r)).collect(),
        state: *r.one_of(&[State::Up, State::Down, State::Joining, State::Leaving]),
        since: if r.once_in(2) {
            1_800_000_000
        } else {
            r.edge()
        },
        weight: if r.once_in(2) { 4096 } else { r.edge() as u32 },
        media: (0..if r.once_in(2) { 1 } else { r.below(17) })
            .map(|_| medium(r))
            .collect(),
    }
}

fn some_map(r: &mut Random) -> PoolMap {
    let mut number = r.below(3) as u32;
    let mut nodes = Vec::new();
    let most = *r.one_of(&[4, 40]);
    for _ in 0..1 + r.below(most) {
        nodes.push(node(r, number));
        number += 1 + if r.once_in(9) {
            r.below(1_000) as u32
        } else {
            0
        };
    }
    nodes[0] = Node {
        state: State::Up,
        weight: 1,
        ..nodes[0].clone()
    };
    // No node is down before slots have been assigned.
    for n in nodes.iter_mut().filter(|n| n.state == State::Down) {
        n.state = State::Up;
    }
    let mut map = PoolMap::first([9; 16], nodes).unwrap();
    for _ in 0..r.below(4) {
        let some = r.one_of(map.nodes()).number;
        map = match r.below(3) {
            0 => map.joined(node(r, 0)).unwrap(),
            1 => map.with_state(some, State::Down, r.edge()).unwrap(),
            _ => map.with_weight(some, r.edge() as u32).unwrap(),
        };
        if let Ok(target) = map.target() {
            map = map.after(&map.slices().moved(&target)).unwrap();
        }
    }
    map
}

#[test]
fn maps_come_back_from_their_bytes() {
    forebay_fuzz::run("pool maps, round trip", |r| {
        let map = some_map(r);
        let bytes = map.encode();
        let back = PoolMap::decode(&bytes).unwrap();
        assert_eq!(back, map);
        assert_eq!(back.encode(), bytes);
        // The same input leads to the same target after decoding.
        assert_eq!(back.target(), map.target());
    });
}

#[test]
fn arbitrary_bytes_are_a_map_or_none() {
    let mut r = Random::new(1);
    let some: Vec<Vec<u8>> = (0..20).map(|_| some_map(&mut r).encode()).collect();
    let (mut accepted, mut tried) = (0, 0);
    forebay_fuzz::run("pool maps, any bytes", |r| {
        let (mut bytes, other) = (r.one_of(&some).clone(), r.one_of(&some));
        // The checksum is made valid, so that decoding continues after it.
        bytes.truncate(bytes.len() - 8);
        r.mutate(&mut bytes, other);
        if !r.once_in(10) {
            let sum = XxHash3_64::oneshot(&bytes);
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        let (map, largest) = largest_allocation(|| PoolMap::decode(&bytes));
        tried += 1;
        if let Ok(map) = map {
            accepted += 1;
            assert_eq!(map.encode(), bytes);
        }
        // At most 20,000 bytes for the index of the slots; the rest for the list of nodes.
        let bound = 20_000 + 32 * bytes.len();
        assert!(
            largest <= bound,
            "{largest} bytes of memory for a map of {}",
            bytes.len()
        );
    });
    // Some inputs pass the first checks.
    assert!(accepted > tried / 1_000, "{accepted} of {tried}");
}

#[test]
fn other_versions_and_damage_are_distinguished() {
    let mut bytes = some_map(&mut Random::new(3)).encode();
    bytes[7] = 2;
    assert_eq!(PoolMap::decode(&bytes), Err(DecodeError::Version(2)));
    let text = DecodeError::Version(2).to_string();
    assert!(text.contains("version 2") && text.contains('1'), "{text}");
    bytes[7] = 1;
    assert!(PoolMap::decode(&bytes).is_ok());
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    assert_eq!(PoolMap::decode(&bytes), Err(DecodeError::NoMap));
    assert_eq!(PoolMap::decode(b"FBYPMAP"), Err(DecodeError::NoMap));
}

fn pool(nodes: u32) -> PoolMap {
    let node = |n| Node {
        number: NodeId(n),
        name: format!("n{n}"),
        addresses: Vec::new(),
        state: State::Up,
        since: 0,
        weight: 100,
        media: Vec::new(),
    };
    PoolMap::first([0; 16], (0..nodes).map(node).collect()).unwrap()
}

#[test]
fn a_node_joins_takes_its_part_and_leaves() {
    let map = pool(4);
    let joined = map.joined(map.nodes()[0].clone()).unwrap();
    assert_eq!((joined.epoch(), joined.next_number()), (2, NodeId(5)));
    let new = joined.node(NodeId(4)).unwrap();
    assert_eq!(
        (new.state, joined.slices().held(NodeId(4))),
        (State::Joining, 0)
    );
    let moves = joined.slices().moved(&joined.target().unwrap());
    assert!(moves.iter().all(|m| m.to == NodeId(4)));
    // Half of the moves are made now, the rest later.
    let (some, rest) = moves.split_at(moves.len() / 2);
    let all = joined.after(some).unwrap().after(rest).unwrap();
    assert_eq!(all.epoch(), 4);
    assert!((52_428..=52_429).contains(&all.slices().held(NodeId(4))));
    assert_eq!(
        joined.after(some).unwrap().after(some),
        Err(MapError::Moves)
    );
    assert_eq!(map.moved(&all), moves);

    assert_eq!(all.without(NodeId(4)), Err(MapError::Keeps(NodeId(4))));
    let leaving = all.with_state(NodeId(4), State::Leaving, 7).unwrap();
    let moves = leaving.slices().moved(&leaving.target().unwrap());
    let left = leaving.after(&moves).unwrap().without(NodeId(4)).unwrap();
    assert_eq!(left.node(NodeId(4)), None);
    // The number of the node that left isn't reused.
    assert_eq!(left.next_number(), NodeId(5));
    assert_eq!(left.without(NodeId(4)), Err(MapError::Unknown(NodeId(4))));
}

#[test]
fn a_node_that_is_down_keeps_its_slots() {
    let map = pool(4).with_state(NodeId(2), State::Down, 5).unwrap();
    let joined = map.joined(map.nodes()[0].clone()).unwrap();
    let target = joined.target().unwrap();
    assert!(
        target
            .of_node(NodeId(2))
            .eq(map.slices().of_node(NodeId(2)))
    );
    assert!((49_000..49_500).contains(&target.held(NodeId(4))));
    let mut alone = pool(2);
    alone = alone.with_state(NodeId(0), State::Leaving, 5).unwrap();
    alone = alone.with_state(NodeId(1), State::Down, 5).unwrap();
    assert_eq!(alone.target(), Err(MapError::NoWeight));
}

#[test]
fn limits_are_kept() {
    let many = pool(MAX_NODES as u32);
    assert_eq!(many.slices().held(NodeId(77)), SLOTS / MAX_NODES as u32);
    assert_eq!(many.joined(many.nodes()[0].clone()), Err(MapError::Count));
    assert_eq!(PoolMap::decode(&many.encode()).as_ref(), Ok(&many));
    let one = pool(1);
    for name in [String::new(), "x".repeat(129), "a\nb".to_string()] {
        let node = Node {
            name,
            ..one.nodes()[0].clone()
        };
        assert_eq!(one.joined(node), Err(MapError::Node(NodeId(1))));
    }
    let twice = vec![one.nodes()[0].clone(); 2];
    assert_eq!(
        PoolMap::first([0; 16], twice),
        Err(MapError::Node(NodeId(0)))
    );
    assert_eq!(PoolMap::first([0; 16], Vec::new()), Err(MapError::NoWeight));
}

#[test]
fn nothing_is_served_by_the_wrong_node() {
    let old = pool(3).with_state(NodeId(1), State::Leaving, 1).unwrap();
    let moves = old.slices().moved(&old.target().unwrap());
    let new = old.after(&moves).unwrap();
    let gone = Slot(moves[0].slots.start);
    let here = Slot(old.slices().of_node(NodeId(0)).next().unwrap().start);
    let (me, taker) = (NodeId(1), moves[0].to);
    let same = Answer::Serve { newer: false };
    assert_eq!(old.answer(me, gone, old.epoch()), same);
    assert_eq!(old.answer(me, here, old.epoch()), Answer::Wrong);
    // The node has the new map, the client the old one.
    assert_eq!(new.answer(me, gone, old.epoch()), Answer::OldMap);
    assert_eq!(
        new.answer(NodeId(0), here, old.epoch()),
        Answer::Serve { newer: true }
    );
    // The client has the new map and the nodes have the old one. The result is the same for slots
    // that a node keeps by its old map.
    assert_eq!(old.answer(taker, gone, new.epoch()), Answer::Behind);
    assert_eq!(old.answer(me, gone, new.epoch()), Answer::Behind);
    assert_eq!(new.answer(taker, gone, new.epoch()), same);
}

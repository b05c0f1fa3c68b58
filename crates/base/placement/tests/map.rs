//! Tests of pool maps: limits, changes, and encodings, also hostile ones.

use forebay_fuzz::{Random, Watched, largest_allocation};
use forebay_placement::map::{Address, MAX_NODES, Medium, MediumKind};
use forebay_placement::{DecodeError, MapError, Node, NodeId, PoolMap, SLOTS, State};
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
    let mut map = PoolMap::first([9; 16], nodes).unwrap();
    for _ in 0..r.below(4) {
        let some = r.one_of(map.nodes()).number;
        map = map.with_addresses(some, &node(r, 0).addresses).unwrap();
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
fn a_change_has_the_next_epoch_and_keeps_the_slots() {
    let map = pool(4);
    let address = Address {
        ip: Ipv4Addr::LOCALHOST.into(),
        port: 7,
    };
    let changed = map.with_addresses(NodeId(2), &[address]).unwrap();
    assert_eq!((map.epoch(), changed.epoch()), (1, 2));
    assert_eq!(changed.next_number(), NodeId(4));
    assert_eq!(changed.node(NodeId(2)).unwrap().addresses, [address]);
    assert_eq!(changed.slices(), map.slices());
    assert_eq!(
        map.with_addresses(NodeId(4), &[address]),
        Err(MapError::Unknown(NodeId(4)))
    );
}

#[test]
fn limits_are_kept() {
    let many = pool(MAX_NODES as u32);
    assert_eq!(many.slices().held(NodeId(77)), SLOTS / MAX_NODES as u32);
    let numbered = |n| Node {
        number: NodeId(n),
        ..many.nodes()[0].clone()
    };
    let more = (0..=MAX_NODES as u32).map(numbered).collect();
    assert_eq!(PoolMap::first([0; 16], more), Err(MapError::Count));
    assert_eq!(PoolMap::decode(&many.encode()).as_ref(), Ok(&many));
    let one = pool(1);
    for name in [String::new(), "x".repeat(129), "a\nb".to_string()] {
        let node = Node {
            name,
            ..one.nodes()[0].clone()
        };
        assert_eq!(
            PoolMap::first([0; 16], vec![node]),
            Err(MapError::Node(NodeId(0)))
        );
    }
    let twice = vec![one.nodes()[0].clone(); 2];
    assert_eq!(
        PoolMap::first([0; 16], twice),
        Err(MapError::Node(NodeId(0)))
    );
    assert_eq!(PoolMap::first([0; 16], Vec::new()), Err(MapError::NoWeight));
}

//! Layouts: what is inherited, where things lie, the words and bytes they are written in.

use forebay_fuzz::Random;
use forebay_placement::map::{Medium, MediumKind};
use forebay_placement::{
    Anchor, ChunkSize, Layout, Node, NodeId, ObjectId, PoolMap, SLOTS, Scheme, Slot, State,
};

fn pool(nodes: u32) -> PoolMap {
    let node = |n| Node {
        number: NodeId(n),
        name: format!("n{n}"),
        addresses: Vec::new(),
        state: State::Up,
        since: 0,
        weight: 1,
        media: vec![Medium {
            kind: MediumKind::Memory,
            capacity: 1 << 30,
        }],
    };
    PoolMap::first([0; 16], (0..nodes).map(node).collect()).unwrap()
}

fn object(r: &mut Random) -> ObjectId {
    ObjectId::new(
        2 + r.below(1 << 30) as u64,
        Slot(r.below(SLOTS as usize) as u32),
    )
}

#[test]
fn words_and_sizes_are_read_and_written() {
    for word in ["striped", "local", "local-all"] {
        assert_eq!(word.parse::<Scheme>().unwrap().to_string(), word);
    }
    assert!("Local".parse::<Scheme>().unwrap_err().contains("'Local'"));
    let size = |text| forebay_media::parse_size(text).and_then(ChunkSize::new);
    for text in ["64K", "512K", "1M", "512M", "1G"] {
        let size = size(text).unwrap();
        assert_eq!(size.to_string(), text);
        assert_eq!(size.chunk_of(3 * size.bytes() - 1), 2);
    }
    assert_eq!(size("1M").unwrap(), ChunkSize::default());
    for text in ["32K", "2G", "3M", "0", "1048577"] {
        assert!(size(text).unwrap_err().contains("64K to 1G"), "{text}");
    }
}

#[test]
fn striped_data_is_on_all_nodes_whoever_writes() {
    let (map, layout) = (pool(8), Layout::default().for_file());
    let id = ObjectId::new(5, Slot(77));
    let mut seen = [0; 8];
    for chunk in 0..800 {
        let node = layout.chunk_node(&map, id, chunk, NodeId(1));
        assert_eq!(node, layout.chunk_node(&map, id, chunk, NodeId(6)));
        seen[node.0 as usize] += 1;
    }
    assert!(seen.iter().all(|n| (95..=105).contains(n)), "{seen:?}");
    // The first chunk is where the file's record is.
    assert_eq!(layout.chunk_slot(id, 0), Some(id.slot()));
}

#[test]
fn local_data_is_on_the_node_that_writes_first() {
    let map = pool(8);
    let directory = Layout::default().changed(Scheme::Local, ChunkSize::default(), true);
    let file = directory.for_file();
    let id = ObjectId::new(5, Slot(77));
    assert_eq!(file.chunk_slot(id, 0), None);
    let claimed = file.claimed(&map, NodeId(6), id);
    for chunk in [0, 1, 99_999] {
        assert_eq!(file.chunk_node(&map, id, chunk, NodeId(3)), NodeId(3));
        assert_eq!(claimed.chunk_node(&map, id, chunk, NodeId(3)), NodeId(6));
    }
    assert_eq!(claimed.claimed(&map, NodeId(3), id), claimed);
    // Names of such a directory, and of those in it, are spread all the same.
    for layout in [directory, directory.for_directory()] {
        assert_eq!(layout.entry_slot(id, b"x"), Some(Slot::of_entry(id, b"x")));
    }
}

#[test]
fn local_all_takes_the_names_too() {
    let map = pool(8);
    let top = Layout::default().changed(Scheme::LocalAll, ChunkSize::default(), true);
    let id = ObjectId::new(5, Slot(77));
    assert_eq!(top.anchor, Anchor::FirstUse);
    assert_eq!(top.entry_slot(id, b"processor3"), None);
    assert_eq!(
        top.entry_node(&map, id, b"processor3", NodeId(2)),
        NodeId(2)
    );
    let claimed = top.claimed(&map, NodeId(2), id);
    assert_eq!(claimed.entry_node(&map, id, b"other", NodeId(4)), NodeId(2));
    // What is made in it later is its first user's again.
    let below = claimed.for_directory();
    assert_eq!(
        below.entry_node(&map, ObjectId(9), b"p", NodeId(4)),
        NodeId(4)
    );
    assert_eq!(
        claimed
            .for_file()
            .chunk_node(&map, ObjectId(9), 3, NodeId(4)),
        NodeId(4)
    );
    // A directory with entries keeps them where they are.
    let mut changed = claimed.changed(Scheme::Striped, ChunkSize::default(), false);
    assert_eq!(changed.anchor, claimed.anchor);
    assert_eq!(changed.for_file().anchor, Anchor::Spread);
    changed = Layout::default().changed(Scheme::LocalAll, ChunkSize::default(), false);
    assert_eq!(changed.entry_slot(id, b"x"), Some(Slot::of_entry(id, b"x")));
    assert_eq!(changed.for_directory().anchor, Anchor::FirstUse);
}

#[test]
fn who_keeps_nothing_or_leaves_spreads_its_data() {
    let map = pool(8).with_state(NodeId(3), State::Leaving, 1).unwrap();
    let file = Layout::default()
        .changed(Scheme::Local, ChunkSize::default(), true)
        .for_file();
    for writer in [NodeId(3), NodeId(55)] {
        let claimed = file.claimed(&map, writer, ObjectId(1 << 40));
        assert_eq!(claimed.anchor, Anchor::Spread);
    }
}

#[test]
fn local_data_moves_with_its_slot_when_a_node_leaves() {
    let map = pool(8);
    let file = Layout::default()
        .changed(Scheme::Local, ChunkSize::default(), true)
        .for_file();
    let leaving = map.with_state(NodeId(3), State::Leaving, 1).unwrap();
    let target = leaving.target().unwrap();
    let without = leaving.after(&leaving.slices().moved(&target)).unwrap();
    let without = without.without(NodeId(3)).unwrap();
    let mut nodes = std::collections::BTreeSet::new();
    for seq in 2..1_000 {
        let id = ObjectId::new(seq, Slot(9));
        let claimed = file.claimed(&map, NodeId(3), id);
        let now = claimed.chunk_node(&without, id, 0, NodeId(3));
        assert!(without.node(now).is_some());
        nodes.insert(now);
    }
    assert!(nodes.len() > 3, "spread over the others: {nodes:?}");
}

#[test]
fn layouts_come_back_from_their_bytes_and_others_are_refused() {
    assert_eq!(Layout::default().encode(), [0; 8]);
    forebay_fuzz::run("layouts", |r| {
        let layout = Layout {
            scheme: *r.one_of(&[Scheme::Striped, Scheme::Local, Scheme::LocalAll]),
            chunk_size: ChunkSize::new(1 << (16 + r.below(15))).unwrap(),
            anchor: match r.below(3) {
                0 => Anchor::Spread,
                1 => Anchor::FirstUse,
                _ => Anchor::At(object(r).slot()),
            },
        };
        let mut bytes = layout.encode().to_vec();
        assert_eq!(Layout::decode(&bytes), Some(layout));
        r.mutate(&mut bytes, &[0; 8]);
        if let Some(layout) = Layout::decode(&bytes) {
            assert_eq!(layout.encode()[..], bytes[..]);
        }
    });
}

//! Tests of decoding with arbitrary bytes: records are accepted or rejected, without a panic and
//! without allocating much more memory than the bytes take. Encoded records decode to the same.

use forebay_fuzz::{Random, Watched, largest_allocation};
use forebay_media::Extent;
use forebay_placement::ObjectId;
use forebay_records::origin::{OriginMark, OriginState};
use forebay_records::record::{
    ChunkMap, Entry, EntryRecord, Inode, Key, changes, parse_key, push_change, tail,
};

#[global_allocator]
static ALLOCATOR: Watched = Watched;

fn inode(r: &mut Random) -> Inode {
    let origin = OriginMark {
        state: OriginState::from_number(r.below(3) as u64).unwrap(),
        print: r.edge(),
        synced: r.edge() as i64,
    };
    Inode {
        mode: u32::from(r.edge() as u16),
        uid: r.edge() as u32,
        gid: r.edge() as u32,
        nlink: r.edge() as u32,
        size: r.edge(),
        pages: r.edge(),
        mtime: r.edge() as i64,
        ctime: r.edge() as i64,
        atime: r.edge() as i64,
        btime: r.edge() as i64,
        parent: r.edge(),
        rdev: r.edge(),
        controls: r.edge(),
        edition: r.edge(),
        origin,
        // Without a mark, `is_mapped` isn't stored.
        is_mapped: origin != OriginMark::default() && r.once_in(2),
        cuts: r.edge(),
        cut_size: r.edge(),
        copy_stamp: r.edge(),
        is_spread: r.once_in(2),
        has_attributes: r.once_in(2),
        tail: r.below(tail::NAME as usize + 1) as u8,
    }
}

/// A map of at most 256 pages, in extents of every length.
fn chunk_map(r: &mut Random) -> ChunkMap {
    let mut map = ChunkMap::default();
    let most = 1 + r.below(256);
    loop {
        let pages = 1 + r.below(most);
        if map.pages() + pages > 256 || r.once_in(100) {
            return map;
        }
        let cell = r.edge() & ((1 << 40) - 1);
        let start = cell << 8 | r.below(257 - pages) as u64;
        if start == (1 << 48) - 1 {
            continue;
        }
        assert!(map.push(Extent::new(r.below(255) as u8, start, pages)));
    }
}

/// An owned change.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

fn list(some: &[Change]) -> Vec<u8> {
    let mut list = Vec::new();
    for (shard, key, value) in some {
        push_change(&mut list, *shard, key, value.as_deref());
    }
    list
}

/// Returns the changes in a list, if the list is valid.
fn read_back(list: &[u8]) -> Option<Vec<Change>> {
    changes(list)
        .map(|c| c.map(|(shard, key, value)| (shard, key.to_vec(), value.map(<[u8]>::to_vec))))
        .collect()
}

fn some_changes(r: &mut Random) -> Vec<Change> {
    (0..r.below(8))
        .map(|_| {
            let value = (!r.once_in(3)).then(|| r.bytes(200));
            (r.below(64), r.bytes(64), value)
        })
        .collect()
}

#[test]
fn encoded_records_decode_to_the_same() {
    forebay_fuzz::run("records, round trip", |r| {
        let (i, t) = (inode(r), r.bytes(300));
        assert_eq!(Inode::decode(&i.encode(&t)), Some((i, &t[..])));
        let map = chunk_map(r);
        assert_eq!(ChunkMap::decode(&map.encode()), Some(map.clone()));
        let some = some_changes(r);
        assert_eq!(read_back(&list(&some)), Some(some));
        let e = Entry {
            id: ObjectId(r.edge()),
            kind: (r.below(16) as u32) << 12,
        };
        assert_eq!(Entry::decode(&e.encode()), Some(e));
        let of_entry = EntryRecord {
            entry: e,
            changing: r.once_in(2),
        };
        let bytes = of_entry.encode();
        assert_eq!(EntryRecord::decode(&bytes), Some(of_entry));
        // While several nodes are changing an entry, `Entry` doesn't decode the entry's record.
        assert_eq!(Entry::decode(&bytes), (!of_entry.changing).then_some(e));
        let (id, name) = (ObjectId(r.edge()), r.bytes(255));
        let key = Key::entry(id, &name);
        assert_eq!(parse_key(&key), Some((b'D', id, &name[..])));
        // After a truncation, the kept and the removed pages add up to the old ones.
        let (mut kept, mut gone) = (map.clone(), 0);
        let n = r.below(300);
        kept.truncate(n, |e| gone += e.pages());
        assert_eq!(kept.pages(), n.min(map.pages()));
        assert_eq!(kept.pages() + gone, map.pages());
    });
}

#[test]
fn arbitrary_bytes_are_a_record_or_none() {
    forebay_fuzz::run("records, any bytes", |r| {
        let valid = |r: &mut Random| match r.below(4) {
            0 => {
                let map = chunk_map(r);
                inode(r).encode(&map.encode()).to_vec()
            }
            1 => chunk_map(r).encode().to_vec(),
            2 => list(&some_changes(r)),
            _ => r.bytes(400),
        };
        let (mut bytes, other) = (valid(r), valid(r));
        r.mutate(&mut bytes, &other);
        let (_, largest) = largest_allocation(|| {
            if let Some((i, t)) = Inode::decode(&bytes) {
                assert_eq!(i.encode(t)[..], bytes[..]);
                ChunkMap::decode(t);
            }
            if let Some(mut map) = ChunkMap::decode(&bytes) {
                assert_eq!(map.encode()[..], bytes[..]);
                let (before, keep) = (map.pages(), bytes.len() % 257);
                map.truncate(keep, |_| {});
                assert_eq!(map.pages(), keep.min(before));
            }
            if let Some(some) = read_back(&bytes) {
                assert_eq!(list(&some), bytes);
            }
            Entry::decode(&bytes);
            if let Some(one) = EntryRecord::decode(&bytes) {
                assert_eq!(one.encode()[..], bytes[..]);
            }
            parse_key(&bytes);
        });
        assert!(
            largest <= 4096 + 16 * bytes.len(),
            "{largest} bytes of memory for a record of {}",
            bytes.len()
        );
    });
}

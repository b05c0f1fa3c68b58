//! Layouts: how the data of a file, and the entries of a directory, are spread over the nodes.
//!
//! Not used yet: pools know `local` and `local-all` only, the latter by [`ObjectId::keeps`].
//!
//! A directory's layout says what is made in it gets, and where its own entries lie; a file's says
//! where its chunks lie. Each is 8 bytes in the object's record; zeros are the default.
//!
//! What is local isn't bound to a node but to an *anchor*: one of the slots that the node had when
//! something was written for the first time. So everything lies in a slot, and goes with its slot
//! when nodes join and leave: no record has to be changed, nothing refers to a node that is gone,
//! and new nodes get their part of local data too.

use crate::{NodeId, ObjectId, PoolMap, SLOTS, Slot, State, hash_of};
use std::fmt;
use std::str::FromStr;

/// How a file's data and a directory's entries are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Chunks and records over all nodes.
    #[default]
    Striped,
    /// Data on the node that writes first; records over all nodes.
    Local,
    /// As `Local`, and the entries and records of a directory's children on the node that makes
    /// the first of them.
    LocalAll,
}

impl Scheme {
    const ALL: [(Scheme, &str); 3] = [
        (Scheme::Striped, "striped"),
        (Scheme::Local, "local"),
        (Scheme::LocalAll, "local-all"),
    ];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Scheme::ALL.iter().find(|s| s.0 == *self);
        f.write_str(name.map_or("", |s| s.1))
    }
}

impl FromStr for Scheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Scheme, String> {
        let scheme = Scheme::ALL.iter().find(|s| s.1 == text);
        scheme.map(|s| s.0).ok_or_else(|| {
            format!("'{text}' is no distribution: there are striped, local and local-all")
        })
    }
}

/// The size of a file's chunks: a power of two from 64 KiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(u8);

impl ChunkSize {
    const DEFAULT_BITS: u8 = 20;
    const BITS: std::ops::RangeInclusive<u8> = 16..=30;

    /// Chunks of so many bytes.
    ///
    /// # Errors
    /// A sentence that says which sizes there are.
    pub fn new(bytes: u64) -> Result<ChunkSize, String> {
        let bits = bytes.trailing_zeros() as u8;
        if bytes.is_power_of_two() && ChunkSize::BITS.contains(&bits) {
            return Ok(ChunkSize(bits));
        }
        Err(format!(
            "a chunk can't have {bytes} bytes: write a power of two from 64K to 1G, as in 1M"
        ))
    }

    /// Its bytes.
    pub fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The chunk of the byte at `offset`.
    pub fn chunk_of(self, offset: u64) -> u64 {
        offset >> self.0
    }
}

impl Default for ChunkSize {
    fn default() -> ChunkSize {
        ChunkSize(ChunkSize::DEFAULT_BITS)
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            30 => write!(f, "1G"),
            bits @ 20.. => write!(f, "{}M", 1 << (bits - 20)),
            bits => write!(f, "{}K", 1 << (bits - 10)),
        }
    }
}

/// Where the data of a file, or the entries of a directory, lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// Each where its hash says.
    #[default]
    Spread,
    /// There are none yet; the first to write decides ([`Layout::claimed`]).
    FirstUse,
    /// All in this slot.
    At(Slot),
}

/// How an object is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The scheme, of a directory for what will be made in it.
    pub scheme: Scheme,
    /// The chunk size, of a directory for what will be made in it.
    pub chunk_size: ChunkSize,
    /// Where a file's data or a directory's entries lie.
    pub anchor: Anchor,
}

impl Layout {
    /// Bytes of a layout in a record.
    pub const LEN: usize = 8;

    /// The layout of a new file in a directory with this one.
    pub fn for_file(&self) -> Layout {
        self.inherited(self.scheme != Scheme::Striped)
    }

    /// The layout of a new directory in a directory with this one.
    pub fn for_directory(&self) -> Layout {
        self.inherited(self.scheme == Scheme::LocalAll)
    }

    fn inherited(&self, anchored: bool) -> Layout {
        let anchor = match anchored {
            true => Anchor::FirstUse,
            false => Anchor::Spread,
        };
        Layout { anchor, ..*self }
    }

    /// The layout of a directory that is to give its children another one. Its own entries lie
    /// elsewhere from now on only if it has none.
    pub fn changed(&self, scheme: Scheme, chunk_size: ChunkSize, empty: bool) -> Layout {
        let new = Layout {
            scheme,
            chunk_size,
            anchor: self.anchor,
        };
        if empty { new.for_directory() } else { new }
    }

    /// The layout of the object `id` as of the first write by a process on `writer`. It is to be
    /// recorded at the object's home before anything is written, by whoever comes first.
    ///
    /// Spread, if `writer` keeps no slots or is about to leave.
    pub fn claimed(&self, map: &PoolMap, writer: NodeId, id: ObjectId) -> Layout {
        if self.anchor != Anchor::FirstUse {
            return *self;
        }
        let stays = map.node(writer).is_some_and(|n| n.state != State::Leaving);
        let slot = map.slices().slot_on(writer, hash_of(id));
        let anchor = match slot {
            Some(slot) if stays => Anchor::At(slot),
            _ => Anchor::Spread,
        };
        Layout { anchor, ..*self }
    }

    /// The slot of a file's chunk. None if nothing has been written.
    pub fn chunk_slot(&self, id: ObjectId, chunk: u64) -> Option<Slot> {
        match self.anchor {
            Anchor::Spread => Some(Slot::of_chunk(id, chunk)),
            Anchor::FirstUse => None,
            Anchor::At(slot) => Some(slot),
        }
    }

    /// The slot of a directory's entry; a new object's id gets the same. None if there is no
    /// entry in the directory.
    pub fn entry_slot(&self, id: ObjectId, name: &[u8]) -> Option<Slot> {
        match self.anchor {
            Anchor::Spread => Some(Slot::of_entry(id, name)),
            Anchor::FirstUse => None,
            Anchor::At(slot) => Some(slot),
        }
    }

    /// The node of a file's chunk, if `writer` is the one to write first.
    pub fn chunk_node(&self, map: &PoolMap, id: ObjectId, chunk: u64, writer: NodeId) -> NodeId {
        let slot = self.claimed(map, writer, id).chunk_slot(id, chunk);
        map.slices().node_of(slot.expect("it is claimed"))
    }

    /// The node of a directory's entry, if `maker` is the one to make the first.
    pub fn entry_node(&self, map: &PoolMap, id: ObjectId, name: &[u8], maker: NodeId) -> NodeId {
        let slot = self.claimed(map, maker, id).entry_slot(id, name);
        map.slices().node_of(slot.expect("it is claimed"))
    }

    /// As bytes: scheme:1, binary logarithm of the chunk size less 20:1, 2 zero, anchor:4 (0
    /// spread, 1 at first use, else a slot + 2).
    pub fn encode(&self) -> [u8; Layout::LEN] {
        let mut out = [0; Layout::LEN];
        out[0] = self.scheme as u8;
        out[1] = self.chunk_size.0.wrapping_sub(ChunkSize::DEFAULT_BITS);
        let anchor = match self.anchor {
            Anchor::Spread => 0,
            Anchor::FirstUse => 1,
            Anchor::At(slot) => slot.0 + 2,
        };
        out[4..].copy_from_slice(&anchor.to_le_bytes());
        out
    }

    /// The layout that these bytes are, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Layout> {
        let &[scheme, chunk_size, 0, 0, a, b, c, d] = bytes else {
            return None;
        };
        let bits = chunk_size.wrapping_add(ChunkSize::DEFAULT_BITS);
        Some(Layout {
            scheme: Scheme::ALL.get(usize::from(scheme))?.0,
            chunk_size: ChunkSize::BITS.contains(&bits).then_some(ChunkSize(bits))?,
            anchor: match u32::from_le_bytes([a, b, c, d]) {
                0 => Anchor::Spread,
                1 => Anchor::FirstUse,
                n if n - 2 < SLOTS => Anchor::At(Slot(n - 2)),
                _ => return None,
            },
        })
    }
}

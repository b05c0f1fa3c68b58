//! Placement: the slot of an entry, an object or a chunk; the node that keeps a slot; and the shard
//! of the slot on that node.
//!
//! A pool has a fixed number of slots ([`SLOTS`]). The slot of a directory entry is given by the
//! hash of (parent directory's id, name); the slot of an object by its id; the slot of a chunk by
//! the object's [`Distribution`]. All of these are pure functions, so every process finds an object
//! without a request. A new object's id has the slot of its first name. So entry and object lie in
//! one shard, and creating a file is one transaction.
//!
//! - [`slices`]: which node keeps which slots, by random slicing; `balance`: how slots move when
//!   nodes join, leave or get another weight;
//! - [`map`]: the pool map of one epoch; `encoding`: its encoding;
//! - `distribution`: distributions and chunk sizes of directories and files, as parts of their ids;
//! - `view`: ids of the view by attributes, whose directories aren't stored.
//!
//! No I/O, no clock, no floating point: from the same input, every node computes the same result.

#![warn(missing_docs)]

mod balance;
mod distribution;
mod encoding;
pub mod map;
mod plant;
pub mod slices;
mod view;

pub use distribution::{ChunkSize, Distribution};
pub use encoding::{DecodeError, decode_nodes, encode_nodes};
pub use map::{Answer, MapError, Node, PoolMap, State};
pub use plant::planted;
pub use slices::{Claim, Moved, NodeId, Slices};
pub use view::{BY, MAX_DEPTH};

use twox_hash::XxHash3_64;

/// Number of slots of every pool. A slot is the unit of placement, parallel writing and migration.
/// There are many times more slots than nodes in the largest pool, so that shares are even.
pub const SLOTS: u32 = 1 << 18;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// Number of neighbouring slots that share the entries of a `local-all` directory. Such a group
/// usually belongs to one node. `GROUP` is at most the number of a node's shards.
const GROUP: u32 = 64;

/// Identity of an object: a sequence number and, in the low bits, its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// The root directory of a pool.
    pub const ROOT: ObjectId = ObjectId(1 << SLOT_BITS);

    /// The id with sequence number `seq` (from 2 on) in `slot`.
    pub fn new(seq: u64, slot: Slot) -> ObjectId {
        debug_assert!(slot.0 < SLOTS, "there is a slot {}", slot.0);
        ObjectId(seq << SLOT_BITS | u64::from(slot.0))
    }

    /// The slot that keeps the object's records.
    pub fn slot(self) -> Slot {
        Slot::of_hash(self.0)
    }
}

/// The number of one of the pool's [`SLOTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot of the entry `name` in the directory `parent`.
    pub fn of_entry(parent: ObjectId, name: &[u8]) -> Slot {
        let slot = Slot::of_hash(XxHash3_64::oneshot_with_seed(parent.0, name));
        if parent.keeps() {
            return Slot(parent.slot().0 & !(GROUP - 1) | slot.0 & (GROUP - 1));
        }
        slot
    }

    /// Whether `f` holds for all slots that share a directory's entries with this one.
    pub fn group_is(self, f: impl Fn(Slot) -> bool) -> bool {
        let first = self.0 & !(GROUP - 1);
        // A slice may be shorter than a group, so a group may have several nodes' slots.
        (first..first + GROUP).all(|slot| f(Slot(slot)))
    }

    /// The slot of chunk `chunk` of `id`, where chunks are spread over the pool.
    ///
    /// The first chunk has the slot of the object's records, so that a file of one chunk has one
    /// home. The slots of the other chunks are steps of the golden section around the ring of
    /// slots, from a start that a hash of `id` gives. Such steps spread any run of chunks over
    /// nodes more evenly than a hash of each chunk would.
    pub fn of_chunk(id: ObjectId, chunk: u64) -> Slot {
        /// Slots from one chunk to the next. Odd, so that all slots are visited before one repeats.
        const STEP: u64 = 162_013;
        if chunk == 0 {
            return id.slot();
        }
        Slot::of_hash(hash_of(id).wrapping_add(chunk.wrapping_mul(STEP)))
    }

    fn of_hash(hash: u64) -> Slot {
        Slot((hash & u64::from(SLOTS - 1)) as u32)
    }

    /// Returns the shard, of `shards` on this node, that keeps the slot's records.
    pub fn shard(self, shards: usize) -> usize {
        debug_assert!(shards > 0, "a store has shards");
        self.0 as usize % shards
    }
}

/// Returns a hash over all bits of an id. The hash doesn't correlate with the slot that the id
/// contains.
pub(crate) fn hash_of(id: ObjectId) -> u64 {
    XxHash3_64::oneshot(&id.0.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_keeps_its_slot_and_sequence() {
        for slot in [0, 1, 511, SLOTS - 1] {
            let id = ObjectId::new(77, Slot(slot));
            assert_eq!((id.slot(), id.seq()), (Slot(slot), 77));
        }
        assert_eq!(ObjectId::ROOT.slot(), Slot(0));
    }

    #[test]
    fn entries_of_a_keeping_directory_lie_near_it() {
        let dir = ObjectId::new(77, Slot(1_000)).with(Distribution::LocalAll);
        assert!(dir.keeps() && !ObjectId::ROOT.keeps());
        assert_eq!((dir.slot(), dir.seq()), (Slot(1_000), 77));
        let mut met = std::collections::BTreeSet::new();
        for i in 0..1_000 {
            let slot = Slot::of_entry(dir, format!("{i}").as_bytes());
            assert!((960..1_024).contains(&slot.0));
            met.insert(slot.shard(16));
        }
        assert_eq!(met.len(), 16);
        assert!(Slot(1_000).group_is(|s| (960..1_024).contains(&s.0)));
        for other in [960, 990, 1_023] {
            assert!(!Slot(1_000).group_is(|s| s != Slot(other)), "{other}");
        }
    }

    #[test]
    fn entries_spread_evenly_over_shards() {
        let mut count = [0u32; 8];
        for i in 0..80_000 {
            let name = format!("file.{i:08}");
            count[Slot::of_entry(ObjectId::ROOT, name.as_bytes()).shard(8)] += 1;
        }
        assert!(
            count.iter().all(|&n| (9_500..10_500).contains(&n)),
            "{count:?}"
        );
    }

    #[test]
    fn a_run_of_chunks_spreads_evenly() {
        for object in 2..50 {
            let id = ObjectId::new(object, Slot(7 * object as u32));
            assert_eq!(Slot::of_chunk(id, 0), id.slot());
            // 64 chunks are spread over 8 equal parts of the slots.
            let mut count = [0; 8];
            for chunk in 1_000..1_064 {
                count[(Slot::of_chunk(id, chunk).0 / (SLOTS / 8)) as usize] += 1;
            }
            assert!(count.iter().all(|n| (6..=10).contains(n)), "{count:?}");
        }
    }
}

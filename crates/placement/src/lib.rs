//! Placement: which slot an entry or an object belongs to, and which shard keeps a slot.
//!
//! A pool has a fixed number of slots ([`SLOTS`]). A directory entry belongs to the slot
//! given by the hash of (parent directory's id, name); an object to the slot in its id.
//! Both are pure functions, so that every process finds a record without asking anyone.
//! A new object's id is taken from the slot of its first name: entry and object then lie
//! in one shard, and creating a file is one transaction. Slots are mapped to shards of a
//! node (and, in a pool of several nodes, to nodes first).

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number of slots of every pool: the unit of placement, parallel writing and migration.
pub const SLOTS: u32 = 1024;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// Identity of an object: a sequence number and, in the low bits, its slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u64);

impl ObjectId {
    /// The root directory of a pool.
    pub const ROOT: ObjectId = ObjectId(1 << SLOT_BITS);

    /// The id with sequence number `seq` (from 2 on) in `slot`.
    pub fn new(seq: u64, slot: Slot) -> ObjectId {
        ObjectId(seq << SLOT_BITS | u64::from(slot.0))
    }

    /// The slot that keeps the object's records.
    pub fn slot(self) -> Slot {
        Slot((self.0 & u64::from(SLOTS - 1)) as u32)
    }

    /// The sequence number that the id was made from.
    pub fn seq(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// One of the pool's [`SLOTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot of the entry `name` in the directory `parent`.
    pub fn of_entry(parent: ObjectId, name: &[u8]) -> Slot {
        Slot((xxh3_64_with_seed(name, parent.0) & u64::from(SLOTS - 1)) as u32)
    }

    /// The shard, of `shards` on this node, that keeps the slot's records.
    pub fn shard(self, shards: usize) -> usize {
        self.0 as usize % shards
    }
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
}

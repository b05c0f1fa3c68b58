//! Distributions: how the content of a directory is spread over the nodes.
//!
//! A distribution is part of an object's id, so every process knows it without a request. A
//! directory's distribution determines where its new content will lie; a file's, where its chunks
//! lie. New objects inherit the distribution of their directory.
//!
//! ```text
//! bit 63     local-all
//! bits 59-62 striped: binary logarithm of the chunk size less 19; 0: not striped
//! bit 58     the part of a striped file on this node ([`ObjectId::part`])
//! bits 54-57 an object in the view by attributes (`view.rs`)
//! bit 54     with bit 58: the copy of a file of another node ([`ObjectId::copy`])
//! ```

use crate::{ObjectId, SLOT_BITS};
use std::fmt;

const LOCAL_ALL: u64 = 1 << 63;
const STRIPE_AT: u32 = 59;
const STRIPE: u64 = 15 << STRIPE_AT;
const PART: u64 = 1 << 58;
/// The bits that are set in a copy's id. Bit 54 also belongs to the depth of a directory in the
/// view; but ids in the view never have the bit of parts, so the combination is unambiguous.
const COPY: u64 = PART | 1 << 54;
/// The bits of an id that don't belong to its sequence number.
pub(crate) const NOT_SEQ: u64 = LOCAL_ALL | STRIPE | PART | crate::view::BITS;

/// How a file's data and a directory's entries are distributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// A file's data lie on the node that creates it; entries are spread over all nodes.
    #[default]
    Local,
    /// As `Local`, but all entries of a directory and of the directories below it lie on the node
    /// that creates it.
    LocalAll,
    /// A file's data, in chunks of this size, and entries are both spread over all nodes.
    Striped(ChunkSize),
}

impl Distribution {
    /// Returns the distribution's bits of an id, shifted down to a byte.
    pub fn bits(self) -> u8 {
        let bits = match self {
            Distribution::Local => 0,
            Distribution::LocalAll => LOCAL_ALL,
            Distribution::Striped(chunk) => u64::from(chunk.0 - ChunkSize::LESS) << STRIPE_AT,
        };
        (bits >> 56) as u8
    }

    /// The distribution with these bits; None if they are invalid.
    pub fn from_bits(bits: u8) -> Option<Distribution> {
        let known = ObjectId(u64::from(bits) << 56).distribution();
        (known.bits() == bits).then_some(known)
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Local => f.write_str("local"),
            Distribution::LocalAll => f.write_str("local-all"),
            Distribution::Striped(chunk) => write!(f, "striped, chunks of {chunk}"),
        }
    }
}

/// The size of a striped file's chunks: a power of two from 1 MiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(u8);

impl ChunkSize {
    /// The minimum: 1 MiB.
    pub const LEAST: ChunkSize = ChunkSize(20);
    const BITS: std::ops::RangeInclusive<u8> = 20..=30;
    const LESS: u8 = 19;

    /// Returns the size for chunks of `bytes` bytes.
    ///
    /// # Errors
    /// A sentence with the valid sizes, for any other size.
    pub fn new(bytes: u64) -> Result<ChunkSize, String> {
        let bits = bytes.trailing_zeros() as u8;
        if bytes.is_power_of_two() && ChunkSize::BITS.contains(&bits) {
            return Ok(ChunkSize(bits));
        }
        Err(format!(
            "a chunk can't have {bytes} bytes: write a power of two from 1M to 1G, as in 4M"
        ))
    }

    /// The size. Bytes.
    pub fn bytes(self) -> u64 {
        1 << self.0
    }

    /// Returns the index of the chunk that contains the byte at `offset`.
    pub fn chunk_of(self, offset: u64) -> u64 {
        offset >> self.0
    }
}

impl Default for ChunkSize {
    fn default() -> ChunkSize {
        ChunkSize::LEAST
    }
}

impl fmt::Display for ChunkSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            30 => write!(f, "1G"),
            bits => write!(f, "{}M", 1 << (bits - 20)),
        }
    }
}

impl ObjectId {
    /// Returns this id with another distribution.
    pub fn with(self, distribution: Distribution) -> ObjectId {
        ObjectId(self.0 & !(LOCAL_ALL | STRIPE) | u64::from(distribution.bits()) << 56)
    }

    /// The distribution of the object with this id.
    pub fn distribution(self) -> Distribution {
        match self.stripe() {
            Some(chunk) => Distribution::Striped(chunk),
            None if self.keeps() => Distribution::LocalAll,
            None => Distribution::Local,
        }
    }

    /// Whether this is a directory whose entries all lie on its node (`local-all`).
    pub fn keeps(self) -> bool {
        self.0 & LOCAL_ALL != 0
    }

    /// Returns the object's chunk size if its chunks are spread over the nodes (`striped`).
    pub fn stripe(self) -> Option<ChunkSize> {
        match ((self.0 & STRIPE) >> STRIPE_AT) as u8 {
            0 => None,
            n => Some(ChunkSize(n + ChunkSize::LESS)),
        }
    }

    /// Returns the id under which each node except the home stores its part of this striped file.
    pub fn part(self) -> ObjectId {
        ObjectId(self.0 | PART)
    }

    /// Returns the id under which a node stores its copy of this remote file, or of remote bytes of
    /// it.
    pub fn copy(self) -> ObjectId {
        ObjectId(self.0 | COPY)
    }

    /// Whether this is the id of a copy on the node that uses the id. A copy also counts as a part
    /// ([`ObjectId::is_part`]), since each node has its own copy.
    pub fn is_copy(self) -> bool {
        self.0 & COPY == COPY
    }

    /// Returns the ranges of the ids of copies, ascending and disjoint: of each range, its first id
    /// and the id after its last.
    pub fn copies() -> impl Iterator<Item = (ObjectId, ObjectId)> {
        (0..32u64).map(|high| {
            let first = high << STRIPE_AT | COPY;
            (
                ObjectId(first),
                ObjectId(first + (1 << COPY.trailing_zeros())),
            )
        })
    }

    /// Returns the id of the file whose part or copy this is.
    pub fn whole(self) -> ObjectId {
        ObjectId(self.0 & !COPY)
    }

    /// Whether this is the id of a part of a file, or of a copy, on the node that uses the id.
    pub fn is_part(self) -> bool {
        self.0 & PART != 0
    }

    /// Returns the id's sequence number.
    pub fn seq(self) -> u64 {
        (self.0 & !NOT_SEQ) >> SLOT_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn an_id_tells_its_distribution() {
        let id = ObjectId::new(77, Slot(1_000));
        let mut all = vec![Distribution::Local, Distribution::LocalAll];
        all.extend((20..=30).map(|n| Distribution::Striped(ChunkSize::new(1 << n).unwrap())));
        for d in all {
            for id in [id.with(d), id.with(Distribution::LocalAll).with(d)] {
                assert_eq!(
                    (id.distribution(), id.slot(), id.seq()),
                    (d, Slot(1_000), 77)
                );
                assert!(!id.is_part() && id.part().is_part() && id.part().whole() == id);
                assert_eq!((id.part().seq(), id.part().distribution()), (77, d));
                let copy = id.copy();
                assert!(!id.is_copy() && !id.part().is_copy() && copy.is_copy() && copy.is_part());
                assert!(!copy.is_view() && copy.whole() == id && copy.slot() == id.slot());
                assert_eq!((copy.seq(), copy.distribution()), (77, d));
                let there = |(first, end): &(ObjectId, ObjectId)| *first <= copy && copy < *end;
                assert_eq!(ObjectId::copies().filter(there).count(), 1);
            }
            assert_eq!(Distribution::from_bits(d.bits()), Some(d));
        }
        assert_eq!(Distribution::from_bits(0x88), None);
        assert_eq!(Distribution::from_bits(4), None);
    }

    #[test]
    fn chunk_sizes_are_powers_of_two() {
        for (n, text) in [(20, "1M"), (22, "4M"), (29, "512M"), (30, "1G")] {
            let size = ChunkSize::new(1 << n).unwrap();
            assert_eq!((size.to_string(), size.bytes()), (text.into(), 1 << n));
            assert_eq!(size.chunk_of(3 * size.bytes() - 1), 2);
        }
        for bytes in [0, 1, 3 << 20, 1 << 19, 1 << 31, u64::MAX] {
            let error = ChunkSize::new(bytes).unwrap_err();
            assert!(error.contains("from 1M to 1G"), "{bytes}: {error}");
        }
    }
}

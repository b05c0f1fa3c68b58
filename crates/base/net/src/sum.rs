//! The checksum of a body: XXH3 of each of its blocks, seeded with the checksum up to the block
//! before. Summing whole blocks in place is twice as fast as feeding XXH3 piece by piece.

use twox_hash::XxHash3_64;

/// Size of a block; only the last one may be shorter. Bytes.
pub const BLOCK: usize = 16 << 10;

/// A checksum that is updated as bytes are sent or received.
pub struct Sum {
    /// The checksum of all whole blocks so far.
    sum: u64,
    /// The beginning of the next block.
    part: Vec<u8>,
}

impl Sum {
    /// Returns the checksum of no bytes.
    pub fn new(seed: u64) -> Sum {
        Sum {
            sum: seed,
            part: Vec::new(),
        }
    }

    /// Adds bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        if !self.part.is_empty() {
            let (more, rest) = bytes.split_at(bytes.len().min(BLOCK - self.part.len()));
            self.part.extend_from_slice(more);
            bytes = rest;
            if self.part.len() < BLOCK {
                return;
            }
            self.sum = XxHash3_64::oneshot_with_seed(self.sum, &self.part);
            self.part.clear();
        }
        let blocks = bytes.chunks_exact(BLOCK);
        let rest = blocks.remainder();
        for block in blocks {
            self.sum = XxHash3_64::oneshot_with_seed(self.sum, block);
        }
        self.part.extend_from_slice(rest);
        debug_assert!(self.part.len() < BLOCK, "whole blocks are summed at once");
    }

    /// Returns the checksum of all bytes added.
    pub fn value(&self) -> u64 {
        match &self.part[..] {
            [] => self.sum,
            part => XxHash3_64::oneshot_with_seed(self.sum, part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(seed: u64, pieces: &[&[u8]]) -> u64 {
        let mut sum = Sum::new(seed);
        pieces.iter().for_each(|piece| sum.add(piece));
        sum.value()
    }

    #[test]
    fn it_depends_on_the_bytes_and_not_on_their_pieces() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 100).map(|i| (i % 251) as u8).collect();
        for length in [1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, bytes.len()] {
            let all = &bytes[..length];
            let whole = sum(7, &[all]);
            assert_ne!(whole, sum(8, &[all]), "the seed counts");
            for at in [0, 1, 5, BLOCK - 1, BLOCK, BLOCK + 7, 2 * BLOCK] {
                let (first, rest) = all.split_at(at.min(length));
                assert_eq!(whole, sum(7, &[first, rest]));
                let (second, rest) = rest.split_at(rest.len() / 3);
                assert_eq!(whole, sum(7, &[first, second, &[], rest]));
            }
            for wrong in [0, length / 2, length - 1] {
                let mut other = all.to_vec();
                other[wrong] ^= 16;
                assert_ne!(whole, sum(7, &[&other]));
            }
        }
    }

    #[test]
    fn it_is_the_xxh3_that_others_have() {
        // From the reference implementation: printf 'abc' | xxhsum -H3
        assert_eq!(sum(0, &[b"abc"]), 0x78af_5f94_892f_3950);
    }
}

//! Disjoint ranges of bytes of a file, in order, each with the process that used it last.
//!
//! Adjacent ranges of the same owner are merged, so that a file that is written from its beginning
//! to its end needs one entry.

use std::collections::BTreeMap;

/// Disjoint ranges of bytes, each with an owner.
#[derive(Debug, Default)]
pub struct Ranges {
    /// By the first byte: the end (exclusive), and the owner.
    ranges: BTreeMap<u64, (u64, u32)>,
}

impl Ranges {
    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Makes `owner` the owner of the bytes from `start` to `end` (exclusive). Calls `met` with
    /// each owner that had some of these bytes.
    pub fn give(&mut self, start: u64, end: u64, owner: u32, mut met: impl FnMut(u32)) {
        if start >= end {
            return;
        }
        let overlapping: Vec<(u64, u64, u32)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, (behind, _))| *behind > start)
            .map(|(&first, &(behind, owner))| (first, behind, owner))
            .collect();
        for (first, behind, other) in overlapping {
            met(other);
            self.ranges.remove(&first);
            if first < start {
                self.ranges.insert(first, (start, other));
            }
            if behind > end {
                self.ranges.insert(end, (behind, other));
            }
        }
        let (mut start, mut end) = (start, end);
        if let Some((&first, &(behind, other))) = self.ranges.range(..start).next_back()
            && behind == start
            && other == owner
        {
            self.ranges.remove(&first);
            start = first;
        }
        if let Some(&(behind, other)) = self.ranges.get(&end)
            && other == owner
        {
            self.ranges.remove(&end);
            end = behind;
        }
        self.ranges.insert(start, (end, owner));
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_agree_with_a_list_of_bytes() {
        let (mut ranges, mut bytes) = (Ranges::default(), [u32::MAX; 64]);
        let mut random = 12345u64;
        for _ in 0..5000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            let start = random >> 33 & 63;
            let end = (start + (random >> 41 & 15)).min(64);
            let owner = (random >> 50 & 3) as u32;
            let mut met = Vec::new();
            ranges.give(start, end, owner, |o| met.push(o));
            let mut expected: Vec<u32> = bytes[start as usize..end.max(start) as usize]
                .iter()
                .copied()
                .filter(|&o| o != u32::MAX)
                .collect();
            bytes[start as usize..end as usize].fill(owner);
            for list in [&mut met, &mut expected] {
                list.sort_unstable();
                list.dedup();
            }
            assert_eq!(met, expected);
            let covered: u64 = ranges.ranges.iter().map(|(s, (e, _))| e - s).sum();
            let held = bytes.iter().filter(|&&o| o != u32::MAX).count() as u64;
            assert_eq!(covered, held);
        }
        let mut one = Ranges::default();
        for i in 0..1000 {
            one.give(i * 10, i * 10 + 10, 1, |_| panic!("nothing overlaps"));
        }
        assert_eq!(one.count(), 1);
        one.clear();
        assert_eq!(one.count(), 0);
    }
}

//! Lock-free lists of the unused entries of the control region's tables.

use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*};
use rustix::io::Result;

/// Number of entries of a table, at the beginning, that are a reserve: for commands that inspect a
/// pool, repair it or save its data when programs have used up all others
/// ([`crate::process::use_reserve`]).
pub const RESERVED_ENTRIES: u32 = if cfg!(loom) { 0 } else { 64 };

/// The unused entries of one table, as two lock-free lists: one of the reserve, one of all others.
/// The low half of a head is index + 1, the high half a tag against reuse (ABA). `fresh` counts the
/// entries that were ever used; entries below `room` have memory. The reserve always has memory.
#[repr(C)]
pub struct FreeList {
    head: AtomicU64,
    /// Number of entries from [`RESERVED_ENTRIES`] on that have been in use.
    fresh: AtomicU32,
    pub(super) room: AtomicU32,
    /// Number of entries for which the region has room.
    pub(super) limit: AtomicU32,
    /// Number of requests for an entry while all were in use.
    refused: AtomicU32,
    /// Number of entries of the reserve that have been in use.
    kept_fresh: AtomicU32,
    kept: AtomicU64,
}

impl FreeList {
    /// The smaller one of `limit` and the number of entries for which the region has room.
    fn bound(&self, limit: usize) -> usize {
        limit.min(self.limit.load(Relaxed) as usize)
    }

    /// Number of entries for which the region has room.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// Returns the number of requests for an entry while all were in use, since the region was
    /// made.
    pub fn refused(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    /// Takes an unused entry with an index below `limit`; None if all are in use. `next` returns
    /// the link field of an entry; `grow` reserves memory for entries from an index on, and returns
    /// the end of those that have memory.
    ///
    /// # Errors
    /// Those of `grow`.
    pub fn pop<'a>(
        &self,
        limit: usize,
        next: impl Fn(u32) -> &'a AtomicU32,
        grow: impl Fn(u32) -> Result<u32>,
    ) -> Result<Option<u32>> {
        let limit = self.bound(limit) as u32;
        if let Some(index) = take(&self.head, &next) {
            return Ok(Some(index));
        }
        let fresh = self.take_fresh(limit, grow);
        if let Ok(Some(_)) = fresh {
            return fresh;
        }
        if RESERVED_ENTRIES > 0 && forebay_runtime::slots::uses_reserve() {
            let kept = self.pop_kept(limit as usize, &next);
            if kept.is_some() {
                return Ok(kept);
            }
        }
        if let Ok(None) = fresh {
            self.refused.fetch_add(1, Relaxed);
        }
        fresh
    }

    /// Takes an unused entry of the reserve, which always has memory; None if all are in use.
    pub fn pop_kept<'a>(&self, limit: usize, next: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let limit = RESERVED_ENTRIES.min(self.bound(limit) as u32);
        take(&self.kept, &next).or_else(|| count_up(&self.kept_fresh, limit))
    }

    /// Takes the next entry from [`RESERVED_ENTRIES`] on that was never used, below `limit`.
    fn take_fresh(&self, limit: u32, grow: impl Fn(u32) -> Result<u32>) -> Result<Option<u32>> {
        let mut fresh = self.fresh.load(Relaxed);
        while fresh < limit.saturating_sub(RESERVED_ENTRIES) {
            let index = fresh + RESERVED_ENTRIES;
            if index >= self.room.load(Acquire) {
                self.room.fetch_max(grow(index)?, AcqRel);
            }
            let taken = self
                .fresh
                .compare_exchange_weak(fresh, fresh + 1, AcqRel, Relaxed);
            match taken {
                Ok(_) => {
                    debug_assert!(index < self.room.load(Acquire), "an entry taken has memory");
                    return Ok(Some(index));
                }
                Err(now) => fresh = now,
            }
        }
        Ok(None)
    }

    /// Upper bound of the indexes in use: one more than the highest index ever taken, at most
    /// `limit`.
    pub fn end(&self, limit: usize) -> u32 {
        let limit = self.bound(limit) as u32;
        match (self.fresh.load(Acquire), self.kept_fresh.load(Acquire)) {
            (0, kept) => kept.min(limit),
            (fresh, _) => fresh.saturating_add(RESERVED_ENTRIES).min(limit),
        }
    }

    /// Empties the lists, to rebuild them. Only while no other process uses the table.
    pub fn clear(&self) {
        for head in [&self.head, &self.kept] {
            let tag = (head.load(Acquire) >> 32) + 1;
            head.store(tag << 32, Release);
        }
        if self.fresh.load(Acquire) > 0 {
            self.kept_fresh.store(RESERVED_ENTRIES, Release);
        }
    }

    /// Returns the unused entries below [`FreeList::end`]; None if a list has a cycle or an index
    /// outside the table. Only while no process takes or returns entries.
    pub fn walk<'a>(&self, limit: usize, next: impl Fn(u32) -> &'a AtomicU32) -> Option<Vec<u32>> {
        let limit = self.bound(limit);
        let kept = self.kept_fresh.load(Acquire).min(RESERVED_ENTRIES);
        let mut found: Vec<u32> = (kept..RESERVED_ENTRIES.min(self.end(limit))).collect();
        for head in [&self.head, &self.kept] {
            let mut at = head.load(Acquire) as u32;
            while at != 0 {
                if at as usize > limit || found.len() >= limit {
                    return None;
                }
                found.push(at - 1);
                at = next(at - 1).load(Relaxed);
            }
        }
        Some(found)
    }

    /// Puts the entry `index` back into its list.
    pub fn push(&self, index: u32, next: &AtomicU32) {
        assert!(
            index < self.limit(),
            "an entry that is freed lies in its table"
        );
        let list = if index < RESERVED_ENTRIES {
            &self.kept
        } else {
            &self.head
        };
        let mut head = list.load(Acquire);
        loop {
            assert!(head as u32 != index + 1, "an entry is freed once: {index}");
            // Release, for threads that still read the entry as part of a chain.
            next.store(head as u32, Release);
            let new = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match list.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Takes the first entry of a list.
fn take<'a>(list: &AtomicU64, next: &impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
    let mut head = list.load(Acquire);
    while head as u32 != 0 {
        let index = head as u32 - 1;
        let link = u64::from(next(index).load(Relaxed));
        let new = ((head >> 32) + 1) << 32 | link;
        match list.compare_exchange_weak(head, new, AcqRel, Acquire) {
            Ok(_) => return Some(index),
            Err(now) => head = now,
        }
    }
    None
}

/// Takes the next entry that was never used; None if `limit` entries have been used.
fn count_up(fresh: &AtomicU32, limit: u32) -> Option<u32> {
    if fresh.load(Relaxed) >= limit {
        return None;
    }
    Some(fresh.fetch_add(1, Relaxed)).filter(|&index| index < limit)
}

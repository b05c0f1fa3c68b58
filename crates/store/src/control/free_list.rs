//! Lists of unused entries of the tables, without locks.

use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*};
use rustix::io::Result;

/// The first so many entries of a table are a reserve, for commands that look at a pool, mend it or
/// save its data when programs have used up all others ([`crate::process::use_reserve`]).
pub const KEPT: u32 = if cfg!(loom) { 0 } else { 64 };

/// Lock-free lists of unused entries: index + 1 in the low half of the head, a tag against
/// reuse (ABA) in the high half. Entries never used before are counted up from `fresh`; those
/// below `room` have memory. The reserve has a list and a count of its own, and always memory.
#[repr(C)]
pub struct FreeList {
    head: AtomicU64,
    /// Of those from [`KEPT`] on.
    fresh: AtomicU32,
    pub(super) room: AtomicU32,
    /// Entries that this region has room for.
    pub(super) limit: AtomicU32,
    /// How often there was none left.
    refused: AtomicU32,
    /// Of those below.
    kept_fresh: AtomicU32,
    kept: AtomicU64,
}

impl FreeList {
    /// The smaller one of `limit` and of what the region has room for.
    fn bound(&self, limit: usize) -> usize {
        limit.min(self.limit.load(Relaxed) as usize)
    }

    /// Entries that this region has room for.
    pub fn limit(&self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// How often somebody wanted an entry and all were in use, since the region was made.
    pub fn refused(&self) -> u32 {
        self.refused.load(Relaxed)
    }

    /// Takes an index below `limit`; None if all are taken. `next` gives the link field of an
    /// entry; `grow` reserves memory for entries from one on, and tells where they end.
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
        if KEPT > 0 && forebay_runtime::slots::uses_reserve() {
            let kept =
                take(&self.kept, &next).or_else(|| count_up(&self.kept_fresh, KEPT.min(limit)));
            if kept.is_some() {
                return Ok(kept);
            }
        }
        if let Ok(None) = fresh {
            self.refused.fetch_add(1, Relaxed);
        }
        fresh
    }

    /// Takes the next entry from [`KEPT`] on that was never used, below `limit`.
    fn take_fresh(&self, limit: u32, grow: impl Fn(u32) -> Result<u32>) -> Result<Option<u32>> {
        let mut fresh = self.fresh.load(Relaxed);
        while fresh < limit.saturating_sub(KEPT) {
            let index = fresh + KEPT;
            if index >= self.room.load(Acquire) {
                self.room.fetch_max(grow(index)?, AcqRel);
            }
            let taken = self
                .fresh
                .compare_exchange_weak(fresh, fresh + 1, AcqRel, Relaxed);
            match taken {
                Ok(_) => return Ok(Some(index)),
                Err(now) => fresh = now,
            }
        }
        Ok(None)
    }

    /// One more than the highest index ever taken, below `limit`.
    pub fn end(&self, limit: usize) -> u32 {
        let limit = self.bound(limit) as u32;
        match (self.fresh.load(Acquire), self.kept_fresh.load(Acquire)) {
            (0, kept) => kept.min(limit),
            (fresh, _) => fresh.saturating_add(KEPT).min(limit),
        }
    }

    /// Forgets all free entries (to build the list anew). Only while nobody else uses it.
    pub fn clear(&self) {
        for head in [&self.head, &self.kept] {
            let tag = (head.load(Acquire) >> 32) + 1;
            head.store(tag << 32, Release);
        }
        if self.fresh.load(Acquire) > 0 {
            self.kept_fresh.store(KEPT, Release);
        }
    }

    /// The free entries below [`FreeList::end`]; None if a list runs in a circle, or leads out of
    /// the table. Only while nobody takes or returns any.
    pub fn walk<'a>(&self, limit: usize, next: impl Fn(u32) -> &'a AtomicU32) -> Option<Vec<u32>> {
        let limit = self.bound(limit);
        let kept = self.kept_fresh.load(Acquire).min(KEPT);
        let mut found: Vec<u32> = (kept..KEPT.min(self.end(limit))).collect();
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

    /// Gives `index` back.
    pub fn push(&self, index: u32, next: &AtomicU32) {
        let list = match index < KEPT {
            true => &self.kept,
            false => &self.head,
        };
        let mut head = list.load(Acquire);
        loop {
            // Release: for those who still look at the entry as part of a chain.
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

/// Takes the next entry that was never used, of `limit`.
fn count_up(fresh: &AtomicU32, limit: u32) -> Option<u32> {
    if fresh.load(Relaxed) >= limit {
        return None;
    }
    Some(fresh.fetch_add(1, Relaxed)).filter(|&index| index < limit)
}

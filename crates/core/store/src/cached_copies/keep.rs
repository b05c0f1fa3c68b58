//! Decides how long cached copies stay, and how much unused room they may occupy.
//!
//! - Copies take at most half of each medium, and files are copied only while a tenth of the medium
//!   is free. Before a program's write that would leave less than a twentieth free, copies are
//!   removed, the oldest first. All of them are removed before a write fails with ENOSPC.
//! - The keeper periodically asks the homes, for many files per request, whether the files still
//!   exist unchanged (`FileData::sweep_copies`). A home doesn't record which nodes have copies of
//!   its files. So a change needs no notice to such nodes, and a node's death requires no work.

use super::*;
use crate::Extent;
use crate::control_region::{CopyState, MAX_MEDIA};
use crate::record::parse_key;
use crate::views::LocalCopies;
use forebay_runtime::atomics::Ordering::*;

/// Bytes of media for each cached copy that a node may have. Limits the number of copies, since a
/// node's number of records is limited, too.
const FOR_ONE: u64 = 32 << 10;
/// Time without copying after a copy has failed. Nanoseconds.
const RETRY_DELAY_NANOSECONDS: i64 = 1_000_000_000;
/// The number and the size of the copies on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Number of files that have copies on the node.
    pub files: u64,
    /// Bytes that the copies occupy.
    pub bytes: u64,
}

/// A cached copy, as its record describes it.
pub struct Copy {
    pub id: ObjectId,
    pub edition: u64,
    made: i64,
}

impl<'s> LocalCopies<'s> {
    #[inline]
    fn copy_state(self) -> &'s CopyState {
        &self.store.control.header().copies
    }

    /// Whether copies may occupy 1 MiB more of medium `i`.
    pub(crate) fn has_room_for_copies(&self, i: usize) -> bool {
        let (Some(medium), Some(copied)) =
            (self.store.media().get(i), self.copy_state().pages.get(i))
        else {
            return false;
        };
        let usage = medium.usage();
        let copied = copied.load(Relaxed) * PAGE as u64;
        usage.used + CHUNK <= usage.capacity / 10 * 9 && copied + CHUNK <= usage.capacity / 2
    }

    /// Whether copies may be made now.
    pub fn may_copy(&self) -> bool {
        let state = self.copy_state();
        let capacity: u64 = self.store.media().iter().map(|m| m.usage().capacity).sum();
        self.may_hang()
            && (now() as u64) >= state.pause.load(Relaxed)
            && state.files.load(Relaxed) < capacity / FOR_ONE
            && (0..self.store.media().len()).any(|i| self.has_room_for_copies(i))
    }

    /// Suspends copying for a while, after there was no room for a copy.
    pub(super) fn copying_failed(&self) {
        self.copy_state()
            .pause
            .store((now() + RETRY_DELAY_NANOSECONDS) as u64, Relaxed);
    }

    /// Counts one more copy.
    pub(super) fn count_copy(&self) {
        self.copy_state().files.fetch_add(1, Relaxed);
    }

    /// Adds the pages of these extents, which a copy has received, to the count of the copies'
    /// pages.
    pub(crate) fn count_copied(&self, extents: &[Extent]) {
        for e in extents {
            if let Some(pages) = self.copy_state().pages.get(e.medium()) {
                pages.fetch_add(e.pages() as u64, Relaxed);
            }
        }
    }

    /// Removes copies that occupy the room for a write of `len` bytes. Must be called before the
    /// write; the caller must not hold a lock.
    #[inline]
    pub fn make_room(&self, len: usize) {
        let copied = &self.copy_state().pages[..self.store.media().len().min(MAX_MEDIA)];
        for (i, pages) in copied.iter().enumerate() {
            if pages.load(Relaxed) > 0 && self.would_be_full(i, len) {
                // If no room can be made, the write itself reports ENOSPC.
                let _: Result<()> = self.make_room_on(i, len);
            }
        }
    }

    fn would_be_full(&self, i: usize, len: usize) -> bool {
        let usage = self.store.media()[i].usage();
        usage.used + len as u64 + CHUNK > usage.capacity / 20 * 19
    }

    /// Removes copies until `len` bytes fit on medium `i`, or no copies are left.
    #[cold]
    fn make_room_on(&self, i: usize, len: usize) -> Result<()> {
        let mut all = self.all_copies()?;
        all.sort_by_key(|copy| copy.made);
        // Makes some more room, so that not each write has to remove copies.
        let spare = (self.copy_state().pages[i].load(Relaxed) as usize * PAGE / 8).min(64 << 20);
        for copy in all {
            if !self.would_be_full(i, len.saturating_add(spare)) {
                return Ok(());
            }
            self.drop_copy(copy.id)?;
        }
        self.copy_state().pages[i].store(0, Relaxed);
        Ok(())
    }

    /// Removes all copies. Returns whether there were any.
    ///
    /// # Errors
    /// EIO.
    pub fn drop_all_copies(&self) -> Result<bool> {
        let state = self.copy_state();
        if state.files.load(Relaxed) == 0 {
            return Ok(false);
        }
        let all = self.all_copies()?;
        all.iter().try_for_each(|copy| self.drop_copy(copy.id))?;
        state.pages.iter().for_each(|pages| pages.store(0, Relaxed));
        state.files.store(0, Relaxed);
        Ok(!all.is_empty())
    }

    /// Returns all copies of this node.
    pub fn all_copies(&self) -> Result<Vec<Copy>> {
        let mut all = Vec::new();
        for shard in 0..self.store.files.count() {
            let records = self.store.committed(shard)?;
            for (first, end) in ObjectId::copies() {
                records.each_inode(first, |id, inode| {
                    if id >= end {
                        return false;
                    }
                    let inode = inode.map(|(inode, _)| inode).unwrap_or_default();
                    all.push(Copy {
                        id,
                        edition: self.edition_of(inode.copy_stamp),
                        made: inode.btime,
                    });
                    true
                })?;
            }
        }
        Ok(all)
    }

    /// Returns the approximate number and size of this node's copies, without examining each.
    pub fn copied(&self) -> Copies {
        let state = self.copy_state();
        let pages: u64 = state.pages.iter().map(|pages| pages.load(Relaxed)).sum();
        Copies {
            files: state.files.load(Relaxed),
            bytes: pages * PAGE as u64,
        }
    }

    /// Whether `edition` is the present edition of a file of this node.
    pub fn stands(&self, id: ObjectId, edition: u64) -> Result<bool> {
        match self.store.names().stat_here(id) {
            Ok(inode) => Ok(inode.edition == edition),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Counts the copies and their pages again. Copies that are made meanwhile may be missing until
    /// the next count.
    pub fn recount_copied(&self) -> Result<()> {
        let mut pages = [0; MAX_MEDIA];
        let all = self.all_copies()?;
        for copy in &all {
            self.each_extent_of(copy.id, |e| {
                if let Some(n) = pages.get_mut(e.medium()) {
                    *n += e.pages() as u64;
                }
            })?;
        }
        for (place, n) in self.copy_state().pages.iter().zip(pages) {
            place.store(n, Relaxed);
        }
        self.copy_state().files.store(all.len() as u64, Relaxed);
        Ok(())
    }

    /// Calls `each` with the extents of one object of this node: those in its records, and if it is
    /// open, the present ones of chunk 0.
    fn each_extent_of(&self, id: ObjectId, mut each: impl FnMut(Extent)) -> Result<()> {
        let records = self.store.records_of(id)?;
        let open = self.open_first_chunk(id)?;
        let is_open = open.is_some();
        open.iter()
            .for_each(|map| map.extents().iter().for_each(|&e| each(e)));
        for first in [Key::inode(id), Key::chunk(id, 0)] {
            records.each_record(&first, |key, value| {
                match crate::record::extents_in(key, value) {
                    Some((of, map)) if of == id && !(is_open && key[0] == b'I') => {
                        map.extents().iter().for_each(|&e| each(e));
                    }
                    _ => {}
                }
                key[0] == b'X' && parse_key(key).is_some_and(|(_, of, _)| of == id)
            })?;
        }
        Ok(())
    }

    /// Returns the extents of the first chunk of an open object, whose record may be older; None if
    /// the object isn't open.
    fn open_first_chunk(&self, id: ObjectId) -> Result<Option<crate::record::ChunkMap>> {
        self.store
            .objects()
            .with_live(id, |index| self.store.content().first_chunk(index))
    }
}

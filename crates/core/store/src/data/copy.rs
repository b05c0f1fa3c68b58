//! Copies bytes between two files of this node, from page to page, with both locked.
//!
//! Holes of whole pages stay holes; if the target has bytes there, they become zero. The crate
//! `cluster` makes a long copy in steps; if a step fails, the bytes of the earlier steps stay
//! copied.

use super::*;
use crate::live::LiveLock;
use crate::views::Content;
use crate::views::Parts;
use forebay_media::Position;

/// Whether two ranges of the same file, equally long, overlap.
pub fn overlap(at: u64, to_at: u64, len: u64) -> bool {
    at.abs_diff(to_at) < len
}

impl<'s> Content<'s> {
    /// Locks two live objects, or one. The order is always the same, so that no two processes wait
    /// for each other. The caller must be in a `Critical` section.
    pub(crate) fn lock_both(self, a: u32, b: u32) -> Result<(LiveLock<'s>, Option<LiveLock<'s>>)> {
        let first = self.store.objects().lock_live(a.min(b))?;
        let second = (a != b)
            .then(|| self.store.objects().lock_live(a.max(b)))
            .transpose()?;
        Ok((first, second))
    }

    /// Copies bytes from one file of this node to another. Returns their number, at least one.
    /// `check` is called with both files locked, and may refuse the copy. Bytes beyond the end
    /// become part of the target only with `grows`.
    ///
    /// # Errors
    /// ENODATA: the source ends before the offset. EXFULL: some of the bytes lie on other nodes.
    /// EINVAL: the ranges overlap.
    pub fn copy_here(
        &self,
        (from, at): (u32, u64),
        (index, to_at): (u32, u64),
        len: usize,
        grows: bool,
        check: impl FnOnce(&Live, usize) -> Result<()>,
    ) -> Result<usize> {
        self.store.local_copies().make_room(len);
        let _critical = Critical::enter();
        let _locks = self.lock_both(from, index)?;
        let left = self
            .store
            .objects()
            .live(from)
            .size
            .load(Relaxed)
            .saturating_sub(at);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Err(Errno::NODATA);
        }
        if from == index && overlap(at, to_at, len as u64) {
            return Err(Errno::INVAL);
        }
        if Parts::is_spilled(self.store.objects().live(from)) {
            return Err(CHANGED);
        }
        check(self.store.objects().live(index), len)?;
        self.verify_locked(from, at, at + len as u64)?;
        let copy = |to: u64, done: usize, n: usize| {
            self.copy_chunk((from, at + done as u64), index, to, n)
        };
        self.change_locked(index, Some(to_at), len, grows, copy)
            .map(|(_, n)| n)
    }

    /// Copies `len` bytes of a file to a range inside one chunk of another. Both files are locked.
    fn copy_chunk(&self, (from, start): (u32, u64), index: u32, at: u64, len: usize) -> Result<()> {
        let source = self.store.objects().live(from);
        let moved = source.moved.load(Relaxed);
        let end = at + len as u64;
        if source.flags.load(Acquire) & flag::INLINE != 0 {
            let mut bytes = vec![0; len];
            // SAFETY: pointer and length are those of `bytes`.
            unsafe { self.copy_out(from, moved, start, bytes.as_mut_ptr(), len)? };
            return self.fill(index, (at, len), end, |medium, (e, to), before, n| {
                // SAFETY: the range lies in `bytes`, and in the extent.
                unsafe { medium.write(e, to, bytes.as_ptr().add(before), n) }
            });
        }
        let mut done = 0;
        while done < len {
            let (chunk, within) = (
                (start + done as u64) / CHUNK,
                ((start + done as u64) % CHUNK) as usize,
            );
            let n = (len - done).min(CHUNK as usize - within);
            let map = self.chunk_map(from, chunk, moved, pages((within + n) as u64))?;
            let at = at + done as u64;
            let covered = Self::pieces(&map, within, n, |e, offset, before, n| {
                self.copy_extent((e, offset), index, at + before as u64, n, end)
            })?;
            self.zero_range(index, at + covered as u64, at + n as u64)?;
            done += n;
        }
        Ok(())
    }

    /// Copies `len` bytes of an extent to a chunk that is being changed up to `end`. Locked.
    fn copy_extent(
        &self,
        (e, offset): (Extent, usize),
        index: u32,
        at: u64,
        len: usize,
        end: u64,
    ) -> Result<()> {
        let source = self.store.media().get(e.medium()).ok_or(Errno::IO)?;
        let mut done = 0;
        while done < len {
            let start = offset + done;
            let (first, behind) = (start / PAGE, (offset + len).div_ceil(PAGE));
            let (run, init) = source.init_run(e, first, behind - first);
            let n = ((first + run) * PAGE - start).min(len - done);
            let to = at + done as u64;
            if init {
                self.fill(index, (to, n), end, |medium, into, before, n| {
                    let from = Position {
                        extent: e,
                        offset: start + before,
                    };
                    let into = Position {
                        extent: into.0,
                        offset: into.1,
                    };
                    // SAFETY: both ranges lie in their extents; ranges of the same file don't
                    // overlap (`copy_here`).
                    unsafe { source.copy(from, medium, into, n) }
                })?;
            } else {
                self.zero_range(index, to, to + n as u64)?;
            }
            done += n;
        }
        Ok(())
    }
}

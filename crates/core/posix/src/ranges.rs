//! Large files of a pool's origin whose bytes are fetched as they are read.
//!
//! A released file that is opened for reading only isn't fetched at once if it is at least as large
//! as the origin's setting `ranges`. The file's description gets the flag `RANGES`. All processes
//! that share the description see the flag. Each operation that reads first asks for its range
//! ([`OriginGate::bring_range`]) or for the whole file ([`OriginGate::bring_whole`]). The origin
//! service fetches whole blocks, and evicts none of them while the file is open.
//!
//! A process remembers which blocks are in the pool (`known_blocks.rs`), so it asks once for each
//! block. The knowledge about blocks is valid for one *fill*: a number that distinguishes the bytes
//! fetched since the last eviction from earlier ones. The description has the number.

use crate::{Fs, OriginGate};
use forebay_client::origin::{BLOCK, Request};
use forebay_placement::Distribution;
use forebay_runtime::user::UserSliceMut;
use forebay_store::control_region::open_flag::RANGES;
use forebay_store::{Inode, ObjectId};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Number of bytes that are fetched beyond the end of a read from a file with weaker consistency,
/// since read-ahead may read them (`readahead.rs`).
const AHEAD: u64 = 1 << 20;
/// Maximum number of attempts to read at the description's offset while other processes change it.
const ATTEMPTS: usize = 10_000;

/// The numbers of the blocks of a range that isn't empty: the first one, and one more than the
/// last.
fn blocks(at: u64, len: u64) -> (u64, u64) {
    (at / BLOCK, at.saturating_add(len).div_ceil(BLOCK))
}

impl OriginGate<'_> {
    /// Whether a released file that is opened with these flags is fetched by ranges. Striped files
    /// and those with several names aren't.
    pub(crate) fn may_come_by_ranges(&self, id: ObjectId, inode: &Inode, flags: i32) -> bool {
        let others = libc::O_PATH | libc::O_TRUNC | libc::O_ACCMODE;
        let least = self.pool().config().origin.as_ref().map(|o| o.ranges);
        flags & others == libc::O_RDONLY
            && inode.is_file()
            && inode.nlink == 1
            && least.is_some_and(|least| inode.size >= least)
            && !matches!(id.distribution(), Distribution::Striped(_))
    }

    /// Whether the bytes of an open file are fetched as they are read.
    #[inline]
    pub(crate) fn comes_by_ranges(&self, open: u32) -> bool {
        let flags = &self.store().objects().open_file(open).flags;
        flags.load(Relaxed) & RANGES != 0
    }

    /// Marks the description of a file that was just opened: the file's bytes are fetched by
    /// ranges.
    ///
    /// # Errors
    /// Errors of looking up the file at the origin. ESTALE: the file's name refers to another file
    /// now.
    #[cold]
    pub(crate) fn begin_ranges(&self, open: u32) -> Result<()> {
        let o = self.store().objects().open_file(open);
        o.flags.fetch_or(RANGES, AcqRel);
        if let Some(fill) = self.ask_for_range(open, 0, 0)? {
            o.fill.store(fill, Release);
        }
        Ok(())
    }

    /// Ensures that a range of an open file is in the pool. Blocks until the origin service has
    /// fetched it.
    ///
    /// # Errors
    /// Errors of reading at the origin. ESTALE: the file has changed at the origin. ENOSPC.
    #[inline]
    pub fn bring_range(&self, open: u32, at: u64, len: u64) -> Result<()> {
        if self.comes_by_ranges(open) && len > 0 {
            self.bring_blocks(open, at, len)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn bring_blocks(&self, open: u32, at: u64, len: u64) -> Result<()> {
        let o = self.store().objects().open_file(open);
        let live = o.live.load(Relaxed).checked_sub(1).ok_or(Errno::BADF)?;
        // Read-ahead may read more than the caller asked for.
        let has_window = self.reads_ahead && self.store().declared().controls(live) != 0;
        let len = len.saturating_add(if has_window { AHEAD } else { 0 });
        let range = blocks(at, len);
        let (id, fill) = (ObjectId(o.id.load(Relaxed)), o.fill.load(Acquire));
        if self.caches.blocks.has(id, fill, range) {
            return Ok(());
        }
        if self.ask_for_range(open, at, len)?.is_some() {
            self.caches.blocks.note(id, fill, range);
        }
        Ok(())
    }

    /// Asks the origin service for a range. Returns the number of the fill. None: the whole file is
    /// in the pool. Then this call records that in the description.
    fn ask_for_range(&self, open: u32, at: u64, length: u64) -> Result<Option<u32>> {
        let (id, dir, name) = self.opened_as(open);
        let request = Request::Range {
            id,
            dir,
            name,
            at,
            length,
        };
        let text = self.ask_origin_for(&request)?;
        if text.is_empty() {
            let flags = &self.store().objects().open_file(open).flags;
            flags.fetch_and(!RANGES, AcqRel);
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| Errno::PROTO)
    }

    /// Ensures that all bytes of an open file are in the pool, even if it was opened with O_PATH.
    ///
    /// # Errors
    /// Errors of reading at the origin. ESTALE: the file has changed at the origin. ENOSPC.
    #[inline]
    pub fn bring_whole(&self, open: u32) -> Result<()> {
        if self.has_origin() {
            self.bring_rest(open)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn bring_rest(&self, open: u32) -> Result<()> {
        let file = self.store().objects().open_file(open);
        let is_path_only = file.flags.load(Relaxed) & libc::O_PATH as u32 != 0;
        let is_file = file.kind.load(Relaxed) == libc::S_IFREG;
        if !is_file || !self.comes_by_ranges(open) && !is_path_only {
            return Ok(());
        }
        let (id, dir, name) = self.opened_as(open);
        if self.cluster().namespace().stat(id)?.origin.is_released() {
            let cut = false;
            self.ask_origin_for(&Request::Bytes { id, dir, name, cut })?;
        }
        let flags = &self.store().objects().open_file(open).flags;
        flags.fetch_and(!RANGES, AcqRel);
        Ok(())
    }
}

impl Fs {
    /// read(2), or pread(2) with an offset, of a file whose bytes are fetched by ranges. The
    /// description isn't locked during the fetch.
    ///
    /// # Errors
    /// As for [`Fs::read_part`] and [`OriginGate::bring_range`].
    #[cold]
    pub(crate) fn read_by_ranges(
        &self,
        open: u32,
        offset: Option<u64>,
        to: UserSliceMut<'_>,
    ) -> Result<usize> {
        let len = to.len() as u64;
        if let Some(at) = offset {
            self.origin_gate().bring_range(open, at, len)?;
            return self.read_there(open, offset, to);
        }
        let o = self.store().objects().open_file(open);
        for _ in 0..ATTEMPTS {
            let at = o.offset.load(Acquire);
            self.origin_gate().bring_range(open, at, len)?;
            let lock = self.store().objects().open_lock(open)?;
            if o.offset.load(Relaxed) != at {
                drop(lock);
                continue;
            }
            let n = self.read_there(open, Some(at), to)?;
            debug_assert!(n as u64 <= len, "{n} of {len} bytes are read");
            o.offset.store(at + n as u64, Release);
            return Ok(n);
        }
        Err(Errno::BUSY)
    }
}

//! Reading and writing files wherever their bytes lie.
//!
//! A file lies on this node, on its home, or in chunks on several nodes (striped, or spilled
//! because its home is full). A home that is asked as the only node refuses with EXFULL (`CHANGED`)
//! if the file has spilled since. Then the request goes to the parts.

mod remote;

use crate::Cluster;
use forebay_store::Result;
use forebay_store::controls::Change;
use forebay_store::parts::CHANGED;
use forebay_store::views::Parts;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> Cluster<'a> {
    /// Size of an open file in bytes, as of the last finished write.
    ///
    /// # Errors
    /// EHOSTDOWN if its home can't be asked.
    pub fn size(&self, index: u32) -> Result<u64> {
        if let Some(file) = self.striped(index) {
            let inode = self.stat(file.id)?;
            return self.with_parts(file.id, inode).map(|inode| inode.size);
        }
        match self.live_away(index) {
            Some((home, id)) => self.stat_away(home, id).map(|record| record.0.size),
            None => Ok(self.objects().live(index).size.load(Acquire)),
        }
    }

    /// Copies up to `len` bytes from `offset` on to `to`; fewer at the end of the file.
    ///
    /// # Errors
    /// EIO and the like.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read(&self, index: u32, offset: u64, to: *mut u8, len: usize) -> Result<usize> {
        forebay_trace::span!(
            CLUSTER_READ_ENTER,
            CLUSTER_READ_EXIT,
            [self.content().live_id(index).0, offset, len],
            // SAFETY: passed on.
            unsafe { self.read_open(index, offset, to, len) }
        )
    }

    /// # Safety
    /// As for [`Cluster::read`].
    #[inline(always)]
    unsafe fn read_open(&self, index: u32, offset: u64, to: *mut u8, len: usize) -> Result<usize> {
        if !self.is_away(index) {
            // SAFETY: passed on.
            let read = unsafe { self.content().read_here(index, offset, to, len) };
            // Else what is on other nodes by now may have been within the size that it saw.
            if !Parts::is_spilled(self.objects().live(index)) {
                return read;
            }
        }
        self.check_lease(index)?;
        match self.local_copies().last_of(index) {
            // SAFETY: passed on.
            Some(last) => unsafe { self.read_last(index, last, offset, to, len) },
            // SAFETY: passed on.
            None => unsafe { self.read_where_it_lies(index, offset, to, len) },
        }
    }

    /// As [`Cluster::read`], without a copy of it.
    ///
    /// # Safety
    /// As for [`Cluster::read`].
    pub(crate) unsafe fn read_where_it_lies(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        if let Some(file) = self.striped(index) {
            // SAFETY: passed on.
            return unsafe { self.stripes().read_striped(&file, offset, to, len) };
        }
        if let Some(away) = self.live_away(index) {
            // SAFETY: passed on.
            let read = unsafe { self.read_away(away, offset, to, len) };
            return match self.stripes().spilled_by(index, &read)? {
                // SAFETY: passed on.
                Some(file) => unsafe { self.stripes().read_striped(&file, offset, to, len) },
                None => read,
            };
        }
        // SAFETY: passed on.
        unsafe { self.content().read_here(index, offset, to, len) }
    }

    /// Writes `len` bytes from `from` at `offset`, or at the end of the file. Returns the
    /// offset and how many bytes were written: fewer if space ran out on the way.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, EIO and the like.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub unsafe fn write_at(
        &self,
        index: u32,
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        forebay_trace::span!(
            CLUSTER_WRITE_ENTER,
            CLUSTER_WRITE_EXIT,
            [
                self.content().live_id(index).0,
                offset.unwrap_or(u64::MAX),
                len
            ],
            // SAFETY: passed on.
            unsafe { self.write_open(index, offset, from, len) }
        )
    }

    /// # Safety
    /// As for [`Cluster::write_at`].
    #[inline(always)]
    unsafe fn write_open(
        &self,
        index: u32,
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        self.check_lease(index)?;
        if let Some(file) = self.striped(index) {
            self.check_striped(index, Change::From(offset))?;
            // SAFETY: passed on.
            return unsafe { self.stripes().write_striped(&file, offset, from, len) };
        }
        // SAFETY: passed on.
        let write = |offset: Option<u64>, from: *const u8, len: usize| unsafe {
            match self.live_away(index) {
                Some(away) => self.write_away(away, offset, from, len),
                None => self
                    .content()
                    .write_here(index, offset, (from, len), true, |live| {
                        live.change_by(None);
                        match Parts::is_spilled(live) {
                            true => Err(CHANGED),
                            false => Ok(()),
                        }
                    }),
            }
        };
        let written = write(offset, from, len);
        match written {
            Ok((at, n)) if n < len && self.foreign.is_some() => {
                // The home is full. What is left is told to it again, or goes to other nodes.
                let (behind, left) = (from.wrapping_add(n), len - n);
                let rest = write(Some(at + n as u64), behind, left);
                let rest = match self.stripes().spilled_by(index, &rest)? {
                    // SAFETY: passed on.
                    Some(file) => unsafe {
                        self.stripes()
                            .write_striped(&file, Some(at + n as u64), behind, left)
                    },
                    None => rest,
                };
                Ok((at, n + rest.map_or(0, |r| r.1)))
            }
            Ok(done) => Ok(done),
            written => match self.stripes().spilled_by(index, &written)? {
                // SAFETY: passed on.
                Some(file) => unsafe { self.stripes().write_striped(&file, offset, from, len) },
                None => written,
            },
        }
    }
}

/// ENOSPC if not all was written.
pub(crate) fn whole(written: usize, all: usize) -> Result<()> {
    match written == all {
        true => Ok(()),
        false => Err(Errno::NOSPC),
    }
}

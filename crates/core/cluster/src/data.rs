//! Reads and writes files whose bytes lie on any nodes.
//!
//! A file lies on this node, on its home, or in chunks on several nodes (striped, or spilled
//! because its home is full). A home refuses a request for an unspilled file with EXFULL
//! (`CHANGED`) if the file has spilled since. The process then repeats the operation as for a
//! spilled file, with requests to the nodes with parts.

mod remote;

use crate::views::FileData;
use forebay_store::Result;
use forebay_store::controls::Change;
use forebay_store::stripe_units::CHANGED;
use forebay_store::views::Parts;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

impl<'a> FileData<'a> {
    /// Size of an open file in bytes, as of the last finished write.
    ///
    /// # Errors
    /// EHOSTDOWN if the file's home can't be reached.
    pub fn size(&self, index: u32) -> Result<u64> {
        if let Some(file) = self.cluster.stripes().striped(index) {
            let inode = self.cluster.namespace().stat(file.id)?;
            return self.with_parts(file.id, inode).map(|inode| inode.size);
        }
        match self.cluster.opens().remote_live(index) {
            Some((home, id)) => self
                .cluster
                .namespace()
                .stat_remote(home, id)
                .map(|record| record.0.size),
            None => Ok(self.store().objects().live(index).size.load(Acquire)),
        }
    }

    /// Reads up to `len` bytes from `offset` on into `to`; fewer at the end of the file.
    ///
    /// # Errors
    /// EIO, EHOSTDOWN.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub unsafe fn read(&self, index: u32, offset: u64, to: *mut u8, len: usize) -> Result<usize> {
        forebay_trace::span!(
            CLUSTER_READ_ENTER,
            CLUSTER_READ_EXIT,
            [self.store().content().live_id(index).0, offset, len],
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            unsafe { self.read_open(index, offset, to, len) }
        )
    }

    /// # Safety
    /// As for [`FileData::read`].
    #[inline(always)]
    unsafe fn read_open(&self, index: u32, offset: u64, to: *mut u8, len: usize) -> Result<usize> {
        if !self.is_remote(index) {
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            let read = unsafe { self.store().content().read_here(index, offset, to, len) };
            // Checked after the read: if the file was spilled meanwhile, some of the bytes may lie
            // on other nodes.
            if !Parts::is_spilled(self.store().objects().live(index)) {
                return read;
            }
        }
        self.cluster.locks().check_lease(index)?;
        match self.store().local_copies().last_of(index) {
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            Some(last) => unsafe { self.read_last(index, last, offset, to, len) },
            // SAFETY: as above.
            None => unsafe { self.read_where_it_lies(index, offset, to, len) },
        }
    }

    /// As [`FileData::read`], without using a cached copy.
    ///
    /// # Safety
    /// As for [`FileData::read`].
    pub(crate) unsafe fn read_where_it_lies(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        if let Some(file) = self.cluster.stripes().striped(index) {
            // SAFETY: the caller promises that `to` is writable for `len` bytes.
            return unsafe { self.cluster.stripes().read_striped(&file, offset, to, len) };
        }
        if let Some(remote) = self.cluster.opens().remote_live(index) {
            // SAFETY: as above.
            let read = unsafe { self.read_remote(remote, offset, to, len) };
            return match self.cluster.stripes().spilled_by(index, &read)? {
                // SAFETY: as above.
                Some(file) => unsafe {
                    self.cluster.stripes().read_striped(&file, offset, to, len)
                },
                None => read,
            };
        }
        // SAFETY: as above.
        unsafe { self.store().content().read_here(index, offset, to, len) }
    }

    /// Writes `len` bytes from `from` at `offset`, or at the end of the file. Returns the offset
    /// and the number of bytes written: fewer than `len` if room ran out.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, EIO, EHOSTDOWN.
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
                self.store().content().live_id(index).0,
                offset.unwrap_or(u64::MAX),
                len
            ],
            // SAFETY: the caller promises that `from` is readable for `len` bytes.
            unsafe { self.write_open(index, offset, from, len) }
        )
    }

    /// # Safety
    /// As for [`FileData::write_at`].
    #[inline(always)]
    unsafe fn write_open(
        &self,
        index: u32,
        offset: Option<u64>,
        from: *const u8,
        len: usize,
    ) -> Result<(u64, usize)> {
        self.cluster.locks().check_lease(index)?;
        if let Some(file) = self.cluster.stripes().striped(index) {
            self.cluster
                .declarations()
                .check_striped(index, Change::From(offset))?;
            // SAFETY: the caller promises that `from` is readable for `len` bytes.
            return unsafe {
                self.cluster
                    .stripes()
                    .write_striped(&file, offset, from, len)
            };
        }
        // SAFETY: the closure is called with parts of the caller's buffer only.
        let write = |offset: Option<u64>, from: *const u8, len: usize| unsafe {
            match self.cluster.opens().remote_live(index) {
                Some(remote) => self.write_remote(remote, offset, from, len),
                None => {
                    self.store()
                        .content()
                        .write_here(index, offset, (from, len), true, |live| {
                            live.change_by(None);
                            if Parts::is_spilled(live) {
                                Err(CHANGED)
                            } else {
                                Ok(())
                            }
                        })
                }
            }
        };
        let written = write(offset, from, len);
        match written {
            Ok((at, n)) if n < len && self.store().remote.is_some() => {
                // The home is full. Another write of the rest may find room there; else the rest
                // goes to other nodes.
                let (behind, left) = (from.wrapping_add(n), len - n);
                let rest = write(Some(at + n as u64), behind, left);
                let rest = match self.cluster.stripes().spilled_by(index, &rest)? {
                    // SAFETY: the `left` bytes from `behind` on are the rest of the caller's
                    // buffer.
                    Some(file) => unsafe {
                        self.cluster.stripes().write_striped(
                            &file,
                            Some(at + n as u64),
                            behind,
                            left,
                        )
                    },
                    None => rest,
                };
                Ok((at, n + rest.map_or(0, |r| r.1)))
            }
            Ok(done) => Ok(done),
            written => match self.cluster.stripes().spilled_by(index, &written)? {
                // SAFETY: the caller promises that `from` is readable for `len` bytes.
                Some(file) => unsafe {
                    self.cluster
                        .stripes()
                        .write_striped(&file, offset, from, len)
                },
                None => written,
            },
        }
    }
}

/// Returns ENOSPC if fewer than `all` bytes were written.
pub(crate) fn whole(written: usize, all: usize) -> Result<()> {
    if written == all {
        Ok(())
    } else {
        Err(Errno::NOSPC)
    }
}

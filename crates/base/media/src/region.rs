//! A file mapped into memory and shared with other processes.

use crate::PAGE;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::path::Path;

/// A shared, writable mapping of a file or a part of it. Stays mapped until dropped.
pub struct Region {
    base: *mut u8,
    len: usize,
}

// SAFETY: the region is plain memory; its content is accessed through atomics, or under locks
// inside it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn create_file(path: &Path, len: usize) -> Result<OwnedFd> {
    let fd = rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

impl Region {
    /// Creates the file `path` (mode 0600) with `len` zero bytes and maps it. `reserve`: whether to
    /// reserve room for all of them.
    ///
    /// # Errors
    /// EEXIST if the file exists; ENOSPC without room; errors of open and mmap.
    pub fn create(path: &Path, len: usize, reserve: bool) -> Result<Region> {
        let fd = create_file(path, len)?;
        if reserve {
            rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, len as u64)?;
        }
        Region::map(&fd, 0, len)
    }

    /// Creates the file `path` (mode 0600) with `len` bytes, without room, and maps the first
    /// `mapped` bytes.
    ///
    /// # Errors
    /// EEXIST if the file exists; errors of open and mmap.
    pub fn create_part(path: &Path, len: usize, mapped: usize) -> Result<Region> {
        Region::map(&create_file(path, len)?, 0, mapped)
    }

    /// Maps the whole file `path`, which must have at least `min` bytes.
    ///
    /// # Errors
    /// ENODATA if the file is shorter than `min`; errors of open and mmap.
    pub fn open(path: &Path, min: usize) -> Result<Region> {
        let fd = open_rw(path)?;
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        if len < min {
            return Err(Errno::NODATA);
        }
        Region::map(&fd, 0, len)
    }

    /// Maps `len` bytes of `fd` from `offset` on.
    ///
    /// # Errors
    /// Errors of mmap.
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> Result<Region> {
        // SAFETY: the kernel chooses an unused address, so no mapping is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )?
        };
        Ok(Region {
            base: base.cast(),
            len,
        })
    }

    /// Maps `len` bytes of the same file from `offset` (a multiple of [`crate::PAGE`], after this
    /// region) on, without a descriptor. For a moment this takes the address space from the end of
    /// the region up to `offset`, too.
    ///
    /// # Errors
    /// EINVAL for an offset that isn't after this region; ENOMEM without address space.
    pub fn map_behind(&self, offset: usize, len: usize) -> Result<Region> {
        let last = self.len.checked_sub(PAGE).ok_or(Errno::INVAL)?;
        let before = offset.checked_sub(last).ok_or(Errno::INVAL)?;
        if !offset.is_multiple_of(PAGE) || !self.len.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        // SAFETY: with an old length of 0, the existing mapping stays, and the kernel makes another
        // mapping of the same file from that page on.
        let base = unsafe {
            rustix::mm::mremap(
                self.base.add(last).cast(),
                0,
                before + len,
                MremapFlags::MAYMOVE,
            )?
        };
        let base = base.cast::<u8>();
        // SAFETY: the new mapping has `before + len` bytes, and no pointer to it exists yet.
        unsafe {
            let _ = rustix::mm::munmap(base.cast(), before);
            Ok(Region {
                base: base.add(before),
                len,
            })
        }
    }

    /// Address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length. Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the `T` at byte `offset` of the region.
    ///
    /// # Safety
    /// `T` must be valid for any bytes and made of atomics (other processes write it at any time),
    /// and `offset` aligned for it.
    #[inline]
    pub unsafe fn at<T>(&self, offset: usize) -> &T {
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: the value is in bounds and aligned (asserted), and valid by the caller's promise.
        unsafe { &*self.base.add(offset).cast::<T>() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this object made the mapping, and references into the mapping borrow this object.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// Opens `path` for reading and writing, close-on-exec.
pub(crate) fn open_rw(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

//! An open journal in one process: the ring in shared memory, and its files.
//!
//! The ring holds the last [`RING`] bytes of the journal. A byte at position `p` lies at `p` modulo
//! the ring's length. A file holds one generation. The `journal` module decides what is written and
//! when, and holds the journal's lock meanwhile.

use forebay_media::Region;
use forebay_runtime::atomics::AtomicU64;
use forebay_runtime::fd::{Lent, Place};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Result;
use std::path::{Path, PathBuf};

/// Length of the ring. Bytes.
pub const RING: usize = 4 << 20;

/// A journal, opened by this process.
pub struct Journal {
    /// The directory of the journal's files and of the checkpoint.
    pub(crate) dir: PathBuf,
    ring: Region,
    /// The file of generation `opened`; empty before the file is first needed.
    pub(crate) file: Place,
    pub(crate) opened: AtomicU64,
}

/// The journal's file: kept open, or opened for one use (in the child of a vfork, which has its own
/// descriptors but not its own memory).
pub(crate) enum File {
    Kept(Lent),
    Now(OwnedFd),
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            File::Kept(fd) => fd.as_fd(),
            File::Now(fd) => fd.as_fd(),
        }
    }
}

impl Journal {
    /// Makes the ring, in shared memory.
    ///
    /// # Errors
    /// ENOSPC and errors of open.
    pub fn create_ring(ring: &Path) -> Result<()> {
        Region::create(ring, RING, true).map(|_| ())
    }

    /// The journal whose files lie in `dir`.
    ///
    /// # Errors
    /// Those of open and mmap.
    pub fn open(ring: &Path, dir: &Path) -> Result<Journal> {
        Ok(Journal {
            dir: dir.to_owned(),
            ring: Region::open(ring, RING)?,
            file: Place::empty(),
            opened: AtomicU64::new(0),
        })
    }

    /// The directory of the journal's files and of the checkpoint.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the file of a generation.
    pub(crate) fn path(dir: &Path, generation: u64) -> PathBuf {
        dir.join(format!("journal-{generation}"))
    }

    /// Copies `bytes` to the ring at `position`. The caller holds the journal's lock.
    pub(crate) fn copy_in(&self, position: u64, bytes: &[u8]) {
        assert!(
            bytes.len() <= RING,
            "a record that is longer doesn't go through the ring"
        );
        let at = (position % RING as u64) as usize;
        let first = bytes.len().min(RING - at);
        // SAFETY: both parts lie within the ring: callers pass at most RING bytes. The caller holds
        // the journal's lock, so no other thread uses these bytes.
        unsafe {
            let base = self.ring.base();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(at), first);
            std::ptr::copy_nonoverlapping(bytes[first..].as_ptr(), base, bytes.len() - first);
        }
    }

    /// The bytes of the ring from `position` on, up to `len` or the ring's end.
    pub(crate) fn part(&self, position: u64, len: u64) -> &[u8] {
        let at = (position % RING as u64) as usize;
        let n = len.min((RING - at) as u64) as usize;
        // SAFETY: the part lies within the ring; the caller holds the journal's lock, so no other
        // thread changes the part.
        unsafe { std::slice::from_raw_parts(self.ring.base().add(at), n) }
    }
}

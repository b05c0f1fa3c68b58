//! Reserves room on the disk for the journal and the checkpoint, so that a full disk doesn't block
//! a pool: removals always work, and the room that they free can be used again.
//!
//! - *The journal.* The file of a generation is preallocated: `bound` plus [`RING`] bytes
//!   ([`Durability::journal_len`]). So is the file of the next generation, `journal.spare`. After a
//!   checkpoint, the file of the old generation is cleared and becomes the spare.
//! - *The checkpoint.* `checkpoint.part` is preallocated for all records that fit the memory
//!   reserved for them: a process that reserves more memory first extends this file
//!   ([`Durability::reserve_checkpoint`]). Once complete, it is exchanged with `checkpoint`.
//! - *Writers* wait for a checkpoint before a generation runs out of its room
//!   ([`Durability::wait_for_journal`]).
//!
//! On a file system that copies on writing (btrfs, ZFS), reserved room isn't a promise: there, a
//! full disk can still be an error.

use super::{FILE_HEAD, Journal, RING};
use crate::process::Critical;
use crate::views::Durability;
use forebay_media::put_all;
use forebay_runtime::atomics::Ordering::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result};
use std::path::Path;

/// Name of the preallocated file of the next generation, before it has a number.
const SPARE: &str = "journal.spare";
pub(crate) const CHECKPOINT: &str = "checkpoint";
pub(crate) const PART: &str = "checkpoint.part";

/// Reserves the first `len` bytes of a file. The file keeps its size.
fn reserve(file: &OwnedFd, len: u64) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len))
}

/// Fills the first `len` bytes of a file with zeros. The bytes keep their room on the disk.
fn clear(file: &OwnedFd, len: u64) -> Result<()> {
    let len = len.min(rustix::fs::fstat(file)?.st_size as u64);
    if len == 0 || rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE, 0, len).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; 256 << 10];
    let mut at = 0;
    while at < len {
        let n = zeros.len().min((len - at) as usize);
        put_all(file.as_fd(), &zeros[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

pub(crate) fn open(path: &Path, create: bool) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let flags = if create {
        flags | OFlags::CREATE
    } else {
        flags
    };
    let mode = Mode::from_raw_mode(0o600);
    forebay_runtime::fd::with_room(|| rustix::fs::open(path, flags, mode))
}

impl<'s> Durability<'s> {
    /// Returns the length of a generation's preallocated file. Bytes.
    fn journal_len(&self) -> u64 {
        self.journal_state().bound.load(Relaxed) + RING as u64
    }

    /// Makes the file `path` of the next generation, empty and with its room reserved.
    pub(crate) fn next_journal(&self, dir: &Path, path: &Path) -> Result<OwnedFd> {
        let len = self.journal_len();
        // A process whose limit on file sizes (RLIMIT_FSIZE) is too low leaves this to other
        // processes.
        forebay_media::may_grow(len)?;
        if rustix::fs::access(path, rustix::fs::Access::EXISTS).is_err() {
            match rustix::fs::rename(dir.join(SPARE), path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        let file = open(path, true)?;
        clear(&file, len)?;
        reserve(&file, len)?;
        rustix::fs::ftruncate(&file, len)?;
        Ok(file)
    }

    /// Turns the file of an old generation, of which `used` bytes were written, into the spare;
    /// removes the file if that isn't possible.
    pub(crate) fn recycle_journal(&self, dir: &Path, old: &Path, used: u64) {
        let spare = dir.join(SPARE);
        let recycled = (|| {
            if rustix::fs::access(&spare, rustix::fs::Access::EXISTS).is_ok() {
                return Err(Errno::EXIST);
            }
            let file = open(old, false)?;
            clear(&file, used)?;
            rustix::fs::rename(old, &spare)
        })();
        if recycled.is_err() {
            let _ = rustix::fs::unlink(old);
        }
    }

    /// Makes the spare file if there is none, and reserves its room.
    ///
    /// # Errors
    /// ENOSPC; errors of open.
    pub(crate) fn make_spare_journal(&self) -> Result<()> {
        let Some(journal) = &self.store.journal else {
            return Ok(());
        };
        let len = self.journal_len();
        forebay_media::may_grow(len)?;
        let file = open(&journal.dir().join(SPARE), true)?;
        reserve(&file, len)?;
        rustix::fs::ftruncate(&file, len)
    }

    /// Returns the maximum size of a checkpoint: all records for which memory is reserved, a head
    /// for each part, and the longest list of durable pages. Bytes.
    fn checkpoint_need(&self) -> u64 {
        let shards = (0..self.store.files.count()).map(|i| self.store.control().shard(i));
        let records: u64 = shards.map(|s| s.room.reserved.load(Relaxed)).sum();
        let pages: u64 = self.store.media().iter().map(|m| m.usage().capacity).sum();
        records + records / 64 + pages / 1024 + (64 << 10)
    }

    /// Reserves room for a checkpoint of all records that have reserved memory.
    ///
    /// # Errors
    /// ENOSPC; errors of open.
    pub(crate) fn reserve_checkpoint(&self, journal: &Journal) -> Result<()> {
        let s = self.journal_state();
        let need = self.checkpoint_need();
        if need <= s.checkpoint_room.load(Acquire) {
            return Ok(());
        }
        let _critical = Critical::enter();
        s.rooming
            .acquire(self.store.control(), self.store.process_slot()?)?;
        // If the disk has more room, reserves a quarter more, so that not each growth of the
        // records needs another reservation.
        let reserved = [need + need / 4, need].into_iter().find_map(|len| {
            let reserved = self.reserve_checkpoint_files(journal.dir(), len);
            match reserved {
                Err(Errno::NOSPC | Errno::DQUOT) if len > need => None,
                other => Some(other.map(|()| len)),
            }
        });
        let result = reserved.unwrap_or(Err(Errno::NOSPC));
        if let Ok(len) = result {
            s.checkpoint_room.fetch_max(len, AcqRel);
        }
        s.rooming.release();
        result.map(|_| ())
    }

    fn reserve_checkpoint_files(&self, dir: &Path, len: u64) -> Result<()> {
        reserve(&open(&dir.join(PART), true)?, len)?;
        // The present checkpoint's file becomes the part file once the next checkpoint is complete:
        // see `swap_checkpoint`.
        match open(&dir.join(CHECKPOINT), false) {
            Ok(file) => reserve(&file, len),
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Exchanges the complete part file with the checkpoint, whose file becomes the next part file.
    pub(crate) fn swap_checkpoint(&self, dir: &Path) -> Result<()> {
        let s = self.journal_state();
        s.rooming
            .acquire(self.store.control(), self.store.process_slot()?)?;
        let (part, checkpoint) = (dir.join(PART), dir.join(CHECKPOINT));
        let swapped =
            match rustix::fs::renameat_with(CWD, &part, CWD, &checkpoint, RenameFlags::EXCHANGE) {
                // There is no checkpoint yet, or the file system can't exchange files.
                Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::rename(&part, &checkpoint).map(|()| {
                        let room = s.checkpoint_room.load(Acquire);
                        let made = open(&part, true).and_then(|file| reserve(&file, room));
                        if made.is_err() {
                            s.checkpoint_room.store(0, Release);
                        }
                    })
                }
                other => other,
            };
        s.rooming.release();
        swapped
    }

    /// Waits until there is a new generation, if the present generation's file is nearly full. Must
    /// be called before a commit; the caller must not hold a lock of a shard.
    pub(crate) fn wait_for_journal(&self) {
        let s = self.journal_state();
        let len = || self.generation_len() + FILE_HEAD as u64;
        while len() > s.bound.load(Relaxed) + RING as u64 / 2 {
            match self.checkpoint() {
                Ok(true) => {}
                // If there can't be a new generation, the commit reports why.
                Err(_) => return,
                Ok(false) => {
                    let _critical = Critical::enter();
                    let Ok(me) = self.store.process_slot() else {
                        return;
                    };
                    if s.checkpointing.acquire(self.store.control(), me).is_err() {
                        return;
                    }
                    s.checkpointing.release();
                }
            }
        }
    }
}

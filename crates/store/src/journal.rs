//! The journal of a pool that survives a loss of power: what every commit changed, in one
//! order over all shards.
//!
//! A commit appends its changes before it happens, under the locks of its shards. That is
//! a copy into a ring in shared memory: no system call, and nothing that the death of a
//! process can undo. From the ring the journal is written to a file beside the first
//! medium, when somebody wants it on stable storage or the ring is full. A position
//! counts the bytes of all records ever appended; a file holds those of one *generation*,
//! which begins with a checkpoint ([`crate::checkpoint`]).
//!
//! What the bytes mean is in `format`, how they are appended and written in `writer`, and what room
//! the next generation and checkpoint have on a full disk in `room`.
//!
//! Between appending and committing, each of the commit's shards has the record's position
//! in `pending`. Who finds the lock of such a shard abandoned does what the record says
//! ([`Store::redo_pending`]), so that records and journal agree whatever instant a process
//! is killed at.

mod format;
mod room;
mod writer;

pub(crate) use format::{FILE_HEAD, Read, extents, extents_bytes, kind};
pub(crate) use room::{PART, open};
pub(crate) use writer::Writer;

use crate::Store;
use crate::control::Shard;
use crate::lock::Lock;
use crate::process::Critical;
use crate::shards::ShardSet;
use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*};
use forebay_media::{Region, sync_data};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI32;

/// Bytes of the ring in memory.
pub const RING: usize = 4 << 20;
/// The journal's part of the control region.
#[repr(C, align(64))]
pub struct State {
    /// Held while records are appended or written to the file.
    pub lock: Lock,
    /// Whether commits are noted.
    pub active: AtomicU32,
    /// Not zero while the bits of durable pages may say more than the journal.
    pub unsure: AtomicU32,
    /// Set when writing to stable storage has failed: nothing can be promised any more.
    pub failed: AtomicU32,
    /// Set in a pool that was loaded from stable storage: behind the ends of files may lie
    /// what was written but not noted.
    pub loaded: AtomicU32,
    /// One process at a time makes a checkpoint, syncs everything, empties the limbo.
    pub checkpointing: Lock,
    pub syncing: Lock,
    pub releasing: Lock,
    pub generation: AtomicU64,
    /// The next generation, while it begins, and its start.
    pub next: AtomicU64,
    pub next_start: AtomicU64,
    /// Positions: where this generation starts, the end, written to the file, on stable
    /// storage.
    pub start: AtomicU64,
    pub end: AtomicU64,
    pub written: AtomicU64,
    pub synced: AtomicU64,
    /// Bytes in a generation after which a checkpoint is due.
    pub bound: AtomicU64,
    /// Held while room for checkpoints is reserved, or their files change places.
    pub rooming: Lock,
    /// Bytes reserved for a checkpoint: see `room`.
    pub checkpoint_room: AtomicU64,
}

/// A journal, opened by this process.
pub struct Journal {
    /// Where its files and the checkpoint lie.
    dir: PathBuf,
    ring: Region,
    /// The file of generation `opened`; -1 before it is first needed.
    file: AtomicI32,
    opened: AtomicU64,
}

/// The journal's file: kept open, or (in the child of a vfork, which has descriptors of
/// its own but not memory) opened just for now.
enum File<'a> {
    Kept(BorrowedFd<'a>),
    Now(OwnedFd),
}

impl AsFd for File<'_> {
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
    /// ENOSPC and what open says.
    pub fn create_ring(ring: &Path) -> Result<()> {
        Region::create(ring, RING, true).map(|_| ())
    }

    /// The journal whose files lie in `dir`.
    ///
    /// # Errors
    /// What open and mmap say.
    pub fn open(ring: &Path, dir: &Path) -> Result<Journal> {
        Ok(Journal {
            dir: dir.to_owned(),
            ring: Region::open(ring, RING)?,
            file: AtomicI32::new(-1),
            opened: AtomicU64::new(0),
        })
    }

    /// Where its files and the checkpoint lie.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a generation.
    pub(crate) fn path(dir: &Path, generation: u64) -> PathBuf {
        dir.join(format!("journal-{generation}"))
    }

    /// Copies to the ring at `position`. Under the journal's lock.
    fn copy_in(&self, position: u64, bytes: &[u8]) {
        let at = (position % RING as u64) as usize;
        let first = bytes.len().min(RING - at);
        // SAFETY: both parts lie within the ring: callers pass at most RING bytes. The
        // lock makes us the only one who uses these bytes.
        unsafe {
            let base = self.ring.base();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(at), first);
            std::ptr::copy_nonoverlapping(bytes[first..].as_ptr(), base, bytes.len() - first);
        }
    }

    /// The bytes of the ring from `position` on, up to `len` or the ring's end.
    fn part(&self, position: u64, len: u64) -> &[u8] {
        let at = (position % RING as u64) as usize;
        let n = len.min((RING - at) as u64) as usize;
        // SAFETY: within the ring; under the journal's lock nobody changes it.
        unsafe { std::slice::from_raw_parts(self.ring.base().add(at), n) }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let fd: RawFd = *self.file.get_mut();
        if fd >= 0 {
            forebay_media::forget(fd);
            // SAFETY: published by `Writer::file`, owned by self.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Store {
    pub(crate) fn journal_state(&self) -> &State {
        &self.control().header().journal
    }

    /// The journal, if commits are noted in one.
    pub(crate) fn active_journal(&self) -> Option<&Journal> {
        self.journal
            .as_ref()
            .filter(|_| self.journal_state().active.load(Acquire) != 0)
    }

    /// Opens the journal's file now.
    pub(crate) fn open_journal(&self) -> Result<()> {
        let _critical = Critical::enter();
        match self.active_journal() {
            Some(journal) => Writer::lock(self, journal)?.file().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Locks the journal. The caller is critical.
    pub(crate) fn lock_journal<'a>(&'a self, journal: &'a Journal) -> Result<Writer<'a>> {
        Writer::lock(self, journal)
    }

    /// Appends the changes of a commit on `shards`, which are locked, before it happens.
    pub(crate) fn note_commit(
        &self,
        journal: &Journal,
        shards: ShardSet,
        changes: &[u8],
    ) -> Result<u64> {
        let w = Writer::lock(self, journal)?;
        w.append(kind::COMMIT, changes, |position| {
            for shard in shards.iter() {
                let pending = &self.control().shard(shard).pending;
                pending.store(position + 1, Release);
            }
        })
    }

    /// The commit noted at `position` came to nothing.
    pub(crate) fn note_void(&self, journal: &Journal, position: u64) -> Result<()> {
        let w = Writer::lock(self, journal)?;
        w.append(kind::VOID, &position.to_le_bytes(), |_| ())
            .map(|_| ())
    }

    /// The commit on `shards` is done, or undone.
    pub(crate) fn end_pending(&self, shards: ShardSet) {
        for shard in shards.iter() {
            self.control().shard(shard).pending.store(0, Release);
        }
    }

    /// Does what dead processes had noted but not (all) committed. All shards are locked.
    pub(crate) fn redo_pending(&self, journal: &Journal) -> Result<()> {
        let state = |shard| -> &Shard { self.control().shard(shard) };
        let all = self.all_shards();
        let mut positions: Vec<u64> = all
            .iter()
            .filter_map(|s| state(s).pending.load(Acquire).checked_sub(1))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        for position in positions {
            let (changes, void) = {
                let w = Writer::lock(self, journal)?;
                if position >= w.state.end.load(Acquire) {
                    continue;
                }
                let (_, changes, mut at) = w.read(position)?;
                let mut void = false;
                while at < w.state.end.load(Acquire) && !void {
                    let (kind, content, end) = w.read(at)?;
                    void = kind == kind::VOID && content == position.to_le_bytes();
                    at = end;
                }
                (changes, void)
            };
            if !void {
                self.redo(&changes)?;
            }
        }
        self.end_pending(all);
        Ok(())
    }

    /// Writes the journal, as far as it goes now, to stable storage.
    ///
    /// # Errors
    /// EIO, from then on always.
    pub fn sync_journal(&self) -> Result<()> {
        let Some(journal) = self.active_journal() else {
            return Ok(());
        };
        let _critical = Critical::enter();
        let state = self.journal_state();
        let (end, file) = {
            let w = Writer::lock(self, journal)?;
            w.write_out()?;
            (w.state.end.load(Acquire), w.file()?)
        };
        self.check_failed()?;
        if state.synced.load(Acquire) < end {
            // Should a checkpoint begin another generation meanwhile, it has synced this
            // one, and the number may be the new file's already.
            self.note_failure(sync_data(file.as_fd()))?;
            state.synced.fetch_max(end, AcqRel);
        }
        self.check_failed()
    }

    /// Writes a medium's bytes to stable storage.
    pub(crate) fn sync_medium(&self, m: &forebay_media::Medium) -> Result<()> {
        self.note_failure(m.sync())
    }

    /// The kernel tells only once that it has lost what it was to write. We remember.
    pub(crate) fn note_failure(&self, result: Result<()>) -> Result<()> {
        result.map_err(|_| {
            self.journal_state().failed.store(1, Release);
            Errno::IO
        })
    }

    pub(crate) fn check_failed(&self) -> Result<()> {
        match self.journal_state().failed.load(Acquire) {
            0 => Ok(()),
            _ => Err(Errno::IO),
        }
    }
}

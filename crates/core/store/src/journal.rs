//! The journal of a pool that survives a loss of power: what every commit changed, in one
//! order over all shards.
//!
//! A commit appends its changes to the journal before it changes the records, under the locks of
//! its shards. Appending is a copy into a ring in shared memory: no system call, and nothing that
//! the death of a process can undo. The journal is written from the ring to a file beside the first
//! medium when a process syncs it, or when the ring is full. A position is the number of bytes of
//! all records appended before. A file has the records of one *generation*, which begins with a
//! checkpoint ([`crate::checkpoint`]).
//!
//! `format` defines the bytes, `writer` appends and writes them, and `room` keeps the space that
//! the next generation and checkpoint need on a full disk.
//!
//! Between appending and committing, each of the commit's shards has the position of the commit's
//! journal record in `pending`. A process that finds the lock of such a shard abandoned repeats the
//! change in that record ([`Durability::redo_pending`]). So LMDB and journal agree at whatever
//! instant a process is killed.

mod format;
mod room;
mod writer;

pub(crate) use format::{FILE_HEAD, Read, extents, extents_bytes, kind};
pub(crate) use room::{PART, open};
pub(crate) use writer::Writer;

pub use crate::ring::{Journal, RING};

use crate::control_region::{JournalState, Shard};
use crate::process::Critical;
use crate::records::ShardSet;
use crate::views::Durability;
use forebay_media::sync_data;
use forebay_runtime::atomics::Ordering::*;
use rustix::fd::AsFd;
use rustix::io::{Errno, Result};

impl<'s> Durability<'s> {
    pub(crate) fn journal_state(self) -> &'s JournalState {
        &self.store.control().header().journal
    }

    /// The journal, if commits are recorded in it at present.
    pub(crate) fn active_journal(self) -> Option<&'s Journal> {
        self.store
            .journal
            .as_ref()
            .filter(|_| self.journal_state().active.load(Acquire) != 0)
    }

    /// Opens the journal's file now.
    pub(crate) fn open_journal(&self) -> Result<()> {
        let _critical = Critical::enter();
        match self.active_journal() {
            Some(journal) => Writer::lock(self.store, journal)?.file().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Locks the journal. The caller must be in a [`Critical`] section.
    pub(crate) fn lock_journal(self, journal: &'s Journal) -> Result<Writer<'s>> {
        Writer::lock(self.store, journal)
    }

    /// Appends the changes of a commit on `shards`, before the records change. The caller has
    /// locked these shards.
    pub(crate) fn note_commit(
        &self,
        journal: &Journal,
        shards: ShardSet,
        changes: &[u8],
    ) -> Result<u64> {
        let w = Writer::lock(self.store, journal)?;
        w.append(kind::COMMIT, changes, |position| {
            for shard in shards.iter() {
                let pending = &self.store.control().shard(shard).pending;
                pending.store(position + 1, Release);
            }
        })
    }

    /// Records that the commit at `position` of the journal failed, and must not be repeated.
    pub(crate) fn note_void(&self, journal: &Journal, position: u64) -> Result<()> {
        let w = Writer::lock(self.store, journal)?;
        w.append(kind::VOID, &position.to_le_bytes(), |_| ())
            .map(|_| ())
    }

    /// Clears the pending positions of `shards`, whose commit is done, or undone.
    pub(crate) fn end_pending(&self, shards: ShardSet) {
        for shard in shards.iter() {
            self.store.control().shard(shard).pending.store(0, Release);
        }
    }

    /// Carries out what dead processes had recorded but not completely committed. All shards are
    /// locked.
    pub(crate) fn redo_pending(&self, journal: &Journal) -> Result<()> {
        let state = |shard| -> &Shard { self.store.control().shard(shard) };
        let all = self.store.files.all();
        let mut positions: Vec<u64> = all
            .iter()
            .filter_map(|s| state(s).pending.load(Acquire).checked_sub(1))
            .collect();
        positions.sort_unstable();
        positions.dedup();
        for position in positions {
            let (changes, void) = {
                let w = Writer::lock(self.store, journal)?;
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
                self.store.redo(&changes)?;
            }
        }
        self.end_pending(all);
        Ok(())
    }

    /// Writes the journal, up to its present end, to stable storage.
    ///
    /// # Errors
    /// EIO; after a failure, all further calls fail, too.
    pub fn sync_journal(&self) -> Result<()> {
        let Some(journal) = self.active_journal() else {
            return Ok(());
        };
        let _critical = Critical::enter();
        let state = self.journal_state();
        let (end, file) = {
            let w = Writer::lock(self.store, journal)?;
            w.write_out()?;
            debug_assert_eq!(w.state.written.load(Acquire), w.state.end.load(Acquire));
            (w.state.end.load(Acquire), w.file()?)
        };
        self.check_failed()?;
        if state.synced.load(Acquire) < end {
            // If a checkpoint begins another generation meanwhile, the checkpoint has synced this
            // generation, and the descriptor may be that of the new file.
            self.note_failure(sync_data(file.as_fd()))?;
            state.synced.fetch_max(end, AcqRel);
        }
        self.check_failed()
    }

    /// Writes a medium's bytes to stable storage.
    pub(crate) fn sync_medium(&self, m: &forebay_media::Medium) -> Result<()> {
        self.note_failure(m.sync())
    }

    /// Remembers a failure to write, and turns it into EIO: the kernel reports lost data only once.
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

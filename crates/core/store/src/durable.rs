//! `fsync` and its like, which bring records, bytes, and the state of the pages to stable storage,
//! in an order that leaves a consistent store after a loss of power at any instant.
//!
//! The steps below are those of a pool with a journal. Other pools have a medium in memory, whose
//! bytes are lost when the node fails anyway: there, the record is written back and the media are
//! synced.
//!
//! 1. The file's record is written: the commit is in the journal.
//! 2. The media's bytes are written to stable storage.
//! 3. The pages that were initialised before step 2 are recorded as durable in the journal.
//! 4. The journal is written to stable storage.
//!
//! A record in the journal does no harm if the file's bytes weren't synced: a page that isn't
//! recorded as durable reads as zero after a loss of power, whatever the medium contains there.

use crate::ObjectId;
use crate::control_region::{Live, MAX_LIVE, live_flag as flag};
use crate::journal::{Journal, Writer};
use crate::process::Critical;
use crate::record::{ChunkMap, Key, parse_key, tail};
use crate::records::{ReadRecords, Records};
use crate::views::Durability;
use forebay_media::{Changes, Lacking};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Maximum number of attempts to sync a file. An attempt is void if extents were removed or moved
/// meanwhile, except the last one, during which the file's writers have to wait.
const TRIES: u32 = 3;
/// Maximum number of waits, of 30 s each, for the work of another process.
const MAX_WAITS: u32 = 20;

impl<'s> Durability<'s> {
    /// As `FileData::sync`, for bytes on this node.
    pub fn sync_here(&self, index: u32) -> Result<()> {
        let Some(journal) = self.active_journal() else {
            self.store.content().flush(index, false)?;
            self.store.content().seal_chunks(index)?;
            return self.store.media().iter().try_for_each(|m| m.sync());
        };
        self.check_failed()?;
        let sealed = self.store.content().seal_chunks(index)?;
        for last in (1..=TRIES).map(|n| n == TRIES) {
            if self.sync_data(journal, index, last)? {
                break;
            }
        }
        self.store.content().confirm_sealed(index, &sealed)?;
        self.sync_journal()
    }

    /// Carries out steps 1 to 3. False if the file's extents have changed meanwhile. With `hold`,
    /// the file stays locked, so its extents can't change.
    fn sync_data(&self, journal: &Journal, index: u32, hold: bool) -> Result<bool> {
        let _critical = Critical::enter();
        let mut lock = Some(self.store.objects().lock_live(index)?);
        let live = self.store.objects().live(index);
        self.store.content().flush_locked(index, false)?;
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            return Ok(true);
        }
        let moved = live.moved.load(Acquire);
        let mut lacking: Vec<Lacking> = self
            .store
            .media()
            .iter()
            .map(|_| Lacking::default())
            .collect();
        let mut used = 0u64;
        self.each_chunk(index, |map| {
            for &e in map.extents() {
                used |= 1 << e.medium();
                if let Some(m) = self.store.media().get(e.medium()) {
                    m.cells().lacking(e, &mut lacking[e.medium()]);
                }
            }
        })?;
        if !hold {
            lock = None;
        }
        for (i, m) in self.store.media().iter().enumerate() {
            if used >> i & 1 == 1 {
                self.sync_medium(m)?;
            }
        }
        if lock.is_none() {
            lock = Some(self.store.objects().lock_live(index)?);
        }
        if live.moved.load(Acquire) != moved {
            return Ok(false);
        }
        if lacking
            .iter()
            .any(|l| !l.written.is_empty() || !l.cleared.is_empty())
        {
            self.lock_journal(journal)?.note_pages(|changes| {
                for (m, lacking) in self.store.media().iter().zip(&lacking) {
                    m.cells().make_durable(lacking, changes);
                }
            })?;
        }
        drop(lock);
        Ok(true)
    }

    /// Makes the first page of `map` durable if the record still contains the bytes of the file.
    /// Must be called before `map` replaces these bytes in the record: the bytes may have been
    /// synced, and afterwards are only in this page.
    pub(crate) fn keep_promise(&self, live: &Live, map: &ChunkMap) -> Result<()> {
        let Some(journal) = self.active_journal() else {
            return Ok(());
        };
        let id = ObjectId(live.id.load(Relaxed));
        let records = self.store.records_of(id)?;
        let inline = records
            .inode(id)?
            .is_some_and(|(i, _)| i.tail == tail::DATA);
        drop(records);
        let Some(&first) = map.extents().first().filter(|_| inline) else {
            return Ok(());
        };
        let (page, _) = first.split(1);
        let medium = self.store.media().get(page.medium()).ok_or(Errno::IO)?;
        let mut lacking = Lacking::default();
        medium.cells().lacking(page, &mut lacking);
        if lacking.written.is_empty() {
            return Ok(());
        }
        self.sync_medium(medium)?;
        self.lock_journal(journal)?
            .note_pages(|changes| medium.cells().make_durable(&lacking, changes))
    }

    /// Calls `each` with the extents of every chunk of an open file. Locked.
    fn each_chunk(&self, index: u32, mut each: impl FnMut(&ChunkMap)) -> Result<()> {
        let live = self.store.objects().live(index);
        let first = self.store.content().first_chunk(index);
        each(&first);
        if live.pages.load(Relaxed) == first.pages() as u64 {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let records = self.store.records_of(id)?;
        records.each_attached(&Key::chunk(id, 1), |key, value| {
            let same = parse_key(key).is_some_and(|(tag, of, _)| (tag, of) == (b'X', id));
            if same && let Some(map) = ChunkMap::decode(value) {
                each(&map);
            }
            same
        })
    }

    /// Makes all records durable, if the pool has a journal: the work of `fsync` on a directory.
    ///
    /// # Errors
    /// As for `FileData::sync`.
    pub fn sync_entries(&self) -> Result<()> {
        self.sync_journal()
    }

    /// Makes all earlier writes durable, to closed and open files, by all processes: `syncfs`.
    ///
    /// # Errors
    /// As for `FileData::sync`; ENOSPC: some data couldn't be written, all others were.
    pub fn sync_all(&self) -> Result<()> {
        let mut written = Ok(());
        for i in 0..self.store.control().header().free_live.end(MAX_LIVE) {
            let live = self.store.objects().live(i);
            let id = ObjectId(live.id.load(Acquire));
            if id.0 == 0 || live.flags.load(Acquire) & flag::DIRTY == 0 {
                continue;
            }
            // The object was removed meanwhile: there is nothing to write.
            let Ok((index, held)) = self.store.objects().live_acquire_here(id) else {
                continue;
            };
            written = self.store.content().flush(index, false).and(written);
            drop(held);
            written = self.store.objects().live_release(index).and(written);
        }
        self.store.names().flush_dir_times()?;
        let Some(journal) = self.active_journal() else {
            return self
                .store
                .media()
                .iter()
                .try_for_each(|m| m.sync())
                .and(written);
        };
        let _critical = Critical::enter();
        self.check_failed()?;
        let state = self.journal_state();
        let me = self.store.process_slot()?;
        let mut tries = 0;
        while let Err(e) = state.syncing.acquire(self.store.control(), me) {
            tries += 1;
            if tries == MAX_WAITS {
                return Err(e);
            }
        }
        let result = self.sync_fresh(journal);
        state.syncing.release();
        result?;
        self.sync_journal().and(written)
    }

    /// Carries out steps 2 and 3 for all pages of all media.
    fn sync_fresh(&self, journal: &Journal) -> Result<()> {
        let mut any = false;
        for m in self.store.media() {
            any |= m.cells().mark_fresh();
        }
        for m in self.store.media() {
            self.sync_medium(m)?;
        }
        if !any {
            return Ok(());
        }
        self.lock_journal(journal)?.note_pages(|changes| {
            for m in self.store.media() {
                m.cells().make_fresh_durable(changes);
            }
        })
    }

    /// Restarts the journal, if there is one, from the store's present state: after changes other
    /// than commits, or the loss of the control region.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub fn restart_journal(&self) -> Result<()> {
        if self.store.journal.is_none() {
            return Ok(());
        }
        self.journal_state().active.store(0, Release);
        for m in self.store.media() {
            m.cells().durable_from_init();
            self.sync_medium(m)?;
        }
        while !self.checkpoint()? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether the journal was lost with the control region.
    pub fn journal_stopped(&self) -> bool {
        self.store.journal.is_some() && self.journal_state().active.load(Acquire) == 0
    }

    /// Whether pages are in limbo (freed, but not reusable before the next sync of the journal), or
    /// the journal isn't completely on stable storage.
    pub fn has_unsynced(&self) -> bool {
        let s = self.journal_state();
        self.active_journal().is_some()
            && (s.end.load(Relaxed) != s.synced.load(Relaxed) || self.limbo_pages() > 0)
    }

    /// Position of the journal's end, which changes with every commit; 0 without a journal.
    pub fn journal_end(&self) -> u64 {
        self.journal_state().end.load(Relaxed)
    }

    fn limbo_pages(&self) -> u64 {
        self.store
            .media()
            .iter()
            .map(|m| m.cells().in_limbo())
            .sum()
    }

    /// Writes the journal to stable storage, and then frees the pages in limbo. False if no page
    /// was in limbo.
    ///
    /// # Errors
    /// EIO.
    pub fn end_limbo(&self) -> Result<bool> {
        let Some(journal) = self.active_journal() else {
            return Ok(false);
        };
        let _critical = Critical::enter();
        let state = self.journal_state();
        if self.limbo_pages() == 0 {
            return self.sync_journal().map(|()| false);
        }
        // A thread that waited for this lock finds that its former holder has freed the pages.
        state
            .releasing
            .acquire(self.store.control(), self.store.process_slot()?)?;
        let result = self.end_limbo_locked(journal);
        state.releasing.release();
        result
    }

    fn end_limbo_locked(&self, journal: &Journal) -> Result<bool> {
        let limbo: Vec<_> = self
            .store
            .media()
            .iter()
            .map(|m| m.cells().limbo())
            .collect();
        let clear = |w: Writer<'_>| {
            w.note_pages(|changes: &mut Changes| {
                for (m, extents) in self.store.media().iter().zip(&limbo) {
                    for &e in extents {
                        m.cells().set_durable(e, false);
                    }
                    changes.cleared.extend(extents);
                }
            })
        };
        let result = self
            .sync_journal()
            .and_then(|()| clear(self.lock_journal(journal)?));
        let _section = self.store.section()?;
        for (m, extents) in self.store.media().iter().zip(&limbo) {
            match result {
                Ok(()) => m.cells().release(extents),
                Err(_) => m.cells().keep_in_limbo(extents),
            }
        }
        result.map(|()| limbo.iter().any(|l| !l.is_empty()))
    }
}

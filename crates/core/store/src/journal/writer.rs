//! Appends to the journal, and writes it to its file, with the journal's lock held.

use super::format::{HEAD, extents_bytes, file_head, kind, parse_head, record_head};
use super::{FILE_HEAD, Journal, RING};
use crate::Store;
use crate::control_region::{JournalState, MAX_SHARDS};
use crate::lock::Acquired;
use crate::ring::File;
use forebay_media::{Changes, put_all, sync_data};
use forebay_runtime::atomics::Ordering::*;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, Errno, Result};

/// The locked journal; dropping this value unlocks it.
pub(crate) struct Writer<'a> {
    store: &'a Store,
    journal: &'a Journal,
    pub(crate) state: &'a JournalState,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.state.lock.release();
    }
}

impl<'a> Writer<'a> {
    /// Locks the journal, and repairs its state if the last holder of the lock has died. The caller
    /// has entered [`crate::process::Critical`].
    pub(super) fn lock(store: &'a Store, journal: &'a Journal) -> Result<Writer<'a>> {
        let state = store.durability().journal_state();
        let abandoned =
            state.lock.acquire(store.control(), store.process_slot()?)? == Acquired::Abandoned;
        let w = Writer {
            store,
            journal,
            state,
        };
        if abandoned {
            w.begin_next();
            let end = state.end.load(Acquire);
            state.written.fetch_min(end, AcqRel);
            // A pending position at or beyond the end: the record for it was never appended.
            for shard in 0..MAX_SHARDS {
                let pending = &store.control().shard(shard).pending;
                if pending.load(Acquire) > end {
                    pending.store(0, Release);
                }
            }
        }
        if state.unsure.load(Acquire) != 0 {
            w.be_sure()?;
        }
        Ok(w)
    }

    /// Repairs the list of durable pages, after a process died while recording changes of it:
    /// writes all bytes to stable storage and records all pages again.
    #[cold]
    fn be_sure(&self) -> Result<()> {
        let mut durable = Vec::new();
        for m in self.store.media() {
            self.store.durability().sync_medium(m)?;
            m.cells().durable(|e| durable.push(e));
        }
        self.append(kind::DURABLE, &extents_bytes(&durable), |_| ())?;
        self.state.unsure.store(0, Release);
        Ok(())
    }

    /// Appends a record. Returns its position. Calls `before` with this position just before the
    /// record becomes valid.
    ///
    /// # Errors
    /// ENOSPC, EIO if the ring's content can't be written to the file; nothing is appended then.
    pub(crate) fn append(
        &self,
        kind: u32,
        content: &[u8],
        before: impl FnOnce(u64),
    ) -> Result<u64> {
        let s = self.state;
        let position = s.end.load(Relaxed);
        assert!(
            s.start.load(Relaxed) <= s.written.load(Relaxed) && s.written.load(Relaxed) <= position,
            "the journal is written from its start to its end"
        );
        assert!(
            position.is_multiple_of(8),
            "a record of the journal begins at a word"
        );
        debug_assert!(!s.lock.is_free(), "the journal is locked while it grows");
        let end = position + (HEAD + content.len()).next_multiple_of(8) as u64;
        let head = record_head(s.generation.load(Relaxed), position, kind, content);
        // The file is opened before the record is accepted, so that no error of the disk goes
        // unnoticed.
        if self.journal.opened.load(Relaxed) != s.generation.load(Relaxed) {
            self.file()?;
        }
        if end - s.written.load(Relaxed) > RING as u64 {
            self.write_out()?;
        }
        if end - position > RING as u64 {
            let file = self.file()?;
            let at = self.offset(position);
            put_all(file.as_fd(), &head, at)?;
            put_all(file.as_fd(), content, at + HEAD as u64)?;
            before(position);
            s.written.store(end, Release);
        } else {
            self.journal.copy_in(position, &head);
            self.journal.copy_in(position + HEAD as u64, content);
            before(position);
        }
        s.end.store(end, Release);
        Ok(position)
    }

    /// Returns the offset of `position` in the generation's file. Bytes.
    fn offset(&self, position: u64) -> u64 {
        FILE_HEAD as u64 + position - self.state.start.load(Relaxed)
    }

    /// Writes the file to stable storage.
    pub(crate) fn sync(&self) -> Result<()> {
        sync_data(self.file()?.as_fd())
    }

    /// Writes to the file the part of the journal that only the ring has yet.
    pub(crate) fn write_out(&self) -> Result<()> {
        let end = self.state.end.load(Acquire);
        let mut at = self.state.written.load(Acquire);
        if at == end {
            return Ok(());
        }
        let file = self.file()?;
        while at < end {
            let part = self.journal.part(at, end - at);
            put_all(file.as_fd(), part, self.offset(at))?;
            at += part.len() as u64;
        }
        assert!(at == end, "the journal is written to its end");
        self.state.written.store(end, Release);
        Ok(())
    }

    /// Returns the file of the present generation, which this process keeps open.
    pub(super) fn file(&self) -> Result<File> {
        let j = self.journal;
        let generation = self.state.generation.load(Acquire);
        let kept = j.file.lend();
        if j.opened.load(Acquire) == generation
            && let Some(kept) = kept
        {
            // The descriptor number may be reused for the file of another generation. Such reuse
            // does no harm: see `Durability::sync_journal`.
            return Ok(File::Kept(kept));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let path = Journal::path(&j.dir, generation);
        // A missing file must not appear to the program as its own ENOENT.
        let open = || rustix::fs::open(&path, flags, Mode::empty());
        let new = forebay_runtime::fd::with_room(open).map_err(|e| match e {
            Errno::NOENT => Errno::IO,
            e => e,
        })?;
        if crate::lending::lent().is_some() {
            return Ok(File::Now(new));
        }
        let lent = match j.file.lend() {
            None => j
                .file
                .lend_or_open(|| rustix::io::fcntl_dupfd_cloexec(&new, 0))?,
            Some(lent) => {
                // SAFETY: the descriptor belongs to the journal; `into_raw_fd` releases it without
                // closing it.
                let mut old = unsafe { OwnedFd::from_raw_fd(lent.as_raw_fd()) };
                let replaced = rustix::io::dup3(&new, &mut old, DupFlags::CLOEXEC);
                let _ = old.into_raw_fd();
                replaced?;
                lent
            }
        };
        j.opened.store(generation, Release);
        Ok(File::Kept(lent))
    }

    /// Returns kind, content and end of the record at `position`, which is still pending.
    pub(super) fn read(&self, position: u64) -> Result<(u32, Vec<u8>, u64)> {
        let mut head = [0; HEAD];
        self.read_at(position, &mut head)?;
        let (_, kind, len) = parse_head(&head);
        if position + HEAD as u64 + len as u64 > self.state.end.load(Acquire) {
            return Err(Errno::IO);
        }
        let mut content = vec![0; len];
        self.read_at(position + HEAD as u64, &mut content)?;
        let generation = self.state.generation.load(Relaxed);
        if head != record_head(generation, position, kind, &content) {
            return Err(Errno::IO);
        }
        let end = position + (HEAD + len).next_multiple_of(8) as u64;
        Ok((kind, content, end))
    }

    fn read_at(&self, position: u64, mut out: &mut [u8]) -> Result<()> {
        let written = self.state.written.load(Acquire);
        let mut at = position;
        while !out.is_empty() {
            let n = if at < written {
                let n = out.len().min((written - at) as usize);
                let offset = self.offset(at);
                match rustix::io::pread(self.file()?.as_fd(), &mut out[..n], offset)? {
                    0 => return Err(Errno::IO),
                    n => n,
                }
            } else {
                let part = self.journal.part(at, out.len() as u64);
                out[..part.len()].copy_from_slice(part);
                part.len()
            };
            out = &mut out[n..];
            at += n as u64;
        }
        Ok(())
    }

    /// Switches to the next generation, whose file exists. The caller has locked all shards, and
    /// all appended records are on stable storage.
    pub(crate) fn next_generation(&self, generation: u64) -> Result<()> {
        let s = self.state;
        assert!(
            generation > s.generation.load(Relaxed),
            "a later generation has a higher number"
        );
        let start = s.end.load(Acquire);
        let path = Journal::path(&self.journal.dir, generation);
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let shards = self.store.control().shards() as u32;
        put_all(file.as_fd(), &file_head(generation, start, shards), 0)?;
        s.next_start.store(start, Release);
        s.next.store(generation, Release);
        self.begin_next();
        Ok(())
    }

    /// Switches to the next generation if one was prepared, even if the process that prepared it
    /// has died.
    fn begin_next(&self) {
        let s = self.state;
        let next = s.next.load(Acquire);
        if next != 0 {
            let start = s.next_start.load(Acquire);
            s.written.store(start, Release);
            s.synced.store(start, Release);
            s.start.store(start, Release);
            s.generation.store(next, Release);
            s.active.store(1, Release);
            s.next.store(0, Release);
        }
    }

    /// Calls `change`, which changes the bits of durable pages, and appends records of these
    /// changes.
    pub(crate) fn note_pages(&self, change: impl FnOnce(&mut Changes)) -> Result<()> {
        let mut changes = Changes::default();
        self.state.unsure.store(1, SeqCst);
        change(&mut changes);
        for (kind, extents) in [
            (kind::DURABLE, &changes.durable),
            (kind::CLEARED, &changes.cleared),
        ] {
            if !extents.is_empty() {
                self.append(kind, &extents_bytes(extents), |_| ())?;
            }
        }
        self.state.unsure.store(0, Release);
        Ok(())
    }
}

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
//! ```text
//! file:    a page: "FBYJNL01" version:4 shards:4 generation:8 start:8 checksum:8, zeros
//! record:  checksum:8 position:8 length:4 kind:4 content, zeros up to a multiple of 8
//! kinds:   1 changes of a commit     2 position of a commit that failed after all
//!          3 extents that are initialised on stable storage    4 extents that are not
//! ```
//! Numbers are little-endian. A checksum is xxh3 with the generation as its seed. Who reads
//! a file back stops at the first record that isn't whole: those behind it were never
//! promised to anyone.
//!
//! Between appending and committing, each of the commit's shards has the record's position
//! in `pending`. Who finds the lock of such a shard abandoned does what the record says
//! ([`Store::redo_pending`]), so that records and journal agree whatever instant a process
//! is killed at.

use crate::Store;
use crate::control::{MAX_SHARDS, Shard};
use crate::lock::{Acquired, Lock};
use crate::process::Critical;
use crate::shards::ShardSet;
use forebay_media::atomics::{AtomicU32, AtomicU64, Ordering::*};
use forebay_media::{Changes, Extent, Region, put_all, sync_data};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, Errno, Result};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI32;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the ring in memory.
pub const RING: usize = 4 << 20;
/// Bytes at the start of a file.
pub(crate) const FILE_HEAD: usize = 4096;
const MAGIC: &[u8; 8] = b"FBYJNL01";
const VERSION: u32 = 1;
const HEAD: usize = 24;

/// What a record holds.
pub(crate) mod kind {
    pub const COMMIT: u32 = 1;
    pub const VOID: u32 = 2;
    pub const DURABLE: u32 = 3;
    pub const CLEARED: u32 = 4;
}

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

/// The journal, locked.
pub(crate) struct Writer<'a> {
    store: &'a Store,
    journal: &'a Journal,
    pub(crate) state: &'a State,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.state.lock.release();
    }
}

impl<'a> Writer<'a> {
    /// Locks the journal. The caller is critical.
    fn lock(store: &'a Store, journal: &'a Journal) -> Result<Writer<'a>> {
        let state = store.journal_state();
        let abandoned = state.lock.acquire(store.control(), store.me()?)? == Acquired::Abandoned;
        let w = Writer {
            store,
            journal,
            state,
        };
        if abandoned {
            w.begin_next();
            let end = state.end.load(Acquire);
            state.written.fetch_min(end, AcqRel);
            // Announced, but never appended.
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

    /// Somebody died while noting durable pages: writes all bytes to stable storage and
    /// notes all of them once more.
    #[cold]
    fn be_sure(&self) -> Result<()> {
        let mut durable = Vec::new();
        for m in self.store.media() {
            self.store.sync_medium(m)?;
            m.cells().durable(|e| durable.push(e));
        }
        self.append(kind::DURABLE, &extents_bytes(&durable), |_| ())?;
        self.state.unsure.store(0, Release);
        Ok(())
    }

    /// Appends a record; its position. `before` is called just before it is in.
    ///
    /// # Errors
    /// ENOSPC, EIO if the file can't take what is in the ring; nothing is appended then.
    pub(crate) fn append(
        &self,
        kind: u32,
        content: &[u8],
        before: impl FnOnce(u64),
    ) -> Result<u64> {
        let s = self.state;
        let position = s.end.load(Relaxed);
        let end = position + (HEAD + content.len()).next_multiple_of(8) as u64;
        let head = record_head(s.generation.load(Relaxed), position, kind, content);
        // Opened before anything is promised, so that no error of the disk passes unseen.
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

    /// Place of `position` in the generation's file.
    fn offset(&self, position: u64) -> u64 {
        FILE_HEAD as u64 + position - self.state.start.load(Relaxed)
    }

    /// Writes the file to stable storage.
    pub(crate) fn sync(&self) -> Result<()> {
        sync_data(self.file()?.as_fd())
    }

    /// Writes what is only in the ring to the file.
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
        self.state.written.store(end, Release);
        Ok(())
    }

    /// The file of the present generation.
    fn file(&self) -> Result<File<'a>> {
        let j = self.journal;
        let generation = self.state.generation.load(Acquire);
        let kept: RawFd = j.file.load(Acquire);
        if kept >= 0 && j.opened.load(Acquire) == generation {
            // SAFETY: stays open as long as the journal; another generation's file may
            // take its number, which is as good: see `Store::sync_journal`.
            return Ok(File::Kept(unsafe { BorrowedFd::borrow_raw(kept) }));
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let path = Journal::path(&j.dir, generation);
        // Missing, it isn't the program's file that isn't there.
        let open = || rustix::fs::open(&path, flags, Mode::empty());
        let new = forebay_media::with_room(open).map_err(|e| match e {
            Errno::NOENT => Errno::IO,
            e => e,
        })?;
        if self.store.lent().is_some() {
            return Ok(File::Now(new));
        }
        let fd = if kept < 0 {
            let fd = forebay_media::lift(new).into_raw_fd();
            j.file.store(fd, Release);
            fd
        } else {
            // SAFETY: `kept` is ours; it is given back at once, not closed.
            let mut old = unsafe { OwnedFd::from_raw_fd(kept) };
            let replaced = rustix::io::dup3(&new, &mut old, DupFlags::CLOEXEC);
            let fd = old.into_raw_fd();
            replaced?;
            fd
        };
        j.opened.store(generation, Release);
        // SAFETY: as above.
        Ok(File::Kept(unsafe { BorrowedFd::borrow_raw(fd) }))
    }

    /// Kind, content and end of the record at `position`, which is still pending.
    fn read(&self, position: u64) -> Result<(u32, Vec<u8>, u64)> {
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

    /// Goes over to the next generation, whose file is there. All shards are locked, and
    /// all that was appended is on stable storage.
    pub(crate) fn next_generation(&self, generation: u64) -> Result<()> {
        let s = self.state;
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

    /// Goes over to the next generation, if one is to begin: also after a death on the way.
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

    /// Appends what `change` finds, which changes the bits of durable pages accordingly.
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

fn record_head(generation: u64, position: u64, kind: u32, content: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[8..16].copy_from_slice(&position.to_le_bytes());
    head[16..20].copy_from_slice(&(content.len() as u32).to_le_bytes());
    head[20..24].copy_from_slice(&kind.to_le_bytes());
    let seed = xxh3_64_with_seed(&head[8..], generation);
    head[..8].copy_from_slice(&xxh3_64_with_seed(content, seed).to_le_bytes());
    head
}

/// Position, kind and length.
fn parse_head(head: &[u8; HEAD]) -> (u64, u32, usize) {
    let n64 = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let n32 = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    (n64(8), n32(20), n32(16) as usize)
}

fn file_head(generation: u64, start: u64, shards: u32) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&shards.to_le_bytes());
    head.extend_from_slice(&generation.to_le_bytes());
    head.extend_from_slice(&start.to_le_bytes());
    head.extend_from_slice(&xxh3_64_with_seed(&head, generation).to_le_bytes());
    head.resize(FILE_HEAD, 0);
    head
}

/// A journal's file, read back.
pub(crate) struct Read {
    bytes: Vec<u8>,
    generation: u64,
    /// Position of its first record.
    pub start: u64,
}

impl Read {
    /// None if these aren't the bytes of a journal of this generation.
    pub(crate) fn new(bytes: Vec<u8>, generation: u64, shards: usize) -> Option<Read> {
        let start = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        let head = bytes.get(..FILE_HEAD)?;
        (head == file_head(generation, start, shards as u32)).then_some(Read {
            bytes,
            generation,
            start,
        })
    }

    /// Calls `each(position, kind, content)` for the whole records in order; the position
    /// at which they end.
    pub(crate) fn records<'a>(
        &'a self,
        mut each: impl FnMut(u64, u32, &'a [u8]) -> Result<()>,
    ) -> Result<u64> {
        let mut position = self.start;
        loop {
            let at = FILE_HEAD + (position - self.start) as usize;
            let Some(head) = self.bytes.get(at..at + HEAD) else {
                return Ok(position);
            };
            let head: &[u8; HEAD] = head.try_into().expect("a head's length");
            let (_, kind, len) = parse_head(head);
            let content = self.bytes.get(at + HEAD..at + HEAD + len);
            match content {
                Some(c) if *head == record_head(self.generation, position, kind, c) => {
                    each(position, kind, c)?;
                }
                _ => return Ok(position),
            }
            position += (HEAD + len).next_multiple_of(8) as u64;
        }
    }
}

pub(crate) fn extents_bytes(extents: &[Extent]) -> Vec<u8> {
    extents.iter().flat_map(|e| e.0.to_le_bytes()).collect()
}

/// The extents in the content of a record.
pub(crate) fn extents(content: &[u8]) -> impl Iterator<Item = Extent> {
    content
        .chunks_exact(8)
        .map(|e| Extent(u64::from_le_bytes(e.try_into().expect("8 bytes"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of three records.
    fn file() -> Vec<u8> {
        let mut bytes = file_head(7, 800, 4);
        let mut position = 800;
        for (kind, content) in [(1, &b"first"[..]), (3, &[9; 64]), (1, b"")] {
            bytes.extend_from_slice(&record_head(7, position, kind, content));
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            position = 800 + (bytes.len() - FILE_HEAD) as u64;
        }
        bytes
    }

    fn count(bytes: Vec<u8>) -> Option<usize> {
        let read = Read::new(bytes, 7, 4)?;
        let mut n = 0;
        read.records(|_, _, _| {
            n += 1;
            Ok(())
        })
        .unwrap();
        Some(n)
    }

    #[test]
    fn reading_stops_at_the_first_damage() {
        let whole = file();
        assert_eq!(count(whole.clone()), Some(3));
        // Where the records begin, and where their contents end.
        let places = [(0, 24 + 5), (32, 32 + 24 + 64), (120, 120 + 24)];
        let places = places.map(|(a, b)| (FILE_HEAD + a, FILE_HEAD + b));
        for at in 0..whole.len() {
            let cut = count(whole[..at].to_vec()).unwrap_or(0);
            assert_eq!(cut, places.iter().filter(|p| at >= p.1).count(), "{at}");
            let mut bad = whole.clone();
            bad[at] ^= 0x40;
            let hit = places.iter().position(|p| (p.0..p.1).contains(&at));
            let expected = if at < FILE_HEAD {
                None
            } else {
                hit.or(Some(3))
            };
            assert_eq!(count(bad), expected, "{at}");
        }
        let old = Read::new(whole, 8, 4);
        assert!(old.is_none(), "of another generation");
    }

    /// What is read of a file with any changes is the beginning of what was written.
    #[test]
    fn nothing_is_read_that_was_not_written() {
        let contents = |bytes: Vec<u8>| {
            let mut all = Vec::new();
            if let Some(read) = Read::new(bytes, 7, 4) {
                let each = |_, kind, c: &[u8]| {
                    all.push((kind, c.to_vec()));
                    Ok(())
                };
                read.records(each).unwrap();
            }
            all
        };
        let (sound, written) = (file(), contents(file()));
        forebay_fuzz::run("journals", |r| {
            let mut bytes = sound.clone();
            r.mutate(&mut bytes, &sound);
            let read = contents(bytes);
            assert!(written.starts_with(&read), "{read:?}");
        });
    }
}

//! Checkpoints: all records of a pool at one moment in one file, from which they are restored after
//! memory was lost.
//!
//! A checkpoint begins a generation of the journal. All shards are locked for the moment in which
//! the old generation is written out and LMDB's snapshots are taken. The checkpoint's file is
//! written while other processes go on. Until this file is complete and renamed, the previous
//! checkpoint and all generations since are kept. So there is always a checkpoint and an unbroken
//! journal from that checkpoint on. [`Durability::load`] reads both.
//!
//! ```text
//! file:    "FBYCKP01" version:4 shards:4 generation:8 position:8, then frames
//! frame:   kind:4 length:4 checksum:8 content        (xxh3, generation as its seed)
//! kinds:   1 changes, as in the journal    2 extents that are initialised
//!          3 the end: number of frames:8
//! ```

use crate::Store;
use crate::journal::{self, Journal, Read, kind};
use crate::lmdb::WriteTxn;
use crate::process::Critical;
use crate::record::{JOURNAL, changes, push_change};
use crate::records::{Need, ReadRecords, Records};
use crate::views::Durability;
use forebay_media::{Extent, may_grow, put_all};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use twox_hash::XxHash3_64;

const MAGIC: &[u8; 8] = b"FBYCKP01";
const VERSION: u32 = 1;
const HEAD: usize = 32;
const FRAME: usize = 16;
/// A frame is written when it has this many bytes.
const FRAME_FULL: usize = 256 << 10;
/// Maximum number of changes, and of bytes, in one transaction while loading. Each shard reserves
/// memory for one such transaction.
const BATCH: (usize, usize) = (200, 128 << 10);

mod frame {
    pub const CHANGES: u32 = 1;
    pub const DURABLE: u32 = 2;
    pub const END: u32 = 3;
}

/// The result of [`Durability::load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of records in the checkpoint.
    pub records: u64,
    /// Number of commits in the journal.
    pub commits: u64,
    /// Number of bytes at the journal's end that can't be used: never synced, or damaged.
    pub unused: u64,
}

impl Durability<'_> {
    /// Sets the length of the journal at which a checkpoint is due, unless it has been set before.
    /// Bytes.
    pub fn set_journal_bound(&self, bound: u64) {
        let place = &self.journal_state().bound;
        let _ = place.compare_exchange(0, bound, AcqRel, Relaxed);
    }

    /// Sets another bound of the journal's length, in bytes; for tests.
    pub fn change_journal_bound(&self, bound: u64) {
        self.journal_state().bound.store(bound, Release);
    }

    /// Makes a checkpoint if the journal has grown to its bound and no other process makes one.
    pub(crate) fn checkpoint_if_due(&self) {
        if self.generation_len() > self.journal_state().bound.load(Relaxed) {
            // If the checkpoint fails, the commit that reached the bound is valid all the same. The
            // next commit tries again to make a checkpoint.
            let _ = self.checkpoint();
        }
    }

    /// Whether the keeper should make a checkpoint, before another process has to.
    pub fn checkpoint_wanted(&self) -> bool {
        self.active_journal().is_some()
            && self.generation_len() > self.journal_state().bound.load(Relaxed) / 2
    }

    /// Length of the journal's present generation. Bytes.
    ///
    /// Another process may begin the next generation at any time, at the end of the present one.
    /// The end is read before the start: if the start is newer, the new generation is empty.
    pub(crate) fn generation_len(&self) -> u64 {
        let s = self.journal_state();
        let end = s.end.load(Acquire);
        end.saturating_sub(s.start.load(Acquire))
    }

    /// Writes all records to a new checkpoint, with which a new generation of the journal begins.
    /// False if there is no journal, or another process is making a checkpoint.
    ///
    /// # Errors
    /// ENOSPC, EIO; the old checkpoint and the journal stay as they were.
    pub fn checkpoint(&self) -> Result<bool> {
        let Some(journal) = &self.store.journal else {
            return Ok(false);
        };
        let _critical = Critical::enter();
        let s = self.journal_state();
        if !s
            .checkpointing
            .try_acquire(self.store.control(), self.store.process_slot()?)
        {
            return Ok(false);
        }
        let result = self.checkpoint_locked(journal);
        s.checkpointing.release();
        result.map(|()| true)
    }

    fn checkpoint_locked(&self, journal: &Journal) -> Result<()> {
        let s = self.journal_state();
        let dir = journal.dir();
        // The number of the last generation is lost if the control region was rebuilt.
        let known = self.generations(dir)?.into_iter().max().unwrap_or(0);
        let before = s.generation.load(Acquire);
        let generation = (if before == 0 { known } else { before }) + 1;
        let file = self.next_journal(dir, &Journal::path(dir, generation))?;
        match self.reserve_checkpoint(journal) {
            // An error of the reservation is no error here: the room may suffice for the present
            // records, though not for all that could be made.
            Ok(()) | Err(Errno::NOSPC | Errno::DQUOT) => {}
            Err(e) => return Err(e),
        }
        self.note_failure(forebay_media::sync_all(file.as_fd()))?;
        self.sync_dir(dir)?;
        // Most of the journal is synced before the shards are locked, while no process has to wait.
        self.sync_journal()?;
        let all = self.store.files.all();
        self.store.lock_shards(all)?;
        let taken = (|| {
            let w = self.lock_journal(journal)?;
            if s.active.load(Acquire) != 0 {
                w.write_out()?;
                self.note_failure(w.sync())?;
                self.check_failed()?;
            }
            let shards = 0..self.store.files.count();
            let records = shards.map(|shard| self.store.committed(shard));
            let records = records.collect::<Result<Vec<_>>>()?;
            let mut durable = Vec::new();
            for m in self.store.media() {
                m.cells().durable(|e| durable.push(e));
            }
            let used = s.end.load(Acquire) - s.start.load(Acquire) + journal::FILE_HEAD as u64;
            w.next_generation(generation)?;
            Ok((records, durable, s.start.load(Acquire), used))
        })();
        self.store.unlock_before(all, crate::MAX_SHARDS);
        let (records, durable, position, used) = taken?;
        let shards = self.store.files.count() as u32;
        // Overwrites the checkpoint before the last one, and so reuses its disk space.
        let part = journal::open(&dir.join(journal::PART), true)?;
        let mut out = Writer::new(part, generation, position, shards)?;
        for (shard, records) in records.iter().enumerate() {
            let mut result = Ok(());
            records.each_record(b"", |key, value| {
                if key != JOURNAL {
                    result = out.change(shard, key, value);
                }
                result.is_ok()
            })?;
            result?;
        }
        out.flush()?;
        for some in durable.chunks(FRAME_FULL / 8) {
            out.frame(frame::DURABLE, &journal::extents_bytes(some))?;
        }
        let frames = out.frames.to_le_bytes();
        out.frame(frame::END, &frames)?;
        self.note_failure(forebay_media::sync_all(out.file.as_fd()))?;
        self.swap_checkpoint(dir)?;
        self.sync_dir(dir)?;
        for old in self
            .generations(dir)?
            .into_iter()
            .filter(|&g| g < generation)
        {
            self.recycle_journal(dir, &Journal::path(dir, old), used);
        }
        // If the spare file can't be made, the next generation of the journal needs free disk
        // space.
        let _ = self.make_spare_journal();
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        self.note_failure(forebay_media::sync_all(dir.as_fd()))
    }

    /// The generations whose files are in `dir`.
    fn generations(&self, dir: &Path) -> Result<Vec<u64>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir, flags, Mode::empty())?;
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd)? {
            let entry = entry?;
            let name = entry.file_name().to_str().unwrap_or("");
            found.extend(
                name.strip_prefix("journal-")
                    .and_then(|n| n.parse::<u64>().ok()),
            );
        }
        Ok(found)
    }

    // ---- loading ----

    /// Fills the empty records of this store from checkpoint and journal, after memory was lost. No
    /// other process uses the store. The journal isn't active yet: [`Durability::checkpoint`]
    /// activates it, and writes the loaded records to a new checkpoint.
    ///
    /// # Errors
    /// EBADMSG if the checkpoint is damaged; ENOENT if there is none; ENOSPC, EIO.
    pub fn load(&self) -> Result<Loaded> {
        let journal = self.store.journal.as_ref().ok_or(Errno::INVAL)?;
        let dir = journal.dir();
        let _critical = Critical::enter();
        let mut loaded = Loaded::default();
        let mut loader = Loader::new(self.store);
        let (mut generation, mut position) =
            self.read_checkpoint(&dir.join("checkpoint"), &mut loader, &mut loaded)?;
        // Takes two passes, because the record that voids a failed commit follows the commit.
        let mut files = Vec::new();
        let mut void = HashSet::new();
        loop {
            let bytes = match read_file(&Journal::path(dir, generation)) {
                Ok(bytes) => bytes,
                Err(Errno::NOENT) => break,
                Err(e) => return Err(e),
            };
            let written = bytes.iter().rposition(|&b| b != 0).map_or(0, |n| n + 1);
            let Some(read) = Read::new(bytes, generation, self.store.files.count()) else {
                break;
            };
            if read.start != position {
                break;
            }
            position = read.records(|_, kind, content| {
                if kind == kind::VOID
                    && let Ok(at) = content.try_into()
                {
                    void.insert(u64::from_le_bytes(at));
                }
                Ok(())
            })?;
            let used = position - read.start + journal::FILE_HEAD as u64;
            loaded.unused = (written as u64).saturating_sub(used);
            files.push(read);
            generation += 1;
        }
        for read in &files {
            read.records(|at, kind, content| {
                match kind {
                    kind::COMMIT if !void.contains(&at) => {
                        loaded.commits += 1;
                        loader.apply(content)?;
                    }
                    kind::DURABLE | kind::CLEARED => {
                        let durable = kind == kind::DURABLE;
                        journal::extents(content).for_each(|e| self.load_durable(e, durable));
                    }
                    _ => {}
                }
                Ok(())
            })?;
        }
        loader.finish()?;
        let highest = self.generations(dir)?.into_iter().max().unwrap_or(0);
        let s = self.journal_state();
        s.generation.store(highest.max(generation), Release);
        for place in [&s.start, &s.end, &s.written, &s.synced] {
            place.store(position, Release);
        }
        s.loaded.store(1, Release);
        Ok(loaded)
    }

    fn load_durable(&self, e: Extent, durable: bool) {
        if let Some(m) = self.store.media().get(e.medium()) {
            m.cells().set_durable(e, durable);
        }
    }

    /// Loads the checkpoint `path`. Returns its generation and its position in the journal.
    fn read_checkpoint(
        &self,
        path: &Path,
        loader: &mut Loader<'_>,
        loaded: &mut Loaded,
    ) -> Result<(u64, u64)> {
        let bad = Errno::BADMSG;
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut head = [0; HEAD];
        read_exact(&file, &mut head)?;
        let n64 = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (generation, position) = (n64(16), n64(24));
        if head != file_head(generation, position, self.store.files.count() as u32) {
            return Err(bad);
        }
        let mut frames = 0u64;
        loop {
            let mut head = [0; FRAME];
            read_exact(&file, &mut head)?;
            let n32 = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
            let (kind, len) = (n32(0), n32(4) as usize);
            // A frame can exceed `FRAME_FULL` by one value, of at most the length that a record may
            // have.
            if len > 16 * FRAME_FULL {
                return Err(bad);
            }
            let mut content = vec![0; len];
            read_exact(&file, &mut content)?;
            if head != frame_head(generation, kind, &content) {
                return Err(bad);
            }
            match kind {
                frame::CHANGES => {
                    loaded.records += changes(&content).count() as u64;
                    loader.apply(&content)?;
                }
                frame::DURABLE => {
                    journal::extents(&content).for_each(|e| self.load_durable(e, true));
                }
                frame::END if content == frames.to_le_bytes() => return Ok((generation, position)),
                _ => return Err(bad),
            }
            frames += 1;
        }
    }
}

/// Applies changes to records that no other process uses yet.
struct Loader<'a> {
    store: &'a Store,
    txns: Vec<Option<(WriteTxn<'a>, usize, usize)>>,
}

impl<'a> Loader<'a> {
    fn new(store: &'a Store) -> Loader<'a> {
        Loader {
            store,
            txns: store.files.iter().map(|_| None).collect(),
        }
    }

    fn apply(&mut self, list: &[u8]) -> Result<()> {
        for change in changes(list) {
            let (shard, key, value) = change.ok_or(Errno::BADMSG)?;
            let len = key.len() + value.map_or(0, <[u8]>::len);
            let place = self.txns.get_mut(shard).ok_or(Errno::BADMSG)?;
            if let Some((_, count, bytes)) = place
                && (*count >= BATCH.0 || *bytes + len > BATCH.1)
            {
                place.take().expect("just seen").0.commit()?;
            }
            let (txn, count, bytes) = match place {
                Some(open) => open,
                none => {
                    let need = Need::Bytes(BATCH.1.max(len) + BATCH.0 * 512);
                    none.insert((self.store.begin(shard, need)?, 0, 0))
                }
            };
            *count += 1;
            *bytes += len;
            match value {
                Some(value) => txn.put(key, value)?,
                None => _ = txn.del(key)?,
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.txns
            .into_iter()
            .flatten()
            .try_for_each(|(txn, _, _)| txn.commit())
    }
}

/// Writes a checkpoint.
struct Writer {
    file: OwnedFd,
    generation: u64,
    at: u64,
    frames: u64,
    list: Vec<u8>,
}

impl Writer {
    fn new(file: OwnedFd, generation: u64, position: u64, shards: u32) -> Result<Writer> {
        put_all(file.as_fd(), &file_head(generation, position, shards), 0)?;
        Ok(Writer {
            file,
            generation,
            at: HEAD as u64,
            frames: 0,
            list: Vec::with_capacity(FRAME_FULL + 4096),
        })
    }

    fn change(&mut self, shard: usize, key: &[u8], value: &[u8]) -> Result<()> {
        push_change(&mut self.list, shard, key, Some(value));
        if self.list.len() >= FRAME_FULL {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let list = std::mem::take(&mut self.list);
        if !list.is_empty() {
            self.frame(frame::CHANGES, &list)?;
        }
        self.list = list;
        self.list.clear();
        Ok(())
    }

    fn frame(&mut self, kind: u32, content: &[u8]) -> Result<()> {
        assert!(
            u32::try_from(content.len()).is_ok(),
            "a frame has a limit: {}",
            content.len()
        );
        let head = frame_head(self.generation, kind, content);
        let end = self.at + (FRAME + content.len()) as u64;
        may_grow(end)?;
        put_all(self.file.as_fd(), &head, self.at)?;
        put_all(self.file.as_fd(), content, self.at + FRAME as u64)?;
        self.at = end;
        self.frames += 1;
        Ok(())
    }
}

fn file_head(generation: u64, position: u64, shards: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&shards.to_le_bytes());
    head[16..24].copy_from_slice(&generation.to_le_bytes());
    head[24..32].copy_from_slice(&position.to_le_bytes());
    head
}

fn frame_head(generation: u64, kind: u32, content: &[u8]) -> [u8; FRAME] {
    let mut head = [0; FRAME];
    head[..4].copy_from_slice(&kind.to_le_bytes());
    head[4..8].copy_from_slice(&(content.len() as u32).to_le_bytes());
    let seed = XxHash3_64::oneshot_with_seed(generation, &head[..8]);
    head[8..].copy_from_slice(&XxHash3_64::oneshot_with_seed(seed, content).to_le_bytes());
    head
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = vec![0; rustix::fs::fstat(&file)?.st_size as usize];
    read_exact(&file, &mut bytes)?;
    Ok(bytes)
}

/// # Errors
/// EBADMSG if the file ends before `out` is full.
fn read_exact(file: &OwnedFd, mut out: &mut [u8]) -> Result<()> {
    while !out.is_empty() {
        match rustix::io::read(file, &mut *out) {
            Ok(0) => return Err(Errno::BADMSG),
            Ok(n) => out = &mut out[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Medium;
    use crate::repair::tests::{CAPACITY, TestStore};
    use forebay_media::MediumKind;

    /// A store with one `files` medium and a journal, all in one directory.
    pub(crate) fn store_with_journal(name: &str) -> TestStore {
        let dir = format!("/dev/shm/forebay-{name}-{}", std::process::id());
        let dir = std::path::PathBuf::from(dir);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("records")).unwrap();
        let (control, records, map) = (dir.join("control"), dir.join("records"), dir.join("map"));
        let medium = || {
            let kind = MediumKind::Files(dir.clone());
            vec![Medium::open(0, kind, &dir, &map, CAPACITY).unwrap()]
        };
        let ring = dir.join("journal");
        let journal = || Journal::open(&ring, &dir).unwrap();
        Medium::create(&dir, &map, CAPACITY, true).unwrap();
        Journal::create_ring(&ring).unwrap();
        let with = Some((journal(), medium(), 1 << 20));
        Store::create(&control, &records, (4, 64 << 20), (0o755, 0, 0), with).unwrap();
        let store = Store::open(&control, &records, 64 << 20, medium(), Some(journal()));
        TestStore {
            store: Some(store.unwrap()),
            dir,
        }
    }

    #[test]
    fn no_checkpoint_is_due_when_another_process_has_just_made_one() {
        let s = store_with_journal("checkpoint-due");
        let durability = s.durability();
        assert!(!durability.checkpoint_wanted());
        // Another process begins the next generation after this process has read the end.
        let state = durability.journal_state();
        let (start, generation) = (&state.start, &state.generation);
        let before = (start.load(Acquire), generation.load(Acquire));
        start.store(state.end.load(Acquire) + 8, Release);
        assert!(!durability.checkpoint_wanted());
        durability.checkpoint_if_due();
        assert_eq!(generation.load(Acquire), before.1);
        start.store(before.0, Release);
    }
}

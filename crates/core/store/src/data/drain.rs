//! Draining: files written in a burst (`temporality = "bursty"`) move from memory to `files` media
//! after the burst, once no process has them open. Then memory has room for the next burst. Files
//! that must not lie in memory (`on_files.rs`), but do, are moved in the same way.
//!
//! A process that writes such a file's record adds a record 'B'. The keeper moves the files with
//! such a record chunk by chunk, each with the file locked. A process that opens the file meanwhile
//! finds some chunks in memory and some on the other medium; no more are moved until it closes the
//! file. If the keeper is killed, each chunk has either been moved or not.
//!
//! Parts of a striped file don't know its declared controls. When the file's home has moved its own
//! chunks, it notifies the other nodes, which record that their parts are to be moved. A node that
//! misses the notice keeps its part in memory until the file has grown again.

use super::*;
use crate::declared::declared;
use crate::views::Content;
use forebay_controls::Temporality;

/// Maximum number of files of a shard that are examined in one round.
const MAX_FILES_PER_ROUND: usize = 4096;

/// The outcome of moving a chunk.
enum Step {
    Moved(u64),
    /// Nothing of the chunk has to be moved.
    Nothing,
    /// A process uses the file.
    Busy,
}

/// The result of [`Content::drain_here`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Number of bytes that were moved.
    pub bytes: u64,
    /// Number of files that are still to be moved.
    pub left: usize,
}

impl<'s> Content<'s> {
    /// Whether files are moved from memory in this pool: the pool has a medium of memory, and
    /// another medium.
    pub fn drains(&self) -> bool {
        self.store.media().iter().any(is_memory) && !self.store.media().iter().all(is_memory)
    }

    /// Whether an open file was written in a burst, and is to be moved when it is closed.
    pub(crate) fn is_bursty(&self, live: &Live) -> bool {
        let word = live.controls.load(Relaxed);
        word != 0 && declared(word).0.temporality == Some(Temporality::Bursty) && self.drains()
    }

    /// Records that this node's part of a file, if there is one, is to be moved. The file was
    /// written in a burst.
    pub fn part_landed(&self, id: ObjectId) -> Result<()> {
        let part = id.part();
        if !self.drains() {
            return Ok(());
        }
        self.store
            .transact(self.store.names().object_set(part), Need::Bytes(0), |w| {
                if w.exists(part)? {
                    w.attach(part, &Key::landed(part), &[])
                } else {
                    Ok(())
                }
            })
    }

    /// Removes the record 'B' of a file that has moved completely, unless the file is in use again.
    /// A process that writes to the file later adds the record again.
    fn end_draining(&self, index: u32, id: ObjectId) -> Result<bool> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        if lock.0.refs.load(Acquire) > 1 {
            return Ok(false);
        }
        self.forget_landed(id).map(|()| true)
    }

    pub(super) fn forget_landed(&self, id: ObjectId) -> Result<()> {
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                w.detach(id, &Key::landed(id)).map(|_| ())
            })
    }

    fn drain_chunk(&self, index: u32, chunk: u64) -> Result<Step> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let mut unfit = flag::UNLINKED | flag::MAPPED;
        if !self.keeps_on_files(live.controls.load(Relaxed)) {
            unfit |= flag::INLINE;
        }
        if live.refs.load(Acquire) > 1 || live.flags.load(Acquire) & unfit != 0 {
            return Ok(Step::Busy);
        }
        match self.move_chunk(index, chunk)? {
            0 => Ok(Step::Nothing),
            bytes => Ok(Step::Moved(bytes)),
        }
    }

    /// Moves the bytes of a chunk that lie in memory, or in a record that must not contain them.
    /// Returns their number. Locked; no process has the file mapped.
    pub(super) fn move_chunk(&self, index: u32, chunk: u64) -> Result<u64> {
        let live = self.store.objects().live(index);
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            self.promote(index)?;
            self.flush_locked(index, false)?;
        }
        let map = self.chunk_map(index, chunk, live.moved.load(Relaxed), CELL_PAGES)?;
        let lies_in_memory = |e: &Extent| self.store.media().get(e.medium()).is_some_and(is_memory);
        if !map.extents().iter().any(lies_in_memory) {
            return Ok(0);
        }
        let (mut there, mut taken) = (ChunkMap::default(), Vec::new());
        let copied = map.extents().iter().try_for_each(|e| {
            if lies_in_memory(e) {
                self.copy_behind(*e, &mut there, &mut taken)
            } else {
                there.push(*e).then_some(()).ok_or(Errno::NOSPC)
            }
        });
        if let Err(e) = copied {
            self.store.free_extents(taken);
            return Err(e);
        }
        let old: Vec<Extent> = map
            .extents()
            .iter()
            .copied()
            .filter(lies_in_memory)
            .collect();
        self.put_on_files(index, chunk, &there)
            .inspect_err(|_| self.store.control.header().leaks.store(1, Release))?;
        let pages: usize = old.iter().map(|e| e.pages()).sum();
        self.store.free_extents(old);
        Ok((pages * PAGE) as u64)
    }

    /// Copies an extent from memory to other media. Adds the new extents to `there` and to `taken`.
    fn copy_behind(
        &self,
        from: Extent,
        there: &mut ChunkMap,
        taken: &mut Vec<Extent>,
    ) -> Result<()> {
        let memory = &self.store.media()[from.medium()];
        let mut done = 0;
        while done < from.pages() {
            let to = self.alloc_behind(from.pages() - done)?;
            taken.push(to);
            if !there.push(to) {
                return Err(Errno::NOSPC);
            }
            let medium = &self.store.media()[to.medium()];
            let mut page = 0;
            while page < to.pages() {
                let (run, init) = memory.init_run(from, done + page, to.pages() - page);
                if init {
                    let mut bytes = vec![0u8; run * PAGE];
                    // SAFETY: the buffer is as long as the run, which lies in both extents.
                    unsafe {
                        memory.read(from, (done + page) * PAGE, bytes.as_mut_ptr(), bytes.len())?;
                        medium.write(to, page * PAGE, bytes.as_ptr(), bytes.len())?;
                    }
                }
                page += run;
            }
            done += to.pages();
        }
        Ok(())
    }

    fn alloc_behind(&self, want: usize) -> Result<Extent> {
        let mut error = Errno::NOSPC;
        for m in self.store.media().iter().filter(|m| !is_memory(m)) {
            match m.alloc(want) {
                Ok(e) => return Ok(e),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Makes `map` the extents of a chunk, for readers and in its record. Locked.
    fn put_on_files(&self, index: u32, chunk: u64, map: &ChunkMap) -> Result<()> {
        let live = self.store.objects().live(index);
        if chunk == 0 {
            live.moved.fetch_add(1, AcqRel);
            self.store.objects().set_extents(index, map)?;
            live.flags.fetch_or(flag::DIRTY, AcqRel);
            live.moved.fetch_add(1, AcqRel);
            return self.flush_locked(index, false);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let bytes = map.encode();
        live.moved.fetch_add(1, AcqRel);
        let written = self.store.transact(
            self.store.names().object_set(id),
            Need::Bytes(bytes.len()),
            |w| w.attach(id, &Key::chunk(id, chunk), &bytes),
        );
        live.moved.fetch_add(1, AcqRel);
        written
    }

    /// Moves the files that have a record 'B' and that no process has open, until `most` bytes or
    /// slightly more are moved. Calls `landed_all`, with the live entry, for each file that has
    /// moved completely.
    ///
    /// # Errors
    /// ENOSPC: there is no room on the media other than memory; EIO.
    pub fn drain_here(&self, most: u64, landed_all: impl Fn(u32, ObjectId)) -> Result<Drained> {
        let mut done = Drained::default();
        for shard in 0..self.store.files.count() {
            let mut landed = Vec::new();
            self.store.records(shard)?.each_attached(b"B", |key, _| {
                let id = parse_key(key).filter(|k| k.0 == b'B').map(|k| k.1);
                landed.extend(id);
                id.is_some() && landed.len() < MAX_FILES_PER_ROUND
            })?;
            for id in landed {
                if done.bytes >= most || !self.drain_file(id, most, &mut done.bytes, &landed_all)? {
                    done.left += 1;
                }
            }
        }
        Ok(done)
    }

    /// Moves one file, and removes its record 'B'. False if the file is in use, or if `most` bytes
    /// were reached before its end.
    fn drain_file(
        &self,
        id: ObjectId,
        most: u64,
        bytes: &mut u64,
        landed_all: impl Fn(u32, ObjectId),
    ) -> Result<bool> {
        let (index, held) = match self.store.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => {
                self.forget_landed(id)?;
                return Ok(true);
            }
            other => other?,
        };
        let mut moved = Ok(true);
        // Visits only chunks that have extents: a file may be nearly all holes.
        let mut next = Some(0);
        while let (Ok(true), Some(chunk)) = (moved, next) {
            moved = match self.drain_chunk(index, chunk) {
                Ok(Step::Busy) => Ok(false),
                Ok(Step::Moved(n)) => {
                    *bytes += n;
                    Ok(*bytes < most)
                }
                Ok(Step::Nothing) => Ok(true),
                Err(e) => Err(e),
            };
            match self.next_chunk(id, chunk + 1) {
                Ok(found) => next = found,
                Err(e) => moved = Err(e),
            }
        }
        if moved == Ok(true) {
            landed_all(index, id);
            moved = self.end_draining(index, id);
        }
        drop(held);
        let released = self.store.objects().live_release(index);
        moved.and_then(|moved| released.map(|()| moved))
    }
}

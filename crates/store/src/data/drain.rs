//! Draining: what came in a burst (`temporality = "bursty"`) moves from memory to the media behind
//! it, once nobody has it open; so memory has room for the next burst. So does what is left in
//! memory of files that mustn't lie there (`on_files.rs`).
//!
//! Whoever writes such a file's record notes it ('B'); the keeper comes and moves it, chunk by
//! chunk, each with the file locked. A process that opens the file meanwhile finds some chunks here
//! and some there, and nothing is moved any more until it closes it. A killed keeper has moved a
//! chunk or not.
//!
//! Parts of a striped file don't know what was said of it. When its home has moved its own chunks,
//! it tells the other nodes, which note their parts. A node that doesn't hear of that keeps its
//! part in memory until the file has grown again.

use super::*;
use crate::declared::declared;
use crate::views::Content;
use forebay_controls::Temporality;

/// Files of a shard that are looked at in one go.
const AT_ONCE: usize = 4096;

/// What became of a chunk.
enum Step {
    Moved(u64),
    /// It lies where it belongs.
    Nothing,
    /// Somebody uses the file.
    Busy,
}

/// What [`Store::drain_here`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Bytes that were moved.
    pub bytes: u64,
    /// Files that are still to be moved.
    pub left: usize,
}

impl<'s> Content<'s> {
    /// Whether files are moved from memory in this pool: it has memory, and something else.
    pub fn drains(&self) -> bool {
        self.media().iter().any(is_memory) && !self.media().iter().all(is_memory)
    }

    /// Whether an open file came in a burst, and is to be moved when it is closed.
    pub(crate) fn is_bursty(&self, live: &Live) -> bool {
        let word = live.controls.load(Relaxed);
        word != 0 && declared(word).0.temporality == Some(Temporality::Bursty) && self.drains()
    }

    /// This node's part of a file that came in a burst is to be moved, if there is one.
    pub fn part_landed(&self, id: ObjectId) -> Result<()> {
        let (part, shard) = (id.part(), self.shard_of(id));
        if !self.drains() {
            return Ok(());
        }
        self.write(self.names().object_set(part), Need::Bytes(0), |w| {
            match w.get(shard, &Key::inode(part))?.is_some() {
                true => w.put(shard, &Key::landed(part), &[]),
                false => Ok(()),
            }
        })
    }

    /// Forgets the note on a file, all of which has moved, unless somebody uses it again: who
    /// writes to it after that notes it anew.
    fn end_draining(&self, index: u32, shard: usize, id: ObjectId) -> Result<bool> {
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
        if lock.0.refs.load(Acquire) > 1 {
            return Ok(false);
        }
        self.forget_landed(shard, id).map(|()| true)
    }

    pub(super) fn forget_landed(&self, shard: usize, id: ObjectId) -> Result<()> {
        self.write(self.set(&[shard]), Need::Removal, |w| {
            w.del(shard, &Key::landed(id)).map(|_| ())
        })
    }

    fn drain_chunk(&self, index: u32, chunk: u64) -> Result<Step> {
        let _critical = Critical::enter();
        let lock = self.objects().lock_live(index)?;
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

    /// Moves what of a chunk lies in memory, or in the record of a file of which none may: how many
    /// bytes. Locked; nobody has the file mapped.
    pub(super) fn move_chunk(&self, index: u32, chunk: u64) -> Result<u64> {
        let live = self.objects().live(index);
        if live.flags.load(Acquire) & flag::INLINE != 0 {
            self.promote(index)?;
            self.flush_locked(index, false)?;
        }
        let map = self.chunk_map(index, chunk, live.moved.load(Relaxed), CELL_PAGES)?;
        let lies_in_memory = |e: &Extent| self.media().get(e.medium()).is_some_and(is_memory);
        if !map.extents().iter().any(lies_in_memory) {
            return Ok(0);
        }
        let (mut there, mut taken) = (ChunkMap::default(), Vec::new());
        let copied = map
            .extents()
            .iter()
            .try_for_each(|e| match lies_in_memory(e) {
                true => self.copy_behind(*e, &mut there, &mut taken),
                false => there.push(*e).then_some(()).ok_or(Errno::NOSPC),
            });
        if let Err(e) = copied {
            self.free_extents(taken);
            return Err(e);
        }
        let old: Vec<Extent> = map
            .extents()
            .iter()
            .copied()
            .filter(lies_in_memory)
            .collect();
        self.put_elsewhere(index, chunk, &there)
            .inspect_err(|_| self.control.header().leaks.store(1, Release))?;
        let pages: usize = old.iter().map(|e| e.pages()).sum();
        self.free_extents(old);
        Ok((pages * PAGE) as u64)
    }

    /// Copies an extent to the media behind the memory; adds the new ones to `there`, and to those
    /// `taken`.
    fn copy_behind(
        &self,
        from: Extent,
        there: &mut ChunkMap,
        taken: &mut Vec<Extent>,
    ) -> Result<()> {
        let memory = &self.media()[from.medium()];
        let mut done = 0;
        while done < from.pages() {
            let to = self.alloc_behind(from.pages() - done)?;
            taken.push(to);
            if !there.push(to) {
                return Err(Errno::NOSPC);
            }
            let medium = &self.media()[to.medium()];
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
        for m in self.media().iter().filter(|m| !is_memory(m)) {
            match m.alloc(want) {
                Ok(e) => return Ok(e),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// From now on the chunk lies there, for readers and in its record. Locked.
    fn put_elsewhere(&self, index: u32, chunk: u64, map: &ChunkMap) -> Result<()> {
        let live = self.objects().live(index);
        if chunk == 0 {
            live.moved.fetch_add(1, AcqRel);
            self.objects().set_extents(index, map)?;
            live.flags.fetch_or(flag::DIRTY, AcqRel);
            live.moved.fetch_add(1, AcqRel);
            return self.flush_locked(index, false);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let (shard, bytes) = (self.shard_of(id), map.encode());
        live.moved.fetch_add(1, AcqRel);
        let written = self.write(self.names().object_set(id), Need::Bytes(bytes.len()), |w| {
            w.put(shard, &Key::chunk(id, chunk), &bytes)
        });
        live.moved.fetch_add(1, AcqRel);
        written
    }

    /// Moves files that came in bursts and that nobody has open, some more than `most` bytes.
    /// `landed_all` is called, with its live entry, for each file all of which has moved.
    ///
    /// # Errors
    /// ENOSPC: there is no room behind the memory; EIO.
    pub fn drain_here(&self, most: u64, landed_all: impl Fn(u32, ObjectId)) -> Result<Drained> {
        let mut done = Drained::default();
        for shard in 0..self.names().shard_count() {
            let mut landed = Vec::new();
            self.snapshot(shard)?.scan(b"B", |key, _| {
                let id = parse_key(key).filter(|k| k.0 == b'B').map(|k| k.1);
                landed.extend(id);
                id.is_some() && landed.len() < AT_ONCE
            })?;
            for id in landed {
                if done.bytes >= most
                    || !self.drain_file((shard, id), most, &mut done.bytes, &landed_all)?
                {
                    done.left += 1;
                }
            }
        }
        Ok(done)
    }

    /// Moves one file, and forgets the note on it. False if it is in use, or there are `most` bytes
    /// with more to come.
    fn drain_file(
        &self,
        (shard, id): (usize, ObjectId),
        most: u64,
        bytes: &mut u64,
        landed_all: impl Fn(u32, ObjectId),
    ) -> Result<bool> {
        let (index, held) = match self.objects().live_acquire_here(id) {
            Err(Errno::NOENT) => {
                self.forget_landed(shard, id)?;
                return Ok(true);
            }
            other => other?,
        };
        let mut moved = Ok(true);
        // Only those that have something: a file may be nearly all holes.
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
            moved = self.end_draining(index, shard, id);
        }
        drop(held);
        let released = self.objects().live_release(index);
        moved.and_then(|moved| released.map(|()| moved))
    }
}

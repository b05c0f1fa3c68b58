//! Checksums of bytes at rest (`integrity = "checksum"`).
//!
//! A chunk whose bytes have not changed since they were summed has a record `K`: one sum for each
//! [`BLOCK`] of the chunk, as far as the file reaches. Such a chunk is *sealed*. The rules:
//! - A process that changes bytes of a chunk, or the file's end in it, first removes the record,
//!   with the file locked. So a process that is killed at any instant leaves no sum that is wrong.
//! - The last close of a changed file and `fsync` seal all its chunks. Nothing is sealed while the
//!   file may be mapped for writing, since stores through a mapping aren't noticed.
//! - A reader copies each block, compares the copy with the block's sum, and returns it. Readers
//!   take no lock. A block that does not match is read once more with the file locked, since it may
//!   just be changing.
//! - With a journal, a record says whether the bytes were on stable storage when it was made. After
//!   a loss of power, only records that say yes are valid. The removal of such a record is on
//!   stable storage before bytes change.
//!
//! Up to the crate `posix`, the error for damage is EBADMSG; `posix` turns it into a message and
//! EIO. Holes have no sums, nor have small files that lie in their record: the record has a
//! checksum as a whole (decision 0001).

use super::*;
use crate::declared::declared;
use crate::records::ShardSet;
use crate::views::Content;
use forebay_controls::Integrity;
use twox_hash::XxHash3_64;

/// Number of bytes of a chunk that one sum covers.
pub const BLOCK: usize = PAGE;
/// Number of blocks that are copied and compared at a time.
const BLOCKS_PER_STEP: usize = 16;

/// First byte of a record 'K' whose bytes have been written to stable storage.
const STABLE: u8 = 1;

/// Number of a sealed chunk, and the hash of its record.
pub(crate) type Sealed = (u64, u64);

/// Whether the bytes of a file with this controls word have checksums.
#[inline]
pub fn is_summed(word: u64) -> bool {
    word != 0 && declared(word).0.integrity == Some(Integrity::Checksum)
}

fn sum(bytes: &[u8]) -> [u8; 4] {
    (XxHash3_64::oneshot(bytes) as u32).to_le_bytes()
}

/// The sums of a sealed chunk.
struct Sums(Vec<u8>);

impl Sums {
    /// Whether `bytes` match the sum of block `n` of the chunk. Bytes that no sum covers always
    /// match.
    fn fits(&self, n: usize, bytes: &[u8]) -> bool {
        let at = 1 + 4 * n;
        self.0.get(at..at + 4).is_none_or(|s| s == sum(bytes))
    }
}

impl Content<'_> {
    /// The checksums of a chunk, if it is sealed.
    fn sums(&self, id: ObjectId, chunk: u64) -> Result<Option<Sums>> {
        let records = self.store.records_of(id)?;
        let record = records.attached(&Key::sums(id, chunk))?;
        Ok(record.map(|bytes| Sums(bytes.to_vec())))
    }

    /// Unseals the chunks of bytes `from..to` of a file. Must be called before the bytes are
    /// changed or removed. Locked.
    ///
    /// # Errors
    /// EBADMSG: other bytes of these chunks differ from what was written; sealing them again would
    /// hide that. EIO and the like. After an error, the bytes must not be changed.
    #[inline]
    pub fn unseal(&self, index: u32, from: u64, to: u64) -> Result<()> {
        if is_summed(self.store.objects().live(index).controls.load(Relaxed)) {
            self.unseal_summed(index, from, to)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn unseal_summed(&self, index: u32, from: u64, to: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let last = to / CHUNK;
        let (mut keys, mut stable, mut chunks) = (Vec::new(), false, Vec::new());
        self.store
            .records_of(id)?
            .each_attached(&Key::sums(id, from / CHUNK), |key, value| {
                let chunk = match parse_key(key) {
                    Some((b'K', of, n)) if of == id => n.try_into().ok().map(u64::from_be_bytes),
                    _ => None,
                };
                let its = chunk.filter(|n| *n <= last);
                if let Some(n) = its {
                    stable |= value.first() == Some(&STABLE);
                    keys.push(key.to_vec());
                    chunks.push(n);
                }
                its.is_some()
            })?;
        if keys.is_empty() {
            return Ok(());
        }
        for start in chunks.into_iter().map(|n| n * CHUNK) {
            // Blocks that are overwritten completely needn't be intact.
            let end = start + CHUNK;
            self.verify_locked(index, start, from.min(end))?;
            self.verify_locked(index, to.max(start), end)?;
        }
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                keys.iter()
                    .try_for_each(|key| w.detach(id, key).map(|_| ()))
            })?;
        if stable && self.store.durability().active_journal().is_some() {
            self.store.durability().sync_journal()
        } else {
            Ok(())
        }
    }

    /// Seals the unsealed chunks of a file with checksums. Returns the sealed chunks whose records
    /// aren't marked as stable yet.
    ///
    /// # Errors
    /// ENOSPC, EIO: some chunks are not sealed.
    pub(crate) fn seal_chunks(&self, index: u32) -> Result<Vec<Sealed>> {
        let live = self.store.objects().live(index);
        let mut sealed = Vec::new();
        if !is_summed(live.controls.load(Acquire)) {
            return Ok(sealed);
        }
        let id = ObjectId(live.id.load(Acquire));
        let mut next = Some(0);
        while let Some(chunk) = next {
            let done = self.seal_chunk(index, chunk)?;
            sealed.extend(done.map(|hash| (chunk, hash)));
            next = self.next_chunk(id, chunk + 1)?;
        }
        Ok(sealed)
    }

    /// Seals a chunk, if it isn't sealed. Returns the hash of its record, unless that is marked as
    /// stable.
    fn seal_chunk(&self, index: u32, chunk: u64) -> Result<Option<u64>> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        let id = ObjectId(live.id.load(Relaxed));
        let unfit = flag::MAPPED | flag::INLINE | flag::UNLINKED;
        let size = live.size.load(Relaxed);
        let start = chunk * CHUNK;
        if live.flags.load(Acquire) & unfit != 0 || start >= size {
            return Ok(None);
        }
        if let Some(Sums(bytes)) = self.sums(id, chunk)? {
            return Ok((bytes.first() != Some(&STABLE)).then(|| XxHash3_64::oneshot(&bytes)));
        }
        let moved = live.moved.load(Relaxed);
        if self.chunk_map(index, chunk, moved, 0)?.pages() == 0 {
            return Ok(None);
        }
        let len = (size - start).min(CHUNK) as usize;
        let mut record = vec![0];
        let mut bytes = buffer(len)?;
        for at in (0..len).step_by(BLOCKS_PER_STEP * BLOCK) {
            let n = (len - at).min(BLOCKS_PER_STEP * BLOCK);
            // SAFETY: `bytes` has room for n bytes. The file is locked, so no extents move.
            unsafe { self.copy_out(index, moved, start + at as u64, bytes.as_mut_ptr(), n)? };
            bytes[..n]
                .chunks(BLOCK)
                .for_each(|block| record.extend(sum(block)));
        }
        let set = self.store.names().object_set(id);
        self.store.transact(set, Need::Bytes(record.len()), |w| {
            w.attach(id, &Key::sums(id, chunk), &record)
        })?;
        Ok(Some(XxHash3_64::oneshot(&record)))
    }

    /// Marks chunks as stable: their bytes have been written to stable storage since they were
    /// sealed.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub(crate) fn confirm_sealed(&self, index: u32, sealed: &[Sealed]) -> Result<()> {
        if sealed.is_empty() {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let id = ObjectId(lock.0.id.load(Relaxed));
        let room = sealed.len() * (1 + 4 * CHUNK as usize / BLOCK);
        self.store
            .transact(self.store.names().object_set(id), Need::Bytes(room), |w| {
                for &(chunk, hash) in sealed {
                    let key = Key::sums(id, chunk);
                    let record = w.attached(id, &key)?.map(<[u8]>::to_vec);
                    // A record with another hash is newer: the bytes were changed since they were
                    // sealed.
                    if let Some(mut record) = record.filter(|r| XxHash3_64::oneshot(r) == hash) {
                        record[0] = STABLE;
                        w.attach(id, &key, &record)?;
                    }
                }
                Ok(())
            })
    }

    /// As [`Content::read_here`], for a file with checksums.
    ///
    /// # Errors
    /// EBADMSG: a block differs from what was written.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    #[cold]
    pub(super) unsafe fn read_summed(
        &self,
        index: u32,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<usize> {
        let live = self.store.objects().live(index);
        for locked in [false, true] {
            let _critical = locked.then(Critical::enter);
            let _lock = locked
                .then(|| self.store.objects().lock_live(index))
                .transpose()?;
            let (moved, size) = (live.moved.load(Acquire), live.size.load(Acquire));
            if offset >= size || len == 0 {
                return Ok(0);
            }
            let n = len.min((size - offset) as usize);
            // SAFETY: n <= len: the copies stay in the `len` bytes that the caller promises.
            let put = |done: usize, bytes: &[u8]| unsafe {
                if guard::copy(bytes.as_ptr(), to.add(done), bytes.len()) {
                    Ok(())
                } else {
                    Err(Errno::FAULT)
                }
            };
            let read = self.each_block(index, moved, size, offset, n, put);
            fence(Acquire);
            let stood = moved.is_multiple_of(2) && live.moved.load(Relaxed) == moved;
            match read {
                Err(Errno::BADMSG) if !locked => continue,
                Ok(()) if !stood && !locked => continue,
                read => {
                    self.passed(live, index, offset, n, size);
                    return read.map(|()| n);
                }
            }
        }
        Err(Errno::IO)
    }

    /// Copies `len` bytes of a file of this size block by block and compares sealed blocks with
    /// their checksums. Passes the bytes to `each`, with the number of bytes passed before.
    fn each_block(
        &self,
        index: u32,
        moved: u64,
        size: u64,
        offset: u64,
        len: usize,
        mut each: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let inline = live.flags.load(Acquire) & flag::INLINE != 0;
        let end = offset + len as u64;
        let mut bytes = buffer(len + 2 * BLOCK)?;
        let mut known: Option<(u64, Option<Sums>)> = None;
        let mut at = offset;
        while at < end {
            let chunk = at / CHUNK;
            if known.as_ref().is_none_or(|(of, _)| *of != chunk) {
                let sums = if inline { None } else { self.sums(id, chunk)? };
                known = Some((chunk, sums));
            }
            // Whole blocks, as far as the file reaches.
            let first = at - at % BLOCK as u64;
            let window = (first + (BLOCKS_PER_STEP * BLOCK) as u64)
                .min((chunk + 1) * CHUNK)
                .min(end.next_multiple_of(BLOCK as u64))
                .min(size);
            let n = (window - first) as usize;
            // SAFETY: `bytes` is a buffer for a window of blocks, so it has room for n bytes.
            unsafe { self.copy_out(index, moved, first, bytes.as_mut_ptr(), n)? };
            if let Some((_, Some(sums))) = &known {
                let number = ((first % CHUNK) as usize) / BLOCK;
                for (i, block) in bytes[..n].chunks(BLOCK).enumerate() {
                    if !sums.fits(number + i, block) {
                        return Err(Errno::BADMSG);
                    }
                }
            }
            let (from, to) = ((at - first) as usize, (window.min(end) - first) as usize);
            each((at - offset) as usize, &bytes[from..to])?;
            at = window.min(end);
        }
        Ok(())
    }

    /// Checks that the sealed chunks that contain bytes `from..to` of a file are intact. Locked.
    ///
    /// # Errors
    /// EBADMSG: one of them isn't intact.
    pub(crate) fn verify_locked(&self, index: u32, from: u64, to: u64) -> Result<()> {
        let live = self.store.objects().live(index);
        let (moved, size) = (live.moved.load(Relaxed), live.size.load(Relaxed));
        let to = to.min(size);
        if from >= to || !is_summed(live.controls.load(Relaxed)) {
            return Ok(());
        }
        let len = (to - from) as usize;
        self.each_block(index, moved, size, from, len, |_, _| Ok(()))
    }

    /// As [`Content::verify_locked`], chunk by chunk, locking the file for each.
    ///
    /// # Errors
    /// EBADMSG: a chunk isn't intact; else as for reading. The offset beside the error is where the
    /// check of the failed chunk began.
    pub fn verify(&self, index: u32, from: u64, to: u64) -> std::result::Result<(), (u64, Errno)> {
        if !is_summed(self.store.objects().live(index).controls.load(Acquire)) {
            return Ok(());
        }
        let id = self.live_id(index);
        let mut at = from;
        while at < to.min(self.store.objects().live(index).size.load(Acquire)) {
            let end = (at / CHUNK + 1) * CHUNK;
            let one = || {
                let _critical = Critical::enter();
                let _lock = self.store.objects().lock_live(index)?;
                self.verify_locked(index, at, end.min(to))
            };
            one().map_err(|e| (at, e))?;
            // Skips holes.
            at = match self.next_chunk(id, end / CHUNK) {
                Ok(Some(chunk)) => chunk * CHUNK,
                Ok(None) => break,
                Err(e) => return Err((at, e)),
            };
        }
        Ok(())
    }

    /// Removes the sums of an object.
    pub(crate) fn remove_sums(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        self.store
            .names()
            .remove_range(w, &Key::sums(id, 0), |_| ())
    }

    /// Removes the checksums of an object if `word` begins or ends checksums, since the stored ones
    /// were not kept up to date. Part of a commit that gives the object this word.
    pub(crate) fn change_sums(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        match w.inode(id)? {
            Some((inode, _)) if is_summed(inode.controls) != is_summed(word) => {
                self.remove_sums(w, id)
            }
            _ => Ok(()),
        }
    }

    /// Removes the sums of bytes that weren't on stable storage, after a loss of power. Only while
    /// no other process uses the store.
    pub(crate) fn drop_unstable_sums(&self) -> Result<()> {
        for shard in 0..self.store.files.count() {
            let mut keys = Vec::new();
            self.store
                .records(shard)?
                .each_attached(b"K", |key, value| {
                    let Some((b'K', id, _)) = parse_key(key) else {
                        return false;
                    };
                    if value.first() != Some(&STABLE) && self.store.files.shard_of(id) == shard {
                        keys.push((id, key.to_vec()));
                    }
                    true
                })?;
            for some in keys.chunks(256) {
                self.store
                    .transact(ShardSet::of(&[shard]), Need::Removal, |w| {
                        some.iter()
                            .try_for_each(|(id, key)| w.detach(*id, key).map(|_| ()))
                    })?;
            }
        }
        Ok(())
    }

    /// The objects of this node that have sums.
    fn summed_objects(&self) -> Result<Vec<ObjectId>> {
        let mut ids = Vec::new();
        for shard in 0..self.store.files.count() {
            self.store.records(shard)?.each_attached(b"K", |key, _| {
                let id = parse_key(key).filter(|k| k.0 == b'K').map(|k| k.1);
                if let Some(id) = id
                    && ids.last() != Some(&id)
                {
                    ids.push(id);
                }
                id.is_some()
            })?;
        }
        Ok(ids)
    }

    /// Compares all files that have checksums with their checksums. Calls `each` for files with
    /// damage: with the object, and the offset of the first damaged MiB. Other processes may use
    /// the store meanwhile.
    ///
    /// # Errors
    /// EIO and the like: the store couldn't be read.
    pub(crate) fn verify_all(&self, mut each: impl FnMut(ObjectId, u64)) -> Result<()> {
        for id in self.summed_objects()? {
            let (index, held) = match self.store.objects().live_acquire_here(id) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            let verified = self.verify(index, 0, MAX_SIZE);
            drop(held);
            self.store.objects().live_release(index)?;
            match verified {
                Err((at, Errno::BADMSG)) => each(id, at),
                Err((_, e)) => return Err(e),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// A buffer for a window of blocks, at most as long as `len` bytes need.
fn buffer(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let len = len.next_multiple_of(BLOCK).min(BLOCKS_PER_STEP * BLOCK);
    bytes.try_reserve_exact(len).map_err(|_| Errno::NOMEM)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::tests::{TestStore, make, read, store, write};

    const MIB: usize = CHUNK as usize;

    /// A file with checksums.
    fn summed(s: &TestStore, name: &str) -> ObjectId {
        let id = make(s, name);
        s.declare(id, "integrity=checksum");
        id
    }

    /// Flips a bit of the byte at `at` of an open file, without unsealing its chunk.
    fn damage(s: &TestStore, index: u32, at: u64) {
        let moved = s.objects().live(index).moved.load(Relaxed);
        let map = s.content().chunk_map(index, at / CHUNK, moved, 0).unwrap();
        let within = (at % CHUNK) as usize;
        Content::pieces(&map, within, 1, |e, from, _, _| {
            let segment = s.media()[e.medium()].file().unwrap();
            let place = e.start() * PAGE as u64 + from as u64;
            let mut byte = [0];
            rustix::io::pread(&segment, &mut byte, place)?;
            byte[0] ^= 4;
            rustix::io::pwrite(&segment, &byte, place).map(|_| ())
        })
        .unwrap();
    }

    fn try_read(s: &TestStore, index: u32, at: u64, len: usize) -> Result<usize> {
        let mut bytes = vec![0; len];
        // SAFETY: pointer and length are those of `bytes`.
        unsafe { s.content().read_here(index, at, bytes.as_mut_ptr(), len) }
    }

    fn try_write(s: &TestStore, index: u32, at: u64, bytes: &[u8]) -> Result<usize> {
        // SAFETY: pointer and length are those of `bytes`.
        unsafe {
            s.content()
                .write_here(index, Some(at), (bytes.as_ptr(), bytes.len()), true, |_| {
                    Ok(())
                })
        }
        .map(|(_, n)| n)
    }

    #[test]
    fn damage_is_noticed_and_not_sealed_again() {
        let s = store("sums-damage");
        let id = summed(&s, "f");
        let content: Vec<u8> = (0..2 * MIB + 5000).map(|i| (i / 7) as u8).collect();
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, &content);
        // Not sealed yet: there is no checksum.
        assert!(read(&s, index) == content);
        s.objects().live_release(index).unwrap();
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
        let (index, held) = s.objects().live_acquire_here(id).unwrap();
        assert!(read(&s, index) == content);
        let bad = MIB as u64 + 10_000;
        damage(&s, index, bad);
        assert_eq!(try_read(&s, index, 0, MIB), Ok(MIB));
        assert_eq!(try_read(&s, index, bad - 8000, 5000), Ok(5000));
        assert_eq!(try_read(&s, index, bad - 8000, 9000), Err(Errno::BADMSG));
        let found = crate::fsck::check(&s).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("/f (object"), "{found:?}");
        // Writes beside the damage, or over a part of its block, fail: sealing would include the
        // damage.
        for (at, len) in [(MIB, 10), (bad as usize, 10), (MIB + 8192, 100)] {
            let done = try_write(&s, index, at as u64, &content[at..at + len]);
            assert_eq!(done, Err(Errno::BADMSG), "{at}");
        }
        assert_eq!(s.truncate(index, bad), Err(Errno::BADMSG));
        // Copying the damage to another file fails, too.
        let to = s.objects().live_acquire_here(make(&s, "to")).unwrap().0;
        let copied = s.copy((index, MIB as u64), (to, 0), 20_000);
        assert_eq!(copied, Err(Errno::BADMSG));
        s.objects().live_release(to).unwrap();
        // The whole block is written again.
        let at = MIB + 8192;
        assert_eq!(
            try_write(&s, index, at as u64, &content[at..at + BLOCK]),
            Ok(BLOCK)
        );
        assert!(read(&s, index) == content);
        drop(held);
        s.objects().live_release(index).unwrap();
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn sums_follow_whatever_changes_a_file() {
        let s = store("sums-random");
        let id = summed(&s, "f");
        let mut random = forebay_fuzz::Random::new(17);
        let mut below = move |n: usize| random.below(n);
        let mut model: Vec<u8> = Vec::new();
        let mut index = s.objects().live_acquire_here(id).unwrap().0;
        for round in 0..600 {
            let size = model.len();
            match below(8) {
                0 => {
                    let new = below(3 * MIB);
                    s.truncate(index, new as u64).unwrap();
                    model.resize(new, 0);
                }
                1 => {
                    let (at, len) = (below(size + 1), below(300_000));
                    s.content()
                        .punch_here(index, at as u64, len as u64, false)
                        .unwrap();
                    let end = (at + len).min(size);
                    model[at.min(end)..end].fill(0);
                }
                2 => {
                    s.objects().live_release(index).unwrap();
                    index = s.objects().live_acquire_here(id).unwrap().0;
                }
                3 => s.durability().sync_here(index).unwrap(),
                4 => {
                    let (at, to, len) = (below(size + 1), below(2 * MIB), below(100_000));
                    if at + len <= size && at.abs_diff(to) >= len && len > 0 {
                        let n = s.copy((index, at as u64), (index, to as u64), len as u64);
                        let n = n.unwrap();
                        model.resize(size.max(to + n), 0);
                        model.copy_within(at..at + n, to);
                    }
                }
                _ => {
                    let (at, len) = (below(2 * MIB), 1 + below(50_000));
                    let bytes = vec![round as u8 | 1; len];
                    write(&s, index, at as u64, &bytes);
                    model.resize(size.max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
            assert!(read(&s, index) == model, "round {round}");
        }
        s.objects().live_release(index).unwrap();
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
        let index = s.objects().live_acquire_here(id).unwrap().0;
        assert!(read(&s, index) == model);
        s.unlink(ObjectId::ROOT, b"f").unwrap();
        s.objects().live_release(index).unwrap();
        // No checksums without a file.
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
        assert_eq!(s.content().summed_objects(), Ok(vec![]));
    }

    #[test]
    fn what_is_said_later_or_taken_back_holds_from_then_on() {
        let s = store("sums-said");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, &[7; 50_000]);
        s.declare(id, "integrity=checksum");
        s.durability().sync_here(index).unwrap();
        damage(&s, index, 30_000);
        assert_eq!(try_read(&s, index, 0, 50_000), Err(Errno::BADMSG));
        s.declare(id, "");
        assert_eq!(try_read(&s, index, 0, 50_000), Ok(50_000));
        assert_eq!(s.content().summed_objects(), Ok(vec![]));
        s.objects().live_release(index).unwrap();
    }
}

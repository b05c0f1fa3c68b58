//! Repairs what dead processes left half changed in the control region.
//!
//! A live entry whose lock was abandoned is repaired by the process that takes the lock next
//! ([`Objects::repair_live`]). The repair removes what was written beyond the end of the file, and
//! counts the pages again. Entries and pages that only the dead process knew: see
//! [`crate::recount`].

use crate::ObjectId;
use crate::control_region::live_flag as flag;
use crate::live::Chain;
use crate::process::Critical;
use crate::record::{ChunkMap, Key, parse_key};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::recover::Reaped;
use crate::views::{Objects, Recovery};
use forebay_media::{CELL_PAGES, Extent, PAGE};
use rustix::io::Result;
use std::sync::atomic::Ordering::*;

impl Objects<'_> {
    /// Repairs a live entry that a dead process may have left half changed. Locked.
    pub(crate) fn repair_live(&self, index: u32) -> Result<()> {
        let live = self.live(index);
        // The counter becomes even, and different: so no reader uses extents that it read before.
        live.moved
            .fetch_add(2 - live.moved.load(Relaxed) % 2, AcqRel);
        let flags = live.flags.load(Acquire);
        // An entry for a file of another node has no extents.
        if flags & (flag::LOADED | flag::REMOTE) == flag::LOADED {
            if flags & flag::INLINE != 0 {
                self.set_extents(index, &ChunkMap::default())?;
                live.pages.store(0, Relaxed);
            } else {
                let mapped = flags & flag::MAPPED != 0;
                if mapped {
                    live.flags.fetch_or(flag::CUT, AcqRel);
                }
                self.repair_extents(index, mapped)?;
            }
            live.flags.fetch_or(flag::DIRTY, AcqRel);
        }
        // The bytes of a striped file beyond its end are lost. The raised counter makes their
        // writers repeat the writes.
        live.appends.fetch_add(1, AcqRel);
        live.flags.fetch_and(!flag::TORN, AcqRel);
        Ok(())
    }

    /// Cuts the extents to the file's size (unless the file is mapped), clears the rest of the
    /// last page, and counts the pages.
    fn repair_extents(&self, index: u32, mapped: bool) -> Result<()> {
        let live = self.live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let chunk = (CELL_PAGES * PAGE) as u64;
        let size = live.size.load(Acquire);
        let (last, keep) = (size / chunk, (size % chunk).div_ceil(PAGE as u64) as usize);
        let mut first = self.store.content().first_chunk(index);
        let mut freed: Vec<Extent> = Vec::new();
        let mut end_map = first.clone();
        let mut pages = 0;
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                freed.clear();
                pages = 0;
                let mut cut = None;
                w.each_attached(id, &Key::chunk(id, 1), |key, value| match parse_key(key) {
                    Some((b'X', of, n)) if of == id => {
                        let n = n.try_into().map_or(0, u64::from_be_bytes);
                        let map = ChunkMap::decode(value).unwrap_or_default();
                        if n == last {
                            cut = Some(map.clone());
                            end_map = map;
                        } else if n < last || mapped {
                            pages += map.pages();
                        }
                        true
                    }
                    _ => false,
                })?;
                if !mapped {
                    self.store.names().remove_chunks(
                        w,
                        id,
                        last.max(1) + u64::from(last > 0),
                        &mut freed,
                    )?;
                }
                if let Some(mut map) = cut {
                    if !mapped {
                        map.truncate(keep, |e| freed.push(e));
                        match map.extents() {
                            [] => _ = w.detach(id, &Key::chunk(id, last))?,
                            _ => w.attach(id, &Key::chunk(id, last), &map.encode())?,
                        }
                    }
                    pages += map.pages();
                }
                Ok(())
            })?;
        if last == 0 && !mapped {
            first.truncate(keep, |e| freed.push(e));
        }
        self.set_extents(index, &first)?;
        live.pages.store((pages + first.pages()) as u64, Relaxed);
        self.store.content().free_unnoted(index, freed)?;
        // Zeroes bytes beyond the end: in the last page, or, if mapped, in all pages that follow,
        // too.
        let map = if last == 0 { &first } else { &end_map };
        let to = if mapped {
            map.pages() * PAGE
        } else {
            keep * PAGE
        };
        if last == 0 || end_map != first {
            self.store
                .content()
                .zero_range(index, size, last * chunk + to as u64)?;
        }
        Ok(())
    }

    /// Whether the live entry is in the chain of its object's id.
    pub(crate) fn is_linked(&self, index: u32) -> Result<bool> {
        let _critical = Critical::enter();
        let id = self.live(index).id.load(Acquire);
        Ok(id != 0 && Chain::lock(self.store, id)?.find(id) == Some(index))
    }
}

impl Recovery<'_> {
    /// Removes orphans that no process has open, and the leftovers of removed objects. Only while
    /// no other process makes orphans (O_TMPFILE). Returns the number of orphans that were removed.
    ///
    /// # Errors
    /// EIO.
    pub fn remove_orphans(&self) -> Result<usize> {
        self.store.names().settle_leftovers()?;
        let mut removed = 0;
        for shard in 0..self.store.files.count() {
            let mut ids = Vec::new();
            self.store
                .records(shard)?
                .each_attached(b"O", |key, _| match parse_key(key) {
                    Some((b'O', id, _)) => {
                        ids.push(id);
                        true
                    }
                    _ => false,
                })?;
            for id in ids {
                if self.store.objects().live_probe(id)?.is_none() {
                    removed += usize::from(self.remove_orphan(id)?);
                }
            }
        }
        Ok(removed)
    }

    /// Removes an object without a name that no process has open.
    pub(crate) fn remove_orphan(&self, id: ObjectId) -> Result<bool> {
        let _section = self.store.section()?;
        // This process becomes the last user. As it leaves, it removes the object, unless the
        // object has got a name.
        let Ok((index, _)) = self.store.objects().live_acquire_here(id) else {
            return Ok(false);
        };
        self.store.objects().live_mark_unlinked(id, false)?;
        self.store.objects().live_release(index).map(|()| true)
    }

    /// Cleans up after dead processes: releases what they held, completes what they began, finds
    /// what they lost, removes orphans. This process must not have an operation in flight.
    ///
    /// # Errors
    /// EIO, ENOSPC.
    pub fn settle(&self) -> Result<Reaped> {
        let reaped = self.reap()?;
        self.store.recover_commits()?;
        self.store.names().settle_leftovers()?;
        self.put_in_order()?;
        Ok(reaped)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Store;
    use crate::control_region::{Live, MAX_LIVE};
    use crate::process;
    use crate::{NewObject, NewOpen};

    pub(crate) use crate::test_store::{CAPACITY, TestStore, store, store_on};

    pub(crate) fn make(s: &Store, name: &str) -> ObjectId {
        make_in(s, ObjectId::ROOT, name, libc::S_IFREG | 0o600)
    }

    pub(crate) fn make_in(s: &Store, dir: ObjectId, name: &str, mode: u32) -> ObjectId {
        let new = NewObject {
            mode,
            ..NewObject::default()
        };
        let made = crate::alone::create_object(s, dir, name.as_bytes(), &new);
        made.unwrap().unwrap()
    }

    pub(crate) fn write(s: &Store, index: u32, at: u64, bytes: &[u8]) {
        // SAFETY: pointer and length are those of `bytes`.
        let written = unsafe {
            s.content()
                .write_here(index, Some(at), (bytes.as_ptr(), bytes.len()), true, |_| {
                    Ok(())
                })
        };
        assert_eq!(written, Ok((at, bytes.len())));
    }

    pub(crate) fn read(s: &Store, index: u32) -> Vec<u8> {
        let mut bytes = vec![0xee; s.objects().live(index).size.load(Acquire) as usize];
        // SAFETY: pointer and length are those of `bytes`.
        let n = unsafe {
            s.content()
                .read_here(index, 0, bytes.as_mut_ptr(), bytes.len())
        };
        assert_eq!(n, Ok(bytes.len()));
        bytes
    }

    /// Makes a process take the entry's lock, do `half` of a change, and end.
    fn die_holding(s: &Store, index: u32, half: impl FnOnce(&Live)) {
        let dead = process::attach(&s.control).unwrap();
        s.objects()
            .live(index)
            .lock
            .acquire(&s.control, dead)
            .unwrap();
        half(s.objects().live(index));
        process::free(&s.control, dead);
    }

    #[test]
    fn a_write_cut_short_leaves_nothing_behind_the_end() {
        let s = store("repair-write");
        for size in [2000usize, 1_500_000] {
            let index = s
                .objects()
                .live_acquire_here(make(&s, &format!("f{size}")))
                .unwrap()
                .0;
            write(&s, index, 0, &vec![7; size]);
            let pages = s.objects().live(index).pages.load(Relaxed);
            // The state in which the bytes are written, but the size isn't set, and not all pages
            // are counted.
            write(&s, index, size as u64, &vec![9; 900_000]);
            die_holding(&s, index, |l| {
                l.size.store(size as u64, Relaxed);
                l.pages.store(1, Relaxed);
                l.moved.fetch_add(1, Relaxed);
            });
            s.truncate(index, size as u64 + 600_000).unwrap();
            let mut expected = vec![7; size];
            expected.resize(size + 600_000, 0);
            assert!(read(&s, index) == expected, "{size}");
            assert!(s.objects().live(index).pages.load(Relaxed) <= pages);
            s.objects().live_release(index).unwrap();
        }
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn the_last_user_repairs_what_a_dead_one_left() {
        let s = store("repair-release");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, &[7; 5000]);
        s.content().flush(index, false).unwrap();
        die_holding(&s, index, |l| l.size.store(3000, Relaxed));
        s.objects().live_release(index).unwrap();
        let index = s.objects().live_acquire_here(id).unwrap().0;
        s.truncate(index, 5000).unwrap();
        let mut expected = vec![7; 3000];
        expected.resize(5000, 0);
        assert!(read(&s, index) == expected);
        s.objects().live_release(index).unwrap();
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn the_last_user_clears_what_a_mapping_wrote_behind_the_end() {
        let s = store("repair-mapped");
        for flushed in [false, true] {
            let id = make(&s, if flushed { "flushed" } else { "dirty" });
            let index = s.objects().live_acquire_here(id).unwrap().0;
            write(&s, index, 0, &[7; 5000]);
            if flushed {
                s.content().flush(index, false).unwrap();
            }
            let piece = s
                .mappings()
                .map_here(index, 4096, 4096, usize::MAX)
                .unwrap()[0];
            // Writes, as through the mapping, into the last page behind the end.
            let segment = s.media()[piece.medium].file().unwrap();
            let at = piece.segment_offset + 2000;
            assert_eq!(rustix::io::pwrite(&segment, &[9; 50], at), Ok(50));
            s.objects().live_release(index).unwrap();
            let index = s.objects().live_acquire_here(id).unwrap().0;
            s.truncate(index, 8192).unwrap();
            let mut expected = vec![7; 5000];
            expected.resize(8192, 0);
            assert!(read(&s, index) == expected, "{flushed}");
            s.objects().live_release(index).unwrap();
        }
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn an_open_file_of_a_pool_that_was_loaded_is_sound() {
        let s = store("repair-loaded");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, &[7; 5000]);
        s.objects().live_release(index).unwrap();
        s.durability().journal_state().loaded.store(1, Relaxed);
        let (index, held) = s.objects().live_acquire_here(id).unwrap();
        assert_ne!(s.objects().live(index).flags.load(Relaxed) & flag::TAIL, 0);
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
        drop(held);
        s.objects().live_release(index).unwrap();
    }

    #[test]
    fn a_removal_that_the_entry_was_not_told_of_is_done() {
        let s = store("repair-gone");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, &[7; 5000]);
        s.unlink(ObjectId::ROOT, b"f").unwrap();
        // The last user has removed the records, and dies before it has left the entry.
        s.content().remove_object(index).unwrap();
        die_holding(&s, index, |_| ());
        s.objects().live_release(index).unwrap();
        assert_eq!(s.objects().live(index).id.load(Relaxed), 0);
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn a_removal_that_was_only_announced_removes_nothing() {
        let s = store("repair-mark");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, 0, b"stays");
        // Killed between marking the entry and the commit.
        s.objects().live_set_unlinked(id).unwrap();
        s.objects().live_release(index).unwrap();
        let index = s.objects().live_acquire_here(id).unwrap().0;
        assert_eq!(read(&s, index), b"stays");
        s.objects().live_release(index).unwrap();
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }

    #[test]
    fn it_finds_every_entry_and_page_again() {
        let s = store("repair-order");
        let id = make(&s, "f");
        let open = s.objects().live_acquire_here(id).unwrap().0;
        let open = s
            .objects()
            .open_create(&NewOpen::new(id, libc::S_IFREG, 0), Some(open))
            .unwrap();
        let live = s.objects().open_file(open).live.load(Relaxed) - 1;
        write(&s, live, 0, &[1; 9000]);
        // References, entries and pages without an owner.
        let lost = s.objects().live_acquire_here(make(&s, "g")).unwrap().0;
        write(&s, lost, 0, &[2; 9000]);
        s.objects().live_retain(live);
        let h = s.control.header();
        s.control.take_live().unwrap().unwrap();
        s.control.take_open().unwrap().unwrap();
        s.media()[0].alloc(100).unwrap();
        assert_eq!(s.recovery().put_in_order(), Ok(false), "nobody has died");
        h.leaks.store(1, Relaxed);
        // Other processes may be attached; only dead ones are in the middle of an operation.
        let other = process::attach(&s.control).unwrap();
        let busy = &s.control.process(other as usize).in_flight;
        busy.store(1, Relaxed);
        assert_eq!(s.recovery().put_in_order(), Ok(false), "not a quiet moment");
        busy.store(0, Relaxed);
        assert_eq!(s.recovery().put_in_order(), Ok(true));
        process::free(&s.control, other);
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
        assert_eq!(
            (
                s.objects().live(live).refs.load(Relaxed),
                s.objects().live(lost).id.load(Relaxed)
            ),
            (1, 0)
        );
        assert_eq!(read(&s, live), [1; 9000]);
        s.objects().open_release(open).unwrap();
        assert_eq!(s.objects().live(live).id.load(Relaxed), 0);
        // Every entry can be taken again, each once.
        let mut seen = std::collections::HashSet::new();
        for _ in 0..h.free_live.end(MAX_LIVE) {
            let i = s.control.take_live().unwrap().unwrap();
            assert!(seen.insert(i));
        }
    }
}

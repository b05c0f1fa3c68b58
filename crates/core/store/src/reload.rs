//! Restores a pool after a loss of power or a reboot: from checkpoint and journal to a consistent
//! store.
//!
//! The records are those of some commit, so no name or object is incomplete. But what only the
//! control region contained since that commit is lost: the page count of a file that was growing,
//! and the size that goes with its last extents. Files are truncated to their recorded sizes.
//! Beyond a file's end, its last page may contain bytes that were written but not recorded. Such
//! bytes are cleared when the file grows ([`live_flag::TAIL`]), since looking at all files would
//! take long. Files of an origin that programs had mapped for writing count as changed.
//!
//! [`live_flag::TAIL`]: crate::control_region::live_flag::TAIL

use crate::checkpoint::Loaded;
use crate::record::{ChunkMap, Inode, Key, parse_key, tail};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::views::Durability;
use crate::{CHUNK, ObjectId, PAGE};
use rustix::io::{Errno, Result};
use std::collections::HashMap;

impl<'s> Durability<'s> {
    /// Loads checkpoint and journal into the empty records of this store, completes unfinished
    /// changes, and makes the new state durable. Only while no other process uses the store.
    ///
    /// # Errors
    /// As for [`Durability::load`]; the files on stable storage stay as they were.
    pub fn reload(&self) -> Result<Loaded> {
        let loaded = self.load()?;
        self.cut_files()?;
        self.store.content().drop_unstable_sums()?;
        self.store.recovery().rebuild_free_space()?;
        for m in self.store.media() {
            m.cells().init_from_durable();
            // A full file system, on which no room can be reserved, is no reason to fail.
            let _ = m.reserve_again();
        }
        self.store.intents().disown_intents()?;
        self.store.recovery().settle()?;
        self.store.recovery().remove_orphans()?;
        self.checkpoint()?;
        Ok(loaded)
    }

    /// Cuts every file's extents to its size and counts its pages; see also [`Cut`].
    fn cut_files(&self) -> Result<()> {
        for shard in 0..self.store.files.count() {
            let mut chunks: HashMap<u64, Vec<(u64, ChunkMap)>> = HashMap::new();
            let records = self.store.records(shard)?;
            records.each_attached(b"X", |key, value| {
                let Some((b'X', id, rest)) = parse_key(key) else {
                    return false;
                };
                if let Ok(n) = rest.try_into() {
                    let map = ChunkMap::decode(value).unwrap_or_default();
                    let list = chunks.entry(id.0).or_default();
                    list.push((u64::from_be_bytes(n), map));
                }
                true
            })?;
            let mut wrong = Vec::new();
            records.each_inode(ObjectId(0), |id, inode| {
                let chunks = chunks.remove(&id.0).unwrap_or_default();
                if let Some((inode, tail)) = inode
                    && inode.is_file()
                    && (!chunks.is_empty()
                        || inode.pages > 0
                        || inode.tail == tail::EXTENTS
                        || inode.is_mapped)
                {
                    let cut = Cut::new(inode, tail, chunks);
                    if cut.changes {
                        wrong.push((id, cut));
                    }
                }
                true
            })?;
            // An object that was being removed has extents until the last step of its removal.
            for id in chunks.into_keys().map(ObjectId) {
                if records.attached(&Key::leftover(id))?.is_none() {
                    debug_assert!(false, "{id:?} has extents but no record");
                    return Err(Errno::BADMSG);
                }
            }
            drop(records);
            for (id, cut) in wrong {
                self.store
                    .transact(self.store.names().object_set(id), Need::Bytes(8192), |w| {
                        for (n, map) in &cut.chunks {
                            match map.extents() {
                                [] => _ = w.detach(id, &Key::chunk(id, *n))?,
                                _ => w.attach(id, &Key::chunk(id, *n), &map.encode())?,
                            }
                        }
                        w.set_inode(id, &cut.inode, &cut.tail)
                    })?;
            }
        }
        Ok(())
    }
}

/// A file that is truncated to its size, and marked as not clean if it was mapped.
struct Cut {
    inode: Inode,
    tail: Vec<u8>,
    /// Chunks that change, with their remaining extents.
    chunks: Vec<(u64, ChunkMap)>,
    changes: bool,
}

impl Cut {
    fn new(mut inode: Inode, old_tail: &[u8], chunks: Vec<(u64, ChunkMap)>) -> Cut {
        let extents = inode.tail == tail::EXTENTS;
        let keep = |chunk: u64| -> usize {
            let bytes = inode.size.saturating_sub(chunk * CHUNK).min(CHUNK);
            if extents {
                bytes.div_ceil(PAGE as u64) as usize
            } else {
                0
            }
        };
        let (mut tail, mut pages, mut changes) = (old_tail.to_vec(), 0, false);
        if extents {
            let mut map = ChunkMap::decode(old_tail).unwrap_or_default();
            if map.pages() > keep(0) {
                map.truncate(keep(0), |_| changes = true);
                tail = map.encode().to_vec();
            }
            pages += map.pages();
        }
        let mut changed = Vec::new();
        for (n, mut map) in chunks {
            if map.pages() > keep(n) {
                map.truncate(keep(n), |_| ());
                changed.push((n, map.clone()));
            }
            pages += map.pages();
        }
        changes |= !changed.is_empty() || inode.pages != pages as u64 || inode.is_mapped;
        if inode.is_mapped {
            inode.is_mapped = false;
            inode.origin.synced = 0;
        }
        inode.pages = pages as u64;
        Cut {
            inode,
            tail,
            chunks: changed,
            changes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::tests::{make, store, write};

    #[test]
    fn an_object_whose_removal_has_not_ended_is_no_damage() {
        let s = store("reload-removed");
        let id = make(&s, "f");
        let index = s.objects().live_acquire_here(id).unwrap().0;
        write(&s, index, CHUNK, &[7; 5000]);
        s.objects().live_release(index).unwrap();
        // The first transaction of the removal of a file with very many chunks.
        s.transact(s.names().object_set(id), Need::Removal, |w| {
            w.attach(id, &Key::leftover(id), &[])?;
            w.remove_object(id)
        })
        .unwrap();
        assert_eq!(s.durability().cut_files(), Ok(()));
        s.names().settle_leftovers().unwrap();
        let records = s.records(s.files.shard_of(id)).unwrap();
        assert_eq!(records.attached(&Key::chunk(id, 1)), Ok(None));
    }
}

//! Bringing a pool back after a loss of power or a reboot: from checkpoint and journal to
//! a store that is whole.
//!
//! The records are those of some commit: no name or object is half there. But what lay
//! between two commits in the memory of processes is gone: the page count of a file that
//! was growing, and extents behind the size that was noted last. Files are cut to their
//! sizes. Behind the end inside the last page may lie bytes that were written but not
//! noted; they are cleared when the file grows ([`live_flag::TAIL`]), since looking at all
//! files would take long. Files of an origin that programs had mapped for writing count as changed.
//!
//! [`live_flag::TAIL`]: crate::control::live_flag::TAIL

use crate::checkpoint::Loaded;
use crate::record::{ChunkMap, Inode, Key, parse_key, tail};
use crate::shards::Need;
use crate::views::Durability;
use crate::{CHUNK, ObjectId, PAGE};
use rustix::io::{Errno, Result};
use std::collections::HashMap;

impl<'s> Durability<'s> {
    /// Loads checkpoint and journal into the empty records of this store, mends what they
    /// leave open, and makes the new state durable. Only while nobody else uses it.
    ///
    /// # Errors
    /// As for [`Store::load`]; the files on stable storage stay as they were.
    pub fn reload(&self) -> Result<Loaded> {
        let loaded = self.load()?;
        self.cut_files()?;
        self.content().drop_unstable_sums()?;
        self.recovery().rebuild_free_space()?;
        for m in self.media() {
            m.cells().init_from_durable();
            // A full file system isn't this moment's trouble.
            let _ = m.reserve_again();
        }
        self.intents().disown_intents()?;
        self.recovery().settle()?;
        self.recovery().remove_orphans()?;
        self.checkpoint()?;
        Ok(loaded)
    }

    /// Cuts every file's extents to its size and counts its pages; see also [`Cut`].
    fn cut_files(&self) -> Result<()> {
        for shard in 0..self.names().shard_count() {
            let mut chunks: HashMap<u64, Vec<(u64, ChunkMap)>> = HashMap::new();
            let snapshot = self.snapshot(shard)?;
            snapshot.scan(b"X", |key, value| {
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
            snapshot.scan(b"I", |key, value| {
                let Some((b'I', id, _)) = parse_key(key) else {
                    return false;
                };
                let chunks = chunks.remove(&id.0).unwrap_or_default();
                if let Some((inode, tail)) = Inode::decode(value)
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
            drop(snapshot);
            for (id, cut) in wrong {
                self.write(self.names().object_set(id), Need::Bytes(8192), |w| {
                    for (n, map) in &cut.chunks {
                        match map.extents() {
                            [] => _ = w.del(shard, &Key::chunk(id, *n))?,
                            _ => w.put(shard, &Key::chunk(id, *n), &map.encode())?,
                        }
                    }
                    let record = cut.inode.encode(&cut.tail);
                    w.put(shard, &Key::inode(id), &record)
                })?;
            }
            // Extents of nobody: can't be, since a commit removes an object as a whole.
            if let Some(&id) = chunks.keys().next() {
                let id = ObjectId(id);
                debug_assert!(false, "{id:?} has extents but no record");
                return Err(Errno::BADMSG);
            }
        }
        Ok(())
    }
}

/// A file cut to its size, and no longer clean if it was mapped.
struct Cut {
    inode: Inode,
    tail: Vec<u8>,
    /// Chunks that change, with what is left of them.
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

//! Directories: listing, and the times that change with every new entry.
//!
//! The entries of a directory are spread over all shards, in each sorted by name. A listing walks
//! shard after shard and remembers the last name. So entries that exist all the time are returned
//! exactly once, whatever other entries are made or removed meanwhile.
//!
//! The modification time of a directory changes with every entry made or removed. The time is kept
//! in a table in shared memory. When another directory needs the table's entry, the time is written
//! to the directory's record.

use crate::ObjectId;
use crate::codec::Wire;
use crate::process::Critical;
use crate::record::Entry;
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::views::Names;
use rustix::io::Result;
use std::sync::atomic::Ordering::*;

/// The position of a listing: after `name` in `shard`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPosition {
    pub shard: usize,
    pub name: Vec<u8>,
    /// The listing left out a node that couldn't be reached, so it ends with an error.
    pub is_partial: bool,
}

/// Bit of the number in [`DirPosition::packed`]: the position is partial.
const PARTIAL: u32 = 1 << 31;

impl DirPosition {
    /// The position as a number and a name, as an open file description stores it.
    pub fn packed(&self) -> (u32, &[u8]) {
        let partial = if self.is_partial { PARTIAL } else { 0 };
        (self.shard as u32 & !PARTIAL | partial, &self.name)
    }

    /// Restores a position from [`DirPosition::packed`].
    pub fn from_packed(shard: u32, name: Vec<u8>) -> DirPosition {
        DirPosition {
            shard: (shard & !PARTIAL) as usize,
            name,
            is_partial: shard & PARTIAL != 0,
        }
    }
}

/// Maximum size of the entries in one message. Bytes.
pub const LIST_BYTES: usize = 64 << 10;

/// An entry in a listing: shard, name, and entry. Instead of an entry that is about to change,
/// there is None: the receiver has to look up the name.
pub struct Listed(pub u64, pub Vec<u8>, pub Option<Entry>);

impl Wire for Listed {
    type Owned = Listed;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        (self.0, &self.1[..], self.2).put(to);
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Listed> {
        let (shard, name, entry) = Wire::take(from)?;
        Some(Listed(shard, name, entry))
    }
}

impl<'s> Names<'s> {
    /// Lists the rest of a directory's entries in one shard, from `position` on. For an entry that
    /// is about to change, `each` gets the name only. False if `each` has ended the listing.
    pub fn list_shard(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Option<Entry>) -> bool,
    ) -> Result<bool> {
        let mut more = true;
        let mut last = std::mem::take(&mut position.name);
        let after = last.clone();
        let records = self.store.records(position.shard)?;
        records.list(dir, &after, |name, found| {
            more = each(name, (!found.changing).then_some(found.entry));
            if more {
                last.clear();
                last.extend_from_slice(name);
            }
            more
        })?;
        if !more {
            position.name = last;
        }
        Ok(more)
    }

    pub fn note_dir_time(&self, dir: ObjectId, t: i64) -> Result<()> {
        let _critical = Critical::enter();
        let place = self.store.control.dir_time(dir.0);
        place
            .lock
            .acquire(&self.store.control, self.store.process_slot()?)?;
        let result = (|| {
            let old = place.id.load(Acquire);
            if old != dir.0 {
                if old != 0 {
                    let (mtime, ctime) = (place.mtime.load(Relaxed), place.spare.load(Relaxed));
                    self.store_dir_times(ObjectId(old), mtime, ctime as i64)?;
                }
                place.id.store(0, Release);
                place.mtime.store(t, Relaxed);
                place.spare.store(t as u64, Relaxed);
                place.id.store(dir.0, Release);
            } else {
                place.mtime.store(t, Relaxed);
                place.spare.store(t as u64, Release);
            }
            Ok(())
        })();
        place.lock.release();
        result
    }

    /// Writes a directory's times to its record, if the directory still exists.
    fn store_dir_times(&self, dir: ObjectId, mtime: i64, ctime: i64) -> Result<()> {
        if !self.store.records_of(dir)?.exists(dir)? {
            // The directory is another node's, or was removed.
            return Ok(());
        }
        self.store
            .transact(self.object_set(dir), Need::Removal, |w| {
                let Some((inode, _)) = w.inode(dir)? else {
                    return Ok(());
                };
                if (inode.mtime, inode.ctime.max(ctime)) == (mtime, inode.ctime) {
                    return Ok(());
                }
                w.change_inode(dir, |inode| {
                    inode.mtime = mtime;
                    inode.ctime = ctime.max(inode.ctime);
                })
            })
    }

    /// Writes all times in the table to the records (before the table is removed).
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub fn flush_dir_times(&self) -> Result<()> {
        for place in self.store.control.dir_times() {
            let id = place.id.load(Acquire);
            if id != 0 {
                let (mtime, ctime) = (place.mtime.load(Relaxed), place.spare.load(Relaxed));
                self.store_dir_times(ObjectId(id), mtime, ctime as i64)?;
            }
        }
        Ok(())
    }

    /// Times (mtime, ctime) of a directory, if the table has them. Must be read before the record.
    pub fn dir_times(&self, dir: ObjectId) -> Option<(i64, i64)> {
        let place = self.store.control.dir_time(dir.0);
        for _ in 0..10 {
            if place.id.load(Acquire) != dir.0 {
                return None;
            }
            let (mtime, ctime) = (place.mtime.load(Acquire), place.spare.load(Acquire));
            if place.id.load(Acquire) == dir.0 {
                return Some((mtime, ctime as i64));
            }
        }
        None
    }

    /// Sets a directory's times in the table, if the table has them.
    pub(crate) fn set_dir_times(
        &self,
        dir: ObjectId,
        mtime: Option<i64>,
        ctime: i64,
    ) -> Result<()> {
        let _critical = Critical::enter();
        let place = self.store.control.dir_time(dir.0);
        place
            .lock
            .acquire(&self.store.control, self.store.process_slot()?)?;
        if place.id.load(Acquire) == dir.0 {
            if let Some(mtime) = mtime {
                place.mtime.store(mtime, Relaxed);
            }
            place.spare.store(ctime as u64, Release);
        }
        place.lock.release();
        Ok(())
    }
}

//! Directories: listing, and the times that change with every new entry.
//!
//! The entries of a directory are spread over all shards, in each sorted by name. A
//! listing walks shard after shard and remembers the last name, so that entries that stay
//! are returned exactly once whatever happens around them.
//!
//! The modification time of a directory changes with every entry made or removed. It is
//! kept in a table in shared memory and written to the record when its place is needed
//! for another directory.

use crate::across::entry_in;
use crate::elsewhere::Bytes;
use crate::elsewhere::messages::{List, Part, decode, kind};
use crate::process::Critical;
use crate::record::{Entry, Inode, Key};
use crate::shards::Need;
use crate::{NodeId, ObjectId, Store};
use rustix::io::{Errno, Result};
use std::sync::atomic::Ordering::*;

/// Where a listing stands: after `name` in `shard`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPosition {
    pub shard: usize,
    pub name: Vec<u8>,
}

/// In a position, the shard's number is that of the node, shifted by this, and that on the node.
const NODE_SHIFT: u32 = 8;
/// Bytes of entries that one message takes.
const LIST_BYTES: usize = 64 << 10;
/// Steps of a directory's times that are told to another node, in nanoseconds.
const TICK: i64 = 4_000_000;

/// An entry in a listing: its shard, its name, itself; nothing where somebody is about to change it,
/// so that it has to be looked up.
pub(crate) struct Listed(u64, Vec<u8>, Option<Entry>);

impl Part for Listed {
    fn put(&self, to: &mut Vec<u8>) {
        (self.0, &self.1[..], self.2).put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Listed> {
        let (shard, name, entry) = Part::take(from)?;
        Some(Listed(shard, name, entry))
    }
}

impl Store {
    /// Calls `each` for the entries of `dir` after `position`, until it returns false
    /// (that entry then counts as not returned) or all have been listed.
    ///
    /// # Errors
    /// EIO.
    pub fn list(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        mut each: impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<()> {
        if dir.is_view() {
            return self.list_view(dir, position, &mut each);
        }
        let Some(others) = self.elsewhere.as_deref() else {
            return self.list_here(dir, position, &mut each).map(|_| ());
        };
        // The shard's place counts on over all nodes.
        let nodes = others.nodes();
        while let Some(&node) = nodes.get(position.shard >> NODE_SHIFT) {
            let more = if node == others.me() {
                let base = position.shard >> NODE_SHIFT << NODE_SHIFT;
                position.shard -= base;
                let more = self.list_here(dir, position, &mut each);
                position.shard += base;
                more?
            } else {
                self.list_away(node, dir, position, &mut each)?
            };
            if !more {
                return Ok(());
            }
            position.shard = ((position.shard >> NODE_SHIFT) + 1) << NODE_SHIFT;
            position.name.clear();
        }
        Ok(())
    }

    /// As [`Store::list`], of what another node has; false if `each` had enough.
    fn list_away(
        &self,
        node: NodeId,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<bool> {
        loop {
            let base = position.shard >> NODE_SHIFT << NODE_SHIFT;
            let question = (dir, (position.shard - base) as u64, &position.name[..]);
            let mut bytes = vec![0; LIST_BYTES];
            let room = Bytes::Receive(bytes.as_mut_ptr(), bytes.len());
            // SAFETY: the vector's own.
            let ((shard, end), n) =
                unsafe { self.ask_with::<(u64, bool)>(node, kind::LIST, &question, room)? };
            let list: List<Listed> = decode(&bytes[..n]).ok_or(Errno::PROTO)?;
            for Listed(shard, name, entry) in list.0 {
                let entry = match entry {
                    None => self.lookup(dir, &name)?,
                    known => known,
                };
                if entry.is_some_and(|e| !each(&name, e)) {
                    return Ok(false);
                }
                position.shard = base + shard as usize;
                position.name = name;
            }
            if end {
                return Ok(true);
            }
            if base + shard as usize > position.shard {
                position.shard = base + shard as usize;
                position.name.clear();
            }
        }
    }

    /// Answers another node's [`Store::list_away`]: entries, the shard to go on in, whether that
    /// was all.
    pub(crate) fn list_part(
        &self,
        dir: ObjectId,
        shard: u64,
        name: Vec<u8>,
    ) -> Result<(List<Listed>, u64, bool)> {
        let mut position = DirPosition {
            shard: usize::try_from(shard).map_err(|_| Errno::PROTO)?,
            name,
        };
        if position.name.len() > crate::NAME_MAX {
            return Err(Errno::PROTO);
        }
        let mut list = Vec::new();
        let mut bytes = 4;
        let mut end = true;
        while position.shard < self.shard_count() {
            let at = position.shard as u64;
            let more = self.list_here_of_one(dir, &mut position, &mut |name, entry| {
                bytes += 8 + 4 + name.len() + 1 + 9;
                if bytes > LIST_BYTES {
                    return false;
                }
                list.push(Listed(at, name.to_vec(), entry));
                true
            })?;
            if !more {
                end = false;
                break;
            }
            position.shard += 1;
        }
        Ok((List(list), position.shard as u64, end))
    }

    /// As [`Store::list`], of what lies here; false if `each` had enough.
    fn list_here(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<bool> {
        while position.shard < self.shard_count() {
            let mut unsure = None;
            let more = self.list_here_of_one(dir, position, &mut |name, entry| match entry {
                Some(entry) => each(name, entry),
                None => {
                    unsure = Some(name.to_vec());
                    false
                }
            })?;
            // Waits for those who are at it, which can't be done in the middle of a scan.
            if let Some(name) = unsure {
                let entry = self.lookup(dir, &name)?;
                if entry.is_some_and(|e| !each(&name, e)) {
                    return Ok(false);
                }
                position.name = name;
            } else if more {
                position.shard += 1;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rest of one shard. Of an entry that is about to change, `each` is told the name only.
    fn list_here_of_one(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Option<Entry>) -> bool,
    ) -> Result<bool> {
        let prefix = Key::entry(dir, b"");
        {
            let snapshot = self.snapshot(position.shard)?;
            let mut more = true;
            let mut error = None;
            let mut last = std::mem::take(&mut position.name);
            let from = Key::entry(dir, &last);
            let skip = !last.is_empty();
            snapshot.scan(&from, |key, value| {
                let Some(name) = key.strip_prefix(&prefix[..]) else {
                    return false;
                };
                if skip && name == &from[prefix.len()..] {
                    return true;
                }
                let Some((entry, changing)) = entry_in(value) else {
                    error = Some(Errno::IO);
                    return false;
                };
                more = each(name, (!changing).then_some(entry));
                if more {
                    last.clear();
                    last.extend_from_slice(name);
                }
                more
            })?;
            if let Some(e) = error {
                return Err(e);
            }
            if !more {
                position.name = last;
            }
            Ok(more)
        }
    }

    /// Notes that an entry of `dir` was made or removed at `t`.
    ///
    /// On another node it is noted in steps of [`TICK`], as kernels do: who has told the home of one
    /// change needn't tell of another in the same step, which would change nothing.
    pub(crate) fn touch_dir(&self, dir: ObjectId, t: i64) -> Result<()> {
        let away = self.object_away(dir);
        let t = if away.is_some() { t - t % TICK } else { t };
        if let Some(home) = away {
            let told = self.dir_times(dir).is_some_and(|(mtime, _)| mtime == t);
            if told {
                return Ok(());
            }
            // The entry is made: that the time isn't must not undo it.
            if self.ask::<()>(home, kind::TOUCH, &(dir, t)).is_err() {
                return Ok(());
            }
        }
        self.note_dir_time(dir, t)
    }

    pub(crate) fn note_dir_time(&self, dir: ObjectId, t: i64) -> Result<()> {
        let _critical = Critical::enter();
        let place = self.control.dir_time(dir.0);
        place.lock.acquire(&self.control, self.me()?)?;
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

    /// Writes a directory's times to its record, if it still exists.
    fn store_dir_times(&self, dir: ObjectId, mtime: i64, ctime: i64) -> Result<()> {
        if self.object_away(dir).is_some() {
            // Only what has been told.
            return Ok(());
        }
        let shard = self.shard_of(dir);
        let key = Key::inode(dir);
        self.write(self.object_set(dir), Need::Removal, |w| {
            let Some(record) = w.get(shard, &key)? else {
                return Ok(());
            };
            let (mut inode, tail) = Inode::decode(record).ok_or(Errno::IO)?;
            if (inode.mtime, inode.ctime.max(ctime)) == (mtime, inode.ctime) {
                return Ok(());
            }
            inode.mtime = mtime;
            inode.ctime = ctime.max(inode.ctime);
            let bytes = inode.encode(tail);
            w.put(shard, &key, &bytes)
        })
    }

    /// Writes all times kept in the table to the records (before the table goes).
    ///
    /// # Errors
    /// ENOSPC, EIO.
    pub fn flush_dir_times(&self) -> Result<()> {
        for place in self.control.dir_times() {
            let id = place.id.load(Acquire);
            if id != 0 {
                let (mtime, ctime) = (place.mtime.load(Relaxed), place.spare.load(Relaxed));
                self.store_dir_times(ObjectId(id), mtime, ctime as i64)?;
            }
        }
        Ok(())
    }

    /// Times (mtime, ctime) of a directory in the table, if it has them. To be asked before
    /// the record is read.
    pub(crate) fn dir_times(&self, dir: ObjectId) -> Option<(i64, i64)> {
        let place = self.control.dir_time(dir.0);
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

    /// Sets a directory's times in the table, if they are kept there.
    pub(crate) fn set_dir_times(
        &self,
        dir: ObjectId,
        mtime: Option<i64>,
        ctime: i64,
    ) -> Result<()> {
        let _critical = Critical::enter();
        let place = self.control.dir_time(dir.0);
        place.lock.acquire(&self.control, self.me()?)?;
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

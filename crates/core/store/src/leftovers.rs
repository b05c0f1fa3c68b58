//! Records that a change of names leaves behind, and their removal in bounded steps.
//!
//! An object can have thousands of user attributes, each with its own index records, and millions
//! of chunks. A transaction that changed all of these records would need space that isn't reserved.
//! So the transaction that renames or removes such an object leaves a record 'T' in the object's
//! shard instead: hashes of the names under which attributes may still be in the index. If the
//! object has no inode any more, all its remaining records are to be removed.
//!
//! The process that made the change carries out the steps before its call returns
//! ([`Names::settle_leftovers_of`]). If that process dies, or has no space, the keeper does. Each
//! step is a transaction over [`STEP`] records. Any process can carry out a step, at any time, also
//! twice. The record 'T' is removed with the last step, unless it has changed since the first one.
//!
//! Until then, searches find the object by some attributes under its old name, by others under its
//! new one. A removed object isn't found, since it has no name.

use crate::ObjectId;
use crate::index::{Indexed, key_of};
use crate::names::STEP;
use crate::record::{ChunkMap, Inode, Key, parse_key};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::shards::Write;
use crate::views::Names;
use forebay_media::Extent;
use rustix::io::{Errno, Result};

/// Maximum number of chunks' records that one transaction removes. An object's chunk records are
/// adjacent.
const CHUNK_STEP: usize = 256;

/// The progress of a pass over an object's records: where the next step begins.
#[derive(Default)]
struct Progress {
    /// The 'T' record when the pass began.
    record: Vec<u8>,
    /// Key of the last attribute that was handled.
    after: Vec<u8>,
}

impl Names<'_> {
    /// In a transaction: leaves records of `id` to later steps. `name` is the hash of a name under
    /// which the attributes of `id` are in the index.
    pub(crate) fn leave_behind(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Option<u64>,
    ) -> Result<()> {
        let key = Key::leftover(id);
        let mut record = w.attached(id, &key)?.unwrap_or_default().to_vec();
        if let Some(name) = name
            && !names_in(&record).any(|n| n == name)
        {
            record.extend_from_slice(&name.to_le_bytes());
        }
        w.attach(id, &key, &record)?;
        w.leave_leftovers(id);
        Ok(())
    }

    /// In a transaction: hashes of names, besides the present one, under which attributes of the
    /// object may be in the index. None: the object has no record 'T'.
    pub(crate) fn left_names(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Option<Vec<u64>>> {
        let record = w.attached(id, &Key::leftover(id))?;
        Ok(record.map(|record| names_in(record).collect()))
    }

    /// In a transaction: whether more than `most` records of the object, with the tag of `first`,
    /// follow from `first` on.
    pub(super) fn has_more(&self, w: &mut Write<'_>, first: &[u8], most: usize) -> Result<bool> {
        let (tag, id, _) = parse_key(first).ok_or(Errno::INVAL)?;
        let mut count = 0;
        w.each_attached(id, first, |key, _| {
            let its = parse_key(key).is_some_and(|(t, of, _)| (t, of) == (tag, id));
            count += usize::from(its);
            its && count <= most
        })?;
        Ok(count > most)
    }

    /// In a transaction that has removed the inode of `id`: whether the object's attributes or
    /// chunks are too many for the transaction, so that they are left to later steps.
    pub(super) fn leave_many(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        inode: &Inode,
    ) -> Result<bool> {
        let is_left = w
            .attached(id, &Key::leftover(id))?
            .is_some_and(|_| inode.has_attributes);
        let many = is_left
            || inode.has_attributes && self.has_more(w, &Key::attribute(id, b""), STEP)?
            || inode.is_file() && self.has_more(w, &Key::chunk(id, 1), CHUNK_STEP)?;
        if many {
            self.leave_behind(w, id, None)?;
        }
        Ok(many)
    }

    /// Carries out all steps that are left for an object.
    ///
    /// # Errors
    /// ENOSPC; EIO: the remaining steps are left for later.
    pub(crate) fn settle_leftovers_of(&self, id: ObjectId) -> Result<()> {
        let mut progress = Progress::default();
        let _section = self.store.section()?;
        loop {
            let mut freed = Vec::new();
            let done = self
                .store
                .transact(self.object_set(id), Need::Removal, |w| {
                    self.leftover_step(w, id, &mut progress, &mut freed)
                })?;
            self.store.free_extents(freed);
            if done {
                return Ok(());
            }
        }
    }

    /// As [`Names::settle_leftovers_of`], for all objects of this node.
    ///
    /// # Errors
    /// Those of [`Names::settle_leftovers_of`]; if several objects fail, that of the last one.
    pub fn settle_leftovers(&self) -> Result<()> {
        let mut left = Vec::new();
        for shard in 0..self.store.files.count() {
            self.store
                .records(shard)?
                .each_attached(b"T", |key, _| match parse_key(key) {
                    Some((b'T', id, _)) => {
                        left.push(id);
                        true
                    }
                    _ => false,
                })?;
        }
        let mut result = Ok(());
        for id in left {
            if let Err(e) = self.settle_leftovers_of(id) {
                result = Err(e);
            }
        }
        result
    }

    /// Carries out one step. Returns whether it was the last one.
    fn leftover_step(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        progress: &mut Progress,
        freed: &mut Vec<Extent>,
    ) -> Result<bool> {
        let key = Key::leftover(id);
        let Some(record) = w.attached(id, &key)?.map(<[u8]>::to_vec) else {
            return Ok(true);
        };
        if progress.after.is_empty() {
            progress.record.clone_from(&record);
        }
        let is_there = w.exists(id)?;
        let attributes = self.next_attributes(w, id, &progress.after)?;
        if let Some((last, _)) = attributes.last() {
            progress.after.clone_from(last);
            let left: Vec<u64> = names_in(&record).collect();
            for (key, word) in attributes {
                if let Some(word) = word {
                    self.store.index().settle_word(w, id, word, &left)?;
                }
                if !is_there {
                    w.detach(id, &key)?;
                }
            }
            return Ok(false);
        }
        if !is_there && self.remove_some(w, id, freed)? {
            return Ok(false);
        }
        if progress.record != record {
            // The object was renamed once more meanwhile.
            *progress = Progress::default();
            return Ok(false);
        }
        w.detach(id, &key).map(|_| true)
    }

    /// Some attributes of the object after the key `after`: keys, and the values' form in the
    /// index.
    fn next_attributes(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        after: &[u8],
    ) -> Result<Vec<(Vec<u8>, Option<Indexed>)>> {
        let mut found = Vec::new();
        let first = Key::attribute(id, b"");
        let first = if after.is_empty() { &first[..] } else { after };
        w.each_attached(id, first, |key, value| {
            let Some((b'A', of, name)) = parse_key(key) else {
                return false;
            };
            if of != id || found.len() == STEP {
                return false;
            }
            if key != after {
                let word = key_of(name).map(|name| Indexed::new(name, value));
                found.push((key.to_vec(), word));
            }
            true
        })?;
        Ok(found)
    }

    /// Removes some extent records of an object without an inode. False if there were none.
    fn remove_some(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        freed: &mut Vec<Extent>,
    ) -> Result<bool> {
        let mut keys = Vec::new();
        w.each_attached(id, &Key::chunk(id, 0), |key, value| {
            let its = parse_key(key).is_some_and(|(tag, of, _)| (tag, of) == (b'X', id));
            if !its || keys.len() == CHUNK_STEP {
                return false;
            }
            if let Some(map) = ChunkMap::decode(value) {
                freed.extend_from_slice(map.extents());
            }
            keys.push(key.to_vec());
            true
        })?;
        for key in &keys {
            w.detach(id, key)?;
        }
        Ok(!keys.is_empty())
    }
}

/// The hashes in a 'T' record.
fn names_in(record: &[u8]) -> impl Iterator<Item = u64> {
    let words = record.as_chunks().0.iter();
    words.map(|word| u64::from_le_bytes(*word))
}

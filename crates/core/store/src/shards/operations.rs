//! Implements the operations on records ([`crate::records`]) with LMDB transactions on the shards.

use super::{View, Write};
use crate::ObjectId;
use crate::record::{Entry, EntryRecord, Inode, Key, parse_key};
use crate::records::{ChangeRecords, EntryRef, ReadRecords};
use rustix::io::{Errno, Result};

/// Whether a key is that of an attached record: not of an entry ('D'), an inode ('I') or the
/// journal of a commit ('J').
fn is_attached(key: &[u8]) -> bool {
    !matches!(key.first(), None | Some(b'D' | b'I' | b'J'))
}

#[inline]
fn entry_key(at: EntryRef<'_>) -> Key {
    Key::entry(at.dir, at.name)
}

#[inline]
fn decode_entry(record: Option<&[u8]>) -> Result<Option<EntryRecord>> {
    match record {
        Some(bytes) => EntryRecord::decode(bytes).map(Some).ok_or(Errno::IO),
        None => Ok(None),
    }
}

#[inline]
fn decode_inode(record: Option<&[u8]>) -> Result<Option<(Inode, &[u8])>> {
    match record {
        Some(bytes) => Inode::decode(bytes).map(Some).ok_or(Errno::IO),
        None => Ok(None),
    }
}

impl ReadRecords for View<'_> {
    #[inline]
    fn look_up(&self, at: EntryRef<'_>) -> Result<Option<EntryRecord>> {
        decode_entry(self.0.get(&entry_key(at))?)
    }

    fn intent(&self, at: EntryRef<'_>) -> Result<Option<&[u8]>> {
        self.0.get(&Key::note(at.dir, at.name))
    }

    fn list(
        &self,
        dir: ObjectId,
        after: &[u8],
        mut each: impl FnMut(&[u8], EntryRecord) -> bool,
    ) -> Result<()> {
        let (prefix, from) = (Key::entry(dir, b""), Key::entry(dir, after));
        let mut is_damaged = false;
        self.0.scan(&from, |key, value| {
            let Some(name) = key.strip_prefix(&prefix[..]) else {
                return false;
            };
            if !after.is_empty() && name == after {
                return true;
            }
            match EntryRecord::decode(value) {
                Some(found) => each(name, found),
                None => {
                    is_damaged = true;
                    false
                }
            }
        })?;
        if is_damaged { Err(Errno::IO) } else { Ok(()) }
    }

    fn each_entry(
        &self,
        mut each: impl FnMut(ObjectId, &[u8], Option<EntryRecord>) -> bool,
    ) -> Result<()> {
        self.0.scan(b"D", |key, value| match parse_key(key) {
            Some((b'D', dir, name)) => each(dir, name, EntryRecord::decode(value)),
            _ => false,
        })
    }

    fn each_intent(&self, mut each: impl FnMut(ObjectId, &[u8], &[u8]) -> bool) -> Result<()> {
        self.0.scan(b"N", |key, value| match parse_key(key) {
            Some((b'N', dir, name)) => each(dir, name, value),
            _ => false,
        })
    }

    fn exists(&self, id: ObjectId) -> Result<bool> {
        Ok(self.0.get(&Key::inode(id))?.is_some())
    }

    #[inline]
    fn inode(&self, id: ObjectId) -> Result<Option<(Inode, &[u8])>> {
        decode_inode(self.0.get(&Key::inode(id))?)
    }

    fn each_inode(
        &self,
        from: ObjectId,
        mut each: impl FnMut(ObjectId, Option<(Inode, &[u8])>) -> bool,
    ) -> Result<()> {
        self.0
            .scan(&Key::inode(from), |key, value| match parse_key(key) {
                Some((b'I', id, _)) => each(id, Inode::decode(value)),
                _ => false,
            })
    }

    #[inline]
    fn attached(&self, key: &Key) -> Result<Option<&[u8]>> {
        debug_assert!(is_attached(key));
        self.0.get(key)
    }

    #[inline]
    fn each_attached(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        debug_assert!(is_attached(from));
        self.0.scan(from, each)
    }

    fn each_record(&self, from: &[u8], each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.0.scan(from, each)
    }
}

impl ChangeRecords for Write<'_> {
    #[inline]
    fn look_up(&mut self, at: EntryRef<'_>) -> Result<Option<EntryRecord>> {
        decode_entry(self.get(at.shard, &entry_key(at))?)
    }

    #[inline]
    fn has_entry(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<bool> {
        Ok(self.get(at.shard, &entry_key(at))? == Some(&entry.encode()))
    }

    #[inline]
    fn link(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<Option<EntryRecord>> {
        decode_entry(self.insert(at.shard, &entry_key(at), &entry.encode())?)
    }

    #[inline]
    fn create(
        &mut self,
        at: EntryRef<'_>,
        entry: Entry,
        inode: &Inode,
        tail: &[u8],
    ) -> Result<Option<EntryRecord>> {
        debug_assert_eq!(self.store.files.shard_of(entry.id), at.shard);
        let there = self.link(at, entry)?;
        if there.is_none() {
            self.put(at.shard, &Key::inode(entry.id), &inode.encode(tail))?;
        }
        Ok(there)
    }

    #[inline]
    fn unlink(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<bool> {
        let key = entry_key(at);
        if self.get(at.shard, &key)? != Some(&entry.encode()) {
            return Ok(false);
        }
        self.del(at.shard, &key)
    }

    fn clear_entry(&mut self, at: EntryRef<'_>) -> Result<bool> {
        self.del(at.shard, &entry_key(at))
    }

    #[inline]
    fn rename(&mut self, from: EntryRef<'_>, to: EntryRef<'_>, entry: Entry) -> Result<()> {
        self.put(to.shard, &entry_key(to), &entry.encode())?;
        self.del(from.shard, &entry_key(from)).map(|_| ())
    }

    fn exchange(&mut self, a: (EntryRef<'_>, Entry), b: (EntryRef<'_>, Entry)) -> Result<()> {
        self.set_entry(b.0, a.1)?;
        self.set_entry(a.0, b.1)
    }

    #[inline]
    fn set_entry(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()> {
        self.put(at.shard, &entry_key(at), &entry.encode())
    }

    #[inline]
    fn set_changing(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()> {
        let record = EntryRecord::changing(entry).encode();
        self.put(at.shard, &entry_key(at), &record)
    }

    fn is_empty(&mut self, dir: ObjectId) -> Result<bool> {
        let first = Key::entry(dir, b"");
        for env in self.store.files.iter() {
            let mut found = false;
            env.snapshot()?.scan(&first, |key, _| {
                found = key.starts_with(&first);
                false
            })?;
            if found {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn rmdir(&mut self, at: EntryRef<'_>, entry: Entry) -> Result<()> {
        if !self.is_empty(entry.id)? {
            return Err(Errno::NOTEMPTY);
        }
        if self.unlink(at, entry)? {
            Ok(())
        } else {
            Err(Errno::NOENT)
        }
    }

    #[inline]
    fn intent(&mut self, at: EntryRef<'_>) -> Result<Option<&[u8]>> {
        self.get(at.shard, &Key::note(at.dir, at.name))
    }

    fn set_intent(&mut self, at: EntryRef<'_>, intent: &[u8]) -> Result<()> {
        self.put(at.shard, &Key::note(at.dir, at.name), intent)
    }

    fn end_intent(&mut self, at: EntryRef<'_>) -> Result<()> {
        self.del(at.shard, &Key::note(at.dir, at.name)).map(|_| ())
    }

    fn exists(&mut self, id: ObjectId) -> Result<bool> {
        let shard = self.store.files.shard_of(id);
        Ok(self.get(shard, &Key::inode(id))?.is_some())
    }

    #[inline]
    fn inode(&mut self, id: ObjectId) -> Result<Option<(Inode, &[u8])>> {
        let shard = self.store.files.shard_of(id);
        decode_inode(self.get(shard, &Key::inode(id))?)
    }

    fn add_object(&mut self, id: ObjectId, inode: &Inode, tail: &[u8]) -> Result<bool> {
        let shard = self.store.files.shard_of(id);
        let there = self.insert(shard, &Key::inode(id), &inode.encode(tail))?;
        Ok(there.is_none())
    }

    #[inline]
    fn set_inode(&mut self, id: ObjectId, inode: &Inode, tail: &[u8]) -> Result<()> {
        let shard = self.store.files.shard_of(id);
        self.put(shard, &Key::inode(id), &inode.encode(tail))
    }

    #[inline]
    fn change_inode<T>(&mut self, id: ObjectId, change: impl FnOnce(&mut Inode) -> T) -> Result<T> {
        let shard = self.store.files.shard_of(id);
        let key = Key::inode(id);
        let record = self.get(shard, &key)?.ok_or(Errno::NOENT)?;
        let (mut inode, tail) = Inode::decode(record).ok_or(Errno::IO)?;
        let kind = inode.kind();
        let result = change(&mut inode);
        assert!(inode.kind() == kind, "an object keeps its type: {kind:o}");
        let bytes = inode.encode(tail);
        self.put(shard, &key, &bytes)?;
        Ok(result)
    }

    fn remove_object(&mut self, id: ObjectId) -> Result<()> {
        let shard = self.store.files.shard_of(id);
        self.del(shard, &Key::inode(id)).map(|_| ())
    }

    #[inline]
    fn attached(&mut self, id: ObjectId, key: &[u8]) -> Result<Option<&[u8]>> {
        debug_assert!(is_attached(key));
        let shard = self.store.files.shard_of(id);
        self.get(shard, key)
    }

    #[inline]
    fn each_attached(
        &mut self,
        id: ObjectId,
        from: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        debug_assert!(is_attached(from));
        let shard = self.store.files.shard_of(id);
        self.scan(shard, from, each)
    }

    #[inline]
    fn attach(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()> {
        debug_assert!(is_attached(key));
        let shard = self.store.files.shard_of(id);
        self.put(shard, key, value)
    }

    fn attach_new(&mut self, id: ObjectId, key: &[u8], value: &[u8]) -> Result<()> {
        debug_assert!(is_attached(key));
        let shard = self.store.files.shard_of(id);
        self.insert(shard, key, value).map(|_| ())
    }

    #[inline]
    fn detach(&mut self, id: ObjectId, key: &[u8]) -> Result<bool> {
        debug_assert!(is_attached(key));
        let shard = self.store.files.shard_of(id);
        self.del(shard, key)
    }
}

//! Extended attributes: a record each, beside the record of their object.

use crate::elsewhere::Bytes;
use crate::elsewhere::messages::{List, kind};
use crate::record::{Inode, Key, parse_key};
use crate::shards::Need;
use crate::{ObjectId, Store, now};
use rustix::io::{Errno, Result};

/// Longest value.
const MAX_VALUE: usize = 64 << 10;

impl Store {
    /// The extended attribute `name`.
    ///
    /// # Errors
    /// ENODATA if there is none; ENOENT.
    pub fn attribute(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(home) = self.object_away(id) {
            let mut value = vec![0; MAX_VALUE];
            let bytes = Bytes::Receive(value.as_mut_ptr(), value.len());
            // SAFETY: they are the vector's.
            let told = unsafe { self.ask_with::<()>(home, kind::ATTRIBUTE, &(id, name), bytes)? };
            value.truncate(told.1);
            return Ok(value);
        }
        let snapshot = self.snapshot(self.shard_of(id))?;
        let record = snapshot.get(&Key::inode(id))?.ok_or(Errno::NOENT)?;
        if !Inode::decode(record).ok_or(Errno::IO)?.0.has_attributes {
            return Err(Errno::NODATA);
        }
        Ok(snapshot
            .get(&Key::attribute(id, name))?
            .ok_or(Errno::NODATA)?
            .to_vec())
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// ENOENT.
    pub fn attributes(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        if let Some(home) = self.object_away(id) {
            let names: List<Vec<u8>> = self.ask(home, kind::ATTRIBUTES, &id)?;
            return Ok(names.0);
        }
        let snapshot = self.snapshot(self.shard_of(id))?;
        let record = snapshot.get(&Key::inode(id))?.ok_or(Errno::NOENT)?;
        let mut names = Vec::new();
        if Inode::decode(record).ok_or(Errno::IO)?.0.has_attributes {
            snapshot.scan(&Key::attribute(id, b""), |key, _| match parse_key(key) {
                Some((b'A', of, name)) if of == id => {
                    names.push(name.to_vec());
                    true
                }
                _ => false,
            })?;
        }
        Ok(names)
    }

    /// Sets an extended attribute. `create`: Some(true) it must be new, Some(false) it
    /// must be there.
    ///
    /// # Errors
    /// EEXIST, ENODATA, ENOSPC, ENOENT.
    pub fn set_attribute(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        create: Option<bool>,
    ) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            let bytes = Bytes::Send(value.as_ptr(), value.len());
            let question = (id, name, create);
            // SAFETY: they are the slice's.
            let told = unsafe { self.ask_with(home, kind::SET_ATTRIBUTE, &question, bytes) };
            return told.map(|((), _)| ());
        }
        let t = now();
        let shard = self.shard_of(id);
        let key = Key::attribute(id, name);
        self.write(self.set(&[shard]), Need::Bytes(value.len() + 512), |w| {
            match (create, w.get(shard, &key)?.is_some()) {
                (Some(true), true) => return Err(Errno::EXIST),
                (Some(false), false) => return Err(Errno::NODATA),
                _ => {}
            }
            self.change_inode(w, id, |i| {
                i.has_attributes = true;
                i.ctime = t;
            })?;
            w.put(shard, &key, value)
        })?;
        self.set_live_ctime(id, t)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA if there is none; ENOENT.
    pub fn remove_attribute(&self, id: ObjectId, name: &[u8]) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::REMOVE_ATTRIBUTE, &(id, name));
        }
        let t = now();
        let shard = self.shard_of(id);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            if !w.del(shard, &Key::attribute(id, name))? {
                return Err(Errno::NODATA);
            }
            self.change_inode(w, id, |i| i.ctime = t)
        })?;
        self.set_live_ctime(id, t)
    }
}

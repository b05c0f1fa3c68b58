//! Extended attributes: a record each, beside the record of their object; those of users also in
//! the index (`index.rs`).

use crate::index::key_of;
use crate::names::Named;
use crate::record::{Inode, Key, parse_key};
use crate::shards::Need;
use crate::views::Names;
use crate::{ObjectId, now};
use rustix::io::{Errno, Result};

/// Longest value. Bytes.
pub const MAX_VALUE: usize = 64 << 10;

impl Names<'_> {
    /// The extended attribute `name`.
    ///
    /// # Errors
    /// ENODATA if there is none; ENOENT.
    pub fn attribute_here(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        if id.is_view() {
            return Err(Errno::NODATA);
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
    pub fn attributes_here(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        if id.is_view() {
            return Ok(Vec::new());
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

    /// Sets an extended attribute. `create`: Some(true) it must be new, Some(false) it must be
    /// there. `known` is a name of the object, if the caller has one: the object is found under it
    /// by what it has.
    ///
    /// # Errors
    /// EEXIST, ENODATA, ENOSPC, ENOENT; EROFS in the view.
    pub fn set_attribute_here(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        create: Option<bool>,
        known: Option<Named<'_>>,
    ) -> Result<()> {
        if id.is_view() {
            return Err(Errno::ROFS);
        }
        let t = now();
        let shard = self.shard_of(id);
        let key = Key::attribute(id, name);
        let of_user = key_of(name);
        let set = match of_user {
            Some(_) => self.index().shards_with_name(id, known),
            None => self.set(&[shard]),
        };
        self.write(set, Need::Bytes(value.len() + 1024), |w| {
            let old = w.get(shard, &key)?;
            match (create, old.is_some()) {
                (Some(true), true) => return Err(Errno::EXIST),
                (Some(false), false) => return Err(Errno::NODATA),
                _ => {}
            }
            let old = old.filter(|_| of_user.is_some()).map(<[u8]>::to_vec);
            let inode = self.change_inode(w, id, |i| {
                i.has_attributes = true;
                i.ctime = t;
                *i
            })?;
            w.put(shard, &key, value)?;
            let change = (old.as_deref(), Some(value));
            match of_user {
                Some(key) => self
                    .index()
                    .attribute_in_index(w, (id, &inode), key, change, known),
                None => Ok(()),
            }
        })?;
        self.set_live_ctime(id, t)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA if there is none; ENOENT; EROFS in the view.
    pub fn remove_attribute_here(&self, id: ObjectId, name: &[u8]) -> Result<()> {
        if id.is_view() {
            return Err(Errno::ROFS);
        }
        let t = now();
        let shard = self.shard_of(id);
        let key = Key::attribute(id, name);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            let old = w.get(shard, &key)?.ok_or(Errno::NODATA)?.to_vec();
            w.del(shard, &key)?;
            let inode = self.change_inode(w, id, |i| {
                i.ctime = t;
                *i
            })?;
            match key_of(name) {
                Some(of_user) => self.index().attribute_in_index(
                    w,
                    (id, &inode),
                    of_user,
                    (Some(&old), None),
                    None,
                ),
                None => Ok(()),
            }
        })?;
        self.set_live_ctime(id, t)
    }
}

//! Extended attributes: one record each, beside the record of their object. The attributes of users
//! are also in the index (`index.rs`).

use crate::index::key_of;
use crate::names::Named;
use crate::record::{Key, parse_key};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::views::Names;
use crate::{ObjectId, now};
use rustix::io::{Errno, Result};

/// Maximum length of a value. Bytes.
pub const MAX_VALUE: usize = 64 << 10;

impl Names<'_> {
    /// Returns the value of the extended attribute `name`.
    ///
    /// # Errors
    /// ENODATA if there is none; ENOENT.
    pub fn attribute_here(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        if id.is_view() {
            return Err(Errno::NODATA);
        }
        let records = self.store.records_of(id)?;
        if !records.inode(id)?.ok_or(Errno::NOENT)?.0.has_attributes {
            return Err(Errno::NODATA);
        }
        let value = records.attached(&Key::attribute(id, name))?;
        Ok(value.ok_or(Errno::NODATA)?.to_vec())
    }

    /// Returns the names of all extended attributes of an object.
    ///
    /// # Errors
    /// ENOENT.
    pub fn attributes_here(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        if id.is_view() {
            return Ok(Vec::new());
        }
        let records = self.store.records_of(id)?;
        let mut names = Vec::new();
        if records.inode(id)?.ok_or(Errno::NOENT)?.0.has_attributes {
            records.each_attached(&Key::attribute(id, b""), |key, _| match parse_key(key) {
                Some((b'A', of, name)) if of == id => {
                    names.push(name.to_vec());
                    true
                }
                _ => false,
            })?;
        }
        Ok(names)
    }

    /// Sets an extended attribute. `create`: Some(true): the attribute must be new; Some(false):
    /// the attribute must exist. `known`: a name of the object, if the caller has one. The index of
    /// searches contains the object's attributes under this name.
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
        let key = Key::attribute(id, name);
        let of_user = key_of(name);
        let set = match of_user {
            Some(_) => self.store.index().shards_with_name(id, known),
            None => self.object_set(id),
        };
        self.store
            .transact(set, Need::Bytes(value.len() + 1024), |w| {
                let old = w.attached(id, &key)?;
                match (create, old.is_some()) {
                    (Some(true), true) => return Err(Errno::EXIST),
                    (Some(false), false) => return Err(Errno::NODATA),
                    _ => {}
                }
                let old = old.filter(|_| of_user.is_some()).map(<[u8]>::to_vec);
                let inode = w.change_inode(id, |i| {
                    i.has_attributes = true;
                    i.ctime = t;
                    *i
                })?;
                w.attach(id, &key, value)?;
                let change = (old.as_deref(), Some(value));
                match of_user {
                    Some(key) => {
                        self.store
                            .index()
                            .attribute_in_index(w, (id, &inode), key, change, known)
                    }
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
        let key = Key::attribute(id, name);
        self.store
            .transact(self.object_set(id), Need::Removal, |w| {
                let old = w.attached(id, &key)?.ok_or(Errno::NODATA)?.to_vec();
                w.detach(id, &key)?;
                let inode = w.change_inode(id, |i| {
                    i.ctime = t;
                    *i
                })?;
                match key_of(name) {
                    Some(of_user) => self.store.index().attribute_in_index(
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

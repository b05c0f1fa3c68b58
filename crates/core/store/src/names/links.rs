//! Link records, at an object's home: for each name whose entry lies on another node, whether the
//! object counts it.
//!
//! This module sends no requests to other nodes: the crate `cluster` completes an operation over
//! several nodes, even if its process dies.

use super::*;
use crate::process::identity_lives;
use crate::views::Links;
use crate::{NAME_MAX, Slot};

/// State of a link record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The object has the name.
    Counted,
    /// The name counts; whether its entry exists isn't known yet.
    Unconfirmed,
    /// A rename to the name is in progress: the name doesn't count yet. The record's owner is the
    /// slot of the old name. This owner distinguishes the renames of one object.
    Coming,
    /// A link(2) with the name is in progress: the name doesn't count yet.
    Offered,
    /// An exchange (`RENAME_EXCHANGE`) that gives the object this name is in progress: the name
    /// doesn't count yet. The record's owner is the lower half of the exchange's number.
    Exchanged,
}

impl Link {
    pub fn encode(self, owner: u32) -> [u8; 5] {
        let mut bytes = [self as u8, 0, 0, 0, 0];
        bytes[1..].copy_from_slice(&owner.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<(Link, u32)> {
        let (&state, owner) = bytes.split_first()?;
        let state = match state {
            0 => Link::Counted,
            1 => Link::Unconfirmed,
            2 => Link::Coming,
            3 => Link::Offered,
            4 => Link::Exchanged,
            _ => return None,
        };
        Some((state, u32::from_le_bytes(owner.try_into().ok()?)))
    }
}

/// Whether a link record is unconfirmed: its name counts, but its entry may not exist.
pub fn is_unconfirmed(value: &[u8]) -> bool {
    Link::decode(value).is_some_and(|(link, _)| link == Link::Unconfirmed)
}

/// Decodes a link record: directory, name, whether the name counts.
pub fn link_in<'a>(rest: &'a [u8], value: &[u8]) -> Option<(ObjectId, &'a [u8], bool)> {
    let (dir, name) = rest.split_first_chunk()?;
    let counts = matches!(Link::decode(value)?.0, Link::Counted | Link::Unconfirmed);
    let sound = (1..=NAME_MAX).contains(&name.len());
    sound.then_some((ObjectId(u64::from_be_bytes(*dir)), name, counts))
}

impl<'s> Links<'s> {
    pub fn link_state(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
    ) -> Result<Option<Link>> {
        let key = Key::link(id, name.0, name.1);
        match w.attached(id, &key)? {
            None => Ok(None),
            Some(bytes) => Link::decode(bytes)
                .map(|(link, _)| Some(link))
                .ok_or(Errno::IO),
        }
    }

    pub fn set_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
        link: Link,
    ) -> Result<()> {
        let owner = self.store.intents().own_identity()?;
        let key = Key::link(id, name.0, name.1);
        w.attach(id, &key, &link.encode(owner))
    }

    /// In a transaction that removes an entry on its object's node: removes the entry's link
    /// record, if there is one. Returns true if the object didn't count the name.
    pub(crate) fn end_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
    ) -> Result<bool> {
        if self.store.remote.is_none() {
            return Ok(false);
        }
        match self.link_state(w, id, name)? {
            None => return Ok(false),
            Some(Link::Coming) => return self.end_arrived(w, id, name).map(|ended| !ended),
            Some(_) => {}
        }
        w.detach(id, &Key::link(id, name.0, name.1))?;
        Ok(false)
    }

    /// In a transaction that removes a name to which a rename in progress has moved the object (the
    /// entry of this new name exists already): removes the link records of the new name and of the
    /// old one, which the rename replaces. Returns false if the old name didn't count any more.
    fn end_arrived(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<bool> {
        let key = Key::link(id, name.0, name.1);
        let coming = w.attached(id, &key)?.and_then(Link::decode);
        w.detach(id, &key)?;
        let Some((_, from)) = coming else {
            return Ok(false);
        };
        let mut old = None;
        let first = Key::link(id, ObjectId(0), b"");
        w.each_attached(id, &first, |key, value| match parse_key(key) {
            Some((b'L', of, rest)) if of == id => {
                if let Some((dir, name, true)) = link_in(rest, value)
                    && Slot::of_entry(dir, name).0 == from
                {
                    old = Some(Key::link(id, dir, name));
                }
                true
            }
            _ => false,
        })?;
        match old {
            Some(key) => {
                if let Some((dir, name, _)) = link_in(&key[9..], &Link::Counted.encode(0)) {
                    self.store
                        .index()
                        .names_in_index(w, id, Some((dir, name)), None)?;
                }
                w.detach(id, &key)
            }
            None => Ok(false),
        }
    }

    /// Whether the object counts a name of which it has a link record.
    pub(crate) fn counts_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
    ) -> Result<bool> {
        let link = self.link_state(w, id, name)?;
        Ok(matches!(link, Some(Link::Counted | Link::Unconfirmed)))
    }

    /// Records at the object the announcement that a rename will replace its name `from` by `name`.
    pub fn add_link_here(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        let t = now();
        self.store
            .transact(self.store.names().object_set(id), Need::Bytes(0), |w| {
                let coming = Link::Coming.encode(Slot::of_entry(from.0, from.1).0);
                let key = Key::link(id, name.0, name.1);
                match w.attached(id, &key)? {
                    None => w.attach(id, &key, &coming)?,
                    Some(there) if there == coming => {}
                    // The object has that name already, or another operation is adding or removing it.
                    Some(_) => return Err(Errno::ALREADY),
                }
                match self.link_state(w, id, from)? {
                    None => self.set_link(w, id, from, Link::Counted)?,
                    // The operation that gives the object the name `from` must end before the next one
                    // begins.
                    Some(Link::Coming | Link::Offered | Link::Exchanged) => {
                        return Err(Errno::ALREADY);
                    }
                    Some(_) => {}
                }
                // The inode must exist.
                if w.exists(id)? {
                    Ok(())
                } else {
                    Err(Errno::NOENT)
                }
            })?;
        self.store.names().set_live_ctime(id, t)
    }

    /// Records, for a link(2), that the object may get the name. EALREADY if the object has it, or
    /// is getting or losing it.
    pub fn offer_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.store.transact(
            self.store.names().object_set(id),
            Need::Bytes(0),
            |w| match self.link_state(w, id, name)? {
                Some(_) => Err(Errno::ALREADY),
                None => self.set_link(w, id, name, Link::Offered),
            },
        )
    }

    /// Counts the offered name, if the object still has another one. Counting the name makes the
    /// link(2) take effect.
    pub fn count_offered(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let nameless =
            self.store
                .transact(self.store.names().object_set(id), Need::Bytes(0), |w| {
                    if self.link_state(w, id, name)? != Some(Link::Offered) {
                        return Err(Errno::NOENT);
                    }
                    let (_, nameless) = self.store.names().count_link(w, id, t)?;
                    self.store.index().names_in_index(w, id, None, Some(name))?;
                    self.set_link(w, id, name, Link::Counted)?;
                    Ok(nameless)
                })?;
        if nameless {
            self.store.names().unmark_named(id)?;
        }
        self.store.names().set_live_ctime(id, t)
    }

    /// Removes the record of an offered name: the object doesn't get it.
    pub fn withdraw_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                if self.link_state(w, id, name)? == Some(Link::Offered) {
                    w.detach(id, &Key::link(id, name.0, name.1))?;
                }
                Ok(())
            })
    }

    /// As [`Links::withdraw_link`], if the process that offered the name has ended.
    pub fn withdraw_dead(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let key = Key::link(id, name.0, name.1);
        self.store.transact(
            self.store.names().object_set(id),
            Need::Removal,
            |w| match w.attached(id, &key)?.and_then(Link::decode) {
                Some((Link::Offered, owner)) if !identity_lives(&self.store.control, owner) => {
                    w.detach(id, &key).map(|_| ())
                }
                _ => Ok(()),
            },
        )
    }

    /// Whether the link of a held entry counts: Some(true) if it does, Some(false) if it never
    /// will, None if that isn't decided yet.
    pub fn offered_here(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        let key = Key::link(id, name.0, name.1);
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                let link = w.attached(id, &key)?.and_then(Link::decode);
                Ok(match link {
                    None => Some(false),
                    Some((Link::Offered, owner)) if identity_lives(&self.store.control, owner) => {
                        None
                    }
                    Some((Link::Offered, _)) => {
                        w.detach(id, &key)?;
                        Some(false)
                    }
                    Some(_) => Some(true),
                })
            })
    }

    /// Confirms a link whose entry was made.
    pub fn confirm_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                self.confirm(w, id, name)
            })
    }

    /// In a transaction: confirms a link whose entry was made, and adds the name to the index.
    pub fn confirm(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<()> {
        match self.link_state(w, id, name)? {
            // A directory has only one name, which is in its inode: a directory needs no link
            // record.
            Some(Link::Unconfirmed) if self.is_dir_here(w, id)? => {
                w.detach(id, &Key::link(id, name.0, name.1)).map(|_| ())
            }
            Some(Link::Unconfirmed) => {
                self.set_link(w, id, name, Link::Counted)?;
                self.store.index().names_in_index(w, id, None, Some(name))
            }
            _ => Ok(()),
        }
    }

    fn is_dir_here(&self, w: &mut Write<'_>, id: ObjectId) -> Result<bool> {
        Ok(w.inode(id)?.is_some_and(|(inode, _)| inode.is_dir()))
    }

    /// Withdraws the announced name from the object. `from` is the slot of the name that the
    /// announced name was to replace.
    pub fn undo_link_here(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        let key = Key::link(id, name.0, name.1);
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                if w.attached(id, &key)? == Some(&Link::Coming.encode(from)) {
                    w.detach(id, &key)?;
                }
                Ok(())
            })
    }

    /// Removes an unconfirmed name from the object: no entry was made for the name.
    pub fn lose_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let mut freed = Vec::new();
        let _section = self.store.section()?;
        let done = self
            .store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                // Another operation has confirmed the name, or has removed it and made it again.
                if self.link_state(w, id, name)? != Some(Link::Unconfirmed) {
                    return Ok(());
                }
                w.detach(id, &Key::link(id, name.0, name.1))?;
                self.store
                    .names()
                    .drop_link(w, id, name, t, &mut freed)
                    .map(|_| ())
            });
        self.store.names().undo_mark(done, id)?;
        self.store.free_extents(freed);
        self.store.names().set_live_ctime(id, t)
    }

    /// Records at the object that it has lost a name whose entry lay on another node: replaced by
    /// `new`, or removed. `again`: the same request may have been carried out before.
    pub fn lose_name_here(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        let t = now();
        let key = Key::link(id, name.0, name.1);
        let mut freed = Vec::new();
        let _section = self.store.section()?;
        let done = self
            .store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                let Some((mut inode, old)) = w.inode(id)? else {
                    return w.detach(id, &key).map(|_| ());
                };
                if inode.is_dir() {
                    let old = old.to_vec();
                    w.detach(id, &key)?;
                    let Some((dir, name)) = new else {
                        return self
                            .store
                            .names()
                            .drop_link(w, id, name, t, &mut freed)
                            .map(|_| ());
                    };
                    let was = (ObjectId(inode.parent), &old[..]);
                    self.store.index().names_in_index(w, id, Some(was), new)?;
                    inode.ctime = t;
                    inode.parent = dir.0;
                    inode.tail = tail::NAME;
                    return w.set_inode(id, &inode, name);
                }
                let Some(link) = self.link_state(w, id, name)? else {
                    return Ok(());
                };
                match link {
                    Link::Counted | Link::Unconfirmed => {}
                    // The name was removed before, and another operation is making it again.
                    Link::Offered | Link::Exchanged => return Ok(()),
                    Link::Coming if new.is_some() => return Ok(()),
                    Link::Coming if again => {
                        // If the name is the one that a rename in progress has just given the object,
                        // the end of that rename removes it from the count.
                        return w.detach(id, &key).map(|_| ());
                    }
                    Link::Coming => {
                        if self.end_arrived(w, id, name)? {
                            self.store.names().drop_link(w, id, name, t, &mut freed)?;
                        }
                        return Ok(());
                    }
                }
                w.detach(id, &key)?;
                if let Some(new) = new
                    && let Some(Link::Coming | Link::Exchanged) = self.link_state(w, id, new)?
                {
                    self.set_link(w, id, new, Link::Counted)?;
                    self.store
                        .index()
                        .names_in_index(w, id, Some(name), Some(new))?;
                    return w.change_inode(id, |i| i.ctime = t);
                }
                // There is no new name, or it was removed already.
                self.store
                    .names()
                    .drop_link(w, id, name, t, &mut freed)
                    .map(|_| ())
            });
        self.store.names().undo_mark(done, id)?;
        self.store.free_extents(freed);
        self.store.names().set_live_ctime(id, t)
    }

    /// Whether a rename of the object to the name is in progress.
    pub fn has_coming_here(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        let records = self.store.records_of(id)?;
        let bytes = records.attached(&Key::link(id, name.0, name.1))?;
        Ok(bytes.and_then(Link::decode).map(|l| l.0) == Some(Link::Coming))
    }
}

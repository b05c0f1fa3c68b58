//! Link records, at an object's home: of each name whose entry isn't beside the object, whether it
//! counts.
//!
//! Nothing here asks another node: what a step over several nodes begins with here is completed by
//! [`crate::cluster`], however the process ends that began it.

use super::*;
use crate::process::identity_lives;
use crate::views::Links;
use crate::{NAME_MAX, Slot};

/// State of a link record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The object has the name.
    Counted,
    /// It counts; whether the entry is there isn't known yet.
    Unconfirmed,
    /// A rename is under way to it: it doesn't count yet. Its owner is the slot of the old name,
    /// by which a rename knows its own.
    Coming,
    /// A link(2) is under way to it: it doesn't count yet.
    Offered,
    /// An exchange brings it: it doesn't count yet. Its owner is part of the exchange's number.
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

/// Of a link record: whether the name counts and nobody knows yet if its entry is there.
pub fn is_unconfirmed(value: &[u8]) -> bool {
    Link::decode(value).is_some_and(|(link, _)| link == Link::Unconfirmed)
}

/// From a link record: directory, name, whether it counts.
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
        match w.get(self.shard_of(id), &key)? {
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
        let owner = self.intents().own_identity()?;
        let key = Key::link(id, name.0, name.1);
        w.put(self.shard_of(id), &key, &link.encode(owner))
    }

    /// In a transaction that removes an entry beside its object: takes the entry's link record
    /// away, if there is one. True if the name doesn't count.
    pub(crate) fn end_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
    ) -> Result<bool> {
        if self.foreign.is_none() {
            return Ok(false);
        }
        match self.link_state(w, id, name)? {
            None => return Ok(false),
            Some(Link::Coming) => return self.end_arrived(w, id, name).map(|ended| !ended),
            Some(_) => {}
        }
        w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
        Ok(false)
    }

    /// In a transaction that takes a name away to which a rename is under way: its entry is there
    /// already, so the object has got the name in place of the old one, and now loses it. False if
    /// the old one doesn't count any more.
    fn end_arrived(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<bool> {
        let shard = self.shard_of(id);
        let key = Key::link(id, name.0, name.1);
        let coming = w.get(shard, &key)?.and_then(Link::decode);
        w.del(shard, &key)?;
        let Some((_, from)) = coming else {
            return Ok(false);
        };
        let mut old = None;
        let first = Key::link(id, ObjectId(0), b"");
        w.scan(shard, &first, |key, value| match parse_key(key) {
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
                    self.index()
                        .names_in_index(w, id, Some((dir, name)), None)?;
                }
                w.del(shard, &key)
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

    /// The object is to get a name whose entry is about to be made elsewhere, instead of `from`.
    pub fn add_link_here(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        let t = now();
        self.write(self.names().object_set(id), Need::Bytes(0), |w| {
            let coming = Link::Coming.encode(Slot::of_entry(from.0, from.1).0);
            let shard = self.shard_of(id);
            let key = Key::link(id, name.0, name.1);
            match w.get(shard, &key)? {
                None => w.put(shard, &key, &coming)?,
                Some(there) if there == coming => {}
                // It has that name, or is just getting or losing it in another way.
                Some(_) => return Err(Errno::ALREADY),
            }
            match self.link_state(w, id, from)? {
                None => self.set_link(w, id, from, Link::Counted)?,
                // What brings it has to end before the next one begins.
                Some(Link::Coming | Link::Offered | Link::Exchanged) => {
                    return Err(Errno::ALREADY);
                }
                Some(_) => {}
            }
            // It must be there.
            w.get(shard, &Key::inode(id))?
                .ok_or(Errno::NOENT)
                .map(|_| ())
        })?;
        self.names().set_live_ctime(id, t)
    }

    /// In a link: the object may get one name more. EALREADY if it is getting or losing that name.
    pub fn offer_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.names().object_set(id), Need::Bytes(0), |w| match self
            .link_state(w, id, name)?
        {
            Some(_) => Err(Errno::ALREADY),
            None => self.set_link(w, id, name, Link::Offered),
        })
    }

    /// It gets the name, if it has another one still. This is the moment when a link happens.
    pub fn count_offered(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let nameless = self.write(self.names().object_set(id), Need::Bytes(0), |w| {
            if self.link_state(w, id, name)? != Some(Link::Offered) {
                return Err(Errno::NOENT);
            }
            let (_, nameless) = self.names().count_link(w, id, t)?;
            self.index().names_in_index(w, id, None, Some(name))?;
            self.set_link(w, id, name, Link::Counted)?;
            Ok(nameless)
        })?;
        if nameless {
            self.names().unmark_named(id)?;
        }
        self.names().set_live_ctime(id, t)
    }

    /// It doesn't get it.
    pub fn withdraw_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.names().object_set(id), Need::Removal, |w| {
            if self.link_state(w, id, name)? == Some(Link::Offered) {
                w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
            }
            Ok(())
        })
    }

    /// As [`Store::withdraw_link`], if who offered it is gone.
    pub fn withdraw_dead(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let key = Key::link(id, name.0, name.1);
        self.write(self.names().object_set(id), Need::Removal, |w| {
            match w.get(self.shard_of(id), &key)?.and_then(Link::decode) {
                Some((Link::Offered, owner)) if !identity_lives(&self.control, owner) => {
                    w.del(self.shard_of(id), &key).map(|_| ())
                }
                _ => Ok(()),
            }
        })
    }

    /// What has become of a link whose entry is held elsewhere: Some(true) it counts, Some(false)
    /// it won't, None: that isn't known yet.
    pub fn offered_here(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        let key = Key::link(id, name.0, name.1);
        self.write(self.names().object_set(id), Need::Removal, |w| {
            let link = w.get(self.shard_of(id), &key)?.and_then(Link::decode);
            Ok(match link {
                None => Some(false),
                Some((Link::Offered, owner)) if identity_lives(&self.control, owner) => None,
                Some((Link::Offered, _)) => {
                    w.del(self.shard_of(id), &key)?;
                    Some(false)
                }
                Some(_) => Some(true),
            })
        })
    }

    /// The entry was made: the name needs no checking any more.
    pub fn confirm_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.names().object_set(id), Need::Removal, |w| {
            self.confirm(w, id, name)
        })
    }

    /// In a transaction: the name needs no checking any more; by it the object is in the index.
    pub fn confirm(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<()> {
        match self.link_state(w, id, name)? {
            // A directory has one name only, and knows it.
            Some(Link::Unconfirmed) if self.is_dir_here(w, id)? => w
                .del(self.shard_of(id), &Key::link(id, name.0, name.1))
                .map(|_| ()),
            Some(Link::Unconfirmed) => {
                self.set_link(w, id, name, Link::Counted)?;
                self.index().names_in_index(w, id, None, Some(name))
            }
            _ => Ok(()),
        }
    }

    fn is_dir_here(&self, w: &mut Write<'_>, id: ObjectId) -> Result<bool> {
        let record = w.get(self.shard_of(id), &Key::inode(id))?;
        Ok(record
            .and_then(Inode::decode)
            .is_some_and(|(inode, _)| inode.is_dir()))
    }

    /// The object doesn't get the name after all for which it was to lose that in slot `from`.
    pub fn undo_link_here(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        let (shard, key) = (self.shard_of(id), Key::link(id, name.0, name.1));
        self.write(self.names().object_set(id), Need::Removal, |w| {
            if w.get(shard, &key)? == Some(&Link::Coming.encode(from)) {
                w.del(shard, &key)?;
            }
            Ok(())
        })
    }

    /// The object hasn't got a name of which nobody knew yet whether its entry was made.
    pub fn lose_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.names().object_set(id), Need::Removal, |w| {
            // Known by now, it may have gone and come again, in another way.
            if self.link_state(w, id, name)? != Some(Link::Unconfirmed) {
                return Ok(());
            }
            w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
            self.names()
                .drop_link(w, id, name, t, &mut freed)
                .map(|_| ())
        });
        self.names().undo_mark(done, id)?;
        self.free_extents(freed);
        self.names().set_live_ctime(id, t)
    }

    /// The object has lost a name whose entry lay elsewhere: to `new`, or altogether. `again`: that
    /// may have been done before.
    pub fn lose_name_here(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        let t = now();
        let shard = self.shard_of(id);
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.names().object_set(id), Need::Removal, |w| {
            let Some(record) = w.get(shard, &Key::inode(id))? else {
                return w.del(shard, &Key::link(id, name.0, name.1)).map(|_| ());
            };
            let (mut inode, old) = Inode::decode(record).ok_or(Errno::IO)?;
            if inode.is_dir() {
                let old = old.to_vec();
                w.del(shard, &Key::link(id, name.0, name.1))?;
                let Some((dir, name)) = new else {
                    return self
                        .names()
                        .drop_link(w, id, name, t, &mut freed)
                        .map(|_| ());
                };
                let was = (ObjectId(inode.parent), &old[..]);
                self.index().names_in_index(w, id, Some(was), new)?;
                inode.ctime = t;
                inode.parent = dir.0;
                inode.tail = tail::NAME;
                return w.put(shard, &Key::inode(id), &inode.encode(name));
            }
            let Some(link) = self.link_state(w, id, name)? else {
                return Ok(());
            };
            match link {
                Link::Counted | Link::Unconfirmed => {}
                // What goes was there: it was done before, and the name is on its way back.
                Link::Offered | Link::Exchanged => return Ok(()),
                Link::Coming if new.is_some() => return Ok(()),
                Link::Coming if again => {
                    // Or is it this one that was there? When the rename that brought it ends, it
                    // counts the name out.
                    return w.del(shard, &Key::link(id, name.0, name.1)).map(|_| ());
                }
                Link::Coming => {
                    if self.end_arrived(w, id, name)? {
                        self.names().drop_link(w, id, name, t, &mut freed)?;
                    }
                    return Ok(());
                }
            }
            w.del(shard, &Key::link(id, name.0, name.1))?;
            if let Some(new) = new
                && let Some(Link::Coming | Link::Exchanged) = self.link_state(w, id, new)?
            {
                self.set_link(w, id, new, Link::Counted)?;
                self.index().names_in_index(w, id, Some(name), Some(new))?;
                return self.names().change_inode(w, id, |i| i.ctime = t);
            }
            // Without a new one, or it has been removed already.
            self.names()
                .drop_link(w, id, name, t, &mut freed)
                .map(|_| ())
        });
        self.names().undo_mark(done, id)?;
        self.free_extents(freed);
        self.names().set_live_ctime(id, t)
    }

    /// Whether a rename to the name is still on its way.
    pub fn has_coming_here(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        let snapshot = self.snapshot(self.shard_of(id))?;
        let bytes = snapshot.get(&Key::link(id, name.0, name.1))?;
        Ok(bytes.and_then(Link::decode).map(|l| l.0) == Some(Link::Coming))
    }
}

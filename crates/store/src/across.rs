//! Names whose entry and object lie on different nodes.
//!
//! Each node changes only its own records, each time in one transaction; what is then still to be
//! done elsewhere is noted in the same transaction, and done again from the note should the process
//! die ([`Store::settle_notes`]). Every step may be done twice.
//!
//! - An object keeps a *link record* for each name whose entry isn't beside it: so that taking a
//!   name away twice takes one. It is `Unconfirmed` while nobody knows yet whether the entry was
//!   made, and `Coming` while a rename is under way to it: then it doesn't count yet.
//! - An entry keeps a *note* while something that began with it isn't finished: its object is still
//!   to lose the name (`Drop`), or it is being renamed (`Move`). Of a moving entry, lookups wait for
//!   the end, so that nobody sees both names; changes find it busy.
//!
//! A rename, of `from` on node A to `to` on node B of an object on C, goes: A marks and notes; C notes
//! the new name as coming; B sets the entry, which is the moment when it happens, and what was there
//! loses its name; A removes the old entry; C lets the new name take the place of the old one; A
//! forgets. A death before B's step undoes the rename, behind it completes it. (`exchange.rs` has the
//! steps of an exchange.)

mod exchange;
mod notes;
mod rename;
mod together;

pub(crate) use exchange::is_on_paths;
use notes::Note;
pub(crate) use rename::without_change;
pub use together::NewFile;

use crate::elsewhere::messages::{Part, decode, encode, kind};
use crate::names::Opening;
use crate::process::{identity, identity_lives};
use crate::record::{Entry, Inode, Key, parse_key, tail};
use crate::shards::{Need, Write};
use crate::{Distribution, NAME_MAX, NewObject, NodeId, ObjectId, RenameMode, Slot, Store, now};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// How long one waits for a change of a name that others have begun.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// This thread serves another node, so it must not wait for third ones.
    static IN_A_HURRY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, which answers EAGAIN instead of waiting for others to finish with a name.
pub(crate) fn in_a_hurry<T>(f: impl FnOnce() -> T) -> T {
    let before = IN_A_HURRY.with(|h| h.replace(true));
    let result = f();
    IN_A_HURRY.with(|h| h.set(before));
    result
}

/// A name: its directory and itself.
pub(crate) type Named<'a> = (ObjectId, &'a [u8]);

/// State of a link record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
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
    fn encode(self, owner: u32) -> [u8; 5] {
        let mut bytes = [self as u8, 0, 0, 0, 0];
        bytes[1..].copy_from_slice(&owner.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(Link, u32)> {
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
pub(crate) fn is_unconfirmed(value: &[u8]) -> bool {
    Link::decode(value).is_some_and(|(link, _)| link == Link::Unconfirmed)
}

/// From a link record: directory, name, whether it counts.
pub(crate) fn link_in<'a>(rest: &'a [u8], value: &[u8]) -> Option<(ObjectId, &'a [u8], bool)> {
    let (dir, name) = rest.split_first_chunk()?;
    let counts = matches!(Link::decode(value)?.0, Link::Counted | Link::Unconfirmed);
    let sound = (1..=NAME_MAX).contains(&name.len());
    sound.then_some((ObjectId(u64::from_be_bytes(*dir)), name, counts))
}

/// Bytes of an entry that is being renamed: one more than otherwise.
fn moving(entry: Entry) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..9].copy_from_slice(&entry.encode());
    bytes
}

/// The entry in the bytes of one, and whether it is being renamed.
pub(crate) fn entry_in(bytes: &[u8]) -> Option<(Entry, bool)> {
    match bytes.len() {
        10 => Entry::decode(&bytes[..9]).map(|e| (e, true)),
        _ => Entry::decode(bytes).map(|e| (e, false)),
    }
}

/// What setting an entry that is there or not has come to ([`Store::replace`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placed {
    /// It is set.
    Done,
    /// It was another name of the same object: nothing is to be done.
    Same,
}

/// Waits longer each time, PATIENCE altogether.
pub(crate) struct Nap {
    until: Instant,
    next: Duration,
}

impl Nap {
    pub(crate) fn new() -> Nap {
        Nap {
            until: Instant::now() + PATIENCE,
            next: Duration::from_micros(20),
        }
    }

    /// # Errors
    /// EHOSTDOWN when patience is at its end.
    pub(crate) fn wait(&mut self) -> Result<()> {
        if Instant::now() >= self.until {
            return Err(Errno::HOSTDOWN);
        }
        // By the kernel itself: this runs inside programs, too.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: self.next.as_nanos() as _,
        });
        self.next = (self.next * 2).min(Duration::from_millis(2));
        Ok(())
    }
}

fn is_dir(entry: Entry) -> bool {
    entry.kind == libc::S_IFDIR
}

/// Whether nobody can tell if the question was carried out.
fn is_unclear(e: Errno) -> bool {
    matches!(
        e,
        Errno::HOSTDOWN | Errno::IO | Errno::TIMEDOUT | Errno::PROTO
    )
}

impl Store {
    fn own_identity(&self) -> Result<u32> {
        Ok(identity(&self.control, self.me()?))
    }

    /// ESTALE while nothing may be made in `dir`.
    pub(crate) fn check_frozen(&self, dir: ObjectId) -> Result<()> {
        match self.control.header().frozen.load(Acquire) == dir.0 {
            true => Err(Errno::STALE),
            false => Ok(()),
        }
    }

    // ---- link records: at the object's home ----

    fn link_state(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<Option<Link>> {
        let key = Key::link(id, name.0, name.1);
        match w.get(self.shard_of(id), &key)? {
            None => Ok(None),
            Some(bytes) => Link::decode(bytes)
                .map(|(link, _)| Some(link))
                .ok_or(Errno::IO),
        }
    }

    fn set_link(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>, link: Link) -> Result<()> {
        let owner = self.own_identity()?;
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
        if self.elsewhere.is_none() {
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
                    self.names_in_index(w, id, Some((dir, name)), None)?;
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
    pub(crate) fn add_link(&self, id: ObjectId, name: Named<'_>, from: Named<'_>) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            let question = (id, name.0, name.1, from.0, from.1);
            return self.ask(home, kind::ADD_LINK, &question);
        }
        let t = now();
        self.write(self.object_set(id), Need::Bytes(0), |w| {
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
        self.set_live_ctime(id, t)
    }

    /// In a link: the object may get one name more. EALREADY if it is getting or losing that name.
    fn offer_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.object_set(id), Need::Bytes(0), |w| {
            match self.link_state(w, id, name)? {
                Some(_) => Err(Errno::ALREADY),
                None => self.set_link(w, id, name, Link::Offered),
            }
        })
    }

    /// It gets the name, if it has another one still. This is the moment when a link happens.
    fn count_offered(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let nameless = self.write(self.object_set(id), Need::Bytes(0), |w| {
            if self.link_state(w, id, name)? != Some(Link::Offered) {
                return Err(Errno::NOENT);
            }
            let (_, nameless) = self.count_link(w, id, t)?;
            self.names_in_index(w, id, None, Some(name))?;
            self.set_link(w, id, name, Link::Counted)?;
            Ok(nameless)
        })?;
        if nameless {
            self.unmark_named(id)?;
        }
        self.set_live_ctime(id, t)
    }

    /// It doesn't get it.
    fn withdraw_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.object_set(id), Need::Removal, |w| {
            if self.link_state(w, id, name)? == Some(Link::Offered) {
                w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
            }
            Ok(())
        })
    }

    /// As [`Store::withdraw_link`], if who offered it is gone.
    fn withdraw_dead(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let key = Key::link(id, name.0, name.1);
        self.write(self.object_set(id), Need::Removal, |w| {
            match w.get(self.shard_of(id), &key)?.and_then(Link::decode) {
                Some((Link::Offered, owner)) if !identity_lives(&self.control, owner) => {
                    w.del(self.shard_of(id), &key).map(|_| ())
                }
                _ => Ok(()),
            }
        })
    }

    /// What has become of a link whose entry is held elsewhere: Some(true) it counts, Some(false) it
    /// won't, None: that isn't known yet.
    pub(crate) fn offered(&self, id: ObjectId, name: Named<'_>) -> Result<Option<bool>> {
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::OFFERED, &(id, name.0, name.1));
        }
        let key = Key::link(id, name.0, name.1);
        self.write(self.object_set(id), Need::Removal, |w| {
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
    fn confirm_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.object_set(id), Need::Removal, |w| {
            self.confirm(w, id, name)
        })
    }

    /// In a transaction: the name needs no checking any more; by it the object is in the index.
    fn confirm(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<()> {
        match self.link_state(w, id, name)? {
            // A directory has one name only, and knows it.
            Some(Link::Unconfirmed) if self.is_dir_here(w, id)? => w
                .del(self.shard_of(id), &Key::link(id, name.0, name.1))
                .map(|_| ()),
            Some(Link::Unconfirmed) => {
                self.set_link(w, id, name, Link::Counted)?;
                self.names_in_index(w, id, None, Some(name))
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
    pub(crate) fn undo_link(&self, id: ObjectId, name: Named<'_>, from: u32) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::UNDO_LINK, &(id, name.0, name.1, from));
        }
        let (shard, key) = (self.shard_of(id), Key::link(id, name.0, name.1));
        self.write(self.object_set(id), Need::Removal, |w| {
            if w.get(shard, &key)? == Some(&Link::Coming.encode(from)) {
                w.del(shard, &key)?;
            }
            Ok(())
        })
    }

    /// The object hasn't got a name of which nobody knew yet whether its entry was made.
    fn lose_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        let t = now();
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.object_set(id), Need::Removal, |w| {
            // Known by now, it may have gone and come again, in another way.
            if self.link_state(w, id, name)? != Some(Link::Unconfirmed) {
                return Ok(());
            }
            w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
            self.drop_link(w, id, name, t, &mut freed).map(|_| ())
        });
        self.undo_mark(done, id)?;
        self.free_extents(freed);
        self.set_live_ctime(id, t)
    }

    /// The object has lost a name whose entry lay elsewhere: to `new`, or altogether. `again`: that
    /// may have been done before.
    pub(crate) fn lose_name(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
        again: bool,
    ) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            let new = new.map(|n| (n.0, n.1.to_vec()));
            return self.ask(home, kind::DROP_LINK, &(id, name.0, name.1, new, again));
        }
        let t = now();
        let shard = self.shard_of(id);
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.object_set(id), Need::Removal, |w| {
            let Some(record) = w.get(shard, &Key::inode(id))? else {
                return w.del(shard, &Key::link(id, name.0, name.1)).map(|_| ());
            };
            let (mut inode, old) = Inode::decode(record).ok_or(Errno::IO)?;
            if inode.is_dir() {
                let old = old.to_vec();
                w.del(shard, &Key::link(id, name.0, name.1))?;
                let Some((dir, name)) = new else {
                    return self.drop_link(w, id, name, t, &mut freed).map(|_| ());
                };
                let was = (ObjectId(inode.parent), &old[..]);
                self.names_in_index(w, id, Some(was), new)?;
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
                        self.drop_link(w, id, name, t, &mut freed)?;
                    }
                    return Ok(());
                }
            }
            w.del(shard, &Key::link(id, name.0, name.1))?;
            if let Some(new) = new
                && let Some(Link::Coming | Link::Exchanged) = self.link_state(w, id, new)?
            {
                self.set_link(w, id, new, Link::Counted)?;
                self.names_in_index(w, id, Some(name), Some(new))?;
                return self.change_inode(w, id, |i| i.ctime = t);
            }
            // Without a new one, or it has been removed already.
            self.drop_link(w, id, name, t, &mut freed).map(|_| ())
        });
        self.undo_mark(done, id)?;
        self.free_extents(freed);
        self.set_live_ctime(id, t)
    }

    /// Whether a rename to the name is still on its way.
    pub(crate) fn has_coming(&self, id: ObjectId, name: Named<'_>) -> Result<bool> {
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::HAS_LINK, &(id, name.0, name.1));
        }
        let snapshot = self.snapshot(self.shard_of(id))?;
        let bytes = snapshot.get(&Key::link(id, name.0, name.1))?;
        Ok(bytes.and_then(Link::decode).map(|l| l.0) == Some(Link::Coming))
    }

    // ---- entries: at the entry's home ----

    /// Makes an entry for an object that lies elsewhere; what is there instead, if something is. One
    /// that is `held` is looked up by nobody until [`Store::release_entry`].
    pub(crate) fn insert(
        &self,
        name: Named<'_>,
        entry: Entry,
        held: bool,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        let t = now();
        let there = self.retry_noted(name, || {
            self.write(self.set(&[shard]), Need::Bytes(0), |w| {
                self.check_epoch(epoch)?;
                self.check_frozen(name.0)?;
                self.check_note(w, name)?;
                if let Some(bytes) = w.get(shard, &key)? {
                    return entry_in(bytes).map(|e| Some(e.0)).ok_or(Errno::IO);
                }
                if held {
                    w.put(shard, &key, &moving(entry))?;
                    self.put_note(w, name, &Note::Held(entry))?;
                } else {
                    w.put(shard, &key, &entry.encode())?;
                }
                Ok(None)
            })
        })?;
        if there.is_none() {
            self.touch_dir(name.0, t)?;
        }
        Ok(there)
    }

    /// A held entry stays, or goes.
    pub(crate) fn release_entry(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        if let Some(home) = self.entry_away(name.0, name.1) {
            return self.ask(home, kind::RELEASE, &(name.0, name.1, entry, stays));
        }
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((Note::Held(held), _)) if held == entry => {}
                // It is done already.
                _ => return Ok(()),
            }
            match stays {
                true => w.put(shard, &key, &entry.encode())?,
                false => _ = w.del(shard, &key)?,
            }
            w.del(shard, &Key::note(name.0, name.1)).map(|_| ())
        })
    }

    /// Removes an entry whose object lies elsewhere. False if it isn't `entry` any more.
    pub(crate) fn unlink_away(&self, name: Named<'_>, entry: Entry, epoch: u64) -> Result<bool> {
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        let t = now();
        let removed = self.retry_noted(name, || {
            self.write(self.set(&[shard]), Need::Removal, |w| {
                self.check_epoch(epoch)?;
                self.check_note(w, name)?;
                if w.get(shard, &key)? != Some(&entry.encode()) {
                    return Ok(false);
                }
                // Until its object has lost the name, too, whoever looks it up waits.
                w.put(shard, &key, &moving(entry))?;
                self.put_note(w, name, &Note::Drop(entry))?;
                Ok(true)
            })
        })?;
        if removed {
            self.finish_drop(name, entry)?;
            self.touch_dir(name.0, t)?;
        }
        Ok(removed)
    }

    /// Removes the entry of a directory that is empty and frozen, and the directory.
    pub(crate) fn remove_dir_entry(&self, name: Named<'_>) -> Result<()> {
        let entry = self.entry_here(name)?.ok_or(Errno::NOENT)?;
        if !is_dir(entry) {
            return Err(Errno::NOTDIR);
        }
        while !self.unlink_away(name, entry, self.names_epoch())? {
            if self.entry_here(name)? != Some(entry) {
                return Err(Errno::NOENT);
            }
        }
        self.add_dir_links(name.0, -1)
    }

    /// Tells the object of an entry that is to go, or has been replaced, and ends the note. If its
    /// home can't be reached, it is told later.
    fn finish_drop(&self, name: Named<'_>, entry: Entry) -> Result<()> {
        match self.lose_name(entry.id, name, None, false) {
            Ok(()) | Err(Errno::NOENT) => self.end_drop(name, entry, true),
            Err(e) if is_unclear(e) => {
                self.end_drop(name, entry, false)?;
                self.disown_note(name)
            }
            Err(e) => Err(e),
        }
    }

    /// Lets everybody see what has become of an entry whose object has lost the name `dropped`.
    fn end_drop(&self, name: Named<'_>, dropped: Entry, forget: bool) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            match w.get(shard, &key)?.and_then(entry_in) {
                Some((there, true)) if there == dropped => _ = w.del(shard, &key)?,
                Some((there, true)) => w.put(shard, &key, &there.encode())?,
                _ => {}
            }
            if forget {
                w.del(shard, &Key::note(name.0, name.1))?;
            }
            Ok(())
        })
    }

    // ---- whole operations ----

    /// A slot of this node for something new; for a directory that keeps its entries, one whose
    /// neighbours are this node's, too.
    fn slot_for(&self, hash: u64, keeps: bool) -> Result<Option<Slot>> {
        let nodes = self.other_nodes()?;
        let mut slot = nodes.slot_here(hash);
        for n in 1..if keeps { 20 } else { 1 } {
            let mine = |s: Slot| nodes.node_of(s) == nodes.me();
            if slot.is_none_or(|s| s.group_is(mine)) {
                break;
            }
            slot = nodes.slot_here(hash.wrapping_add(n * 0x9e37_79b9));
        }
        Ok(slot)
    }

    /// Makes a file on this node whose entry lies on `home`, or a directory that keeps its entries.
    pub(crate) fn create_here(
        &self,
        home: NodeId,
        name: Named<'_>,
        new: &NewObject<'_>,
        epoch: u64,
        opened: &mut Option<Opening<'_, '_>>,
    ) -> Result<Option<std::result::Result<ObjectId, Entry>>> {
        let hash = u64::from(Slot::of_entry(name.0, name.1).0);
        let keeps = new.distribution == Some(Distribution::LocalAll);
        let Some(slot) = self.slot_for(hash, keeps)? else {
            return Ok(None);
        };
        let shard = slot.shard(self.shard_count());
        let t = now();
        let kind = new.mode & crate::S_IFMT;
        let is_dir = kind == libc::S_IFDIR;
        let id = self.write(self.set(&[shard]), Need::Bytes(0), |w| {
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let id = id.with(new.distribution.unwrap_or_default());
            let inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: if is_dir { 2 } else { 1 },
                parent: if is_dir { name.0.0 } else { 0 },
                tail: if is_dir { tail::NAME } else { tail::NONE },
                controls: new.controls,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            let tail = if is_dir { name.1 } else { &[] };
            w.put(shard, &Key::inode(id), &inode.encode(tail))?;
            self.note_maker(w, id, new, Some(name))?;
            self.set_link(w, id, name, Link::Unconfirmed)?;
            self.open_new(opened, id, &inode)?;
            Ok(id)
        })?;
        let there = self.insert_at(home, (id, name), kind, epoch)?;
        if is_dir && there.is_none() {
            self.add_dir_links(name.0, 1)?;
        }
        Ok(Some(there.map_or(Ok(id), Err)))
    }

    /// Has `home` make the entry of a new object of this node, whose name isn't confirmed. If something else is there, that, and the
    /// object is gone.
    fn insert_at(
        &self,
        home: NodeId,
        (id, name): (ObjectId, Named<'_>),
        kind: u32,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        let question = (name.0, name.1, Entry { id, kind }, false, epoch);
        match self.ask::<Option<Entry>>(home, kind::INSERT, &question) {
            Ok(None) => self.confirm_link(id, name).map(|()| None),
            Ok(Some(there)) => self.lose_link(id, name).map(|()| Some(there)),
            Err(e) => {
                match is_unclear(e) {
                    true => self.disown_link(id, name)?,
                    false => self.lose_link(id, name)?,
                }
                Err(e)
            }
        }
    }

    /// Gives an object of this node a name whose entry lies on `home`.
    pub(crate) fn link_across(
        &self,
        home: NodeId,
        id: ObjectId,
        name: Named<'_>,
        epoch: u64,
    ) -> Result<()> {
        let kind = self.stat(id)?.kind();
        let mut nap = Nap::new();
        while let Err(e) = self.offer_link(id, name) {
            // It may have that name by now, or lose it.
            if e != Errno::ALREADY {
                return Err(e);
            }
            if self.lookup(name.0, name.1)?.is_some() {
                return Err(Errno::EXIST);
            }
            nap.wait()?;
        }
        let entry = Entry { id, kind };
        let question = (name.0, name.1, entry, true, epoch);
        match self.ask::<Option<Entry>>(home, kind::INSERT, &question) {
            Ok(None) => {
                let counted = self.count_offered(id, name);
                if counted.is_err() {
                    self.withdraw_link(id, name)?;
                }
                match self.release_entry(name, entry, counted.is_ok()) {
                    Ok(()) => counted,
                    // Its home finds out by asking.
                    Err(e) if is_unclear(e) => counted,
                    Err(e) => Err(e),
                }
            }
            Ok(Some(_)) => {
                self.withdraw_link(id, name)?;
                Err(Errno::EXIST)
            }
            Err(e) => {
                self.withdraw_link(id, name)?;
                Err(e)
            }
        }
    }

    /// The entry as it lies here, moving or not.
    fn entry_here(&self, name: Named<'_>) -> Result<Option<Entry>> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::entry(name.0, name.1))? {
            Some(bytes) => entry_in(bytes).map(|e| Some(e.0)).ok_or(Errno::IO),
            None => Ok(None),
        }
    }

    /// Changes how many directories lie in `dir`, if it is still there: what was made in it may have
    /// gone already, and it, too.
    pub(crate) fn add_dir_links(&self, dir: ObjectId, difference: i64) -> Result<()> {
        let changed = match self.object_away(dir) {
            Some(home) => self.ask(home, kind::DIR_LINKS, &(dir, difference)),
            None => self.write(self.object_set(dir), Need::Removal, |w| {
                self.change_inode(w, dir, |i| {
                    // One that was removed at once may be counted out before it is counted in.
                    i.nlink = i.nlink.wrapping_add_signed(difference as i32);
                })
            }),
        };
        match changed {
            Err(Errno::NOENT) => Ok(()),
            changed => changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::exchange::{Exchange, Phase};
    use super::*;

    #[test]
    fn notes_and_links_are_read_back() {
        let entry = Entry {
            id: ObjectId(77),
            kind: libc::S_IFREG,
        };
        let exchange = Exchange {
            number: 1 << 40,
            source: entry,
            with: (ObjectId::ROOT, b"y".to_vec()),
            target: Some(entry),
            phase: Phase::Counted,
        };
        let notes = [
            Note::Exchange(exchange),
            Note::Joined {
                there: entry,
                comes: entry,
                led: (ObjectId::ROOT, b"z".to_vec(), 3),
            },
            Note::Drop(entry),
            Note::Held(entry),
            Note::Move {
                source: entry,
                to: (ObjectId::ROOT, b"x".to_vec()),
                announced: true,
                placed: false,
            },
        ];
        for note in notes {
            let bytes = note.encode(5);
            assert_eq!(Note::decode(&bytes), Some((note, 5)));
            assert_eq!(Note::decode(&bytes[1..]), None);
        }
        for link in [
            Link::Counted,
            Link::Unconfirmed,
            Link::Coming,
            Link::Offered,
            Link::Exchanged,
        ] {
            assert_eq!(Link::decode(&link.encode(9)), Some((link, 9)));
        }
        assert_eq!(entry_in(&moving(entry)), Some((entry, true)));
        assert_eq!(entry_in(&entry.encode()), Some((entry, false)));
    }
}

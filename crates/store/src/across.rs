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
//! forgets. A death before B's step undoes the rename, behind it completes it.

use crate::elsewhere::messages::{Part, decode, encode, kind};
use crate::process::{identity, identity_lives};
use crate::record::{Entry, Inode, Key, parse_key, tail};
use crate::shards::{Need, Write};
use crate::{NAME_MAX, NewObject, NodeId, ObjectId, RenameMode, Slot, Store, now};
use rustix::io::{Errno, Result};
use std::cell::Cell;
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
    /// A rename is under way to it: it doesn't count yet.
    Coming,
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
            _ => return None,
        };
        Some((state, u32::from_le_bytes(owner.try_into().ok()?)))
    }
}

/// What is still to be done for an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Note {
    /// Its object has to be told that it has lost the name.
    Drop(Entry),
    /// It is being renamed.
    Move {
        source: Entry,
        to: (ObjectId, Vec<u8>),
        /// Whether the new name's link record has been made.
        announced: bool,
        /// Whether the new entry is there.
        placed: bool,
    },
}

impl Note {
    fn encode(&self, owner: u32) -> Vec<u8> {
        match self {
            Note::Drop(entry) => encode(&(0u8, owner, *entry)),
            Note::Move {
                source,
                to,
                announced,
                placed,
            } => encode(&(1u8, owner, *source, to.0, to.1.clone(), *announced, *placed)),
        }
    }

    fn decode(mut bytes: &[u8]) -> Option<(Note, u32)> {
        let (what, owner) = <(u8, u32)>::take(&mut bytes)?;
        let note = match what {
            0 => Note::Drop(decode(bytes)?),
            1 => {
                let (source, dir, name, announced, placed) = decode(bytes)?;
                Note::Move {
                    source,
                    to: (dir, name),
                    announced,
                    placed,
                }
            }
            _ => return None,
        };
        Some((note, owner))
    }
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
        use std::sync::atomic::Ordering::Acquire;
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
    /// away, if there is one. True if the name didn't count yet.
    pub(crate) fn end_link(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        name: Named<'_>,
    ) -> Result<bool> {
        if self.elsewhere.is_none() {
            return Ok(false);
        }
        let link = self.link_state(w, id, name)?;
        if link.is_some() {
            w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
        }
        Ok(link == Some(Link::Coming))
    }

    /// The object gets a name whose entry is about to be made elsewhere; instead of `from`, if it
    /// is a rename.
    pub(crate) fn add_link(
        &self,
        id: ObjectId,
        name: Named<'_>,
        from: Option<Named<'_>>,
    ) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            let from = from.map(|f| (f.0, f.1.to_vec()));
            return self.ask(home, kind::ADD_LINK, &(id, name.0, name.1, from));
        }
        let t = now();
        self.write(self.object_set(id), Need::Bytes(0), |w| {
            let there = self.link_state(w, id, name)?;
            match from {
                Some(from) => {
                    if self.link_state(w, id, from)?.is_none() {
                        self.set_link(w, id, from, Link::Counted)?;
                    }
                    if there.is_none() {
                        self.set_link(w, id, name, Link::Coming)?;
                    }
                    // It must be there.
                    let shard = self.shard_of(id);
                    w.get(shard, &Key::inode(id))?
                        .ok_or(Errno::NOENT)
                        .map(|_| ())
                }
                None if there.is_some() => Ok(()),
                None => {
                    self.count_link(w, id, t)?;
                    self.set_link(w, id, name, Link::Unconfirmed)
                }
            }
        })?;
        self.set_live_ctime(id, t)
    }

    /// The entry was made: the name needs no checking any more.
    fn confirm_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.write(self.object_set(id), Need::Removal, |w| {
            match self.link_state(w, id, name)? {
                Some(Link::Unconfirmed) => self.set_link(w, id, name, Link::Counted),
                _ => Ok(()),
            }
        })
    }

    /// The object hasn't got the name after all.
    pub(crate) fn undo_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            return self.ask(home, kind::UNDO_LINK, &(id, name.0, name.1));
        }
        self.lose_link(id, name, |link| link == Link::Coming)
    }

    /// Takes a link record away, and the name if it `counts` not otherwise.
    fn lose_link(
        &self,
        id: ObjectId,
        name: Named<'_>,
        uncounted: impl Fn(Link) -> bool,
    ) -> Result<()> {
        let t = now();
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.object_set(id), Need::Removal, |w| {
            let Some(link) = self.link_state(w, id, name)? else {
                return Ok(());
            };
            w.del(self.shard_of(id), &Key::link(id, name.0, name.1))?;
            if uncounted(link) {
                return Ok(());
            }
            self.drop_link(w, id, t, &mut freed).map(|_| ())
        });
        self.undo_mark(done, id)?;
        self.free_extents(freed);
        self.set_live_ctime(id, t)
    }

    /// The object has lost a name whose entry lay elsewhere: to `new`, or altogether.
    pub(crate) fn lose_name(
        &self,
        id: ObjectId,
        name: Named<'_>,
        new: Option<Named<'_>>,
    ) -> Result<()> {
        if let Some(home) = self.object_away(id) {
            let new = new.map(|n| (n.0, n.1.to_vec()));
            return self.ask(home, kind::DROP_LINK, &(id, name.0, name.1, new));
        }
        let t = now();
        let shard = self.shard_of(id);
        let mut freed = Vec::new();
        let _section = self.section()?;
        let done = self.write(self.object_set(id), Need::Removal, |w| {
            let Some(record) = w.get(shard, &Key::inode(id))? else {
                return Ok(());
            };
            let (mut inode, _) = Inode::decode(record).ok_or(Errno::IO)?;
            if inode.is_dir() {
                let Some((dir, name)) = new else {
                    return self.drop_link(w, id, t, &mut freed).map(|_| ());
                };
                inode.ctime = t;
                inode.parent = dir.0;
                inode.tail = tail::NAME;
                return w.put(shard, &Key::inode(id), &inode.encode(name));
            }
            if self.link_state(w, id, name)?.is_none() {
                return Ok(());
            }
            w.del(shard, &Key::link(id, name.0, name.1))?;
            if let Some(new) = new
                && self.link_state(w, id, new)? == Some(Link::Coming)
            {
                self.set_link(w, id, new, Link::Counted)?;
                return self.change_inode(w, id, |i| i.ctime = t);
            }
            // Without a new one, or it has been removed already.
            self.drop_link(w, id, t, &mut freed).map(|_| ())
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

    /// In a transaction: the note on an entry, if there is one.
    fn note_on(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<Option<(Note, u32)>> {
        let shard = self.shard_of_entry(name.0, name.1);
        match w.get(shard, &Key::note(name.0, name.1))? {
            None => Ok(None),
            Some(bytes) => Note::decode(bytes).map(Some).ok_or(Errno::IO),
        }
    }

    /// In a transaction that changes an entry: EAGAIN if something has begun with it that isn't
    /// finished; see [`Store::retry_noted`].
    pub(crate) fn check_note(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<()> {
        if self.elsewhere.is_none() || self.note_on(w, name)?.is_none() {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// Does `f` again as long as it finds a note on `name`, which is completed or waited for.
    pub(crate) fn retry_noted<T>(
        &self,
        name: Named<'_>,
        mut f: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut nap = Nap::new();
        loop {
            match f() {
                Err(Errno::AGAIN) => self.wait_for_note(name, &mut nap)?,
                result => return result,
            }
        }
    }

    /// Completes the note on `name`, or waits a moment for whoever is at it. What serves another
    /// node doesn't wait: EAGAIN, and who has asked waits and asks again. So no node's threads are
    /// all busy with waiting for those of another.
    fn wait_for_note(&self, name: Named<'_>, nap: &mut Nap) -> Result<()> {
        match self.settle_note(name)? {
            true => Ok(()),
            false if IN_A_HURRY.with(Cell::get) => Err(Errno::AGAIN),
            false => nap.wait(),
        }
    }

    /// EAGAIN while there is a note on the entry.
    pub(crate) fn note_gone(&self, name: Named<'_>) -> Result<()> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::note(name.0, name.1))? {
            Some(_) => Err(Errno::AGAIN),
            None => Ok(()),
        }
    }

    /// Waits until an entry is no longer being renamed.
    pub(crate) fn wait_for_move(&self, name: Named<'_>, nap: &mut Nap) -> Result<()> {
        self.wait_for_note(name, nap)
    }

    /// Sets the note on an entry, whose home this is.
    fn put_note(&self, w: &mut Write<'_>, name: Named<'_>, note: &Note) -> Result<()> {
        let owner = self.own_identity()?;
        let shard = self.shard_of_entry(name.0, name.1);
        w.put(shard, &Key::note(name.0, name.1), &note.encode(owner))
    }

    fn forget_note(&self, name: Named<'_>) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            w.del(shard, &Key::note(name.0, name.1)).map(|_| ())
        })
    }

    /// Makes an entry for an object that lies elsewhere; what is there instead, if something is.
    pub(crate) fn insert(
        &self,
        name: Named<'_>,
        entry: Entry,
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
                match w.insert(shard, &key, &entry.encode())? {
                    None => Ok(None),
                    Some(bytes) => entry_in(bytes).map(|e| Some(e.0)).ok_or(Errno::IO),
                }
            })
        })?;
        if there.is_none() {
            self.touch_dir(name.0, t)?;
        }
        Ok(there)
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
                w.del(shard, &key)?;
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

    /// Tells the object of a removed entry, and forgets the note. If its home can't be reached, it
    /// is told later.
    fn finish_drop(&self, name: Named<'_>, entry: Entry) -> Result<()> {
        match self.lose_name(entry.id, name, None) {
            Ok(()) | Err(Errno::NOENT) => self.forget_note(name),
            Err(e) if is_unclear(e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    // ---- whole operations ----

    /// Renames in a pool of several nodes.
    pub(crate) fn rename_among(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        let source = self.lookup(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let target = self.lookup(to.0, to.1)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(t)) if t.id == source.id => {
                // Unless somebody has just renamed it so.
                return match self.lookup(from.0, from.1)? {
                    Some(still) if still == source => Ok(()),
                    _ => self.rename_among(from, to, mode, epoch),
                };
            }
            _ => {}
        }
        let question = (from.0, from.1, to.0, to.1, mode, epoch);
        let paths = |e: Entry| e.kind == libc::S_IFDIR || e.kind == libc::S_IFLNK;
        if paths(source) || target.is_some_and(paths) {
            let node = self.names_node().ok_or(Errno::NODEV)?;
            return self.ask(node, kind::NAMES_RENAME, &question);
        }
        match self.entry_away(from.0, from.1) {
            Some(home) => self.ask(home, kind::RENAME, &question),
            None => self.rename_from_here(from, to, mode, epoch),
        }
    }

    /// Renames what isn't a directory, or while nothing else changes directories; the old entry
    /// lies here.
    pub(crate) fn rename_from_here(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        let source = self.entry_here(from)?.ok_or(Errno::NOENT)?;
        if self.entry_away(to.0, to.1).is_none()
            && self.object_away(source.id).is_none()
            && !is_dir(source)
        {
            match self.retry_noted(from, || self.rename_here(from, to, mode, epoch)) {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        }
        self.rename_across(from, to, mode, epoch)
    }

    /// In a rename within this store: EREMOTE if something that takes part lies elsewhere, or has
    /// a name there.
    pub(crate) fn check_alone(
        &self,
        w: &mut Write<'_>,
        (from, source): (Named<'_>, Entry),
        (to, target): (Named<'_>, Option<Entry>),
    ) -> Result<()> {
        if self.elsewhere.is_none() {
            return Ok(());
        }
        self.check_frozen(to.0)?;
        self.check_note(w, from)?;
        if self.note_on(w, to)?.is_some() {
            return Err(Errno::REMOTE);
        }
        for (name, entry) in [(from, Some(source)), (to, target)] {
            let Some(entry) = entry else { continue };
            if is_dir(entry)
                || self.object_away(entry.id).is_some()
                || self.link_state(w, entry.id, name)?.is_some()
            {
                return Err(Errno::REMOTE);
            }
        }
        Ok(())
    }

    /// Makes a file on this node whose entry lies on `home`.
    pub(crate) fn create_here(
        &self,
        home: NodeId,
        name: Named<'_>,
        new: &NewObject<'_>,
        epoch: u64,
    ) -> Result<Option<std::result::Result<ObjectId, Entry>>> {
        let hash = u64::from(Slot::of_entry(name.0, name.1).0);
        let Some(slot) = self.other_nodes()?.slot_here(hash) else {
            return Ok(None);
        };
        let shard = slot.shard(self.shard_count());
        let t = now();
        let kind = new.mode & crate::S_IFMT;
        let id = self.write(self.set(&[shard]), Need::Bytes(0), |w| {
            let id = ObjectId::new(self.next_seq(shard)?, slot);
            let inode = Inode {
                mode: new.mode,
                uid: new.uid,
                gid: new.gid,
                nlink: 1,
                mtime: t,
                ctime: t,
                atime: t,
                btime: t,
                ..Inode::default()
            };
            w.put(shard, &Key::inode(id), &inode.encode(&[]))?;
            self.set_link(w, id, name, Link::Unconfirmed)?;
            Ok(id)
        })?;
        let question = (name.0, name.1, Entry { id, kind }, epoch);
        match self.ask::<Option<Entry>>(home, kind::INSERT, &question) {
            Ok(None) => {
                self.confirm_link(id, name)?;
                Ok(Some(Ok(id)))
            }
            Ok(Some(there)) => {
                self.lose_link(id, name, |_| false)?;
                Ok(Some(Err(there)))
            }
            Err(e) => {
                if !is_unclear(e) {
                    self.lose_link(id, name, |_| false)?;
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
        self.add_link(id, name, None)?;
        let question = (name.0, name.1, Entry { id, kind }, epoch);
        match self.ask::<Option<Entry>>(home, kind::INSERT, &question) {
            Ok(None) => self.confirm_link(id, name),
            Ok(Some(_)) => {
                self.lose_link(id, name, |_| false)?;
                Err(Errno::EXIST)
            }
            Err(e) => {
                if !is_unclear(e) {
                    self.lose_link(id, name, |_| false)?;
                }
                Err(e)
            }
        }
    }

    /// Renames, where not all that takes part lies in one store. This is the home of `from`.
    /// Directories: only while nothing else changes any, and the target, if it is one, is empty.
    pub(crate) fn rename_across(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        if mode == RenameMode::Exchange {
            return Err(Errno::INVAL);
        }
        let mut nap = Nap::new();
        loop {
            match self.try_rename(from, to, mode, epoch) {
                // Two renames in each other's way: one of them has to step back.
                Err(Errno::DEADLK) => nap.wait()?,
                result => return result,
            }
        }
    }

    fn try_rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        let shard = self.shard_of_entry(from.0, from.1);
        let key = Key::entry(from.0, from.1);
        let t = now();
        let mut note = None;
        let source = self.retry_noted(from, || {
            self.write(self.set(&[shard]), Need::Bytes(0), |w| {
                self.check_epoch(epoch)?;
                self.check_note(w, from)?;
                let bytes = w.get(shard, &key)?.ok_or(Errno::NOENT)?;
                let (source, _) = entry_in(bytes).ok_or(Errno::IO)?;
                w.put(shard, &key, &moving(source))?;
                let planned = Note::Move {
                    source,
                    to: (to.0, to.1.to_vec()),
                    announced: false,
                    placed: false,
                };
                self.put_note(w, from, &planned)?;
                note = Some(planned);
                Ok(source)
            })
        })?;
        let set_note = |announced: bool, placed: bool| {
            let note = Note::Move {
                source,
                to: (to.0, to.1.to_vec()),
                announced,
                placed,
            };
            self.write(self.set(&[shard]), Need::Removal, |w| {
                self.put_note(w, from, &note)
            })
        };
        let announced = (|| {
            if !is_dir(source) {
                self.add_link(source.id, to, Some(from))?;
            }
            set_note(true, false)
        })();
        let placed = announced.and_then(|()| self.replace(to, source, mode));
        match placed {
            Ok(Placed::Done) => {
                set_note(true, true)?;
                self.complete_move(from, source, to)?;
                self.touch_dir(from.0, t)?;
                if is_dir(source) && from.0 != to.0 {
                    self.add_dir_links(from.0, -1)?;
                    self.add_dir_links(to.0, 1)?;
                }
                Ok(())
            }
            Ok(Placed::Same) => self.undo_move(from, source, to),
            Err(e) if is_unclear(e) => {
                // Found out later, from the note. Not by us any more.
                let _ = self.disown_note(from);
                Err(e)
            }
            Err(e) => {
                self.undo_move(from, source, to)?;
                Err(e)
            }
        }
    }

    /// Lets others take care of a note.
    fn disown_note(&self, name: Named<'_>) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((note, _)) => {
                    let key = Key::note(name.0, name.1);
                    w.put(shard, &key, &note.encode(0))
                }
                None => Ok(()),
            }
        })
    }

    /// The new entry is there: the old one goes.
    fn complete_move(&self, from: Named<'_>, source: Entry, to: Named<'_>) -> Result<()> {
        let shard = self.shard_of_entry(from.0, from.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            w.del(shard, &Key::entry(from.0, from.1)).map(|_| ())
        })?;
        match self.lose_name(source.id, from, Some(to)) {
            Ok(()) | Err(Errno::NOENT) => self.forget_note(from),
            Err(e) if is_unclear(e) => self.disown_note(from),
            Err(e) => Err(e),
        }
    }

    /// The new entry isn't there, and won't be: the old one stays.
    fn undo_move(&self, from: Named<'_>, source: Entry, to: Named<'_>) -> Result<()> {
        if !is_dir(source) {
            match self.undo_link(source.id, to) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => {
                    let _ = self.disown_note(from);
                    return Err(e);
                }
            }
        }
        let shard = self.shard_of_entry(from.0, from.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            let key = Key::entry(from.0, from.1);
            if w.get(shard, &key)?.is_some() {
                w.put(shard, &key, &source.encode())?;
            }
            w.del(shard, &Key::note(from.0, from.1)).map(|_| ())
        })
    }

    /// Sets the entry `to` to `source`, as the last step of a rename; what was there loses its
    /// name.
    pub(crate) fn replace(&self, to: Named<'_>, source: Entry, mode: RenameMode) -> Result<Placed> {
        if let Some(home) = self.entry_away(to.0, to.1) {
            let question = (to.0, to.1, source, mode);
            let same: bool = self.ask(home, kind::REPLACE, &question)?;
            return Ok(if same { Placed::Same } else { Placed::Done });
        }
        let shard = self.shard_of_entry(to.0, to.1);
        let key = Key::entry(to.0, to.1);
        let t = now();
        let placed = self.retry_noted(to, || {
            let seen = self.entry_here(to)?;
            let beside = seen.filter(|e| self.object_away(e.id).is_none() && !is_dir(*e));
            let set = self.set(&[shard]);
            let set = beside.map_or(set, |e| set.with(self.shard_of(e.id)));
            self.write(set, Need::Bytes(0), |w| {
                self.check_frozen(to.0)?;
                match self.note_on(w, to)? {
                    // It would wait for us just as we for it.
                    Some((Note::Move { .. }, owner))
                        if owner == 0 || identity_lives(&self.control, owner) =>
                    {
                        return Err(Errno::DEADLK);
                    }
                    Some(_) => return Err(Errno::AGAIN),
                    None => {}
                }
                let there = match w.get(shard, &key)? {
                    Some(bytes) => Some(entry_in(bytes).ok_or(Errno::IO)?.0),
                    None => None,
                };
                if there != seen {
                    return Err(Errno::AGAIN);
                }
                match there {
                    Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EXIST),
                    Some(t) if t.id == source.id => return Ok((Placed::Same, None)),
                    Some(t) => match (is_dir(source), is_dir(t)) {
                        (true, false) => return Err(Errno::NOTDIR),
                        (false, true) => return Err(Errno::ISDIR),
                        _ => {}
                    },
                    None => {}
                }
                w.put(shard, &key, &source.encode())?;
                if let Some(target) = there {
                    self.put_note(w, to, &Note::Drop(target))?;
                }
                if let Some(target) = beside
                    && self.link_state(w, target.id, to)?.is_none()
                {
                    // By which it can be told twice that it has lost the name.
                    self.set_link(w, target.id, to, Link::Counted)?;
                }
                Ok((Placed::Done, there))
            })
        })?;
        if let (Placed::Done, there) = placed {
            if let Some(target) = there {
                self.finish_drop(to, target)?;
                if is_dir(target) {
                    self.add_dir_links(to.0, -1)?;
                }
            }
            self.touch_dir(to.0, t)?;
        }
        Ok(placed.0)
    }

    /// The entry as it lies here, moving or not.
    fn entry_here(&self, name: Named<'_>) -> Result<Option<Entry>> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::entry(name.0, name.1))? {
            Some(bytes) => entry_in(bytes).map(|e| Some(e.0)).ok_or(Errno::IO),
            None => Ok(None),
        }
    }

    /// Changes how many directories lie in `dir`.
    pub(crate) fn add_dir_links(&self, dir: ObjectId, difference: i64) -> Result<()> {
        if let Some(home) = self.object_away(dir) {
            return self.ask(home, kind::DIR_LINKS, &(dir, difference));
        }
        self.write(self.object_set(dir), Need::Removal, |w| {
            self.change_inode(w, dir, |i| {
                i.nlink = i.nlink.saturating_add_signed(difference as i32).max(2);
            })
        })
    }

    // ---- after deaths ----

    /// Completes the note on an entry, if whoever began is gone. False: it is still at it.
    fn settle_note(&self, name: Named<'_>) -> Result<bool> {
        let shard = self.shard_of_entry(name.0, name.1);
        // Taken over in the transaction that sees that the owner is gone: by one alone.
        let note = self.write(self.set(&[shard]), Need::Removal, |w| {
            let Some((note, owner)) = self.note_on(w, name)? else {
                return Ok(None);
            };
            if owner != 0 && identity_lives(&self.control, owner) {
                return Ok(Some(None));
            }
            self.put_note(w, name, &note)?;
            Ok(Some(Some(note)))
        })?;
        let note = match note {
            None => return Ok(true),
            Some(None) => return Ok(false),
            Some(Some(note)) => note,
        };
        let settled = self.redo_note(name, &note);
        if settled.is_err() {
            self.disown_note(name)?;
        }
        settled.map(|()| true)
    }

    fn redo_note(&self, name: Named<'_>, note: &Note) -> Result<()> {
        match note {
            Note::Drop(entry) => {
                match self.lose_name(entry.id, name, None) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
                self.forget_note(name)
            }
            Note::Move {
                source,
                to,
                announced,
                placed,
            } => {
                let to = (to.0, &to.1[..]);
                let there = *placed || *announced && self.was_placed(*source, to)?;
                if there {
                    self.complete_move(name, *source, to)
                } else {
                    self.undo_move(name, *source, to)
                }
            }
        }
    }

    /// Whether the new entry of a rename was set, also if it has been changed since.
    fn was_placed(&self, source: Entry, to: Named<'_>) -> Result<bool> {
        // What has begun with the entry since is completed first.
        let now_there = match self.entry_away(to.0, to.1) {
            Some(home) => self.ask(home, kind::LOOKUP, &to)?,
            None => self.lookup(to.0, to.1)?,
        };
        if now_there.is_some_and(|e: Entry| e.id == source.id) {
            return Ok(true);
        }
        // A directory can't have gone on: nothing else changes directories meanwhile.
        Ok(!is_dir(source) && !self.has_coming(source.id, to)?)
    }

    /// Completes what processes of this node have begun and can't go on with: their notes, and names
    /// of which they didn't know whether they were made. How many.
    ///
    /// # Errors
    /// EHOSTDOWN: some of it has to wait for another node.
    pub fn settle_notes(&self) -> Result<usize> {
        if self.elsewhere.is_none() {
            return Ok(0);
        }
        let (mut notes, mut links) = (Vec::new(), Vec::new());
        for env in &self.envs {
            let snapshot = env.snapshot()?;
            snapshot.scan(b"L", |key, value| match parse_key(key) {
                Some((b'L', id, rest)) => {
                    let unsure = Link::decode(value).is_some_and(|(link, owner)| {
                        link == Link::Unconfirmed && !identity_lives(&self.control, owner)
                    });
                    if unsure && rest.len() > 8 && rest.len() <= 8 + NAME_MAX {
                        links.push((id, rest.to_vec()));
                    }
                    true
                }
                _ => false,
            })?;
            snapshot.scan(b"N", |key, value| match parse_key(key) {
                Some((b'N', dir, name)) => {
                    let left = Note::decode(value)
                        .is_some_and(|(_, owner)| !identity_lives(&self.control, owner));
                    if left {
                        notes.push((dir, name.to_vec()));
                    }
                    true
                }
                _ => false,
            })?;
        }
        let mut result = Ok(());
        let count = notes.len() + links.len();
        for (dir, name) in notes {
            result = self.settle_note((dir, &name)).map(|_| ()).and(result);
        }
        for (id, rest) in links {
            let (dir, name) = rest.split_at(8);
            let dir = ObjectId(u64::from_be_bytes(dir.try_into().expect("8 bytes")));
            let there = self.lookup(dir, name);
            result = match there {
                Ok(Some(e)) if e.id == id => self.confirm_link(id, (dir, name)),
                Ok(_) => self.lose_link(id, (dir, name), |_| false),
                Err(e) => Err(e),
            }
            .and(result);
        }
        result.map(|()| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_links_are_read_back() {
        let entry = Entry {
            id: ObjectId(77),
            kind: libc::S_IFREG,
        };
        let notes = [
            Note::Drop(entry),
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
        for link in [Link::Counted, Link::Unconfirmed, Link::Coming] {
            assert_eq!(Link::decode(&link.encode(9)), Some((link, 9)));
        }
        assert_eq!(entry_in(&moving(entry)), Some((entry, true)));
        assert_eq!(entry_in(&entry.encode()), Some((entry, false)));
    }
}

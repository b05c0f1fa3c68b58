//! Names whose entry and object lie on different nodes.
//!
//! Each node changes only its own records, in one transaction each. The same transaction records as
//! an *intent* what is left to do on other nodes. If the process dies, the keeper completes the
//! intent ([`Namespace::settle_notes`]). Carrying a step out twice has the effect of doing so once.
//!
//! - An object keeps a *link record* for each name whose entry lies on another node, so that a
//!   removal that is carried out twice removes only one name. The record is `Unconfirmed` until the
//!   entry is known to exist, and `Coming` while a rename to the name is in progress. A `Coming`
//!   name isn't one of the object's names yet.
//! - An entry has an intent while an operation on it isn't finished: the object has yet to lose the
//!   name (`Drop`), or the entry is being renamed (`Move`). Lookups of an entry that is being
//!   renamed wait until the rename ends, so that no process sees both names. An operation that
//!   would change such an entry gets EAGAIN and is tried again.
//!
//! A rename of `from` on node A to `to` on node B, of an object on node C:
//!
//! 1. A marks `from` and records the intent. C records the new name as `Coming`.
//! 2. B sets `to`. This is the moment of the rename. The replaced object loses its name.
//! 3. A removes `from`. C replaces the old name by the new one. A removes the intent.
//!
//! If the renaming process dies before step 2, the rename is undone; if the process dies later, the
//! rename is completed. `exchange.rs` has the steps of an exchange. An operation on behalf of
//! another node doesn't wait ([`Cluster::nonblocking`]).

mod batch_create;
mod batch_unlink;
mod exchange;
mod intents;
mod links;
mod rename;

pub use batch_create::NewFile;
pub(crate) use rename::without_change;

use crate::backoff::Backoff;
use crate::peers::requests::request;
use crate::views::CrossNode;
use forebay_store::names::{Link, Named, Note, Opening, is_on_paths};
use forebay_store::process::identity_lives;
use forebay_store::record::{Entry, Inode, Key, parse_key, tail};
use forebay_store::records::{ChangeRecords, Need, ReadRecords, Records, ShardSet};
use forebay_store::shards::Write;
use forebay_store::{Distribution, NAME_MAX, NewObject, NodeId, ObjectId, RenameMode, Slot, now};
use rustix::io::{Errno, Result};

/// The result of [`CrossNode::replace`], which sets a new or an existing entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placed {
    /// The entry is set.
    Done,
    /// The entry was another name of the same object: nothing is to be done.
    Same,
}

fn is_dir(entry: Entry) -> bool {
    entry.kind == libc::S_IFDIR
}

/// Whether a request that failed with this error may have been carried out all the same.
fn is_unclear(e: Errno) -> bool {
    matches!(
        e,
        Errno::HOSTDOWN | Errno::IO | Errno::TIMEDOUT | Errno::PROTO
    )
}

/// Whether the keeper repeats a step that failed with this error, in an operation that has taken
/// effect and must be completed. Either nobody knows whether the step was done, or there was no
/// room, memory or descriptor for it.
fn is_for_later(e: Errno) -> bool {
    is_unclear(e) || matches!(e, Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE)
}

impl<'a> CrossNode<'a> {
    /// Returns the entry of a name. ENOENT if there is none.
    fn existing(&self, name: Named<'_>) -> Result<Entry> {
        let found = self.cluster.namespace().lookup(name.0, name.1)?;
        found.ok_or(Errno::NOENT)
    }

    // ---- entries: at the entry's home ----

    /// Makes an entry for an object that lies on another node. Returns the existing entry, if there
    /// is one. A `held` entry can't be looked up until [`CrossNode::release_entry`].
    pub(crate) fn insert(
        &self,
        name: Named<'_>,
        entry: Entry,
        held: bool,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        let at = self.store().entry_ref(name);
        let t = now();
        let there = self.retry_noted(name, || {
            self.store().transact(at.set(), Need::Bytes(0), |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().names_epoch().check_frozen(name.0)?;
                self.store().intents().check_note(w, name)?;
                if let Some(there) = w.look_up(at)? {
                    return Ok(Some(there.entry));
                }
                if held {
                    w.set_changing(at, entry)?;
                    self.store()
                        .intents()
                        .put_note(w, name, &Note::Held(entry))?;
                } else {
                    w.set_entry(at, entry)?;
                }
                Ok(None)
            })
        })?;
        if there.is_none() {
            self.cluster.namespace().touch_dir(name.0, t)?;
        }
        Ok(there)
    }

    /// Removes an entry whose object lies on another node. Returns false if `name` doesn't have
    /// `entry` any more.
    pub(crate) fn unlink_remote(&self, name: Named<'_>, entry: Entry, epoch: u64) -> Result<bool> {
        let at = self.store().entry_ref(name);
        let t = now();
        let removed = self.retry_noted(name, || {
            self.store().transact(at.set(), Need::Removal, |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().intents().check_note(w, name)?;
                if !w.has_entry(at, entry)? {
                    return Ok(false);
                }
                // A process that looks the entry up waits until the object has lost the name, too.
                w.set_changing(at, entry)?;
                self.store()
                    .intents()
                    .put_note(w, name, &Note::Drop(entry))?;
                Ok(true)
            })
        })?;
        if removed {
            self.finish_drop(name, entry)?;
            self.cluster.namespace().touch_dir(name.0, t)?;
        }
        Ok(removed)
    }

    /// Removes the entry of a directory that is empty and frozen, and the directory.
    pub(crate) fn remove_dir_entry(&self, name: Named<'_>) -> Result<()> {
        let entry = self
            .store()
            .intents()
            .entry_here(name)?
            .ok_or(Errno::NOENT)?;
        if !is_dir(entry) {
            return Err(Errno::NOTDIR);
        }
        while !self.unlink_remote(name, entry, self.store().names_epoch().now())? {
            if self.store().intents().entry_here(name)? != Some(entry) {
                return Err(Errno::NOENT);
            }
        }
        self.add_dir_links(name.0, -1)
    }

    /// Removes the name from the object of an entry that is being removed or was replaced, and ends
    /// the intent. If the object's home can't be reached, or has no room, the keeper does both
    /// later.
    fn finish_drop(&self, name: Named<'_>, entry: Entry) -> Result<()> {
        match self.lose_name(entry.id, name, None, false) {
            Ok(()) | Err(Errno::NOENT) => self.store().intents().end_drop(name, entry, true),
            Err(e) if is_for_later(e) => {
                self.store().intents().end_drop(name, entry, false)?;
                self.store().intents().disown_note(name)
            }
            Err(e) => Err(e),
        }
    }

    // ---- whole operations ----

    /// Returns a slot of this node for a new object. `keeps`: the object is a directory whose
    /// entries lie on its own node (`local-all`), so a slot is preferred whose whole group of slots
    /// belongs to this node.
    fn slot_for(&self, hash: u64, keeps: bool) -> Result<Option<Slot>> {
        let nodes = self.cluster.other_nodes()?;
        let mut slot = nodes.slot_here(hash);
        for n in 1..if keeps { 20 } else { 1 } {
            let mine = |s: Slot| nodes.node_of(s) == nodes.this_node();
            if slot.is_none_or(|s| s.group_is(mine)) {
                break;
            }
            slot = nodes.slot_here(hash.wrapping_add(n * 0x9e37_79b9));
        }
        Ok(slot)
    }

    /// Creates a file, or a directory of distribution `local-all`, on this node, and its entry on
    /// `home`. Returns the new id, or the entry that exists already; None if this node has no slot.
    pub(crate) fn create_apart(
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
        let shard = slot.shard(self.store().files.count());
        let t = now();
        let kind = new.mode & forebay_store::S_IFMT;
        let is_dir = kind == libc::S_IFDIR;
        let id = self
            .store()
            .transact(ShardSet::of(&[shard]), Need::Bytes(0), |w| {
                let id = ObjectId::new(self.store().names().next_seq(shard)?, slot);
                let id = id.with(new.distribution.unwrap_or_default());
                assert!(
                    self.cluster.remote_home(id).is_none(),
                    "an object made here lies here"
                );
                let inode = Inode {
                    parent: if is_dir { name.0.0 } else { 0 },
                    tail: if is_dir { tail::NAME } else { tail::NONE },
                    ..new.inode(t)
                };
                if new.stub.is_none() {
                    w.charge_file()?;
                }
                let tail = if is_dir { name.1 } else { &[] };
                w.set_inode(id, &inode, tail)?;
                self.store()
                    .declared()
                    .record_creator(w, id, new, Some(name))?;
                self.store()
                    .links()
                    .set_link(w, id, name, Link::Unconfirmed)?;
                self.store().names().open_new(opened, id, &inode)?;
                Ok(id)
            })?;
        let there = self.insert_at(home, (id, name), kind, epoch)?;
        if is_dir && there.is_none() {
            self.add_dir_links(name.0, 1)?;
        }
        Ok(Some(there.map_or(Ok(id), Err)))
    }

    /// Makes `home` create the entry of a new object of this node. The object's name isn't
    /// confirmed yet. If the entry exists already, returns it, and removes the object.
    fn insert_at(
        &self,
        home: NodeId,
        (id, name): (ObjectId, Named<'_>),
        kind: u32,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        let arguments = (name.0, name.1, Entry { id, kind }, false, epoch);
        match self.cluster.ask(home, request::INSERT, &arguments) {
            // The entry exists from here on, even if the confirmation fails.
            Ok(None) => match self.store().links().confirm_link(id, name) {
                Err(e) if is_for_later(e) => self.store().intents().disown_link(id, name),
                done => done,
            }
            .map(|()| None),
            Ok(Some(there)) => self
                .store()
                .links()
                .lose_link(id, name)
                .map(|()| Some(there)),
            Err(e) => {
                if is_unclear(e) {
                    self.store().intents().disown_link(id, name)?
                } else {
                    self.store().links().lose_link(id, name)?
                }
                Err(e)
            }
        }
    }

    /// Adds a name, whose entry lies on `home`, for an object of this node.
    pub(crate) fn link_across(
        &self,
        home: NodeId,
        id: ObjectId,
        name: Named<'_>,
        epoch: u64,
    ) -> Result<()> {
        let kind = self.cluster.namespace().stat(id)?.kind();
        let mut backoff = Backoff::new();
        while let Err(e) = self.store().links().offer_link(id, name) {
            // The object may have that name already, or may be losing it in another operation.
            if e != Errno::ALREADY {
                return Err(e);
            }
            if self.cluster.namespace().lookup(name.0, name.1)?.is_some() {
                return Err(Errno::EXIST);
            }
            backoff.wait()?;
        }
        let entry = Entry { id, kind };
        let arguments = (name.0, name.1, entry, true, epoch);
        match self.cluster.ask(home, request::INSERT, &arguments) {
            Ok(None) => {
                let counted = self.store().links().count_offered(id, name);
                if counted.is_err() {
                    self.store().links().withdraw_link(id, name)?;
                }
                match self.release_entry(name, entry, counted.is_ok()) {
                    Ok(()) => counted,
                    // The entry's home learns the outcome later, with a request to this node.
                    Err(e) if is_unclear(e) => counted,
                    Err(e) => Err(e),
                }
            }
            Ok(Some(_)) => {
                self.store().links().withdraw_link(id, name)?;
                Err(Errno::EXIST)
            }
            Err(e) => {
                self.store().links().withdraw_link(id, name)?;
                Err(e)
            }
        }
    }

    /// Adds `difference` to the number of directories in `dir`. Does nothing if `dir` doesn't exist
    /// any more: the directory made in it may have been removed already, and then `dir`.
    pub(crate) fn add_dir_links(&self, dir: ObjectId, difference: i64) -> Result<()> {
        let changed = match self.cluster.remote_home(dir) {
            Some(home) => self
                .cluster
                .ask(home, request::DIR_LINKS, &(dir, difference)),
            None => {
                self.store()
                    .transact(self.store().names().object_set(dir), Need::Removal, |w| {
                        w.change_inode(dir, |i| {
                            // The removal of a name may be counted before its creation, so the
                            // number may wrap.
                            i.nlink = i.nlink.wrapping_add_signed(difference as i32);
                        })
                    })
            }
        };
        match changed {
            Err(Errno::NOENT) => Ok(()),
            changed => changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::names::{Exchange, Phase};

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
    }
}

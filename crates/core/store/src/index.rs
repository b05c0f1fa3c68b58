//! The index of user attributes: which objects have a key with a value.
//!
//! For each attribute `user.KEY` of a file or directory there is a record 'V' beside the object's
//! other records. The 'V' record depends on the attribute and on the object's name, and is changed
//! in the same transaction as these. 'V' records are sorted by the hashes of key, value and name.
//! So the objects with an attribute, with several, or with a certain name are found by a seek and a
//! scan ([`query`]). A record 'R' is sorted by the order of values ([`Order`]), for searches by
//! comparison ([`find`]). An 'R' record doesn't contain the object's name, but like 'V' exists only
//! while the object has one. Forebay's own attributes have no 'R' records.
//!
//! A file's inode doesn't contain the file's names. 'P' records contain the names by which the file
//! got an attribute, and all later names; the first of these names is the file's name in the index.
//! If a file has names but none is recorded, one is searched for. The search takes long. It is
//! needed only for files with several names, and for files that get an attribute through a
//! descriptor whose name isn't known. A directory's inode contains its only name. All names of an
//! ephemeral file (`ephemeral.rs`) are recorded, from the first on.
//!
//! Objects without user attributes have none of these records, and cost one read of their inode.

pub mod find;
pub mod query;

pub use find::{Description, Match, Term};
pub use forebay_records::number::Number;
pub use forebay_records::record::hash_of;

use crate::ObjectId;
use crate::declared::is_ephemeral;
use crate::names::{Named, STEP, link_in};
use crate::record::{Inode, Key, Mark, Order, Word, parse_key};
use crate::records::{ChangeRecords, ReadRecords, Records, ShardSet};
use crate::shards::Write;
use crate::views::Index;
use rustix::io::Result;

/// The prefix of the names of user attributes; the key follows.
pub(crate) const USER: &[u8] = b"user.";
/// Keys with this prefix are Forebay's own, and searches never compare them.
const OWN: &[u8] = b"forebay.";

/// A name that owns its bytes.
pub type OwnedName = (ObjectId, Vec<u8>);

/// The key of a user attribute.
pub(crate) fn key_of(attribute: &[u8]) -> Option<&[u8]> {
    attribute.strip_prefix(USER).filter(|key| !key.is_empty())
}

/// A user attribute as index records contain it: encoded so that the records' byte order is the
/// order of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indexed {
    word: Word,
    order: Option<Order>,
}

impl Indexed {
    pub fn new(key: &[u8], value: &[u8]) -> Indexed {
        Indexed {
            word: Word::new(key, value),
            order: (!key.starts_with(OWN)).then(|| Order::of_value(value)),
        }
    }

    /// Key of the record 'V' of this attribute: sorted among objects with the same value.
    fn by_value(&self, mark: Mark) -> Key {
        Key::indexed(self.word, mark)
    }

    /// Key of the record 'R' of this attribute: sorted among all values of the attribute's key.
    fn by_order(&self, id: ObjectId) -> Option<Key> {
        self.order
            .map(|order| Key::ordered(self.word.key, order, id))
    }

    /// The keys of this attribute's index records for the object and name in `mark`.
    pub fn keys(&self, mark: Mark) -> impl Iterator<Item = Key> {
        [Some(self.by_value(mark)), self.by_order(mark.id)]
            .into_iter()
            .flatten()
    }
}

/// The name that the object `id` has in the index. A file with a name on this node has at least one
/// 'P' record, so usually one look-up is enough.
pub fn known_name(records: &impl ReadRecords, id: ObjectId) -> Result<Option<OwnedName>> {
    let mut name = None;
    records.each_attached(&Key::known_names(id), |key, _| {
        name = recorded_name(key, id);
        false
    })?;
    if name.is_some() {
        return Ok(name);
    }
    let inode = records.inode(id)?;
    Ok(inode.and_then(|(inode, tail)| own_name(id, &inode, tail)))
}

/// The name in a 'P' key, if the key is one of `id`.
fn recorded_name(key: &[u8], id: ObjectId) -> Option<OwnedName> {
    match parse_key(key) {
        Some((b'P', of, rest)) if of == id => known_in(rest),
        _ => None,
    }
}

/// The name in a directory's inode; None for other objects and for the root.
fn own_name(id: ObjectId, inode: &Inode, tail: &[u8]) -> Option<OwnedName> {
    let is_named = inode.is_dir() && id != ObjectId::ROOT;
    is_named.then(|| (ObjectId(inode.parent), tail.to_vec()))
}

/// The name in `rest`, which follows the id in a 'P' key.
pub fn known_in(rest: &[u8]) -> Option<OwnedName> {
    let (parent, name) = rest.split_first_chunk()?;
    let sound = (1..=crate::NAME_MAX).contains(&name.len());
    sound.then(|| (ObjectId(u64::from_be_bytes(*parent)), name.to_vec()))
}

/// Whether all names of the object are recorded, even if it has no attributes. True for ephemeral
/// files, whose names are removed when the creator ends.
pub(crate) fn keeps_names(inode: &Inode) -> bool {
    inode.is_file() && is_ephemeral(inode.controls)
}

fn may_have_names(inode: &Inode) -> bool {
    inode.has_attributes || keeps_names(inode)
}

impl<'s> Index<'s> {
    /// The user attributes of an object, in a transaction.
    fn words(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Vec<Indexed>> {
        let mut words = Vec::new();
        w.each_attached(
            id,
            &Key::attribute(id, USER),
            |key, value| match parse_key(key) {
                Some((b'A', of, name)) if of == id && name.starts_with(USER) => {
                    words.extend(key_of(name).map(|key| Indexed::new(key, value)));
                    true
                }
                _ => false,
            },
        )?;
        Ok(words)
    }

    fn name_in_index(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Option<OwnedName>> {
        let mut name = None;
        w.each_attached(id, &Key::known_names(id), |key, _| {
            name = recorded_name(key, id);
            false
        })?;
        if name.is_some() {
            return Ok(name);
        }
        let inode = w.inode(id)?;
        Ok(inode.and_then(|(inode, tail)| own_name(id, &inode, tail)))
    }

    /// Moves the object's index records from one name to another. If the object has more than
    /// [`STEP`] attributes, the records are moved later, in steps.
    fn reindex(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        words: &[Indexed],
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<()> {
        let (from, to) = (from.map(hash_of), to.map(hash_of));
        if from == to {
            return Ok(());
        }
        let is_left = !words.is_empty() && self.store.names().left_names(w, id)?.is_some();
        if is_left || words.len() > STEP {
            return self.store.names().leave_behind(w, id, from);
        }
        for word in words {
            if let Some(name) = from {
                w.detach(id, &word.by_value(Mark { name, id }))?;
            }
            if let Some(name) = to {
                w.attach(id, &word.by_value(Mark { name, id }), &[])?;
            }
            match (from, to, word.by_order(id)) {
                (None, Some(_), Some(key)) => w.attach(id, &key, &[])?,
                (Some(_), None, Some(key)) => _ = w.detach(id, &key)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// In a transaction: moves the index records of an attribute to the object's present name, or
    /// removes them if it has none. `left`: hashes of former names that may still have records.
    pub(crate) fn settle_word(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        word: Indexed,
        left: &[u64],
    ) -> Result<()> {
        let name = self.name_in_index(w, id)?.map(|name| hash_of(&name.1));
        for &old in left.iter().filter(|&&old| Some(old) != name) {
            w.detach(id, &word.by_value(Mark { name: old, id }))?;
        }
        let by_order = word.by_order(id);
        match (name, by_order) {
            (Some(name), by_order) => {
                let by_value = word.by_value(Mark { name, id });
                for key in [Some(by_value), by_order].into_iter().flatten() {
                    w.attach_new(id, &key, &[])?;
                }
            }
            (None, Some(key)) => _ = w.detach(id, &key)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Updates the index when an object loses a name, gets one, or both, in a transaction of its
    /// home.
    pub fn names_in_index(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        gone: Option<Named<'_>>,
        comes: Option<Named<'_>>,
    ) -> Result<()> {
        let inode = w.inode(id)?;
        let Some((inode, _)) = inode.filter(|(inode, _)| may_have_names(inode)) else {
            return Ok(());
        };
        let words = self.words(w, id)?;
        if words.is_empty() && !keeps_names(&inode) {
            return Ok(());
        }
        if inode.is_dir() {
            return self.reindex(w, id, &words, gone.map(|n| n.1), comes.map(|n| n.1));
        }
        let before = self.name_in_index(w, id)?;
        if let Some(name) = gone {
            w.detach(id, &Key::known_name(id, name.0, name.1))?;
        }
        if let Some(name) = comes {
            w.attach(id, &Key::known_name(id, name.0, name.1), &[])?;
        }
        let mut after = self.name_in_index(w, id)?;
        if after.is_none()
            && let Some(other) = self.any_name(w, id, gone)?
        {
            w.attach(id, &Key::known_name(id, other.0, &other.1), &[])?;
            after = Some(other);
        }
        let text = |name: &Option<OwnedName>| name.as_ref().map(|n| n.1.clone());
        let (before, after) = (text(&before), text(&after));
        self.reindex(w, id, &words, before.as_deref(), after.as_deref())
    }

    /// A name of the object other than `gone`. Names whose entries lie on this node can't change
    /// meanwhile: a change needs the lock of the object's shard, which the transaction holds.
    fn any_name(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        gone: Option<Named<'_>>,
    ) -> Result<Option<OwnedName>> {
        let mut found = self.counted_by_peer(w, id)?;
        for shard in 0..self.store.files.count() {
            if found.is_some() {
                break;
            }
            self.store
                .committed(shard)?
                .each_entry(|dir, name, found_entry| {
                    if gone != Some((dir, name))
                        && found_entry.is_some_and(|e| e.entry.id == id && !e.changing)
                    {
                        found = Some((dir, name.to_vec()));
                    }
                    found.is_none()
                })?;
        }
        Ok(found)
    }

    /// Returns one of the object's names, one whose entry lies on another node, if the object
    /// counts that name as a link; None if there is none.
    fn counted_by_peer(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Option<OwnedName>> {
        if self.store.remote.is_none() {
            return Ok(None);
        }
        let mut found = None;
        let first = Key::link(id, ObjectId(0), b"");
        w.each_attached(id, &first, |key, value| {
            let Some((b'L', of, rest)) = parse_key(key) else {
                return false;
            };
            if let Some((dir, name, true)) = link_in(rest, value)
                && self.store.peers().is_entry_remote(dir, name)
            {
                found = Some((dir, name.to_vec()));
            }
            of == id && found.is_none()
        })?;
        // The key that was found may belong to the next object.
        match &found {
            Some(name) if !self.store.links().counts_link(w, id, (name.0, &name.1))? => Ok(None),
            _ => Ok(found),
        }
    }

    /// Removes an object from the index, because it is removed or has no name any more. Must be
    /// called before the object's records are removed.
    pub(crate) fn leave_index(&self, w: &mut Write<'_>, id: ObjectId, inode: &Inode) -> Result<()> {
        if !may_have_names(inode) {
            return Ok(());
        }
        let words = self.words(w, id)?;
        if let Some(name) = self.name_in_index(w, id)? {
            self.reindex(w, id, &words, Some(&name.1), None)?;
        }
        self.store
            .names()
            .remove_range(w, &Key::known_names(id), |_| ())
    }

    /// Updates the index when an attribute of an object changes from `old` to `new`, in a
    /// transaction. `known` may be a name of the object.
    pub(crate) fn attribute_in_index(
        &self,
        w: &mut Write<'_>,
        (id, inode): (ObjectId, &Inode),
        key: &[u8],
        (old, new): (Option<&[u8]>, Option<&[u8]>),
        known: Option<Named<'_>>,
    ) -> Result<()> {
        if id == ObjectId::ROOT || inode.nlink == 0 && !inode.is_dir() {
            return Ok(());
        }
        let before = self.name_in_index(w, id)?;
        let mut after = before.clone();
        if !inode.is_dir()
            && (before.is_none() || inode.nlink > 1)
            && let Some(name) = known
            && self.is_name(w, id, name)?
        {
            w.attach(id, &Key::known_name(id, name.0, name.1), &[])?;
            after = match before {
                None => Some((name.0, name.1.to_vec())),
                // The index has the file under the first of its recorded names.
                Some(_) => self.name_in_index(w, id)?,
            };
        }
        if after.is_none()
            && let Some(name) = self.any_name(w, id, None)?
        {
            w.attach(id, &Key::known_name(id, name.0, &name.1), &[])?;
            after = Some(name);
        }
        // An object has no name while a rename moves it. The object is added to the index with its
        // next name.
        let Some(name) = &after else {
            return Ok(());
        };
        let mark = Mark {
            name: hash_of(&name.1),
            id,
        };
        let new = new.map(|value| Indexed::new(key, value));
        if let (Some(value), Some(was)) = (old, &before) {
            let name = hash_of(&was.1);
            let old = Indexed::new(key, value);
            w.detach(id, &old.by_value(Mark { name, id }))?;
            for name in self.store.names().left_names(w, id)?.unwrap_or_default() {
                w.detach(id, &old.by_value(Mark { name, id }))?;
            }
            if let Some(key) = old.by_order(id)
                && new.is_none_or(|new| new.order != old.order)
            {
                w.detach(id, &key)?;
            }
        }
        // If the object wasn't in the index, all its attributes are added below.
        if let (Some(new), Some(_)) = (&new, &before) {
            for key in new.keys(mark) {
                w.attach(id, &key, &[])?;
            }
        }
        if before != after {
            let words = self.words(w, id)?;
            let before = before.map(|n| n.1);
            self.reindex(w, id, &words, before.as_deref(), Some(&name.1))?;
        }
        if new.is_none() && !inode.is_dir() && !keeps_names(inode) {
            self.forget_names(w, id)?;
        }
        Ok(())
    }

    /// Removes the recorded names of a file, unless it has user attributes.
    pub(crate) fn forget_names(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        if self.words(w, id)?.is_empty() {
            self.store
                .names()
                .remove_range(w, &Key::known_names(id), |_| ())
        } else {
            Ok(())
        }
    }

    /// Whether the object has this name, as far as its home knows. If the entry lies on this node,
    /// its shard must be part of the transaction.
    fn is_name(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<bool> {
        if name.1.is_empty() {
            return Ok(false);
        }
        if self.store.peers().is_entry_remote(name.0, name.1) {
            return self.store.links().counts_link(w, id, name);
        }
        let found = w.look_up(self.store.entry_ref(name))?;
        // An entry that is being moved is about to get another name.
        Ok(found.is_some_and(|e| e.entry.id == id && !e.changing))
    }

    /// The shards for a transaction over an object and this name of it.
    pub(crate) fn shards_with_name(&self, id: ObjectId, known: Option<Named<'_>>) -> ShardSet {
        let set = self.store.names().object_set(id);
        match known {
            Some((dir, name))
                if !name.is_empty() && !self.store.peers().is_entry_remote(dir, name) =>
            {
                set.with(self.store.files.shard_of_entry(dir, name))
            }
            _ => set,
        }
    }
}

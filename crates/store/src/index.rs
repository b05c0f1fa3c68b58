//! The index of user attributes: which objects have a key with a value.
//!
//! For each attribute `user.KEY` of a file or directory there is a record 'V' beside the object's
//! others, changed in the same transaction as what it depends on: the attribute, and the object's
//! name. It is sorted by key, value and name (by their hashes), so that what has an attribute, what
//! has several, and what of it is called so are found by going to a place and reading on
//! ([`query`]). A record 'R' has the same sorted by what the value is worth ([`order`]), for
//! searches by comparison ([`find`]). It knows no name, but is there only while there is one, as
//! the others. Keys of Forebay's own have none.
//!
//! A file doesn't know its names. Those by which it got an attribute, or that it got since, are
//! noted (records 'P'); by the first of them it is in the index. Where none is noted, though it has
//! some, one is searched for: that takes long, but only happens to files with several names, and to
//! those that get an attribute by somebody who doesn't know how they are called. A directory has
//! one name, and knows it. Of a file that goes with its maker (`ephemeral.rs`) all names are noted,
//! from the first on.
//!
//! Objects without user attributes have none of these records, and cost a look at their inode.

pub mod find;
pub mod query;

pub use find::{Description, Match, Term};
pub use forebay_records::number::Number;
pub use forebay_records::record::hash_of;

use crate::ObjectId;
use crate::declared::goes_with_maker;
use crate::names::{Named, link_in};
use crate::record::{EntryRecord, Inode, Key, Mark, Order, Word, parse_key};
use crate::shards::{ShardSet, Write};
use crate::views::Index;
use rustix::io::Result;

/// What the names of user attributes begin with; the rest is the key.
pub(crate) const USER: &[u8] = b"user.";
/// Keys that begin so are Forebay's own, and nobody searches for them by comparison.
const OWN: &[u8] = b"forebay.";

/// For so many attributes there is room in any transaction.
const FEW: usize = 4;

/// A name, with bytes of its own.
pub type OwnedName = (ObjectId, Vec<u8>);

/// The key of a user attribute.
pub(crate) fn key_of(attribute: &[u8]) -> Option<&[u8]> {
    attribute.strip_prefix(USER).filter(|key| !key.is_empty())
}

/// A user attribute as the index has it.
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

    /// Its record among those with the same value.
    fn by_value(&self, mark: Mark) -> Key {
        Key::indexed(self.word, mark)
    }

    /// Its record among all values of the key.
    fn by_order(&self, id: ObjectId) -> Option<Key> {
        self.order
            .map(|order| Key::ordered(self.word.key, order, id))
    }

    /// Its records.
    pub fn keys(&self, mark: Mark) -> impl Iterator<Item = Key> {
        [Some(self.by_value(mark)), self.by_order(mark.id)]
            .into_iter()
            .flatten()
    }
}

/// What reads records from a key on, until it is told to stop.
type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> bool;

/// The name by which `id` is in the index.
pub fn known_name(
    mut scan: impl FnMut(&[u8], Each<'_>) -> Result<()>,
    id: ObjectId,
) -> Result<Option<OwnedName>> {
    let mut name = None;
    // A file has at least one 'P' if it has a name here: most of the time that is all there is to
    // read.
    scan(&Key::known_names(id), &mut |key, _| {
        name = parse_key(key)
            .filter(|(tag, of, _)| (*tag, *of) == (b'P', id))
            .and_then(|(_, _, rest)| known_in(rest));
        false
    })?;
    if name.is_some() {
        return Ok(name);
    }
    let key = Key::inode(id);
    scan(&key, &mut |found, record| {
        if found == &key[..]
            && let Some((inode, tail)) = Inode::decode(record)
            && inode.is_dir()
            && id != ObjectId::ROOT
        {
            name = Some((ObjectId(inode.parent), tail.to_vec()));
        }
        false
    })?;
    Ok(name)
}

/// From the rest of a 'P' key: the name.
pub fn known_in(rest: &[u8]) -> Option<OwnedName> {
    let (parent, name) = rest.split_first_chunk()?;
    let sound = (1..=crate::NAME_MAX).contains(&name.len());
    sound.then(|| (ObjectId(u64::from_be_bytes(*parent)), name.to_vec()))
}

/// Whether all names of the object are noted, whatever attributes it has: they go with its maker.
pub(crate) fn keeps_names(inode: &Inode) -> bool {
    inode.is_file() && goes_with_maker(inode.controls)
}

fn may_have_names(inode: &Inode) -> bool {
    inode.has_attributes || keeps_names(inode)
}

impl<'s> Index<'s> {
    /// The user attributes of an object, in a transaction.
    fn words(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Vec<Indexed>> {
        let mut words = Vec::new();
        w.scan(
            self.shard_of(id),
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
        let shard = self.shard_of(id);
        known_name(|from, each| w.scan(shard, from, each), id)
    }

    /// Moves the object's places from one name to another one.
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
        let shard = self.shard_of(id);
        if words.len() > FEW {
            // Each lies on pages of its own.
            w.more_room(shard, 8 * words.len())?;
        }
        for word in words {
            if let Some(name) = from {
                w.del(shard, &word.by_value(Mark { name, id }))?;
            }
            if let Some(name) = to {
                w.put(shard, &word.by_value(Mark { name, id }), &[])?;
            }
            match (from, to, word.by_order(id)) {
                (None, Some(_), Some(key)) => w.put(shard, &key, &[])?,
                (Some(_), None, Some(key)) => _ = w.del(shard, &key)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// An object loses a name, or gets one, or both, in a transaction of its home.
    pub fn names_in_index(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        gone: Option<Named<'_>>,
        comes: Option<Named<'_>>,
    ) -> Result<()> {
        let shard = self.shard_of(id);
        let inode = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
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
            w.del(shard, &Key::known_name(id, name.0, name.1))?;
        }
        if let Some(name) = comes {
            w.put(shard, &Key::known_name(id, name.0, name.1), &[])?;
        }
        let mut after = self.name_in_index(w, id)?;
        if after.is_none()
            && let Some(other) = self.any_name(w, id, gone)?
        {
            w.put(shard, &Key::known_name(id, other.0, &other.1), &[])?;
            after = Some(other);
        }
        let text = |name: &Option<OwnedName>| name.as_ref().map(|n| n.1.clone());
        let (before, after) = (text(&before), text(&after));
        self.reindex(w, id, &words, before.as_deref(), after.as_deref())
    }

    /// A name of the object other than `gone`. Those whose entries lie here can't change meanwhile:
    /// that takes the object's shard, which is locked.
    fn any_name(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        gone: Option<Named<'_>>,
    ) -> Result<Option<OwnedName>> {
        let mut found = self.counted_elsewhere(w, id)?;
        for env in &self.envs {
            if found.is_some() {
                break;
            }
            env.snapshot()?.scan(b"D", |key, value| {
                let Some((b'D', dir, name)) = parse_key(key) else {
                    return false;
                };
                if gone != Some((dir, name))
                    && EntryRecord::decode(value).is_some_and(|e| e.entry.id == id && !e.changing)
                {
                    found = Some((dir, name.to_vec()));
                }
                found.is_none()
            })?;
        }
        Ok(found)
    }

    /// A name of the object whose entry lies on another node.
    fn counted_elsewhere(&self, w: &mut Write<'_>, id: ObjectId) -> Result<Option<OwnedName>> {
        if self.foreign.is_none() {
            return Ok(None);
        }
        let mut found = None;
        let first = Key::link(id, ObjectId(0), b"");
        w.scan(self.shard_of(id), &first, |key, value| {
            let Some((b'L', of, rest)) = parse_key(key) else {
                return false;
            };
            if let Some((dir, name, true)) = link_in(rest, value)
                && self.names().is_entry_away(dir, name)
            {
                found = Some((dir, name.to_vec()));
            }
            of == id && found.is_none()
        })?;
        // What was found may be the next object's.
        match &found {
            Some(name) if !self.links().counts_link(w, id, (name.0, &name.1))? => Ok(None),
            _ => Ok(found),
        }
    }

    /// An object goes, or has no name any more: it isn't in the index. Before its records go.
    pub(crate) fn leave_index(&self, w: &mut Write<'_>, id: ObjectId, inode: &Inode) -> Result<()> {
        if !may_have_names(inode) {
            return Ok(());
        }
        let words = self.words(w, id)?;
        if let Some(name) = self.name_in_index(w, id)? {
            self.reindex(w, id, &words, Some(&name.1), None)?;
        }
        self.names().remove_range(w, &Key::known_names(id), |_| ())
    }

    /// An attribute of an object has changed, in a transaction, from `old` to `new`. `known` may be
    /// a name of it.
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
        let shard = self.shard_of(id);
        let before = self.name_in_index(w, id)?;
        let mut after = before.clone();
        if !inode.is_dir()
            && (before.is_none() || inode.nlink > 1)
            && let Some(name) = known
            && self.is_name(w, id, name)?
        {
            w.put(shard, &Key::known_name(id, name.0, name.1), &[])?;
            after = match before {
                None => Some((name.0, name.1.to_vec())),
                // The first of them counts.
                Some(_) => self.name_in_index(w, id)?,
            };
        }
        if after.is_none()
            && let Some(name) = self.any_name(w, id, None)?
        {
            w.put(shard, &Key::known_name(id, name.0, &name.1), &[])?;
            after = Some(name);
        }
        // Without a name on its way between two of them: it comes with the next one.
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
            w.del(shard, &old.by_value(Mark { name, id }))?;
            if let Some(key) = old.by_order(id)
                && new.is_none_or(|new| new.order != old.order)
            {
                w.del(shard, &key)?;
            }
        }
        // Where it wasn't in the index, all its attributes come into it, below.
        if let (Some(new), Some(_)) = (&new, &before) {
            for key in new.keys(mark) {
                w.put(shard, &key, &[])?;
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

    /// No name of a file needs to be noted any more, unless it has attributes.
    pub(crate) fn forget_names(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        match self.words(w, id)?.is_empty() {
            true => self.names().remove_range(w, &Key::known_names(id), |_| ()),
            false => Ok(()),
        }
    }

    /// Whether the object has this name, as far as its home can tell. The entry's shard, if it lies
    /// here, is part of the transaction.
    fn is_name(&self, w: &mut Write<'_>, id: ObjectId, name: Named<'_>) -> Result<bool> {
        if name.1.is_empty() {
            return Ok(false);
        }
        if self.names().is_entry_away(name.0, name.1) {
            return self.links().counts_link(w, id, name);
        }
        let shard = self.shard_of_entry(name.0, name.1);
        let bytes = w.get(shard, &Key::entry(name.0, name.1))?;
        // One that is just moving will have another name.
        Ok(bytes
            .and_then(EntryRecord::decode)
            .is_some_and(|e| e.entry.id == id && !e.changing))
    }

    /// The shards for a transaction over an object and this name of it.
    pub(crate) fn shards_with_name(&self, id: ObjectId, known: Option<Named<'_>>) -> ShardSet {
        let set = self.names().object_set(id);
        match known {
            Some((dir, name)) if !name.is_empty() && !self.names().is_entry_away(dir, name) => {
                set.with(self.shard_of_entry(dir, name))
            }
            _ => set,
        }
    }
}

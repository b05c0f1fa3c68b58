//! All objects and names of a store, as read from its records, and the changes that would repair
//! them.

use super::findings::Report;
use crate::ephemeral::is_note;
use crate::index::{Indexed, key_of, known_in};
use crate::names::{is_unconfirmed, link_in};
use crate::placements::Placed;
use crate::record::{
    Change, ChunkMap, Entry, EntryRecord, Inode, JOURNAL, Key, parse_indexed, parse_key,
    parse_ordered,
};
use crate::recount::View;
use crate::views::Checker;
use crate::{NAME_MAX, ObjectId};
use rustix::io::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An object.
#[derive(Debug, Default)]
pub(crate) struct Object {
    pub inode: Inode,
    pub tail: Vec<u8>,
    /// Extents of chunks 1, 2, ...
    pub chunks: BTreeMap<u64, ChunkMap>,
    /// Whether a record says that the object has no name.
    pub orphan: bool,
    /// The object's names whose entries lie on other nodes, and that count as links.
    pub links: Vec<Name>,
    /// Names among `links` that aren't confirmed: they needn't be in the index yet.
    pub unconfirmed: Vec<Name>,
    /// Keys of the object's extended attributes.
    pub attributes: Vec<Vec<u8>>,
    /// Whether `inode` or `tail` differs from the object's record.
    pub changed: bool,
}

/// A name: directory and last component.
pub(crate) type Name = (u64, Vec<u8>);

/// The content of a store.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub objects: BTreeMap<u64, Object>,
    pub entries: BTreeMap<Name, Entry>,
    /// User attributes of each object.
    pub words: BTreeMap<u64, Vec<Indexed>>,
    /// Files that are to be moved from memory.
    pub landed: BTreeSet<u64>,
    /// Keys of the checksums of objects.
    pub summed: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Names that are recorded for the index, by object.
    pub known: BTreeMap<u64, Vec<Name>>,
    /// The keys of records in the index.
    pub indexed: BTreeSet<Vec<u8>>,
    /// Ids of objects with a record of leftovers (`leftovers.rs`): their remaining index entries
    /// and chunks are being removed.
    pub left: BTreeSet<u64>,
    /// Extents of chunks of removed files.
    pub left_chunks: Vec<ChunkMap>,
    /// Changes of records other than inodes that would repair the store.
    pub changes: Vec<Change>,
}

/// Records other than inodes, by the id of their object: shards and keys.
type Others = BTreeMap<u64, Vec<(usize, Vec<u8>)>>;

impl Checker<'_> {
    /// Reads all records into a model, and reports damaged ones.
    pub(crate) fn read_model(&self, view: &View<'_>, report: &mut Report) -> Result<Model> {
        let mut m = Model::default();
        let mut chunks: BTreeMap<u64, BTreeMap<u64, ChunkMap>> = BTreeMap::new();
        let mut others = Others::new();
        let mut orphans = Vec::new();
        let mut links = Vec::new();
        let mut places = Vec::new();
        for (shard, records) in view.shards.iter().enumerate() {
            records.each_stored(|key, value, sealed| {
                if !sealed {
                    report.add(
                        "records",
                        format!(
                            "shard {shard}: the checksum of {} doesn't fit: something has written over it",
                            shown(key)
                        ),
                        "what can be read of it is kept; look whether it is right",
                    );
                    m.changes.push((shard, key.to_vec(), Some(value.to_vec())));
                }
                let mut bad = |what: String, remedy: &str| {
                    report.add("records", format!("shard {shard}: {what}"), remedy);
                    m.changes.push((shard, key.to_vec(), None));
                };
                if key == JOURNAL {
                    bad(
                        "a commit over several shards isn't complete".into(),
                        "what can be read of it is completed, the rest is removed",
                    );
                    return true;
                }
                let Some((tag, id, rest)) = parse_key(key) else {
                    bad(
                        format!("the key {} is none of ours", shown(key)),
                        "it is removed",
                    );
                    return true;
                };
                let among = self.remote.is_some() && b"LNE".contains(&tag);
                if !b"IDXOAPVRWBMKT".contains(&tag) && !among {
                    bad(
                        format!("the key {} is none of ours", shown(key)),
                        "it is removed",
                    );
                    return true;
                }
                let home = match tag {
                    b'D' | b'N' => self.shard_of_entry(id, rest),
                    b'V' | b'R' => indexed_object(key).map_or(shard, |id| self.shard_of(id)),
                    _ => self.shard_of(id),
                };
                if home != shard {
                    bad(
                        format!("the key {} belongs to shard {home}", shown(key)),
                        "it is removed; what it led to is put into /lost+found",
                    );
                    return true;
                }
                match tag {
                    b'I' => match Inode::decode(value) {
                        Some((inode, tail)) if rest.is_empty() => {
                            let object = m.objects.entry(id.0).or_default();
                            (object.inode, object.tail) = (inode, tail.to_vec());
                        }
                        _ => bad(
                            format!("the record of object {} can't be read", id.0),
                            "it is removed, with its names",
                        ),
                    },
                    b'D' => match EntryRecord::decode(value) {
                        Some(e) if rest.len() <= NAME_MAX && (!e.changing || self.remote.is_some()) => {
                            m.entries.insert((id.0, rest.to_vec()), e.entry);
                        }
                        _ => bad(
                            format!(
                                "the entry {} of directory {} can't be read",
                                name(rest),
                                id.0
                            ),
                            "it is removed; its object is put into /lost+found",
                        ),
                    },
                    b'X' => match (ChunkMap::decode(value), rest.try_into()) {
                        (Some(map), Ok(chunk)) if chunk != [0; 8] => {
                            let chunk = u64::from_be_bytes(chunk);
                            chunks.entry(id.0).or_default().insert(chunk, map);
                        }
                        _ => bad(
                            format!("extents of object {} can't be read", id.0),
                            "they are removed; that part of the file reads as zero",
                        ),
                    },
                    b'L' => match link_in(rest, value) {
                        Some((parent, name, counts)) => {
                            let remote = self.names().is_entry_remote(parent, name);
                            let link = counts && remote;
                            let name = link.then(|| (parent.0, name.to_vec()));
                            links.push((id.0, name, is_unconfirmed(value), key.to_vec()));
                        }
                        None => bad(
                            format!("a name of object {} on another node can't be read", id.0),
                            "it is removed",
                        ),
                    },
                    b'E' => match (Placed::decode(value), rest.len()) {
                        (Some(_), 8) => places.push((id.0, key.to_vec())),
                        _ => bad(
                            format!("where a chunk of object {} lies can't be read", id.0),
                            "it is removed; that part of the file reads as zero",
                        ),
                    },
                    // An intent: the next process that finds it completes it.
                    b'N' => {}
                    // If the file was removed, or doesn't lie in memory, the keeper deletes this
                    // record.
                    b'B' if rest.is_empty() => _ = m.landed.insert(id.0),
                    // The keeper deletes this record, too, if the file was removed.
                    b'M' if rest.is_empty() && is_note(value) => {}
                    b'M' => bad(
                        format!("the note on who made object {} can't be read", id.0),
                        "it is removed: the file stays when its maker ends",
                    ),
                    // If the file was removed, its checksums are removed as lost records are.
                    b'K' => match rest.len() {
                        8 => m.summed.entry(id.0).or_default().push(key.to_vec()),
                        _ => bad(
                            format!("checksums of object {} can't be read", id.0),
                            "they are removed",
                        ),
                    },
                    b'O' => orphans.push(id.0),
                    b'T' if rest.is_empty() && value.len().is_multiple_of(8) => {
                        m.left.insert(id.0);
                    }
                    b'T' => bad(
                        format!("what is left of object {} can't be read", id.0),
                        "it is removed",
                    ),
                    b'A' => {
                        others.entry(id.0).or_default().push((shard, key.to_vec()));
                        let word = key_of(rest).map(|key| Indexed::new(key, value));
                        m.words.entry(id.0).or_default().extend(word);
                    }
                    b'P' => match known_in(rest) {
                        Some((dir, name)) => {
                            m.known.entry(id.0).or_default().push((dir.0, name));
                        }
                        None => bad(
                            format!("a name of object {} that is noted for the index can't be read", id.0),
                            "the note is removed",
                        ),
                    },
                    b'V' | b'R' => match indexed_object(key) {
                        Some(_) if value.is_empty() => _ = m.indexed.insert(key.to_vec()),
                        _ => bad(
                            format!("a place of the index, {}, can't be read", shown(key)),
                            "it is removed",
                        ),
                    },
                    b'W' if rest.is_empty() && crate::attribute_view::is_path_of(id, value) => {}
                    b'W' => bad(
                        format!("a directory of the view, {}, can't be read", shown(key)),
                        "it is removed; whoever looks it up makes it anew",
                    ),
                    _ => bad(
                        format!("the key {} is none of ours", shown(key)),
                        "it is removed",
                    ),
                }
                true
            })?;
        }
        self.assign(&mut m, chunks, others, orphans, report);
        for (id, link, unconfirmed, key) in links {
            match m.objects.get_mut(&id) {
                Some(o) => {
                    let unsure = link.clone().filter(|_| unconfirmed);
                    o.unconfirmed.extend(unsure);
                    o.links.extend(link);
                }
                None => {
                    report.add(
                        "records",
                        format!("object {id} doesn't exist, but has a name on another node"),
                        "that is forgotten",
                    );
                    m.changes.push((self.shard_of(ObjectId(id)), key, None));
                }
            }
        }
        for (id, key) in places {
            if m.objects.get(&id).is_none_or(|o| !o.inode.is_spread) {
                report.add(
                    "records",
                    format!("object {id} has chunks on other nodes, but doesn't exist, or has none there"),
                    "that is forgotten",
                );
                m.changes.push((self.shard_of(ObjectId(id)), key, None));
            }
        }
        report.objects = m.objects.len() as u64;
        report.entries = m.entries.len() as u64;
        Ok(m)
    }

    /// Assigns chunks and other records to their objects.
    fn assign(
        &self,
        m: &mut Model,
        chunks: BTreeMap<u64, BTreeMap<u64, ChunkMap>>,
        mut others: Others,
        orphans: Vec<u64>,
        report: &mut Report,
    ) {
        let mut nobodys = |m: &mut Model, id: u64, what: &str, keys: Vec<(usize, Vec<u8>)>| {
            report.add(
                "records",
                format!("object {id} doesn't exist, but has {what}"),
                "they are removed",
            );
            m.changes
                .extend(keys.into_iter().map(|(shard, key)| (shard, key, None)));
        };
        for (id, chunks) in chunks {
            let shard = self.shard_of(ObjectId(id));
            match m.objects.get_mut(&id) {
                Some(o) if o.inode.is_file() => o.chunks = chunks,
                None if m.left.contains(&id) => m.left_chunks.extend(chunks.into_values()),
                _ => {
                    let key = |n: &u64| (shard, Key::chunk(ObjectId(id), *n).to_vec());
                    let keys = chunks.keys().map(key).collect();
                    nobodys(m, id, "extents", keys);
                }
            }
        }
        for (id, keys) in std::mem::take(&mut others) {
            match m.objects.get_mut(&id) {
                Some(o) => o.attributes = keys.into_iter().map(|(_, key)| key).collect(),
                None if m.left.contains(&id) => _ = m.words.remove(&id),
                None => nobodys(m, id, "extended attributes", keys),
            }
        }
        let has_none = |id: &&u64| !m.objects.contains_key(id);
        let lost: Vec<u64> = m.summed.keys().filter(has_none).copied().collect();
        for id in lost {
            let keys = m.summed.remove(&id).unwrap_or_default();
            let shard = self.shard_of(ObjectId(id));
            let keys = keys.into_iter().map(|key| (shard, key)).collect();
            nobodys(m, id, "checksums", keys);
        }
        for id in orphans {
            let shard = self.shard_of(ObjectId(id));
            match m.objects.get_mut(&id) {
                Some(o) => o.orphan = true,
                None => {
                    let key = (shard, Key::orphan(ObjectId(id)).to_vec());
                    nobodys(m, id, "a note that it has no name", vec![key]);
                }
            }
        }
    }

    /// All changes, those of inodes included.
    pub(crate) fn all_changes(&self, m: &Model) -> Vec<Change> {
        let mut changes = m.changes.clone();
        for (&id, o) in m.objects.iter().filter(|(_, o)| o.changed) {
            let id = ObjectId(id);
            let record = o.inode.encode(&o.tail).to_vec();
            changes.push((self.shard_of(id), Key::inode(id).to_vec(), Some(record)));
        }
        changes
    }

    /// Removes a name.
    pub(crate) fn drop_name(&self, m: &mut Model, of: &Name) {
        m.entries.remove(of);
        let key = Key::entry(ObjectId(of.0), &of.1);
        let shard = self.shard_of_entry(ObjectId(of.0), &of.1);
        m.changes.push((shard, key.to_vec(), None));
    }

    /// Sets a name.
    pub(crate) fn set_name(&self, m: &mut Model, of: Name, entry: Entry) {
        let key = Key::entry(ObjectId(of.0), &of.1);
        let shard = self.shard_of_entry(ObjectId(of.0), &of.1);
        m.changes
            .push((shard, key.to_vec(), Some(entry.encode().to_vec())));
        m.entries.insert(of, entry);
    }

    /// Removes an object with all its records except its names.
    pub(crate) fn drop_object(&self, m: &mut Model, id: u64) {
        let Some(o) = m.objects.remove(&id) else {
            return;
        };
        let (id, shard) = (ObjectId(id), self.shard_of(ObjectId(id)));
        let mut keys = vec![Key::inode(id).to_vec()];
        keys.extend(o.chunks.keys().map(|n| Key::chunk(id, *n).to_vec()));
        keys.extend(o.attributes);
        keys.extend(m.summed.remove(&id.0).unwrap_or_default());
        if o.orphan {
            keys.push(Key::orphan(id).to_vec());
        }
        m.changes
            .extend(keys.into_iter().map(|key| (shard, key, None)));
    }
}

impl Model {
    /// `object 1025 ('/a/b')`: its number, and a name if it has one.
    pub fn description(&self, id: u64, names: &HashMap<u64, Vec<Name>>) -> String {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT.0 && parts.len() < 100 {
            match names.get(&at).and_then(|n| n.first()) {
                Some((parent, name)) => {
                    parts.push(name.clone());
                    at = *parent;
                }
                None => return format!("object {id}"),
            }
        }
        parts.reverse();
        format!(
            "object {id} ('/{}')",
            parts
                .iter()
                .map(|p| String::from_utf8_lossy(p))
                .collect::<Vec<_>>()
                .join("/")
        )
    }

    /// The names of each object.
    pub fn names(&self) -> HashMap<u64, Vec<Name>> {
        let mut names: HashMap<u64, Vec<Name>> = HashMap::new();
        for (name, e) in &self.entries {
            names.entry(e.id.0).or_default().push(name.clone());
        }
        names
    }
}

/// The object to which a record of the index belongs.
pub(crate) fn indexed_object(key: &[u8]) -> Option<ObjectId> {
    let by_value = parse_indexed(key).map(|(_, mark)| mark.id);
    by_value.or_else(|| parse_ordered(key).map(|(_, _, id)| id))
}

pub(crate) fn name(bytes: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(bytes))
}

/// A key as text.
fn shown(key: &[u8]) -> String {
    let text: String = key
        .iter()
        .take(40)
        .flat_map(|b| std::ascii::escape_default(*b))
        .map(char::from)
        .collect();
    format!("'{text}'")
}

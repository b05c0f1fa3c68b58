//! All objects and names of a store, as read from its records, and the changes that would repair
//! them.

use super::findings::Report;
use crate::attribute_view::is_path_of;
use crate::ephemeral::is_note;
use crate::index::{Indexed, key_of, known_in};
use crate::names::{is_unconfirmed, link_in};
use crate::placements::Placed;
use crate::record::{
    Change, ChunkMap, Entry, EntryRecord, Inode, JOURNAL, Key, parse_indexed, parse_key,
    parse_ordered,
};
use crate::recount::View;
use crate::{NAME_MAX, ObjectId, Store};
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
    /// Names among `links` that aren't confirmed, and so needn't be in the index yet.
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

/// The reason why a record is removed, and what its removal means.
struct Flaw {
    what: String,
    remedy: &'static str,
}

/// A record whose key could be parsed.
struct Stored<'a> {
    shard: usize,
    key: &'a [u8],
    value: &'a [u8],
    id: ObjectId,
    /// The part of the key after the id.
    rest: &'a [u8],
}

/// How records whose keys begin with one of some tags are read.
struct Kind {
    tags: &'static [u8],
    /// Whether there are such records in pools of several nodes only.
    is_remote: bool,
    /// Puts a record into the model; None if it can't be read.
    read: fn(&mut Reader<'_>, &Stored<'_>) -> Option<()>,
    /// Describes a record that can't be read.
    what: fn(&Stored<'_>) -> String,
    /// The remedy if a record can't be read.
    remedy: &'static str,
}

/// All kinds of records.
const KINDS: [Kind; 15] = [
    Kind {
        tags: b"I",
        is_remote: false,
        read: |r, s| {
            let (inode, tail) = Inode::decode(s.value).filter(|_| s.rest.is_empty())?;
            let object = r.model.objects.entry(s.id.0).or_default();
            (object.inode, object.tail) = (inode, tail.to_vec());
            Some(())
        },
        what: |s| format!("the record of object {} can't be read", s.id.0),
        remedy: "it is removed, with its names",
    },
    Kind {
        tags: b"D",
        is_remote: false,
        read: |r, s| {
            let e = EntryRecord::decode(s.value)?;
            if s.rest.len() > NAME_MAX || e.changing && r.store.remote.is_none() {
                return None;
            }
            r.model.entries.insert((s.id.0, s.rest.to_vec()), e.entry);
            Some(())
        },
        what: |s| {
            let name = name(s.rest);
            format!("the entry {name} of directory {} can't be read", s.id.0)
        },
        remedy: "it is removed; its object is put into /lost+found",
    },
    Kind {
        tags: b"X",
        is_remote: false,
        read: |r, s| {
            let chunk = u64::from_be_bytes(s.rest.try_into().ok()?);
            let map = ChunkMap::decode(s.value).filter(|_| chunk != 0)?;
            r.chunks.entry(s.id.0).or_default().insert(chunk, map);
            Some(())
        },
        what: |s| format!("extents of object {} can't be read", s.id.0),
        remedy: "they are removed; that part of the file reads as zero",
    },
    Kind {
        tags: b"L",
        is_remote: true,
        read: |r, s| {
            let (parent, name, counts) = link_in(s.rest, s.value)?;
            let is_link = counts && r.store.peers().is_entry_remote(parent, name);
            r.links.push(Link {
                id: s.id.0,
                name: is_link.then(|| (parent.0, name.to_vec())),
                is_unconfirmed: is_unconfirmed(s.value),
                key: s.key.to_vec(),
            });
            Some(())
        },
        what: |s| {
            let id = s.id.0;
            format!("a name of object {id} on another node can't be read")
        },
        remedy: "it is removed",
    },
    Kind {
        tags: b"E",
        is_remote: true,
        read: |r, s| {
            Placed::decode(s.value).filter(|_| s.rest.len() == 8)?;
            r.places.push((s.id.0, s.key.to_vec()));
            Some(())
        },
        what: |s| format!("where a chunk of object {} lies can't be read", s.id.0),
        remedy: "it is removed; that part of the file reads as zero",
    },
    // An intent: the next process that finds it completes it.
    Kind {
        tags: b"N",
        is_remote: true,
        read: |_, _| Some(()),
        what: |s| none_of_ours(s.key),
        remedy: "it is removed",
    },
    // If the file was removed, or doesn't lie in memory, the keeper deletes its record 'B'.
    Kind {
        tags: b"B",
        is_remote: false,
        read: |r, s| {
            let is_whole = s.rest.is_empty();
            is_whole.then(|| _ = r.model.landed.insert(s.id.0))
        },
        what: |s| none_of_ours(s.key),
        remedy: "it is removed",
    },
    // If the file was removed, the keeper deletes its record 'M', too.
    Kind {
        tags: b"M",
        is_remote: false,
        read: |_, s| (s.rest.is_empty() && is_note(s.value)).then_some(()),
        what: |s| format!("the note on who made object {} can't be read", s.id.0),
        remedy: "it is removed: the file stays when its maker ends",
    },
    // If the file was removed, its checksums are removed, as all records without an object are.
    Kind {
        tags: b"K",
        is_remote: false,
        read: |r, s| {
            let summed = &mut r.model.summed;
            let add = || summed.entry(s.id.0).or_default().push(s.key.to_vec());
            (s.rest.len() == 8).then(add)
        },
        what: |s| format!("checksums of object {} can't be read", s.id.0),
        remedy: "they are removed",
    },
    Kind {
        tags: b"O",
        is_remote: false,
        read: |r, s| {
            r.orphans.push(s.id.0);
            Some(())
        },
        what: |s| none_of_ours(s.key),
        remedy: "it is removed",
    },
    Kind {
        tags: b"T",
        is_remote: false,
        read: |r, s| {
            let is_whole = s.rest.is_empty() && s.value.len().is_multiple_of(8);
            is_whole.then(|| _ = r.model.left.insert(s.id.0))
        },
        what: |s| format!("what is left of object {} can't be read", s.id.0),
        remedy: "it is removed",
    },
    Kind {
        tags: b"A",
        is_remote: false,
        read: |r, s| {
            let others = r.others.entry(s.id.0).or_default();
            others.push((s.shard, s.key.to_vec()));
            let word = key_of(s.rest).map(|key| Indexed::new(key, s.value));
            r.model.words.entry(s.id.0).or_default().extend(word);
            Some(())
        },
        what: |s| none_of_ours(s.key),
        remedy: "it is removed",
    },
    Kind {
        tags: b"P",
        is_remote: false,
        read: |r, s| {
            let (dir, name) = known_in(s.rest)?;
            r.model.known.entry(s.id.0).or_default().push((dir.0, name));
            Some(())
        },
        what: |s| {
            let id = s.id.0;
            format!("a name of object {id} that is noted for the index can't be read")
        },
        remedy: "the note is removed",
    },
    Kind {
        tags: b"VR",
        is_remote: false,
        read: |r, s| {
            indexed_object(s.key).filter(|_| s.value.is_empty())?;
            r.model.indexed.insert(s.key.to_vec());
            Some(())
        },
        what: |s| format!("a place of the index, {}, can't be read", shown(s.key)),
        remedy: "it is removed",
    },
    Kind {
        tags: b"W",
        is_remote: false,
        read: |_, s| {
            let is_whole = s.rest.is_empty() && is_path_of(s.id, s.value);
            is_whole.then_some(())
        },
        what: |s| format!("a directory of the view, {}, can't be read", shown(s.key)),
        remedy: "it is removed; whoever looks it up makes it anew",
    },
];

/// A record that says that an object has a name on another node.
struct Link {
    id: u64,
    /// The name, if it counts as a link.
    name: Option<Name>,
    is_unconfirmed: bool,
    key: Vec<u8>,
}

/// A model that is being read, and the records that are assigned to objects once all are read.
struct Reader<'a> {
    store: &'a Store,
    model: Model,
    chunks: BTreeMap<u64, BTreeMap<u64, ChunkMap>>,
    others: Others,
    orphans: Vec<u64>,
    links: Vec<Link>,
    /// Objects with chunks on other nodes, and the keys of the records that say so.
    places: Vec<(u64, Vec<u8>)>,
}

impl Reader<'_> {
    /// Puts a record into the model.
    fn read(&mut self, shard: usize, key: &[u8], value: &[u8]) -> std::result::Result<(), Flaw> {
        if key == JOURNAL {
            return Err(Flaw {
                what: "a commit over several shards isn't complete".into(),
                remedy: "what can be read of it is completed, the rest is removed",
            });
        }
        let foreign = || Flaw {
            what: none_of_ours(key),
            remedy: "it is removed",
        };
        let (tag, id, rest) = parse_key(key).ok_or_else(foreign)?;
        let is_read =
            |k: &&Kind| k.tags.contains(&tag) && (!k.is_remote || self.store.remote.is_some());
        let kind = KINDS.iter().find(is_read).ok_or_else(foreign)?;
        let home = match tag {
            b'D' | b'N' => self.store.files.shard_of_entry(id, rest),
            b'V' | b'R' => indexed_object(key).map_or(shard, |id| self.store.files.shard_of(id)),
            _ => self.store.files.shard_of(id),
        };
        if home != shard {
            return Err(Flaw {
                what: format!("the key {} belongs to shard {home}", shown(key)),
                remedy: "it is removed; what it led to is put into /lost+found",
            });
        }
        let stored = Stored {
            shard,
            key,
            value,
            id,
            rest,
        };
        (kind.read)(self, &stored).ok_or_else(|| Flaw {
            what: (kind.what)(&stored),
            remedy: kind.remedy,
        })
    }

    /// Assigns all records to their objects.
    fn finish(self, report: &mut Report) -> Model {
        let Reader {
            store,
            model: mut m,
            links,
            places,
            ..
        } = self;
        assign(
            store,
            &mut m,
            self.chunks,
            self.others,
            self.orphans,
            report,
        );
        let mut nobodys = |m: &mut Model, id: u64, what: String, key: Vec<u8>| {
            report.add("records", what, "that is forgotten");
            m.changes
                .push((store.files.shard_of(ObjectId(id)), key, None));
        };
        for link in links {
            let id = link.id;
            match m.objects.get_mut(&id) {
                Some(o) => {
                    let unsure = link.name.clone().filter(|_| link.is_unconfirmed);
                    o.unconfirmed.extend(unsure);
                    o.links.extend(link.name);
                }
                None => {
                    let what = format!("object {id} doesn't exist, but has a name on another node");
                    nobodys(&mut m, id, what, link.key);
                }
            }
        }
        for (id, key) in places {
            if m.objects.get(&id).is_none_or(|o| !o.inode.is_spread) {
                let what = format!(
                    "object {id} has chunks on other nodes, but doesn't exist, or has none there"
                );
                nobodys(&mut m, id, what, key);
            }
        }
        m
    }
}

/// Reads all records into a model, and reports damaged ones.
pub(crate) fn read_model(store: &Store, view: &View<'_>, report: &mut Report) -> Result<Model> {
    let mut reader = Reader {
        store,
        model: Model::default(),
        chunks: BTreeMap::new(),
        others: Others::new(),
        orphans: Vec::new(),
        links: Vec::new(),
        places: Vec::new(),
    };
    for (shard, records) in view.shards.iter().enumerate() {
        records.each_stored(|key, value, sealed| {
            if !sealed {
                let what = format!(
                    "shard {shard}: the checksum of {} doesn't fit: something has written over it",
                    shown(key)
                );
                let remedy = "what can be read of it is kept; look whether it is right";
                report.add("records", what, remedy);
                let change = (shard, key.to_vec(), Some(value.to_vec()));
                reader.model.changes.push(change);
            }
            if let Err(flaw) = reader.read(shard, key, value) {
                let what = format!("shard {shard}: {}", flaw.what);
                report.add("records", what, flaw.remedy);
                reader.model.changes.push((shard, key.to_vec(), None));
            }
            true
        })?;
    }
    let m = reader.finish(report);
    report.objects = m.objects.len() as u64;
    report.entries = m.entries.len() as u64;
    Ok(m)
}

/// Assigns chunks and other records to their objects.
fn assign(
    store: &Store,
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
        let shard = store.files.shard_of(ObjectId(id));
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
        let shard = store.files.shard_of(ObjectId(id));
        let keys = keys.into_iter().map(|key| (shard, key)).collect();
        nobodys(m, id, "checksums", keys);
    }
    for id in orphans {
        let shard = store.files.shard_of(ObjectId(id));
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
pub(crate) fn all_changes(store: &Store, m: &Model) -> Vec<Change> {
    let mut changes = m.changes.clone();
    for (&id, o) in m.objects.iter().filter(|(_, o)| o.changed) {
        let id = ObjectId(id);
        let record = o.inode.encode(&o.tail).to_vec();
        changes.push((
            store.files.shard_of(id),
            Key::inode(id).to_vec(),
            Some(record),
        ));
    }
    changes
}

/// Removes a name.
pub(crate) fn drop_name(store: &Store, m: &mut Model, of: &Name) {
    m.entries.remove(of);
    let key = Key::entry(ObjectId(of.0), &of.1);
    let shard = store.files.shard_of_entry(ObjectId(of.0), &of.1);
    m.changes.push((shard, key.to_vec(), None));
}

/// Sets a name.
pub(crate) fn set_name(store: &Store, m: &mut Model, of: Name, entry: Entry) {
    let key = Key::entry(ObjectId(of.0), &of.1);
    let shard = store.files.shard_of_entry(ObjectId(of.0), &of.1);
    m.changes
        .push((shard, key.to_vec(), Some(entry.encode().to_vec())));
    m.entries.insert(of, entry);
}

/// Removes an object with all its records except its names.
pub(crate) fn drop_object(store: &Store, m: &mut Model, id: u64) {
    let Some(o) = m.objects.remove(&id) else {
        return;
    };
    let (id, shard) = (ObjectId(id), store.files.shard_of(ObjectId(id)));
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

fn none_of_ours(key: &[u8]) -> String {
    format!("the key {} is none of ours", shown(key))
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

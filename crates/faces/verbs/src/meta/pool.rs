//! A pool as metadata store: a workspace is a directory in the pool's root, a collection a regular
//! file in the workspace's directory. Metadata are `user.*` extended attributes, so shells,
//! `getfattr` and the view `.by/` see them, and the pool's own index answers searches. A UUID is
//! composed of the pool's id and the object's id, which never change, so it isn't stored. Regular
//! files that other programs have created in a workspace are collections, too, with the back end
//! `forebay`. Finding such a file by its UUID reads all names of the workspace, as the pool doesn't
//! record the names of files without attributes.
//!
//! A file is created with its attributes and its name in one step, so no process sees half a
//! record. A directory is created under a hidden name, then renamed.

mod hidden;
mod log;

use super::{Change, Key, New, Record, Scope, Store};
use crate::controls_text::{read_controls, write_controls};
use crate::meta::undo::UndoLog;
use crate::pool::Attached;
use crate::{Error, Meta, Predicate, Result, Uuid};
use forebay_controls::{Controls, Declared};
use forebay_posix::{Entry, Fail, FileToMake, Follow, ObjectId, RenameMode};
use forebay_store::controls::declared;
use forebay_store::{Description, Match};
use rustix::io::Errno;
use std::collections::BTreeMap;

const USER: &[u8] = b"user.";
/// The attribute that names a collection's back end.
const BACKEND: &[u8] = b"user.forebay.backend";
/// The attribute with the controls of a collection or workspace that aren't declared for its file.
/// The controls declared for the file itself are in `user.forebay.controls`.
const CONTROLS: &[u8] = b"user.forebay.said";
const DEFAULT: &str = "forebay";

/// A metadata store in a pool.
pub struct Pool {
    fs: Attached,
    /// The bytes with which the UUIDs of this pool's objects begin.
    prefix: [u8; 6],
    name: String,
}

/// Number of records fetched per request when all are read.
const RECORDS_PER_REQUEST: usize = 1024;

/// Maximum number of tries of an operation while other processes change names.
const ATTEMPTS: usize = 1000;

type Errnos<T> = std::result::Result<T, Errno>;

/// Returns the bytes with which the UUIDs of a pool's objects begin.
fn prefix(fs: &Attached) -> [u8; 6] {
    let mut prefix = [0; 6];
    // The pool's UUID has 32 hexadecimal digits, as its configuration was checked.
    let digits = fs.pool().config().uuid.as_bytes().chunks(2);
    for (byte, digits) in prefix.iter_mut().zip(digits) {
        let text = std::str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(text, 16).unwrap_or_default();
    }
    prefix
}

fn uuid_of(prefix: [u8; 6], id: ObjectId) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&prefix);
    let id = id.0.to_be_bytes();
    bytes[7] = id[0];
    bytes[9..].copy_from_slice(&id[1..]);
    Uuid::version(bytes, 8)
}

fn id_of(prefix: [u8; 6], uuid: Uuid) -> Option<ObjectId> {
    let mut id = [0; 8];
    id[0] = uuid.0[7];
    id[1..].copy_from_slice(&uuid.0[9..]);
    let id = ObjectId(u64::from_be_bytes(id));
    (uuid_of(prefix, id) == uuid && !id.is_view()).then_some(id)
}

/// Returns the object of a UUID, if the UUID is of this pool.
pub(crate) fn object_of(fs: &Attached, uuid: Uuid) -> Option<ObjectId> {
    id_of(prefix(fs), uuid)
}

impl Pool {
    pub(crate) fn new(fs: Attached) -> Pool {
        let prefix = prefix(&fs);
        let name = format!("the pool '{}'", fs.pool().config().name);
        Pool { fs, prefix, name }
    }

    fn uuid_of(&self, id: ObjectId) -> Uuid {
        uuid_of(self.prefix, id)
    }

    /// Returns the object of a UUID, if the UUID is of this pool.
    fn id_of(&self, uuid: Uuid) -> Option<ObjectId> {
        id_of(self.prefix, uuid)
    }

    fn failed(&self, what: impl std::fmt::Display, errno: Errno) -> Error {
        Error::of(format!("{what}, in {}", self.name), errno)
    }

    fn gone(&self, uuid: Uuid) -> Error {
        Error::new(
            Errno::NOENT,
            format!("there is nothing with the UUID {uuid} in {}", self.name),
        )
    }

    /// Returns the id of a scope's directory. ENOENT if its UUID isn't of this pool.
    fn dir_id(&self, scope: Scope) -> Errnos<ObjectId> {
        match scope {
            Scope::Root => Ok(ObjectId::ROOT),
            Scope::In(uuid) => self.id_of(uuid).ok_or(Errno::NOENT),
        }
    }

    /// Returns the id of a scope's directory, and its path.
    fn dir(&self, scope: Scope) -> Result<(ObjectId, Vec<u8>)> {
        let Scope::In(uuid) = scope else {
            return Ok((ObjectId::ROOT, b"/".to_vec()));
        };
        let gone = || Error::new(Errno::NOENT, format!("there is no workspace {uuid}"));
        let id = self.id_of(uuid).ok_or_else(gone)?;
        match self.fs.cluster().namespace().inode_tail(id) {
            Ok((inode, name)) if inode.is_dir() && inode.parent == ObjectId::ROOT.0 => {
                Ok((id, [b"/", &name[..], b"/"].concat()))
            }
            Ok(_) | Err(Errno::NOENT) => Err(gone()),
            Err(e) => Err(self.failed(format!("workspace {uuid}"), e)),
        }
    }

    /// Whether an object of this kind and name is a record of the scope.
    fn is_record(scope: Scope, kind: u32, name: &[u8]) -> bool {
        let wanted = match scope {
            Scope::Root => libc::S_IFDIR,
            Scope::In(_) => libc::S_IFREG,
        };
        kind == wanted && !name.starts_with(b".")
    }

    /// Reads the record of an object.
    fn record(&self, id: ObjectId, name: &[u8]) -> Errnos<Record> {
        self.record_described((id, name), &self.fs.cluster().search().describe(id)?)
    }

    /// Makes the record of an object from its description. Reads attributes that the description
    /// lacks.
    fn record_described(&self, (id, name): (ObjectId, &[u8]), is: &Description) -> Errnos<Record> {
        let (own, _) = declared(is.inode.controls);
        if let Some(all) = &is.attributes {
            return self.record_of((id, name), own, all);
        }
        let cluster = self.fs.cluster();
        let mut attributes = Vec::new();
        for attribute in cluster.namespace().attributes(id)? {
            if !attribute.starts_with(USER) {
                continue;
            }
            match cluster.namespace().attribute(id, &attribute) {
                // The attribute was removed meanwhile.
                Err(Errno::NODATA) => {}
                value => attributes.push((attribute, value?)),
            }
        }
        self.record_of((id, name), own, &attributes)
    }

    /// Makes the record of an object from its attributes. `own`: the controls declared for the file
    /// itself.
    fn record_of(
        &self,
        (id, name): (ObjectId, &[u8]),
        own: Declared,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> Errnos<Record> {
        let mut record = Record {
            uuid: self.uuid_of(id),
            name: String::from_utf8_lossy(name).into_owned(),
            meta: Meta::new(),
            backend: DEFAULT.into(),
            place: String::new(),
            controls: Controls::default(),
        };
        for (attribute, value) in attributes {
            let Some(key) = attribute.strip_prefix(USER).filter(|key| !key.is_empty()) else {
                continue;
            };
            let text = String::from_utf8_lossy(value).into_owned();
            match &attribute[..] {
                BACKEND => record.backend = text,
                CONTROLS => {
                    record.controls = read_controls(&text).map_err(|_| Errno::PROTO)?;
                }
                _ => {
                    let key = String::from_utf8_lossy(key).into_owned();
                    record.meta.insert(key, text);
                }
            }
        }
        // The controls of the file itself take precedence, since they may come from a rule, or be
        // newer than the attribute.
        let controls = &mut record.controls;
        controls.consistency = own.consistency.unwrap_or(controls.consistency);
        controls.mutability = own.mutability.unwrap_or(controls.mutability);
        controls.temporality = own.temporality.unwrap_or(controls.temporality);
        controls.persistence = own.persistence.unwrap_or(controls.persistence);
        controls.parallelism = own.parallelism.unwrap_or(controls.parallelism);
        controls.integrity = own.integrity.unwrap_or(controls.integrity);
        controls.on_violation = own.on_violation.unwrap_or(controls.on_violation);
        Ok(record)
    }

    /// Returns the attributes of a new record.
    fn attributes(new: &New<'_>, scope: Scope) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let own = |(key, value): (&String, &String)| {
            ([USER, key.as_bytes()].concat(), value.as_bytes().to_vec())
        };
        let mut all: Vec<_> = new.meta.iter().map(own).collect();
        if scope != Scope::Root {
            all.push((BACKEND.to_vec(), new.backend.as_bytes().to_vec()));
        }
        // Controls that are declared for the file itself aren't recorded in the attribute.
        let noted = Declared::needed_for(&new.controls)
            .beside(&new.of_file)
            .resolve();
        if noted != Controls::default() {
            all.push((CONTROLS.to_vec(), write_controls(&noted).into_bytes()));
        }
        Ok(all)
    }

    /// Returns the error for a record that can't be created.
    fn cannot(&self, new: &New<'_>, errno: Errno) -> Error {
        match errno {
            Errno::EXIST => Error::new(
                Errno::EXIST,
                format!("'{}' exists already, in {}", new.name, self.name),
            ),
            e => self.failed(format!("can't create '{}'", new.name), e),
        }
    }

    /// Returns the record of an object that was just created.
    fn new_record(&self, scope: Scope, new: &New<'_>, id: ObjectId) -> Record {
        Record {
            uuid: self.uuid_of(id),
            name: new.name.into(),
            meta: new.meta.clone(),
            backend: match scope {
                Scope::Root => DEFAULT.into(),
                Scope::In(_) => new.backend.into(),
            },
            place: String::new(),
            controls: new.controls,
        }
    }

    /// Tries once to create files in a workspace's directory. Returns for each file its record, the
    /// error of `before` or of invalid options, or the pool's error.
    fn make_files(
        &self,
        (scope, dir): (Scope, ObjectId),
        all: &[&New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Errnos<Result<Record>>> {
        let names: Vec<&[u8]> = all.iter().map(|new| new.name.as_bytes()).collect();
        let ids = match self.fs.draw_files(dir, &names) {
            Ok(ids) => ids,
            Err(e) => return all.iter().map(|_| Err(e)).collect(),
        };
        let planned = all.iter().zip(&ids).enumerate().map(|(i, (new, id))| {
            let attributes = Pool::attributes(new, scope)?;
            let record = self.new_record(scope, new, *id);
            before(i, &record).map(|()| (record, attributes))
        });
        let planned: Vec<Result<_>> = planned.collect();
        let wanted = all.iter().zip(ids).zip(&planned);
        let files: Vec<FileToMake<'_>> = wanted
            .filter_map(|((new, id), planned)| {
                let (_, attributes) = planned.as_ref().ok()?;
                Some(FileToMake {
                    id,
                    name: new.name.as_bytes(),
                    attributes,
                    own_controls: new.of_file,
                })
            })
            .collect();
        let made = self.fs.make_files(dir, &files, self.fs.mode(0o666));
        let made = made.unwrap_or_else(|e| vec![Err(e); files.len()]);
        let mut made = made.into_iter();
        let end = |planned: Result<(Record, _)>| match planned {
            Ok((record, _)) => made.next().unwrap_or(Err(Errno::IO)).map(|()| Ok(record)),
            Err(e) => Ok(Err(e)),
        };
        planned.into_iter().map(end).collect()
    }

    /// Finds a record by its name. If the record is found, the workspace exists and isn't looked
    /// up.
    fn find_name(&self, scope: Scope, name: &str) -> Errnos<Record> {
        super::check_name(name).map_err(|_| Errno::NOENT)?;
        let dir = self.dir_id(scope)?;
        let name = name.as_bytes();
        let (id, kind) = self.at(dir, name)?;
        if Pool::is_record(scope, kind, name) {
            self.record(id, name)
        } else {
            Err(Errno::NOENT)
        }
    }

    fn find_uuid(&self, scope: Scope, uuid: Uuid) -> Errnos<Record> {
        let dir = self.dir_id(scope)?;
        let id = self.id_of(uuid).ok_or(Errno::NOENT)?;
        let is = self.fs.cluster().search().describe(id)?;
        let name = self.name_in((scope, dir), id, &is)?;
        self.record_described((id, &name.ok_or(Errno::NOENT)?), &is)
    }

    fn set_all(&self, id: ObjectId, attributes: &[(Vec<u8>, Vec<u8>)]) -> Errnos<()> {
        let set =
            |(name, value): &(Vec<u8>, Vec<u8>)| self.fs.set_attribute(id, name, value, 0, None);
        attributes.iter().try_for_each(set)
    }

    /// Returns the id and kind of the object at a path below a directory.
    fn at(&self, dir: ObjectId, path: &[u8]) -> Errnos<(ObjectId, u32)> {
        let entry = self
            .fs
            .resolver()
            .at(dir, path, Follow::No, |place| place.existing());
        entry.map(|e| (e.id, e.kind)).map_err(inside)
    }

    /// Returns the name of an object in a directory, if the object is a record of the scope under
    /// this name.
    fn name_in(
        &self,
        (scope, dir): (Scope, ObjectId),
        id: ObjectId,
        is: &Description,
    ) -> Errnos<Option<Vec<u8>>> {
        let name = match &is.name {
            Some((parent, name)) if *parent == dir => name.clone(),
            // The description lacks the name in this directory: searches for it.
            _ => self
                .fs
                .cluster()
                .namespace()
                .name_in(dir, id)?
                .unwrap_or_default(),
        };
        let is_one = !name.is_empty() && Pool::is_record(scope, is.inode.kind(), &name);
        Ok(is_one.then_some(name))
    }

    /// Returns the record for a match of the index, if the match is a record of the scope.
    fn found(&self, scope: Scope, found: &Match) -> Errnos<Option<Record>> {
        if !Pool::is_record(scope, found.kind, &found.name) {
            return Ok(None);
        }
        let record = match &found.attributes {
            Some(all) => self.record_of((found.id, &found.name), declared(found.controls).0, all),
            None => self.record(found.id, &found.name),
        };
        match record {
            // The object was removed meanwhile.
            Err(Errno::NOENT) => Ok(None),
            record => record.map(Some),
        }
    }

    fn search_dir(
        &self,
        scope: Scope,
        (dir, path): (ObjectId, &[u8]),
        predicate: &Predicate,
        most: usize,
    ) -> Errnos<Vec<Record>> {
        let mut found = BTreeMap::new();
        let Some(plan) = predicate.plan() else {
            self.search_all(scope, path, predicate, most, &mut found)?;
            return Ok(found.into_values().collect());
        };
        for terms in &plan {
            let mut failed = Ok(());
            self.fs.cluster().search().matching(terms, dir, |one| {
                match self.found(scope, &one) {
                    Ok(Some(record)) if predicate.holds(&record.meta) => {
                        found.insert(one.name, record);
                    }
                    Ok(_) => {}
                    Err(e) => failed = Err(e),
                }
                while found.len() > most {
                    found.pop_last();
                }
            })?;
            failed?;
        }
        Ok(found.into_values().collect())
    }

    /// Adds a directory's first `most` records, by name, for which the predicate holds. Uses no
    /// index.
    fn search_all(
        &self,
        scope: Scope,
        path: &[u8],
        predicate: &Predicate,
        most: usize,
        found: &mut BTreeMap<Vec<u8>, Record>,
    ) -> Errnos<()> {
        let entries = self.fs.list(path)?.into_iter();
        let entries = entries.filter(|e| Pool::is_record(scope, e.kind, &e.name));
        let entries: BTreeMap<_, _> = entries.map(|e| (e.name, ObjectId(e.ino))).collect();
        let entries: Vec<_> = entries.into_iter().collect();
        for part in entries.chunks(RECORDS_PER_REQUEST) {
            let ids: Vec<_> = part.iter().map(|(_, id)| *id).collect();
            let all = self.fs.cluster().search().describe_all(&ids);
            for ((name, id), is) in part.iter().zip(all) {
                if found.len() >= most {
                    return Ok(());
                }
                let record = is.and_then(|is| self.record_described((*id, name), &is));
                match record {
                    // The object was removed meanwhile.
                    Err(Errno::NOENT) => {}
                    record => {
                        let record = record?;
                        if predicate.holds(&record.meta) {
                            found.insert(name.clone(), record);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn inside(fail: Fail) -> Errno {
    match fail {
        Fail::Errno(e) => e,
        Fail::Outside(_) | Fail::Origin(_) => Errno::XDEV,
    }
}

impl Store for Pool {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record> {
        if let Scope::In(_) = scope {
            let all = std::slice::from_ref(new);
            let made = self.create_all(scope, all, &mut |_, record| before(record));
            let nothing = || Err(self.cannot(new, Errno::IO));
            return made.into_iter().next().unwrap_or_else(nothing);
        }
        let path = [b"/", new.name.as_bytes()].concat();
        let attributes = Pool::attributes(new, scope)?;
        let failed = |e| self.cannot(new, e);
        // Avoids creating a directory that can't get its name. The rename below decides races.
        if self.at(ObjectId::ROOT, &path).is_ok() {
            return Err(failed(Errno::EXIST));
        }
        let hidden = hidden::Hidden::make(&self.fs, new.name)?;
        let made = (|| {
            let (id, _) = self.at(ObjectId::ROOT, hidden.path()).map_err(failed)?;
            self.set_all(id, &attributes).map_err(failed)?;
            let record = self.new_record(scope, new, id);
            before(&record)?;
            let root = ObjectId::ROOT;
            let (from, to) = ((root, hidden.path()), (root, &path[..]));
            let named = self.fs.rename_at(from, to, RenameMode::NoReplace);
            named.map_err(inside).map_err(failed)?;
            Ok(record)
        })();
        if made.is_err() {
            hidden.remove();
        }
        made
    }

    fn create_all(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Result<Record>> {
        let dir = match (scope, self.dir(scope)) {
            (Scope::In(_), Ok((dir, _))) => dir,
            (_, Err(e)) => return vec![Err(e); all.len()],
            (Scope::Root, _) => {
                let one = |(i, new)| self.create(scope, new, &mut |record| before(i, record));
                return all.iter().enumerate().map(one).collect();
            }
        };
        let mut results: Vec<Result<Record>> = Vec::new();
        let mut left: Vec<usize> = (0..all.len()).collect();
        for _ in 0..ATTEMPTS {
            let news: Vec<&New<'_>> = left.iter().map(|&i| &all[i]).collect();
            let made = self.make_files((scope, dir), &news, &mut |n, r| before(left[n], r));
            let mut again = Vec::new();
            for (made, &i) in made.into_iter().zip(&left) {
                let made = made.unwrap_or_else(|errno| {
                    // A name changed during the request, so this record is tried again.
                    if errno == Errno::STALE {
                        again.push(i);
                    }
                    Err(self.cannot(&all[i], errno))
                });
                match results.get_mut(i) {
                    Some(result) => *result = made,
                    None => results.push(made),
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
        results
    }

    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record> {
        let found = match key {
            Key::Name(name) => self.find_name(scope, name),
            Key::Uuid(uuid) => self.find_uuid(scope, uuid),
        };
        found.map_err(|e| match (e, key) {
            // Tells a removed workspace from a missing collection.
            (Errno::NOENT, _) if let Err(gone) = self.dir(scope) => gone,
            (Errno::NOENT, Key::Name(name)) => Error::new(
                Errno::NOENT,
                format!("there is no '{name}' in {}", self.name),
            ),
            (Errno::NOENT, Key::Uuid(uuid)) => self.gone(uuid),
            (e, _) => self.failed("can't look it up", e),
        })
    }

    fn find_all(&self, scope: Scope, keys: &[Key<'_>]) -> Vec<Result<Record>> {
        let name = |key: &Key<'_>| match *key {
            Key::Name(name) if super::check_name(name).is_ok() => Some(name.to_owned()),
            _ => None,
        };
        let names: Vec<Option<String>> = keys.iter().map(name).collect();
        let wanted: Vec<&[u8]> = names.iter().flatten().map(String::as_bytes).collect();
        let found = match scope {
            Scope::In(_) if !wanted.is_empty() => {
                let dir = self.dir(scope).ok();
                dir.and_then(|(dir, _)| self.fs.look_up_all(dir, &wanted).ok())
            }
            _ => None,
        };
        let mut found = found.unwrap_or_default().into_iter();
        let one = |(key, name): (&Key<'_>, &Option<String>)| {
            let there = name.as_ref().and_then(|name| Some((found.next()?, name)));
            match there {
                Some((Ok(Some(e)), name)) if Pool::is_record(scope, e.kind, name.as_bytes()) => {
                    let record = self.record(e.id, name.as_bytes());
                    record.map_err(|e| self.failed("can't look it up", e))
                }
                // The joint request had no clear result: a single look-up finds the collection or
                // gives the error.
                _ => self.find(scope, *key),
            }
        };
        keys.iter().zip(&names).map(one).collect()
    }

    fn remove_all(&self, scope: Scope, all: &[Record]) -> Vec<Result<()>> {
        let entry = |record: &Record| Entry {
            id: self.id_of(record.uuid).unwrap_or(ObjectId(0)),
            kind: libc::S_IFREG,
        };
        let entries = all.iter().map(|r| (r.name.as_bytes(), entry(r)));
        let entries: Vec<(&[u8], Entry)> = entries.collect();
        let removed = match (scope, self.dir(scope)) {
            (Scope::In(_), Ok((dir, _))) => self.fs.remove_files(dir, &entries).ok(),
            _ => None,
        };
        let mut removed = removed.unwrap_or_default().into_iter();
        let one = |record: &Record| match removed.next() {
            Some(Ok(true)) => Ok(()),
            // Whether the collection was removed isn't known.
            Some(Err(e @ (Errno::HOSTDOWN | Errno::IO | Errno::TIMEDOUT | Errno::PROTO))) => {
                Err(self.failed(format!("can't remove '{}'", record.name), e))
            }
            // A conflict with another operation: removing this record alone waits for that
            // operation, or gives the error.
            _ => self.remove(scope, record.uuid),
        };
        all.iter().map(one).collect()
    }

    fn removes_together(&self) -> bool {
        self.fs.store().peers().node_of_several().is_some()
    }

    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>> {
        let (dir, path) = self.dir(scope)?;
        let found = self.search_dir(scope, (dir, &path), predicate, most);
        found.map_err(|e| self.failed("can't search", e))
    }

    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta> {
        let record = self.find(scope, Key::Uuid(uuid))?;
        let id = self.id_of(uuid).ok_or_else(|| self.gone(uuid))?;
        let (dir, _) = self.dir(scope)?;
        let known = Some((dir, record.name.as_bytes()));
        for (key, value) in changes {
            let name = [USER, key.as_bytes()].concat();
            let changed = match value {
                Some(value) => {
                    let value = value.as_bytes();
                    self.fs.set_attribute(id, &name, value, 0, known)
                }
                None => match self.fs.remove_attribute(id, &name) {
                    Err(Errno::NODATA) => Ok(()),
                    removed => removed,
                },
            };
            changed.map_err(|e| self.failed(format!("can't change '{key}'"), e))?;
        }
        Ok(record.meta)
    }

    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()> {
        let record = self.find(scope, Key::Uuid(uuid))?;
        let (_, dir) = self.dir(scope)?;
        let path = [&dir, record.name.as_bytes()].concat();
        let removed = match scope {
            Scope::Root => self.fs.rmdir(&path),
            Scope::In(_) => self.fs.unlink(&path),
        };
        removed.map_err(|e| match (e, scope) {
            (Errno::NOTEMPTY, Scope::Root) => Error::new(
                Errno::NOTEMPTY,
                format!(
                    "the workspace '{}' has collections, or other files",
                    record.name
                ),
            ),
            (e, _) => self.failed(format!("can't remove '{}'", record.name), e),
        })
    }

    fn undo_log(&self) -> Result<Box<dyn UndoLog>> {
        Ok(Box::new(log::Log::create(&self.fs)?))
    }

    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>> {
        let left = log::Log::left_behind(&self.fs);
        let left = left.map_err(|e| self.failed("can't look for batches of the dead", e))?;
        Ok(left.into_iter().map(|log| Box::new(log) as _).collect())
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

//! etcd as metadata store, for workspaces that outlive a job, or that several pools share.
//!
//! Records, names and an index are keys under a prefix ([`schema`]). Each change is one transaction
//! of etcd, with conditions: a name doesn't exist yet, a record is as it was read, a workspace is
//! empty. So no process sees half a change, and of two changes that exclude each other one is
//! refused. Searches read ranges of the index, all as of one revision. Reads use a local copy
//! ([`copy`]); etcd is asked only whether the copy is fresh ([`fresh`]).
//!
//! A request whose reply was lost may have been carried out. Most requests can be repeated: if the
//! first one was carried out, the conditions of the second don't hold. But a creation whose reply
//! was lost could be carried out late, after the record that its repetition created was removed. So
//! the store first writes a *fence*, a key whose absence is one of the creation's conditions. Then
//! the store reads whether the record exists.

mod client;
mod copy;
mod create;
mod fresh;
mod lease;
mod log;
mod place;
mod schema;
mod search;

use super::{Change, Key, New, Record, Scope, Store};
use crate::meta::undo::UndoLog;
use crate::{Error, Meta, Predicate, Result, Uuid};
use api::{Answer, Pair};
use client::Client;
use forebay_etcd::api;
use fresh::Cache;
use lease::Lease;
use place::Place;
use rustix::io::Errno;
use schema::Schema;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of index entries in a transaction with their record. etcd takes 128 operations in
/// a transaction, including nested ones. Further entries are written before the record that has
/// their values, or removed after the change that removes their values from the record.
const MAX_ENTRIES_WITH_RECORD: usize = 50;
/// Maximum number of further index entries that one transaction writes or removes.
const MAX_OPERATIONS_PER_TRANSACTION: usize = 100;
/// How long an update is retried while other sessions change the same record.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);

const TRANSACTION: &str = "/v3/kv/txn";
const RANGE: &str = "/v3/kv/range";

/// A metadata store in etcd.
pub struct Etcd {
    shared: Arc<Shared>,
    name: String,
    lease: Lease,
    /// The local copy; None if the session uses none.
    cache: Option<Cache>,
}

/// The part of the store that undo logs use as well.
struct Shared {
    client: Client,
    schema: Schema,
}

impl Shared {
    fn transaction(
        &self,
        compare: Vec<Value>,
        then: Vec<Value>,
        otherwise: Vec<Value>,
    ) -> Result<Answer> {
        let request = api::transaction(compare, then, otherwise);
        self.client.ask(TRANSACTION, &request)
    }

    fn transaction_once(
        &self,
        compare: Vec<Value>,
        then: Vec<Value>,
        otherwise: Vec<Value>,
    ) -> forebay_etcd::Result<Answer> {
        let request = api::transaction(compare, then, otherwise);
        self.client.ask_once(TRANSACTION, &request)
    }

    /// Returns the store's identity: a random number, which the first process that uses the store
    /// writes.
    fn identity(&self) -> Result<String> {
        let key = self.schema.store();
        let look = |answer: &Answer| answer.one(0).map(|pair| pair.value.0.clone());
        let found = match look(&self.transaction(vec![], vec![api::get(&key)], vec![])?) {
            Some(found) => found,
            None => {
                let new = schema::store_text(Uuid::random()?);
                let (absent, put) = (api::absent(&key), api::put(&key, &new));
                let made = self.transaction(vec![absent], vec![put], vec![api::get(&key)])?;
                if made.succeeded {
                    new
                } else {
                    look(&made).unwrap_or_default()
                }
            }
        };
        schema::store_of(&found)
    }
}

impl Etcd {
    /// Opens the store at this place: `//HOST:PORT...`, without the leading `etcd:`.
    ///
    /// # Errors
    /// EINVAL for an invalid place; if etcd can't be reached, or if keys of another program have
    /// the prefix.
    pub fn open(text: &str) -> Result<Etcd> {
        let place = Place::parse(text)?;
        let name = format!("etcd://{}{}", place.endpoints.join(","), place.prefix);
        let shared = Arc::new(Shared {
            client: Client::new(&place)?,
            schema: Schema::new(&place.prefix),
        });
        let store = shared.identity().map_err(|e| e.about(&name))?;
        let cache = match &place.cache {
            None => None,
            Some(dir) => {
                let copy = copy::open(dir, &store).map_err(|e| {
                    e.about("choose another directory by ?cache=DIR, or none by ?cache=off")
                })?;
                Some(Cache::new(copy, place.age, store))
            }
        };
        Ok(Etcd {
            cache,
            lease: Lease::new(&shared),
            shared,
            name,
        })
    }

    fn schema(&self) -> &Schema {
        &self.shared.schema
    }

    /// Notes that this session has changed a scope. `revision`: the revision of the change; None if
    /// unknown.
    fn changed(&self, scope: Scope, revision: Option<u64>) {
        if let Some(cache) = &self.cache {
            cache.changed(scope, revision);
        }
    }

    fn failed(&self, what: impl std::fmt::Display, error: Error) -> Error {
        error.about(format!("{what}, in {}", self.name))
    }

    fn no_workspace(&self, scope: Scope) -> Error {
        let text = format!("there is no workspace {}", schema::scope_uuid(scope));
        Error::new(Errno::NOENT, text)
    }

    fn absent(&self, key: Key<'_>) -> Error {
        let text = match key {
            Key::Name(name) => format!("there is no '{name}' in {}", self.name),
            Key::Uuid(uuid) => format!("there is nothing with the UUID {uuid} in {}", self.name),
        };
        Error::new(Errno::NOENT, text)
    }

    /// Reads a key of a scope. The same transaction checks that the scope exists.
    ///
    /// # Errors
    /// ENOENT if the workspace doesn't exist.
    fn look(&self, scope: Scope, key: &[u8]) -> Result<Option<Pair>> {
        let parts = vec![api::get(&self.schema().state(scope)), api::get(key)];
        let found = self.shared.transaction(vec![], parts, vec![])?;
        if scope != Scope::Root && found.one(0).is_none() {
            return Err(self.no_workspace(scope));
        }
        Ok(found.one(1).cloned())
    }

    fn record(&self, scope: Scope, uuid: Uuid) -> Result<Option<(Record, Pair)>> {
        let pair = self.look(scope, &self.schema().record(scope, uuid))?;
        let read = |pair: Pair| Ok((schema::decode(uuid, &pair.value.0)?, pair));
        pair.map(read).transpose()
    }

    /// Writes index entries ahead of the record that they refer to. Readers check the record, so
    /// early entries do no harm.
    fn put_before(&self, scope: Scope, entries: &[Vec<u8>]) -> Result<()> {
        for part in entries.chunks(MAX_OPERATIONS_PER_TRANSACTION) {
            let puts = part.iter().map(|entry| api::put(entry, b"")).collect();
            let there = match scope {
                Scope::Root => vec![],
                Scope::In(_) => vec![api::present(&self.schema().state(scope))],
            };
            self.shared.transaction(there, puts, vec![])?;
        }
        Ok(())
    }

    /// Removes index entries that no longer hold, as long as the record is unchanged since
    /// `revision`. Each part also rewrites the record, which changes its revision. So another
    /// session's update fails if it has just written one of these entries ahead of its next version
    /// of the record.
    fn delete_behind(
        &self,
        scope: Scope,
        (record, bytes): (&[u8], &[u8]),
        entries: &[Vec<u8>],
        mut revision: u64,
    ) -> Result<()> {
        for part in entries.chunks(MAX_OPERATIONS_PER_TRANSACTION) {
            let state = self.schema().state(scope);
            let mut parts = vec![api::put(record, bytes), api::put(&state, b"")];
            parts.extend(part.iter().map(|entry| api::delete(entry)));
            let same = vec![api::unchanged(record, revision)];
            let done = self.shared.transaction(same, parts, vec![])?;
            if !done.succeeded {
                // The remaining entries do no harm: readers check the record.
                break;
            }
            revision = done.revision();
            self.changed(scope, Some(revision));
        }
        Ok(())
    }

    fn try_update(
        &self,
        scope: Scope,
        uuid: Uuid,
        changes: &[Change],
        lost: &mut Option<Meta>,
    ) -> Result<Option<Meta>> {
        let (mut record, pair) = match self.record(scope, uuid)? {
            Some(found) => found,
            None => return Err(self.absent(Key::Uuid(uuid))),
        };
        let before = record.meta.clone();
        for (key, value) in changes {
            match value {
                Some(value) => record.meta.insert(key.clone(), value.clone()),
                None => record.meta.remove(key),
            };
        }
        let bytes = schema::encode(&record)?;
        let of = |meta: &Meta| -> BTreeSet<Vec<u8>> {
            self.schema()
                .entries(scope, uuid, meta)
                .into_iter()
                .collect()
        };
        let (old, new) = (of(&before), of(&record.meta));
        let gone: Vec<Vec<u8>> = old.difference(&new).cloned().collect();
        let come: Vec<Vec<u8>> = new.difference(&old).cloned().collect();
        let (come, early) = come.split_at(come.len().min(MAX_ENTRIES_WITH_RECORD));
        let (gone, late) = gone.split_at(gone.len().min(MAX_ENTRIES_WITH_RECORD));
        self.put_before(scope, early)?;
        let key = self.schema().record(scope, uuid);
        let mut parts = vec![
            api::put(&key, &bytes),
            api::put(&self.schema().state(scope), b""),
        ];
        parts.extend(come.iter().map(|entry| api::put(entry, b"")));
        parts.extend(gone.iter().map(|entry| api::delete(entry)));
        let same = vec![api::unchanged(&key, pair.mod_revision.0)];
        match self.shared.transaction_once(same, parts, vec![]) {
            Ok(done) if done.succeeded => {
                self.changed(scope, Some(done.revision()));
                self.delete_behind(scope, (&key, &bytes), late, done.revision())?;
                Ok(Some(before))
            }
            Ok(_) => Ok(None),
            // The change may have been made or not. The next try reads the record, and repeating
            // the change is harmless.
            Err(forebay_etcd::Error::Lost(_)) => {
                self.changed(scope, None);
                lost.get_or_insert(before);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Tries once to remove a record; returns whether it was removed.
    fn try_remove(&self, scope: Scope, uuid: Uuid, lost: &mut bool) -> Result<bool> {
        let schema = self.schema();
        let Some((record, pair)) = self.record(scope, uuid)? else {
            return if *lost {
                Ok(true)
            } else {
                Err(self.absent(Key::Uuid(uuid)))
            };
        };
        let key = schema.record(scope, uuid);
        let mut compare = vec![api::unchanged(&key, pair.mod_revision.0)];
        let mut parts = vec![
            api::delete(&key),
            api::delete(&schema.name(scope, &record.name)),
            api::put(&schema.state(scope), b""),
        ];
        let entries = schema.entries(scope, uuid, &record.meta);
        let (entries, late) = entries.split_at(entries.len().min(MAX_OPERATIONS_PER_TRANSACTION));
        parts.extend(entries.iter().map(|entry| api::delete(entry)));
        if scope == Scope::Root {
            let inside = Scope::In(uuid);
            let names = schema.names(inside);
            // Looks for one name first, as the comparison in the transaction reads all names of the
            // workspace.
            let first =
                self.shared
                    .transaction(vec![], vec![api::first_keys(&names, 1)], vec![])?;
            if first.one(0).is_some() {
                let text = format!("the workspace '{}' has collections", record.name);
                return Err(Error::new(Errno::NOTEMPTY, text));
            }
            compare.push(api::none_in(&names));
            parts.push(api::delete_all(&schema.all(inside)));
        }
        match self.shared.transaction_once(compare, parts, vec![]) {
            Ok(done) if done.succeeded => {
                self.changed(scope, Some(done.revision()));
                if scope == Scope::Root {
                    self.changed(Scope::In(uuid), None);
                }
                for part in late.chunks(MAX_OPERATIONS_PER_TRANSACTION) {
                    let parts = part.iter().map(|entry| api::delete(entry)).collect();
                    self.shared.transaction(vec![], parts, vec![])?;
                }
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(forebay_etcd::Error::Lost(_)) => {
                self.changed(scope, None);
                self.changed(Scope::In(uuid), None);
                *lost = true;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Retries an operation until no other session's change gets in its way, for up to
    /// [`UPDATE_TIMEOUT`].
    fn patiently<T>(&self, mut what: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let until = Instant::now() + UPDATE_TIMEOUT;
        for turn in 0u32.. {
            if let Some(done) = what()? {
                return Ok(done);
            }
            if Instant::now() > until {
                break;
            }
            // The pause depends on the process's id, so that competing processes don't retry at the
            // same times.
            let spread = u64::from(std::process::id() % 7) + 1;
            std::thread::sleep(Duration::from_millis(u64::from(turn.min(10)) * spread));
        }
        Err(Error::new(
            Errno::BUSY,
            format!(
                "others have changed it again and again for {} s",
                UPDATE_TIMEOUT.as_secs()
            ),
        ))
    }
}

impl Store for Etcd {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record> {
        let new = std::slice::from_ref(new);
        let made = self.create_all(scope, new, &mut |_, record| before(record));
        let nothing = || Err(Error::new(Errno::IO, "nothing was made"));
        made.into_iter().next().unwrap_or_else(nothing)
    }

    fn create_all(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Result<Record>> {
        self.make_all(scope, all, before)
    }

    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record> {
        let found: Result<_> = (|| {
            if let Some(local) = self.by_copy(scope, |view| view.record(key))? {
                return Ok(local);
            }
            let uuid = match key {
                Key::Uuid(uuid) => Some(uuid),
                Key::Name(name) => {
                    let pair = self.look(scope, &self.schema().name(scope, name))?;
                    pair.and_then(|pair| pair.value.0.try_into().ok().map(Uuid))
                }
            };
            let record = uuid.map(|uuid| self.record(scope, uuid));
            Ok(record.transpose()?.flatten().map(|(record, _)| record))
        })();
        match found {
            Ok(Some(record)) => Ok(record),
            Ok(None) => Err(self.absent(key)),
            Err(e) if e.errno() == Errno::NOENT => Err(e),
            Err(e) => Err(self.failed("can't look it up", e)),
        }
    }

    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>> {
        let found = self.search_in(scope, predicate, most);
        found.map_err(|e| match e.errno() {
            Errno::NOENT => e,
            _ => self.failed("can't search", e),
        })
    }

    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta> {
        let mut lost = None;
        let updated = self.patiently(|| self.try_update(scope, uuid, changes, &mut lost));
        // A try whose reply was lost may have been carried out, so the old metadata are those
        // before the first such try.
        let updated = updated.map(|before| lost.unwrap_or(before));
        updated.map_err(|e| match e.errno() {
            Errno::NOENT | Errno::TOOBIG => e,
            _ => self.failed(format!("can't change {uuid}"), e),
        })
    }

    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()> {
        let mut lost = false;
        let removed = self.patiently(|| {
            let removed = self.try_remove(scope, uuid, &mut lost)?;
            Ok(removed.then_some(()))
        });
        removed.map_err(|e| match e.errno() {
            Errno::NOENT | Errno::NOTEMPTY => e,
            _ => self.failed(format!("can't remove {uuid}"), e),
        })
    }

    fn undo_log(&self) -> Result<Box<dyn UndoLog>> {
        let log = log::Log::create(&self.shared, &self.lease);
        let log = log.map_err(|e| self.failed("can't make the log of a batch", e))?;
        Ok(Box::new(log))
    }

    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>> {
        let left = log::Log::left_behind(&self.shared, &self.lease);
        let left = left.map_err(|e| self.failed("can't look for batches of the dead", e))?;
        Ok(left.into_iter().map(|log| Box::new(log) as _).collect())
    }

    fn outlives_process(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }
}

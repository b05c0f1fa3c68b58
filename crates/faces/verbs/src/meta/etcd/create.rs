//! Creating records: many in one transaction of etcd, each with its own conditions.
//!
//! etcd writes to its disk once for each transaction. This write dominates the cost of a creation.
//! So creations that are requested together share a transaction.

use super::schema;
use super::{Etcd, MAX_ENTRIES_WITH_RECORD, api};
use crate::meta::{New, Record, Scope};
use crate::{Error, Result, Uuid};
use rustix::io::Errno;
use std::collections::BTreeSet;

/// Maximum number of records of one transaction. Sized so that, with [`MAX_ENTRIES_WITH_RECORD`]
/// entries in each and the conditions, the transaction stays below etcd's limit.
const RECORDS: usize = 48;
/// Maximum number of bytes of records in one transaction.
const BYTES: usize = 1 << 20;
/// Maximum number of rounds in a row that make no progress.
const STUCK: usize = 3;
/// Life of a fence, after which etcd removes it. Seconds.
const FENCE: u64 = 600;

/// A record that is ready to be created.
struct Ready {
    /// Index in the caller's list.
    which: usize,
    record: Record,
    bytes: Vec<u8>,
    /// The record's keys in the index of metadata.
    entries: Vec<Vec<u8>>,
}

/// The result of a creation.
enum Made {
    Yes,
    /// The name is taken.
    Taken,
    /// The record wasn't created, and a fence makes sure that it never will be.
    Not,
}

impl Etcd {
    pub(super) fn make_all(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Result<Record>> {
        let mut results: Vec<Option<Result<Record>>> = all.iter().map(|_| None).collect();
        let mut stuck = 0;
        while results.iter().any(Option::is_none) {
            let left = results.iter().filter(|r| r.is_none()).count();
            self.make_round(scope, all, before, &mut results);
            if results.iter().filter(|r| r.is_none()).count() == left {
                stuck += 1;
            }
            if stuck == STUCK {
                break;
            }
        }
        let not = |result: Option<_>| {
            result.unwrap_or_else(|| {
                let text = "it wasn't created: etcd's answers were lost again and again";
                Err(Error::new(Errno::AGAIN, text))
            })
        };
        let in_words = |result: Result<Record>| {
            result.map_err(|e| match e.errno() {
                Errno::NOENT | Errno::EXIST | Errno::TOOBIG => e,
                _ => self.failed("can't create it", e),
            })
        };
        results.into_iter().map(not).map(in_words).collect()
    }

    /// Tries once to create the records that have no result yet; of several with one name only the
    /// first.
    fn make_round(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
        results: &mut [Option<Result<Record>>],
    ) {
        let mut names = BTreeSet::new();
        let mut group: Vec<Ready> = Vec::new();
        let mut size = 0;
        for (which, new) in all.iter().enumerate() {
            if results[which].is_some() || !names.insert(new.name) {
                continue;
            }
            match self.prepare(scope, which, new, before) {
                Err(error) => results[which] = Some(Err(error)),
                Ok(ready) => {
                    if group.len() == RECORDS || size + ready.bytes.len() > BYTES {
                        self.make_group(scope, std::mem::take(&mut group), results);
                        size = 0;
                    }
                    size += ready.bytes.len();
                    group.push(ready);
                }
            }
        }
        self.make_group(scope, group, results);
    }

    fn prepare(
        &self,
        scope: Scope,
        which: usize,
        new: &New<'_>,
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Result<Ready> {
        let record = Record {
            uuid: Uuid::random()?,
            name: new.name.into(),
            meta: new.meta.clone(),
            backend: new.backend.into(),
            place: new.place.into(),
            controls: new.controls,
        };
        let bytes = schema::encode(&record)?;
        before(which, &record)?;
        let entries = self.schema().entries(scope, record.uuid, &record.meta);
        let early = entries.len().saturating_sub(MAX_ENTRIES_WITH_RECORD);
        self.put_before(scope, &entries[..early])?;
        Ok(Ready {
            which,
            record,
            bytes,
            entries: entries[early..].to_vec(),
        })
    }

    fn make_group(&self, scope: Scope, group: Vec<Ready>, results: &mut [Option<Result<Record>>]) {
        if group.is_empty() {
            return;
        }
        match self.try_make(scope, &group) {
            Err(error) => {
                for ready in group {
                    results[ready.which] = Some(Err(error.clone()));
                }
            }
            Ok(made) => {
                for (ready, made) in group.into_iter().zip(made) {
                    results[ready.which] = match made {
                        Made::Yes => Some(Ok(ready.record)),
                        Made::Taken => {
                            let text =
                                format!("'{}' exists already, in {}", ready.record.name, self.name);
                            Some(Err(Error::new(Errno::EXIST, text)))
                        }
                        Made::Not => None,
                    };
                }
            }
        }
    }

    fn try_make(&self, scope: Scope, group: &[Ready]) -> Result<Vec<Made>> {
        let schema = self.schema();
        let state = schema.state(scope);
        let there = match scope {
            Scope::Root => vec![],
            Scope::In(_) => vec![api::present(&state)],
        };
        let mut parts = vec![api::put(&state, b"")];
        for ready in group {
            let (uuid, name) = (ready.record.uuid, schema.name(scope, &ready.record.name));
            let compare = vec![api::absent(&name), api::absent(&schema.fence(scope, uuid))];
            let mut puts = vec![
                api::put(&name, &uuid.0),
                api::put(&schema.record(scope, uuid), &ready.bytes),
            ];
            if scope == Scope::Root {
                puts.push(api::put(&schema.state(Scope::In(uuid)), b""));
            }
            puts.extend(ready.entries.iter().map(|entry| api::put(entry, b"")));
            parts.push(api::nested(compare, puts, vec![api::get(&name)]));
        }
        match self.shared.transaction_once(there, parts, vec![]) {
            Ok(done) if done.succeeded => {
                self.changed(scope, Some(done.revision()));
                let made = group
                    .iter()
                    .enumerate()
                    .map(|(i, _)| match done.inner(i + 1) {
                        Some(inner) if inner.succeeded => Ok(Made::Yes),
                        Some(_) => Ok(Made::Taken),
                        None => Err(Error::new(Errno::PROTO, "etcd's answer lacks a part")),
                    });
                made.collect()
            }
            Ok(_) => Err(self.no_workspace(scope)),
            Err(lost @ forebay_etcd::Error::Lost(_)) => {
                self.changed(scope, None);
                self.fence(scope, group).map_err(|error| {
                    let text =
                        format!("it isn't known whether it was created: {lost}; then: {error}");
                    Error::new(error.errno(), text)
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes fences, so that creations whose replies were lost can't be carried out later. Returns
    /// which of them have been carried out.
    fn fence(&self, scope: Scope, group: &[Ready]) -> Result<Vec<Made>> {
        let schema = self.schema();
        let lease = self.shared.grant(FENCE)?;
        let uuids = group.iter().map(|ready| ready.record.uuid);
        let puts = uuids
            .clone()
            .map(|uuid| api::put_leased(&schema.fence(scope, uuid), b"", lease));
        let gets = uuids.map(|uuid| api::get(&schema.record(scope, uuid)));
        let parts = puts.chain(gets).collect();
        let seen = self.shared.transaction(vec![], parts, vec![])?;
        let made = (0..group.len()).map(|i| match seen.one(group.len() + i) {
            Some(_) => Made::Yes,
            None => Made::Not,
        });
        Ok(made.collect())
    }
}

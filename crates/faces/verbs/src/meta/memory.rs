//! The metadata store of one process: maps, and an index of records by key and value.

use super::{Change, Key, New, Record, Scope, Store};
use crate::meta::undo::{InProcess, UndoLog};
use crate::{Error, Meta, Predicate, Result, Uuid};
use forebay_runtime::threads::{read_lock, write_lock};
use forebay_store::{Term, record::Order};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::RwLock;

/// The records of one scope.
#[derive(Default)]
struct Shelf {
    records: HashMap<Uuid, Record>,
    names: BTreeMap<String, Uuid>,
    /// For each metadata key, its values in their order, and for each value the records that have
    /// it.
    index: HashMap<String, BTreeMap<(Order, String), BTreeSet<Uuid>>>,
}

/// A metadata store in this process.
#[derive(Default)]
pub struct Memory {
    shelves: RwLock<HashMap<Scope, Shelf>>,
}

impl Shelf {
    fn note(&mut self, uuid: Uuid, key: &str, value: &str) {
        let values = self.index.entry(key.into()).or_default();
        values.entry(place(value)).or_default().insert(uuid);
    }

    fn forget(&mut self, uuid: Uuid, key: &str, value: &str) {
        let Some(values) = self.index.get_mut(key) else {
            return;
        };
        let place = place(value);
        if let Some(who) = values.get_mut(&place) {
            who.remove(&uuid);
            if who.is_empty() {
                values.remove(&place);
            }
        }
        if values.is_empty() {
            self.index.remove(key);
        }
    }

    /// Returns, for each value for which the term holds, the records that have the value.
    fn having(&self, term: &Term) -> impl Iterator<Item = &BTreeSet<Uuid>> {
        let (key, low, high, equal) = match term {
            Term::Equal(key, value) => {
                let at = Order::of_value(value);
                (key, at, at, Some(value))
            }
            Term::Within(key, low, high) => (key, *low, *high, None),
        };
        let values = std::str::from_utf8(key)
            .ok()
            .and_then(|key| self.index.get(key));
        let places = values
            .into_iter()
            .flat_map(move |values| values.range((low, String::new())..));
        let places = places.take_while(move |((order, _), _)| *order <= high);
        let places =
            places.filter(move |((_, value), _)| equal.is_none_or(|e| e == value.as_bytes()));
        places.map(|(_, who)| who)
    }

    /// Returns candidates for a conjunction of terms: the records of the term with the fewest
    /// records.
    fn candidates(&self, terms: &[Term]) -> Vec<Uuid> {
        let mut fewest: Option<(usize, &Term)> = None;
        for term in terms {
            let mut count = 0;
            // Stops counting when an earlier term has fewer records.
            let _ = self.having(term).try_for_each(|who| {
                count += who.len();
                fewest.is_none_or(|(least, _)| count < least).then_some(())
            });
            if fewest.is_none_or(|(least, _)| count < least) {
                fewest = Some((count, term));
            }
        }
        let sets = fewest.into_iter().flat_map(|(_, term)| self.having(term));
        sets.flatten().copied().collect()
    }
}

/// Returns the position of a value in the index of its key.
fn place(value: &str) -> (Order, String) {
    (Order::of_value(value.as_bytes()), value.into())
}

fn absent(key: Key<'_>) -> Error {
    let text = match key {
        Key::Name(name) => format!("there is no '{name}'"),
        Key::Uuid(uuid) => format!("there is nothing with the UUID {uuid}"),
    };
    Error::new(Errno::NOENT, text)
}

fn shelf(shelves: &HashMap<Scope, Shelf>, scope: Scope) -> Result<Option<&Shelf>> {
    match scope {
        Scope::Root => {}
        Scope::In(uuid) => {
            let root = shelves.get(&Scope::Root);
            if !root.is_some_and(|root| root.records.contains_key(&uuid)) {
                return Err(Error::new(
                    Errno::NOENT,
                    format!("there is no workspace {uuid}"),
                ));
            }
        }
    }
    Ok(shelves.get(&scope))
}

impl Store for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record> {
        let record = Record {
            uuid: Uuid::random()?,
            name: new.name.into(),
            meta: new.meta.clone(),
            backend: new.backend.into(),
            place: new.place.into(),
            controls: new.controls,
        };
        let mut shelves = write_lock(&self.shelves);
        shelf(&shelves, scope)?;
        let shelf = shelves.entry(scope).or_default();
        if shelf.names.contains_key(new.name) {
            return Err(Error::new(
                Errno::EXIST,
                format!("'{}' exists already", new.name),
            ));
        }
        before(&record)?;
        for (key, value) in &record.meta {
            shelf.note(record.uuid, key, value);
        }
        shelf.names.insert(record.name.clone(), record.uuid);
        shelf.records.insert(record.uuid, record.clone());
        Ok(record)
    }

    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record> {
        let shelves = read_lock(&self.shelves);
        let shelf = shelf(&shelves, scope)?.ok_or_else(|| absent(key))?;
        let uuid = match key {
            Key::Name(name) => shelf.names.get(name).copied(),
            Key::Uuid(uuid) => Some(uuid),
        };
        let record = uuid.and_then(|uuid| shelf.records.get(&uuid));
        record.cloned().ok_or_else(|| absent(key))
    }

    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>> {
        let shelves = read_lock(&self.shelves);
        let Some(shelf) = shelf(&shelves, scope)? else {
            return Ok(Vec::new());
        };
        let fits = |record: &&Record| predicate.holds(&record.meta);
        let Some(plan) = predicate.plan() else {
            let all = shelf.names.values().map(|uuid| &shelf.records[uuid]);
            return Ok(all.filter(fits).take(most).cloned().collect());
        };
        let found = plan.iter().flat_map(|terms| shelf.candidates(terms));
        let found = found.map(|uuid| &shelf.records[&uuid]).filter(fits);
        let found: BTreeMap<&str, &Record> = found.map(|r| (r.name.as_str(), r)).collect();
        Ok(found.into_values().take(most).cloned().collect())
    }

    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta> {
        let mut shelves = write_lock(&self.shelves);
        shelf(&shelves, scope)?;
        let gone = || absent(Key::Uuid(uuid));
        let shelf = shelves.get_mut(&scope).ok_or_else(gone)?;
        let record = shelf.records.get_mut(&uuid).ok_or_else(gone)?;
        let before = record.meta.clone();
        for (key, value) in changes {
            match value {
                Some(value) => record.meta.insert(key.clone(), value.clone()),
                None => record.meta.remove(key),
            };
        }
        let after = record.meta.clone();
        for (key, value) in &before {
            shelf.forget(uuid, key, value);
        }
        for (key, value) in &after {
            shelf.note(uuid, key, value);
        }
        Ok(before)
    }

    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()> {
        let mut shelves = write_lock(&self.shelves);
        shelf(&shelves, scope)?;
        let inner = shelves.get(&Scope::In(uuid));
        if scope == Scope::Root && inner.is_some_and(|inner| !inner.records.is_empty()) {
            return Err(Error::new(
                Errno::NOTEMPTY,
                format!("the workspace {uuid} has collections"),
            ));
        }
        let gone = || absent(Key::Uuid(uuid));
        let shelf = shelves.get_mut(&scope).ok_or_else(gone)?;
        let record = shelf.records.remove(&uuid).ok_or_else(gone)?;
        shelf.names.remove(&record.name);
        for (key, value) in &record.meta {
            shelf.forget(uuid, key, value);
        }
        if scope == Scope::Root {
            shelves.remove(&Scope::In(uuid));
        }
        Ok(())
    }

    fn undo_log(&self) -> Result<Box<dyn UndoLog>> {
        Ok(Box::new(InProcess::default()))
    }

    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>> {
        Ok(Vec::new())
    }

    fn outlives_process(&self) -> bool {
        false
    }
}

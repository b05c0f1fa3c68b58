//! Searches in etcd: ranges of the index, all as of one revision.
//!
//! The search first counts the index entries of each term. For each conjunction, it reads the
//! entries of the term with the fewest entries, fetches the records of these entries in groups, and
//! checks the predicate on each record.

use super::client::COMPACTED;
use super::{Etcd, RANGE, TRANSACTION, api, schema};
use crate::meta::{Record, Scope};
use crate::{Error, Predicate, Result, Uuid};
use forebay_store::Term;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Number of index entries fetched by one request. Large, as etcd 3.4 reads the whole range for
/// each request.
const ENTRIES: usize = 20_000;
/// Number of records fetched by one request, by their UUIDs.
const RECORDS: usize = 64;
/// Number of records fetched by one request, as a range.
const PAGE: usize = 1000;
/// Number of terms counted by one request.
const TERMS: usize = 100;
/// Maximum number of times that a search starts again because its revision was compacted away.
const AGAIN: usize = 3;

/// Collects the first `most` matching records, by name.
pub(super) struct Found<'a> {
    predicate: &'a Predicate,
    most: usize,
    records: BTreeMap<String, Record>,
}

impl<'a> Found<'a> {
    fn new(predicate: &'a Predicate, most: usize) -> Found<'a> {
        Found {
            predicate,
            most,
            records: BTreeMap::new(),
        }
    }

    /// Adds a record, if the predicate holds for it.
    pub fn see(&mut self, uuid: Uuid, bytes: &[u8]) -> Result<()> {
        let record = schema::decode(uuid, bytes)?;
        if self.predicate.holds(&record.meta) {
            self.records.insert(record.name.clone(), record);
        }
        while self.records.len() > self.most {
            self.records.pop_last();
        }
        Ok(())
    }
}

impl Etcd {
    /// Returns the first `most` records, by name, for which the predicate holds.
    pub(super) fn search_in(
        &self,
        scope: Scope,
        predicate: &Predicate,
        most: usize,
    ) -> Result<Vec<Record>> {
        let local = self.by_copy(scope, |view| {
            let mut found = Found::new(predicate, most);
            view.search(predicate, &mut found)?;
            Ok(found.records.into_values().collect())
        })?;
        if let Some(found) = local {
            return Ok(found);
        }
        for _ in 0..AGAIN {
            match self.search_once(scope, predicate, most) {
                Err(error) if error.errno() == COMPACTED => {}
                done => return done,
            }
        }
        let text = "what is searched is compacted away again and again";
        Err(Error::new(Errno::AGAIN, text))
    }

    fn search_once(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>> {
        let mut found = Found::new(predicate, most);
        let plan = predicate.plan();
        let terms: Vec<&Term> = plan.iter().flatten().flatten().collect();
        let (revision, counts) = self.count(scope, &terms)?;
        match &plan {
            None => self.pages(
                &self.schema().records(scope),
                revision,
                PAGE,
                false,
                &mut |pair| found.see(self.schema().uuid_of(&pair.key.0)?, &pair.value.0),
            )?,
            Some(plan) => {
                let mut counts = counts.into_iter();
                let mut uuids = BTreeSet::new();
                for all in plan {
                    let counted = all.iter().zip(counts.by_ref());
                    let Some((fewest, _)) = counted.min_by_key(|(_, count)| *count) else {
                        continue;
                    };
                    let range = self.schema().term(scope, fewest);
                    self.pages(&range, revision, ENTRIES, true, &mut |pair| {
                        uuids.extend(schema::whose(&pair.key.0));
                        Ok(())
                    })?;
                }
                self.cost(scope, uuids.len() as u64);
                let uuids: Vec<Uuid> = uuids.into_iter().collect();
                for group in uuids.chunks(RECORDS) {
                    self.records(scope, group, revision, &mut found)?;
                }
            }
        }
        Ok(found.records.into_values().collect())
    }

    /// Returns the current revision, and the number of index entries of each term.
    fn count(&self, scope: Scope, terms: &[&Term]) -> Result<(u64, Vec<u64>)> {
        let mut counts = Vec::new();
        let mut revision = 0;
        let mut groups = terms.chunks(TERMS);
        loop {
            let group = groups.next();
            if group.is_none() && revision > 0 {
                return Ok((revision, counts));
            }
            let group = group.unwrap_or_default();
            let mut parts = vec![api::get(&self.schema().state(scope))];
            let ranges = group.iter().map(|term| self.schema().term(scope, term));
            parts.extend(ranges.map(|range| api::count(&range)));
            let answer = self.shared.transaction(vec![], parts, vec![])?;
            if scope != Scope::Root && answer.one(0).is_none() {
                return Err(self.no_workspace(scope));
            }
            counts.extend((1..=group.len()).map(|i| answer.counted(i)));
            revision = answer.revision();
        }
    }

    /// Reads a range in pages, and calls `each` with each key-value pair.
    pub(super) fn pages(
        &self,
        (from, to): &api::Range,
        revision: u64,
        most: usize,
        keys_only: bool,
        each: &mut dyn FnMut(&api::Pair) -> Result<()>,
    ) -> Result<()> {
        let (mut from, mut most) = (from.clone(), most);
        loop {
            let range = (from, to.clone());
            let request = api::page(&range, revision, most, keys_only);
            let page = match self.shared.client.ask(RANGE, &request) {
                Err(error) if error.errno() == Errno::TOOBIG && most > 1 => {
                    most /= 2;
                    from = range.0;
                    continue;
                }
                page => page?,
            };
            page.kvs.iter().try_for_each(&mut *each)?;
            match page.kvs.last() {
                Some(last) if page.more => from = [&last.key.0[..], &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    fn records(
        &self,
        scope: Scope,
        uuids: &[Uuid],
        revision: u64,
        found: &mut Found<'_>,
    ) -> Result<()> {
        let keys = uuids.iter().map(|uuid| self.schema().record(scope, *uuid));
        let gets = keys.map(|key| api::get_at(&key, revision)).collect();
        let request = api::transaction(vec![], gets, vec![]);
        let answer = match self.shared.client.ask(TRANSACTION, &request) {
            Err(error) if error.errno() == Errno::TOOBIG && uuids.len() > 1 => {
                let (first, second) = uuids.split_at(uuids.len() / 2);
                self.records(scope, first, revision, found)?;
                return self.records(scope, second, revision, found);
            }
            answer => answer?,
        };
        for (i, uuid) in uuids.iter().enumerate() {
            // An index entry may refer to a record that was removed.
            if let Some(pair) = answer.one(i) {
                found.see(*uuid, &pair.value.0)?;
            }
        }
        Ok(())
    }
}

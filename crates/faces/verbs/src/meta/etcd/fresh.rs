//! Freshness of the local copy: when it may serve a read, and when it is updated or loaded.
//!
//! A read through the copy asks etcd only for the revision of the scope's last change. With
//! `age=BOUND`, a revision that etcd has returned is used for the time BOUND, and reads within that
//! time send no request. The session's own changes are always seen.
//!
//! A copy that is behind can catch up by a watch, which fetches the changes since its revision.
//! Such a watch takes about 50 ms, as etcd serves watches of past revisions ten times a second. So
//! a watch is started only when reads from etcd have cost as much as the watch. Likewise a scope is
//! loaded when reads from etcd have cost as much as loading it; a small scope is loaded at once. If
//! the copy is damaged, out of room or locked by other processes for long, reads go to etcd.

use super::copy::{Changed, Copy, Errnos, Head, View, parts};
use super::{Etcd, api, schema};
use crate::meta::Scope;
use crate::{Error, Result, Uuid};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long to wait for the changes up to the requested revision.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of records that one request fetches.
const PAGE: usize = 1000;
/// Maximum number of records of a scope that is loaded at once.
const SMALL: u64 = 100;
/// Cost of catching up: the number of records that could be loaded in that time.
const CATCH_UP: u64 = 200;
/// Cost of finding one record in etcd: the number of records that could be loaded in that time.
const FIND: u64 = 10;

/// A session's use of a local copy.
pub(super) struct Cache {
    copy: Arc<Copy>,
    /// How long a revision that etcd has returned is used without asking etcd again.
    age: Duration,
    /// The identity of the store in etcd.
    store: String,
    scopes: Mutex<HashMap<Scope, Known>>,
    off: AtomicBool,
}

/// The state of a scope, as far as a session knows it.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Revision of the scope's last change, and when the request that returned it was sent.
    last_change: Option<(Instant, u64)>,
    /// Revision of this session's last change of the scope.
    own: u64,
    /// `price`: the cost of loading the scope, if known. `spent`: the cost of reads from etcd since
    /// the copy was last updated. Both in loaded records.
    price: Option<u64>,
    spent: u64,
}

impl Cache {
    pub fn new(copy: Arc<Copy>, age: Duration, store: String) -> Cache {
        Cache {
            copy,
            age,
            store,
            scopes: Mutex::default(),
            off: AtomicBool::new(false),
        }
    }

    /// Notes that this session has changed a scope. `revision`: the revision of the change; None if
    /// unknown.
    pub fn changed(&self, scope: Scope, revision: Option<u64>) {
        let mut scopes = lock(&self.scopes);
        let known = scopes.entry(scope).or_default();
        match revision {
            Some(revision) => known.own = known.own.max(revision),
            None => known.last_change = None,
        }
    }

    /// Returns the cost of reads from etcd since the copy was last updated, in loaded records.
    fn spent(&self, scope: Scope) -> u64 {
        lock(&self.scopes)
            .get(&scope)
            .map_or(0, |known| known.spent)
    }

    /// Discards the copy: this session uses none any more, and the next session creates another
    /// one.
    fn spoilt(&self) {
        if !self.off.swap(true, Relaxed) {
            self.copy.throw_away();
        }
    }
}

impl Etcd {
    /// Returns the result of `read` on a scope's local copy; None if the caller must read from
    /// etcd.
    ///
    /// # Errors
    /// ENOENT if the workspace doesn't exist, the errors of etcd.
    pub(super) fn by_copy<T>(
        &self,
        scope: Scope,
        read: impl FnOnce(&View<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(cache) = self.cache.as_ref().filter(|c| !c.off.load(Relaxed)) else {
            return Ok(None);
        };
        let Some(revision) = self.last_change(cache, scope)? else {
            cache.spoilt();
            return Ok(None);
        };
        let view = match self.fresh_view(cache, scope, revision) {
            Ok(Some(view)) => view,
            Ok(None) => {
                self.cost(scope, FIND);
                return Ok(None);
            }
            // Other processes have locked the copy for long. The copy isn't damaged.
            Err(Errno::TIMEDOUT | Errno::AGAIN) => return Ok(None),
            Err(_) => {
                cache.spoilt();
                return Ok(None);
            }
        };
        match read(&view) {
            Ok(found) => Ok(Some(found)),
            Err(_) => {
                drop(view);
                cache.spoilt();
                Ok(None)
            }
        }
    }

    /// Notes a read of `records` records from etcd.
    pub(super) fn cost(&self, scope: Scope, records: u64) {
        if let Some(cache) = &self.cache {
            lock(&cache.scopes).entry(scope).or_default().spent += records;
        }
    }

    /// Returns the revision that a copy of the scope must have; None if the copy is of another
    /// store, or newer than etcd's content.
    fn last_change(&self, cache: &Cache, scope: Scope) -> Result<Option<u64>> {
        let known = lock(&cache.scopes).get(&scope).copied().unwrap_or_default();
        if let Some((at, revision)) = known.last_change
            && at.elapsed() < cache.age
        {
            return Ok(Some(revision.max(known.own)));
        }
        let before = cache.copy.head(scope);
        let asked = Instant::now();
        let schema = self.schema();
        let parts = vec![api::get(&schema.store()), api::get(&schema.state(scope))];
        let answer = self.shared.transaction(vec![], parts, vec![])?;
        let store = answer.one(0).map(|pair| schema::store_of(&pair.value.0));
        if store != Some(Ok(cache.store.clone())) {
            return Ok(None);
        }
        let state = answer.one(1);
        if state.is_none() && scope != Scope::Root {
            lock(&cache.scopes).remove(&scope);
            self.forget(cache, scope);
            return Err(self.no_workspace(scope));
        }
        let revision = state.map_or(0, |pair| pair.mod_revision.0);
        // A copy is newer than etcd only if etcd was restored from a backup.
        if matches!(before, Ok(Head::Ready(had)) if had > revision) {
            return Ok(None);
        }
        let mut scopes = lock(&cache.scopes);
        let known = scopes.entry(scope).or_default();
        known.last_change = Some((asked, revision));
        Ok(Some(revision.max(known.own)))
    }

    /// Returns the copy of a scope, updated to a revision; None if that isn't possible now, or not
    /// worth its cost.
    fn fresh_view<'a>(
        &self,
        cache: &'a Cache,
        scope: Scope,
        revision: u64,
    ) -> Errnos<Option<View<'a>>> {
        for _ in 0..3 {
            if let Some(view) = cache.copy.view(scope, revision)? {
                return Ok(Some(view));
            }
            let brought = match cache.copy.head(scope)? {
                Head::Ready(_) if cache.spent(scope) < CATCH_UP => false,
                Head::Ready(from) => match self.catch_up(cache, scope, from, revision)? {
                    // etcd has compacted away the changes since the copy's revision.
                    None => self.load(cache, scope)?,
                    Some(done) => done,
                },
                _ if !self.is_worth_it(cache, scope) => false,
                _ => self.load(cache, scope)?,
            };
            if !brought {
                break;
            }
            lock(&cache.scopes).entry(scope).or_default().spent = 0;
        }
        Ok(None)
    }

    /// Whether reads from etcd have cost as much as loading the scope.
    fn is_worth_it(&self, cache: &Cache, scope: Scope) -> bool {
        let price = lock(&cache.scopes)
            .get(&scope)
            .and_then(|known| known.price);
        let price = match price {
            Some(price) => price,
            None => {
                let names = vec![api::count(&self.schema().names(scope))];
                let Ok(counted) = self.shared.transaction(vec![], names, vec![]) else {
                    return false;
                };
                let price = counted.counted(0);
                lock(&cache.scopes).entry(scope).or_default().price = Some(price);
                price
            }
        };
        price <= SMALL + cache.spent(scope)
    }

    /// Fetches the changes from one revision to another. Returns None if etcd has compacted them
    /// away, false if the watch failed. Even if it returns true, the copy may not have reached
    /// `to`.
    fn catch_up(&self, cache: &Cache, scope: Scope, from: u64, to: u64) -> Errnos<Option<bool>> {
        let request = api::watch(&self.schema().changes(scope), from + 1);
        let (mut at, mut compacted, mut failed) = (from, false, None);
        let watched =
            self.shared
                .client
                .lines("/v3/watch", &request, CATCH_UP_TIMEOUT, &mut |line| {
                    let watched = line.result.unwrap_or_default();
                    compacted |= watched.compact_revision.0 > 0;
                    if watched.canceled || compacted {
                        return Ok(false);
                    }
                    for (revision, changed) in self.changes(&watched.events)? {
                        match cache.copy.advance(scope, (at, revision), &changed) {
                            Ok(true) => at = revision,
                            // Another process has updated the copy meanwhile.
                            Ok(false) => return Ok(false),
                            Err(errno) => {
                                failed = Some(errno);
                                return Ok(false);
                            }
                        }
                    }
                    Ok(at < to)
                });
        match (failed, compacted) {
            (Some(errno), _) => Err(errno),
            (_, true) => Ok(None),
            // Whether the copy has reached `to` is left to the caller, which reads its revision.
            _ => Ok(Some(watched.is_ok())),
        }
    }

    /// Converts events to changes of the copy, grouped by their revision.
    fn changes(&self, events: &[api::Event]) -> Result<Vec<(u64, Vec<Changed>)>> {
        let mut by_revision: Vec<(u64, Vec<Changed>)> = Vec::new();
        for event in events {
            let revision = event.kv.mod_revision.0;
            if by_revision.last().is_none_or(|(last, _)| *last != revision) {
                by_revision.push((revision, Vec::new()));
            }
            let key = &event.kv.key.0;
            if key.ends_with(b"/s") {
                continue;
            }
            let bytes = (event.kind != "DELETE").then(|| event.kv.value.0.clone());
            let changed = (self.schema().uuid_of(key)?, bytes);
            if let Some((_, all)) = by_revision.last_mut() {
                all.push(changed);
            }
        }
        let weight = |(_, all): &(u64, Vec<Changed>)| {
            let weights = all
                .iter()
                .map(|(_, bytes)| weight(bytes.as_deref().unwrap_or_default()));
            weights.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        };
        let parts = parts(by_revision, weight).into_iter();
        let join = |part: Vec<(u64, Vec<Changed>)>| {
            let last = part.last().map_or(0, |(revision, _)| *revision);
            (last, part.into_iter().flat_map(|(_, all)| all).collect())
        };
        Ok(parts.map(join).collect())
    }

    /// Loads a scope. Returns false if that isn't possible, or another process is loading it.
    fn load(&self, cache: &Cache, scope: Scope) -> Errnos<bool> {
        let by = Uuid::random().map_err(|e| e.errno())?;
        if !cache.copy.begin(scope, by)? {
            return Ok(false);
        }
        let state = vec![api::get(&self.schema().state(scope))];
        let Ok(answer) = self.shared.transaction(vec![], state, vec![]) else {
            return Ok(false);
        };
        let state = answer.one(0).map(|pair| pair.mod_revision.0);
        if state.is_none() && scope != Scope::Root {
            cache.copy.end(scope, by, None)?;
            return Ok(false);
        }
        let (mut waiting, mut failed) = (Vec::new(), Ok(true));
        let mut add = |all: Vec<(Uuid, Vec<u8>)>| {
            for part in parts(all, |(_, bytes)| weight(bytes)) {
                if failed == Ok(true) {
                    failed = cache.copy.add(scope, by, &part);
                }
            }
            failed
        };
        let (range, revision) = (self.schema().records(scope), answer.revision());
        let loaded = self.pages(&range, revision, PAGE, false, &mut |pair| {
            let uuid = self.schema().uuid_of(&pair.key.0)?;
            waiting.push((uuid, pair.value.0.clone()));
            if waiting.len() == PAGE && add(std::mem::take(&mut waiting)) != Ok(true) {
                return Err(Error::new(Errno::CANCELED, "the copy can't be made"));
            }
            Ok(())
        });
        match loaded {
            Ok(()) if add(waiting)? => cache.copy.end(scope, by, Some(state.unwrap_or(0))),
            Ok(()) => Ok(false),
            Err(_) => failed.map(|_| false),
        }
    }

    /// Removes a deleted workspace from the copy.
    fn forget(&self, cache: &Cache, scope: Scope) {
        let forget = || -> Errnos<()> {
            if cache.copy.head(scope)? != Head::Absent {
                let by = Uuid::random().map_err(|e| e.errno())?;
                if cache.copy.begin(scope, by)? {
                    cache.copy.end(scope, by, None)?;
                }
            }
            Ok(())
        };
        // If the removal fails, the deleted workspace takes room in the copy, and nothing else
        // happens.
        let _ = forget();
    }
}

/// Returns upper bounds for the numbers of keys and bytes that writing a record changes in the
/// copy.
fn weight(bytes: &[u8]) -> (usize, usize) {
    // A metadata key takes at least 6 bytes in a record. The number of keys is doubled, as the old
    // record's index entries are removed as well.
    (2 + 2 * (bytes.len() / 6).min(300), bytes.len())
}

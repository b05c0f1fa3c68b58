//! A local copy of etcd's data, in LMDB: the records of scopes with their names and index, each
//! scope as of some revision.
//!
//! ```text
//! h SCOPE          loaded: 1, revision (8 bytes); being loaded: 2, time of the last progress (8),
//!                  id of the loader (16)
//! r SCOPE UUID     a record, as in etcd
//! n SCOPE NAME     the UUID of the record with this name
//! i SCOPE ENTRY    the index: schema.rs
//! ```
//!
//! All processes of a user on the node share the copy. A reader uses a scope only if the scope is
//! loaded and new enough, both read in one snapshot. A writer changes a scope only if the scope's
//! revision is still the one that the writer knew. So processes need no coordination beyond the
//! file lock of writers. `fresh.rs` sends the requests to etcd; this module sends none.

mod files;

use super::schema::{self, decode};
use super::search::Found;
use crate::meta::{Key, Record, Scope};
use crate::{Predicate, Result, Uuid};
pub(super) use files::open;
use forebay_runtime::threads::lock;
use forebay_store::Term;
use forebay_store::lmdb::{Env, OnFull, Room, Snapshot, WriteTxn};
use forebay_store::process::Critical;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Mutex;

/// Maximum number of changed keys in one transaction: an LMDB transaction takes 8191 pages.
const CHANGES: usize = 1500;
/// Maximum number of bytes of records in one transaction.
const BYTES: usize = 4 << 20;
/// Time without progress after which another process may take over a load. Milliseconds.
const GIVEN_UP: u64 = 10_000;
/// Maximum number of index entries of each term that the first round of counting reads.
const COUNTED: usize = 16;
/// Bytes reserved for a record beyond its content and index.
const OVERHEAD: usize = 512;

pub(super) type Errnos<T> = std::result::Result<T, Errno>;

/// A record's UUID, and its new bytes; None if it was removed.
pub(super) type Changed = (Uuid, Option<Vec<u8>>);

/// The state of a scope's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Absent,
    /// Complete as of this revision.
    Ready(u64),
    /// Being loaded: the time of the last progress (milliseconds since the boot), and the loader's
    /// id.
    Loading(u64, Uuid),
}

/// A local copy of a store.
pub(super) struct Copy {
    env: Env,
    room: Room,
    /// Serialises writers of this process; a lock on the file excludes those of other processes.
    turn: Mutex<()>,
    lock: File,
    files: files::Files,
}

fn key(tag: u8, scope: Scope, rest: &[u8]) -> Vec<u8> {
    [&[tag], &schema::scope_uuid(scope).0[..], rest].concat()
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Head {
    fn read(bytes: Option<&[u8]>) -> Errnos<Head> {
        let Some(bytes) = bytes else {
            return Ok(Head::Absent);
        };
        let (kind, rest) = bytes.split_first().ok_or(Errno::IO)?;
        let (number, rest) = rest.split_first_chunk().ok_or(Errno::IO)?;
        let number = u64::from_le_bytes(*number);
        match kind {
            1 => Ok(Head::Ready(number)),
            2 => Ok(Head::Loading(
                number,
                Uuid(rest.try_into().map_err(|_| Errno::IO)?),
            )),
            _ => Err(Errno::IO),
        }
    }

    fn write(self) -> Vec<u8> {
        match self {
            Head::Absent => vec![],
            Head::Ready(revision) => [&[1][..], &revision.to_le_bytes()].concat(),
            Head::Loading(since, by) => [&[2][..], &since.to_le_bytes(), &by.0].concat(),
        }
    }
}

/// A snapshot of a scope's copy that is loaded and as new as required.
pub(super) struct View<'a> {
    snapshot: Snapshot<'a>,
    scope: Scope,
}

impl View<'_> {
    /// Returns a record.
    pub fn record(&self, wanted: Key<'_>) -> Result<Option<Record>> {
        let found = self.find(wanted);
        let found = found.map_err(|e| crate::Error::of("the local copy", e))?;
        found.map(|(uuid, bytes)| decode(uuid, &bytes)).transpose()
    }

    /// Returns a record's UUID and bytes.
    fn find(&self, wanted: Key<'_>) -> Errnos<Option<(Uuid, Vec<u8>)>> {
        let uuid = match wanted {
            Key::Uuid(uuid) => uuid,
            Key::Name(name) if name.len() > crate::meta::NAME_MAX => return Ok(None),
            Key::Name(name) => match self.snapshot.get(&key(b'n', self.scope, name.as_bytes()))? {
                Some(uuid) => Uuid(uuid.try_into().map_err(|_| Errno::IO)?),
                None => return Ok(None),
            },
        };
        let bytes = self.snapshot.get(&key(b'r', self.scope, &uuid.0))?;
        Ok(bytes.map(|bytes| (uuid, bytes.to_vec())))
    }

    /// Calls `each` with the index entries for which a term holds, until `each` returns false.
    fn having(&self, term: &Term, mut each: impl FnMut(&[u8]) -> bool) -> Errnos<()> {
        let (from, to) = schema::of_term(term);
        let (from, to) = (key(b'i', self.scope, &from), key(b'i', self.scope, &to));
        self.snapshot.scan(&from, |at, _| at < &to[..] && each(at))
    }

    /// Adds candidates for a conjunction of terms to `to`: the records of the term with the fewest
    /// entries.
    fn candidates(&self, terms: &[Term], to: &mut BTreeSet<Uuid>) -> Errnos<()> {
        // Counts each term's entries up to a bound, and raises the bound until a term stays below
        // it. So counting costs at most a fixed multiple of the search that follows.
        let mut most = COUNTED;
        let term = loop {
            let mut fewest: Option<(usize, &Term)> = None;
            for term in terms {
                let mut count = 0;
                self.having(term, |_| {
                    count += 1;
                    count < most
                })?;
                if fewest.is_none_or(|(least, _)| count < least) {
                    fewest = Some((count, term));
                }
            }
            match fewest {
                Some((count, term)) if count < most => break term,
                Some(_) => most *= 16,
                None => return Ok(()),
            }
        };
        self.having(term, |at| {
            to.extend(schema::whose(at));
            true
        })
    }

    /// Calls `found` with each record that may match.
    pub fn search(&self, predicate: &Predicate, found: &mut Found<'_>) -> Result<()> {
        let failed = |e| crate::Error::of("the local copy", e);
        let Some(plan) = predicate.plan() else {
            let (all, mut done) = (key(b'r', self.scope, &[]), Ok(()));
            let see = |at: &[u8], bytes: &[u8]| {
                let Some(uuid) = schema::whose(at).filter(|_| at.starts_with(&all)) else {
                    return false;
                };
                done = found.see(uuid, bytes);
                done.is_ok()
            };
            self.snapshot.scan(&all, see).map_err(failed)?;
            return done;
        };
        let mut uuids = BTreeSet::new();
        for terms in &plan {
            self.candidates(terms, &mut uuids).map_err(failed)?;
        }
        for uuid in uuids {
            let bytes = self.snapshot.get(&key(b'r', self.scope, &uuid.0));
            if let Some(bytes) = bytes.map_err(failed)? {
                found.see(uuid, bytes)?;
            }
        }
        Ok(())
    }
}

impl Copy {
    /// Returns the state of a scope's copy.
    pub fn head(&self, scope: Scope) -> Errnos<Head> {
        Head::read(self.env.snapshot()?.get(&key(b'h', scope, &[]))?)
    }

    /// Returns a scope's copy, if it is loaded, as of this revision or a later one.
    pub fn view(&self, scope: Scope, revision: u64) -> Errnos<Option<View<'_>>> {
        let snapshot = self.env.snapshot()?;
        match Head::read(snapshot.get(&key(b'h', scope, &[]))?)? {
            Head::Ready(at) if at >= revision => Ok(Some(View { snapshot, scope })),
            _ => Ok(None),
        }
    }

    /// Carries out `what` in one transaction, if `is` holds for the scope's head, and sets the head
    /// to the result of `what`. Returns false if `is` doesn't hold: another process was faster.
    fn change(
        &self,
        scope: Scope,
        bytes: usize,
        is: impl Fn(Head) -> bool,
        what: impl FnOnce(&mut WriteTxn<'_>) -> Errnos<Head>,
    ) -> Errnos<bool> {
        let _turn = lock(&self.turn);
        let _lock = files::Locked::new(&self.lock)?;
        let _critical = Critical::enter();
        let on_full = match bytes {
            0 => OnFull::Removes,
            _ => OnFull::Fails,
        };
        let mut txn = self.env.write(&self.room, bytes, on_full)?;
        let at = key(b'h', scope, &[]);
        if !is(Head::read(txn.get(&at)?)?) {
            return Ok(false);
        }
        match what(&mut txn)? {
            Head::Absent => _ = txn.del(&at)?,
            head => txn.put(&at, &head.write())?,
        }
        txn.commit()?;
        Ok(true)
    }

    /// Updates a scope from one revision to a later one. Returns false if the copy isn't at the
    /// first revision any more.
    pub fn advance(
        &self,
        scope: Scope,
        (from, to): (u64, u64),
        changed: &[Changed],
    ) -> Errnos<bool> {
        let bytes = changed.iter().map(|(_, b)| room_for(b.as_deref())).sum();
        self.change(
            scope,
            bytes,
            |head| head == Head::Ready(from),
            |txn| {
                for (uuid, bytes) in changed {
                    put(txn, scope, *uuid, bytes.as_deref())?;
                }
                Ok(Head::Ready(to))
            },
        )
    }

    /// Begins to load a scope; `by` is the loader's id. Returns false if another process is loading
    /// it.
    pub fn begin(&self, scope: Scope, by: Uuid) -> Errnos<bool> {
        let free = |head| match head {
            Head::Loading(since, _) => now() > since + GIVEN_UP,
            _ => true,
        };
        if !self.change(scope, OVERHEAD, free, |_| Ok(Head::Loading(now(), by)))? {
            return Ok(false);
        }
        for tag in [b'r', b'n', b'i'] {
            while self.clear(scope, by, tag)? > 0 {}
        }
        Ok(true)
    }

    fn clear(&self, scope: Scope, by: Uuid, tag: u8) -> Errnos<usize> {
        let (mut gone, all) = (Vec::new(), key(tag, scope, &[]));
        self.env.snapshot()?.scan(&all, |at, _| {
            let is = at.starts_with(&all) && gone.len() < CHANGES;
            if is {
                gone.push(at.to_vec());
            }
            is
        })?;
        if !gone.is_empty() {
            let mine = self.change(
                scope,
                0,
                |head| is_mine(head, by),
                |txn| {
                    gone.iter().try_for_each(|at| txn.del(at).map(|_| ()))?;
                    Ok(Head::Loading(now(), by))
                },
            );
            if !mine? {
                return Err(Errno::STALE);
            }
        }
        Ok(gone.len())
    }

    /// Adds loaded records. Returns false if another process has taken over the load.
    pub fn add(&self, scope: Scope, by: Uuid, records: &[(Uuid, Vec<u8>)]) -> Errnos<bool> {
        let bytes = records.iter().map(|(_, b)| room_for(Some(b))).sum();
        self.change(
            scope,
            bytes,
            |head| is_mine(head, by),
            |txn| {
                for (uuid, bytes) in records {
                    put(txn, scope, *uuid, Some(bytes))?;
                }
                Ok(Head::Loading(now(), by))
            },
        )
    }

    /// Ends a load: the scope is as of `revision`, or, with None, doesn't exist.
    pub fn end(&self, scope: Scope, by: Uuid, revision: Option<u64>) -> Errnos<bool> {
        let head = revision.map_or(Head::Absent, Head::Ready);
        self.change(scope, OVERHEAD, |head| is_mine(head, by), |_| Ok(head))
    }

    /// Discards the copy: the next process that opens it creates another one.
    pub fn throw_away(&self) {
        self.files.throw_away(&self.lock);
    }
}

fn is_mine(head: Head, by: Uuid) -> bool {
    matches!(head, Head::Loading(_, owner) if owner == by)
}

/// Returns an upper bound for the bytes that a record and its index entries occupy in the copy.
fn room_for(bytes: Option<&[u8]>) -> usize {
    // The index entry of a metadata key has 58 bytes more than the key. The record has at least 6
    // bytes for each key.
    bytes.map_or(OVERHEAD, |bytes| {
        OVERHEAD + 10 * bytes.len().min(64 << 10) + bytes.len()
    })
}

/// Replaces a record, its name and its index entries. If `bytes` is None, removes them.
fn put(txn: &mut WriteTxn<'_>, scope: Scope, uuid: Uuid, bytes: Option<&[u8]>) -> Errnos<()> {
    let at = key(b'r', scope, &uuid.0);
    let read = |bytes: &[u8]| decode(uuid, bytes).map_err(|_| Errno::PROTO);
    let entries = |record: &Record| -> BTreeSet<Vec<u8>> {
        let entry = |(k, v): (&String, &String)| key(b'i', scope, &schema::entry(k, v, uuid));
        record.meta.iter().map(entry).collect()
    };
    let old = txn.get(&at)?.map(read).transpose()?;
    let new = bytes.map(read).transpose()?;
    let had = old.as_ref().map(entries).unwrap_or_default();
    let has = new.as_ref().map(entries).unwrap_or_default();
    for entry in had.difference(&has) {
        txn.del(entry)?;
    }
    for entry in has.difference(&had) {
        txn.put(entry, &[])?;
    }
    match (bytes, &new, &old) {
        (Some(bytes), Some(new), _) => {
            txn.put(&at, bytes)?;
            txn.put(&key(b'n', scope, new.name.as_bytes()), &uuid.0)
        }
        (_, _, Some(old)) => {
            txn.del(&at)?;
            let name = key(b'n', scope, old.name.as_bytes());
            // Meanwhile another record may have this name.
            if txn.get(&name)? == Some(&uuid.0[..]) {
                txn.del(&name)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Splits changes into parts that fit a transaction. `weight` returns a change's number of keys and
/// of bytes.
pub(super) fn parts<T>(all: Vec<T>, weight: impl Fn(&T) -> (usize, usize)) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let (mut keys, mut bytes) = (usize::MAX / 2, 0);
    for one in all {
        let (more_keys, more_bytes) = weight(&one);
        keys += more_keys;
        bytes += more_bytes;
        match parts.last_mut() {
            Some(part) if keys <= CHANGES && bytes <= BYTES => part.push(one),
            _ => {
                parts.push(vec![one]);
                (keys, bytes) = (more_keys, more_bytes);
            }
        }
    }
    parts
}

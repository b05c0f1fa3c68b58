//! The undo log of a batch, in etcd.
//!
//! ```text
//! PREFIX/undo/UUID/head       exists as long as the log
//! PREFIX/undo/UUID/owner      the process that writes or undoes the log; removed with its lease
//! PREFIX/undo/UUID/piece/N    the log's bytes, in pieces; format: entries.rs
//! ```
//!
//! Each piece is written under the condition that the writer still owns the log. So a process that
//! lost its lease (stopped, or cut off from etcd for too long) learns of the loss when it logs its
//! next entry: logging fails with ECANCELED.

use super::lease::Lease;
use super::{Shared, api};
use crate::meta::entries;
use crate::meta::undo::{Undo, UndoLog};
use crate::process::Generation;
use crate::{Error, Result, Uuid};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Maximum number of bytes of a piece.
const PIECE: usize = 512 << 10;
/// Number of pieces read by one request.
const PIECES: usize = 8;
/// Maximum number of bytes of a log: etcd keeps its content in memory, for all its users.
const MAX_LOG_BYTES: usize = 64 << 20;
/// Number of keys listed by one request.
const KEYS: usize = 10_000;

pub(super) struct Log {
    shared: Arc<Shared>,
    uuid: Uuid,
    /// Identifies this process as the log's owner, in the key `owner`.
    token: Uuid,
    state: Mutex<State>,
    generation: Generation,
}

#[derive(Default)]
struct State {
    /// The number of the next piece.
    next: u64,
    bytes: usize,
    /// The number of a piece whose write failed, and the error. etcd may still store that piece
    /// later. No further piece is written.
    broken: Option<(u64, Error)>,
    ended: bool,
}

fn piece_name(number: u64) -> String {
    format!("piece/{number:08x}")
}

impl Log {
    /// Creates a log.
    pub fn create(shared: &Arc<Shared>, lease: &Lease) -> Result<Log> {
        let log = Log::of(shared, Uuid::random()?, 0)?;
        if log.take(lease, true)? {
            Ok(log)
        } else {
            Err(Error::new(Errno::EXIST, "a log of this UUID is there"))
        }
    }

    fn of(shared: &Arc<Shared>, uuid: Uuid, next: u64) -> Result<Log> {
        Ok(Log {
            shared: shared.clone(),
            uuid,
            token: Uuid::random()?,
            state: Mutex::new(State {
                next,
                ..State::default()
            }),
            generation: Generation::now(),
        })
    }

    /// Takes over the logs whose owners have died, and returns them.
    pub fn left_behind(shared: &Arc<Shared>, lease: &Lease) -> Result<Vec<Log>> {
        let mut heads: BTreeMap<Uuid, u64> = BTreeMap::new();
        let mut owned = BTreeSet::new();
        let (mut from, to) = shared.schema.logs();
        let skip = from.len();
        loop {
            let request = api::page(&(from, to.clone()), 0, KEYS, true);
            let page = shared.client.ask(super::RANGE, &request)?;
            for pair in &page.kvs {
                let key = String::from_utf8_lossy(&pair.key.0[skip..]).into_owned();
                let Some((Ok(uuid), part)) = key.split_once('/').map(|(u, p)| (u.parse(), p))
                else {
                    continue;
                };
                match part.strip_prefix("piece/") {
                    _ if part == "owner" => _ = owned.insert(uuid),
                    _ if part == "head" => _ = heads.entry(uuid).or_default(),
                    Some(number) => {
                        let number = u64::from_str_radix(number, 16).unwrap_or_default();
                        heads.insert(uuid, number + 1);
                    }
                    None => {}
                }
            }
            match page.kvs.last() {
                Some(last) if page.more => from = [&last.key.0[..], &[0]].concat(),
                _ => break,
            }
        }
        heads.retain(|uuid, _| !owned.contains(uuid));
        let mut left = Vec::new();
        for (uuid, next) in heads {
            let log = Log::of(shared, uuid, next)?;
            if log.take(lease, false)? {
                left.push(log);
            } else {
                // Another process has taken over this log.
                lock(&log.state).ended = true;
            }
        }
        Ok(left)
    }

    fn key(&self, part: &str) -> Vec<u8> {
        self.shared.schema.log(self.uuid, part)
    }

    fn is_mine(&self) -> serde_json::Value {
        api::is(&self.key("owner"), &self.token.0)
    }

    /// Makes this process the log's owner; returns false if another process owns the log.
    fn take(&self, lease: &Lease, new: bool) -> Result<bool> {
        let (head, owner) = (self.key("head"), self.key("owner"));
        let own = api::put_leased(&owner, &self.token.0, lease.id()?);
        let (compare, parts) = if new {
            (api::absent(&head), vec![api::put(&head, b""), own])
        } else {
            (api::present(&head), vec![own])
        };
        let compare = vec![compare, api::absent(&owner)];
        let look = vec![api::get(&owner)];
        let taken = self.shared.transaction(compare, parts, look)?;
        let mine = taken
            .one(0)
            .is_some_and(|pair| pair.value.0 == self.token.0);
        Ok(taken.succeeded || mine)
    }

    /// Writes a piece, unless a piece with this number exists.
    fn put(&self, number: u64, piece: &[u8]) -> Result<()> {
        let (owner, key) = (self.key("owner"), self.key(&piece_name(number)));
        let compare = vec![self.is_mine(), api::absent(&key)];
        let look = vec![api::get(&owner), api::get(&key)];
        let put = self
            .shared
            .transaction(compare, vec![api::put(&key, piece)], look)?;
        let mine = put.one(0).is_some_and(|pair| pair.value.0 == self.token.0);
        // Only the owner writes pieces, so an existing piece is ours: the reply to an earlier
        // attempt was lost.
        if put.succeeded || mine {
            return Ok(());
        }
        Err(Error::new(
            Errno::CANCELED,
            "this process was taken for dead, as etcd heard nothing of it for some seconds: its batch is undone by others",
        ))
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let cannot = |e: Error| e.about("can't note how a batch is undone");
        let mut state = lock(&self.state);
        if let Some((_, error)) = &state.broken {
            return Err(cannot(error.clone()));
        }
        if state.bytes + bytes.len() > MAX_LOG_BYTES {
            let text = format!(
                "what a batch has written over has more than {} MiB, which etcd doesn't keep: make smaller batches",
                MAX_LOG_BYTES >> 20
            );
            return Err(Error::new(Errno::TOOBIG, text));
        }
        for piece in bytes.chunks(PIECE) {
            let number = state.next;
            if let Err(error) = self.put(number, piece) {
                state.broken = Some((number, error.clone()));
                return Err(cannot(error));
            }
            state.next += 1;
        }
        state.bytes += bytes.len();
        Ok(())
    }
}

impl UndoLog for Log {
    fn note(&self, entry: Undo) -> Result<()> {
        self.append(&entries::encode(&entry))
    }

    fn entries(&self) -> Result<(Vec<Undo>, bool)> {
        let state = lock(&self.state);
        if let Some((number, _)) = state.broken {
            // Writes an empty piece under that number, unless the unconfirmed piece has arrived.
            // Then etcd can't store the unconfirmed piece later.
            self.put(number, b"")?;
        }
        let cannot = |e: Error| e.about(format!("can't read the log {}", self.uuid));
        let mut bytes = Vec::new();
        let (mut from, to) = api::beginning(self.key("piece/"));
        loop {
            let request = api::page(&(from, to.clone()), 0, PIECES, false);
            let page = self
                .shared
                .client
                .ask(super::RANGE, &request)
                .map_err(cannot)?;
            for pair in &page.kvs {
                bytes.extend(&pair.value.0);
            }
            match page.kvs.last() {
                Some(last) if page.more => from = [&last.key.0[..], &[0]].concat(),
                _ => break,
            }
        }
        let wrong = || Error::new(Errno::PROTO, "it isn't one of this version of Forebay");
        entries::decode(&bytes).ok_or_else(wrong).map_err(cannot)
    }

    fn commit(&self) -> Result<()> {
        self.append(&entries::end())
    }

    fn end(&self) {
        let all = api::beginning(self.key(""));
        let parts = vec![api::delete_all(&all)];
        // If this fails, the log's next owner undoes or completes the batch again, which changes
        // nothing.
        let done = self.shared.transaction(vec![self.is_mine()], parts, vec![]);
        lock(&self.state).ended = done.is_ok();
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if !self.generation.is_now() || lock(&self.state).ended {
            return;
        }
        // Abandons the log: its next owner undoes or completes the batch.
        let parts = vec![api::delete(&self.key("owner"))];
        let _ = self.shared.transaction(vec![self.is_mine()], parts, vec![]);
    }
}

//! Counts the used entries of the node's tables, for reports and for tests. The tests check that a
//! process's entries are free again after the process has ended.
//!
//! The counting takes no lock and no process slot. So the figures are exact only when no process
//! uses the pool; otherwise, they are approximate.

use crate::control_region::{
    MAX_FILE_LOCKS, MAX_LIVE, MAX_OPEN, MAX_PROCESSES, lock_kind, slot_state as state,
};
use crate::lmdb::MAX_READERS;
use crate::records::{ReadRecords, Records};
use crate::{Result, Store, process};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// Number of used entries of a table, and their maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    pub used: usize,
    pub limit: usize,
}

/// Use of a node's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// Process slots, this process's own left out.
    pub processes: Table,
    /// Number of process slots whose process has ended, or that are being released.
    pub ended: usize,
    /// Number of processes that have an operation in flight.
    pub in_flight: usize,
    /// Reader slots of each shard, without those of this process.
    pub readers: Vec<Table>,
    /// Number of reader slots that each process holds in all shards together, by process id.
    pub reading: BTreeMap<u32, usize>,
    /// Entries for open objects.
    pub live: Table,
    /// Open file descriptions.
    pub open: Table,
    /// Locks of programs on files, and fences ([`lock_kind::FENCE`]).
    pub locks: Table,
    /// Number of entries of the lock table that aren't locks: recorded uses of files with controls,
    /// and notes that a process of this node may have locks on a remote file.
    pub notes: usize,
    /// Whether something that a dead process held hasn't been given back yet.
    pub unsettled: bool,
}

/// Counts the present usage.
///
/// # Errors
/// Those of opening the records.
pub fn count(store: &Store) -> Result<Accounting> {
    let c = &store.control;
    let me = process::pid();
    let (mut used, mut ended, mut in_flight) = (0, 0, 0);
    for i in 0..MAX_PROCESSES {
        let p = c.process(i);
        let owner = p.owner.load(Acquire);
        if owner == 0 || process::pid_of(owner) == me {
            continue;
        }
        used += 1;
        in_flight += usize::from(p.in_flight.load(Acquire) != 0);
        let over = process::state_of(owner) == state::REAPING;
        ended += usize::from(over || process::has_ended(process::pid_of(owner)));
    }
    let mut readers = Vec::new();
    let mut reading = BTreeMap::new();
    for env in store.files.iter() {
        let mut pids = env.readers()?;
        pids.retain(|&pid| pid != me);
        readers.push(Table {
            used: pids.len(),
            limit: MAX_READERS as usize,
        });
        for pid in pids {
            *reading.entry(pid).or_insert(0) += 1;
        }
    }
    let h = c.header();
    let lives = 0..h.free_live.end(MAX_LIVE);
    let opens = 0..h.free_open.end(MAX_OPEN);
    let (mut locks, mut notes) = (0, 0);
    for lock in (0..h.free_locks.end(MAX_FILE_LOCKS)).map(|i| c.file_lock(i)) {
        if lock.object.load(Acquire) == 0 {
            continue;
        }
        match lock.kind.load(Relaxed) & (lock_kind::REMOTE | lock_kind::USE) {
            0 => locks += 1,
            _ => notes += 1,
        }
    }
    Ok(Accounting {
        processes: Table {
            used,
            limit: MAX_PROCESSES,
        },
        ended,
        in_flight,
        readers,
        reading,
        live: Table {
            used: lives.filter(|&i| c.live(i).id.load(Acquire) != 0).count(),
            limit: MAX_LIVE,
        },
        open: Table {
            used: opens
                .filter(|&i| c.open_file(i).refs.load(Acquire) != 0)
                .count(),
            limit: MAX_OPEN,
        },
        locks: Table {
            used: locks,
            limit: MAX_FILE_LOCKS,
        },
        notes,
        unsettled: process::is_unsettled(c),
    })
}

/// Number of objects and of directory entries, for reports.
///
/// # Errors
/// EIO.
pub fn count_objects(store: &Store) -> Result<(u64, u64)> {
    let (mut objects, mut entries) = (0, 0);
    for shard in 0..store.files.count() {
        store.committed(shard)?.each_record(b"", |key, _| {
            objects += u64::from(key.first() == Some(&b'I'));
            entries += u64::from(key.first() == Some(&b'D'));
            true
        })?;
    }
    Ok((objects, entries))
}

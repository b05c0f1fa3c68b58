//! Undo logs: the entries that undo a batch, and where they are kept.
//!
//! Each operation of a batch with `rollback` logs how it is undone *before* it does anything that
//! others can see. When the batch fails or is cancelled, the entries are undone from the last to
//! the first; when all went well, the log is committed and removed. Deletions can't be undone, so
//! they are logged and carried out after the commit.
//!
//! A log must live as long as what it could undo. [`InProcess`] ends with its process, so it serves
//! collections that do the same; for others the operation is refused by name. Pools and etcd keep
//! logs themselves; the next process that loads a workspace settles those of killed processes.

use super::{Change, Scope};
use crate::{Meta, Result, Uuid};
use std::sync::{Mutex, PoisonError};

/// How an operation is undone, or completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A collection was created: delete it.
    Created {
        /// The collection's workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
    },
    /// Bytes were written, or removed by truncation: restore them and the size.
    Wrote {
        /// The collection's workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
        /// Offset of the bytes.
        at: u64,
        /// The old bytes.
        old: Vec<u8>,
        /// The old size of the collection. Bytes.
        size: u64,
    },
    /// Metadata was changed: change it back.
    Meta {
        /// The scope of the record.
        scope: Scope,
        /// The record.
        uuid: Uuid,
        /// The changes that restore it.
        back: Vec<Change>,
    },
    /// Delete a collection when the batch is committed.
    Delete {
        /// The collection's workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
    },
}

/// Keeps entries while a batch runs.
pub trait UndoLog: Send + Sync {
    /// Adds an entry; it is stored when this returns.
    ///
    /// # Errors
    /// If it can't be stored. The operation must not be done then.
    fn note(&self, entry: Undo) -> Result<()>;

    /// Returns the entries, in their order, and whether the log was committed.
    ///
    /// # Errors
    /// If they can't be read.
    fn entries(&self) -> Result<(Vec<Undo>, bool)>;

    /// Commits: from here on nothing is undone, whatever happens.
    ///
    /// # Errors
    /// If that can't be recorded, or a reply was lost: [`UndoLog::entries`] then tells whether it
    /// was.
    fn commit(&self) -> Result<()>;

    /// Removes the log: everything was undone, or carried out.
    fn end(&self);

    /// Whether the log outlives this process.
    fn outlives_process(&self) -> bool;
}

/// A log in memory.
#[derive(Default)]
pub struct InProcess(Mutex<Vec<Undo>>);

impl UndoLog for InProcess {
    fn note(&self, entry: Undo) -> Result<()> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
        Ok(())
    }

    fn entries(&self) -> Result<(Vec<Undo>, bool)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((entries.clone(), false))
    }

    fn commit(&self) -> Result<()> {
        Ok(())
    }

    fn end(&self) {}

    fn outlives_process(&self) -> bool {
        false
    }
}

/// The changes that turn metadata back into `before`, after `changes`.
pub(crate) fn changes_back(before: &Meta, changes: &[Change]) -> Vec<Change> {
    let back = |(key, _): &Change| (key.clone(), before.get(key).cloned());
    changes.iter().map(back).collect()
}

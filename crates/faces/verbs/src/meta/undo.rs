//! Undo logs: the entries by which a batch is undone, and where they are stored.
//!
//! Each operation of a batch with `rollback` logs how to undo it *before* it does anything that
//! others can see. When the batch fails or is cancelled, the entries are undone from the last to
//! the first. When all operations succeeded, the log is committed and removed. Deletions can't be
//! undone, so they are logged and carried out after the commit.
//!
//! A log must live as long as the data that it could restore. [`InProcess`] ends with its process,
//! so it serves only collections that end with that process; operations on other collections are
//! refused. The pool and etcd stores have durable logs: the next process that loads a workspace
//! undoes or completes the batches of killed processes.

use super::{Change, Scope};
use crate::{Meta, Result, Uuid};
use forebay_runtime::threads::lock;
use std::sync::Mutex;

/// How to undo an operation, or to complete it.
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
        /// Offset of the bytes in the collection.
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
        /// The changes that restore the old metadata.
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

/// The undo log of one batch.
pub trait UndoLog: Send + Sync {
    /// Adds an entry, and returns when it is stored.
    ///
    /// # Errors
    /// If the entry can't be stored. The caller must not carry out the operation then.
    fn note(&self, entry: Undo) -> Result<()>;

    /// Returns the entries in the order of their addition, and whether the log was committed.
    ///
    /// # Errors
    /// If the log can't be read.
    fn entries(&self) -> Result<(Vec<Undo>, bool)>;

    /// Commits the log: from then on the batch is completed rather than undone.
    ///
    /// # Errors
    /// If the commit can't be recorded, or its reply was lost: [`UndoLog::entries`] then tells
    /// whether it was recorded.
    fn commit(&self) -> Result<()>;

    /// Removes the log, after everything was undone or carried out.
    fn end(&self);

    /// Whether the log outlives this process.
    fn outlives_process(&self) -> bool;
}

/// An undo log in this process's memory.
#[derive(Default)]
pub struct InProcess(Mutex<Vec<Undo>>);

impl UndoLog for InProcess {
    fn note(&self, entry: Undo) -> Result<()> {
        let mut entries = lock(&self.0);
        entries.push(entry);
        Ok(())
    }

    fn entries(&self) -> Result<(Vec<Undo>, bool)> {
        let entries = lock(&self.0);
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

/// Returns the changes that restore `before` after `changes` were made.
pub(crate) fn changes_back(before: &Meta, changes: &[Change]) -> Vec<Change> {
    let back = |(key, _): &Change| (key.clone(), before.get(key).cloned());
    changes.iter().map(back).collect()
}

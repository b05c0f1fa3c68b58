//! What takes a batch back: entries, and who keeps them.
//!
//! Each operation of a batch whose failure rule is `rollback` notes here what takes it back,
//! *before* it does anything that others can see. When the batch fails or is cancelled, the entries
//! are undone from the last one to the first; when all went well, the log is committed and goes.
//! Deletions can't be taken back, so they are noted and carried out behind the commit.
//!
//! A log has to live as long as what it could undo. [`InProcess`] goes with its process, so it is
//! for collections that do the same; for others the operation is refused by name. Pools and etcd
//! keep logs themselves; what a killed process has left is settled by who loads a workspace next.

use super::{Change, Scope};
use crate::{Meta, Result, Uuid};
use std::sync::{Mutex, PoisonError};

/// What takes an operation back, or completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A collection was created: it goes.
    Created {
        /// Its workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
    },
    /// Bytes were written, or cut off: they come back, and so does the size.
    Wrote {
        /// Its workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
        /// Where the bytes were.
        at: u64,
        /// What was there.
        old: Vec<u8>,
        /// How many bytes the collection had.
        size: u64,
    },
    /// Metadata was changed: it changes back.
    Meta {
        /// Where the record is.
        scope: Scope,
        /// The record.
        uuid: Uuid,
        /// The changes back.
        back: Vec<Change>,
    },
    /// A collection goes when the batch is committed.
    Delete {
        /// Its workspace.
        workspace: Uuid,
        /// The collection.
        uuid: Uuid,
    },
}

/// Keeps entries while a batch runs.
pub trait UndoLog: Send + Sync {
    /// Adds an entry; it is kept when this returns.
    ///
    /// # Errors
    /// If it can't be kept. The operation must not be done then.
    fn note(&self, entry: Undo) -> Result<()>;

    /// The entries, in the order they came, and whether the log was committed.
    ///
    /// # Errors
    /// If they can't be read.
    fn entries(&self) -> Result<(Vec<Undo>, bool)>;

    /// From here on nothing is undone any more, whatever happens.
    ///
    /// # Errors
    /// If that can't be noted, or an answer was lost: [`UndoLog::entries`] tells then whether it
    /// was.
    fn commit(&self) -> Result<()>;

    /// All was undone, or carried out: the log goes.
    fn end(&self);

    /// Whether what it keeps outlives this process.
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

/// The changes that lead from `after` changes back to what was `before`.
pub(crate) fn changes_back(before: &Meta, changes: &[Change]) -> Vec<Change> {
    let back = |(key, _): &Change| (key.clone(), before.get(key).cloned());
    changes.iter().map(back).collect()
}

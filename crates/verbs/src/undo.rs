//! Undoing what a batch did.
//!
//! Each operation of a batch whose failure rule is `rollback` records here what takes it back,
//! *before* it does anything that others can see. When the batch fails or is cancelled, the entries
//! are undone from the last one to the first. When all went well, the log is committed and removed.
//! Deletions can't be taken back, so they are recorded and carried out after the commit.
//!
//! A log has to live as long as what it could undo. [`InProcess`] goes with its process, so it is
//! for collections that do the same; for others the operation is refused by name. Pools and etcd
//! keep logs themselves; what a killed process has left is settled by who loads a workspace next.

use crate::meta::{Change, Key, Scope};
use crate::{Error, Meta, Result, Session, Uuid};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Collections that are deleted together, at most.
const TOGETHER: usize = 256;

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
        /// The bytes that were there.
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

/// Settles what a dead process has left: takes it back, or carries out the rest.
///
/// # Errors
/// What couldn't be done. The log stays then, for the next one who comes.
pub(crate) fn settle(session: &Session, log: &dyn UndoLog) -> Result<()> {
    match log.entries()? {
        (entries, true) => carry_out(session, log, entries),
        (_, false) => undo(session, log),
    }
}

/// Takes back all that is in the log.
///
/// # Errors
/// What couldn't be taken back; all else was.
pub(crate) fn undo(session: &Session, log: &dyn UndoLog) -> Result<()> {
    let entries = log.entries()?.0.into_iter().rev();
    let failed = entries.filter_map(|entry| undo_one(session, entry).err());
    told(
        log,
        failed.collect(),
        "not all of the batch could be undone",
    )
}

fn undo_one(session: &Session, entry: Undo) -> Result<()> {
    match entry {
        Undo::Created { workspace, uuid } => session.delete_collection(workspace, uuid),
        Undo::Wrote {
            workspace,
            uuid,
            at,
            old,
            size,
        } => {
            let (_, mut object) = session.open_object(workspace, Key::Uuid(uuid))?;
            if !old.is_empty() {
                object.write(&old, at)?;
            }
            object.truncate(size)?;
            object.close()
        }
        Undo::Meta { scope, uuid, back } => session.store().update(scope, uuid, &back).map(|_| ()),
        Undo::Delete { .. } => Ok(()),
    }
}

/// Commits the log, and carries out what waited for that.
///
/// # Errors
/// If it can't be committed: it is to be undone then. Or what couldn't be carried out.
pub(crate) fn complete(session: &Session, log: &dyn UndoLog) -> Result<()> {
    let committed = log.commit();
    // What failed may have been noted all the same: then somebody else would have carried it on.
    let (entries, noted) = log.entries()?;
    match committed {
        Err(error) if !noted => {
            undo(session, log)?;
            Err(error.about("the batch was undone, as it couldn't be committed"))
        }
        _ => carry_out(session, log, entries),
    }
}

/// Does what waited for the commit.
fn carry_out(session: &Session, log: &dyn UndoLog, entries: Vec<Undo>) -> Result<()> {
    let mut gone: BTreeMap<Uuid, Vec<Key<'_>>> = BTreeMap::new();
    for entry in entries {
        if let Undo::Delete { workspace, uuid } = entry {
            gone.entry(workspace).or_default().push(Key::Uuid(uuid));
        }
    }
    let mut failed = Vec::new();
    for (workspace, keys) in &gone {
        for some in keys.chunks(TOGETHER) {
            let found = session.store().find_all(Scope::In(*workspace), some);
            let deleted = session.delete_found(*workspace, found);
            failed.extend(deleted.into_iter().filter_map(Result::err));
        }
    }
    told(
        log,
        failed,
        "not all that the batch deletes could be deleted",
    )
}

/// Ends the log, unless something failed.
fn told(log: &dyn UndoLog, mut failed: Vec<Error>, what: &str) -> Result<()> {
    // What is gone needs nothing more.
    failed.retain(|error| error.errno() != Errno::NOENT);
    match failed.first() {
        None => {
            log.end();
            Ok(())
        }
        Some(first) => {
            let more = failed.len() - 1;
            let text = format!("{what}: {first} (and {more} more)");
            Err(Error::new(first.errno(), text))
        }
    }
}

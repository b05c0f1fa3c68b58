//! Undoing batches, and completing them ([`crate::meta::undo`]).

use crate::meta::undo::{Undo, UndoLog};
use crate::meta::{Key, Scope};
use crate::{Error, Result, Session, Uuid};
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Maximum number of collections that are deleted together.
const COLLECTIONS_PER_BATCH: usize = 256;

impl Session {
    /// Undoes or completes the unfinished batches of dead processes.
    ///
    /// # Errors
    /// ENODEV if a back end that such a batch used isn't attached; the errors of undoing.
    pub(crate) fn settle(&self) -> Result<()> {
        for log in self.store().left_behind()? {
            let settled = settle(self, &*log);
            settled.map_err(|e| e.about("a batch that a killed process has left half done"))?;
        }
        Ok(())
    }
}

/// Undoes an unfinished batch of a dead process, or completes it if it was committed.
///
/// # Errors
/// The errors of the operations. The log then isn't removed, so that the next process tries again.
fn settle(session: &Session, log: &dyn UndoLog) -> Result<()> {
    match log.entries()? {
        (entries, true) => carry_out(session, log, entries),
        (_, false) => undo(session, log),
    }
}

/// Undoes everything in the log.
///
/// # Errors
/// An error that names the changes that couldn't be undone. All others were undone.
pub(crate) fn undo(session: &Session, log: &dyn UndoLog) -> Result<()> {
    let entries = log.entries()?.0.into_iter().rev();
    let failed = entries.filter_map(|entry| undo_one(session, entry).err());
    finish(
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

/// Commits the log, then carries out the deletions that were postponed until the commit.
///
/// # Errors
/// The errors of the commit: the caller must then undo the batch. Or the errors of the deletions.
pub(crate) fn complete(session: &Session, log: &dyn UndoLog) -> Result<()> {
    let committed = log.commit();
    // The commit may have been recorded although `commit` failed: another process would then
    // complete the batch.
    let (entries, noted) = log.entries()?;
    match committed {
        Err(error) if !noted => {
            undo(session, log)?;
            Err(error.about("the batch was undone, as it couldn't be committed"))
        }
        _ => carry_out(session, log, entries),
    }
}

/// Carries out the deletions that waited for the commit.
fn carry_out(session: &Session, log: &dyn UndoLog, entries: Vec<Undo>) -> Result<()> {
    let mut gone: BTreeMap<Uuid, Vec<Key<'_>>> = BTreeMap::new();
    for entry in entries {
        if let Undo::Delete { workspace, uuid } = entry {
            gone.entry(workspace).or_default().push(Key::Uuid(uuid));
        }
    }
    let mut failed = Vec::new();
    for (workspace, keys) in &gone {
        for some in keys.chunks(COLLECTIONS_PER_BATCH) {
            let found = session.store().find_all(Scope::In(*workspace), some);
            let deleted = session.delete_found(*workspace, found);
            failed.extend(deleted.into_iter().filter_map(Result::err));
        }
    }
    finish(
        log,
        failed,
        "not all that the batch deletes could be deleted",
    )
}

/// Removes the log, unless an operation failed with an error other than ENOENT.
fn finish(log: &dyn UndoLog, mut failed: Vec<Error>, what: &str) -> Result<()> {
    // A missing object needs no deletion.
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

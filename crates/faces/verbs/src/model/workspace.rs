//! Workspaces: namespaces with their own metadata.

use super::set_meta;
use crate::meta::{Change, Key, New, Record, Scope, check_changes, check_name};
use crate::{Error, Meta, Predicate, Result, Session, Uuid};
use std::sync::Arc;

/// A workspace in use. Clones refer to the same workspace.
#[derive(Clone)]
pub struct Workspace {
    pub(super) session: Session,
    pub(super) uuid: Uuid,
    pub(super) name: Arc<str>,
}

impl Workspace {
    /// Creates a workspace.
    ///
    /// # Errors
    /// EEXIST if a workspace of this name exists; EINVAL for invalid names and metadata.
    pub fn create(session: &Session, name: &str, meta: &Meta) -> Result<Workspace> {
        session.check()?;
        check_name(name)?;
        check_changes(meta.iter().map(|(k, v)| (k.as_str(), Some(v.as_str()))))?;
        let new = New {
            name,
            meta: meta.clone(),
            ..New::default()
        };
        let made = session.store().create(Scope::Root, &new, &mut |_| Ok(()));
        Ok(Workspace::of(session, made.map_err(about(name))?))
    }

    /// Opens an existing workspace. First undoes unfinished `rollback` batches of killed processes.
    ///
    /// # Errors
    /// ENOENT if the workspace doesn't exist; ENODEV if a back end that is needed to undo isn't
    /// attached.
    pub fn load(session: &Session, key: Key<'_>) -> Result<Workspace> {
        session.check()?;
        session.settle()?;
        let found = session.store().find(Scope::Root, key);
        found
            .map(|record| Workspace::of(session, record))
            .map_err(|e| e.about("workspace"))
    }

    fn of(session: &Session, record: Record) -> Workspace {
        Workspace {
            session: session.clone(),
            uuid: record.uuid,
            name: record.name.into(),
        }
    }

    /// Returns the workspaces that match the predicate, sorted by name.
    ///
    /// # Errors
    /// The errors of the metadata store.
    pub fn search(session: &Session, predicate: &Predicate) -> Result<Vec<Record>> {
        session.check()?;
        session.store().search(Scope::Root, predicate, usize::MAX)
    }

    /// Returns the workspace's session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the workspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the workspace's UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the workspace's metadata.
    ///
    /// # Errors
    /// ENOENT if the workspace was deleted.
    pub fn get_meta(&self) -> Result<Meta> {
        self.session.check()?;
        let found = self.session.store().find(Scope::Root, Key::Uuid(self.uuid));
        found.map(|r| r.meta).map_err(about(&self.name))
    }

    /// Changes the workspace's metadata.
    ///
    /// # Errors
    /// ENOENT if the workspace was deleted; EINVAL, E2BIG for invalid metadata.
    pub fn set_meta(&self, changes: &[Change]) -> Result<()> {
        self.session.check()?;
        set_meta(&self.session, Scope::Root, self.uuid, changes, None).map_err(about(&self.name))
    }

    /// Closes this handle. Other handles of the workspace stay usable.
    pub fn close(self) {}

    /// Deletes the workspace, which must be empty.
    ///
    /// # Errors
    /// ENOTEMPTY if it has collections, ENOENT if it was deleted already.
    pub fn delete(self) -> Result<()> {
        self.session.check()?;
        let removed = self.session.store().remove(Scope::Root, self.uuid);
        removed.map_err(about(&self.name))
    }
}

fn about(name: &str) -> impl Fn(Error) -> Error {
    move |e| e.about(format!("workspace '{name}'"))
}

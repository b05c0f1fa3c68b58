//! Workspaces: namespaces with metadata of their own.

use super::set_meta;
use crate::meta::{Change, Key, New, Record, Scope, check_changes, check_name};
use crate::{Error, Meta, Predicate, Result, Session, Uuid};
use std::sync::Arc;

/// A workspace that is in use. A clone is the same.
#[derive(Clone)]
pub struct Workspace {
    pub(super) session: Session,
    pub(super) uuid: Uuid,
    pub(super) name: Arc<str>,
}

impl Workspace {
    /// Makes a workspace.
    ///
    /// # Errors
    /// EEXIST if there is one of this name; EINVAL for names and metadata that can't be.
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

    /// Uses a workspace that is there. What killed processes have left half done in batches with
    /// `rollback` is undone first.
    ///
    /// # Errors
    /// ENOENT if it isn't there; ENODEV if a back end that is needed to undo isn't attached.
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

    /// The workspaces whose metadata fits, by name.
    ///
    /// # Errors
    /// What the metadata store has to say.
    pub fn search(session: &Session, predicate: &Predicate) -> Result<Vec<Record>> {
        session.check()?;
        session.store().search(Scope::Root, predicate, usize::MAX)
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its UUID.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Its metadata.
    ///
    /// # Errors
    /// ENOENT if it was deleted.
    pub fn get_meta(&self) -> Result<Meta> {
        self.session.check()?;
        let found = self.session.store().find(Scope::Root, Key::Uuid(self.uuid));
        found.map(|r| r.meta).map_err(about(&self.name))
    }

    /// Changes its metadata.
    ///
    /// # Errors
    /// ENOENT if it was deleted; EINVAL, E2BIG for what can't be metadata.
    pub fn set_meta(&self, changes: &[Change]) -> Result<()> {
        self.session.check()?;
        set_meta(&self.session, Scope::Root, self.uuid, changes, None).map_err(about(&self.name))
    }

    /// Ends its use. What uses it still, goes on.
    pub fn close(self) {}

    /// Deletes it. It must be empty.
    ///
    /// # Errors
    /// ENOTEMPTY if it has collections, ENOENT if it is gone.
    pub fn delete(self) -> Result<()> {
        self.session.check()?;
        let removed = self.session.store().remove(Scope::Root, self.uuid);
        removed.map_err(about(&self.name))
    }
}

fn about(name: &str) -> impl Fn(Error) -> Error {
    move |e| e.about(format!("workspace '{name}'"))
}

//! Workspaces and collections.
//!
//! A workspace is a namespace with its own metadata. A collection is a sequence of bytes in a
//! workspace, with a name, a UUID, key-value metadata, controls, and a back end that stores the
//! bytes. A chunk is a range of these bytes: an offset and a length. `workspace.rs` has workspaces,
//! `bytes.rs` the operations on bytes. Every verb here is carried out before it returns;
//! [`crate::Batch`] has the same verbs, to be carried out later.

mod bytes;
mod workspace;

pub use workspace::Workspace;

use crate::backend::{Address, Backend, Object};
use crate::meta::undo::{Undo, UndoLog, changes_back};
use crate::meta::{Change, Key, New, Record, Scope, check_changes, check_name};
use crate::{Error, Meta, Predicate, Result, Session, Uuid};
use forebay_controls::Controls;
use forebay_runtime::threads::{read_lock, write_lock};
use rustix::io::Errno;
use std::sync::{Arc, RwLock};

/// The options of a new collection.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The new collection's metadata.
    pub meta: Meta,
    /// The new collection's controls.
    pub controls: Controls,
    /// Name of the back end for the collection's bytes. None: the back end that [`Session::choose`]
    /// selects, or else the session's default.
    pub backend: Option<String>,
}

/// A collection in use. Clones share their state: closing one closes them all.
#[derive(Clone)]
pub struct Collection(Arc<Handle>);

struct Handle {
    workspace: Workspace,
    state: RwLock<State>,
}

enum State {
    /// The batch that creates or opens the collection hasn't done so yet.
    Pending,
    Open(Record, Outlives, Box<dyn Object>),
    Closed,
}

/// Whether some of the collection's data outlive the process: the bytes, or the session's metadata.
type Outlives = bool;

/// The contents of [`State::Open`].
#[derive(Clone, Copy)]
struct Opened<'a> {
    record: &'a Record,
    outlives: Outlives,
    object: &'a dyn Object,
}

/// The undo log of the batch that runs an operation; None without `rollback`, or outside of a
/// batch.
pub(crate) type Log<'a> = Option<&'a dyn UndoLog>;

/// The back end selected for a new collection.
struct Chosen {
    name: String,
    place: String,
    backend: Arc<dyn Backend>,
}

/// A collection to be created.
pub(crate) struct NewCollection {
    pub collection: Collection,
    pub name: String,
    pub options: Options,
}

impl Options {
    /// Returns the record to be created, with this name and back end.
    fn as_new<'a>(&self, name: &'a str, chosen: &'a Chosen) -> New<'a> {
        New {
            name,
            meta: self.meta.clone(),
            backend: &chosen.name,
            place: &chosen.place,
            controls: self.controls,
            of_file: chosen.backend.declared_of_record(&self.controls),
        }
    }
}

impl Workspace {
    /// Checks that a collection can be created, and chooses its back end.
    fn check_new(&self, name: &str, options: &Options, log: Log<'_>) -> Result<Chosen> {
        let session = &self.session;
        session.check()?;
        let about = |e: Error| e.about(format!("collection '{name}'"));
        let meta = &options.meta;
        check_name(name).map_err(about)?;
        check_changes(meta.iter().map(|(k, v)| (k.as_str(), Some(v.as_str())))).map_err(about)?;
        let chosen = match &options.backend {
            Some(named) => named.clone(),
            None => session.chosen_backend(self.name(), name, &options.controls),
        };
        let backend = session.backend(&chosen).map_err(about)?;
        backend.supports(&options.controls).map_err(about)?;
        check_log(log, session.outlives_process(&*backend), &chosen).map_err(about)?;
        Ok(Chosen {
            place: backend.place(),
            name: chosen,
            backend,
        })
    }

    /// Logs the collection's deletion, which is carried out when the batch is committed.
    fn note_delete(&self, log: &dyn UndoLog, record: &Record) -> Result<()> {
        let session = &self.session;
        let outlives = session.outlives_process(&*session.backend_of(record)?);
        check_log(Some(log), outlives, &record.backend)?;
        let (workspace, uuid) = (self.uuid, record.uuid);
        log.note(Undo::Delete { workspace, uuid })
    }

    /// Logs, in a batch that can be undone, that the collection is to be deleted if the batch is
    /// undone.
    fn note_created(&self, log: Log<'_>, record: &Record) -> Result<()> {
        let (workspace, uuid) = (self.uuid, record.uuid);
        log.map_or(Ok(()), |log| log.note(Undo::Created { workspace, uuid }))
    }
}

fn set_meta(
    session: &Session,
    scope: Scope,
    uuid: Uuid,
    changes: &[Change],
    log: Log<'_>,
) -> Result<()> {
    check_changes(changes.iter().map(|(k, v)| (k.as_str(), v.as_deref())))?;
    if let Some(log) = log {
        let before = session.store().find(scope, Key::Uuid(uuid))?.meta;
        let back = changes_back(&before, changes);
        log.note(Undo::Meta { scope, uuid, back })?;
    }
    session.store().update(scope, uuid, changes).map(|_| ())
}

/// Refuses an operation on data that outlive the process if the undo log doesn't outlive it: after
/// a crash nothing could undo the operation.
fn check_log(log: Log<'_>, outlives: Outlives, backend: &str) -> Result<()> {
    match log {
        Some(log) if outlives && !log.outlives_process() => Err(Error::unsupported(format!(
            "failure=rollback can't be kept: what the back end '{backend}' has outlives this process, but not \
             this session's metadata, in which the way back would have to be noted"
        ))),
        _ => Ok(()),
    }
}

impl Collection {
    /// Creates a collection and opens it.
    ///
    /// # Errors
    /// EEXIST if a collection of this name exists; EINVAL for invalid names and metadata; ENODEV if
    /// the back end isn't attached; ENOTSUP, naming the control, for a control that the back end
    /// can't keep.
    pub fn create(workspace: &Workspace, name: &str, options: &Options) -> Result<Collection> {
        let new = Collection::pending(workspace);
        new.fill_new(name, options, None)?;
        Ok(new)
    }

    /// Creates and opens several collections with joint requests to other nodes. A failure of one
    /// doesn't affect the others.
    ///
    /// # Errors
    /// For each, as for [`Collection::create`].
    pub fn create_all(workspace: &Workspace, all: Vec<(&str, Options)>) -> Vec<Result<Collection>> {
        let new = |(name, options): (&str, Options)| NewCollection {
            collection: Collection::pending(workspace),
            name: name.into(),
            options,
        };
        let all: Vec<NewCollection> = all.into_iter().map(new).collect();
        let made = Collection::fill_all(&all, None);
        let made = made.into_iter().zip(all);
        made.map(|(made, new)| made.map(|()| new.collection))
            .collect()
    }

    /// Opens a collection.
    ///
    /// # Errors
    /// ENOENT if the collection doesn't exist; ENODEV if its back end isn't attached.
    pub fn open(workspace: &Workspace, key: Key<'_>) -> Result<Collection> {
        let opened = Collection::pending(workspace);
        opened.fill(key)?;
        Ok(opened)
    }

    /// Returns the record of a collection, without touching the collection's bytes.
    ///
    /// # Errors
    /// ENOENT if the collection doesn't exist.
    pub fn lookup(workspace: &Workspace, key: Key<'_>) -> Result<Record> {
        workspace.session.check()?;
        let store = workspace.session.store();
        store.find(Scope::In(workspace.uuid), key)
    }

    /// Checks that this session has the back end of a collection's bytes. Doesn't check that the
    /// bytes exist.
    ///
    /// # Errors
    /// ENODEV, naming the collection's back end, if it isn't attached, or if another back end is
    /// attached under its name.
    pub fn reaches(workspace: &Workspace, record: &Record) -> Result<()> {
        workspace.session.check()?;
        workspace.session.backend_of(record).map(|_| ())
    }

    /// Returns the collections that match the predicate, sorted by name.
    ///
    /// # Errors
    /// The errors of the metadata store.
    pub fn search(workspace: &Workspace, predicate: &Predicate) -> Result<Vec<Record>> {
        workspace.session.check()?;
        let store = workspace.session.store();
        store.search(Scope::In(workspace.uuid), predicate, usize::MAX)
    }

    /// Deletes a collection. Processes that have it open can continue to use it, if the back end
    /// supports the use of deleted collections.
    ///
    /// # Errors
    /// ENOENT if the collection doesn't exist; ENODEV if its back end isn't attached.
    pub fn delete(workspace: &Workspace, key: Key<'_>) -> Result<()> {
        Collection::delete_logged(workspace, key, None)
    }

    pub(crate) fn delete_logged(workspace: &Workspace, key: Key<'_>, log: Log<'_>) -> Result<()> {
        let record = Collection::lookup(workspace, key)?;
        match log {
            None => {
                let session = &workspace.session;
                session.delete_collection(workspace.uuid, record.uuid)
            }
            Some(log) => workspace.note_delete(log, &record),
        }
    }

    /// Deletes several collections with joint requests to other nodes. A failure of one doesn't
    /// affect the others.
    ///
    /// # Errors
    /// For each, as for [`Collection::delete`].
    pub fn delete_all(workspace: &Workspace, keys: &[Key<'_>]) -> Vec<Result<()>> {
        Collection::delete_all_logged(workspace, keys, None)
    }

    pub(crate) fn delete_all_logged(
        workspace: &Workspace,
        keys: &[Key<'_>],
        log: Log<'_>,
    ) -> Vec<Result<()>> {
        let session = &workspace.session;
        if let Err(error) = session.check() {
            return vec![Err(error); keys.len()];
        }
        let found = session.store().find_all(Scope::In(workspace.uuid), keys);
        match log {
            None => session.delete_found(workspace.uuid, found),
            Some(log) => found
                .into_iter()
                .map(|record| workspace.note_delete(log, &record?))
                .collect(),
        }
    }

    /// Returns a handle of a collection that a batch will create or open.
    pub(crate) fn pending(workspace: &Workspace) -> Collection {
        Collection(Arc::new(Handle {
            workspace: workspace.clone(),
            state: RwLock::new(State::Pending),
        }))
    }

    pub(crate) fn fill_new(&self, name: &str, options: &Options, log: Log<'_>) -> Result<()> {
        let workspace = &self.0.workspace;
        let chosen = workspace.check_new(name, options, log)?;
        let new = options.as_new(name, &chosen);
        let made =
            workspace
                .session
                .store()
                .create(Scope::In(workspace.uuid), &new, &mut |record| {
                    workspace.note_created(log, record)
                });
        self.become_new(made, &*chosen.backend, options, name)
    }

    /// Like [`Collection::fill_new`] for several collections of one workspace, with joint requests
    /// to other nodes. A failure of one doesn't affect the others.
    pub(crate) fn fill_all(all: &[NewCollection], log: Log<'_>) -> Vec<Result<()>> {
        let Some(first) = all.first() else {
            return Vec::new();
        };
        let workspace = &first.collection.0.workspace;
        let check = |c: &NewCollection| workspace.check_new(&c.name, &c.options, log);
        let checked: Vec<Result<_>> = all.iter().map(check).collect();
        let wanted = all.iter().zip(&checked);
        let news: Vec<New<'_>> = wanted
            .filter_map(|(c, checked)| Some(c.options.as_new(&c.name, checked.as_ref().ok()?)))
            .collect();
        let scope = Scope::In(workspace.uuid);
        let made = workspace
            .session
            .store()
            .create_all(scope, &news, &mut |_, record| {
                workspace.note_created(log, record)
            });
        let mut made = made.into_iter();
        let end = |(c, checked): (&NewCollection, &Result<Chosen>)| {
            let chosen = checked.as_ref().map_err(Clone::clone)?;
            let nothing = || {
                Err(Error::new(
                    Errno::IO,
                    "the metadata store made nothing of it",
                ))
            };
            let made = made.next().unwrap_or_else(nothing);
            c.collection
                .become_new(made, &*chosen.backend, &c.options, &c.name)
        };
        all.iter().zip(&checked).map(end).collect()
    }

    /// Completes a creation after the metadata store has made the record: creates and opens the
    /// bytes.
    fn become_new(
        &self,
        made: Result<Record>,
        backend: &dyn Backend,
        options: &Options,
        name: &str,
    ) -> Result<()> {
        let workspace = &self.0.workspace;
        let session = &workspace.session;
        let about = |e: Error| e.about(format!("collection '{name}'"));
        let record = made.map_err(about)?;
        let address = Address {
            workspace: workspace.name().into(),
            workspace_uuid: workspace.uuid,
            name: name.into(),
            uuid: record.uuid,
        };
        match backend.create(&address, &options.controls) {
            Ok(object) => {
                let outlives = session.outlives_process(backend);
                self.become_open(State::Open(record, outlives, object));
                Ok(())
            }
            Err(error) => {
                // Removes the record. If the removal fails as well, the record stays as a
                // collection without bytes, which can be deleted.
                let _ = session
                    .store()
                    .remove(Scope::In(workspace.uuid), record.uuid);
                Err(about(error))
            }
        }
    }

    pub(crate) fn fill(&self, key: Key<'_>) -> Result<()> {
        let workspace = &self.0.workspace;
        let session = &workspace.session;
        session.check()?;
        let (record, object) = session.open_object(workspace.uuid, key)?;
        let outlives = session.outlives_process(&*session.backend_of(&record)?);
        self.become_open(State::Open(record, outlives, object));
        Ok(())
    }

    fn become_open(&self, open: State) {
        *write_lock(&self.0.state) = open;
    }

    fn with<T>(&self, f: impl FnOnce(Opened<'_>) -> Result<T>) -> Result<T> {
        self.0.workspace.session.check()?;
        let state = read_lock(&self.0.state);
        match &*state {
            State::Open(record, outlives, object) => f(Opened {
                record,
                outlives: *outlives,
                object: &**object,
            }),
            State::Pending => Err(Error::new(
                Errno::BADF,
                "this collection isn't open: the batch that shall open it hasn't done so",
            )),
            State::Closed => Err(Error::new(Errno::BADF, "this collection is closed")),
        }
    }

    /// Returns the collection's workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.0.workspace
    }

    /// Returns the collection's name at the time when it was opened.
    ///
    /// # Errors
    /// EBADF if the collection isn't open.
    pub fn name(&self) -> Result<String> {
        self.with(|open| Ok(open.record.name.clone()))
    }

    /// Returns the collection's UUID.
    ///
    /// # Errors
    /// EBADF if the collection isn't open.
    pub fn uuid(&self) -> Result<Uuid> {
        self.with(|open| Ok(open.record.uuid))
    }

    /// Returns the collection's metadata.
    ///
    /// # Errors
    /// EBADF if the collection isn't open, ENOENT if it was deleted.
    pub fn get_meta(&self) -> Result<Meta> {
        let workspace = &self.0.workspace;
        let uuid = self.uuid()?;
        let store = workspace.session.store();
        let found = store.find(Scope::In(workspace.uuid), Key::Uuid(uuid))?;
        Ok(found.meta)
    }

    /// Changes the collection's metadata.
    ///
    /// # Errors
    /// EBADF if the collection isn't open, ENOENT if it was deleted; EINVAL, E2BIG for invalid
    /// metadata.
    pub fn set_meta(&self, changes: &[Change]) -> Result<()> {
        self.set_meta_logged(changes, None)
    }

    pub(crate) fn set_meta_logged(&self, changes: &[Change], log: Log<'_>) -> Result<()> {
        let workspace = &self.0.workspace;
        let (uuid, outlives, backend) =
            self.with(|open| Ok((open.record.uuid, open.outlives, open.record.backend.clone())))?;
        check_log(log, outlives, &backend)?;
        let scope = Scope::In(workspace.uuid);
        set_meta(&workspace.session, scope, uuid, changes, log)
    }

    /// Closes the collection, after waiting for all verbs that are in progress in other threads.
    ///
    /// # Errors
    /// EBADF if the collection isn't open; the errors of writing its bytes back.
    pub fn close(&self) -> Result<()> {
        self.with(|_| Ok(()))?;
        let mut state = write_lock(&self.0.state);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(_, _, mut object) => object.close(),
            _ => Err(Error::new(Errno::BADF, "this collection is closed")),
        }
    }

    /// Returns a number that identifies the collection while a handle of it exists.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

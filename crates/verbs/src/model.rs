//! Workspaces and collections.
//!
//! A workspace is a namespace with metadata of its own. A collection is a sequence of bytes in one, with a name, a UUID,
//! key-value metadata, controls, and a back end that keeps the bytes. A chunk is a range of them: a place and a
//! length. Every verb here is carried out before it returns; [`crate::Batch`] has the same verbs for later.

use crate::backend::{Address, Backend, Mapped, Object};
use crate::chunk::Access;
use crate::meta::{Change, Key, New, Record, Scope, check_changes, check_name};
use crate::undo::{Undo, UndoLog, changes_back};
use crate::{Error, Meta, Predicate, Result, Session, Uuid};
use forebay_controls::Controls;
use rustix::io::Errno;
use std::cmp::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes that a copy moves at once.
const COPY: u64 = 1 << 20;

/// A workspace that is in use. A clone is the same.
#[derive(Clone)]
pub struct Workspace {
    session: Session,
    uuid: Uuid,
    name: Arc<str>,
}

/// What can be said of a new collection.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its metadata.
    pub meta: Meta,
    /// What its use needs.
    pub controls: Controls,
    /// The back end that shall have its bytes; None: what [`Session::choose`] says, or else the session's first.
    pub backend: Option<String>,
}

/// A collection that is in use. A clone is the same: closed once, it is closed for all.
#[derive(Clone)]
pub struct Collection(Arc<Handle>);

struct Handle {
    workspace: Workspace,
    state: RwLock<State>,
}

enum State {
    /// A batch will open it.
    Pending,
    Open(Record, Outlives, Box<dyn Object>),
    Closed,
}

/// Whether something of it outlives the process.
type Outlives = bool;

/// A collection that is open.
#[derive(Clone, Copy)]
struct Opened<'a> {
    record: &'a Record,
    outlives: Outlives,
    object: &'a dyn Object,
}

/// The log of a batch that can be undone.
pub(crate) type Log<'a> = Option<&'a dyn UndoLog>;

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

    /// Uses a workspace that is there. What killed processes have left half done in batches with `rollback` is
    /// undone first.
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

/// A back end for something new.
struct Chosen {
    name: String,
    place: String,
    backend: Arc<dyn Backend>,
}

/// A collection that is to be made.
pub(crate) struct NewCollection {
    pub collection: Collection,
    pub name: String,
    pub options: Options,
}

impl Options {
    /// As a record of this name, in this back end.
    fn as_new<'a>(&self, name: &'a str, chosen: &'a Chosen) -> New<'a> {
        New {
            name,
            meta: self.meta.clone(),
            backend: &chosen.name,
            place: &chosen.place,
            controls: self.controls,
        }
    }
}

impl Workspace {
    /// Whether a collection can be made, and in which back end.
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

    /// Notes how the making of a collection is undone.
    fn note_created(&self, log: Log<'_>, record: &Record) -> Result<()> {
        let (workspace, uuid) = (self.uuid, record.uuid);
        log.map_or(Ok(()), |log| log.note(Undo::Created { workspace, uuid }))
    }
}

fn about(name: &str) -> impl Fn(Error) -> Error {
    move |e| e.about(format!("workspace '{name}'"))
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

/// Refuses what a log that goes with the process couldn't undo.
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
    /// Makes a collection and opens it.
    ///
    /// # Errors
    /// EEXIST if there is one of this name; EINVAL for names and metadata that can't be; ENODEV without
    /// the back end; ENOTSUP, naming it, for a control that the back end can't keep.
    pub fn create(workspace: &Workspace, name: &str, options: &Options) -> Result<Collection> {
        let new = Collection::pending(workspace);
        new.fill_new(name, options, None)?;
        Ok(new)
    }

    /// Opens a collection.
    ///
    /// # Errors
    /// ENOENT if there is none; ENODEV without its back end.
    pub fn open(workspace: &Workspace, key: Key<'_>) -> Result<Collection> {
        let opened = Collection::pending(workspace);
        opened.fill(key)?;
        Ok(opened)
    }

    /// What is known of a collection; its bytes aren't touched.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn lookup(workspace: &Workspace, key: Key<'_>) -> Result<Record> {
        workspace.session.check()?;
        let store = workspace.session.store();
        store.find(Scope::In(workspace.uuid), key)
    }

    /// The collections whose metadata fits, by name.
    ///
    /// # Errors
    /// What the metadata store has to say.
    pub fn search(workspace: &Workspace, predicate: &Predicate) -> Result<Vec<Record>> {
        workspace.session.check()?;
        let store = workspace.session.store();
        store.search(Scope::In(workspace.uuid), predicate, usize::MAX)
    }

    /// Deletes a collection. Who has it open goes on with it, where the back end can have that.
    ///
    /// # Errors
    /// ENOENT if there is none; ENODEV without its back end.
    pub fn delete(workspace: &Workspace, key: Key<'_>) -> Result<()> {
        Collection::delete_logged(workspace, key, None)
    }

    pub(crate) fn delete_logged(workspace: &Workspace, key: Key<'_>, log: Log<'_>) -> Result<()> {
        let record = Collection::lookup(workspace, key)?;
        let session = &workspace.session;
        let Some(log) = log else {
            return session.delete_collection(workspace.uuid, record.uuid);
        };
        let outlives = session.outlives_process(&*session.backend_of(&record)?);
        check_log(Some(log), outlives, &record.backend)?;
        log.note(Undo::Delete {
            workspace: workspace.uuid,
            uuid: record.uuid,
        })
    }

    /// One that a batch will open.
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

    /// As [`Collection::fill_new`] for several of one workspace, each by itself: what other nodes are asked for that, they are asked together.
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

    /// It was made, in the metadata store: its bytes are made, too, and it is open.
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
                // The name goes back. If that fails as well, it is a collection without bytes, which can be deleted.
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
        *self.0.state.write().unwrap_or_else(PoisonError::into_inner) = open;
    }

    fn with<T>(&self, f: impl FnOnce(Opened<'_>) -> Result<T>) -> Result<T> {
        self.0.workspace.session.check()?;
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
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

    /// As [`Collection::with`], of two, or of one twice: always in the same order, so that nobody waits for who waits for
    /// him.
    fn with_both<T>(
        &self,
        other: &Collection,
        f: impl FnOnce(Opened<'_>, Opened<'_>) -> Result<T>,
    ) -> Result<T> {
        match self.identity().cmp(&other.identity()) {
            Ordering::Equal => self.with(|open| f(open, open)),
            Ordering::Less => self.with(|open| other.with(|with| f(open, with))),
            Ordering::Greater => other.with(|with| self.with(|open| f(open, with))),
        }
    }

    /// Notes how to bring back the bytes from `at` to `end`, and the size.
    fn note_bytes(
        &self,
        log: Log<'_>,
        open: Opened<'_>,
        range: impl FnOnce(u64) -> (u64, u64),
    ) -> Result<()> {
        let Some(log) = log else { return Ok(()) };
        check_log(Some(log), open.outlives, &open.record.backend)?;
        let size = open.object.size()?;
        let (at, end) = range(size);
        let len = end.min(size).saturating_sub(at);
        let len = usize::try_from(len).map_err(|_| Error::invalid("more than memory can hold"))?;
        let mut old = vec![0; len];
        if len > 0 {
            let n = open.object.read(&mut old, at)?;
            old.truncate(n);
        }
        log.note(Undo::Wrote {
            workspace: self.0.workspace.uuid,
            uuid: open.record.uuid,
            at,
            old,
            size,
        })
    }

    /// Its workspace.
    pub fn workspace(&self) -> &Workspace {
        &self.0.workspace
    }

    /// Its name, when it was opened.
    ///
    /// # Errors
    /// EBADF if it isn't open.
    pub fn name(&self) -> Result<String> {
        self.with(|open| Ok(open.record.name.clone()))
    }

    /// Its UUID.
    ///
    /// # Errors
    /// EBADF if it isn't open.
    pub fn uuid(&self) -> Result<Uuid> {
        self.with(|open| Ok(open.record.uuid))
    }

    /// Reads the chunk at `at`. Fewer bytes come only at the end.
    ///
    /// # Errors
    /// EBADF if it isn't open; what the back end has to say.
    pub fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        self.with(|open| open.object.read(to, at))
    }

    /// Writes the chunk at `at`, all of it. Behind the end, the collection grows, with zeros between.
    ///
    /// # Errors
    /// EBADF if it isn't open; ENOSPC, what the back end has to say. A first part may be written then.
    pub fn write(&self, from: &[u8], at: u64) -> Result<()> {
        self.with(|open| open.object.write(from, at))
    }

    pub(crate) fn write_logged(&self, from: &[u8], at: u64, log: Log<'_>) -> Result<()> {
        self.with(|open| {
            let end = at.saturating_add(from.len() as u64);
            self.note_bytes(log, open, |_| (at, end))?;
            open.object.write(from, at)
        })
    }

    /// Writes a chunk behind the end, in one piece, and says where it lies.
    ///
    /// # Errors
    /// As for [`Collection::write`].
    pub fn append(&self, from: &[u8]) -> Result<u64> {
        self.append_logged(from, None)
    }

    pub(crate) fn append_logged(&self, from: &[u8], log: Log<'_>) -> Result<u64> {
        self.with(|open| {
            self.note_bytes(log, open, |size| (size, size))?;
            open.object.append(from)
        })
    }

    /// Makes it `size` bytes long: cut, or with zeros behind.
    ///
    /// # Errors
    /// As for [`Collection::write`].
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.truncate_logged(size, None)
    }

    pub(crate) fn truncate_logged(&self, size: u64, log: Log<'_>) -> Result<()> {
        self.with(|open| {
            self.note_bytes(log, open, |old| (size, old))?;
            open.object.truncate(size)
        })
    }

    /// Its bytes.
    ///
    /// # Errors
    /// EBADF if it isn't open.
    pub fn size(&self) -> Result<u64> {
        self.with(|open| open.object.size())
    }

    /// Does what fsync(2) does, where the back end has it.
    ///
    /// # Errors
    /// EBADF if it isn't open; what the back end has to say.
    pub fn sync(&self) -> Result<()> {
        self.with(|open| open.object.sync())
    }

    pub(crate) fn map_object(&self, at: u64, len: usize, access: Access) -> Result<Mapped> {
        self.with(|open| open.object.map(at, len, access))
    }

    /// Its metadata.
    ///
    /// # Errors
    /// EBADF if it isn't open, ENOENT if it was deleted.
    pub fn get_meta(&self) -> Result<Meta> {
        let workspace = &self.0.workspace;
        let uuid = self.uuid()?;
        let store = workspace.session.store();
        let found = store.find(Scope::In(workspace.uuid), Key::Uuid(uuid))?;
        Ok(found.meta)
    }

    /// Changes its metadata.
    ///
    /// # Errors
    /// EBADF if it isn't open, ENOENT if it was deleted; EINVAL, E2BIG for what can't be metadata.
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

    /// Copies the chunk of `len` bytes at `at` to `to`, and says how many there were. The caller's
    /// memory isn't used for it.
    ///
    /// # Errors
    /// As for reading and writing; EINVAL if both are one collection and the chunks overlap.
    pub fn copy(&self, at: u64, len: u64, to: &Collection, to_at: u64) -> Result<u64> {
        self.copy_logged((at, len), to, to_at, None)
    }

    pub(crate) fn copy_logged(
        &self,
        (at, len): (u64, u64),
        to: &Collection,
        to_at: u64,
        log: Log<'_>,
    ) -> Result<u64> {
        self.with_both(to, |from, into| {
            let len = len.min(from.object.size()?.saturating_sub(at));
            let touches = at < to_at.saturating_add(len) && to_at < at + len;
            if from.record.uuid == into.record.uuid && touches {
                return Err(Error::invalid(
                    "a chunk can't be copied to where it overlaps with itself",
                ));
            }
            let mut buffer = Vec::new();
            let mut done = 0;
            while done < len {
                let (at, to_at, left) = (at + done, to_at + done, len - done);
                // What was there is noted block by block.
                let block = if log.is_some() { left.min(COPY) } else { left };
                to.note_bytes(log, into, |_| (to_at, to_at.saturating_add(block)))?;
                let copied = match from.object.copy_to(at, block, into.object, to_at)? {
                    Some(copied) => copied,
                    None => {
                        buffer.resize(block.min(COPY) as usize, 0);
                        let n = from.object.read(&mut buffer, at)?;
                        into.object.write(&buffer[..n], to_at)?;
                        n as u64
                    }
                };
                if copied == 0 {
                    break;
                }
                done += copied;
            }
            Ok(done)
        })
    }

    /// Ends its use, behind all verbs that are under way in other threads.
    ///
    /// # Errors
    /// EBADF if it isn't open; what couldn't be written back.
    pub fn close(&self) -> Result<()> {
        self.with(|_| Ok(()))?;
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(_, _, mut object) => object.close(),
            _ => Err(Error::new(Errno::BADF, "this collection is closed")),
        }
    }

    /// What it is told apart by, as long as it is in use.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

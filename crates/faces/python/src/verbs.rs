//! Sessions, workspaces, collections and batches for Python. `docs/howto/verbs.md` explains them.
//!
//! A batch holds references to the Python buffers of its operations until the batch is freed. Its
//! operations run on threads of the session, which take the interpreter's lock only to free buffers
//! and to notify a waiting event loop. A wait returns to the interpreter every [`SLICE`], for
//! signals (Ctrl-C).

use crate::bytes::{Borrowed, filled};
use crate::chunk::{Buffer, Chunk, Memory};
use crate::error::{closed, raise};
use forebay_controls::{Declared, Failure};
use forebay_iov as iov;
use forebay_iov::{Access, Errno, Key, Order, Outcome, Predicate, Status, Token, Uuid};
use forebay_runtime::threads::{lock, read_lock, write_lock};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a wait blocks between two checks for signals.
const SLICE: Duration = Duration::from_millis(50);

type Meta = BTreeMap<String, String>;

/// Checks controls in text form, and returns their canonical form.
#[pyfunction]
pub fn check_controls(text: &str) -> PyResult<String> {
    let controls = iov::read_controls(text).map_err(invalid)?;
    Ok(iov::write_controls(&controls))
}

/// Converts EINVAL, caused by wrong arguments, to a ValueError.
fn invalid(error: iov::Error) -> PyErr {
    match error.errno() {
        Errno::INVAL => PyValueError::new_err(error.to_string()),
        _ => raise(error),
    }
}

/// The name of a workspace or collection, or its UUID (any object whose text is a UUID).
enum Named {
    Name(String),
    Uuid(Uuid),
}

impl Named {
    fn of(key: &Bound<'_, PyAny>) -> PyResult<Named> {
        if let Ok(name) = key.extract::<String>() {
            return Ok(Named::Name(name));
        }
        if key.get_type().name()? == "UUID" {
            let uuid = key.str()?.to_string().parse().map_err(invalid)?;
            return Ok(Named::Uuid(uuid));
        }
        Err(PyTypeError::new_err(
            "a name (str) or a uuid.UUID is needed",
        ))
    }

    fn key(&self) -> Key<'_> {
        match self {
            Named::Name(name) => Key::Name(name),
            Named::Uuid(uuid) => Key::Uuid(*uuid),
        }
    }
}

/// The record of a workspace or a collection.
#[pyclass(frozen, get_all, module = "forebay")]
pub struct Record {
    /// The name of the workspace or collection.
    name: String,
    /// The UUID, as text.
    uuid: String,
    /// The metadata when the record was read: a dict.
    meta: Meta,
    /// The name of the back end that has a collection's bytes; empty for a workspace.
    backend: String,
    /// The declared controls, as text.
    controls: String,
}

impl From<iov::Record> for Record {
    fn from(r: iov::Record) -> Record {
        Record {
            name: r.name,
            uuid: r.uuid.to_string(),
            meta: r.meta,
            backend: r.backend,
            controls: iov::write_controls(&r.controls),
        }
    }
}

#[pymethods]
impl Record {
    fn __repr__(&self) -> String {
        format!("<forebay.Record {:?} {}>", self.name, self.uuid)
    }
}

/// Drops a value that holds a session, without the interpreter's lock: dropping a session's last
/// handle waits for the session's threads, and they may be waiting for that lock to call Python
/// ([`Running::when_done`]).
fn drop_detached<T: Send>(holder: Option<T>) {
    let mut holder = holder;
    if holder.is_some() {
        // While the interpreter ends there is no lock to release: `holder` is dropped below.
        Python::try_attach(|py| py.detach(|| drop(holder.take())));
    }
}

/// A value that a Python object holds until it is closed, and the object's name in messages.
struct Held<T: Send>(RwLock<Option<T>>, &'static str);

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let held = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop_detached(held.take());
    }
}

impl<T: Clone + Send> Held<T> {
    fn new(what: &'static str, used: T) -> Held<T> {
        Held(RwLock::new(Some(used)), what)
    }

    /// Returns another handle of the value.
    ///
    /// # Errors
    /// EBADF if the object was closed.
    fn get(&self) -> PyResult<T> {
        let used = read_lock(&self.0);
        used.clone().ok_or_else(|| closed(self.1))
    }

    fn take(&self) -> Option<T> {
        write_lock(&self.0).take()
    }

    /// Drops the value, if the object wasn't closed before.
    fn close(&self) {
        drop_detached(self.take());
    }

    fn is_closed(&self) -> bool {
        read_lock(&self.0).is_none()
    }
}

/// A metadata store and back ends: `Session("pool:default")`, `Session("memory")`.
#[pyclass(frozen, module = "forebay")]
pub struct Session(Held<iov::Session>);

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (place = ""))]
    fn new(py: Python<'_>, place: &str) -> PyResult<Session> {
        let session = py.detach(|| iov::Session::open(place)).map_err(raise)?;
        Ok(Session(Held::new("session", session)))
    }

    /// Attaches a back end (`directory`, `forebay`, `memory`, or the path of a shared object)
    /// under a name.
    #[pyo3(signature = (name, kind, config = ""))]
    fn attach(&self, py: Python<'_>, name: &str, kind: &str, config: &str) -> PyResult<()> {
        let session = self.0.get()?;
        py.detach(move || session.attach(name, kind, config))
            .map_err(raise)
    }

    /// Returns the names of the back ends, and their kinds.
    fn backends(&self) -> PyResult<BTreeMap<String, String>> {
        Ok(self.0.get()?.backends().into_iter().collect())
    }

    /// Makes `backend` the back end of new collections whose `/WORKSPACE/NAME` matches `pattern`
    /// and which declare all of these controls.
    fn choose(&self, pattern: &str, controls: &str, backend: &str) -> PyResult<()> {
        let declared: Declared = controls
            .parse()
            .map_err(|e| PyValueError::new_err(format!("controls '{controls}': {e}")))?;
        self.0
            .get()?
            .choose(pattern, declared, backend)
            .map_err(raise)
    }

    #[pyo3(signature = (name, meta = None))]
    fn create(&self, py: Python<'_>, name: &str, meta: Option<Meta>) -> PyResult<Workspace> {
        let session = self.0.get()?;
        let meta = meta.unwrap_or_default();
        let made = py.detach(|| iov::Workspace::create(&session, name, &meta));
        Ok(Workspace(Held::new("workspace", made.map_err(raise)?)))
    }

    /// Opens the workspace with this name or UUID.
    fn load(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Workspace> {
        let (session, key) = (self.0.get()?, Named::of(key)?);
        let loaded = py.detach(|| iov::Workspace::load(&session, key.key()));
        Ok(Workspace(Held::new("workspace", loaded.map_err(raise)?)))
    }

    /// Returns the records of all workspaces for which the predicate holds.
    #[pyo3(signature = (query = ""))]
    fn search(&self, py: Python<'_>, query: &str) -> PyResult<Vec<Record>> {
        let (session, predicate) = (self.0.get()?, Predicate::parse(query).map_err(invalid)?);
        let found = py.detach(|| iov::Workspace::search(&session, &predicate));
        Ok(found
            .map_err(raise)?
            .into_iter()
            .map(Record::from)
            .collect())
    }

    /// Allocates zeroed memory in the pool.
    fn buffer(&self, py: Python<'_>, length: usize) -> PyResult<Buffer> {
        let session = self.0.get()?;
        let made = py.detach(|| iov::Chunk::allocate(&session, length));
        Ok(Buffer(Memory::new(made.map_err(raise)?, false)))
    }

    /// Maps the memory that another process's token names.
    fn attach_chunk(&self, py: Python<'_>, token: &[u8]) -> PyResult<Chunk> {
        let wrong = || PyValueError::new_err("a token has 48 bytes");
        let token = Token(token.try_into().map_err(|_| wrong())?);
        let session = self.0.get()?;
        let mapped = py
            .detach(|| iov::Chunk::attach(&session, &token))
            .map_err(raise)?;
        let readonly = mapped.access() == Access::Read;
        Ok(Chunk(Memory::new(mapped, readonly)))
    }

    /// Makes a batch of operations. `failure` is `continue`, `stop` or `rollback`; `order` is
    /// `free` or `chain`.
    #[pyo3(signature = (failure = "stop", order = "free"))]
    fn batch(&self, failure: &str, order: &str) -> PyResult<Batch> {
        let failure: Failure = failure.parse().map_err(PyValueError::new_err::<String>)?;
        let order = match order {
            "free" => Order::Free,
            "chain" => Order::Chain,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "order '{order}': free or chain"
                )));
            }
        };
        let batch = iov::Batch::new(&self.0.get()?, failure, order);
        Ok(Batch(Mutex::new(Some(batch))))
    }

    /// The name of the session's pool, if it has one.
    #[getter]
    fn pool_name(&self) -> PyResult<Option<String>> {
        let session = self.0.get()?;
        Ok(session.pool().map(|fs| fs.pool().config().name.clone()))
    }

    /// Closes this object. Its workspaces and collections stay usable.
    fn close(&self) {
        self.0.close();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// A namespace of collections, with metadata.
#[pyclass(frozen, module = "forebay")]
pub struct Workspace(Held<iov::Workspace>);

fn options(
    meta: Option<Meta>,
    controls: Option<&str>,
    backend: Option<String>,
) -> PyResult<iov::Options> {
    Ok(iov::Options {
        meta: meta.unwrap_or_default(),
        controls: iov::read_controls(controls.unwrap_or_default()).map_err(invalid)?,
        backend,
    })
}

/// Changes of metadata: a key's new value. None removes the key.
type Changes = BTreeMap<String, Option<String>>;

#[pymethods]
impl Workspace {
    #[getter]
    fn name(&self) -> PyResult<String> {
        Ok(self.0.get()?.name().to_owned())
    }

    #[getter]
    fn uuid(&self) -> PyResult<String> {
        Ok(self.0.get()?.uuid().to_string())
    }

    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Meta> {
        let workspace = self.0.get()?;
        py.detach(move || workspace.get_meta()).map_err(raise)
    }

    /// Changes metadata. The value None removes a key.
    fn set_meta(&self, py: Python<'_>, changes: Changes) -> PyResult<()> {
        let changes: Vec<_> = changes.into_iter().collect();
        let workspace = self.0.get()?;
        py.detach(move || workspace.set_meta(&changes))
            .map_err(invalid)
    }

    #[pyo3(signature = (name, meta = None, controls = None, backend = None))]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        meta: Option<Meta>,
        controls: Option<&str>,
        backend: Option<String>,
    ) -> PyResult<Collection> {
        let options = options(meta, controls, backend)?;
        let workspace = self.0.get()?;
        let made = py.detach(|| iov::Collection::create(&workspace, name, &options));
        Ok(Collection::new(made.map_err(raise)?))
    }

    /// Opens the collection with this name or UUID.
    fn open(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Collection> {
        let (workspace, key) = (self.0.get()?, Named::of(key)?);
        let opened = py.detach(|| iov::Collection::open(&workspace, key.key()));
        Ok(Collection::new(opened.map_err(raise)?))
    }

    fn lookup(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Record> {
        let (workspace, key) = (self.0.get()?, Named::of(key)?);
        let found = py.detach(|| iov::Collection::lookup(&workspace, key.key()));
        Ok(found.map_err(raise)?.into())
    }

    /// Returns the records of all collections for which the predicate holds, such as `project =
    /// "mcse" and step >= 2`.
    #[pyo3(signature = (query = ""))]
    fn search(&self, py: Python<'_>, query: &str) -> PyResult<Vec<Record>> {
        let predicate = Predicate::parse(query).map_err(invalid)?;
        let workspace = self.0.get()?;
        let found = py.detach(|| iov::Collection::search(&workspace, &predicate));
        Ok(found
            .map_err(raise)?
            .into_iter()
            .map(Record::from)
            .collect())
    }

    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let (workspace, key) = (self.0.get()?, Named::of(key)?);
        py.detach(|| iov::Collection::delete(&workspace, key.key()))
            .map_err(raise)
    }

    /// Deletes the workspace. ENOTEMPTY while it has collections.
    fn remove(&self, py: Python<'_>) -> PyResult<()> {
        let workspace = self.0.get()?;
        py.detach(|| workspace.delete()).map_err(raise)
    }

    /// Closes this object.
    fn close(&self) {
        self.0.close();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// A sequence of bytes with a name, metadata and controls.
#[pyclass(frozen, module = "forebay")]
pub struct Collection(Held<iov::Collection>);

impl Collection {
    fn new(collection: iov::Collection) -> Collection {
        Collection(Held::new("collection", collection))
    }
}

#[pymethods]
impl Collection {
    #[getter]
    fn name(&self) -> PyResult<String> {
        self.0.get()?.name().map_err(raise)
    }

    #[getter]
    fn uuid(&self) -> PyResult<String> {
        Ok(self.0.get()?.uuid().map_err(raise)?.to_string())
    }

    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Meta> {
        let collection = self.0.get()?;
        py.detach(move || collection.get_meta()).map_err(raise)
    }

    /// Changes metadata. The value None removes a key.
    fn set_meta(&self, py: Python<'_>, changes: Changes) -> PyResult<()> {
        let changes: Vec<_> = changes.into_iter().collect();
        let collection = self.0.get()?;
        py.detach(move || collection.set_meta(&changes))
            .map_err(invalid)
    }

    /// Returns up to `length` bytes from offset `at` (None: up to the end) as `bytes`.
    #[pyo3(signature = (length = None, at = 0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        length: Option<u64>,
        at: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let collection = self.0.get()?;
        let length = match length {
            Some(length) => length,
            None => py
                .detach(|| collection.size())
                .map_err(raise)?
                .saturating_sub(at),
        };
        let length = usize::try_from(length)
            .map_err(|_| PyValueError::new_err("more bytes than fit into memory"))?;
        filled(py, length, |memory| {
            collection.read(memory.zeroed(), at).map_err(raise)
        })
    }

    /// Reads into a writable buffer. Returns the number of bytes; less than the buffer's size only
    /// at the end.
    #[pyo3(signature = (buffer, at = 0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, at: u64) -> PyResult<usize> {
        let mut buffer = Borrowed::of(buffer, true)?;
        let to = &mut buffer;
        let collection = self.0.get()?;
        py.detach(move || collection.read(to.as_mut(), at))
            .map_err(raise)
    }

    /// Writes all of a buffer at offset `at`. Returns the number of bytes.
    #[pyo3(signature = (data, at = 0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at: u64) -> PyResult<usize> {
        let data = Borrowed::of(data, false)?;
        let from = &data;
        let collection = self.0.get()?;
        py.detach(move || collection.write(from.as_ref(), at))
            .map_err(raise)?;
        Ok(data.len())
    }

    /// Appends a buffer. Returns its offset in bytes.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let data = Borrowed::of(data, false)?;
        let from = &data;
        let collection = self.0.get()?;
        py.detach(move || collection.append(from.as_ref()))
            .map_err(raise)
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        let collection = self.0.get()?;
        py.detach(move || collection.truncate(size)).map_err(raise)
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let collection = self.0.get()?;
        py.detach(move || collection.size()).map_err(raise)
    }

    /// Makes written bytes durable, as fsync(2) does, if the back end supports it.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let collection = self.0.get()?;
        py.detach(move || collection.sync()).map_err(raise)
    }

    /// Copies bytes to another collection. Returns the number of bytes.
    fn copy(
        &self,
        py: Python<'_>,
        at: u64,
        length: u64,
        to: &Collection,
        to_at: u64,
    ) -> PyResult<u64> {
        let (collection, to) = (self.0.get()?, to.0.get()?);
        py.detach(move || collection.copy(at, length, &to, to_at))
            .map_err(raise)
    }

    /// Maps a range of the collection's bytes into this process's memory. EREMOTE if they are on
    /// another node.
    #[pyo3(signature = (at = 0, length = None, writable = false))]
    fn map(
        &self,
        py: Python<'_>,
        at: u64,
        length: Option<usize>,
        writable: bool,
    ) -> PyResult<Chunk> {
        let access = if writable {
            Access::Write
        } else {
            Access::Read
        };
        let collection = self.0.get()?;
        let mapped = py.detach(|| {
            let length = match length {
                Some(length) => length,
                None => collection.size()?.saturating_sub(at) as usize,
            };
            iov::Chunk::map(&collection, at, length, access)
        });
        Ok(Chunk(Memory::new(mapped.map_err(raise)?, !writable)))
    }

    /// Closes the collection. Later calls raise EBADF; mapped memory stays mapped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(collection) = self.0.take() else {
            return Ok(());
        };
        py.detach(|| collection.close()).map_err(raise)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Operations that are collected, then run while the program does something else. Each method
/// returns the operation's number.
#[pyclass(frozen, module = "forebay")]
pub struct Batch(Mutex<Option<iov::Batch>>);

impl Drop for Batch {
    fn drop(&mut self) {
        self.discard();
    }
}

impl Batch {
    fn with<T>(&self, f: impl FnOnce(&mut iov::Batch) -> iov::Result<T>) -> PyResult<T> {
        let mut batch = lock(&self.0);
        let batch = batch.as_mut().ok_or_else(|| {
            PyValueError::new_err("this batch has been started; make another one")
        })?;
        f(batch).map_err(invalid)
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> PyResult<usize> {
        self.with(|b| Ok(b.len()))
    }

    /// Adds the creation of a collection: returns (operation, collection). The batch's later
    /// operations can use the collection; other code only after the operation is done.
    #[pyo3(signature = (workspace, name, meta = None, controls = None, backend = None))]
    fn create(
        &self,
        workspace: &Workspace,
        name: &str,
        meta: Option<Meta>,
        controls: Option<&str>,
        backend: Option<String>,
    ) -> PyResult<(u32, Collection)> {
        let options = options(meta, controls, backend)?;
        let used = workspace.0.get()?;
        let (op, new) = self.with(|b| b.create(&used, name, options))?;
        Ok((op.0, Collection::new(new)))
    }

    fn open(&self, workspace: &Workspace, key: &Bound<'_, PyAny>) -> PyResult<(u32, Collection)> {
        let key = Named::of(key)?;
        let used = workspace.0.get()?;
        let (op, opened) = self.with(|b| b.open(&used, key.key()))?;
        Ok((op.0, Collection::new(opened)))
    }

    fn lookup(&self, workspace: &Workspace, key: &Bound<'_, PyAny>) -> PyResult<u32> {
        let key = Named::of(key)?;
        let used = workspace.0.get()?;
        self.with(|b| Ok(b.lookup(&used, key.key())?.0))
    }

    #[pyo3(signature = (workspace, query = ""))]
    fn search(&self, workspace: &Workspace, query: &str) -> PyResult<u32> {
        let predicate = Predicate::parse(query).map_err(invalid)?;
        let used = workspace.0.get()?;
        self.with(|b| Ok(b.search(&used, predicate)?.0))
    }

    fn delete(&self, workspace: &Workspace, key: &Bound<'_, PyAny>) -> PyResult<u32> {
        let key = Named::of(key)?;
        let used = workspace.0.get()?;
        self.with(|b| Ok(b.delete(&used, key.key())?.0))
    }

    /// Adds a read, whose result is bytes.
    #[pyo3(signature = (collection, length, at = 0))]
    fn read(&self, collection: &Collection, length: usize, at: u64) -> PyResult<u32> {
        let used = collection.0.get()?;
        self.with(|b| Ok(b.read(&used, at, length)?.0))
    }

    /// Adds a read into a buffer, whose result is the number of bytes. The program must not use the
    /// buffer until the batch has ended.
    #[pyo3(signature = (collection, buffer, at = 0))]
    fn readinto(
        &self,
        collection: &Collection,
        buffer: &Bound<'_, PyAny>,
        at: u64,
    ) -> PyResult<u32> {
        let buffer = Borrowed::of(buffer, true)?;
        let used = collection.0.get()?;
        self.with(|b| Ok(b.read_into(&used, at, buffer)?.0))
    }

    /// Adds a write. The buffer must not be changed until the batch has ended.
    #[pyo3(signature = (collection, data, at = 0))]
    fn write(&self, collection: &Collection, data: &Bound<'_, PyAny>, at: u64) -> PyResult<u32> {
        let data = Borrowed::of(data, false)?;
        let used = collection.0.get()?;
        self.with(|b| Ok(b.write(&used, at, data)?.0))
    }

    /// Adds an append, whose result is the offset.
    fn append(&self, collection: &Collection, data: &Bound<'_, PyAny>) -> PyResult<u32> {
        let data = Borrowed::of(data, false)?;
        let used = collection.0.get()?;
        self.with(|b| Ok(b.append(&used, data)?.0))
    }

    fn truncate(&self, collection: &Collection, size: u64) -> PyResult<u32> {
        let used = collection.0.get()?;
        self.with(|b| Ok(b.truncate(&used, size)?.0))
    }

    fn sync(&self, collection: &Collection) -> PyResult<u32> {
        let used = collection.0.get()?;
        self.with(|b| Ok(b.sync(&used)?.0))
    }

    fn get_meta(&self, collection: &Collection) -> PyResult<u32> {
        let used = collection.0.get()?;
        self.with(|b| Ok(b.get_meta(&used)?.0))
    }

    fn set_meta(&self, collection: &Collection, changes: Changes) -> PyResult<u32> {
        let changes: Vec<_> = changes.into_iter().collect();
        let used = collection.0.get()?;
        self.with(|b| Ok(b.set_meta(&used, &changes)?.0))
    }

    fn close(&self, collection: &Collection) -> PyResult<u32> {
        let used = collection.0.get()?;
        self.with(|b| Ok(b.close(&used)?.0))
    }

    /// Makes `op` wait for the operations `needed`; `op` is skipped if one of them fails.
    fn after(&self, op: u32, needed: Vec<u32>) -> PyResult<()> {
        let needed: Vec<iov::Op> = needed.into_iter().map(iov::Op).collect();
        self.with(|b| b.after(iov::Op(op), &needed))
    }

    /// Drops the collected operations without starting them.
    fn discard(&self) {
        let collected = lock(&self.0).take();
        drop_detached(collected);
    }

    /// Starts the batch. No operation can be added afterwards.
    fn start(&self, py: Python<'_>) -> PyResult<Running> {
        let batch = lock(&self.0).take();
        let batch = batch.ok_or_else(|| PyValueError::new_err("this batch has been started"))?;
        let running = py.detach(|| batch.start()).map_err(raise)?;
        Ok(Running(Held::new("batch", running)))
    }
}

/// A started batch. `await` it, or call `wait`.
#[pyclass(frozen, module = "forebay")]
pub struct Running(Held<iov::Running>);

#[pymethods]
impl Running {
    /// Waits at most `timeout` seconds for the batch's end, and returns whether it has ended.
    /// Ctrl-C ends the wait, not the batch.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let until = match timeout {
            Some(t) if t.is_nan() || t < 0.0 => {
                return Err(PyValueError::new_err("timeout: seconds, 0 or more"));
            }
            Some(t) => Duration::try_from_secs_f64(t).ok(),
            None => None,
        };
        let running = self.0.get()?;
        let until = until.and_then(|t| Instant::now().checked_add(t));
        loop {
            let left = until.map_or(SLICE, |u| u.saturating_duration_since(Instant::now()));
            let ended = py
                .detach(|| running.wait(Some(left.min(SLICE))))
                .map_err(raise)?;
            if ended || left.is_zero() {
                // Other handles may have been closed meanwhile, so `running` may be the session's
                // last.
                drop_detached(Some(running));
                return Ok(ended);
            }
            py.check_signals()?;
        }
    }

    /// Whether the batch has ended.
    fn test(&self) -> PyResult<bool> {
        self.0.get()?.test().map_err(raise)
    }

    /// Skips operations that haven't begun.
    fn cancel(&self) -> PyResult<()> {
        self.0.get()?.cancel().map_err(raise)
    }

    /// Makes another thread call `call()` when the batch has ended. Returns False, without a call,
    /// if it has ended already.
    fn when_done(&self, call: Py<PyAny>) -> PyResult<bool> {
        let tell = move || {
            Python::try_attach(|py| {
                if let Err(e) = call.call0(py) {
                    e.write_unraisable(py, None);
                }
                drop(call);
            });
        };
        self.0.get()?.when(None, tell).map_err(raise)
    }

    /// Returns an operation's state: `waiting`, `running`, `done`, `failed`, `skipped` or `undone`.
    fn status(&self, op: u32) -> PyResult<&'static str> {
        Ok(word(self.0.get()?.status(iov::Op(op)).map_err(invalid)?))
    }

    /// Returns the result of an operation: None, a number, bytes, metadata, a record or records.
    /// Raises the operation's error. Bytes, metadata and records are returned only once.
    fn result(&self, py: Python<'_>, op: u32) -> PyResult<Py<PyAny>> {
        let running = self.0.get()?;
        let outcome = py
            .detach(move || running.result(iov::Op(op)))
            .map_err(raise)?;
        Ok(match outcome {
            Outcome::Done => py.None(),
            Outcome::Number(n) => n.into_pyobject(py)?.into_any().unbind(),
            Outcome::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Outcome::Meta(meta) => {
                let all = PyDict::new(py);
                for (key, value) in meta {
                    all.set_item(key, value)?;
                }
                all.into_any().unbind()
            }
            Outcome::Record(record) => Py::new(py, Record::from(record))?.into_any(),
            Outcome::Records(records) => {
                let all: Vec<Record> = records.into_iter().map(Record::from).collect();
                all.into_pyobject(py)?.unbind()
            }
        })
    }

    /// Closes this object. The batch continues.
    fn close(&self) {
        self.0.close();
    }

    /// Raises the error of the batch as a whole, if it failed.
    fn check(&self) -> PyResult<()> {
        self.0.get()?.error().map_or(Ok(()), |e| Err(raise(e)))
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Waiting => "waiting",
        Status::Running => "running",
        Status::Done => "done",
        Status::Failed => "failed",
        Status::Skipped => "skipped",
        Status::Undone => "undone",
    }
}

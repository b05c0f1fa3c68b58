//! A session: a metadata store, the attached back ends, and the threads that run batches.
//!
//! Workspaces, collections and batches belong to a session. A program has one session, or several
//! with different stores. Any number of threads may use a session; see [`crate`] for forks.

use crate::backend::{Address, Backend, Forebay, Object, built_in};
use crate::mapped::Mapped;
#[cfg(feature = "etcd")]
use crate::meta::Etcd;
use crate::meta::{Key, Memory, Pool, Record, Scope, Store};
use crate::pool::Attached;
use crate::process::Generation;
use crate::worker_pool::WorkerPool;
use crate::{Error, Result, Uuid};
use forebay_controls::{Controls, Declared, Pattern};
use forebay_runtime::threads::{lock, read_lock, write_lock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

/// A rule of [`Session::choose`]: the back end for new collections of matching paths and controls.
struct Choice {
    pattern: Pattern,
    controls: Declared,
    backend: String,
}

/// A session of the verbs. Clones refer to the same session.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    generation: Generation,
    store: Arc<dyn Store>,
    /// The pool, if the metadata store is one.
    pool: Option<Attached>,
    backends: RwLock<BTreeMap<String, Arc<dyn Backend>>>,
    /// Name of the default back end of new collections: the one that belongs to the metadata store,
    /// or else the first attached one that outlives the process.
    default: OnceLock<String>,
    /// Whether operations send requests to other nodes.
    sends_requests: bool,
    workers: WorkerPool,
    /// The thread that calls the program's callbacks when operations end. The thread isn't a
    /// worker, so the callbacks may wait for the workers.
    notifier: WorkerPool,
    /// Rules of [`Session::choose`]; the last match wins.
    choices: RwLock<Vec<Choice>>,
    /// Mappings made through the C interface, by address.
    mapped: Mutex<BTreeMap<usize, Mapped>>,
}

impl Session {
    /// Opens a session whose metadata are at `place`. `memory`: in this process, for this session
    /// alone. `pool:NAME`: in a pool on this node. `pool`: in the pool that the command line uses
    /// ($FOREBAY_POOL, or `default`). `etcd://HOST:PORT[,HOST:PORT...][/PREFIX]`: in etcd. An empty
    /// text: $FOREBAY_METADATA, or else `pool`.
    ///
    /// The back end `memory` is attached; for a pool also `forebay`, the default of new collections
    /// in this case. With etcd the default is the first attached back end that outlives the
    /// process.
    ///
    /// # Errors
    /// EINVAL for an unknown place; errors of opening the pool, or of reaching etcd.
    pub fn open(place: &str) -> Result<Session> {
        let variable = std::env::var("FOREBAY_METADATA").unwrap_or_default();
        let place = match (place, variable.as_str()) {
            ("", "") => "pool",
            ("", variable) => variable,
            (place, _) => place,
        };
        let (kind, name) = place.split_once(':').unwrap_or((place, ""));
        match (kind, name) {
            ("memory", "") => Session::over(Arc::new(Memory::default()), Some("memory"), None),
            #[cfg(feature = "etcd")]
            ("etcd", text) => Session::over(Arc::new(Etcd::open(text)?), None, None),
            #[cfg(not(feature = "etcd"))]
            ("etcd", _) => Err(Error::invalid(format!(
                "{place}: this Forebay was built without etcd"
            ))),
            ("pool", name) => {
                let pool = Attached::open(name)?;
                let store = Arc::new(Pool::new(pool.clone()));
                let session = Session::over(store, Some("forebay"), Some(pool.clone()))?;
                session.attach_backend("forebay", Arc::new(Forebay::over(pool, true)))?;
                Ok(session)
            }
            _ => Err(Error::invalid(format!(
                "no metadata store is known as '{place}'; there are: memory, pool, pool:NAME, etcd://HOST:PORT"
            ))),
        }
    }

    /// Opens a session with this metadata store. Collections that name no back end get `default`,
    /// or else the first attached one that outlives the process.
    fn over(
        store: Arc<dyn Store>,
        default: Option<&str>,
        pool: Option<Attached>,
    ) -> Result<Session> {
        let several = |p: &Attached| p.pool().config().member.is_some();
        let sends_requests = store.is_remote() || pool.as_ref().is_some_and(several);
        let session = Session(Arc::new(Inner {
            sends_requests,
            workers: WorkerPool::new(sends_requests),
            generation: Generation::now(),
            store,
            pool,
            backends: RwLock::default(),
            default: default.map_or_else(OnceLock::new, |name| String::from(name).into()),
            notifier: WorkerPool::of(1),
            choices: RwLock::default(),
            mapped: Mutex::default(),
        }));
        session.attach("memory", "memory", "")?;
        Ok(session)
    }

    /// Attaches a back end of a built-in kind under `name`; a collection refers to its back end by
    /// this name.
    ///
    /// # Errors
    /// EINVAL for an unknown kind or an invalid `config`; EEXIST if the name is taken.
    pub fn attach(&self, name: &str, kind: &str, config: &str) -> Result<()> {
        self.check()?;
        let about = |e: Error| e.about(format!("back end '{name}'"));
        if let (Some(pool), "forebay") = (&self.0.pool, kind) {
            let backend = Forebay::open(config).map_err(about)?;
            // In the metadata store's own pool, the back end's files are the records.
            let same = backend.pool().is(pool);
            let backend = Forebay::over(backend.pool().clone(), same);
            return self.attach_backend(name, Arc::new(backend));
        }
        let backend = built_in(kind, config).map_err(about)?;
        self.attach_backend(name, backend)
    }

    /// Attaches a back end that the program implements.
    ///
    /// # Errors
    /// EEXIST if the name is taken, EINVAL for an invalid name.
    pub fn attach_backend(&self, name: &str, backend: Arc<dyn Backend>) -> Result<()> {
        self.check()?;
        crate::meta::check_name(name)?;
        let mut backends = write_lock(&self.0.backends);
        if backends.contains_key(name) {
            let text = format!("there is a back end '{name}' already");
            return Err(Error::new(Errno::EXIST, text));
        }
        if backend.outlives_process() {
            self.0.default.get_or_init(|| name.into());
        }
        backends.insert(name.into(), backend);
        Ok(())
    }

    /// Returns the names and kinds of the attached back ends.
    pub fn backends(&self) -> Vec<(String, String)> {
        let backends = read_lock(&self.0.backends);
        let known = backends.iter();
        known.map(|(n, b)| (n.clone(), b.kind().into())).collect()
    }

    /// Checks that this process opened the session.
    ///
    /// # Errors
    /// EPERM in a forked child of the process that opened the session.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.generation.check()
    }

    /// Returns the session's metadata store.
    pub fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    /// Returns the pool, if the metadata store is one.
    pub fn pool(&self) -> Option<&Attached> {
        self.0.pool.as_ref()
    }

    /// Locks the table of mappings made through the C interface, by address.
    ///
    /// # Errors
    /// EPERM in a forked child.
    pub(crate) fn mapped(&self) -> Result<MutexGuard<'_, BTreeMap<usize, Mapped>>> {
        self.check()?;
        Ok(lock(&self.0.mapped))
    }

    pub(crate) fn workers(&self) -> &WorkerPool {
        &self.0.workers
    }

    /// Whether operations send requests to other nodes.
    pub(crate) fn sends_requests(&self) -> bool {
        self.0.sends_requests
    }

    pub(crate) fn notifier(&self) -> &WorkerPool {
        &self.0.notifier
    }

    /// Makes `backend` the back end of new collections that name none, whose path `/WORKSPACE/NAME`
    /// matches `pattern`, and which declare all of `controls`. Of several matching calls the last
    /// one wins; without a match, the session's default is used.
    ///
    /// The pattern is a path pattern as in a pool's rules: `/campaign/*.ckpt`, `/*/raw-*`.
    ///
    /// # Errors
    /// EINVAL for an invalid pattern; ENODEV if the back end isn't attached.
    pub fn choose(&self, pattern: &str, controls: Declared, backend: &str) -> Result<()> {
        self.check()?;
        self.backend(backend)?;
        let pattern = Pattern::parse(pattern)
            .map_err(|e| Error::invalid(format!("the pattern '{pattern}', at {}: {e}", e.at)))?;
        let mut choices = write_lock(&self.0.choices);
        choices.insert(
            0,
            Choice {
                pattern,
                controls,
                backend: backend.into(),
            },
        );
        Ok(())
    }

    /// Returns the name of the back end for a new collection that names none.
    pub(crate) fn chosen_backend(
        &self,
        workspace: &str,
        name: &str,
        controls: &Controls,
    ) -> String {
        let choices = read_lock(&self.0.choices);
        let fits = |c: &&Choice| {
            let p = &c.pattern;
            p.matches(p.below(p.below(p.root(), workspace.as_bytes()), name.as_bytes()))
                && c.controls.or((*controls).into()) == (*controls).into()
        };
        let chosen = choices.iter().find(fits).map(|c| c.backend.clone());
        chosen.unwrap_or_else(|| self.0.default.get().cloned().unwrap_or_default())
    }

    /// Whether a collection with this back end has data that outlive the process.
    pub(crate) fn outlives_process(&self, backend: &dyn Backend) -> bool {
        backend.outlives_process() || self.store().outlives_process()
    }

    /// Returns the back end attached under this name.
    ///
    /// # Errors
    /// ENODEV if none is attached under this name.
    pub(crate) fn backend(&self, name: &str) -> Result<Arc<dyn Backend>> {
        let backends = read_lock(&self.0.backends);
        backends.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = backends.keys().map(String::as_str).collect();
            if name.is_empty() {
                let text = "it names no back end, and none is attached whose bytes outlive the process, as the metadata do";
                return Error::new(Errno::NODEV, text);
            }
            let text = format!(
                "no back end '{name}' is attached to this session; attached: {}",
                known.join(", ")
            );
            Error::new(Errno::NODEV, text)
        })
    }

    /// Returns the back end that has a collection's bytes.
    ///
    /// # Errors
    /// ENODEV if it isn't attached, or another back end is attached under its name.
    pub(crate) fn backend_of(&self, record: &Record) -> Result<Arc<dyn Backend>> {
        let backend = self.backend(&record.backend)?;
        let here = backend.place();
        if record.place.is_empty() || record.place == here {
            return Ok(backend);
        }
        let text = format!(
            "its bytes lie in {}, but the back end '{}' of this session is {}: use it where that pool is, or attach that one",
            record.place,
            record.backend,
            if here.is_empty() {
                "another one"
            } else {
                &here
            }
        );
        Err(Error::new(Errno::NODEV, text))
    }

    fn address(&self, workspace: Uuid, record: &Record) -> Result<Address> {
        let workspace = self.store().find(Scope::Root, Key::Uuid(workspace))?;
        Ok(Address {
            workspace: workspace.name,
            workspace_uuid: workspace.uuid,
            name: record.name.clone(),
            uuid: record.uuid,
        })
    }

    /// Finds a collection and opens its bytes.
    pub(crate) fn open_object(
        &self,
        workspace: Uuid,
        key: Key<'_>,
    ) -> Result<(Record, Box<dyn Object>)> {
        let record = self.store().find(Scope::In(workspace), key)?;
        let about = |e: Error| e.about(format!("collection '{}'", record.name));
        let backend = self.backend_of(&record).map_err(about)?;
        let address = self.address(workspace, &record)?;
        let object = backend.open(&address, &record.controls).map_err(about)?;
        Ok((record, object))
    }

    /// Deletes collections that the caller has just found, each like
    /// [`Session::delete_collection`]. A failure of one doesn't affect the others.
    pub(crate) fn delete_found(
        &self,
        workspace: Uuid,
        found: Vec<Result<Record>>,
    ) -> Vec<Result<()>> {
        let place = self.store().find(Scope::Root, Key::Uuid(workspace));
        let without_bytes = |record: &Record| {
            let about = |e: Error| e.about(format!("collection '{}'", record.name));
            let place = place.as_ref().map_err(Clone::clone)?;
            let address = Address {
                workspace: place.name.clone(),
                workspace_uuid: place.uuid,
                name: record.name.clone(),
                uuid: record.uuid,
            };
            let backend = self.backend_of(record).map_err(about)?;
            backend.delete(&address).map_err(about)
        };
        let mut ready = Vec::new();
        let mut failed = Vec::with_capacity(found.len());
        for found in found {
            let deleted = found.and_then(|record| without_bytes(&record).map(|()| record));
            failed.push(match deleted {
                Ok(record) => {
                    ready.push(record);
                    None
                }
                Err(error) => Some(error),
            });
        }
        let removed = self.store().remove_all(Scope::In(workspace), &ready);
        let mut removed = removed.into_iter();
        let nothing = || Err(Error::new(Errno::IO, "the metadata store removed nothing"));
        let one = |failed: Option<Error>| match failed {
            Some(error) => Err(error),
            None => removed.next().unwrap_or_else(nothing),
        };
        failed.into_iter().map(one).collect()
    }

    /// Deletes a collection: the bytes first, so that no bytes remain without a record.
    pub(crate) fn delete_collection(&self, workspace: Uuid, uuid: Uuid) -> Result<()> {
        let record = self.store().find(Scope::In(workspace), Key::Uuid(uuid))?;
        let about = |e: Error| e.about(format!("collection '{}'", record.name));
        let backend = self.backend_of(&record).map_err(about)?;
        let address = self.address(workspace, &record)?;
        backend.delete(&address).map_err(about)?;
        self.store().remove(Scope::In(workspace), uuid)
    }
}

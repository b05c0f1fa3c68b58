//! A session: a metadata store, the back ends that are attached, and the threads that run batches.
//!
//! Everything else hangs on one. A program has one session, or several with different stores. It may be used by
//! any number of threads; see [`crate`] for forks.

use crate::backend::{Address, Backend, Object, built_in};
use crate::crew::Crew;
use crate::meta::{Key, Memory, Record, Scope, Store};
use crate::process::Generation;
use crate::{Error, Result, Uuid};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// See the module. A clone is the same session.
#[derive(Clone)]
pub struct Session(Arc<Inner>);

struct Inner {
    generation: Generation,
    store: Arc<dyn Store>,
    backends: RwLock<BTreeMap<String, Arc<dyn Backend>>>,
    /// The back end of collections that name none.
    default: String,
    crew: Crew,
}

impl Session {
    /// A session whose metadata lies at `place`: `memory` is this process, for this session alone. The
    /// back ends `memory` and `null` are attached.
    ///
    /// # Errors
    /// EINVAL for a place that isn't known.
    pub fn open(place: &str) -> Result<Session> {
        match place {
            "memory" => Session::over(Arc::new(Memory::default()), "memory"),
            _ => Err(Error::invalid(format!(
                "no metadata store is known as '{place}'; there is: memory"
            ))),
        }
    }

    /// A session over this store; collections that name no back end get `default`.
    fn over(store: Arc<dyn Store>, default: &str) -> Result<Session> {
        let session = Session(Arc::new(Inner {
            generation: Generation::now(),
            store,
            backends: RwLock::default(),
            default: default.into(),
            crew: Crew::default(),
        }));
        session.attach("memory", "memory", "")?;
        session.attach("null", "null", "")?;
        Ok(session)
    }

    /// Attaches a back end of a built-in kind under `name`, by which collections name it.
    ///
    /// # Errors
    /// EINVAL for a kind that isn't known or can't use `config`; EEXIST if the name is taken.
    pub fn attach(&self, name: &str, kind: &str, config: &str) -> Result<()> {
        self.check()?;
        let backend = built_in(kind, config).map_err(|e| e.about(format!("back end '{name}'")))?;
        self.attach_backend(name, backend)
    }

    /// Attaches a back end of one's own.
    ///
    /// # Errors
    /// EEXIST if the name is taken, EINVAL for a name that can't be one.
    pub fn attach_backend(&self, name: &str, backend: Arc<dyn Backend>) -> Result<()> {
        self.check()?;
        crate::meta::check_name(name)?;
        let backends = self.0.backends.write();
        let mut backends = backends.unwrap_or_else(PoisonError::into_inner);
        if backends.contains_key(name) {
            let text = format!("there is a back end '{name}' already");
            return Err(Error::new(Errno::EXIST, text));
        }
        backends.insert(name.into(), backend);
        Ok(())
    }

    /// The names of the back ends, and their kinds.
    pub fn backends(&self) -> Vec<(String, String)> {
        let backends = self.0.backends.read();
        let backends = backends.unwrap_or_else(PoisonError::into_inner);
        let known = backends.iter();
        known.map(|(n, b)| (n.clone(), b.kind().into())).collect()
    }

    /// # Errors
    /// EPERM in a forked child of the process that opened it.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.generation.check()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    pub(crate) fn crew(&self) -> &Crew {
        &self.0.crew
    }

    pub(crate) fn default_backend(&self) -> &str {
        &self.0.default
    }

    /// # Errors
    /// ENODEV if there is none of this name.
    pub(crate) fn backend(&self, name: &str) -> Result<Arc<dyn Backend>> {
        let backends = self.0.backends.read();
        let backends = backends.unwrap_or_else(PoisonError::into_inner);
        backends.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = backends.keys().map(String::as_str).collect();
            let text = format!(
                "no back end '{name}' is attached to this session; attached: {}",
                known.join(", ")
            );
            Error::new(Errno::NODEV, text)
        })
    }

    fn address(&self, workspace: Uuid, record: &Record) -> Result<Address> {
        let workspace = self.store().find(Scope::Root, Key::Uuid(workspace))?;
        Ok(Address {
            workspace: workspace.name,
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
        let backend = self.backend(&record.backend).map_err(about)?;
        let address = self.address(workspace, &record)?;
        let object = backend.open(&address, &record.controls).map_err(about)?;
        Ok((record, object))
    }

    /// Deletes a collection: its bytes first, so that nothing is left that nobody knows of.
    pub(crate) fn delete_collection(&self, workspace: Uuid, uuid: Uuid) -> Result<()> {
        let record = self.store().find(Scope::In(workspace), Key::Uuid(uuid))?;
        let about = |e: Error| e.about(format!("collection '{}'", record.name));
        let backend = self.backend(&record.backend).map_err(about)?;
        let address = self.address(workspace, &record)?;
        backend.delete(&address).map_err(about)?;
        self.store().remove(Scope::In(workspace), uuid)
    }
}

//! Metadata stores: they record which workspaces and collections exist, and their metadata.
//!
//! A store keeps *records*. A workspace is a record at the store's root, a collection a record in
//! its workspace. A record has a name and a UUID, both unique in their scope, key-value metadata,
//! and the back end and controls declared at its creation. The back end decides where a
//! collection's bytes lie.
//!
//! Every store passes the same tests (`tests/meta.rs`). Concurrent operations of threads or
//! processes take effect in some order: of two that create the same name, one gets EEXIST.

mod entries;
#[cfg(feature = "etcd")]
mod etcd;
mod memory;
mod pool;
pub mod undo;

use crate::{Error, Meta, Predicate, Result, Uuid};
use forebay_controls::{Controls, Declared};
use rustix::io::Errno;
use undo::UndoLog;

#[cfg(feature = "etcd")]
pub use etcd::Etcd;
pub use memory::Memory;
pub use pool::Pool;
pub(crate) use pool::object_of;

/// Maximum number of bytes of a name.
pub const NAME_MAX: usize = 255;
/// Maximum number of bytes of a key.
pub const KEY_MAX: usize = 250;
/// Maximum number of bytes of a value.
pub const VALUE_MAX: usize = 64 << 10;
/// Prefix of the keys that the stores use themselves.
pub const RESERVED: &str = "forebay.";

/// The scope of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The store's root, whose records are the workspaces.
    Root,
    /// The workspace with this UUID, whose records are its collections.
    In(Uuid),
}

/// Identifies a record in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// By name.
    Name(&'a str),
    /// By UUID.
    Uuid(Uuid),
}

/// The record of a workspace or a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The UUID of the workspace or collection. The store chooses the UUID.
    pub uuid: Uuid,
    /// The name of the workspace or collection.
    pub name: String,
    /// The key-value metadata.
    pub meta: Meta,
    /// For a collection: name of the back end that has its bytes.
    pub backend: String,
    /// The back end's [`place`](crate::backend::Backend::place) when the record was created, if the
    /// store records it.
    pub place: String,
    /// The collection's declared controls.
    pub controls: Controls,
}

/// A record to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct New<'a> {
    /// The name of the new workspace or collection.
    pub name: &'a str,
    /// The key-value metadata of the new workspace or collection.
    pub meta: Meta,
    /// For a collection: the name of its back end.
    pub backend: &'a str,
    /// The back end's [`place`](crate::backend::Backend::place); may be empty.
    pub place: &'a str,
    /// The collection's declared controls.
    pub controls: Controls,
    /// The controls to declare for the record's own file, if that file has the collection's bytes
    /// ([`Backend::declared_of_record`](crate::backend::Backend)).
    pub of_file: Declared,
}

/// A change of metadata: a key, and its new value. None removes the key.
pub type Change = (String, Option<String>);

/// A metadata store. Its methods fail with ENOENT, EEXIST and ENOTEMPTY in the same cases as file
/// system calls, and with errors particular to the store.
pub trait Store: Send + Sync {
    /// Returns the store's name in messages.
    fn name(&self) -> &str;

    /// Creates a record; other processes see all of it or nothing. Calls `before` with the record
    /// first; if `before` fails, nothing is created.
    ///
    /// # Errors
    /// EEXIST if a record of this name exists.
    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record>;

    /// Creates several records of one scope, each as `create` does. A remote store joins the
    /// requests to other nodes. `before` also gets the record's index in the list.
    fn create_all(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Result<Record>> {
        let one = |(i, new)| self.create(scope, new, &mut |record| before(i, record));
        all.iter().enumerate().map(one).collect()
    }

    /// Finds a record.
    ///
    /// # Errors
    /// ENOENT if the record doesn't exist.
    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record>;

    /// Returns the first `most` records, by name, that match `predicate`.
    ///
    /// # Errors
    /// ENOENT if the workspace doesn't exist.
    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>>;

    /// Changes metadata in the given order, and returns the metadata before the change.
    ///
    /// # Errors
    /// ENOENT if the record doesn't exist.
    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta>;

    /// Removes a record.
    ///
    /// # Errors
    /// ENOENT if the record doesn't exist, ENOTEMPTY for a workspace with collections.
    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()>;

    /// Finds several records of one scope, each as `find` does.
    fn find_all(&self, scope: Scope, keys: &[Key<'_>]) -> Vec<Result<Record>> {
        keys.iter().map(|key| self.find(scope, *key)).collect()
    }

    /// Removes several records of one scope that the caller has just found, each as `remove` does.
    fn remove_all(&self, scope: Scope, all: &[Record]) -> Vec<Result<()>> {
        all.iter().map(|r| self.remove(scope, r.uuid)).collect()
    }

    /// Whether one joint request finds and removes several records faster than one request for
    /// each.
    fn removes_together(&self) -> bool {
        false
    }

    /// Creates an undo log for a batch. The log lives as long as the store's records.
    ///
    /// # Errors
    /// ENOTSUP if the store has no undo logs.
    fn undo_log(&self) -> Result<Box<dyn UndoLog>>;

    /// Takes over the undo logs of batches whose processes have died, and returns them.
    ///
    /// # Errors
    /// The errors of the store.
    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>>;

    /// Whether the store's records outlive this process.
    fn outlives_process(&self) -> bool;

    /// Whether every operation sends requests over the network. Joining operations then saves time.
    fn is_remote(&self) -> bool {
        false
    }
}

/// Checks a name of a workspace or collection.
///
/// # Errors
/// EINVAL, ENAMETOOLONG for an invalid name.
pub fn check_name(name: &str) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::new(
            Errno::NAMETOOLONG,
            format!("a name of {} bytes; {NAME_MAX} are the most", name.len()),
        ));
    }
    let why = match name {
        "" => "is empty",
        "." | ".." => "means a directory",
        _ if name.contains(['/', '\0']) => "contains '/' or NUL",
        _ if name.starts_with('.') => "begins with '.', as only Forebay's own do",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("the name '{name}' {why}")))
}

/// Checks changes of metadata.
///
/// # Errors
/// EINVAL, E2BIG for invalid metadata.
pub fn check_changes<'a>(
    changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<()> {
    for (key, value) in changes {
        let why = match key {
            "" => "is empty",
            _ if key.len() > KEY_MAX => "has more than 250 bytes",
            _ if key.contains(['\0', '`']) => "contains NUL or '`'",
            _ if key.starts_with(RESERVED) => "begins with 'forebay.', as only Forebay's own do",
            _ => "",
        };
        if !why.is_empty() {
            return Err(Error::invalid(format!("the key '{key}' {why}")));
        }
        let Some(value) = value else { continue };
        if value.len() > VALUE_MAX {
            let text = format!(
                "the value of '{key}' has {} bytes; {VALUE_MAX} are the most",
                value.len()
            );
            return Err(Error::new(Errno::TOOBIG, text));
        }
        if value.contains('\0') {
            return Err(Error::invalid(format!("the value of '{key}' contains NUL")));
        }
    }
    Ok(())
}

//! Metadata stores: which workspaces and collections exist, and their metadata.
//!
//! A store keeps *records*. A workspace is a record at the store's root, a collection a record in
//! its workspace. A record has a name and a UUID, both unique in their scope, key-value metadata,
//! and the back end and controls declared at its creation. The back end decides where a
//! collection's bytes lie.
//!
//! Every store passes the same tests (`tests/meta.rs`). Concurrent operations of threads or
//! processes are done in some order: of two that create the same name, one gets EEXIST.

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
    /// The workspaces.
    Root,
    /// The collections of this workspace.
    In(Uuid),
}

/// Identifies a record in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// Its name.
    Name(&'a str),
    /// By UUID.
    Uuid(Uuid),
}

/// The record of a workspace or a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The object's UUID, which the store chooses.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// The object's key-value metadata.
    pub meta: Meta,
    /// For a collection: the back end that has its bytes.
    pub backend: String,
    /// Which back end that was at the record's creation ([`crate::backend::Backend::place`]), if
    /// the store keeps that.
    pub place: String,
    /// The collection's declared controls.
    pub controls: Controls,
}

/// A record to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct New<'a> {
    /// Its name.
    pub name: &'a str,
    /// The collection's key-value metadata.
    pub meta: Meta,
    /// For a collection: its back end.
    pub backend: &'a str,
    /// Which back end that is, if it matters.
    pub place: &'a str,
    /// The collection's declared controls.
    pub controls: Controls,
    /// The controls to be declared of the record's own file, if the file has the bytes
    /// ([`Backend::declared_of_record`](crate::backend::Backend)).
    pub of_file: Declared,
}

/// A change of metadata: a key, and its new value or None.
pub type Change = (String, Option<String>);

/// A metadata store. Errors are ENOENT, EEXIST and ENOTEMPTY as for files, and those of the store.
pub trait Store: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// Creates a record, all of which becomes visible at once. `before` is called with the record
    /// first; if it fails, nothing is created.
    ///
    /// # Errors
    /// EEXIST if there is one of this name.
    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record>;

    /// Creates several records of one scope, each as in `create`, but with joint requests to other
    /// nodes. `before` gets the index of the record.
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
    /// ENOENT if there is none.
    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record>;

    /// Returns the records that match `predicate`, by name, the first `most` of them.
    ///
    /// # Errors
    /// ENOENT if there is no such workspace.
    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>>;

    /// Changes metadata, in the order given, and returns the old metadata.
    ///
    /// # Errors
    /// ENOENT if there is no such record.
    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta>;

    /// Removes a record.
    ///
    /// # Errors
    /// ENOENT if there is none, ENOTEMPTY for a workspace with collections.
    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()>;

    /// Finds several records of one scope, each as in `find`.
    fn find_all(&self, scope: Scope, keys: &[Key<'_>]) -> Vec<Result<Record>> {
        keys.iter().map(|key| self.find(scope, *key)).collect()
    }

    /// Removes several records of one scope that were found just now, each as in `remove`.
    fn remove_all(&self, scope: Scope, all: &[Record]) -> Vec<Result<()>> {
        all.iter().map(|r| self.remove(scope, r.uuid)).collect()
    }

    /// Whether finding and removing several records together is cheaper than one after the other.
    fn removes_together(&self) -> bool {
        false
    }

    /// Makes a log for a batch that can be undone. It lives as long as the store's own records.
    ///
    /// # Errors
    /// ENOTSUP if the store can't keep one.
    fn undo_log(&self) -> Result<Box<dyn UndoLog>>;

    /// Takes over the logs of batches whose processes have died.
    ///
    /// # Errors
    /// Those of the store.
    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>>;

    /// Whether the store's records outlive this process.
    fn outlives_process(&self) -> bool;

    /// Whether every operation sends requests, so that operations should be joined where they can
    /// be.
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

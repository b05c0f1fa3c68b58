//! Metadata stores: which workspaces and collections there are, and their metadata.
//!
//! A store keeps *records*. A workspace is a record at its root, a collection a record in its
//! workspace. A record has a name and a UUID, both unique where it is, key-value metadata, and the
//! back end and controls that were declared when it was made. Where a collection's bytes lie is its
//! back end's business.
//!
//! Every store passes the same tests (`tests/meta.rs`). What several threads or processes do at
//! once happens in some order: of two that create a name one is told that it exists.

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

/// Bytes of a name, at most.
pub const NAME_MAX: usize = 255;
/// Bytes of a key, at most.
pub const KEY_MAX: usize = 250;
/// Bytes of a value, at most.
pub const VALUE_MAX: usize = 64 << 10;
/// Keys that begin so are the stores' own.
pub const RESERVED: &str = "forebay.";

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Among the workspaces.
    Root,
    /// Among the collections of this workspace.
    In(Uuid),
}

/// How a record is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// By its name.
    Name(&'a str),
    /// By its UUID.
    Uuid(Uuid),
}

/// The record of a workspace or a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its UUID, which the store gives.
    pub uuid: Uuid,
    /// Its name.
    pub name: String,
    /// Its key-value metadata.
    pub meta: Meta,
    /// Of a collection: the back end that has its bytes.
    pub backend: String,
    /// What that back end was when it was made ([`crate::backend::Backend::place`]), as far as the
    /// store keeps that.
    pub place: String,
    /// Its declared controls.
    pub controls: Controls,
}

/// A record to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct New<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its key-value metadata.
    pub meta: Meta,
    /// Of a collection: its back end.
    pub backend: &'a str,
    /// What that back end is, if it matters.
    pub place: &'a str,
    /// Its declared controls.
    pub controls: Controls,
    /// What of that is said of the record's own file, where that has the bytes
    /// ([`Backend::said_of_record`](crate::backend::Backend)).
    pub of_file: Declared,
}

/// A change of metadata: a key, and its new value or None.
pub type Change = (String, Option<String>);

/// A metadata store. Errors are ENOENT, EEXIST and ENOTEMPTY as for files, and what the store has
/// to say.
pub trait Store: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &str;

    /// Makes a record; all of it is seen at once. Before it is seen by others, `before` is told of
    /// it: if that fails, nothing was made.
    ///
    /// # Errors
    /// EEXIST if there is one of this name.
    fn create(
        &self,
        scope: Scope,
        new: &New<'_>,
        before: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Record>;

    /// Makes several records of one scope, as `create` would, each by itself; what they need of
    /// others is asked for together. `before` is told which one it is.
    fn create_all(
        &self,
        scope: Scope,
        all: &[New<'_>],
        before: &mut dyn FnMut(usize, &Record) -> Result<()>,
    ) -> Vec<Result<Record>> {
        let one = |(i, new)| self.create(scope, new, &mut |record| before(i, record));
        all.iter().enumerate().map(one).collect()
    }

    /// # Errors
    /// ENOENT if there is none.
    fn find(&self, scope: Scope, key: Key<'_>) -> Result<Record>;

    /// Those for which `predicate` holds, by name, the first `most` of them.
    ///
    /// # Errors
    /// ENOENT if there is no such workspace.
    fn search(&self, scope: Scope, predicate: &Predicate, most: usize) -> Result<Vec<Record>>;

    /// Changes metadata, in the order given, and returns what it was before.
    ///
    /// # Errors
    /// ENOENT if there is no such record.
    fn update(&self, scope: Scope, uuid: Uuid, changes: &[Change]) -> Result<Meta>;

    /// Removes a record.
    ///
    /// # Errors
    /// ENOENT if there is none, ENOTEMPTY for a workspace with collections.
    fn remove(&self, scope: Scope, uuid: Uuid) -> Result<()>;

    /// Finds several records of one scope, as `find` would, each by itself.
    fn find_all(&self, scope: Scope, keys: &[Key<'_>]) -> Vec<Result<Record>> {
        keys.iter().map(|key| self.find(scope, *key)).collect()
    }

    /// Removes several records of one scope that were found just now, as `remove` would, each by
    /// itself.
    fn remove_all(&self, scope: Scope, all: &[Record]) -> Vec<Result<()>> {
        all.iter().map(|r| self.remove(scope, r.uuid)).collect()
    }

    /// Whether finding and removing several together takes less than one after the other.
    fn removes_together(&self) -> bool {
        false
    }

    /// A log for a batch that can be undone, kept as long as the store's own records.
    ///
    /// # Errors
    /// ENOTSUP if it can't keep one.
    fn undo_log(&self) -> Result<Box<dyn UndoLog>>;

    /// Logs of batches whose processes have died. They are this caller's now.
    ///
    /// # Errors
    /// What the store has to say.
    fn left_behind(&self) -> Result<Vec<Box<dyn UndoLog>>>;

    /// Whether what it keeps outlives this process.
    fn outlives_process(&self) -> bool;

    /// Whether others are asked for everything, so that what can go together should.
    fn is_remote(&self) -> bool {
        false
    }
}

/// # Errors
/// EINVAL, ENAMETOOLONG for what can't be the name of a workspace or collection.
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

/// # Errors
/// EINVAL, E2BIG for what can't be metadata.
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

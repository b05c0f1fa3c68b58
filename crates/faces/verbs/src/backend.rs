//! Back ends: storage for the bytes of collections.
//!
//! A back end makes, opens and deletes *objects*, the bytes of one collection each. A back end
//! records no names, metadata or controls of collections: the metadata store does. Each call gets
//! the collection's [`Address`], which is unique in the session. A session can have several back
//! ends at once, of different kinds or of one kind with different configurations. Each collection
//! names its back end.
//!
//! | kind | bytes are | outlive the process |
//! |---|---|---|
//! | `memory` | in this process | no |
//! | `directory` | in files below a directory of any mounted file system | yes |
//! | `forebay` | in files of a pool | yes |

mod directory;
mod loaded;
mod memory;
mod pool;

use crate::mapped::Access;
use crate::{Error, Result, Uuid};
use forebay_controls::{Controls, Declared, Integrity, Mutability, Parallelism, Persistence};
use std::sync::Arc;

pub use crate::mapped::Mapped;
pub use directory::Directory;
pub use loaded::Loaded;
pub use memory::Memory;
pub use pool::{Forebay, PoolFile};

/// Identifies a collection's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The workspace's name.
    pub workspace: String,
    /// The workspace's UUID.
    pub workspace_uuid: Uuid,
    /// The collection's name.
    pub name: String,
    /// The collection's UUID.
    pub uuid: Uuid,
}

/// Storage for the bytes of collections.
pub trait Backend: Send + Sync {
    /// Returns the back end's kind, for messages.
    fn kind(&self) -> &str;

    /// Whether bytes outlive this process.
    fn outlives_process(&self) -> bool;

    /// Returns a text that tells this back end's storage from that of others of its kind, for
    /// instance a path. The text is recorded with each collection, so that a session with other
    /// storage under the same back end name is refused. Empty if the name is enough.
    fn place(&self) -> String {
        String::new()
    }

    /// Checks that the back end can keep these controls.
    ///
    /// # Errors
    /// ENOTSUP, naming the first control that the back end can't keep.
    fn supports(&self, controls: &Controls) -> Result<()>;

    /// Returns the controls to declare for a new collection's record file, if that file also has
    /// the collection's bytes; otherwise nothing.
    fn declared_of_record(&self, _controls: &Controls) -> Declared {
        Declared::NOTHING
    }

    /// Creates an empty object.
    ///
    /// # Errors
    /// EEXIST if an object of another collection exists at this address.
    fn create(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>>;

    /// Opens an object.
    ///
    /// # Errors
    /// ENOENT if the object doesn't exist.
    fn open(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>>;

    /// Deletes an object. A missing object is no error: an earlier deletion may have been
    /// interrupted after removing it.
    ///
    /// # Errors
    /// The errors of the back end.
    fn delete(&self, address: &Address) -> Result<()>;
}

/// The bytes of an open collection. Used by several threads at once.
pub trait Object: Send + Sync {
    /// Reads from byte `at` on, and returns the number of bytes read: less than `to.len()` only at
    /// the object's end. Bytes that were never written are zero.
    ///
    /// # Errors
    /// The errors of the back end.
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize>;

    /// Writes all of `from` at byte `at`.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, the errors of the back end. After an error, a first part of the bytes may
    /// have been written.
    fn write(&self, from: &[u8], at: u64) -> Result<()>;

    /// Appends all of `from` in one piece, and returns its offset in bytes.
    ///
    /// # Errors
    /// As for `write`.
    fn append(&self, from: &[u8]) -> Result<u64>;

    /// Sets the size in bytes: truncates the object, or adds zeros.
    ///
    /// # Errors
    /// As for `write`.
    fn truncate(&self, size: u64) -> Result<()>;

    /// Returns the size in bytes.
    ///
    /// # Errors
    /// The errors of the back end.
    fn size(&self) -> Result<u64>;

    /// Makes written bytes durable, as fsync(2) does.
    ///
    /// # Errors
    /// The errors of the back end.
    fn sync(&self) -> Result<()>;

    /// Maps a range of bytes into memory.
    ///
    /// # Errors
    /// ENOTSUP if the bytes aren't in memory that can be mapped; the errors of
    /// [`crate::Chunk::map`].
    fn map(&self, _at: u64, _len: usize, _access: Access) -> Result<Mapped> {
        Err(Error::unsupported(
            "only collections of a pool can be mapped: this one's back end has no memory for that",
        ))
    }

    /// Copies `len` bytes at `at` to offset `to_at` of another object, not through this process's
    /// memory, and returns the number of bytes copied. Returns None if these two objects don't
    /// support such a copy: the caller then reads and writes the bytes.
    ///
    /// # Errors
    /// As for `read` and `write`. After an error, a first part of the bytes may have been copied.
    fn copy_to(&self, _at: u64, _len: u64, _to: &dyn Object, _to_at: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the open file behind the object, if it is a pool's file.
    fn in_pool(&self) -> Option<PoolFile<'_>> {
        None
    }

    /// Closes the object, which is dropped next.
    ///
    /// # Errors
    /// If written bytes can't be stored.
    fn close(&mut self) -> Result<()>;
}

/// Returns a new back end of a built-in kind, with this configuration.
///
/// # Errors
/// EINVAL for an unknown kind, or for a configuration that the kind can't use.
pub fn built_in(kind: &str, config: &str) -> Result<Arc<dyn Backend>> {
    match kind {
        "memory" if config.is_empty() => Ok(Arc::new(Memory::default())),
        "memory" => Err(Error::invalid(format!(
            "the back end 'memory' has nothing to configure, but got '{config}'"
        ))),
        "directory" => Ok(Arc::new(Directory::open(config)?)),
        "forebay" => Ok(Arc::new(Forebay::open(config)?)),
        _ => Err(Error::invalid(format!(
            "there is no back end of the kind '{kind}'; there are: memory, directory, forebay"
        ))),
    }
}

/// Checks whether a back end without code for controls can keep these controls. Such a back end is
/// sequentially consistent, which satisfies every `consistency`. A `temporality` demands nothing.
/// Controls that forbid accesses can't be kept, as the back end can't refuse an access.
///
/// # Errors
/// ENOTSUP, naming the first control that can't be kept: among them a persistence that isn't in
/// `persistence`.
pub(crate) fn plain_support(
    kind: &str,
    controls: &Controls,
    persistence: &[Persistence],
) -> Result<()> {
    let cannot = |what: &str| {
        Err(Error::unsupported(format!(
            "the back end '{kind}' can't keep {what}"
        )))
    };
    match controls {
        c if c.parallelism != Parallelism::Shared => cannot("parallelism=exclusive"),
        c if c.mutability == Mutability::Append => cannot("mutability=append"),
        c if c.mutability != Mutability::Overwrite => cannot("mutability=immutable"),
        c if c.integrity != Integrity::None => cannot("integrity=checksum"),
        c if !persistence.contains(&c.persistence) => {
            let word = format!("{:?}", c.persistence).to_lowercase();
            cannot(&format!("persistence={word}"))
        }
        _ => Ok(()),
    }
}

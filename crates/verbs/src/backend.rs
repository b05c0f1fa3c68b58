//! Back ends: where the bytes of collections lie.
//!
//! A back end makes, opens and deletes *objects*, the bytes of one collection each. It doesn't know
//! the names, metadata or controls of collections: the metadata store does, and gives the back end
//! an [`Address`] that is unique in the session. A session has several back ends at once, of
//! different kinds or of one kind with different configurations; each collection names its own.
//!
//! | kind | bytes lie | outlive the process |
//! |---|---|---|
//! | `memory` | in this process | no |
//! | `null` | nowhere: written bytes are counted, read ones are zero | no |
//! | `directory` | in files below a directory of any mounted file system | yes |
//! | `forebay` | in files of a pool | yes |

mod directory;
mod loaded;
mod memory;
mod null;
mod pool;

use crate::mapped::Access;
use crate::{Error, Result, Uuid};
use forebay_controls::{Controls, Declared, Integrity, Mutability, Parallelism, Persistence};
use std::sync::Arc;

pub use crate::mapped::Mapped;
pub use directory::Directory;
pub use loaded::Loaded;
pub use memory::Memory;
pub use null::Null;
pub use pool::{Forebay, PoolFile};

/// Whose bytes.
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

/// A back end.
pub trait Backend: Send + Sync {
    /// Its kind, for messages.
    fn kind(&self) -> &str;

    /// Whether bytes outlive this process.
    fn outlives_process(&self) -> bool;

    /// Which of its kind it is, where another one under the same name would have other bytes: noted
    /// with each collection, so that a session that has attached another one is told so. Empty
    /// where the name says enough.
    fn place(&self) -> String {
        String::new()
    }

    /// # Errors
    /// ENOTSUP, naming the first of these controls that it can't keep.
    fn supports(&self, controls: &Controls) -> Result<()>;

    /// Where its bytes lie in the files that are the metadata store's records: what of a
    /// collection's controls is said of the file, from the start.
    fn said_of_record(&self, _controls: &Controls) -> Declared {
        Declared::NOTHING
    }

    /// Makes an empty object.
    ///
    /// # Errors
    /// EEXIST if bytes of another collection lie at this address.
    fn create(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>>;

    /// Opens an object.
    ///
    /// # Errors
    /// ENOENT if its bytes aren't there.
    fn open(&self, address: &Address, controls: &Controls) -> Result<Box<dyn Object>>;

    /// Deletes an object. That it isn't there is no error: its deletion may have been interrupted.
    ///
    /// # Errors
    /// What the back end has to say.
    fn delete(&self, address: &Address) -> Result<()>;
}

/// The bytes of a collection that is open. Used by several threads at once.
pub trait Object: Send + Sync {
    /// Reads at `at`; fewer bytes only at the end, what was never written is zero.
    ///
    /// # Errors
    /// What the back end has to say.
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize>;

    /// Writes all of `from` at `at`.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, what the back end has to say: a first part may have been written then.
    fn write(&self, from: &[u8], at: u64) -> Result<()>;

    /// Writes all of `from` at the end, in one piece, and says where it lies.
    ///
    /// # Errors
    /// As for `write`.
    fn append(&self, from: &[u8]) -> Result<u64>;

    /// Makes it so long: cut, or with zeros behind.
    ///
    /// # Errors
    /// As for `write`.
    fn truncate(&self, size: u64) -> Result<()>;

    /// Its bytes.
    ///
    /// # Errors
    /// What the back end has to say.
    fn size(&self) -> Result<u64>;

    /// What fsync(2) does.
    ///
    /// # Errors
    /// What the back end has to say.
    fn sync(&self) -> Result<()>;

    /// Maps its bytes into memory.
    ///
    /// # Errors
    /// ENOTSUP where they lie in no memory that can be mapped; what [`crate::Chunk::map`] says.
    fn map(&self, _at: u64, _len: usize, _access: Access) -> Result<Mapped> {
        Err(Error::unsupported(
            "only collections of a pool can be mapped: this one's back end has no memory for that",
        ))
    }

    /// Copies `len` bytes at `at` to `to_at` of another object, without this process's memory: how
    /// many there were. None: not between these two; they are read and written then.
    ///
    /// # Errors
    /// As for `read` and `write`: a first part may have been copied then.
    fn copy_to(&self, _at: u64, _len: u64, _to: &dyn Object, _to_at: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The open file that it is, if that is one of a pool.
    fn in_pool(&self) -> Option<PoolFile<'_>> {
        None
    }

    /// Ends its use. It isn't used again, but dropped.
    ///
    /// # Errors
    /// If what was written can't be kept.
    fn close(&mut self) -> Result<()>;
}

/// Makes a built-in back end.
///
/// # Errors
/// EINVAL for a kind that isn't known, or a configuration that it can't use.
pub fn built_in(kind: &str, config: &str) -> Result<Arc<dyn Backend>> {
    let nothing = |kind| match config {
        "" => Ok(()),
        _ => Err(Error::invalid(format!(
            "the back end '{kind}' has nothing to configure, but got '{config}'"
        ))),
    };
    match kind {
        "memory" => nothing(kind).map(|()| Arc::new(Memory::default()) as Arc<dyn Backend>),
        "null" => nothing(kind).map(|()| Arc::new(Null) as Arc<dyn Backend>),
        "directory" => Ok(Arc::new(Directory::open(config)?)),
        "forebay" => Ok(Arc::new(Forebay::open(config)?)),
        _ => Err(Error::invalid(format!(
            "there is no back end of the kind '{kind}'; there are: memory, null, directory, forebay"
        ))),
    }
}

/// What back ends can keep that know nothing of controls: they are sequential, which is more than
/// what any other consistency asks for, and a rhythm of use asks for nothing. But they refuse
/// nobody.
///
/// # Errors
/// ENOTSUP for others, and for `persistence` unless it is one of these.
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

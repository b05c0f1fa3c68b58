//! Stores of whole objects, such as buckets: a file appears there with its content and attributes
//! in one step, and is never changed in place.
//!
//! The store does what [`crate::files`] does elsewhere by temporary names: it shows an object only
//! when it is complete, its content confirmed, and the source unchanged meanwhile.

use crate::meta::Meta;
use crate::trouble::Trouble;

/// A store of whole objects. Paths are those of its [`Place`](crate::Place).
pub trait Objects: Sync {
    /// Stores a file, with the source's attributes. The object appears under its name when its
    /// content has been confirmed to be that of the source, and [`Source::rests`] has said so.
    ///
    /// # Errors
    /// [`Trouble`]; the object doesn't appear then.
    fn put(&self, path: &[u8], source: &dyn Source) -> Result<(), Trouble>;

    /// Stores a symbolic link.
    ///
    /// # Errors
    /// The errno.
    fn put_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> rustix::io::Result<()>;

    /// Gives the object or the directory at `path` these attributes: mode, owner, group, time of
    /// modification.
    ///
    /// # Errors
    /// FBIG: the server can't do that with an object of this size. Other errnos.
    fn put_attributes(&self, path: &[u8], meta: &Meta) -> rustix::io::Result<()>;
}

/// A file that is to be stored whole.
pub trait Source: Sync {
    /// Its attributes when it was opened.
    fn meta(&self) -> &Meta;

    /// Threads that may read it.
    fn threads(&self) -> usize;

    /// Fills `buffer` with the bytes at `at`. May be called for the same bytes again.
    ///
    /// # Errors
    /// [`Trouble::Changed`] if the file is shorter; [`Trouble::Read`]; [`Trouble::Stopped`].
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Trouble>;

    /// Counts bytes that have been stored.
    fn count(&self, bytes: u64);

    /// Whether the file is still as it was.
    ///
    /// # Errors
    /// [`Trouble::Changed`]; [`Trouble::Read`]; [`Trouble::Stopped`].
    fn rests(&self) -> Result<(), Trouble>;
}

//! The source of a file that a bucket stores as one object.

use crate::error::Error;
use crate::meta::Meta;

/// A file that is to be stored as one object.
pub trait Source: Sync {
    /// Returns the file's attributes from when it was opened.
    fn meta(&self) -> &Meta;

    /// Returns the number of threads that may read the file at the same time.
    fn threads(&self) -> usize;

    /// Fills `buffer` with the bytes at offset `at`. May be called again for the same bytes.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file has become shorter; [`Error::Read`]; [`Error::Stopped`].
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Error>;

    /// Adds to the count of bytes that have been stored.
    fn count(&self, bytes: u64);

    /// Checks that the file is still unchanged.
    ///
    /// # Errors
    /// [`Error::Changed`]; [`Error::Read`]; [`Error::Stopped`].
    fn rests(&self) -> Result<(), Error>;
}

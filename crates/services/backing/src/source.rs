//! The source of an object that is stored whole, and the reasons why content couldn't be copied.

use crate::meta::Meta;
use rustix::io::Errno;

/// Why content couldn't be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Read(Errno),
    Write(Errno),
    ReadBack(Errno),
    /// The source has changed since the copy began.
    Changed,
    /// The destination's content differs from the source's.
    Differs,
    Stopped,
}

/// A file that is to be stored whole.
pub trait Source: Sync {
    /// The file's attributes when it was opened.
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

    /// Whether the file is still unchanged.
    ///
    /// # Errors
    /// [`Trouble::Changed`]; [`Trouble::Read`]; [`Trouble::Stopped`].
    fn rests(&self) -> Result<(), Trouble>;
}

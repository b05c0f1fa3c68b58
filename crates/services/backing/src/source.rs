//! The source of a file that a bucket stores as one object, and the reasons why content couldn't be
//! copied.

use crate::meta::Meta;
use rustix::io::Errno;

/// The reason why content couldn't be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Read(Errno),
    Write(Errno),
    ReadBack(Errno),
    /// The source has changed since the copy began.
    Changed,
    /// The destination's content differed from the source's, and was removed.
    Differs,
    /// The destination's content differs from the source's, and is still there: the store can't
    /// remove it without risk for what others write.
    Damaged,
    Stopped,
}

/// A file that is to be stored as one object.
pub trait Source: Sync {
    /// Returns the file's attributes from when it was opened.
    fn meta(&self) -> &Meta;

    /// Returns the number of threads that may read the file at the same time.
    fn threads(&self) -> usize;

    /// Fills `buffer` with the bytes at offset `at`. May be called again for the same bytes.
    ///
    /// # Errors
    /// [`Trouble::Changed`] if the file is shorter; [`Trouble::Read`]; [`Trouble::Stopped`].
    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Trouble>;

    /// Adds to the count of bytes that have been stored.
    fn count(&self, bytes: u64);

    /// Checks that the file is still unchanged.
    ///
    /// # Errors
    /// [`Trouble::Changed`]; [`Trouble::Read`]; [`Trouble::Stopped`].
    fn rests(&self) -> Result<(), Trouble>;
}

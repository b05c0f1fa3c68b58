//! Reading and writing open files by the number of their description, with slices.
//!
//! For faces that keep a file open without borrowing [`Fs`]. The methods do what those of [`File`]
//! do.

use crate::{File, Fs, Whence};
use rustix::io::Result;

impl File<'_> {
    /// Returns the file's description, which stays open. The caller must release it with
    /// [`Fs::release`].
    pub fn into_open(mut self) -> u32 {
        self.take_open()
    }
}

impl Fs {
    /// The open file of a description ([`File::into_open`]). Dropping it closes the file: a caller
    /// that needs it for one call only must put it into a `ManuallyDrop`.
    pub fn file_of(&self, open: u32) -> File<'_> {
        File::new(self, open)
    }

    /// pread(2).
    ///
    /// # Errors
    /// EBADF, EISDIR, EIO.
    pub fn read_chunk(&self, open: u32, to: &mut [u8], at: u64) -> Result<usize> {
        self.read(open, Some(at), to.into())
    }

    /// pwrite(2).
    ///
    /// # Errors
    /// EBADF, ENOSPC, EFBIG, EIO.
    pub fn write_chunk(&self, open: u32, from: &[u8], at: u64) -> Result<usize> {
        self.write(open, Some(at), from.into())
    }

    /// write(2) to the end of the file. Returns the offset and the number of bytes written. The
    /// call locks the description, so appends through one description exclude each other.
    ///
    /// # Errors
    /// As for [`Fs::write_chunk`].
    pub fn append_chunk(&self, open: u32, from: &[u8]) -> Result<(u64, usize)> {
        let n = self.write_as(open, None, true, from.into())?;
        let end = self.seek(open, Whence::Current, 0)?;
        Ok((end - n as u64, n))
    }

    /// Closes an open file.
    ///
    /// # Errors
    /// An error of writing buffered writes back.
    pub fn release(&self, open: u32) -> Result<()> {
        let published = self.buffers().publish(open);
        let at_origin = self.origin_gate().write_through_open(open);
        let released = self.store().objects().open_release(open);
        released.and(published).and(at_origin)
    }
}

//! Reading and writing open files by the number of their description, with slices.
//!
//! For faces that keep a file open without borrowing [`Fs`]. As [`File`], without an owner.

use crate::{File, Fs, Whence};
use rustix::io::Result;

impl File<'_> {
    /// Leaves the file open for a caller that uses the returned description from here on and
    /// releases it with [`Fs::release`].
    pub fn into_open(mut self) -> u32 {
        self.take_open()
    }
}

impl Fs {
    /// The file of an open description ([`File::into_open`]). Dropping it ends the use: keep it in a
    /// `ManuallyDrop` for a call in between.
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
    /// description's offset is used for it, so appends by one description exclude each other.
    ///
    /// # Errors
    /// As for [`Fs::write_chunk`].
    pub fn append_chunk(&self, open: u32, from: &[u8]) -> Result<(u64, usize)> {
        let n = self.write_as(open, None, true, from.into())?;
        let end = self.seek(open, Whence::Current, 0)?;
        Ok((end - n as u64, n))
    }

    /// Ends the use of an open file.
    ///
    /// # Errors
    /// If the buffered writes can't be written back.
    pub fn release(&self, open: u32) -> Result<()> {
        let published = self.publish(open);
        let at_origin = self.write_through_open(open);
        let released = self.store().objects().open_release(open);
        released.and(published).and(at_origin)
    }
}

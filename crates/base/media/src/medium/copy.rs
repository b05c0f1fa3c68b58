//! Copies bytes from one extent to another, on any media.
//!
//! From mapped memory, a copy is one `memcpy` or one `pwrite`. Between `files` media, bytes go
//! through a buffer: copy_file_range(2) might make both files share blocks, and a later write to
//! them would need room that isn't reserved.

use super::*;

/// Size of the buffer. Bytes.
const PIECE: usize = 256 << 10;

/// A byte of an extent.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The extent.
    pub extent: Extent,
    /// The byte's number in the extent.
    pub offset: usize,
}

impl Medium {
    /// Copies `len` bytes from position `from` of this medium to position `into` of medium `to`.
    /// The pages at `from` must be initialised, which isn't checked.
    ///
    /// # Errors
    /// EIO and other errors of the file system under a `files` medium.
    ///
    /// # Safety
    /// The ranges are inside the extents, and don't overlap.
    pub unsafe fn copy(
        &self,
        from: Position,
        to: &Medium,
        into: Position,
        len: usize,
    ) -> Result<()> {
        let start = from.extent.start() as usize * PAGE + from.offset;
        let Position { extent, offset } = into;
        if let Some(bytes) = self.mapped(start)? {
            // SAFETY: `bytes` lies in the segment's mapping, as all of the extent; the rest is the
            // caller's promise.
            return unsafe { to.write(extent, offset, bytes, len) };
        }
        let mut buffer = vec![0; len.min(PIECE)];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(buffer.len());
            // SAFETY: the buffer has `n` bytes; the caller promises that the ranges lie inside the
            // extents.
            unsafe {
                self.copy_out(start + done, buffer.as_mut_ptr(), n)?;
                to.write(extent, offset + done, buffer.as_ptr(), n)?;
            }
            done += n;
        }
        Ok(())
    }
}

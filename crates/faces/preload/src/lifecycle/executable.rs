//! A file that is executed, in the pool or outside, and the path by which it was named.

use forebay_elf::Source;
use forebay_posix::{Errno, Fs};
use rustix::fd::OwnedFd;

/// A file to be executed.
pub enum File {
    /// An open file description of the pool. It is released when this value is dropped.
    Pool(&'static Fs, u32),
    /// A file of the kernel, open for reading; None if it can't be opened.
    Kernel(Option<OwnedFd>),
}

impl File {
    pub fn is_ours(&self) -> bool {
        matches!(self, File::Pool(..))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let File::Pool(fs, open) = self {
            let _ = fs.description(*open).release();
        }
    }
}

impl Source for File {
    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match self {
            File::Pool(fs, open) => {
                let live = fs.live_of(*open)?;
                // SAFETY: `to` is a slice, writable for its length.
                unsafe {
                    fs.cluster()
                        .data()
                        .read(live, offset, to.as_mut_ptr(), to.len())
                }
            }
            File::Kernel(Some(fd)) => Ok(rustix::io::pread(fd, to, offset)?),
            File::Kernel(None) => Err(Errno::ACCESS),
        }
    }
}

/// A file of the chain from script to program, and how it was named.
pub struct Found {
    pub file: File,
    /// The path by which the kernel finds the file; only used for files outside the pool.
    pub path: i64,
    pub dirfd: i32,
}

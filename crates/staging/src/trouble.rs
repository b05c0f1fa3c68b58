//! Why content couldn't be copied.

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

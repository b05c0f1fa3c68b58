//! Error numbers with a meaning of their own inside the store and between nodes.

use rustix::io::Errno;

/// What the caller knew of the file (its size, its cuts, its parts) has changed. The caller asks
/// again.
pub const CHANGED: Errno = Errno::XFULL;

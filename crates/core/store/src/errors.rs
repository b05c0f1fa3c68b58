//! Error numbers with a meaning of their own inside the store and between nodes.

use rustix::io::Errno;

/// The caller's knowledge of the file (its size, number of truncations, parts) is outdated. The
/// caller refreshes it and tries again.
pub const CHANGED: Errno = Errno::XFULL;

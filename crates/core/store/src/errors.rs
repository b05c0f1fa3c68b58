//! Error numbers with a meaning of their own inside the store and between nodes.

use rustix::io::Errno;

/// The caller has outdated knowledge of the file (its size, number of truncations, parts). The
/// caller must fetch this knowledge again, and repeat its operation.
pub const CHANGED: Errno = Errno::XFULL;

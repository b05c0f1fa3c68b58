//! The reasons why a request fails.

use rustix::io::Errno;

/// A failure: the errno, and what failed.
pub type Failed = (Errno, String);

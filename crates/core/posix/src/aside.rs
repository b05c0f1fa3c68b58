//! [`ASIDE`]: the error that passes an operation on to another thread.

use rustix::io::Errno;

/// The error for an operation that must be repeated on another thread. A thread that answers other
/// processes ([`process::answer_others`]) gets it where it would have to examine one of these
/// processes, or wait; nothing has been done then. In a mount, an open gets it on any thread while
/// a conflicting lease exists, and is to be tried again.
///
/// [`process::answer_others`]: forebay_store::process::answer_others
pub const ASIDE: Errno = Errno::INPROGRESS;

//! [`ASIDE`]: the error that passes an operation on to another thread.

use rustix::io::Errno;

/// The error for an operation that must be repeated on another thread. A thread that answers other
/// processes ([`process::answer_others`]) returns it before it would have to examine one of these
/// processes, or to wait. In a mount, an open that conflicts with a lease returns it on any thread,
/// and must be tried again.
///
/// [`process::answer_others`]: forebay_store::process::answer_others
pub const ASIDE: Errno = Errno::INPROGRESS;

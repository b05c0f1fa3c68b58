//! [`ASIDE`]: the error that passes an operation to another thread.

use rustix::io::Errno;

/// The error for an operation that must be carried out by another thread, or later. A thread that
/// answers other processes ([`process::answer_others`]) must neither examine one of them nor wait:
/// it returns this error instead, and another thread repeats the operation. In a mount, any thread
/// returns this error for an open that conflicts with a lease. That open is tried again later.
///
/// [`process::answer_others`]: forebay_store::process::answer_others
pub const ASIDE: Errno = Errno::INPROGRESS;

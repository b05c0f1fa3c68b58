//! Commands for files in a pool, in the manner of coreutils and findutils: through
//! [`forebay_posix::Fs`], so with the semantics that programs see. Everything else is done by these
//! programs themselves: `forebay exec -- cp ...`.
//!
//! Paths are those of the pool, with or without its mount prefix ([`crate::paths::in_pool`]). A
//! path that fails is named in one line, the command continues with the others, and the exit code
//! is 1.

mod find;
mod ls;
mod shown;

pub use find::find;
pub use ls::ls;
pub use shown::user_name;

//! Commands for files in a pool, in the manner of coreutils and findutils. These commands use
//! [`forebay_posix::Fs`], so they have the semantics that programs see. For everything else, users
//! run the original programs: `forebay exec -- cp ...`.
//!
//! Paths are those of the pool, with or without its mount prefix ([`crate::paths::in_pool`]). If a
//! path fails, one line names it, the command continues with the others, and the exit code is 1.

mod find;
mod ls;
mod shown;

pub use find::find;
pub use ls::ls;
pub use shown::user_name;

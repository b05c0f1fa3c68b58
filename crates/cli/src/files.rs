//! Commands for files in a pool, in the manner of coreutils: through [`forebay_posix::Fs`], so with
//! the semantics that programs see.
//!
//! Paths are those of the pool, with or without its mount prefix ([`crate::paths::in_pool`]). A
//! path that fails is named in one line, the others go on, and the exit code is 1.

mod cat;
mod cp;
mod du;
mod find;
mod ls;
mod mv;
mod rm;
mod session;
mod shown;
mod targets;
mod walk;

pub use cat::cat;
pub use cp::cp;
pub use du::du;
pub use find::find;
pub use ls::ls;
pub use mv::mv;
pub use rm::{mkdir, rm};
pub use shown::{human, user_name};

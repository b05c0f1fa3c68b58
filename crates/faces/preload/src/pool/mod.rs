//! The pool in this process: opened when it is first needed ([`fs`]), with descriptors that stand
//! for its files, a working directory and a umask.

pub mod fds;
mod opened;
pub mod placeholder;
pub mod stand_in;
pub mod umask;
pub mod working_dir;

pub use opened::*;

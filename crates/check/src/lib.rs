//! Does a pool behave like one POSIX file system, whichever process on whichever node looks?
//!
//! A black box: it knows nothing of Forebay but paths. Several processes, on all nodes, do random
//! operations on few files and names, all at once, in short phases with a barrier between. Each
//! operation is recorded with its result and the times of its beginning and end. After each phase
//! the checker searches for an order of them that gives these results on a model of a POSIX file
//! system.
//! After each phase the checker tries whether some order of them, on a model of a POSIX file
//! system, gives these results.
//!
//! - [`operation`]: what is noted; [`memory`]: how workers and driver share it; [`calls`]: libc;
//! - [`worker`]: what a process does, [`theme`]: chosen how; [`weak`]: how it can be done worse, so
//!   that something is found;
//! - [`later`]: files with weaker consistency, and [`visible`]: what may be seen of them;
//! - [`model`] and [`steps`]: the file system, [`search`]: the orders; [`driver`]: phases,
//!   [`host`]: processes; [`options`].
//!
//! The program `forebay-check` and the simulator (`crates/simulator`) use it.

pub mod calls;
mod driver;
pub mod host;
pub mod later;
pub mod memory;
pub mod model;
pub mod operation;
pub mod options;
pub mod random;
pub mod search;
mod steps;
#[cfg(test)]
mod tests;
pub mod theme;
mod visible;
pub mod weak;
pub mod worker;

pub use driver::{Driver, End, run};

//! Does a pool behave like one POSIX file system, whichever process on whichever node looks?
//!
//! A black box: it knows nothing of Forebay but paths. Several processes, on all nodes, do random
//! operations on few files and names, all at once, in short phases with a barrier between. Each
//! operation is recorded with its result and the times of its beginning and end. After each phase
//! the checker searches for an order of them that gives these results on a model of a POSIX file
//! system.
//!
//! - [`operation`]: what is recorded; [`memory`]: how workers and driver share it; [`calls`]: libc;
//! - [`worker`]: what a process does, [`theme`]: how operations are chosen; [`weak`]: broken promises, to
//!   test the checker;
//! - [`later`]: files with weaker consistency, and [`visible`]: what reads of them may show;
//! - [`outside`]: a pool with an origin, whose files others change behind it;
//! - [`model`] and [`steps`]: the file system, [`search`]: the orders; [`driver`]: phases,
//!   [`host`]: processes; [`options`].
//!
//! The program `forebay-check` and the simulator (`tools/simulator`) use it.

pub mod calls;
mod driver;
pub mod host;
pub mod later;
pub mod memory;
pub mod model;
pub mod operation;
pub mod options;
pub mod outside;
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

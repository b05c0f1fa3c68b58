//! Checks whether a pool behaves like one POSIX file system, from whichever process on whichever
//! node it is used.
//!
//! The checker knows only paths of the pool, nothing of Forebay's inner workings. Several
//! processes, on all nodes, carry out random operations on few files and names at the same time, in
//! short phases with a barrier between them. Each operation is recorded with its result and the
//! times of its beginning and end. After each phase, the checker searches for an order of the
//! operations that gives these results on a model of a POSIX file system.
//!
//! - [`operation`]: the records; [`memory`]: how workers and driver share them; [`calls`]: libc;
//! - [`worker`]: the process that carries out operations; [`theme`]: how operations are chosen;
//!   [`weak`]: broken promises, to test the checker;
//! - [`later`]: files with weaker consistency; [`visible`]: the values that reads of them may
//!   return;
//! - [`outside`]: a pool with an origin, whose files other processes change there;
//! - [`model`] and [`steps`]: the model of the file system; [`search`]: the search for an order;
//!   [`driver`]: phases; [`host`]: processes; [`options`].
//!
//! The program `forebay-check` and the simulator (`tools/simulator`) use this library.

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

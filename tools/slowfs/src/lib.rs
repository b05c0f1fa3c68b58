//! A FUSE file system that shows a directory. It is for tests and measurements, and never
//! installed.
//!
//! Without [`Effects`] it only passes each request on: `forebay-bench` compares Forebay's mounts
//! with it. With them it is an origin for tests: slow, failing, stalled, full or read-only by
//! [`Settings`], which can change while it is mounted. It counts the operations on each file
//! ([`Stats`]).
//!
//! ```text
//! kernel -> passthrough (requests) -> effects (wait, fail, count) -> tree (nodes, open files)
//!                                        ^ control (a socket: settings in, counters out)
//! ```
//!
//! Names and attributes are never cached (timeouts of 0), so that changes in the directory itself
//! are visible at once. There is no lock order, since no thread holds two locks.

mod control;
mod effects;
mod mount;
mod passthrough;
mod settings;
mod stats;
mod tree;

pub use control::{serve, tell};
pub use effects::Effects;
pub use mount::{Options, mount, unmount_lazily, watch};
pub use settings::{Fault, Kind, Settings};
pub use stats::Stats;

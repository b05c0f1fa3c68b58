//! A FUSE file system that shows a directory, for tests and measurements; never installed.
//!
//! Without [`Effects`] it passes each request on and does nothing else: `forebay-bench` measures
//! Forebay's mounts beside it. With them it is an origin to test against: slow, failing, stalled,
//! full or read-only by [`Settings`], which change while it is mounted, and it counts what reaches
//! each file ([`Stats`]).
//!
//! ```text
//! kernel -> passthrough (requests) -> effects (wait, fail, count) -> tree (nodes, open files)
//!                                        ^ control (a socket: settings in, counters out)
//! ```
//!
//! Names and attributes are never cached (timeouts of 0), so that changes of the directory itself
//! show at once. Lock order: none; no thread holds two locks.

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

//! Paths: which of them lead into the pool ([`locate`]), through which links ([`links`]), and how a
//! call that takes a path is served ([`on_path`]).

pub mod exe;
pub mod links;
pub mod locate;
pub mod prefix;
pub mod proc_paths;
mod serving;

pub use serving::*;

//! Processes begin and end: fork and its like, exec, exit. What a process has in the pool goes over
//! to its children and to the programs that it executes.

pub mod environ;
pub mod exec;
pub mod executable;
pub mod exit;
pub mod fork;
pub mod image;
pub mod resume;
pub mod search;
pub mod static_binary_hint;

//! Begin and end of processes: fork, exec, exit. A process's state in the pool is passed on to its
//! children and to the programs that it executes.

pub mod carrier;
pub mod courier;
pub mod courier_note;
pub mod environ;
pub mod exec;
pub mod executable;
pub mod exit;
pub mod fork;
pub mod image;
pub mod inherited;
pub mod resume;
pub mod search;
pub mod static_binary_hint;
pub mod supervisor;
pub mod waits;

//! The system calls that the pool serves, by topic. Each function takes the call's arguments and
//! returns what the kernel would return, or [`forebay_intercept::PASS`] if the kernel is to make
//! the call.

pub mod aio;
pub mod attributes;
pub mod copies;
pub mod credentials;
pub mod cwd;
pub mod fd_table;
pub mod inotify;
pub mod io;
pub mod leases;
pub mod limits;
pub mod loading;
pub mod locks;
pub mod names;
pub mod nodes;
pub mod openat2;
pub mod passing;
pub mod poll;
pub mod refuse;
pub mod seccomp;
pub mod stat;

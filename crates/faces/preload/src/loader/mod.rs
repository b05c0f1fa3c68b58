//! The library begins: what the loader calls, before the program's libraries are there (the
//! instance for auditing) and before its `main`.

pub mod bindings;
pub mod early;
pub mod link_map;
pub mod start;
pub mod static_tls;

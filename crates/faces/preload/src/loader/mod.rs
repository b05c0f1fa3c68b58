//! The start of the library: functions that the loader calls, before the program's libraries are
//! loaded (in the auditing instance) and before the program's `main`.

pub mod bindings;
pub mod early;
pub mod link_map;
pub mod start;
pub mod static_tls;

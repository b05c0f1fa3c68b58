//! Code that concerns the program but doesn't need the pool: the program's memory and environment,
//! the results of its system calls, its signals, and which process's call is served.

pub mod credentials;
pub mod filter;
pub mod hints;
pub mod mask;
pub mod messages;
pub mod own_stack;
pub mod process;
pub mod results;
pub mod settings;
pub mod shared_vm_clones;
pub mod signals;
pub mod size_limit;
pub mod table_change;
pub mod unwinder;
pub mod user;
pub mod variables;

//! Tools for a process that lives inside other programs, and shares memory or files with other
//! processes. This crate knows nothing of pools.
//!
//! Inside a program:
//! - [`critical`]: sections in which no signal handler of the program runs;
//! - [`guard`]: access to memory of the program that may not be mapped;
//! - [`user`]: the buffers of system calls, which lie in such memory;
//! - [`fd`]: descriptors that the program must not see;
//! - [`threads`]: starting threads where memory may be short, and locking mutexes;
//! - [`defect`]: the line that is printed before the process ends because of a bug in Forebay;
//! - [`exec`]: while one thread executes a program, no other takes a process slot;
//! - [`thread_ids`]: the ids by which the kernel judges the calling thread's access to files.
//!
//! Beside other processes:
//! - [`process`]: which process is which, and whether it lives;
//! - [`slots`]: a table of processes in shared memory ([`slots::Table`] gives access to its words);
//! - [`lock`]: locks in shared memory that survive the death of their holder;
//! - [`atomics`]: the atomics that these modules use, real ones or those of the model checker loom.
//!
//! Beside files that others can change:
//! - [`beneath`]: directory trees that no path inside them can leave;
//! - [`untrusted`]: files that are read whole, up to a limit.

pub mod atomics;
pub mod beneath;
pub mod critical;
pub mod defect;
pub mod exec;
pub mod fd;
pub mod guard;
pub mod lock;
pub mod process;
pub mod slots;
pub mod thread_ids;
pub mod threads;
pub mod untrusted;
pub mod user;

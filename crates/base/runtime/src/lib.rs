//! Tools for a process that lives inside other programs, and beside other processes that work on
//! the same memory or the same files. This crate knows nothing of pools.
//!
//! Inside a program:
//! - [`critical`]: sections in which no signal handler of the program runs;
//! - [`guard`]: access to memory of the program that may not be mapped;
//! - [`user`]: the buffers of system calls, which lie in such memory;
//! - [`fd`]: descriptors that the program must not see;
//! - [`threads`]: starting threads where memory may be short;
//! - [`defect`]: what is printed before the process ends because of a defect of ours;
//! - [`exec`]: no other thread takes the process's slot while one executes a program;
//! - [`thread_ids`]: by which ids the kernel judges the calling thread.
//!
//! Beside other processes:
//! - [`process`]: which process is which, and whether it lives;
//! - [`slots`]: a table of processes in shared memory ([`slots::Table`] says where its words lie);
//! - [`lock`]: locks in shared memory that survive the death of their holder;
//! - [`atomics`]: the atomics of all that, real or of the model checker.
//!
//! Beside files that others can change:
//! - [`beneath`]: directory trees in which nothing leads out of them;
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

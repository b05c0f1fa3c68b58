//! What a process needs to live inside other programs, and beside other processes that work on the
//! same memory. This crate knows nothing of pools or files.
//!
//! Inside a program:
//! - [`critical`]: sections in which no signal handler of the program runs;
//! - [`guard`]: access to memory of the program that may not be mapped;
//! - [`user`]: the buffers of system calls, which lie in such memory;
//! - [`fd`]: descriptors that the program must not see;
//! - [`threads`]: starting threads where memory may be short;
//! - [`exec`]: no other thread takes the process's slot while one executes a program.
//!
//! Beside other processes:
//! - [`process`]: which process is which, and whether it lives;
//! - [`slots`]: a table of processes in shared memory ([`slots::Table`] says where its words lie);
//! - [`lock`]: locks in shared memory that survive the death of their holder;
//! - [`atomics`]: the atomics of all that, real or of the model checker.

pub mod atomics;
pub mod critical;
pub mod exec;
pub mod fd;
pub mod guard;
pub mod lock;
pub mod process;
pub mod slots;
pub mod threads;
pub mod user;

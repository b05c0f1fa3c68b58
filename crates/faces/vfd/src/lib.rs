//! The face for HDF5: a virtual file driver, `libforebay_vfd.so`, that an HDF5 library loads at run
//! time (`HDF5_PLUGIN_PATH`, `HDF5_DRIVER=forebay`, or `H5Pset_driver_by_name`).
//!
//! - [`config`]: names of files, and the driver's configuration string. Pure.
//! - [`file`]: an open file, in a pool or outside of all.
//! - [`library`]: the HDF5 library that calls. Nothing is linked: wheels of Python load several
//!   HDF5 libraries into one process, each hidden from the others, so the caller's is found by its
//!   return address.
//! - [`mpi`]: the MPI library that the caller uses, and the ranks that have a file open together.
//! - [`together`]: what such ranks do to a file: one acts, all learn how it ended.
//! - [`pieces`]: transfers of many pieces, as few calls of the pool.
//! - [`driver`]: the table of callbacks, the only code that HDF5 sees.
//!
//! It guarantees: HDF5 ≥ 1.14 and 2.x may use it at the same time in one process; what a write has
//! returned from is seen by the next read of any process, unless the file's controls say otherwise; a
//! file that isn't in a pool is used as the driver `sec2` does; errors come to HDF5's error stack with
//! a sentence. A forked child can't use its parent's files.

pub mod config;
pub mod driver;
pub mod file;
pub mod library;
pub mod mpi;
pub mod pieces;
pub mod together;

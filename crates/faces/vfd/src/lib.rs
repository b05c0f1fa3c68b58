//! The face for HDF5: a virtual file driver, `libforebay_vfd.so`, that an HDF5 library loads at run
//! time (`HDF5_PLUGIN_PATH`, `HDF5_DRIVER=forebay`, or `H5Pset_driver_by_name`).
//!
//! - [`config`]: parsers of file names and of the driver's configuration string.
//! - [`file`]: an open file, in a pool or on the host.
//! - [`library`]: the HDF5 library that calls the driver. The driver links to none: Python wheels
//!   load several HDF5 libraries into one process, each hidden from the others. So the calling
//!   library is found by the call's return address.
//! - [`mpi`]: the MPI library that the caller uses, and the ranks that have a file open together.
//! - [`together`]: operations of such ranks on a file: one rank acts, and all learn the result.
//! - [`pieces`]: transfers of many pieces with few calls of the pool.
//! - [`driver`]: the table of callbacks, the only code that HDF5 calls.
//!
//! Guarantees: several HDF5 libraries, 1.14 and 2.x, can use the driver at the same time in one
//! process. After a write has returned, reads of every process see it, unless the file's controls
//! say otherwise. A file outside of all pools behaves as with the driver `sec2`. HDF5's error stack
//! gets a sentence for each error. A forked child can't use its parent's files.

pub mod config;
pub mod driver;
pub mod file;
pub mod library;
pub mod mpi;
pub mod pieces;
pub mod together;

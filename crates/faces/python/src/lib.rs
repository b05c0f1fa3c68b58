//! The Python face: the native module of the package `forebay`. The rest of the package is in
//! `python/`.
//!
//! - [`files`]: a pool's files by path, for fsspec and for programs ([`files::Pool`]).
//! - [`verbs`]: sessions, workspaces, collections and batches of the crate `forebay-verbs`.
//! - [`chunk`]: memory of the pool, by Python's buffer protocol.
//! - [`bytes`]: memory of Python objects; all unsafe code, except the buffer protocol's methods in
//!   `chunk`.
//!
//! Guarantees: every call releases the interpreter's lock while it waits or copies. Errors are
//! `OSError` (so `FileNotFoundError`, ...) with an errno and a sentence. Using a closed handle, or
//! a parent's handle in a forked child, raises an exception. Memory that Python can access stays
//! mapped as long as Python can access it. Importing the module in a subinterpreter fails.

mod bytes;
mod chunk;
mod error;
mod files;
mod verbs;

use pyo3::prelude::*;

/// Native part of the package `forebay`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::chunk::{Buffer, Chunk};
    #[pymodule_export]
    use crate::files::{File, Pool};
    #[pymodule_export]
    use crate::verbs::{Batch, Collection, Record, Running, Session, Workspace, check_controls};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::bytes::check_interpreter()?;
        forebay_runtime::defect::report();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

//! The Python face: what `import forebay` calls. The package around it is in `python/`.
//!
//! - [`files`]: a pool's files by path, for fsspec and for programs ([`files::Pool`]).
//! - [`verbs`]: sessions, workspaces, collections, batches: the verbs of `forebay-verbs`.
//! - [`chunk`]: bytes of the pool under an address, by Python's buffer protocol.
//! - [`bytes`]: memory of Python objects, the only unsafe code.
//!
//! It guarantees: every call releases the interpreter's lock while it waits or copies; errors are
//! `OSError` (and so `FileNotFoundError`, ...) with an errno and a sentence; a closed handle, or one of
//! the parent in a forked child, is an exception; memory that Python can see stays mapped as long
//! as Python can see it. Subinterpreters are refused at import.

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

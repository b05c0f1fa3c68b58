//! Memory of the pool in this process: [`Chunk`] for a range of a collection, [`Buffer`] for new
//! memory in the pool. Both have Python's buffer protocol: `memoryview(chunk)` and
//! `numpy.frombuffer(chunk)` don't copy.
//!
//! A Python view keeps the memory mapped: `close` raises BufferError while a view exists, as with
//! `mmap.mmap`. Some libraries keep the object and the address but release the view
//! (`torch.frombuffer`). So closed memory that ever had a view stays mapped until its object is
//! freed, and no library's address becomes invalid. A forked child doesn't have the memory:
//! accessing it ends the child, and new views fail with EPERM.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "what pyo3's macros make around the buffer protocol has no unsafe blocks"
)]

use crate::bytes::export;
use crate::error::{closed, raise};
use forebay_iov::chunk;
use forebay_runtime::threads::lock;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Mapped memory, and the number of its Python views.
pub struct Memory {
    chunk: Mutex<Option<chunk::Chunk>>,
    closed: AtomicBool,
    views: AtomicUsize,
    /// Whether there has been a view: a program may still have the address.
    was_viewed: AtomicBool,
    readonly: bool,
}

impl Memory {
    pub fn new(chunk: chunk::Chunk, readonly: bool) -> Memory {
        Memory {
            chunk: Mutex::new(Some(chunk)),
            closed: AtomicBool::new(false),
            views: AtomicUsize::new(0),
            was_viewed: AtomicBool::new(false),
            readonly,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&chunk::Chunk) -> PyResult<T>) -> PyResult<T> {
        let chunk = lock(&self.chunk);
        let open = chunk.as_ref().filter(|_| !self.closed.load(Acquire));
        f(open.ok_or_else(|| closed("memory"))?)
    }

    fn len(&self) -> PyResult<usize> {
        self.with(|c| Ok(c.len()))
    }

    fn token(&self) -> PyResult<Vec<u8>> {
        self.with(|c| Ok(c.share().map_err(raise)?.0.to_vec()))
    }

    fn close(&self) -> PyResult<()> {
        let mut chunk = lock(&self.chunk);
        let views = self.views.load(Acquire);
        if views > 0 {
            let text = format!("{views} views of this memory are still in use");
            return Err(PyBufferError::new_err(text));
        }
        self.closed.store(true, Release);
        if !self.was_viewed.load(Acquire) {
            drop(chunk.take());
        }
        Ok(())
    }

    /// Fills in `view` with this memory, and counts the view.
    ///
    /// # Safety
    /// `view` comes from Python, for this request, and `owner` owns this memory.
    unsafe fn export(
        &self,
        owner: Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        self.with(|c| {
            // Fails in a forked child, which doesn't have the memory.
            c.share().map_err(raise)?;
            // SAFETY: the memory is mapped until `owner` is dropped, to which the view has a
            // reference.
            unsafe { export(owner, view, flags, (c.address(), c.len()), self.readonly)? };
            self.views.fetch_add(1, AcqRel);
            self.was_viewed.store(true, Release);
            Ok(())
        })
    }

    fn release(&self) {
        self.views.fetch_sub(1, AcqRel);
    }
}

/// Makes a tensor by numpy: a program that uses tensors has numpy.
fn tensor<'py>(
    memory: &Bound<'py, PyAny>,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = memory.py().import("numpy")?;
    let array = numpy.call_method1("frombuffer", (memory, "u1"))?;
    array.call_method("__dlpack__", (), options.as_ref())
}

macro_rules! python_memory {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[pyclass(frozen, weakref, module = "forebay")]
        pub struct $name(pub Memory);

        #[pymethods]
        impl $name {
            fn __len__(&self) -> PyResult<usize> {
                self.0.len()
            }

            /// Whether writing through the memory is forbidden.
            #[getter]
            fn readonly(&self) -> bool {
                self.0.readonly
            }

            /// A token of 48 bytes that names the memory to other processes of this node, for
            /// `Session.attach_chunk`.
            fn token(&self) -> PyResult<Vec<u8>> {
                self.0.token()
            }

            /// Closes the memory: no new views. BufferError while views of it are in use. It is
            /// unmapped at once if it never had a view, else when the last reference to this object
            /// is dropped.
            fn close(&self) -> PyResult<()> {
                self.0.close()
            }

            /// Returns the memory as a tensor of bytes (DLPack). BufferError for read-only memory.
            #[pyo3(signature = (**options))]
            fn __dlpack__<'py>(
                slf: Bound<'py, Self>,
                options: Option<Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                tensor(slf.as_any(), options)
            }

            /// Returns DLPack's device: the processor's memory.
            fn __dlpack_device__(&self) -> (i32, i32) {
                (1, 0)
            }

            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __exit__(
                &self,
                _kind: &Bound<'_, PyAny>,
                _value: &Bound<'_, PyAny>,
                _trace: &Bound<'_, PyAny>,
            ) -> PyResult<()> {
                self.0.close()
            }

            /// # Safety
            /// Only the interpreter calls it, with a view for its request.
            unsafe fn __getbuffer__(
                slf: Bound<'_, Self>,
                view: *mut ffi::Py_buffer,
                flags: c_int,
            ) -> PyResult<()> {
                let memory = slf.clone();
                // SAFETY: the interpreter passes a view for its request, and `slf` owns the memory.
                unsafe { memory.get().0.export(slf.into_any(), view, flags) }
            }

            /// # Safety
            /// Only the interpreter calls it, once for each view.
            unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
                self.0.release();
            }
        }
    };
}

python_memory! {
    /// A range of a collection's bytes mapped into this process's memory, without a copy.
    Chunk
}

python_memory! {
    /// New zeroed memory in the pool. Other processes of the node can map it, too.
    Buffer
}

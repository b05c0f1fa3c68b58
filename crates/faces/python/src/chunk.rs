//! Bytes of the pool under an address: [`Chunk`] for a range of a collection, [`Buffer`] for new
//! memory in the pool. Both have Python's buffer protocol: `memoryview(chunk)`,
//! `numpy.frombuffer(chunk)`, without a copy.
//!
//! A view of Python keeps the memory mapped: `close` is a BufferError while there is one, as for
//! `mmap.mmap`. Some libraries keep the object and the address but give the view back
//! (`torch.frombuffer`), so memory that was ever viewed is closed, and stays mapped until its
//! object goes: what they have is never an address without memory. A forked child doesn't have the
//! memory (touching it there ends the child), so it can make no new views: EPERM.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "what pyo3's macros make around the buffer protocol has no unsafe blocks"
)]

use crate::bytes::export;
use crate::error::{closed, raise};
use forebay_iov::chunk;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Memory that is mapped, and how many views of it Python has.
pub struct Memory {
    chunk: Mutex<Option<chunk::Chunk>>,
    closed: AtomicBool,
    views: AtomicUsize,
    /// There has been a view: a program may still have the address.
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
        let chunk = self.chunk.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut chunk = self.chunk.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// # Safety
    /// `view` is Python's, for this request, and `owner` owns this memory.
    unsafe fn export(
        &self,
        owner: Bound<'_, PyAny>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        self.with(|c| {
            // Refused in a forked child, which doesn't have the memory.
            c.share().map_err(raise)?;
            // SAFETY: mapped until the owner is dropped, which the view keeps.
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

/// numpy makes the tensor: a program that wants one has numpy.
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

            /// Whether it can't be written through.
            #[getter]
            fn readonly(&self) -> bool {
                self.0.readonly
            }

            /// 48 bytes that name it to other processes of this node: `Session.attach_chunk`.
            fn token(&self) -> PyResult<Vec<u8>> {
                self.0.token()
            }

            /// Closes it: no new views. BufferError while views of it are in use. It is unmapped at
            /// once if it never had a view, else when the last reference to this object goes.
            fn close(&self) -> PyResult<()> {
                self.0.close()
            }

            /// As a tensor of bytes (DLPack). BufferError for memory that is only read.
            #[pyo3(signature = (**options))]
            fn __dlpack__<'py>(
                slf: Bound<'py, Self>,
                options: Option<Bound<'py, PyDict>>,
            ) -> PyResult<Bound<'py, PyAny>> {
                tensor(slf.as_any(), options)
            }

            /// In the memory of the processor.
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
            /// Only the interpreter calls it, for a request of its own.
            unsafe fn __getbuffer__(
                slf: Bound<'_, Self>,
                view: *mut ffi::Py_buffer,
                flags: c_int,
            ) -> PyResult<()> {
                let memory = slf.clone();
                // SAFETY: as the interpreter promises.
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
    /// A range of a collection's bytes in this process's memory, without a copy.
    Chunk
}

python_memory! {
    /// New memory in the pool, of zeros; other processes of the node can map it, too.
    Buffer
}

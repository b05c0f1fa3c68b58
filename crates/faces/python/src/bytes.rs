//! Memory of Python objects: the buffer protocol, from both sides.
//!
//! [`Borrowed`] is the memory of an object that a caller passes (bytes, bytearray, memoryview, an
//! array): contiguous, of any element type. The object keeps it in place until `Borrowed` is
//! dropped; dropping takes the interpreter's lock. Python lets several threads use a writable
//! buffer at once, so its bytes may change while they are read: they are only ever copied, never
//! looked at as a Rust value.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::mem::MaybeUninit;

/// See the module.
pub struct Borrowed(Box<ffi::Py_buffer>);

// SAFETY: the view is released with the interpreter's lock held, whichever thread drops it, and its
// memory stays in place until then.
unsafe impl Send for Borrowed {}
// SAFETY: a shared one is only read.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// The memory of `object`; writable if `writable`.
    ///
    /// # Errors
    /// TypeError if it has none; BufferError if it isn't contiguous, or read-only where it must be
    /// written.
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Borrowed> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        let flags = if writable {
            ffi::PyBUF_WRITABLE
        } else {
            ffi::PyBUF_SIMPLE
        };
        // SAFETY: the interpreter's lock is held (`Bound`), and the view is room for one.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if failed != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled by the call.
        let view = unsafe { view.assume_init() };
        if view.len < 0 || (view.buf.is_null() && view.len > 0) {
            return Err(PyBufferError::new_err("this object's memory can't be used"));
        }
        Ok(Borrowed(view))
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: `len` bytes at `buf`, kept in place by the view. Changes by other threads while
        // they are copied are the program's own race, as for all of Python's buffers.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.len()) }
    }
}

impl AsMut<[u8]> for Borrowed {
    fn as_mut(&mut self) -> &mut [u8] {
        assert!(self.0.readonly == 0, "asked for as writable");
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as above, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), self.len()) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // A batch that outlives the interpreter keeps the memory until the process ends.
        Python::try_attach(|_| {
            // SAFETY: the view was filled by PyObject_GetBuffer, is released once, and the
            // interpreter's lock is held.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}

/// Refuses subinterpreters: all interpreters of a process share its open pools.
///
/// # Errors
/// ImportError in an interpreter that isn't the first.
pub fn check_interpreter() -> PyResult<()> {
    // SAFETY: called while a module is made, so with the lock of the running interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(pyo3::exceptions::PyImportError::new_err(
            "forebay can't be used in subinterpreters: use threads or processes",
        )),
    }
}

/// New `bytes` of this length, filled by `fill`, which returns the number of bytes filled.
///
/// # Errors
/// MemoryError; the errors of `fill`.
pub fn filled<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> PyResult<usize> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| {
        pyo3::exceptions::PyOverflowError::new_err("more bytes than fit into memory")
    })?;
    // SAFETY: a new object of `size` bytes, or an error.
    let object = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size))?
    };
    // SAFETY: the object's bytes, which nobody else has seen yet; Python's zeroing isn't needed
    // because `done` bytes are filled and no more are kept.
    let memory = unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>();
        std::slice::from_raw_parts_mut(start, len)
    };
    let done = fill_detached(py, memory, fill)?;
    if done == len {
        return Ok(object);
    }
    let short: &[u8] = &memory[..done.min(len)];
    Ok(pyo3::types::PyBytes::new(py, short).into_any())
}

fn fill_detached(
    py: Python<'_>,
    memory: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> PyResult<usize> + Send,
) -> PyResult<usize> {
    py.detach(|| fill(memory))
}

/// Fills in the answer to a request for memory that `owner` has and keeps mapped.
///
/// # Safety
/// `view` is Python's, for this request; `address` has `len` bytes, and stays so until the view is
/// released; they are writable unless `readonly`.
pub unsafe fn export(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: std::ffi::c_int,
    (address, len): (*mut u8, usize),
    readonly: bool,
) -> PyResult<()> {
    // SAFETY: as the caller promises; the call keeps a reference to the owner in the view.
    let failed = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            address.cast(),
            len as ffi::Py_ssize_t,
            readonly.into(),
            flags,
        )
    };
    match failed {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

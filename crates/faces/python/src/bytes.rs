//! Memory of Python objects: both sides of the buffer protocol.
//!
//! [`Borrowed`] is the memory of an object that a caller passes (bytes, bytearray, memoryview, an
//! array): contiguous, of any element type. The object keeps the memory in place until `Borrowed`
//! is dropped; dropping takes the interpreter's lock. Python lets several threads use a writable
//! buffer at once, so its bytes may change while they are read. So the bytes are only copied, never
//! interpreted as Rust values.

use forebay_runtime::user::UserSliceMut;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::mem::MaybeUninit;

/// The memory of a Python object; see the module's documentation.
pub struct Borrowed(Box<ffi::Py_buffer>);

// SAFETY: the view is released with the interpreter's lock held, whichever thread drops it, and its
// memory stays in place until then.
unsafe impl Send for Borrowed {}
// SAFETY: through a shared reference, the memory is only read.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Returns the memory of `object`, writable if `writable` is true.
    ///
    /// # Errors
    /// TypeError if the object has no buffer; BufferError if it isn't contiguous, or is read-only
    /// and `writable` is true.
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Borrowed> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        let flags = if writable {
            ffi::PyBUF_WRITABLE
        } else {
            ffi::PyBUF_SIMPLE
        };
        // SAFETY: the interpreter's lock is held (`Bound`), and `view` has room for a Py_buffer.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) };
        if failed != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: PyObject_GetBuffer has filled `view`.
        let view = unsafe { view.assume_init() };
        if view.len < 0 || (view.buf.is_null() && view.len > 0) {
            return Err(PyBufferError::new_err("this object's memory can't be used"));
        }
        Ok(Borrowed(view))
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len as usize
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the object has `len` bytes at `buf`, and the view keeps them in place. If other
        // threads change bytes while they are copied, that is the program's race, as with all
        // Python buffers.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.len()) }
    }
}

impl AsMut<[u8]> for Borrowed {
    fn as_mut(&mut self) -> &mut [u8] {
        assert!(self.0.readonly == 0, "asked for as writable");
        if self.len() == 0 {
            return &mut [];
        }
        // SAFETY: as for `as_ref`, and the view is writable.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast(), self.len()) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // If the interpreter has ended before the batch that uses the view, the view isn't
        // released.
        Python::try_attach(|_| {
            // SAFETY: the view was filled by PyObject_GetBuffer, is released once, and the
            // interpreter's lock is held.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}

/// Refuses subinterpreters, since all interpreters of a process share its open pools.
///
/// # Errors
/// ImportError in an interpreter other than the main one.
pub fn check_interpreter() -> PyResult<()> {
    // SAFETY: called during the module's initialisation, with the interpreter's lock held.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(pyo3::exceptions::PyImportError::new_err(
            "forebay can't be used in subinterpreters: use threads or processes",
        )),
    }
}

/// Memory of a new object; the memory is to be filled. Its bytes aren't initialised, so no
/// reference to them is made.
pub struct Unfilled {
    at: *mut u8,
    len: usize,
}

// SAFETY: no other code has a reference to the object yet.
unsafe impl Send for Unfilled {}

impl Unfilled {
    /// Returns the bytes from `done` on, to be written.
    pub fn rest(&mut self, done: usize) -> UserSliceMut<'_> {
        let done = done.min(self.len);
        // SAFETY: `done` is at most `len`, so the range is in the object. The result borrows
        // `self`, so no other code uses these bytes meanwhile.
        unsafe { UserSliceMut::new(self.at.add(done), self.len - done) }
    }

    /// Returns all bytes, after they have been set to zero.
    pub fn zeroed(&mut self) -> &mut [u8] {
        // SAFETY: the object has `len` bytes, and all of them are initialised before the reference
        // is made.
        unsafe {
            std::ptr::write_bytes(self.at, 0, self.len);
            std::slice::from_raw_parts_mut(self.at, self.len)
        }
    }
}

/// Returns new `bytes` of up to `len` bytes. `fill` fills them from the beginning and returns the
/// number of bytes filled.
///
/// # Errors
/// MemoryError; the errors of `fill`.
pub fn filled<'py>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut Unfilled) -> PyResult<usize> + Send,
) -> PyResult<Bound<'py, PyAny>> {
    let size = ffi::Py_ssize_t::try_from(len).map_err(|_| {
        pyo3::exceptions::PyOverflowError::new_err("more bytes than fit into memory")
    })?;
    // SAFETY: the interpreter's lock is held (`py`). With null, Python makes an object of `size`
    // bytes and copies nothing.
    let object = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size))?
    };
    // SAFETY: `object` is of Python's type `bytes`.
    let at = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast::<u8>();
    let mut memory = Unfilled { at, len };
    let done = py.detach(|| fill(&mut memory))?;
    if done == len {
        return Ok(object);
    }
    // SAFETY: `fill` has filled the first `done` bytes.
    let short = unsafe { std::slice::from_raw_parts(at, done.min(len)) };
    Ok(pyo3::types::PyBytes::new(py, short).into_any())
}

/// Fills in `view` with memory that `owner` keeps mapped.
///
/// # Safety
/// `view` comes from Python, for this request. `address` has `len` bytes, which stay mapped until
/// the view is released; they are writable unless `readonly`.
pub unsafe fn export(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: std::ffi::c_int,
    (address, len): (*mut u8, usize),
    readonly: bool,
) -> PyResult<()> {
    // SAFETY: the caller promises that `view` comes from Python, and that `address` has `len`
    // bytes. The call stores a reference to the owner in the view.
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

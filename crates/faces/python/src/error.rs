//! Converts errors of Forebay to Python exceptions.

use forebay_iov::Errno;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// Returns `OSError(errno, sentence)`. Python makes it the fitting subclass, such as
/// `FileNotFoundError`.
pub fn raise(error: forebay_iov::Error) -> PyErr {
    PyOSError::new_err((error.errno().raw_os_error(), error.to_string()))
}

/// As [`raise`], for an error of a file system call on `path`; the exception also has the path.
pub fn raise_of(errno: Errno, path: &str) -> PyErr {
    let words = std::io::Error::from(errno).to_string();
    let words = words
        .split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned();
    PyOSError::new_err((errno.raw_os_error(), words, path.to_owned()))
}

/// Returns EBADF for a handle that was closed.
pub fn closed(what: &str) -> PyErr {
    let text = format!("this {what} is closed");
    PyOSError::new_err((Errno::BADF.raw_os_error(), text))
}

//! The C interface of `include/forebay/iov.h`, which documents its functions. The functions here
//! convert handles, texts and memory to arguments of the Rust functions, and errors to numbers.
//!
//! Handles are boxes. Passing an invalid or closed handle is undefined behaviour, as in any C
//! library; null gives EINVAL. The header's rules for arguments are the promise that the comments on
//! `unsafe` blocks mention.

mod batches;
mod bytes;
mod collections;
mod memory;
mod records;
mod sessions;

use crate::abi;
use crate::{Change, Error, Meta, Result};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Stores the error's text for this thread, and returns the negative errno.
fn record(error: &Error) -> i64 {
    let text: String = error.to_string().replace('\0', "\u{fffd}");
    let text = CString::new(text).unwrap_or_default();
    // Fails only while the thread ends; the text isn't needed then.
    let _ = ERROR.try_with(|last| *last.borrow_mut() = text);
    -i64::from(error.errno().raw_os_error())
}

/// Calls a function, and returns its result as C sees it: a number, or a negative errno.
fn number(function: impl FnOnce() -> Result<i64>) -> i64 {
    function().unwrap_or_else(|error| record(&error))
}

/// Calls a function without a number, and returns its result: 0, or a negative errno.
fn code(function: impl FnOnce() -> Result<()>) -> c_int {
    function().map_or_else(|error| record(&error) as c_int, |()| 0)
}

/// Returns the object behind a handle or pointer.
///
/// # Safety
/// `at` is null, or valid and not used by anything else while the reference lives.
unsafe fn place<'a, T>(at: *mut T, what: &str) -> Result<&'a mut T> {
    // SAFETY: the caller promises that `at` is null, or valid and not used by anything else.
    unsafe { at.as_mut() }.ok_or_else(|| Error::invalid(format!("{what} is NULL")))
}

/// Returns the object behind a handle that other threads may use, too.
///
/// # Safety
/// `at` is null, or valid.
unsafe fn handle<'a, T>(at: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller promises that `at` is null or valid.
    unsafe { at.as_ref() }.ok_or_else(|| Error::invalid(format!("the {what} is NULL")))
}

/// Returns the text at `at`.
///
/// # Safety
/// `at` is null, or a text that ends with NUL.
unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str> {
    if at.is_null() {
        return Err(Error::invalid(format!("the {what} is NULL")));
    }
    // SAFETY: `at` isn't null, so the caller promises a text that ends with NUL.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| {
        Error::invalid(format!(
            "the {what} is no UTF-8: {}",
            text.to_string_lossy()
        ))
    })
}

/// Returns the text at `at`; `default` for null.
///
/// # Safety
/// As for [`text`].
unsafe fn text_or<'a>(at: *const c_char, what: &str, default: &'a str) -> Result<&'a str> {
    if at.is_null() {
        Ok(default)
    } else {
        // SAFETY: `at` isn't null, so the caller promises a text that ends with NUL.
        unsafe { text(at, what) }
    }
}

/// Reads changes of metadata. A pair without a value removes its key.
///
/// # Safety
/// `at` points to `count` pairs of texts that end with NUL; or `count` is 0.
unsafe fn changes(at: *const abi::Pair, count: usize) -> Result<Vec<Change>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: `count` isn't 0, so the caller promises that `at` points to pairs.
    let first = unsafe { handle(at, "metadata")? };
    // SAFETY: the caller promises that `count` pairs are at `at`, which isn't null.
    let pairs = unsafe { std::slice::from_raw_parts(first, count) };
    let change = |pair: &abi::Pair| {
        // SAFETY: the caller promises that a pair's texts end with NUL.
        let key = unsafe { text(pair.key, "key")? };
        let value = if pair.value.is_null() {
            None
        } else {
            // SAFETY: the caller promises that a pair's texts end with NUL; `value` isn't null.
            Some(unsafe { text(pair.value, "value")? }.to_owned())
        };
        Ok((key.to_owned(), value))
    };
    pairs.iter().map(change).collect()
}

/// Reads metadata, in which every key has a value.
///
/// # Safety
/// As for [`changes`].
unsafe fn meta(at: *const abi::Pair, count: usize) -> Result<Meta> {
    // SAFETY: the caller promises what `changes` demands.
    let changes = unsafe { changes(at, count)? };
    let pair = |(key, value): Change| match value {
        Some(value) => Ok((key, value)),
        None => Err(Error::invalid(format!("the value of '{key}' is NULL"))),
    };
    changes.into_iter().map(pair).collect()
}

/// Returns the version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn iov_abi() -> u32 {
    abi::ABI
}

/// Returns the text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn iov_error() -> *const c_char {
    let last = ERROR.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(c"".as_ptr())
}

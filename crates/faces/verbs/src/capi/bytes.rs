//! The C functions for the bytes of open collections. Each carries out its verb at once, or adds it
//! to a batch.

use super::batches::Collected;
use super::collections::now_or_later;
use super::{handle, number};
use crate::{Collection, Error, Result};
use std::ffi::c_void;

/// The caller's memory, valid until the batch has ended.
#[derive(Clone, Copy)]
struct Bytes(*mut u8, usize);

// SAFETY: the header demands that the caller doesn't use the memory until the batch has ended, so
// only one thread at a time accesses it.
unsafe impl Send for Bytes {}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `bytes` has checked that the pointer isn't null; the header demands that it
        // refers to this many bytes until the batch has ended.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl AsMut<[u8]> for Bytes {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }
}

fn bytes(at: *mut c_void, len: usize) -> Result<Bytes> {
    match (at.is_null(), len) {
        (_, 0) => Ok(Bytes(std::ptr::NonNull::dangling().as_ptr(), 0)),
        (true, _) => Err(Error::invalid(format!("the memory of {len} bytes is NULL"))),
        (false, _) if len > isize::MAX as usize => Err(Error::invalid(format!(
            "{len} bytes are more than memory can hold"
        ))),
        _ => Ok(Bytes(at.cast(), len)),
    }
}

fn signed(n: u64) -> Result<i64> {
    i64::try_from(n)
        .map_err(|_| Error::of("a number of the back end's", rustix::io::Errno::OVERFLOW))
}

/// Reads a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_read(
    collection: *const Collection,
    to: *mut c_void,
    len: usize,
    at: u64,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let collection = handle(collection, "collection")?;
        let mut to = bytes(to, len)?;
        match batch.as_ref() {
            None => Ok(collection.read(to.as_mut(), at)? as i64),
            Some(batch) => batch.add(|b| b.read_into(collection, at, to)),
        }
    })
}

/// Writes a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_write(
    collection: *const Collection,
    from: *const c_void,
    len: usize,
    at: u64,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let c = handle(collection, "collection")?;
        let from = bytes(from.cast_mut(), len)?;
        let now = || c.write(from.as_ref(), at).map(|()| 0);
        now_or_later(batch, now, |b| b.write(c, at, from))
    })
}

/// Appends a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_append(
    collection: *const Collection,
    from: *const c_void,
    len: usize,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let c = handle(collection, "collection")?;
        let from = bytes(from.cast_mut(), len)?;
        let now = || c.append(from.as_ref()).and_then(signed);
        now_or_later(batch, now, |b| b.append(c, from))
    })
}

/// Sets the size of a collection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_truncate(
    collection: *const Collection,
    size: u64,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let c = handle(collection, "collection")?;
        let now = || c.truncate(size).map(|()| 0);
        now_or_later(batch, now, |b| b.truncate(c, size))
    })
}

/// Makes written bytes durable, as fsync(2) does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_sync(collection: *const Collection, batch: *const Collected) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let c = handle(collection, "collection")?;
        now_or_later(batch, || c.sync().map(|()| 0), |b| b.sync(c))
    })
}

/// Copies a chunk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_copy(
    from: *const Collection,
    at: u64,
    len: u64,
    to: *const Collection,
    to_at: u64,
    batch: *const Collected,
) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe {
        let (from, to) = (handle(from, "collection")?, handle(to, "other collection")?);
        let now = || from.copy(at, len, to, to_at).and_then(signed);
        now_or_later(batch, now, |b| b.copy(from, (at, len), to, to_at))
    })
}

/// Returns the size of a collection in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iov_size(collection: *const Collection) -> i64 {
    // SAFETY: the caller's promise.
    number(|| unsafe { signed(handle(collection, "collection")?.size()?) })
}

//! Buffers of system calls: memory of the program, or of a caller that acts for it.
//!
//! The rules for such memory, which [`UserSlice`] and [`UserSliceMut`] keep:
//! - it may be unmapped, read-only, or vanish at any moment. So the memory is accessed only by
//!   copies under the fault guard ([`guard`]); a fault gives EFAULT. Bytes that were copied before
//!   the fault stay copied;
//! - other threads of the program may change it meanwhile. So no reference to it is ever made, and
//!   nothing is read twice;
//! - it may be a slice of Forebay's own, which stays borrowed while the value exists.
//!
//! Each type is an address and a length, and is passed in two registers. Layers below `posix` still
//! take address and length separately ([`UserSlice::address`]): these layers copy themselves, under
//! the same guard.

use crate::guard;
use rustix::io::{Errno, Result};
use std::marker::PhantomData;

/// A buffer that the system call reads from.
#[derive(Clone, Copy, Debug)]
pub struct UserSlice<'a> {
    at: *const u8,
    len: usize,
    borrowed: PhantomData<&'a [u8]>,
}

/// A buffer that the system call writes to. A copy of this value names the same bytes: the owner of
/// the bytes decides which thread may write them.
#[derive(Clone, Copy, Debug)]
pub struct UserSliceMut<'a> {
    at: *mut u8,
    len: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a [u8]> for UserSlice<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: the slice borrows the bytes for `'a`.
        unsafe { UserSlice::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for UserSliceMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the slice borrows the bytes for writing, for `'a`.
        unsafe { UserSliceMut::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl<'a> UserSlice<'a> {
    /// Returns the `len` bytes at address `at`.
    ///
    /// # Safety
    /// The bytes are the program's, which passed them to be read, or are borrowed from the caller
    /// for `'a`. They may be unmapped.
    #[inline]
    pub unsafe fn new(at: *const u8, len: usize) -> UserSlice<'a> {
        UserSlice {
            at,
            len,
            borrowed: PhantomData,
        }
    }

    #[inline]
    pub fn address(self) -> *const u8 {
        self.at
    }

    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the first `len` bytes, or all if the buffer isn't longer.
    #[inline]
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        UserSlice {
            len: self.len.min(len),
            ..self
        }
    }

    /// Returns all but the first `len` bytes; none if the buffer isn't longer.
    #[inline]
    #[must_use]
    pub fn behind(self, len: usize) -> Self {
        let len = self.len.min(len);
        UserSlice {
            at: self.at.wrapping_add(len),
            len: self.len - len,
            ..self
        }
    }

    /// Appends the buffer's bytes to a vector.
    ///
    /// # Errors
    /// EFAULT if the memory isn't all mapped: the vector is unchanged then.
    pub fn append_to(self, to: &mut Vec<u8>) -> Result<()> {
        to.reserve(self.len);
        let end = to.len();
        // SAFETY: the vector has room for `len` bytes behind its end, and no reference to them
        // exists; the rest is promised by the rules of the type.
        unsafe {
            if !guard::copy(self.at, to.as_mut_ptr().add(end), self.len) {
                return Err(Errno::FAULT);
            }
            to.set_len(end + self.len);
        }
        Ok(())
    }
}

impl<'a> UserSliceMut<'a> {
    /// Returns the `len` bytes at address `at`.
    ///
    /// # Safety
    /// The bytes are the program's, which passed them to be written, or are borrowed from the
    /// caller for `'a`: no reference to them is alive. They may be unmapped.
    #[inline]
    pub unsafe fn new(at: *mut u8, len: usize) -> UserSliceMut<'a> {
        UserSliceMut {
            at,
            len,
            borrowed: PhantomData,
        }
    }

    #[inline]
    pub fn address(self) -> *mut u8 {
        self.at
    }

    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the first `len` bytes, or all if the buffer isn't longer.
    #[inline]
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        UserSliceMut {
            len: self.len.min(len),
            ..self
        }
    }

    /// Returns the same bytes as a buffer to read from.
    #[inline]
    pub fn as_input(self) -> UserSlice<'a> {
        // SAFETY: a thread that may write the bytes may read them.
        unsafe { UserSlice::new(self.at, self.len) }
    }

    /// Copies `bytes` to the beginning of the buffer.
    ///
    /// # Errors
    /// EFAULT if the memory isn't all mapped: some of the bytes may have been written.
    ///
    /// # Panics
    /// If the buffer is shorter than `bytes`.
    pub fn copy_from(self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.len);
        // SAFETY: `self.at` has room for `self.len` bytes (the type's promise), and may be
        // unmapped.
        if unsafe { guard::copy(bytes.as_ptr(), self.at, bytes.len()) } {
            Ok(())
        } else {
            Err(Errno::FAULT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parts() {
        let bytes: Vec<u8> = (0..10).collect();
        let all = UserSlice::from(&bytes[..]);
        let mut read = Vec::new();
        for part in [all.first(3), all.behind(3), all.behind(11), all.first(11)] {
            part.append_to(&mut read).unwrap();
        }
        assert_eq!(read, [&bytes[..], &bytes[..]].concat());
        let mut to = [0; 4];
        UserSliceMut::from(&mut to[..])
            .first(2)
            .copy_from(&[7, 8])
            .unwrap();
        assert_eq!(to, [7, 8, 0, 0]);
    }
}

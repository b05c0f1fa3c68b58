//! Memory of the program that a system call names: a buffer that the program passed, or a buffer of
//! a caller that acts for it.
//!
//! The rules of such memory, which [`UserSlice`] and [`UserSliceMut`] keep:
//! - it may be unmapped, read-only, or vanish at any moment. It is touched under the fault guard
//!   ([`guard`]) alone, by copy, and EFAULT says that it isn't there. Bytes that were copied before
//!   the fault stay copied;
//! - the program may change it meanwhile, from other threads. So no reference to it is ever made,
//!   and nothing that was read is read a second time;
//! - it may be a slice of this process's own, which is borrowed for as long.
//!
//! Both are an address and a length, and are passed in two registers. Layers below `posix` still
//! take the two apart ([`UserSlice::address`]): they copy themselves, under the same guard.

use crate::guard;
use rustix::io::{Errno, Result};
use std::marker::PhantomData;

/// Bytes that are read.
#[derive(Clone, Copy, Debug)]
pub struct UserSlice<'a> {
    at: *const u8,
    len: usize,
    borrowed: PhantomData<&'a [u8]>,
}

/// Bytes that are written. A copy of this value names the same bytes: whoever owns the bytes
/// decides which thread may write them.
#[derive(Clone, Copy, Debug)]
pub struct UserSliceMut<'a> {
    at: *mut u8,
    len: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> From<&'a [u8]> for UserSlice<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: borrowed, so the bytes don't change.
        unsafe { UserSlice::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for UserSliceMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        // SAFETY: borrowed for writing.
        unsafe { UserSliceMut::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl<'a> UserSlice<'a> {
    /// The bytes at an address.
    ///
    /// # Safety
    /// The bytes are the program's, which passed them to be read, or the caller's for `'a`. They
    /// needn't be there.
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

    /// Its first `len` bytes, or all if it isn't longer.
    #[inline]
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        UserSlice {
            len: self.len.min(len),
            ..self
        }
    }

    /// All but the first `len` bytes; none if it isn't longer.
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

    /// Adds its bytes to a vector.
    ///
    /// # Errors
    /// EFAULT if the memory isn't all mapped: the vector is unchanged then.
    pub fn append_to(self, to: &mut Vec<u8>) -> Result<()> {
        to.reserve(self.len);
        let end = to.len();
        // SAFETY: there is room, to which there is no reference; the rules of the type.
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
    /// The bytes at an address.
    ///
    /// # Safety
    /// The bytes are the program's, which passed them to be written, or the caller's for `'a`: no
    /// reference to them is alive. They needn't be there.
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

    /// Its first `len` bytes, or all if it isn't longer.
    #[inline]
    #[must_use]
    pub fn first(self, len: usize) -> Self {
        UserSliceMut {
            len: self.len.min(len),
            ..self
        }
    }

    /// The same bytes, as input (read only).
    #[inline]
    pub fn as_input(self) -> UserSlice<'a> {
        // SAFETY: a thread that may write the bytes may read them.
        unsafe { UserSlice::new(self.at, self.len) }
    }

    /// Copies `bytes` to its beginning.
    ///
    /// # Errors
    /// EFAULT if the memory isn't all mapped: some of the bytes may have been written.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn copy_from(self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= self.len);
        // SAFETY: the rules of the type.
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

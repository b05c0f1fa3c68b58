//! Access to the program's memory that the arguments of a system call point to. That memory may be
//! unmapped, and may change at any moment. So such memory is copied under the fault guard, and a
//! bad address gives EFAULT.

use crate::program::results;
use forebay_posix::Errno;
use forebay_runtime::guard;
use forebay_runtime::user::{UserSlice, UserSliceMut};
use forebay_store::PAGE;
use forebay_store::process::Critical;
use rustix::fd::BorrowedFd;
use std::borrow::Cow;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Upper end of the addresses of programs.
const USER_END: i64 = 0x7fff_ffff_f000;

/// Whether the program's memory may lie at this address: the address isn't in the first page, nor
/// among the kernel's addresses.
#[inline]
pub fn plausible(ptr: i64) -> bool {
    (4096..USER_END).contains(&ptr)
}

/// Whether a buffer lies wholly below the kernel's addresses. If not, that is an error even if
/// nothing is to be copied.
#[inline]
pub fn is_user(ptr: i64, len: usize) -> bool {
    ptr as u64 <= USER_END as u64 && len as u64 <= USER_END as u64 - ptr as u64
}

/// Returns a buffer that the program passed to be read from.
///
/// # Errors
/// EFAULT if the buffer reaches into the kernel's addresses.
///
/// # Safety
/// The program passed the buffer to a call that lasts longer than `'a`.
#[inline]
pub unsafe fn input<'a>(at: i64, len: usize) -> Result<UserSlice<'a>, Errno> {
    if is_user(at, len) {
        // SAFETY: the caller promises that the program's call lasts longer than `'a`.
        Ok(unsafe { UserSlice::new(at as *const u8, len) })
    } else {
        Err(Errno::FAULT)
    }
}

/// Like [`input`], for a buffer that the program passed to be written to.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// As for [`input`].
#[inline]
pub unsafe fn output<'a>(at: i64, len: usize) -> Result<UserSliceMut<'a>, Errno> {
    if is_user(at, len) {
        // SAFETY: the caller promises that the program's call lasts longer than `'a`.
        Ok(unsafe { UserSliceMut::new(at as *mut u8, len) })
    } else {
        Err(Errno::FAULT)
    }
}

/// Borrows a descriptor that the program passed. The program may close it at any moment.
///
/// # Errors
/// EBADF for -1, which no descriptor can be.
pub fn descriptor<'a>(fd: i32) -> Result<BorrowedFd<'a>, Errno> {
    match fd {
        -1 => Err(Errno::BADF),
        // SAFETY: `fd` isn't -1. If the descriptor isn't open, calls on it fail.
        fd => Ok(unsafe { BorrowedFd::borrow_raw(fd) }),
    }
}

/// Returns how many bytes from `at` on can be read, at most `len`.
pub fn readable(at: i64, len: usize) -> usize {
    // SAFETY: reads a byte of the program's memory, under the fault guard.
    there(at, len, |byte| unsafe { byte.read_volatile() })
}

/// Returns how many bytes from `at` on can be written, at most `len`.
pub fn writable(at: i64, len: usize) -> usize {
    there(at, len, |byte| {
        // SAFETY: touches a byte of the program's memory, under the fault guard. The atomic OR with
        // 0 changes nothing, even if another thread writes the byte.
        unsafe { AtomicU8::from_ptr(byte) }.fetch_or(0, Relaxed)
    })
}

/// Returns how many bytes from `at` on `touch_byte` can touch, trying one byte of each page.
fn there(at: i64, len: usize, touch_byte: impl Fn(*mut u8) -> u8) -> usize {
    let (start, end) = (at as usize, (at as usize).saturating_add(len));
    let mut next = start;
    // SAFETY: `touch_byte` holds nothing when it faults; a bad address is caught.
    while next < end && unsafe { touch(|| touch_byte(next as *mut u8)) }.is_some() {
        next = (next | (PAGE - 1)).saturating_add(1);
    }
    next.min(end) - start
}

/// Maximum number of bytes that one call reads or writes, as in Linux.
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// Maximum number of parts of a vector that fit on the stack, as in Linux.
const FEW: usize = 8;

/// The buffers of a vector (of readv and similar calls), copied once: the program may change its
/// own vector meanwhile.
pub struct Vector {
    few: [MaybeUninit<Part>; FEW],
    many: Vec<Part>,
}

/// A buffer of a [`Vector`].
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Part(libc::iovec);

impl Vector {
    pub const fn new() -> Vector {
        Vector {
            few: [const { MaybeUninit::uninit() }; FEW],
            many: Vec::new(),
        }
    }

    /// Copies the program's vector of `count` parts. If the parts exceed [`MAX_TRANSFER`] bytes in
    /// total, they are truncated to that.
    ///
    /// # Errors
    /// EINVAL for a negative length; EFAULT if the vector isn't mapped, or a part reaches into the
    /// kernel's addresses.
    ///
    /// # Safety
    /// The program passed the vector to a call that lasts longer than `self`.
    pub unsafe fn take(&mut self, at: i64, count: usize) -> Result<&[Part], Errno> {
        let parts: &mut [Part] = if count > FEW {
            // SAFETY: any bytes are a valid Part.
            self.many = unsafe { take_list(at, count)? };
            &mut self.many
        } else {
            let (from, to) = (at as *const Part, self.few.as_mut_ptr().cast::<Part>());
            let bytes = count * size_of::<Part>();
            // SAFETY: `to` has room for `count` parts.
            let copy = || unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
            // SAFETY: the copy holds no lock, and the parts are only read if all of them were
            // copied.
            unsafe { touch(copy) }.ok_or(Errno::FAULT)?;
            // SAFETY: all `count` parts were just written; any bytes are a valid Part.
            unsafe { std::slice::from_raw_parts_mut(to, count) }
        };
        if parts.iter().any(|p| p.0.iov_len > isize::MAX as usize) {
            return Err(Errno::INVAL);
        }
        // A single part is truncated before its addresses are checked, as in Linux.
        if let [one] = &mut *parts {
            one.0.iov_len = one.0.iov_len.min(MAX_TRANSFER);
        }
        let mut left = MAX_TRANSFER;
        for part in &mut *parts {
            if !is_user(part.0.iov_base as i64, part.0.iov_len) {
                return Err(Errno::FAULT);
            }
            part.0.iov_len = part.0.iov_len.min(left);
            left -= part.0.iov_len;
        }
        Ok(parts)
    }
}

impl Part {
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    pub fn address(&self) -> u64 {
        self.0.iov_base as u64
    }

    /// Returns the buffer for reading from it.
    pub fn input(&self) -> UserSlice<'_> {
        // SAFETY: the caller of `Vector::take` promised that the program's call outlasts the
        // vector.
        unsafe { UserSlice::new(self.0.iov_base.cast(), self.0.iov_len) }
    }

    /// Returns the buffer for writing to it.
    pub fn output(&self) -> UserSliceMut<'_> {
        // SAFETY: the caller of `Vector::take` promised that the program's call outlasts the
        // vector.
        unsafe { UserSliceMut::new(self.0.iov_base.cast(), self.0.iov_len) }
    }
}

/// Returns the bytes of a path that the program passed; None if the address is bad, so that the
/// kernel returns EFAULT.
///
/// # Safety
/// `ptr` is a bad address, or a C string that isn't freed during the call.
#[inline]
pub unsafe fn path(ptr: i64) -> Option<&'static [u8]> {
    if !plausible(ptr) {
        return None;
    }
    let text = ptr as *const libc::c_char;
    // SAFETY: the caller promises a C string, or a bad address, which is caught; the kernel reports
    // it.
    let path = unsafe { touch(|| CStr::from_ptr(text)) }?;
    Some(path.to_bytes())
}

/// Returns a path that the program passed; None if the address is bad.
///
/// # Safety
/// `ptr` is a bad address, or a C string that isn't freed during the call.
pub unsafe fn text(ptr: i64) -> Option<Cow<'static, [u8]>> {
    // SAFETY: the caller promises a bad address or a C string.
    unsafe { path(ptr) }.map(Cow::Borrowed)
}

/// Runs `f`, which touches the program's memory. None if that memory isn't mapped. No signal
/// handler of the program runs meanwhile: a fault in the handler would be taken for a fault of `f`.
///
/// # Safety
/// As for [`guard::attempt`].
pub unsafe fn touch<T: Copy>(f: impl FnOnce() -> T) -> Option<T> {
    let _critical = Critical::enter();
    // SAFETY: the caller promises what `guard::attempt` requires.
    unsafe { guard::attempt(f) }
}

/// Reads `len` values of the program's memory.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a valid T.
pub unsafe fn take_list<T: Copy>(from: i64, len: usize) -> Result<Vec<T>, Errno> {
    let _critical = Critical::enter();
    let mut list: Vec<T> = Vec::with_capacity(len);
    // SAFETY: the caller promises that any bytes are a valid T; the list has room for `len` values.
    unsafe {
        let to = list.as_mut_ptr().cast::<u8>();
        if !guard::copy(from as *const u8, to, len * size_of::<T>()) {
            return Err(Errno::FAULT);
        }
        list.set_len(len);
    }
    Ok(list)
}

/// Writes a value to the program's memory.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// There must be no reference to the memory that is written.
pub unsafe fn give<T: Copy>(value: T, to: i64) -> Result<i64, Errno> {
    // SAFETY: the caller promises that there is no reference to this memory.
    let done = unsafe { touch(|| (to as *mut T).write_unaligned(value)) };
    done.map(|()| 0).ok_or(Errno::FAULT)
}

/// Reads a value from the program's memory.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a valid T.
pub unsafe fn take<T: Copy>(from: i64) -> Result<T, Errno> {
    // SAFETY: the caller promises that any bytes are a valid T; a bad address is caught.
    unsafe { touch(|| (from as *const T).read_unaligned()) }.ok_or(Errno::FAULT)
}

/// Copies a path or link target to the program, truncated to its buffer. Returns the number of
/// bytes copied, or -EFAULT.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn copy_cut(bytes: &[u8], buffer: i64, size: usize) -> i64 {
    let n = bytes.len().min(size);
    let _critical = Critical::enter();
    // SAFETY: the caller promises room for `size` bytes; a bad address is caught.
    if unsafe { guard::copy(bytes.as_ptr(), buffer as *mut u8, n) } {
        n as i64
    } else {
        results::errno(Errno::FAULT)
    }
}

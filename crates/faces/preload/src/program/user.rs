//! Memory of the program that the arguments of a system call point to. It may be unmapped, and may
//! change at any moment: it is read and written under the fault guard, by copy, and a bad address
//! is EFAULT.

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

/// The end of a program's addresses.
const USER_END: i64 = 0x7fff_ffff_f000;

/// Whether something of the program may lie at this address at all: not in the first
/// page, and not where the kernel is.
#[inline]
pub fn plausible(ptr: i64) -> bool {
    (4096..USER_END).contains(&ptr)
}

/// Whether a buffer reaches into the kernel's addresses. That is an error even if nothing is to be
/// copied.
#[inline]
pub fn is_user(ptr: i64, len: usize) -> bool {
    ptr as u64 <= USER_END as u64 && len as u64 <= USER_END as u64 - ptr as u64
}

/// A buffer that the program passed to be read; an error if it reaches into the kernel's addresses.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// The program passed it, to a call that lasts longer than `'a`.
#[inline]
pub unsafe fn input<'a>(at: i64, len: usize) -> Result<UserSlice<'a>, Errno> {
    if is_user(at, len) {
        // SAFETY: the caller's promise.
        Ok(unsafe { UserSlice::new(at as *const u8, len) })
    } else {
        Err(Errno::FAULT)
    }
}

/// As [`input`], a buffer that the program passed to be written.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// As for [`input`].
#[inline]
pub unsafe fn output<'a>(at: i64, len: usize) -> Result<UserSliceMut<'a>, Errno> {
    if is_user(at, len) {
        // SAFETY: the caller's promise.
        Ok(unsafe { UserSliceMut::new(at as *mut u8, len) })
    } else {
        Err(Errno::FAULT)
    }
}

/// A descriptor that the program passed. It may be closed at any moment.
///
/// # Errors
/// EBADF for -1, which no descriptor can be.
pub fn descriptor<'a>(fd: i32) -> Result<BorrowedFd<'a>, Errno> {
    match fd {
        -1 => Err(Errno::BADF),
        // SAFETY: not -1. Whether it is open the kernel says.
        fd => Ok(unsafe { BorrowedFd::borrow_raw(fd) }),
    }
}

/// How many bytes from `at` on can be read, `len` at most.
pub fn readable(at: i64, len: usize) -> usize {
    // SAFETY: a byte of the program's memory, if it is there.
    there(at, len, |byte| unsafe { byte.read_volatile() })
}

/// As [`readable`], for writing.
pub fn writable(at: i64, len: usize) -> usize {
    there(at, len, |byte| {
        // SAFETY: as above. The atomic OR with 0 changes nothing, even if another thread writes the
        // byte.
        unsafe { AtomicU8::from_ptr(byte) }.fetch_or(0, Relaxed)
    })
}

/// Up to where `touch_byte` can touch one byte of each page.
fn there(at: i64, len: usize, touch_byte: impl Fn(*mut u8) -> u8) -> usize {
    let (start, end) = (at as usize, (at as usize).saturating_add(len));
    let mut next = start;
    // SAFETY: touches only the caller's range.
    while next < end && unsafe { touch(|| touch_byte(next as *mut u8)) }.is_some() {
        next = (next | (PAGE - 1)).saturating_add(1);
    }
    next.min(end) - start
}

/// Bytes that one call reads or writes at most, as in Linux.
pub const MAX_TRANSFER: usize = 0x7fff_f000;

/// Number of parts of a vector that fit on the stack, as in Linux.
const FEW: usize = 8;

/// The parts of a vector (readv and its like), copied once: the program may change its own.
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

    /// Copies the program's vector of `count` parts. Together they are at most [`MAX_TRANSFER`]
    /// bytes: the rest is cut off.
    ///
    /// # Errors
    /// EINVAL for a negative length; EFAULT if the vector isn't there, or a part is where the kernel
    /// is.
    ///
    /// # Safety
    /// The program passed it, to a call that lasts longer than this.
    pub unsafe fn take(&mut self, at: i64, count: usize) -> Result<&[Part], Errno> {
        let parts: &mut [Part] = if count > FEW {
            // SAFETY: any bytes are a part.
            self.many = unsafe { take_list(at, count)? };
            &mut self.many
        } else {
            let (from, to) = (at as *const Part, self.few.as_mut_ptr().cast::<Part>());
            let bytes = count * size_of::<Part>();
            // SAFETY: room of ours for this many.
            let copy = || unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), bytes) };
            // SAFETY: it holds nothing, and the parts are only looked at when all of them are there.
            unsafe { touch(copy) }.ok_or(Errno::FAULT)?;
            // SAFETY: just written; any bytes are a part.
            unsafe { std::slice::from_raw_parts_mut(to, count) }
        };
        if parts.iter().any(|p| p.0.iov_len > isize::MAX as usize) {
            return Err(Errno::INVAL);
        }
        // If there is a single part, memory beyond it isn't even read.
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

    /// To be read.
    pub fn input(&self) -> UserSlice<'_> {
        // SAFETY: the promise of `Vector::take`.
        unsafe { UserSlice::new(self.0.iov_base.cast(), self.0.iov_len) }
    }

    /// To be written.
    pub fn output(&self) -> UserSliceMut<'_> {
        // SAFETY: the promise of `Vector::take`.
        unsafe { UserSliceMut::new(self.0.iov_base.cast(), self.0.iov_len) }
    }
}

/// The bytes of a path that the program passed; none if the kernel has to say EFAULT.
///
/// # Safety
/// `ptr` isn't plausible, or is a C string that stays for the call.
#[inline]
pub unsafe fn path(ptr: i64) -> Option<&'static [u8]> {
    if !plausible(ptr) {
        return None;
    }
    let text = ptr as *const libc::c_char;
    // SAFETY: the caller's promise; if it breaks it, the kernel is to say so.
    let path = unsafe { touch(|| CStr::from_ptr(text)) }?;
    Some(path.to_bytes())
}

/// A path that the program passed.
///
/// # Safety
/// A C string that stays for the call.
pub unsafe fn text(ptr: i64) -> Option<Cow<'static, [u8]>> {
    // SAFETY: the caller's promise.
    unsafe { path(ptr) }.map(Cow::Borrowed)
}

/// Touches the program's memory; None if it isn't mapped. No handler of the program runs in the
/// middle of it: a fault in one would be taken for ours.
///
/// # Safety
/// As for [`guard::attempt`].
pub unsafe fn touch<T: Copy>(f: impl FnOnce() -> T) -> Option<T> {
    let _critical = Critical::enter();
    // SAFETY: the caller's promise.
    unsafe { guard::attempt(f) }
}

/// Reads a list of the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a T.
pub unsafe fn take_list<T: Copy>(from: i64, len: usize) -> Result<Vec<T>, Errno> {
    let _critical = Critical::enter();
    let mut list: Vec<T> = Vec::with_capacity(len);
    // SAFETY: the caller's promise; there is room.
    unsafe {
        let to = list.as_mut_ptr().cast::<u8>();
        if !guard::copy(from as *const u8, to, len * size_of::<T>()) {
            return Err(Errno::FAULT);
        }
        list.set_len(len);
    }
    Ok(list)
}

/// Writes a value to the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// There must be no reference to the memory that is written.
pub unsafe fn give<T: Copy>(value: T, to: i64) -> Result<i64, Errno> {
    // SAFETY: the caller's promise; plain data.
    let done = unsafe { touch(|| (to as *mut T).write_unaligned(value)) };
    done.map(|()| 0).ok_or(Errno::FAULT)
}

/// Reads a value of the program.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// Any bytes are a T.
pub unsafe fn take<T: Copy>(from: i64) -> Result<T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { touch(|| (from as *const T).read_unaligned()) }.ok_or(Errno::FAULT)
}

/// Copies a path or link target to the program, truncated to its buffer.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn copy_cut(bytes: &[u8], buffer: i64, size: usize) -> i64 {
    let n = bytes.len().min(size);
    let _critical = Critical::enter();
    // SAFETY: the caller's promise.
    if unsafe { guard::copy(bytes.as_ptr(), buffer as *mut u8, n) } {
        n as i64
    } else {
        results::errno(Errno::FAULT)
    }
}

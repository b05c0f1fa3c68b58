//! Memory of the program that the arguments of a system call point to. It may be unmapped, and may
//! change at any moment: it is read and written under the fault guard, by copy, and a bad address
//! is EFAULT.

use crate::program::results;
use forebay_media::guard;
use forebay_posix::{Errno, UserSlice, UserSliceMut};
use forebay_store::process::Critical;
use std::borrow::Cow;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// The end of a program's addresses.
const USER_END: i64 = 0x7fff_ffff_f000;

/// Whether something of the program may lie at this address at all: not in the first
/// page, and not where the kernel is.
#[inline]
pub fn plausible(ptr: i64) -> bool {
    (4096..USER_END).contains(&ptr)
}

/// Whether a buffer isn't where the kernel is. That is an error even if nothing is to be copied.
#[inline]
pub fn is_user(ptr: i64, len: usize) -> bool {
    ptr as u64 <= USER_END as u64 && len as u64 <= USER_END as u64 - ptr as u64
}

/// A buffer that the program passed to be read, if it isn't where the kernel is.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// The program passed it, to a call that lasts longer than `'a`.
#[inline]
pub unsafe fn input<'a>(at: i64, len: usize) -> Result<UserSlice<'a>, Errno> {
    match is_user(at, len) {
        // SAFETY: the caller's promise.
        true => Ok(unsafe { UserSlice::new(at as *const u8, len) }),
        false => Err(Errno::FAULT),
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
    match is_user(at, len) {
        // SAFETY: the caller's promise.
        true => Ok(unsafe { UserSliceMut::new(at as *mut u8, len) }),
        false => Err(Errno::FAULT),
    }
}

/// Parts of a vector that are kept on the stack, as in Linux.
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

    /// Copies the program's vector of `count` parts.
    ///
    /// # Errors
    /// EFAULT if it isn't there, or a part is where the kernel is.
    ///
    /// # Safety
    /// The program passed it, to a call that lasts longer than this.
    pub unsafe fn take(&mut self, at: i64, count: usize) -> Result<&[Part], Errno> {
        let is_user = |p: &Part| is_user(p.0.iov_base as i64, p.0.iov_len);
        if count > FEW {
            // SAFETY: any bytes are a part.
            self.many = unsafe { take_list(at, count)? };
            return match self.many.iter().all(is_user) {
                true => Ok(&self.many),
                false => Err(Errno::FAULT),
            };
        }
        let (from, to) = (at as *const Part, self.few.as_mut_ptr().cast::<Part>());
        let copy = || {
            (0..count).fold(true, |all, n| {
                // SAFETY: room of ours for so many; any bytes are a part.
                let part = unsafe { from.add(n).read_unaligned() };
                // SAFETY: as above.
                unsafe { to.add(n).write(part) };
                all & is_user(&part)
            })
        };
        // SAFETY: it holds nothing, and the parts are only looked at when all of them are there.
        match unsafe { touch(copy) } {
            // SAFETY: just written.
            Some(true) => Ok(unsafe { std::slice::from_raw_parts(to, count) }),
            _ => Err(Errno::FAULT),
        }
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
    // SAFETY: passed on.
    unsafe { path(ptr) }.map(Cow::Borrowed)
}

/// Touches the program's memory; None if it isn't there. No handler of the program runs in the
/// middle of it, where a fault of its own would be taken for ours.
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
/// No reference to what is written is alive.
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

/// Copies a path or link target to the program, cut to its buffer.
///
/// # Safety
/// `buffer` has room for `size` bytes.
pub unsafe fn copy_cut(bytes: &[u8], buffer: i64, size: usize) -> i64 {
    let n = bytes.len().min(size);
    let _critical = Critical::enter();
    // SAFETY: the caller's promise.
    match unsafe { guard::copy(bytes.as_ptr(), buffer as *mut u8, n) } {
        true => n as i64,
        false => results::errno(Errno::FAULT),
    }
}

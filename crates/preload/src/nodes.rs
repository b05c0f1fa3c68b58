//! FIFOs and Unix sockets of the pool: the program gets the kernel's own, which stand in
//! for them (`forebay_posix`, nodes.rs). Its descriptors are the kernel's from then on.

use crate::paths::{self, Where, errno, locate, value};
use crate::{fds, runtime};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, ObjectId, Place};
use forebay_store::process::Critical;
use libc::{AF_UNIX, sa_family_t, sockaddr_un};
use std::ffi::{CStr, CString};
use std::mem::offset_of;

const PATH_AT: usize = offset_of!(sockaddr_un, sun_path);

/// Opens the kernel's FIFO at `path`, which stands in for object `id`; it may wait for the
/// other end, as the program asks.
pub fn open_fifo(id: ObjectId, path: &CStr, flags: i32) -> i64 {
    let known = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let args = [
        libc::AT_FDCWD.into(),
        path.as_ptr() as i64,
        (flags & !known).into(),
        0,
        0,
        0,
    ];
    // SAFETY: a C string.
    let fd = unsafe { raw(libc::SYS_openat, args) };
    if fd < 0 {
        return fd;
    }
    // Noted for its attributes, which are the pool's.
    let _critical = Critical::enter();
    value(runtime::fs().and_then(|fs| {
        let open =
            fs.store()
                .open_create(id, libc::S_IFIFO, None, flags as u32, ObjectId::ROOT, b"")?;
        fds::attach(fs, fd as i32, open)
            .inspect_err(|_| _ = fs.store().open_release(open))
            .map(|()| fd)
    }))
}

/// The path in a socket address of the program, if it is one with a path.
///
/// # Safety
/// As of bind(2) and connect(2).
unsafe fn path_of(address: i64, len: i64) -> Option<CString> {
    let len = len as u32 as usize;
    if !paths::plausible(address) || len <= PATH_AT || len > size_of::<sockaddr_un>() {
        return None;
    }
    // SAFETY: the program's own address, as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
    let family = sa_family_t::from_ne_bytes([bytes[0], bytes[1]]);
    if i32::from(family) != AF_UNIX || bytes[PATH_AT] == 0 {
        return None;
    }
    let path = bytes[PATH_AT..].split(|&b| b == 0).next()?;
    CString::new(path).ok()
}

/// Makes the call with another path in the address.
///
/// # Safety
/// As for the call itself.
unsafe fn with_path(nr: i64, a: &[i64; 6], path: &[u8]) -> i64 {
    // SAFETY: all zeros is a valid address.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    if path.len() >= address.sun_path.len() {
        return errno(Errno::NAMETOOLONG);
    }
    address.sun_family = AF_UNIX as sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let len = PATH_AT + path.len() + 1;
    // SAFETY: the program's own call, with an address of ours.
    unsafe { raw(nr, [a[0], &raw const address as i64, len as i64, 0, 0, 0]) }
}

/// What `f` makes of the place that the address leads to; the result of the call if it
/// isn't for us to make.
///
/// # Safety
/// As for the call itself.
unsafe fn at_address(
    nr: i64,
    a: &[i64; 6],
    follow: Follow,
    mut f: impl FnMut(&Fs, &Place) -> Result<CString, Errno>,
) -> Result<CString, i64> {
    // SAFETY: the program's own address.
    let path = unsafe { path_of(a[1], a[2]) }.ok_or(PASS)?;
    // SAFETY: a C string that outlives its use below.
    match unsafe { locate(libc::AT_FDCWD, path.as_ptr() as i64) } {
        Ok(Where::Pool(fs, base, p)) => {
            let critical = Critical::enter();
            let result = fs.at(base, &p, follow, |place| f(fs, place));
            drop(critical);
            result.map_err(|fail| match fail {
                Fail::Errno(e) => errno(e),
                // SAFETY: the program's own call, with the path it really means.
                Fail::Outside(to) => unsafe { with_path(nr, a, &to) },
            })
        }
        Ok(_) => Err(PASS),
        Err(e) => Err(errno(e)),
    }
}

/// bind(2) to a path of the pool.
pub unsafe fn bind(a: &[i64; 6]) -> i64 {
    // SAFETY: the program's own arguments; here and below.
    unsafe {
        let made = at_address(libc::SYS_bind, a, Follow::No, |fs, place| {
            fs.make_socket(place, 0o777 & !paths::umask(fs))
        });
        let path = match made {
            Ok(path) => path,
            Err(result) => return result,
        };
        let result = with_path(libc::SYS_bind, a, path.to_bytes());
        if result == 0 {
            // Who may connect is decided by the name in the pool.
            let mode = 0o600;
            raw(libc::SYS_chmod, [path.as_ptr() as i64, mode, 0, 0, 0, 0]);
        } else {
            let _ = at_address(libc::SYS_bind, a, Follow::No, |fs, place| {
                fs.remove_file(place).map(|()| CString::default())
            });
        }
        result
    }
}

/// connect(2) to a path of the pool.
pub unsafe fn connect(a: &[i64; 6]) -> i64 {
    // SAFETY: the program's own arguments.
    unsafe {
        let found = at_address(libc::SYS_connect, a, Follow::Yes, |fs, place| {
            fs.socket(place)
        });
        let path = match found {
            Ok(path) => path,
            Err(result) => return result,
        };
        let result = with_path(libc::SYS_connect, a, path.to_bytes());
        // Named, but not bound (yet, or since the node was started).
        if result == errno(Errno::NOENT) {
            return errno(Errno::CONNREFUSED);
        }
        result
    }
}

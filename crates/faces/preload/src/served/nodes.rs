//! FIFOs and Unix sockets of the pool. The kernel has a stand-in for each (`forebay_posix`,
//! nodes.rs); the program's descriptors are those of the stand-in.

use crate::paths::locate::{Where, locate};
use crate::pool::{self, umask};
use crate::program::results::{errno, value};
use crate::program::user;
use crate::served::fd_table;
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fail, Follow, Fs, ObjectId, Place};
use forebay_store::process::Critical;
use libc::{AF_UNIX, sa_family_t, sockaddr_un};
use std::ffi::{CStr, CString};
use std::mem::offset_of;

const PATH_AT: usize = offset_of!(sockaddr_un, sun_path);

/// Opens the kernel's FIFO at `path`. The FIFO stands in for object `id`. May wait for the other
/// end, as the flags require.
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
    // SAFETY: `path` is a C string that outlives the call.
    let fd = unsafe { raw(libc::SYS_openat, args) };
    if fd < 0 {
        return fd;
    }
    // The pool keeps the FIFO's attributes. The descriptor is recorded for calls on them.
    let _critical = Critical::enter();
    value(pool::fs().and_then(|fs| {
        let open = fs.describe_fifo(id, flags)?;
        fd_table::attach(fs, fd as i32, open)
            .inspect_err(|_| _ = fs.description(open).release())
            .map(|()| fd)
    }))
}

/// Whether `fd` is a Unix socket. For other sockets the kernel reports the error of a Unix address.
pub fn is_unix_socket(fd: i64) -> bool {
    user::descriptor(fd as i32).is_ok_and(|socket| {
        let domain = rustix::net::sockopt::socket_domain(socket);
        domain == Ok(rustix::net::AddressFamily::UNIX)
    })
}

/// Returns the path in a socket address of the program, if it has one.
///
/// # Safety
/// As for bind(2) and connect(2).
unsafe fn path_of(address: i64, len: i64) -> Option<CString> {
    let len = len as u32 as usize;
    if !user::plausible(address) || len <= PATH_AT || len > size_of::<sockaddr_un>() {
        return None;
    }
    let mut bytes = [0u8; size_of::<sockaddr_un>()];
    // SAFETY: the program passed this address and length; `touch` catches a bad address.
    unsafe { user::touch(|| std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), len))? };
    let bytes = &bytes[..len];
    let family = sa_family_t::from_ne_bytes([bytes[0], bytes[1]]);
    if i32::from(family) != AF_UNIX || bytes[PATH_AT] == 0 {
        return None;
    }
    let path = bytes[PATH_AT..].split(|&b| b == 0).next()?;
    CString::new(path).ok()
}

/// A socket address, and its length in bytes.
pub type Address = (sockaddr_un, i64);

fn address_of(path: &[u8]) -> Result<Address, Errno> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut address: sockaddr_un = unsafe { std::mem::zeroed() };
    if path.len() >= address.sun_path.len() {
        return Err(Errno::NAMETOOLONG);
    }
    address.sun_family = AF_UNIX as sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    Ok((address, (PATH_AT + path.len() + 1) as i64))
}

/// Returns the address to use instead of the program's: the address of the path that `f` returns
/// for the object to which the program's address leads. None if the program's address doesn't lead
/// into the pool.
///
/// # Safety
/// As for bind(2) and connect(2).
unsafe fn at_address(
    address: i64,
    len: i64,
    follow: Follow,
    mut f: impl FnMut(&Fs, &Place) -> Result<CString, Errno>,
) -> Result<Option<Address>, Errno> {
    // SAFETY: the program passed this address and length to the call; a bad address is caught.
    let Some(path) = (unsafe { path_of(address, len) }) else {
        return Ok(None);
    };
    // SAFETY: `path` is a C string that outlives its use below.
    let Where::Pool(fs, base, p) = (unsafe { locate(libc::AT_FDCWD, path.as_ptr() as i64)? })
    else {
        return Ok(None);
    };
    let _critical = Critical::enter();
    match fs.resolver().at(base, &p, follow, |place| f(fs, place)) {
        Ok(path) => address_of(path.to_bytes()).map(Some),
        Err(Fail::Outside(to) | Fail::Origin(to)) => address_of(&to).map(Some),
        Err(Fail::Errno(e)) => Err(e),
    }
}

/// Returns the address to send or connect to instead of the program's; None: the program's own.
///
/// # Errors
/// ECONNREFUSED, EACCES, ENOENT: as for a socket of the kernel.
///
/// # Safety
/// As for connect(2).
pub unsafe fn peer(address: i64, len: i64) -> Result<Option<Address>, Errno> {
    // SAFETY: the caller passes the address and the length that the program passed.
    unsafe { at_address(address, len, Follow::Yes, |fs, place| fs.socket(place)) }
}

/// Serves bind(2) to a path of the pool.
pub unsafe fn bind(a: &[i64; 6]) -> i64 {
    if !is_unix_socket(a[0]) {
        return PASS;
    }
    let mut made = None;
    // SAFETY: the caller passes the arguments of the program's bind(2).
    unsafe {
        let address = at_address(a[1], a[2], Follow::Never, |fs, place| {
            let path = fs.make_socket(place, 0o777 & !umask::current(fs))?;
            made = Some((fs.label(&path)?, path.clone()));
            Ok(path)
        });
        let (address, len) = match address {
            Ok(None) => return PASS,
            Ok(Some(address)) => address,
            Err(e) => return errno(e),
        };
        let result = raw(
            libc::SYS_bind,
            [a[0], &raw const address as i64, len, 0, 0, 0],
        );
        let _critical = Critical::enter();
        let Some((label, path)) = made else {
            // The path led out of the pool.
            return result;
        };
        if result == 0 {
            // Only the stand-in's owner may connect directly; the permissions of the name in the
            // pool decide.
            let mode = 0o600;
            raw(libc::SYS_chmod, [path.as_ptr() as i64, mode, 0, 0, 0, 0]);
            if let Some(given) = path_of(a[1], a[2]) {
                // getsockname reads this link; without it the program sees the stand-in's path.
                let _ = rustix::fs::symlink(given, label);
            }
        } else {
            let _ = at_address(a[1], a[2], Follow::Never, |fs, place| {
                fs.remove_file(place).map(|()| CString::default())
            });
        }
        result
    }
}

/// Serves connect(2) to a path of the pool.
pub unsafe fn connect(a: &[i64; 6]) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe { to_peer(libc::SYS_connect, a, 1, 2) }
}

/// Serves sendto(2) to a path of the pool.
pub unsafe fn send_to(a: &[i64; 6]) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe { to_peer(libc::SYS_sendto, a, 4, 5) }
}

/// Makes a call that has a socket address in `a[at]` and the address's length in `a[len]`, with the
/// stand-in's address.
unsafe fn to_peer(nr: i64, a: &[i64; 6], at: usize, len: usize) -> i64 {
    // SAFETY: the caller passes the arguments of a call that the program makes.
    if unsafe { path_of(a[at], a[len]) }.is_none() || !is_unix_socket(a[0]) {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    let (address, n) = match unsafe { peer(a[at], a[len]) } {
        Ok(None) => return PASS,
        Ok(Some(address)) => address,
        Err(e) => return errno(e),
    };
    let mut args = *a;
    args[at] = &raw const address as i64;
    args[len] = n;
    // SAFETY: the program's call; only the address is replaced, by one that outlives the call.
    let result = unsafe { raw(nr, args) };
    // The socket's name exists, but no process has bound it (yet, or since the node was started).
    if result == errno(Errno::NOENT) {
        return errno(Errno::CONNREFUSED);
    }
    result
}

/// Serves getsockname and getpeername. Returns the path by which the socket was bound, not the
/// stand-in's.
pub unsafe fn name(nr: i64, a: &[i64; 6]) -> i64 {
    let Some(fs) = pool::open_fs() else {
        return PASS;
    };
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut found: sockaddr_un = unsafe { std::mem::zeroed() };
    let mut n = size_of::<sockaddr_un>() as u32;
    let args = [a[0], &raw mut found as i64, &raw mut n as i64, 0, 0, 0];
    // SAFETY: the kernel writes only to `found` and `n`, local variables.
    let path = match unsafe { raw(nr, args) } {
        // SAFETY: the kernel has filled `found`, a local variable, and `n`.
        0 => unsafe { path_of(&raw const found as i64, n.into()) },
        _ => None,
    };
    let _critical = Critical::enter();
    let label = path.and_then(|path| fs.label_of(&path));
    let given = label.and_then(|label| rustix::fs::readlink(label, Vec::new()).ok());
    let Some(Ok((address, n))) = given.map(|g| address_of(g.as_bytes())) else {
        return PASS;
    };
    // SAFETY: the program passed this buffer and this length to the call; a bad address is caught.
    unsafe {
        let bytes = std::slice::from_raw_parts((&raw const address).cast::<u8>(), n as usize);
        let room = match user::take::<i32>(a[2]).map(usize::try_from) {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return errno(Errno::INVAL),
            Err(e) => return errno(e),
        };
        match user::copy_cut(bytes, a[1], room) {
            e if e < 0 => e,
            _ => value(user::give(n as u32, a[2])),
        }
    }
}

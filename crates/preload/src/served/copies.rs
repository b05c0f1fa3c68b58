//! System calls that copy between two descriptors: sendfile, copy_file_range, splice.
//!
//! Between two files of the pool, bytes don't pass through this process ([`Fs::copy_range`]); else
//! they go through a buffer.

use crate::map;
use crate::pool::fds;
use crate::program::results::{self, errno, value};
use crate::program::user::{give, take};
use crate::served::io::{offset, put};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs, Whence};

/// Bytes moved at a time.
const PIECE: usize = 256 << 10;
/// What one call copies at most, as the kernel has it.
const MOST: usize = 0x7fff_f000;

/// One end of a copy.
#[derive(Clone, Copy)]
enum End {
    Pool(&'static Fs, u32),
    Kernel(i32),
}

fn end(fd: i32) -> End {
    match fds::pool_file(fd) {
        Some((fs, open)) => End::Pool(fs, open),
        None => End::Kernel(fd),
    }
}

impl End {
    unsafe fn read(self, at: Option<u64>, to: &mut [u8]) -> Result<usize, Errno> {
        let (p, n) = (to.as_mut_ptr(), to.len());
        match self {
            End::Pool(fs, open) => {
                map::before_read(fs, open, at, n);
                fs.read(open, at, to.into())
            }
            // SAFETY: a slice, on a descriptor of the program.
            End::Kernel(fd) => results::check(unsafe {
                match at {
                    Some(at) => raw(
                        libc::SYS_pread64,
                        [fd.into(), p as i64, n as i64, at as i64, 0, 0],
                    ),
                    None => raw(libc::SYS_read, [fd.into(), p as i64, n as i64, 0, 0, 0]),
                }
            })
            .map(|n| n as usize),
        }
    }

    unsafe fn write(self, at: Option<u64>, from: &[u8]) -> Result<usize, Errno> {
        let (p, n) = (from.as_ptr(), from.len());
        match self {
            End::Pool(fs, open) => put(fs, open, at, None, from.into()).map(|n| {
                fs.tell_bytes(open, n as usize, libc::IN_MODIFY);
                n as usize
            }),
            // SAFETY: a slice, on a descriptor of the program.
            End::Kernel(fd) => results::check(unsafe {
                match at {
                    Some(at) => raw(
                        libc::SYS_pwrite64,
                        [fd.into(), p as i64, n as i64, at as i64, 0, 0],
                    ),
                    None => raw(libc::SYS_write, [fd.into(), p as i64, n as i64, 0, 0, 0]),
                }
            })
            .map(|n| n as usize),
        }
    }

    /// Moves the current offset back by what was read but couldn't be written.
    fn unread(self, n: usize) {
        match self {
            End::Pool(fs, open) => _ = fs.seek(open, Whence::Current, -(n as i64)),
            End::Kernel(fd) => {
                // SAFETY: moves an offset; fails harmlessly on a pipe.
                unsafe {
                    raw(
                        libc::SYS_lseek,
                        [fd.into(), -(n as i64), libc::SEEK_CUR.into(), 0, 0, 0],
                    )
                };
            }
        }
    }
}

/// Copies `len` bytes between two ends, with offsets in the program's memory or the
/// current ones (null).
unsafe fn copy(from: End, from_at: i64, to: End, to_at: i64, len: usize, once: bool) -> i64 {
    // SAFETY: null, or the program's own loff_t; here and below.
    let get = |p: i64| match p {
        0 => Ok(None),
        // SAFETY: the program's own loff_t.
        p => unsafe { take(p) }.and_then(offset).map(Some),
    };
    let (mut read_at, mut write_at) = match (get(from_at), get(to_at)) {
        (Ok(r), Ok(w)) => (r, w),
        (Err(e), _) | (_, Err(e)) => return errno(e),
    };
    let mut buffer = vec![0u8; len.min(PIECE)];
    let mut done = 0;
    let mut error = None;
    while done < len && error.is_none() {
        let want = (len - done).min(buffer.len());
        // SAFETY: ends of the program's own call.
        let n = match unsafe { from.read(read_at, &mut buffer[..want]) } {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) => {
                error = Some(e);
                break;
            }
        };
        let mut written = 0;
        while written < n {
            // SAFETY: as above.
            match unsafe { to.write(write_at, &buffer[written..n]) } {
                Ok(0) => break,
                Ok(k) => {
                    written += k;
                    write_at = write_at.map(|at| at + k as u64);
                }
                Err(e) => {
                    error = Some(e);
                    break;
                }
            }
        }
        if written < n && read_at.is_none() {
            from.unread(n - written);
        }
        read_at = read_at.map(|at| at + written as u64);
        done += written;
        if written < n || once {
            break;
        }
    }
    for (p, at) in [(from_at, read_at), (to_at, write_at)] {
        let Some(at) = at else { continue };
        // SAFETY: as in `get`.
        if let Err(e) = unsafe { give(at as i64, p) } {
            return errno(e);
        }
    }
    match error {
        Some(e) if done == 0 => errno(e),
        _ => done as i64,
    }
}

/// Copies up to `len` bytes between two files of the pool, with offsets in the program's memory or
/// the current ones (null).
unsafe fn between(
    fs: &Fs,
    (from, from_at): (u32, i64),
    (to, to_at): (u32, i64),
    len: usize,
) -> Result<i64, Errno> {
    let get = |p: i64| match p {
        0 => Ok(None),
        // SAFETY: the program's own loff_t.
        p => unsafe { take(p) }.and_then(offset).map(Some),
    };
    let (read_at, write_at) = (get(from_at)?, get(to_at)?);
    map::before_read(fs, from, read_at, len);
    let mapped = map::before_write(fs, to, write_at, false, len);
    let copied = fs.copy_range((from, read_at), (to, write_at), len as u64);
    map::after_change(fs, to, mapped);
    let n = copied?;
    for (p, at) in [(from_at, read_at), (to_at, write_at)] {
        let Some(at) = at else { continue };
        // SAFETY: as in `get`.
        unsafe { give((at + n) as i64, p)? };
    }
    Ok(n as i64)
}

/// sendfile(out, in, offset, count).
pub unsafe fn sendfile(a: &[i64; 6]) -> i64 {
    let (to, from) = (end(a[0] as i32), end(a[1] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (to, from) {
        return PASS;
    }
    match to {
        End::Pool(fs, open) if fs.description(open).appends() => return errno(Errno::INVAL),
        End::Pool(fs, open) if !fs.may(open, true) => return errno(Errno::BADF),
        _ => {}
    }
    let len = (a[3] as usize).min(MOST);
    // SAFETY: the program's own arguments.
    unsafe {
        match (from, to) {
            (End::Pool(fs, one), End::Pool(_, other)) if fs.live_of(one) != fs.live_of(other) => {
                value(between(fs, (one, a[2]), (other, 0), len))
            }
            _ => copy(from, a[2], to, 0, len, false),
        }
    }
}

/// copy_file_range(in, in offset, out, out offset, len, flags).
pub unsafe fn copy_file_range(a: &[i64; 6]) -> i64 {
    let (from, to) = (end(a[0] as i32), end(a[2] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (from, to) {
        return PASS;
    }
    if a[5] as u32 != 0 {
        return errno(Errno::INVAL);
    }
    match (from, to) {
        (End::Pool(fs, one), End::Pool(_, other)) => {
            let len = (a[4] as usize).min(MOST);
            // SAFETY: the program's own arguments.
            value(unsafe { between(fs, (one, a[1]), (other, a[3]), len) })
        }
        (End::Kernel(fd), _) | (_, End::Kernel(fd)) => {
            // SAFETY: only asks the kernel about the program's own descriptor.
            let s = rustix::fs::fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(fd) });
            errno(match s {
                // Different file systems: programs know what to do.
                Ok(s) if s.st_mode & libc::S_IFMT == libc::S_IFREG => Errno::XDEV,
                Ok(s) if s.st_mode & libc::S_IFMT == libc::S_IFDIR => Errno::ISDIR,
                Ok(_) => Errno::INVAL,
                Err(e) => e,
            })
        }
    }
}

/// Whether the kernel's end is a pipe, without an offset, and the other one fit to be written to.
fn can_splice(pipe: i32, offset: i64, to: End) -> Result<(), Errno> {
    // SAFETY: only asks the kernel about the program's own descriptor.
    let s = rustix::fs::fstat(unsafe { rustix::fd::BorrowedFd::borrow_raw(pipe) })?;
    if s.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(Errno::INVAL);
    }
    if offset != 0 {
        return Err(Errno::SPIPE);
    }
    match to {
        End::Pool(fs, open) if fs.description(open).appends() => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// splice(in, in offset, out, out offset, len, flags): one end is a pipe.
pub unsafe fn splice(a: &[i64; 6]) -> i64 {
    let (from, to) = (end(a[0] as i32), end(a[2] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (from, to) {
        return PASS;
    }
    let (pipe, offset, events) = match (from, to) {
        (End::Kernel(fd), End::Pool(..)) => (fd, a[1], libc::POLLIN),
        (End::Pool(..), End::Kernel(fd)) => (fd, a[3], libc::POLLOUT),
        _ => return errno(Errno::INVAL),
    };
    if let Err(e) = can_splice(pipe, offset, to) {
        return errno(e);
    }
    if a[5] & i64::from(libc::SPLICE_F_NONBLOCK) != 0 {
        let mut one = libc::pollfd {
            fd: pipe,
            events,
            revents: 0,
        };
        // SAFETY: asks about one descriptor, without waiting.
        let ready = unsafe { raw(libc::SYS_poll, [(&raw mut one) as i64, 1, 0, 0, 0, 0]) };
        if ready == 0 {
            return errno(Errno::AGAIN);
        }
    }
    // SAFETY: the program's own arguments. What a pipe holds now is enough.
    unsafe { copy(from, a[1], to, a[3], (a[4] as usize).min(65_536), true) }
}

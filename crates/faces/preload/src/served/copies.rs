//! System calls that copy between two descriptors: sendfile, copy_file_range, splice.
//!
//! Between two files of the pool, bytes don't pass through this process ([`Fs::copy_range`]);
//! otherwise they pass through a buffer.

use crate::map;
use crate::pool::fds;
use crate::program::results::{self, errno, value};
use crate::program::user::{self, MAX_TRANSFER, give, take};
use crate::served::io::{offset, put};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs, Whence};

/// Maximum number of bytes moved at a time.
const PIECE: usize = 256 << 10;

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
            // SAFETY: `p` and `n` are a part of the caller's buffer; the descriptor is the
            // program's.
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
                fs.notify_bytes(open, n as usize, libc::IN_MODIFY);
                n as usize
            }),
            // SAFETY: `p` and `n` are a part of the caller's buffer; the descriptor is the
            // program's.
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

    /// Moves the current offset back by the bytes that were read but couldn't be written.
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

/// Copies `len` bytes from one end to the other. `from_at` and `to_at` point to offsets in the
/// program's memory; null: the current offset. `once`: stops after the first piece.
unsafe fn copy(from: End, from_at: i64, to: End, to_at: i64, len: usize, once: bool) -> i64 {
    let get = |p: i64| match p {
        0 => Ok(None),
        // SAFETY: any bytes are a loff_t; a bad address is caught.
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
        // SAFETY: the program named the descriptor; the slice is a buffer of this library.
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
            // SAFETY: the program named the descriptor; the slice is a buffer of this library.
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
        // SAFETY: the program passed this address for an offset; a bad address is caught.
        if let Err(e) = unsafe { give(at as i64, p) } {
            return errno(e);
        }
    }
    match error {
        Some(e) if done == 0 => errno(e),
        _ => done as i64,
    }
}

/// Copies up to `len` bytes between two files of the pool. `from_at` and `to_at` point to offsets
/// in the program's memory; null: the current offset.
unsafe fn between(
    fs: &Fs,
    (from, from_at): (u32, i64),
    (to, to_at): (u32, i64),
    len: usize,
) -> Result<i64, Errno> {
    let get = |p: i64| match p {
        0 => Ok(None),
        // SAFETY: any bytes are a loff_t; a bad address is caught.
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
        // SAFETY: the program passed this address for an offset; a bad address is caught.
        unsafe { give((at + n) as i64, p)? };
    }
    Ok(n as i64)
}

/// One end of a copy, with its type and access mode.
struct Open {
    end: End,
    /// File type, as in the mode (S_IFMT).
    kind: u32,
    reads: bool,
    writes: bool,
    appends: bool,
}

impl Open {
    /// # Errors
    /// EBADF.
    fn look(fd: i32) -> Result<Open, Errno> {
        let end = end(fd);
        let (kind, flags) = match end {
            End::Pool(fs, open) => {
                let open = fs.description(open);
                (open.kind(), open.flags())
            }
            End::Kernel(fd) => {
                let file = user::descriptor(fd)?;
                let flags = rustix::fs::fcntl_getfl(file)?.bits() as i32;
                (rustix::fs::fstat(file)?.st_mode & libc::S_IFMT, flags)
            }
        };
        if flags & libc::O_PATH != 0 {
            return Err(Errno::BADF);
        }
        let access = flags & libc::O_ACCMODE;
        Ok(Open {
            end,
            kind,
            reads: matches!(access, libc::O_RDONLY | libc::O_RDWR),
            writes: matches!(access, libc::O_WRONLY | libc::O_RDWR),
            appends: flags & libc::O_APPEND != 0,
        })
    }

    /// Whether this end has an offset.
    fn can_seek(&self) -> bool {
        match self.end {
            End::Pool(..) => true,
            End::Kernel(fd) => {
                let call = [fd.into(), 0, libc::SEEK_CUR.into(), 0, 0, 0];
                // SAFETY: lseek takes no pointer, and moves the offset by 0 bytes.
                unsafe { raw(libc::SYS_lseek, call) >= 0 }
            }
        }
    }

    /// Whether this end can be read at an offset other than its current one.
    fn reads_anywhere(&self) -> bool {
        match self.end {
            End::Pool(..) => true,
            // SAFETY: reads 0 bytes, so the null buffer isn't touched.
            End::Kernel(fd) => unsafe {
                raw(libc::SYS_pread64, [fd.into(), 0, 0, 0, 0, 0]) != errno(Errno::SPIPE)
            },
        }
    }

    fn is_pipe(&self) -> bool {
        self.kind == libc::S_IFIFO
    }
}

/// Reads the offset that the program passes by pointer; None for null.
///
/// # Errors
/// EFAULT.
///
/// # Safety
/// `p` is null, or the program's own loff_t.
unsafe fn offset_at(p: i64) -> Result<Option<i64>, Errno> {
    match p {
        0 => Ok(None),
        // SAFETY: any bytes are a loff_t; a bad address is caught.
        p => unsafe { take(p) }.map(Some),
    }
}

/// Whether one of two descriptors is a file of the pool.
fn concerns(one: i64, other: i64) -> bool {
    [one, other]
        .iter()
        .any(|&fd| fds::pool_file(fd as i32).is_some())
}

/// Serves sendfile(out, in, offset, count).
pub unsafe fn sendfile(a: &[i64; 6]) -> i64 {
    if !concerns(a[0], a[1]) {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    value(unsafe { send(a) })
}

unsafe fn send(a: &[i64; 6]) -> Result<i64, Errno> {
    // SAFETY: `a[2]` is null, or the address of an offset that the program passed.
    let at = unsafe { offset_at(a[2])? };
    let from = Open::look(a[1] as i32)?;
    if !from.reads {
        return Err(Errno::BADF);
    }
    if at.is_some() && !from.reads_anywhere() {
        return Err(Errno::SPIPE);
    }
    if a[3] < 0 || at.is_some_and(|at| at < 0 || at.checked_add(a[3]).is_none()) {
        return Err(Errno::INVAL);
    }
    let to = Open::look(a[0] as i32)?;
    if !to.writes {
        return Err(Errno::BADF);
    }
    if !to.is_pipe() && (to.appends || !from.can_seek()) {
        return Err(Errno::INVAL);
    }
    if a[3] == 0 {
        return Ok(0);
    }
    // An eventfd or similar descriptor, which has no file type, can't be copied from, either.
    if matches!(from.kind, 0 | libc::S_IFDIR) {
        return Err(Errno::INVAL);
    }
    let len = (a[3] as usize).min(MAX_TRANSFER);
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        match (from.end, to.end) {
            (End::Pool(fs, one), End::Pool(_, other)) if fs.live_of(one) != fs.live_of(other) => {
                between(fs, (one, a[2]), (other, 0), len)
            }
            _ => results::check(copy(from.end, a[2], to.end, 0, len, false)),
        }
    }
}

/// Serves copy_file_range(in, in offset, out, out offset, len, flags).
pub unsafe fn copy_file_range(a: &[i64; 6]) -> i64 {
    if !concerns(a[0], a[2]) {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    value(unsafe { copy_range(a) })
}

unsafe fn copy_range(a: &[i64; 6]) -> Result<i64, Errno> {
    let (from, to) = (Open::look(a[0] as i32)?, Open::look(a[2] as i32)?);
    // SAFETY: both arguments are null, or addresses of offsets that the program passed.
    let (read_at, write_at) = unsafe { (offset_at(a[1])?, offset_at(a[3])?) };
    if a[5] as u32 != 0 {
        return Err(Errno::INVAL);
    }
    if [from.kind, to.kind].contains(&libc::S_IFDIR) {
        return Err(Errno::ISDIR);
    }
    if [from.kind, to.kind] != [libc::S_IFREG; 2] {
        return Err(Errno::INVAL);
    }
    if !from.reads || !to.writes || to.appends {
        return Err(Errno::BADF);
    }
    let (End::Pool(fs, one), End::Pool(_, other)) = (from.end, to.end) else {
        // The error of a copy between different file systems, which programs can handle.
        return Err(Errno::XDEV);
    };
    for at in [read_at, write_at].into_iter().flatten() {
        (at as u64)
            .checked_add(a[4] as u64)
            .ok_or(Errno::OVERFLOW)?;
    }
    let len = (a[4] as usize).min(MAX_TRANSFER);
    // SAFETY: both offsets are null, or addresses that the program passed.
    unsafe { between(fs, (one, a[1]), (other, a[3]), len) }
}

/// Serves splice(in, in offset, out, out offset, len, flags). One end is a pipe.
pub unsafe fn splice(a: &[i64; 6]) -> i64 {
    if !concerns(a[0], a[2]) {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    value(unsafe { splice_by(a) })
}

unsafe fn splice_by(a: &[i64; 6]) -> Result<i64, Errno> {
    const KNOWN: u32 =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if a[4] == 0 {
        return Ok(0);
    }
    if a[5] as u32 & !KNOWN != 0 {
        return Err(Errno::INVAL);
    }
    let (from, to) = (Open::look(a[0] as i32)?, Open::look(a[2] as i32)?);
    if from.is_pipe() && a[1] != 0 || to.is_pipe() && a[3] != 0 {
        return Err(Errno::SPIPE);
    }
    // SAFETY: both arguments are null, or addresses of offsets that the program passed.
    let offsets = unsafe { [offset_at(a[3])?, offset_at(a[1])?] };
    if !from.reads || !to.writes {
        return Err(Errno::BADF);
    }
    let (pipe, events) = match (from.end, to.end) {
        (End::Kernel(fd), End::Pool(..)) if from.is_pipe() => (fd, libc::POLLIN),
        (End::Pool(..), End::Kernel(fd)) if to.is_pipe() => (fd, libc::POLLOUT),
        _ => return Err(Errno::INVAL),
    };
    if from.kind == libc::S_IFDIR {
        return Err(Errno::INVAL);
    }
    let is_bad = |at: i64| at < 0 || a[4] < 0 || at.checked_add(a[4]).is_none();
    if !to.is_pipe() && to.appends || a[4] < 0 || offsets.into_iter().flatten().any(is_bad) {
        return Err(Errno::INVAL);
    }
    if a[5] as u32 & libc::SPLICE_F_NONBLOCK != 0 {
        let mut one = libc::pollfd {
            fd: pipe,
            events,
            revents: 0,
        };
        // SAFETY: the kernel writes only to `one`, a local variable, and doesn't wait.
        let ready = unsafe { raw(libc::SYS_poll, [(&raw mut one) as i64, 1, 0, 0, 0, 0]) };
        if ready == 0 {
            return Err(Errno::AGAIN);
        }
    }
    let len = (a[4] as usize).min(65_536);
    // The copy may end after the bytes that the pipe holds now.
    // SAFETY: the offsets are null, or addresses that the program passed.
    results::check(unsafe { copy(from.end, a[1], to.end, a[3], len, true) })
}

//! System calls that move data: read, write, their vectors, and copies between files.

use crate::fds;
use crate::locks;
use crate::paths::{errno, value};
use crate::stat::shown_flags;
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs, Whence};
use std::sync::atomic::Ordering::*;

/// Bytes moved at a time by copies.
const PIECE: usize = 256 << 10;
const IOV_MAX: i64 = 1024;

fn offset(n: i64) -> Result<u64, Errno> {
    u64::try_from(n).map_err(|_| Errno::INVAL)
}

/// read and pread64.
pub unsafe fn read(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let len = (a[2] as usize).min(0x7fff_f000);
    value(at.map(offset).transpose().and_then(|at| {
        // SAFETY: the program's own buffer; here and in all functions below.
        unsafe { fs.read(open, at, a[1] as *mut u8, len) }.map(|n| n as i64)
    }))
}

/// write and pwrite64.
pub unsafe fn write(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let len = (a[2] as usize).min(0x7fff_f000);
    value(at.map(offset).transpose().and_then(|at| {
        // SAFETY: see read.
        unsafe { fs.write(open, at, a[1] as *const u8, len) }.map(|n| n as i64)
    }))
}

/// readv, preadv, preadv2, writev, pwritev, pwritev2. `at`: the offset, -1 for the
/// current one.
pub unsafe fn vector(a: &[i64; 6], at: Option<i64>, flags: i64, writing: bool) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    const SYNC: i64 = (libc::RWF_DSYNC | libc::RWF_SYNC) as i64;
    const KNOWN: i64 =
        (libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND)
            as i64;
    if flags & !KNOWN != 0 {
        return errno(Errno::OPNOTSUPP);
    }
    if !(0..=IOV_MAX).contains(&a[2]) {
        return errno(Errno::INVAL);
    }
    let append = flags & i64::from(libc::RWF_APPEND) != 0 && writing;
    let mut at = match at {
        None | Some(-1) => None,
        Some(n) => match offset(n) {
            Ok(n) => Some(n),
            Err(e) => return errno(e),
        },
    };
    let parts: &[libc::iovec] = match a[2] {
        0 => &[],
        // SAFETY: the program's own vector.
        n => unsafe { std::slice::from_raw_parts(a[1] as *const libc::iovec, n as usize) },
    };
    // One piece of data: a vector is written as a whole, like any other write.
    if writing && parts.len() > 1 {
        let total: usize = parts.iter().map(|p| p.iov_len).sum();
        if total <= PIECE && flags & SYNC == 0 {
            let mut joined = Vec::with_capacity(total);
            for p in parts.iter().filter(|p| p.iov_len > 0) {
                // SAFETY: see read.
                joined.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(p.iov_base.cast::<u8>(), p.iov_len)
                });
            }
            // SAFETY: joined is readable.
            return value(unsafe { put(fs, open, at, append, joined.as_ptr(), total) });
        }
    }
    let mut done = 0i64;
    for p in parts.iter().filter(|p| p.iov_len > 0) {
        // SAFETY: see read.
        let result = unsafe {
            if writing {
                put(fs, open, at, append, p.iov_base.cast(), p.iov_len)
            } else {
                fs.read(open, at, p.iov_base.cast(), p.iov_len)
                    .map(|n| n as i64)
            }
        };
        match result {
            Err(e) if done == 0 => return errno(e),
            Err(_) => break,
            Ok(n) => {
                done += n;
                at = at.map(|at| at + n as u64);
                if (n as usize) < p.iov_len {
                    break;
                }
            }
        }
    }
    if parts.iter().all(|p| p.iov_len == 0) {
        // Even an empty call checks how the file is open.
        // SAFETY: no bytes are touched.
        return value(unsafe {
            if writing {
                fs.write(open, at, std::ptr::NonNull::dangling().as_ptr(), 0)
            } else {
                fs.read(open, at, std::ptr::NonNull::dangling().as_ptr(), 0)
            }
            .map(|n| n as i64)
        });
    }
    if writing && flags & SYNC != 0 {
        return value(fs.sync_open(open).map(|()| done));
    }
    done
}

unsafe fn put(
    fs: &Fs,
    open: u32,
    at: Option<u64>,
    append: bool,
    from: *const u8,
    len: usize,
) -> Result<i64, Errno> {
    if append {
        // SAFETY: see read.
        return unsafe { fs.append(open, from, len) }.map(|n| n as i64);
    }
    // SAFETY: see read.
    unsafe { fs.write(open, at, from, len) }.map(|n| n as i64)
}

/// lseek.
pub fn lseek(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let whence = match a[2] as i32 {
        libc::SEEK_SET => Whence::Start,
        libc::SEEK_CUR => Whence::Current,
        libc::SEEK_END => Whence::End,
        libc::SEEK_DATA => Whence::Data,
        libc::SEEK_HOLE => Whence::Hole,
        _ => return errno(Errno::INVAL),
    };
    value(fs.seek(open, whence, a[1]).map(|n| n as i64))
}

/// ftruncate.
pub fn ftruncate(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(
        offset(a[1])
            .and_then(|size| fs.truncate_open(open, size))
            .map(|()| 0),
    )
}

/// fsync, fdatasync, syncfs, sync_file_range.
pub fn fsync(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(fs.sync_open(open).map(|()| 0))
}

/// Calls that advise only, on a descriptor of ours: nothing to do.
pub fn advise(a: &[i64; 6]) -> i64 {
    if fds::pool_file(a[0] as i32).is_some() {
        0
    } else {
        PASS
    }
}

/// fallocate.
pub fn fallocate(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let mode = a[1] as i32;
    let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    value((|| {
        let flags = fs.store().open_file(open).flags.load(Relaxed) as i32;
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            return Err(Errno::BADF);
        }
        let live = fs.live_of(open)?;
        let (at, len) = (offset(a[2])?, offset(a[3])?);
        if len == 0 {
            return Err(Errno::INVAL);
        }
        fs.check_growth(live, at.saturating_add(len))?;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => fs.store().reserve_range(live, at, len, !keep)?,
            libc::FALLOC_FL_PUNCH_HOLE if keep => fs.store().punch(live, at, len, false)?,
            libc::FALLOC_FL_ZERO_RANGE => fs.store().punch(live, at, len, !keep)?,
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(0)
    })())
}

/// fcntl.
pub unsafe fn fcntl(a: &[i64; 6]) -> i64 {
    let (fd, cmd) = (a[0] as i32, a[1] as i32);
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            if forebay_media::is_internal(fd) {
                // Our own moving of descriptors.
                return PASS;
            }
            // SAFETY: the program's own call.
            let new = unsafe { raw(libc::SYS_fcntl, *a) };
            if new < 0 {
                return new;
            }
            return value(fds::duplicated(fd, new as i32));
        }
        libc::F_GETFD | libc::F_SETFD => return PASS,
        _ => {}
    }
    let Some((fs, open)) = fds::pool_file(fd) else {
        return PASS;
    };
    match cmd {
        libc::F_GETFL => i64::from(shown_flags(fs, open)) | 0o100_000,
        libc::F_SETFL => {
            let can = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT;
            let flags = &fs.store().open_file(open).flags;
            let _ = flags.fetch_update(AcqRel, Acquire, |old| {
                Some(old & !(can as u32) | a[2] as u32 & can as u32)
            });
            0
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            // SAFETY: the program's own struct flock.
            unsafe { locks::fcntl(fs, open, cmd, a[2]) }
        }
        libc::F_GETLEASE => i64::from(libc::F_UNLCK),
        _ => errno(Errno::INVAL),
    }
}

/// ioctl: a file of a pool has only the generic ones.
pub unsafe fn ioctl(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    let Some((fs, open)) = fds::pool_file(fd) else {
        return PASS;
    };
    let set_cloexec = |on: i64| {
        // SAFETY: sets a flag of the program's own descriptor.
        unsafe {
            raw(
                libc::SYS_fcntl,
                [a[0], i64::from(libc::F_SETFD), on, 0, 0, 0],
            )
        }
    };
    match a[1] as u64 {
        libc::FIOCLEX => set_cloexec(1),
        libc::FIONCLEX => set_cloexec(0),
        libc::FIONREAD => match fs.live_of(open) {
            Ok(live) => {
                let at = fs.store().open_file(open).offset.load(Relaxed);
                let left = fs.store().size(live).saturating_sub(at);
                // SAFETY: the program's own int.
                unsafe { *(a[2] as *mut i32) = left.min(i32::MAX as u64) as i32 };
                0
            }
            Err(e) => errno(e),
        },
        // Cloning ranges: copies do as well.
        libc::FICLONE | libc::FICLONERANGE => errno(Errno::OPNOTSUPP),
        _ => errno(Errno::NOTTY),
    }
}

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
            // SAFETY: a slice.
            End::Pool(fs, open) => unsafe { fs.read(open, at, p, n) },
            // SAFETY: a slice, on a descriptor of the program.
            End::Kernel(fd) => fds::check(unsafe {
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
            // SAFETY: a slice.
            End::Pool(fs, open) => unsafe { fs.write(open, at, p, n) },
            // SAFETY: a slice, on a descriptor of the program.
            End::Kernel(fd) => fds::check(unsafe {
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
    let get = |p: i64| {
        (p != 0)
            .then(|| {
                // SAFETY: null was sorted out; the program's own loff_t.
                unsafe { *(p as *const i64) }
            })
            .map(offset)
            .transpose()
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
        if let Some(at) = at {
            // SAFETY: as in `get`.
            unsafe { *(p as *mut i64) = at as i64 };
        }
    }
    match error {
        Some(e) if done == 0 => errno(e),
        _ => done as i64,
    }
}

/// sendfile(out, in, offset, count).
pub unsafe fn sendfile(a: &[i64; 6]) -> i64 {
    let (to, from) = (end(a[0] as i32), end(a[1] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (to, from) {
        return PASS;
    }
    // SAFETY: the program's own arguments.
    unsafe { copy(from, a[2], to, 0, (a[3] as usize).min(0x7fff_f000), false) }
}

/// copy_file_range(in, in offset, out, out offset, len, flags).
pub unsafe fn copy_file_range(a: &[i64; 6]) -> i64 {
    let (from, to) = (end(a[0] as i32), end(a[2] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (from, to) {
        return PASS;
    }
    if a[5] != 0 {
        return errno(Errno::INVAL);
    }
    if let (End::Pool(..), End::Kernel(_)) | (End::Kernel(_), End::Pool(..)) = (from, to) {
        // Different file systems: programs know what to do.
        return errno(Errno::XDEV);
    }
    // SAFETY: the program's own arguments.
    unsafe {
        copy(
            from,
            a[1],
            to,
            a[3],
            (a[4] as usize).min(0x7fff_f000),
            false,
        )
    }
}

/// splice(in, in offset, out, out offset, len, flags): one end is a pipe.
pub unsafe fn splice(a: &[i64; 6]) -> i64 {
    let (from, to) = (end(a[0] as i32), end(a[2] as i32));
    if let (End::Kernel(_), End::Kernel(_)) = (from, to) {
        return PASS;
    }
    // SAFETY: the program's own arguments. What a pipe holds now is enough.
    unsafe { copy(from, a[1], to, a[3], (a[4] as usize).min(65_536), true) }
}

//! System calls on open files: read, write and their vectors, sizes, syncing, fcntl, ioctl.

use crate::map;
use crate::pool::{self, fds};
use crate::program::results::{errno, value};
use crate::program::user::{self, MAX_TRANSFER, Part, Vector};
use crate::program::{filter, table_change};
use crate::served::{fd_table, inotify, leases, locks};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs, Whence};
use forebay_runtime::user::UserSlice;
use forebay_store::process::Critical;

/// Maximum length of a vector that is copied, so that it is written as a whole. Bytes.
const PIECE: usize = 256 << 10;
const IOV_MAX: i64 = 1024;

pub fn offset(n: i64) -> Result<u64, Errno> {
    u64::try_from(n).map_err(|_| Errno::INVAL)
}

/// Returns the error of a failed transfer. A wrong access mode (EBADF) comes before errors of the
/// buffer.
#[cold]
fn blame(fs: &Fs, open: u32, writing: bool, e: Errno) -> Errno {
    if fs.may(open, writing) {
        e
    } else {
        Errno::BADF
    }
}

/// Returns the length of the mapped beginning of a buffer, if a transfer has failed with `e`
/// because the buffer's end isn't mapped. The caller repeats the transfer with this length.
///
/// # Errors
/// `e`, if the buffer isn't the reason.
#[cold]
fn part_there(e: Errno, there: impl FnOnce() -> usize) -> Result<usize, Errno> {
    match e {
        Errno::FAULT => Some(there()).filter(|&n| n > 0).ok_or(e),
        e => Err(e),
    }
}

/// Returns the offset; EINVAL if it is negative, or if `len` bytes from it exceed the largest
/// offset.
fn checked_offset(at: i64, len: usize) -> Result<u64, Errno> {
    let end = at.checked_add_unsigned(len as u64);
    end.ok_or(Errno::INVAL).and(offset(at))
}

/// Serves read and pread64.
pub unsafe fn read(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return match at {
            // SAFETY: the caller passes the arguments of a call that the program makes.
            None => unsafe { inotify::read(a) },
            Some(_) => PASS,
        };
    };
    if at.is_some_and(|at| at < 0) {
        return errno(Errno::INVAL);
    }
    // SAFETY: the program passed the buffer to this call, which outlasts `to`.
    let to = unsafe { user::output(a[1], a[2] as usize) };
    let read = to.and_then(|to| {
        let at = at.map(|at| checked_offset(at, to.len())).transpose()?;
        let some = |len: usize| {
            let to = to.first(map::resident(a[1] as u64, len)?);
            map::before_read(fs, open, at, to.len());
            fs.read(open, at, to).map(|n| n as i64)
        };
        let len = to.len().min(MAX_TRANSFER);
        some(len).or_else(|e| some(part_there(e, || user::writable(a[1], len))?))
    });
    value(read.map_err(|e| blame(fs, open, false, e)))
}

/// Serves write and pwrite64.
pub unsafe fn write(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    if at.is_some_and(|at| at < 0) {
        return errno(Errno::INVAL);
    }
    // SAFETY: the program passed the buffer to this call, which outlasts `from`.
    let from = unsafe { user::input(a[1], a[2] as usize) };
    let written = from.and_then(|from| {
        let at = at.map(|at| checked_offset(at, from.len())).transpose()?;
        let some = |len: usize| {
            let from = from.first(map::resident(a[1] as u64, len)?);
            let n = put(fs, open, at, None, from)?;
            fs.notify_bytes(open, n as usize, libc::IN_MODIFY);
            Ok(n)
        };
        let len = from.len().min(MAX_TRANSFER);
        some(len).or_else(|e| some(part_there(e, || user::readable(a[1], len))?))
    });
    value(written.map_err(|e| blame(fs, open, true, e)))
}

/// Serves readv, preadv, preadv2, writev, pwritev and pwritev2. `at`: the offset; None or -1: the
/// current offset.
pub unsafe fn vector(a: &[i64; 6], at: Option<i64>, flags: i64, writing: bool) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return match at {
            // SAFETY: the caller passes the arguments of a call that the program makes.
            None if !writing => unsafe { inotify::readv(a) },
            _ => PASS,
        };
    };
    const SYNC: i64 = (libc::RWF_DSYNC | libc::RWF_SYNC) as i64;
    const NOAPPEND: i64 = 0x20;
    // RWF_NOSIGNAL: no signal for a broken pipe.
    const NOSIGNAL: i64 = 0x100;
    const KNOWN: i64 = NOAPPEND
        | NOSIGNAL
        | (libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND) as i64;
    const BOTH: i64 = NOAPPEND | libc::RWF_APPEND as i64;
    let flags = i64::from(flags as i32);
    if at.is_some_and(|at| at < -1) {
        return errno(Errno::INVAL);
    }
    if !fs.may(open, writing) {
        return errno(Errno::BADF);
    }
    if !(0..=IOV_MAX).contains(&a[2]) {
        return errno(Errno::INVAL);
    }
    let append = match flags & BOTH {
        0 => None,
        how => Some(how != NOAPPEND),
    };
    let mut vector = Vector::new();
    // SAFETY: the program passed the vector to this call, which outlasts `vector`.
    let parts = match unsafe { vector.take(a[1], a[2] as usize) } {
        Ok(parts) => parts,
        Err(e) => return errno(e),
    };
    let total: usize = parts.iter().map(Part::len).sum();
    if total == 0 {
        return 0;
    }
    let mut at = match at {
        None | Some(-1) => None,
        Some(n) => match checked_offset(n, total) {
            Ok(n) => Some(n),
            Err(e) => return errno(e),
        },
    };
    let is_dir = fs.description(open).is_dir();
    if flags & !KNOWN != 0 || is_dir && flags & !i64::from(libc::RWF_HIPRI) != 0 {
        return errno(Errno::OPNOTSUPP);
    }
    if flags & BOTH == BOTH {
        return errno(Errno::INVAL);
    }
    // Joins the parts into one piece: a vector is written as a whole, like any other write.
    if writing && parts.len() > 1 {
        let there = |p: &Part| map::resident(p.address(), p.len()) == Ok(p.len());
        if total <= PIECE && flags & SYNC == 0 && parts.iter().all(there) {
            let mut joined: Vec<u8> = Vec::with_capacity(total);
            for p in parts.iter().filter(|p| p.len() > 0) {
                if p.input().append_to(&mut joined).is_err() {
                    let there = user::readable(p.address() as i64, p.len());
                    let _ = p.input().first(there).append_to(&mut joined);
                    break;
                }
            }
            if joined.is_empty() && total > 0 {
                return errno(Errno::FAULT);
            }
            let written = put(fs, open, at, append, joined[..].into());
            return value(written.inspect(|&n| fs.notify_bytes(open, n as usize, libc::IN_MODIFY)));
        }
    }
    let mut done = 0i64;
    for p in parts.iter().filter(|p| p.len() > 0) {
        let some = |len: usize| {
            let len = map::resident(p.address(), len)?;
            if writing {
                put(fs, open, at, append, p.input().first(len))
            } else {
                map::before_read(fs, open, at, len);
                let read = fs.read_part(open, at, p.output().first(len));
                read.map(|n| n as i64)
            }
        };
        let there = || {
            if writing {
                user::readable(p.address() as i64, p.len())
            } else {
                user::writable(p.address() as i64, p.len())
            }
        };
        match some(p.len()).or_else(|e| some(part_there(e, there)?)) {
            Err(e) if done == 0 => return errno(e),
            Err(_) => break,
            Ok(n) => {
                done += n;
                at = at.map(|at| at + n as u64);
                if (n as usize) < p.len() {
                    break;
                }
            }
        }
    }
    let what = if writing {
        libc::IN_MODIFY
    } else {
        libc::IN_ACCESS
    };
    fs.notify_bytes(open, done as usize, what);
    if writing && flags & SYNC != 0 {
        return value(fs.sync_open(open).map(|()| done));
    }
    done
}

/// Writes at the offset that the description's flags or `append` require, as many bytes as limits
/// allow. Watchers of the file aren't notified.
pub fn put(
    fs: &Fs,
    open: u32,
    at: Option<u64>,
    append: Option<bool>,
    from: UserSlice<'_>,
) -> Result<i64, Errno> {
    let append = append.unwrap_or_else(|| fs.description(open).appends());
    let mapped = map::before_write(fs, open, at, append, from.len());
    let written = fs.write_part(open, at, append, from).map(|n| n as i64);
    map::after_change(fs, open, mapped);
    written
}

/// Serves close.
pub fn close(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    if !filter::watched(fd) {
        return PASS;
    }
    let published = fds::pool_file(fd).map_or(Ok(()), |(fs, open)| {
        map::before_change(fs, open);
        fs.buffers().publish(open)
    });
    value(fd_table::close(fd).and_then(|done| published.map(|()| done)))
}

/// Serves lseek.
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
        _ if fds::is_path_only(a[0] as i32) => return errno(Errno::BADF),
        _ => return errno(Errno::INVAL),
    };
    value(fs.seek(open, whence, a[1]).map(|n| n as i64))
}

/// Sets the size of an open file.
///
/// # Errors
/// As for ftruncate.
pub fn cut(fs: &Fs, open: u32, size: u64) -> Result<(), Errno> {
    let mapped = map::before_change(fs, open);
    fs.truncate_open(open, size)?;
    if mapped.is_some() {
        map::after_cut(fs, open, size);
    }
    map::grown(fs, open);
    Ok(())
}

/// Serves ftruncate.
pub fn ftruncate(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(offset(a[1]).and_then(|size| {
        if fs.description(open).is_path_only() {
            return Err(Errno::BADF);
        }
        cut(fs, open, size).map(|()| 0)
    }))
}

/// Serves syncfs.
pub fn syncfs(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some((fs, _)) => {
            fs.buffers().write_back_all();
            value(fs.cluster().data().sync_everywhere().map(|()| 0))
        }
        None => PASS,
    }
}

/// Serves sync, which can't fail. The kernel's own sync follows.
pub fn sync() -> i64 {
    if let Some(fs) = pool::open_fs() {
        let _critical = Critical::enter();
        fs.buffers().write_back_all();
        let _ = fs.cluster().data().sync_everywhere();
    }
    PASS
}

/// Serves fsync and fdatasync.
pub fn fsync(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(map::write_back(fs, open).and_then(|()| fs.sync_open(open).map(|()| 0)))
}

/// Serves sync_file_range, like fsync.
pub fn sync_file_range(a: &[i64; 6]) -> i64 {
    const KNOWN: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    let end = a[1].wrapping_add(a[2]);
    if a[3] as u32 & !KNOWN != 0 || a[1] < 0 || end < a[1] {
        return errno(Errno::INVAL);
    }
    match fs.description(open).kind() {
        libc::S_IFREG | libc::S_IFDIR => fsync(a),
        _ => errno(Errno::SPIPE),
    }
}

/// Serves readahead: only checks the arguments.
pub fn readahead(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    if !fs.may(open, false) {
        return errno(Errno::BADF);
    }
    match fs.description(open).kind() {
        libc::S_IFREG if a[2] >= 0 => 0,
        _ => errno(Errno::INVAL),
    }
}

/// Serves fadvise64: only checks the arguments.
pub fn advise(a: &[i64; 6]) -> i64 {
    if fds::pool_file(a[0] as i32).is_none() {
        return PASS;
    }
    match a[3] as i32 {
        libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE if a[2] >= 0 => 0,
        _ => errno(Errno::INVAL),
    }
}

/// Serves fallocate.
pub fn fallocate(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value((|| {
        let mapped = map::before_change(fs, open);
        let (at, len) = (offset(a[2])?, offset(a[3])?);
        fs.allocate(open, a[1] as i32, at, len)?;
        map::after_change(fs, open, mapped);
        map::grown(fs, open);
        Ok(0)
    })())
}

/// Serves fcntl.
pub unsafe fn fcntl(a: &[i64; 6]) -> i64 {
    let (fd, cmd) = (a[0] as i32, a[1] as i32);
    match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            if forebay_runtime::fd::is_internal(fd) {
                // This library moves its own descriptor to another number.
                return PASS;
            }
            let _change = table_change::begin();
            // SAFETY: the program makes this call; its arguments are passed on unchanged.
            let new = unsafe { raw(libc::SYS_fcntl, *a) };
            if new < 0 {
                return new;
            }
            return value(fd_table::duplicated(fd, new as i32));
        }
        libc::F_GETFD | libc::F_SETFD => return PASS,
        _ => {}
    }
    let Some((fs, open)) = fds::pool_file(fd) else {
        return PASS;
    };
    const F_DUPFD_QUERY: i32 = 1027;
    const F_CREATED_QUERY: i32 = 1028;
    // Hints of how long a file's data will live. The hints are checked, but not stored.
    const F_GET_RW_HINT: i32 = 1035;
    const F_SET_RW_HINT: i32 = 1036;
    const MAX_LIFE_SECONDS: u64 = 5;
    let path_only = fs.description(open).is_path_only();
    match cmd {
        libc::F_GETFL if path_only => i64::from(fs.description(open).shown_flags()),
        libc::F_GETFL => i64::from(fs.description(open).shown_flags()) | 0o100_000,
        F_DUPFD_QUERY => match fds::pool_file(a[2] as i32) {
            Some((_, other)) => i64::from(open == other),
            // SAFETY: F_DUPFD_QUERY takes no pointer.
            None => unsafe { raw(libc::SYS_fcntl, *a) },
        },
        F_CREATED_QUERY => i64::from(fs.description(open).has_made_it()),
        _ if path_only => errno(Errno::BADF),
        libc::F_SETFL => value(fs.description(open).set_status(a[2] as i32).map(|()| 0)),
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => {
            // SAFETY: the program passed this address to fcntl; a bad address is caught.
            unsafe { locks::fcntl(fs, open, cmd, a[2]) }
        }
        c if leases::is_about_signals(c) => {
            // SAFETY: the program passed this argument to fcntl; a bad address is caught.
            unsafe { leases::signals(fs, open, c, a[2]) }
        }
        libc::F_SETLEASE => leases::set(fs, open, a[2]),
        libc::F_GETLEASE => leases::get(fs, open),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => errno(Errno::BADF),
        // SAFETY: the program passed the address of a u64; a bad address is caught.
        F_GET_RW_HINT => value(unsafe { user::give(0u64, a[2]) }),
        // SAFETY: as above.
        F_SET_RW_HINT => match unsafe { user::take::<u64>(a[2]) } {
            Ok(0..=MAX_LIFE_SECONDS) => 0,
            Ok(_) => errno(Errno::INVAL),
            Err(e) => errno(e),
        },
        _ => errno(Errno::INVAL),
    }
}

const FIGETBSZ: u64 = 2;
const FIOQSIZE: u64 = 0x5460;
const FIDEDUPERANGE: u64 = 0xc018_9436;
const FS_IOC_FIEMAP: u64 = 0xc020_660b;

/// Serves ioctl: files of a pool support only the generic commands.
pub unsafe fn ioctl(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    let Some((fs, open)) = fds::pool_file(fd) else {
        return PASS;
    };
    let set_cloexec = |on: i64| {
        // SAFETY: F_SETFD takes no pointer; it sets a flag of the descriptor that the program
        // named.
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
                let at = fs.description(open).offset();
                let left = match fs.size(live) {
                    Ok(size) => size.saturating_sub(at),
                    Err(e) => return errno(e),
                };
                // SAFETY: the program passed this address to be written; a bad address is caught.
                value(unsafe { user::give(left.min(i32::MAX as u64) as i32, a[2]) })
            }
            Err(e) => errno(e),
        },
        FIGETBSZ => {
            // SAFETY: the program passed this address to be written; a bad address is caught.
            value(unsafe { user::give(forebay_store::PAGE as i32, a[2]) })
        }
        FIOQSIZE => match fs.stat_open(open) {
            // FIOQSIZE returns the space that the file occupies, not its size. Bytes.
            Ok(s) if fs.live_of(open).is_ok() => {
                // SAFETY: the program passed this address to be written; a bad address is caught.
                value(unsafe { user::give(s.blocks as i64 * 512, a[2]) })
            }
            Ok(_) => errno(Errno::NOTTY),
            Err(e) => errno(e),
        },
        libc::FIONBIO => {
            // SAFETY: any bytes are an i32; a bad address is caught.
            let on = match unsafe { user::take::<i32>(a[2]) } {
                Err(e) => return errno(e),
                Ok(on) => on != 0,
            };
            let flags = if on { libc::O_NONBLOCK } else { 0 };
            fs.description(open).set_flags(libc::O_NONBLOCK, flags);
            0
        }
        // FIOASYNC requests a signal when data arrive. A file of a pool is always ready, so there
        // is none.
        libc::FIOASYNC => 0,
        // Cloning ranges isn't supported: programs copy instead.
        libc::FICLONE | libc::FICLONERANGE | FIDEDUPERANGE | FS_IOC_FIEMAP => {
            errno(Errno::OPNOTSUPP)
        }
        _ => errno(Errno::NOTTY),
    }
}

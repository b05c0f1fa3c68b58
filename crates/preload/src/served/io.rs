//! System calls on open files: read, write and their vectors, sizes, syncing, fcntl, ioctl.

use crate::map;
use crate::pool::{self, fds};
use crate::program::results::{errno, value};
use crate::program::user::{self, Part, Vector};
use crate::program::{filter, table_change};
use crate::served::{dnotify, fd_table, inotify, locks};
use forebay_intercept::{PASS, raw};
use forebay_posix::{Errno, Fs, UserSlice, Whence};
use forebay_store::process::Critical;

/// Up to this size a vector is written as a whole.
const PIECE: usize = 256 << 10;
const IOV_MAX: i64 = 1024;
/// What one call reads or writes at most, in bytes, as in Linux.
const MOST: usize = 0x7fff_f000;

pub fn offset(n: i64) -> Result<u64, Errno> {
    u64::try_from(n).map_err(|_| Errno::INVAL)
}

/// read and pread64.
pub unsafe fn read(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return match at {
            // SAFETY: the program's own call.
            None => unsafe { inotify::read(a) },
            Some(_) => PASS,
        };
    };
    // SAFETY: the program's own buffer.
    let to = unsafe { user::output(a[1], (a[2] as usize).min(MOST)) };
    value(to.and_then(|to| {
        let at = at.map(offset).transpose()?;
        let to = to.first(map::resident(a[1] as u64, to.len())?);
        map::before_read(fs, open, at, to.len());
        fs.read(open, at, to).map(|n| n as i64)
    }))
}

/// write and pwrite64.
pub unsafe fn write(a: &[i64; 6], at: Option<i64>) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    // SAFETY: the program's own buffer.
    let from = unsafe { user::input(a[1], (a[2] as usize).min(MOST)) };
    value(from.and_then(|from| {
        let at = at.map(offset).transpose()?;
        let from = from.first(map::resident(a[1] as u64, from.len())?);
        let n = put(fs, open, at, None, from)?;
        fs.tell_bytes(open, n as usize, libc::IN_MODIFY);
        Ok(n)
    }))
}

/// readv, preadv, preadv2, writev, pwritev, pwritev2. `at`: the offset, -1 for the
/// current one.
pub unsafe fn vector(a: &[i64; 6], at: Option<i64>, flags: i64, writing: bool) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return match at {
            // SAFETY: the program's own call.
            None if !writing => unsafe { inotify::readv(a) },
            _ => PASS,
        };
    };
    const SYNC: i64 = (libc::RWF_DSYNC | libc::RWF_SYNC) as i64;
    const NOAPPEND: i64 = 0x20;
    const KNOWN: i64 = NOAPPEND
        | (libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND)
            as i64;
    const BOTH: i64 = NOAPPEND | libc::RWF_APPEND as i64;
    if flags & !KNOWN != 0 {
        return errno(Errno::OPNOTSUPP);
    }
    if flags & BOTH == BOTH {
        return errno(Errno::INVAL);
    }
    if !(0..=IOV_MAX).contains(&a[2]) {
        return errno(Errno::INVAL);
    }
    let append = match flags & BOTH {
        0 => None,
        how => Some(how != NOAPPEND),
    };
    let mut at = match at {
        None | Some(-1) => None,
        Some(n) => match offset(n) {
            Ok(n) => Some(n),
            Err(e) => return errno(e),
        },
    };
    let mut vector = Vector::new();
    // SAFETY: the program's own vector.
    let parts = match unsafe { vector.take(a[1], a[2] as usize) } {
        Ok(parts) => parts,
        Err(e) => return errno(e),
    };
    // One piece of data: a vector is written as a whole, like any other write.
    if writing && parts.len() > 1 {
        let total: usize = parts.iter().map(Part::len).sum();
        let there = |p: &Part| map::resident(p.address(), p.len()) == Ok(p.len());
        if total <= PIECE && flags & SYNC == 0 && parts.iter().all(there) {
            let mut joined: Vec<u8> = Vec::with_capacity(total);
            for p in parts.iter().filter(|p| p.len() > 0) {
                if p.input().append_to(&mut joined).is_err() {
                    break;
                }
            }
            if joined.is_empty() && total > 0 {
                return errno(Errno::FAULT);
            }
            let written = put(fs, open, at, append, joined[..].into());
            return value(written.inspect(|&n| fs.tell_bytes(open, n as usize, libc::IN_MODIFY)));
        }
    }
    let mut done = 0i64;
    for p in parts.iter().filter(|p| p.len() > 0) {
        let result = map::resident(p.address(), p.len()).and_then(|len| {
            if writing {
                put(fs, open, at, append, p.input().first(len))
            } else {
                map::before_read(fs, open, at, len);
                let read = fs.read_part(open, at, p.output().first(len));
                read.map(|n| n as i64)
            }
        });
        match result {
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
    if parts.iter().all(|p| p.len() == 0) {
        // Even an empty call checks how the file is open.
        let done = match writing {
            true => fs.write(open, at, (&[][..]).into()),
            false => fs.read(open, at, (&mut [][..]).into()),
        };
        return value(done.map(|n| n as i64));
    }
    let what = if writing {
        libc::IN_MODIFY
    } else {
        libc::IN_ACCESS
    };
    fs.tell_bytes(open, done as usize, what);
    if writing && flags & SYNC != 0 {
        return value(fs.sync_open(open).map(|()| done));
    }
    done
}

/// Writes as the flags of the description say, or as `append` says, as far as limits allow. Those
/// who watch the file aren't told.
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

/// close.
pub fn close(a: &[i64; 6]) -> i64 {
    let fd = a[0] as i32;
    if !filter::watched(fd) {
        return PASS;
    }
    let published = fds::pool_file(fd).map_or(Ok(()), |(fs, open)| {
        map::before_change(fs, open);
        fs.publish(open)
    });
    value(fd_table::close(fd).and_then(|done| published.map(|()| done)))
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

/// ftruncate.
pub fn ftruncate(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(
        offset(a[1])
            .and_then(|size| cut(fs, open, size))
            .map(|()| 0),
    )
}

/// syncfs.
pub fn syncfs(a: &[i64; 6]) -> i64 {
    match fds::pool_file(a[0] as i32) {
        Some((fs, _)) => {
            fs.write_back_all();
            value(fs.cluster().sync_everywhere().map(|()| 0))
        }
        None => PASS,
    }
}

/// sync: it can't fail.
pub fn sync() -> i64 {
    if let Some(fs) = pool::open_fs() {
        let _critical = Critical::enter();
        fs.write_back_all();
        let _ = fs.cluster().sync_everywhere();
    }
    PASS
}

/// fsync, fdatasync, sync_file_range.
pub fn fsync(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    value(map::write_back(fs, open).and_then(|()| fs.sync_open(open).map(|()| 0)))
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
    value((|| {
        let mapped = map::before_change(fs, open);
        fs.allocate(open, a[1] as i32, offset(a[2])?, offset(a[3])?)?;
        map::after_change(fs, open, mapped);
        map::grown(fs, open);
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
            let _change = table_change::begin();
            // SAFETY: the program's own call.
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
    // Hints of how long data will live: of a file, of a description.
    const GET_HINTS: [i32; 2] = [1035, 1037];
    const SET_HINTS: [i32; 2] = [1036, 1038];
    let path_only = fs.description(open).is_path_only();
    match cmd {
        libc::F_GETFL if path_only => i64::from(fs.description(open).shown_flags()),
        libc::F_GETFL => i64::from(fs.description(open).shown_flags()) | 0o100_000,
        F_DUPFD_QUERY => match fds::pool_file(a[2] as i32) {
            Some((_, other)) => i64::from(open == other),
            // SAFETY: the program's own call, on two descriptors of the kernel's.
            None => unsafe { raw(libc::SYS_fcntl, *a) },
        },
        _ if path_only => errno(Errno::BADF),
        libc::F_SETFL => {
            let can = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DIRECT;
            fs.description(open).set_flags(can, a[2] as i32);
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
        // SAFETY: the program's own call.
        c if dnotify::concerns(c) => unsafe { dnotify::fcntl(fs, open, a) },
        libc::F_GETLEASE => i64::from(libc::F_UNLCK),
        libc::F_GETPIPE_SZ | libc::F_SETPIPE_SZ => errno(Errno::BADF),
        c if GET_HINTS.contains(&c) => {
            // SAFETY: the program's own number.
            value(unsafe { user::give(0u64, a[2]) })
        }
        c if SET_HINTS.contains(&c) => 0,
        _ => errno(Errno::INVAL),
    }
}

const FIGETBSZ: u64 = 2;
const FIOQSIZE: u64 = 0x5460;
const FIDEDUPERANGE: u64 = 0xc018_9436;
const FS_IOC_FIEMAP: u64 = 0xc020_660b;

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
                let at = fs.description(open).offset();
                let left = match fs.size(live) {
                    Ok(size) => size.saturating_sub(at),
                    Err(e) => return errno(e),
                };
                // SAFETY: the program's own int.
                value(unsafe { user::give(left.min(i32::MAX as u64) as i32, a[2]) })
            }
            Err(e) => errno(e),
        },
        FIGETBSZ => {
            // SAFETY: the program's own int.
            value(unsafe { user::give(forebay_store::PAGE as i32, a[2]) })
        }
        FIOQSIZE => match fs.stat_open(open) {
            // The room that it takes, oddly.
            Ok(s) if fs.live_of(open).is_ok() => {
                // SAFETY: the program's own loff_t.
                value(unsafe { user::give(s.blocks as i64 * 512, a[2]) })
            }
            Ok(_) => errno(Errno::NOTTY),
            Err(e) => errno(e),
        },
        libc::FIONBIO => {
            // SAFETY: the program's own int.
            let on = match unsafe { user::take::<i32>(a[2]) } {
                Err(e) => return errno(e),
                Ok(on) => on != 0,
            };
            let flags = if on { libc::O_NONBLOCK } else { 0 };
            fs.description(open).set_flags(libc::O_NONBLOCK, flags);
            0
        }
        // Signals when there is something to read: a file of a pool is always ready.
        libc::FIOASYNC => 0,
        // Cloning ranges: copies do as well.
        libc::FICLONE | libc::FICLONERANGE | FIDEDUPERANGE | FS_IOC_FIEMAP => {
            errno(Errno::OPNOTSUPP)
        }
        _ => errno(Errno::NOTTY),
    }
}

//! Attributes and directory entries in the kernel's formats.

use crate::paths::{PathCall, on_path};
use crate::pool::{self, fds, working_dir};
use crate::program::results::{errno, value};
use crate::program::settings;
use crate::program::user::{self, give, take};
use crate::served::cwd;
use forebay_intercept::PASS;
use forebay_posix::{Errno, Follow, Fs, Stat};
use forebay_runtime::guard;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// File system type that statfs returns for a pool: "FBAY".
const MAGIC: i64 = 0x4642_4159;
const NS: i64 = 1_000_000_000;

/// Splits a time in nanoseconds since 1970 into seconds and nanoseconds.
fn split(ns: i64) -> (i64, i64) {
    match u64::try_from(ns) {
        Ok(ns) => ((ns / NS as u64) as i64, (ns % NS as u64) as i64),
        Err(_) => (ns.div_euclid(NS), ns.rem_euclid(NS)),
    }
}

/// Returns the device number of the pool's files. Where the pool is mounted at its prefix, this is
/// the mount's number, by which programs find the pool among all mounts. If the list of the pool's
/// mounts doesn't have the prefix, the kernel isn't asked: the prefix may be the path of an origin
/// that doesn't answer.
fn device(fs: &Fs) -> u64 {
    static DEVICE: AtomicU64 = AtomicU64::new(0);
    let known = DEVICE.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mounted = settings::settings()
        .filter(|s| cwd::is_mounted_at(fs, s.mount))
        .and_then(|s| rustix::fs::stat(s.mount).ok());
    let found = mounted.map_or_else(|| fs.device(), |s| s.st_dev);
    DEVICE.store(found, Relaxed);
    found
}

/// # Safety
/// `out` has room for a struct stat.
unsafe fn put_stat(fs: &Fs, s: &Stat, out: i64) -> Result<i64, Errno> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    st.st_dev = device(fs);
    st.st_ino = s.ino;
    st.st_mode = s.mode;
    st.st_nlink = u64::from(s.nlink);
    st.st_uid = s.uid;
    st.st_gid = s.gid;
    st.st_rdev = s.rdev;
    st.st_size = s.size as i64;
    st.st_blksize = 4096;
    st.st_blocks = s.blocks as i64;
    (st.st_atime, st.st_atime_nsec) = split(s.atime);
    (st.st_mtime, st.st_mtime_nsec) = split(s.mtime);
    (st.st_ctime, st.st_ctime_nsec) = split(s.ctime);
    // SAFETY: the caller promises room for a struct stat; a bad address is caught.
    unsafe { give(st, out) }
}

/// # Safety
/// `out` has room for a struct statx.
unsafe fn put_statx(fs: &Fs, s: &Stat, out: i64) -> Result<i64, Errno> {
    let time = |ns: i64| {
        // SAFETY: the struct has only numbers, for which zero is valid.
        let mut t: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        let (seconds, nanoseconds) = split(ns);
        (t.tv_sec, t.tv_nsec) = (seconds, nanoseconds as u32);
        t
    };
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut x: libc::statx = unsafe { std::mem::zeroed() };
    x.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    x.stx_blksize = 4096;
    x.stx_nlink = s.nlink;
    x.stx_uid = s.uid;
    x.stx_gid = s.gid;
    x.stx_mode = s.mode as u16;
    x.stx_ino = s.ino;
    x.stx_size = s.size;
    x.stx_blocks = s.blocks;
    x.stx_atime = time(s.atime);
    x.stx_mtime = time(s.mtime);
    x.stx_ctime = time(s.ctime);
    x.stx_btime = time(s.btime);
    x.stx_rdev_major = libc::major(s.rdev);
    x.stx_rdev_minor = libc::minor(s.rdev);
    x.stx_dev_major = libc::major(device(fs));
    x.stx_dev_minor = libc::minor(device(fs));
    // SAFETY: the caller promises room for a struct statx; a bad address is caught.
    unsafe { give(x, out) }
}

/// The flags that the stat calls support. With other flags the kernel returns EINVAL, whatever the
/// path.
const STAT_FLAGS: i32 =
    libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | SYNC_TYPE;
const SYNC_TYPE: i32 = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
/// The reserved bit of statx's mask.
const RESERVED: u32 = 0x8000_0000;

fn follow(no_follow: bool) -> Follow {
    if no_follow { Follow::No } else { Follow::Yes }
}

/// Whether a path argument is the empty string: with AT_EMPTY_PATH the call then means the
/// descriptor itself. (In the newest calls a null path means that, too; it isn't checked here.)
///
/// # Safety
/// `ptr` is null or a C string.
pub unsafe fn is_empty(ptr: i64) -> bool {
    // SAFETY: any byte is valid; a bad address is caught.
    ptr != 0 && unsafe { take::<u8>(ptr) } == Ok(0)
}

/// Serves stat and lstat.
pub unsafe fn stat(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let f = follow(p.nr == libc::SYS_lstat);
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 0, f, |fs, place| {
            put_stat(fs, &fs.stat_place(place)?, a[1])
        })
    }
}

/// Serves fstat.
pub unsafe fn fstat(a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_object(a[0] as i32) else {
        return PASS;
    };
    // SAFETY: the program passed room for a struct stat; a bad address is caught.
    value(
        fs.stat_open(open)
            .and_then(|s| unsafe { put_stat(fs, &s, a[1]) }),
    )
}

/// Serves newfstatat.
pub unsafe fn fstatat(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[3] as i32;
    if flags & !STAT_FLAGS != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if (a[1] == 0 || is_empty(a[1])) && flags & libc::AT_EMPTY_PATH != 0 {
            return match fds::pool_object(a[0] as i32) {
                Some((fs, open)) => value(fs.stat_open(open).and_then(|s| put_stat(fs, &s, a[2]))),
                None => empty_at_cwd(a, |fs, s| put_stat(fs, s, a[2])),
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, |fs, place| {
            put_stat(fs, &fs.stat_place(place)?, a[2])
        })
    }
}

/// Serves an empty path at AT_FDCWD: the working directory.
fn empty_at_cwd(a: &[i64; 6], put: impl Fn(&Fs, &Stat) -> Result<i64, Errno>) -> i64 {
    if a[0] as i32 == libc::AT_FDCWD
        && let Some(fs) = pool::open_fs()
        && let Some(cwd) = working_dir::current(fs)
    {
        return value(fs.stat_id(cwd).and_then(|s| put(fs, &s)));
    }
    PASS
}

/// Serves statx.
pub unsafe fn statx(p: PathCall<'_>) -> i64 {
    let a = p.args;
    let flags = a[2] as i32;
    if flags & !STAT_FLAGS != 0 || flags & SYNC_TYPE == SYNC_TYPE || a[3] as u32 & RESERVED != 0 {
        return PASS;
    }
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        if (a[1] == 0 || is_empty(a[1])) && flags & libc::AT_EMPTY_PATH != 0 {
            return match fds::pool_object(a[0] as i32) {
                Some((fs, open)) => value(fs.stat_open(open).and_then(|s| put_statx(fs, &s, a[4]))),
                None => empty_at_cwd(a, |fs, s| put_statx(fs, s, a[4])),
            };
        }
        let f = follow(flags & libc::AT_SYMLINK_NOFOLLOW != 0);
        on_path(p, Some(0), 1, f, |fs, place| {
            put_statx(fs, &fs.stat_place(place)?, a[4])
        })
    }
}

/// # Safety
/// `out` has room for a struct statfs.
unsafe fn put_statfs(fs: &Fs, out: i64) -> Result<i64, Errno> {
    let room = fs.pool().room();
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    st.f_type = MAGIC;
    st.f_bsize = 4096;
    st.f_frsize = 4096;
    st.f_blocks = room.bytes / 4096;
    st.f_bfree = room.free_bytes / 4096;
    st.f_bavail = st.f_bfree;
    st.f_files = room.files;
    st.f_ffree = room.free_files;
    st.f_namelen = 255;
    // SAFETY: the caller promises room for a struct statfs; a bad address is caught.
    unsafe { give(st, out) }
}

/// Serves statfs.
pub unsafe fn statfs(p: PathCall<'_>) -> i64 {
    let a = p.args;
    // SAFETY: the caller passes the arguments of a call that the program makes.
    unsafe {
        on_path(p, None, 0, Follow::Yes, |fs, place| {
            place.existing()?;
            put_statfs(fs, a[1])
        })
    }
}

/// Serves fstatfs.
pub unsafe fn fstatfs(a: &[i64; 6]) -> i64 {
    let Some((fs, _)) = fds::pool_object(a[0] as i32) else {
        return PASS;
    };
    // SAFETY: the program passed room for a struct statfs; a bad address is caught.
    value(unsafe { put_statfs(fs, a[1]) })
}

/// Serves getdents64, and getdents with the older layout.
pub unsafe fn getdents(nr: i64, a: &[i64; 6]) -> i64 {
    let Some((fs, open)) = fds::pool_file(a[0] as i32) else {
        return PASS;
    };
    // The size is an int, as in the kernel.
    let (buffer, size) = (a[1] as *mut u8, (a[2] as i32).max(0) as usize);
    let old = nr == libc::SYS_getdents;
    let mut used = 0;
    let (mut full, mut fault) = (false, false);
    let result = fs.read_dir(open, |name, ino, kind, next| {
        // Layout of an entry, with sizes in bytes: ino 8, next 8, length 2; then type and name, or
        // (getdents) name and type.
        let len = (18 + 1 + name.len() + 1).next_multiple_of(8);
        if used + len > size {
            full = true;
            return false;
        }
        if !user::is_user(a[1].wrapping_add(used as i64), len) {
            fault = true;
            return false;
        }
        // SAFETY: writes only inside the program's buffer: used + len <= size.
        let put = unsafe {
            guard::attempt(|| {
                let at = buffer.wrapping_add(used);
                std::ptr::write_bytes(at, 0, len);
                at.cast::<u64>().write_unaligned(ino);
                at.add(8).cast::<u64>().write_unaligned(next);
                at.add(16).cast::<u16>().write_unaligned(len as u16);
                let (kind_at, name_at) = if old { (len - 1, 18) } else { (18, 19) };
                at.add(kind_at).write((kind >> 12) as u8);
                std::ptr::copy_nonoverlapping(name.as_ptr(), at.add(name_at), name.len());
            })
        };
        if put.is_none() {
            fault = true;
            return false;
        }
        used += len;
        true
    });
    match result {
        Err(e) if used == 0 => errno(e),
        _ if used == 0 && fault => errno(Errno::FAULT),
        _ if used == 0 && full => errno(Errno::INVAL),
        _ => used as i64,
    }
}

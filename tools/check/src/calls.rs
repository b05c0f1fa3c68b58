//! libc's functions as the workers call them, and the clock. Nothing lies between a worker and
//! libc, so an interception of libc is tested.

use libc::c_int;
use std::ffi::CString;

/// A call's result: a number, or an errno.
pub type Result<T> = std::result::Result<T, i32>;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn good(result: c_int) -> Result<i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn counted(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| errno())
}

fn name(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// The attributes of a file or directory that are checked.
pub struct Stat {
    pub size: u64,
    pub links: u32,
    pub inode: u64,
    pub directory: bool,
}

impl Stat {
    fn of(s: &libc::stat) -> Stat {
        Stat {
            size: s.st_size as u64,
            links: s.st_nlink as u32,
            inode: s.st_ino,
            directory: s.st_mode & libc::S_IFMT == libc::S_IFDIR,
        }
    }
}

pub fn open(path: &str, flags: c_int) -> Result<c_int> {
    let path = name(path);
    // SAFETY: `path` is a C string that outlives the call.
    good(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) })
}

pub fn close(fd: c_int) -> Result<i32> {
    // SAFETY: close takes no pointer, and the descriptors are this program's own.
    good(unsafe { libc::close(fd) })
}

pub fn write_at(fd: c_int, bytes: &[u8], at: u64) -> Result<usize> {
    // SAFETY: pointer and length are those of `bytes`.
    counted(unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) })
}

pub fn write(fd: c_int, bytes: &[u8]) -> Result<usize> {
    // SAFETY: pointer and length are those of `bytes`.
    counted(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

pub fn read_at(fd: c_int, bytes: &mut [u8], at: u64) -> Result<usize> {
    // SAFETY: pointer and length are those of `bytes`.
    counted(unsafe {
        libc::pread(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            at as libc::off_t,
        )
    })
}

pub fn truncate(fd: c_int, size: u64) -> Result<i32> {
    // SAFETY: ftruncate takes no pointer.
    good(unsafe { libc::ftruncate(fd, size as libc::off_t) })
}

pub fn fstat(fd: c_int) -> Result<Stat> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: fstat writes only to `s`.
    good(unsafe { libc::fstat(fd, &mut s) })?;
    Ok(Stat::of(&s))
}

pub fn stat(path: &str) -> Result<Stat> {
    let path = name(path);
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut s: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and stat writes only to `s`.
    good(unsafe { libc::stat(path.as_ptr(), &mut s) })?;
    Ok(Stat::of(&s))
}

pub fn unlink(path: &str) -> Result<i32> {
    let path = name(path);
    // SAFETY: `path` is a C string that outlives the call.
    good(unsafe { libc::unlink(path.as_ptr()) })
}

pub fn mkdir(path: &str) -> Result<i32> {
    let path = name(path);
    // SAFETY: `path` is a C string that outlives the call.
    good(unsafe { libc::mkdir(path.as_ptr(), 0o755) })
}

pub fn rmdir(path: &str) -> Result<i32> {
    let path = name(path);
    // SAFETY: `path` is a C string that outlives the call.
    good(unsafe { libc::rmdir(path.as_ptr()) })
}

pub fn link(from: &str, to: &str) -> Result<i32> {
    let (from, to) = (name(from), name(to));
    // SAFETY: both paths are C strings that outlive the call.
    good(unsafe { libc::link(from.as_ptr(), to.as_ptr()) })
}

pub fn rename(from: &str, to: &str) -> Result<i32> {
    let (from, to) = (name(from), name(to));
    // SAFETY: both paths are C strings that outlive the call.
    good(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) })
}

pub fn exchange(one: &str, other: &str) -> Result<i32> {
    let (one, other) = (name(one), name(other));
    let (at, how) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: both paths are C strings that outlive the call.
    good(unsafe { libc::renameat2(at, one.as_ptr(), at, other.as_ptr(), how) })
}

/// Returns the names in a directory, without `.` and `..`.
pub fn list(path: &str) -> Result<Vec<Vec<u8>>> {
    let path = name(path);
    // SAFETY: `path` is a C string that outlives the call.
    let directory = unsafe { libc::opendir(path.as_ptr()) };
    if directory.is_null() {
        return Err(errno());
    }
    let mut names = Vec::new();
    let result = loop {
        // SAFETY: the address is that of this thread's errno, which is always writable.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the directory was opened above, and isn't closed yet.
        let entry = unsafe { libc::readdir(directory) };
        if entry.is_null() {
            break errno();
        }
        // SAFETY: readdir has just returned this entry, whose name ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()) };
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_bytes().to_vec());
        }
    };
    // SAFETY: the directory is open, and not used any more.
    unsafe { libc::closedir(directory) };
    if result != 0 {
        return Err(result);
    }
    Ok(names)
}

pub fn flock(fd: c_int, what: c_int) -> Result<i32> {
    // SAFETY: flock takes no pointer.
    good(unsafe { libc::flock(fd, what | libc::LOCK_NB) })
}

/// Locks or unlocks a whole file. `command` is F_SETLK or F_OFD_SETLK.
pub fn range_lock(fd: c_int, command: c_int, kind: c_int) -> Result<i32> {
    // SAFETY: the struct has only numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    // SAFETY: `lock` is valid during the call.
    good(unsafe { libc::fcntl(fd, command, &mut lock) })
}

/// Returns the time of a clock that all processes of this host share. Nanoseconds.
pub fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes only to `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub fn give_way() {
    // SAFETY: sched_yield has no arguments.
    unsafe { libc::sched_yield() };
}

pub fn parent() -> i32 {
    // SAFETY: getppid has no arguments.
    unsafe { libc::getppid() }
}

pub fn kill(pid: u32) {
    if pid > 1 {
        // SAFETY: kill takes no pointer; the caller knows which process has this id.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}

/// A file system as workers use it. All paths begin at its root. Errors are those of the system
/// calls.
pub trait Face {
    /// open(2).
    fn open(&mut self, path: &str, flags: c_int) -> Result<c_int>;
    /// close(2).
    fn close(&mut self, fd: c_int) -> Result<()>;
    /// pwrite(2).
    fn write_at(&mut self, fd: c_int, bytes: &[u8], at: u64) -> Result<usize>;
    /// write(2).
    fn write(&mut self, fd: c_int, bytes: &[u8]) -> Result<usize>;
    /// pread(2).
    fn read_at(&mut self, fd: c_int, bytes: &mut [u8], at: u64) -> Result<usize>;
    /// ftruncate(2).
    fn truncate(&mut self, fd: c_int, size: u64) -> Result<()>;
    /// fsync(2).
    fn sync(&mut self, fd: c_int) -> Result<()>;
    /// fstat(2).
    fn fstat(&mut self, fd: c_int) -> Result<Stat>;
    /// stat(2).
    fn stat(&mut self, path: &str) -> Result<Stat>;
    /// unlink(2).
    fn unlink(&mut self, path: &str) -> Result<()>;
    /// mkdir(2).
    fn mkdir(&mut self, path: &str) -> Result<()>;
    /// rmdir(2).
    fn rmdir(&mut self, path: &str) -> Result<()>;
    /// link(2).
    fn link(&mut self, from: &str, to: &str) -> Result<()>;
    /// rename(2).
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    /// renameat2(2) with RENAME_EXCHANGE.
    fn exchange(&mut self, one: &str, other: &str) -> Result<()>;
    /// The names in a directory, without `.` and `..`.
    fn list(&mut self, path: &str) -> Result<Vec<Vec<u8>>>;
    /// flock(2) with LOCK_NB.
    fn flock(&mut self, fd: c_int, what: c_int) -> Result<()>;
    /// fcntl(2) with a lock on the whole file.
    fn range_lock(&mut self, fd: c_int, command: c_int, kind: c_int) -> Result<()>;
    /// Removes a directory with everything in it, as far as possible.
    fn remove_all(&mut self, path: &str);
}

/// The file system of the kernel, through libc.
pub struct Libc;

impl Face for Libc {
    fn open(&mut self, path: &str, flags: c_int) -> Result<c_int> {
        open(path, flags)
    }
    fn close(&mut self, fd: c_int) -> Result<()> {
        close(fd).map(drop)
    }
    fn write_at(&mut self, fd: c_int, bytes: &[u8], at: u64) -> Result<usize> {
        write_at(fd, bytes, at)
    }
    fn write(&mut self, fd: c_int, bytes: &[u8]) -> Result<usize> {
        write(fd, bytes)
    }
    fn read_at(&mut self, fd: c_int, bytes: &mut [u8], at: u64) -> Result<usize> {
        read_at(fd, bytes, at)
    }
    fn truncate(&mut self, fd: c_int, size: u64) -> Result<()> {
        truncate(fd, size).map(drop)
    }
    fn sync(&mut self, fd: c_int) -> Result<()> {
        // SAFETY: fsync takes no pointer.
        good(unsafe { libc::fsync(fd) }).map(drop)
    }
    fn fstat(&mut self, fd: c_int) -> Result<Stat> {
        fstat(fd)
    }
    fn stat(&mut self, path: &str) -> Result<Stat> {
        stat(path)
    }
    fn unlink(&mut self, path: &str) -> Result<()> {
        unlink(path).map(drop)
    }
    fn mkdir(&mut self, path: &str) -> Result<()> {
        mkdir(path).map(drop)
    }
    fn rmdir(&mut self, path: &str) -> Result<()> {
        rmdir(path).map(drop)
    }
    fn link(&mut self, from: &str, to: &str) -> Result<()> {
        link(from, to).map(drop)
    }
    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        rename(from, to).map(drop)
    }
    fn exchange(&mut self, one: &str, other: &str) -> Result<()> {
        exchange(one, other).map(drop)
    }
    fn list(&mut self, path: &str) -> Result<Vec<Vec<u8>>> {
        list(path)
    }
    fn flock(&mut self, fd: c_int, what: c_int) -> Result<()> {
        flock(fd, what).map(drop)
    }
    fn range_lock(&mut self, fd: c_int, command: c_int, kind: c_int) -> Result<()> {
        range_lock(fd, command, kind).map(drop)
    }
    fn remove_all(&mut self, path: &str) {
        let _ = std::fs::remove_dir_all(path);
    }
}

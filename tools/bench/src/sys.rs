//! libc's functions as the workers call them. Nothing lies between a worker's loop and libc, so an
//! interception of libc is measured. Also the driver's clock and signals.

use libc::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

/// A path for libc. Its bytes always end with a zero; it may contain a number that can be changed.
pub struct Name {
    bytes: Vec<u8>,
    /// Offset of the number's eight digits. Bytes.
    digits: usize,
}

const DIGITS: usize = 8;

impl Name {
    /// Makes the path `prefix` followed by a number of eight digits, which [`Name::at`] sets.
    pub fn numbered(prefix: &str) -> Result<Name, String> {
        let mut name = Name::of(&format!("{prefix}{:0DIGITS$}", 0))?;
        name.digits = prefix.len();
        Ok(name)
    }

    pub fn of(path: &str) -> Result<Name, String> {
        if path.contains('\0') {
            return Err(format!("{path:?} holds a zero byte"));
        }
        let mut bytes = path.as_bytes().to_vec();
        bytes.push(0);
        Ok(Name {
            digits: bytes.len(),
            bytes,
        })
    }

    /// Sets the number of a numbered path and returns the path.
    #[inline]
    pub fn at(&mut self, mut number: usize) -> &Name {
        let end = (self.digits + DIGITS).min(self.bytes.len());
        for digit in self.bytes[self.digits..end].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self
    }

    #[inline]
    fn pointer(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.bytes.len() - 1]).into_owned()
    }
}

/// Returns an error message with errno.
#[cold]
fn failed<T>(call: &str, what: &str) -> Result<T, String> {
    Err(format!(
        "{call} {what}: {}",
        std::io::Error::last_os_error()
    ))
}

#[inline]
fn good(result: c_int, call: &str, name: &Name) -> Result<c_int, String> {
    if result < 0 {
        return failed(call, &name.text());
    }
    Ok(result)
}

#[inline]
pub fn open(name: &Name, flags: c_int) -> Result<c_int, String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    let fd = unsafe { libc::open(name.pointer(), flags | libc::O_CLOEXEC, 0o644) };
    good(fd, "open", name)
}

#[inline]
pub fn close(fd: c_int) -> Result<(), String> {
    // SAFETY: the descriptor is the caller's own and is not used after.
    if unsafe { libc::close(fd) } < 0 {
        return failed("close", "a file");
    }
    Ok(())
}

#[inline]
fn whole(done: isize, wanted: usize, call: &str) -> Result<(), String> {
    if done < 0 {
        return failed(call, "a file");
    }
    if done as usize != wanted {
        return Err(format!("{call}: {done} bytes instead of {wanted}"));
    }
    Ok(())
}

/// Makes one write, which must be complete.
#[inline]
pub fn write(fd: c_int, data: &[u8]) -> Result<(), String> {
    // SAFETY: the pointer and the length are those of a slice.
    let done = unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) };
    whole(done, data.len(), "write")
}

pub fn fsync(fd: c_int) -> Result<(), String> {
    // SAFETY: fsync takes no pointer.
    match unsafe { libc::fsync(fd) } {
        0 => Ok(()),
        _ => Err(format!("fsync: {}", std::io::Error::last_os_error())),
    }
}

#[inline]
pub fn pwrite(fd: c_int, data: &[u8], offset: usize) -> Result<(), String> {
    // SAFETY: the pointer and the length are those of a slice.
    let done = unsafe { libc::pwrite(fd, data.as_ptr().cast(), data.len(), offset as i64) };
    whole(done, data.len(), "pwrite")
}

/// Makes one read into the buffer, which must return `wanted` bytes.
#[inline]
pub fn read(fd: c_int, buffer: &mut [u8], wanted: usize) -> Result<(), String> {
    // SAFETY: the pointer and the length are those of a slice that this function alone may write.
    let done = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    whole(done, wanted, "read")
}

#[inline]
pub fn pread(fd: c_int, buffer: &mut [u8], offset: usize) -> Result<(), String> {
    // SAFETY: the pointer and the length are those of a slice that this function alone may write.
    let done = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset as i64) };
    whole(done, buffer.len(), "pread")
}

/// Copies the first `len` bytes from one file to another.
pub fn copy_range(from: c_int, into: c_int, len: usize) -> Result<(), String> {
    let (mut at, mut to) = (0, 0);
    while (at as usize) < len {
        let left = len - at as usize;
        // SAFETY: the kernel changes only the offsets, which are local variables.
        let done = unsafe { libc::copy_file_range(from, &mut at, into, &mut to, left, 0) };
        if done <= 0 {
            return whole(done, left, "copy_file_range");
        }
    }
    Ok(())
}

/// Calls setsid(2), as a daemon does, since the kernel may share out processor time by session.
pub fn leave_session() {
    // SAFETY: setsid takes no arguments.
    unsafe { libc::setsid() };
}

pub fn is_root() -> bool {
    // SAFETY: geteuid takes no arguments.
    unsafe { libc::geteuid() == 0 }
}

pub fn truncate(fd: c_int, size: usize) -> Result<(), String> {
    // SAFETY: ftruncate takes no pointer.
    if unsafe { libc::ftruncate(fd, size as i64) } != 0 {
        return failed("ftruncate", "a file");
    }
    Ok(())
}

/// A shared mapping of the beginning of a file.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn of(fd: c_int, len: usize) -> Result<Mapping, String> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address; only this worker uses the file.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return failed("mmap", "a file");
        }
        Ok(Mapping {
            start: start.cast(),
            len,
        })
    }

    fn word(&self, at: usize) -> *mut u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len);
        self.start.wrapping_add(at).cast()
    }

    /// Loads the word at byte `at`, a multiple of 8.
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: the word is inside the mapping and aligned (asserted in `word`).
        unsafe { self.word(at).read_volatile() }
    }

    #[inline]
    pub fn store(&self, at: usize, value: u64) {
        // SAFETY: the word is inside the mapping and aligned (asserted in `word`).
        unsafe { self.word(at).write_volatile(value) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value made the mapping, and nothing uses it afterwards.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

pub fn rewind(fd: c_int) -> Result<(), String> {
    // SAFETY: lseek takes no pointer.
    if unsafe { libc::lseek(fd, 0, libc::SEEK_SET) } != 0 {
        return failed("lseek", "a file");
    }
    Ok(())
}

/// Calls stat(2); returns the size.
#[inline]
pub fn stat(name: &Name) -> Result<i64, String> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a Name ends with a zero; the result has room for a stat.
    let done = unsafe { libc::stat(name.pointer(), found.as_mut_ptr()) };
    good(done, "stat", name)?;
    // SAFETY: stat succeeded, so it has filled all of `found`.
    Ok(unsafe { found.assume_init() }.st_size)
}

/// Calls fstat(2); returns the size.
#[inline]
pub fn fstat(fd: c_int) -> Result<i64, String> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes only to `found`.
    if unsafe { libc::fstat(fd, found.as_mut_ptr()) } < 0 {
        return failed("fstat", "a file");
    }
    // SAFETY: fstat succeeded, so it has filled all of `found`.
    Ok(unsafe { found.assume_init() }.st_size)
}

#[inline]
pub fn unlink(name: &Name) -> Result<(), String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    good(unsafe { libc::unlink(name.pointer()) }, "unlink", name).map(drop)
}

#[inline]
pub fn mkdir(name: &Name) -> Result<(), String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    good(unsafe { libc::mkdir(name.pointer(), 0o755) }, "mkdir", name).map(drop)
}

/// Makes a directory that another process may make at the same time.
pub fn mkdir_shared(name: &Name) -> Result<(), String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    let made = unsafe { libc::mkdir(name.pointer(), 0o755) };
    if made < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST) {
        return Ok(());
    }
    good(made, "mkdir", name).map(drop)
}

#[inline]
pub fn rmdir(name: &Name) -> Result<(), String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    good(unsafe { libc::rmdir(name.pointer()) }, "rmdir", name).map(drop)
}

#[inline]
pub fn rename(from: &Name, to: &Name) -> Result<(), String> {
    // SAFETY: both Names end with a zero.
    let done = unsafe { libc::rename(from.pointer(), to.pointer()) };
    good(done, "rename", from).map(drop)
}

/// Reads a whole directory. Returns the number of entries without `.` and `..`.
pub fn list(name: &Name) -> Result<usize, String> {
    // SAFETY: a Name ends with a zero, and outlives the call.
    let directory = unsafe { libc::opendir(name.pointer()) };
    if directory.is_null() {
        return failed("opendir", &name.text());
    }
    let mut entries = 0;
    loop {
        // SAFETY: the address is that of this thread's errno, which is always writable.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: the directory was opened above, and isn't closed yet.
        let entry = unsafe { libc::readdir64(directory) };
        if entry.is_null() {
            break;
        }
        // SAFETY: readdir64 returned an entry, valid until the next call; its name ends
        // with a zero, thus the second byte is only looked at after a dot.
        let dots = unsafe {
            let name = (&raw const (*entry).d_name).cast::<u8>();
            *name == b'.' && (*name.add(1) == 0 || (*name.add(1) == b'.' && *name.add(2) == 0))
        };
        entries += usize::from(!dots);
    }
    if std::io::Error::last_os_error().raw_os_error() != Some(0) {
        return failed("readdir", &name.text());
    }
    // SAFETY: open until here, not used after.
    unsafe { libc::closedir(directory) };
    Ok(entries)
}

#[inline]
pub fn getppid() -> c_int {
    // SAFETY: getppid takes no arguments.
    unsafe { libc::getppid() }
}

unsafe extern "C" {
    /// libc's list of this process's environment.
    static environ: *const *mut c_char;
}

/// Starts a program without arguments, as [`spawn_with`] does.
pub fn spawn(program: &Name) -> Result<(), String> {
    spawn_with(program, &[])
}

/// Starts a program by posix_spawn, in this process's environment, and waits until it has ended
/// with status 0.
pub fn spawn_with(program: &Name, arguments: &[&Name]) -> Result<(), String> {
    let all = [program].into_iter().chain(arguments.iter().copied());
    let mut arguments: Vec<_> = all.map(|name| name.pointer().cast_mut()).collect();
    arguments.push(std::ptr::null_mut());
    let mut child = 0;
    // SAFETY: the program's name and the list of arguments end with a zero; environ is
    // libc's own, and no thread of the worker changes it.
    let error = unsafe {
        libc::posix_spawn(
            &mut child,
            program.pointer(),
            std::ptr::null(),
            std::ptr::null(),
            arguments.as_ptr(),
            environ,
        )
    };
    if error != 0 {
        let error = std::io::Error::from_raw_os_error(error);
        return Err(format!("posix_spawn {}: {error}", program.text()));
    }
    let mut status = 0;
    // SAFETY: waitpid writes only to `status`, a local variable.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return failed("waitpid", &program.text());
        }
    }
    if status != 0 {
        return Err(format!("{} ended with status {status:#x}", program.text()));
    }
    Ok(())
}

/// Returns the time of the monotonic clock, which is the same in all processes. Nanoseconds.
#[inline]
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime writes only to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub fn sleep_until(nanoseconds: u64) {
    let time = libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    };
    while now() < nanoseconds {
        // SAFETY: the time is valid. With TIMER_ABSTIME, the kernel doesn't write the remaining
        // time, so that pointer may be null.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &time,
                std::ptr::null_mut(),
            )
        };
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether the user has interrupted the driver.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Makes SIGINT, SIGTERM and SIGHUP only set a flag from now on, so that the pool is still taken
/// down.
pub fn note_signals() {
    extern "C" fn note(_: c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, note as extern "C" fn(c_int) as usize) };
    }
}

/// Kills a process group that this process started and whose leader it hasn't waited for yet.
pub fn kill_group(leader: u32) {
    // SAFETY: killpg takes no pointer. The group's number isn't reused while its leader is
    // unreaped.
    unsafe { libc::killpg(leader as i32, libc::SIGKILL) };
}

/// Waits until a child has ended, without collecting its exit status.
pub fn wait_end(child: u32) {
    loop {
        // SAFETY: siginfo_t is plain data, for which zeros are valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: waitid writes only to `info`.
        let done =
            unsafe { libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT) };
        let error = std::io::Error::last_os_error();
        if done == 0 || error.kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}

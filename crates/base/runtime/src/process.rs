//! Identifies processes and finds out whether they live.
//!
//! A process's id and its start time together distinguish it from all other processes of the node,
//! also from later ones with the same id. Id, start time and the state of a slot together form the
//! *owner word* of the slot ([`own_word`]) in a table of processes ([`crate::slots`]).

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::*};

mod beside;

/// This process's id, from the kernel (never cached: forks and vforks change it).
#[inline]
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

/// Reads the file `/proc/PID/NAME` into `text`, without allocation. If the process has no free
/// descriptor, [`beside::read`] reads the file.
fn proc_file<'a>(pid: u32, name: &[u8], text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let mut path = [0u8; 40];
    let mut at = 0;
    for part in [&b"/proc/"[..], decimal(pid, &mut [0; 10]), b"/", name] {
        path[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let path = std::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    let n = match read_whole(path, text) {
        Err(Errno::MFILE) => beside::read(path, text)?,
        read => read?,
    };
    Ok(&text[..n])
}

/// Reads the beginning of the file at `path`, up to the length of `text`. Returns the number of
/// bytes.
fn read_whole(path: &std::ffi::CStr, text: &mut [u8]) -> Result<usize, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    rustix::io::read(&fd, text)
}

/// Reads the beginning of `/proc/PID/NAME`, up to the length of `text`; works without a free
/// descriptor, too. `name` has at most 20 bytes.
///
/// # Errors
/// Those of open and read: ENOENT or ESRCH if there is no such process or it is hidden; EMFILE,
/// ENFILE, EACCES and others if the state can't be found out.
pub fn proc_text<'a>(pid: u32, name: &str, text: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    proc_file(pid, name.as_bytes(), text)
}

/// Returns the fields of a `/proc/PID/stat` after the command name, the process's state first. The
/// command name may hold any characters, so the last ')' marks its end.
fn stat_fields(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let after = text.iter().rposition(|&b| b == b')')? + 2;
    Some(text.get(after..)?.split(|&b| b == b' '))
}

/// A process's state according to the kernel.
///
/// A process is dead only if the kernel says so. Whatever keeps the kernel from answering (no
/// descriptors, a seccomp filter, a hidden or missing /proc) makes the answer `Unknown`. Unknown
/// counts as alive: what living processes hold must never be taken from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process runs. The number is its start time, in clock ticks since boot.
    Runs(u64),
    /// No such process exists, or it is a zombie. (A process whose first thread has ended while
    /// others go on is a zombie with more than one thread in /proc. Such a process counts as
    /// `Runs`.)
    Gone,
    /// The kernel doesn't say whether the process lives; the errno of reading its state.
    Unknown(Errno),
}

/// Asks the kernel for the state of process `pid`. For a process that has ended, this needs no
/// descriptor.
pub fn life(pid: u32) -> Life {
    if is_gone(pid) {
        return Life::Gone;
    }
    let mut text = [0u8; 512];
    let unknown = |e| {
        if is_gone(pid) {
            // The process ended after the first call of `is_gone`.
            Life::Gone
        } else {
            Life::Unknown(e)
        }
    };
    let text = match proc_file(pid, b"stat", &mut text) {
        Ok(text) => text,
        Err(e) => return unknown(e),
    };
    life_in(text).unwrap_or_else(|| unknown(Errno::IO))
}

/// Whether the kernel says that there is no such process, not even a zombie.
fn is_gone(pid: u32) -> bool {
    match rustix::process::Pid::from_raw(pid as i32) {
        Some(pid) if pid.as_raw_nonzero().get() > 0 => {
            rustix::process::test_kill_process(pid) == Err(Errno::SRCH)
        }
        // No process has such a number.
        _ => true,
    }
}

/// Parses the text of a `/proc/PID/stat`; None if the text isn't one.
fn life_in(text: &[u8]) -> Option<Life> {
    let mut fields = stat_fields(text)?;
    let state = fields.next()?;
    let threads = fields.nth(16)?;
    if state == b"X" || state == b"Z" && matches!(threads, b"0" | b"1") {
        return Some(Life::Gone);
    }
    let started = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    Some(Life::Runs(started))
}

/// Returns the CPU time that thread `id` of any process has used so far, if it runs or waits for a
/// core. Nanoseconds. None if it sleeps, has ended, or the kernel doesn't report it.
pub fn core_time_of_runnable(id: u32) -> Option<u64> {
    let (mut stat, mut times) = ([0u8; 512], [0u8; 64]);
    let mut fields = stat_fields(proc_file(id, b"stat", &mut stat).ok()?)?;
    if fields.next()? != b"R" {
        return None;
    }
    let times = proc_file(id, b"schedstat", &mut times).ok()?;
    std::str::from_utf8(times.split(|&b| b == b' ').next()?)
        .ok()?
        .parse()
        .ok()
}

/// This process's start time, in clock ticks since boot.
///
/// # Errors
/// Those of reading the time in /proc: ENFILE, EACCES, ENOENT and others.
pub(crate) fn own_start(pid: u32) -> Result<u64, Errno> {
    let mut text = [0u8; 512];
    match life_in(proc_file(pid, b"stat", &mut text)?) {
        Some(Life::Runs(started)) => Ok(started),
        // The process's first thread has ended, and the calling thread is about to be the last.
        Some(_) => Err(Errno::SRCH),
        None => Err(Errno::IO),
    }
}

/// A number that identifies this process's PID namespace; 0 if it can't be determined.
pub fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |s| s.st_ino)
}

/// Whether this process is in another PID namespace than its parent.
pub fn is_apart() -> bool {
    rustix::process::getppid().is_none()
}

thread_local! {
    /// Whether this thread serves other processes, and therefore never waits for one of them.
    ///
    /// This has to be a thread-local: the value holds for all that the thread does, from its start
    /// on. The value matters where a wait begins: in a lock whose holder may be stopped, or where a
    /// file is fetched from the origin. Every operation of the pool leads to such waits, so every
    /// caller would have to pass the same constant.
    static ANSWERS: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread serves other processes: from now on it doesn't read their files in
/// /proc. A read of `/proc/PID/stat` waits while that process is in exec, and exec waits for
/// replies about the files that it closes. So a thread that serves files must not wait for an exec.
pub fn answer_others() {
    ANSWERS.set(true);
}

/// Whether this thread serves other processes (it called [`answer_others`]).
#[inline]
pub fn is_answering() -> bool {
    ANSWERS.get()
}

/// Whether the process is stopped, by a signal or a debugger. A thread that serves others can't
/// find out and gets false.
pub fn is_stopped(pid: u32) -> bool {
    if is_answering() {
        return false;
    }
    let mut text = [0u8; 512];
    let text = proc_file(pid, b"stat", &mut text).unwrap_or_default();
    stat_fields(text)
        .and_then(|mut f| f.next())
        .is_some_and(|s| matches!(s, b"T" | b"t"))
}

/// Whether the calling thread is this process's only one; false if that can't be determined.
pub fn is_alone() -> bool {
    // /proc/self/task has one directory per thread; its link count is the number of threads plus
    // two.
    rustix::fs::stat("/proc/self/task").is_ok_and(|s| s.st_nlink == 3)
}

/// Returns the name of the program that the process runs; `?` if it can't be read.
pub fn name(pid: u32, text: &mut [u8; 16]) -> &str {
    let name = proc_file(pid, b"comm", text).ok();
    let name = name.and_then(|n| std::str::from_utf8(n).ok());
    name.map_or("?", str::trim_end)
}

/// Writes one line to standard error by a raw system call, without allocation, whatever state the
/// host program is in. Writes nothing if standard error is a file of a pool, since such a write
/// would need locks.
pub fn write_notice(what: std::fmt::Arguments<'_>) {
    use std::io::Write;
    let mut line = [0u8; 256];
    let mut rest = &mut line[..];
    let _ = writeln!(rest, "forebay: {what}");
    let left = rest.len();
    let n = line.len() - left;
    // SAFETY: descriptor 2 is borrowed only for the call, which fails if it is closed.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..n]);
}

/// `n` in decimal, without allocation.
fn decimal(mut n: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buffer[at..];
        }
    }
}

/// States of a process slot, in its owner word.
pub mod state {
    /// Free.
    pub const FREE: u32 = 0;
    /// A parent is preparing the slot for its child.
    pub const RESERVED: u32 = 1;
    /// In use by the process whose id the owner word contains.
    pub const USED: u32 = 2;
    /// The slot's process died; a reaper is releasing what that process held.
    pub const REAPING: u32 = 3;
}

pub(crate) const TIME_BITS: u32 = 40;
pub(crate) const PID_BITS: u32 = 22;
pub(crate) const TIME: u64 = (1 << TIME_BITS) - 1;
pub(crate) const OF_PROCESS: u64 = (1 << (TIME_BITS + PID_BITS)) - 1;

/// The owner word of a slot: state, process id, start time. The start time detects a reused id; it
/// is 0 if it isn't known.
pub(crate) fn word(state: u32, pid: u32, started: u64) -> u64 {
    u64::from(state) << (TIME_BITS + PID_BITS) | u64::from(pid) << TIME_BITS | started & TIME
}

/// This process's owner word. No other process of the node has it, nor does a later one with the
/// same process id.
///
/// # Errors
/// Those of reading this process's start time in /proc.
pub fn own_word() -> Result<u64, Errno> {
    let me = pid();
    Ok(word(state::USED, me, own_start(me)?))
}

/// Like [`own_word`], but without the start time if that can't be read. The owner of a word without
/// start time counts as alive while any process has its id.
pub fn own_word_or_id() -> u64 {
    let me = pid();
    word(state::USED, me, own_start(me).unwrap_or(0))
}

/// Like [`own_word`], of the process `pid`; None if that process doesn't run or its start time
/// can't be read. Not for threads that serve others.
pub fn word_running(pid: u32) -> Option<u64> {
    match life(pid) {
        Life::Runs(started) => Some(word(state::USED, pid, started)),
        Life::Gone | Life::Unknown(_) => None,
    }
}

/// Returns the id of the process to which the thread `tid` belongs; None if there is no such
/// thread. Never waits. Before Linux 6.13, a thread that isn't the first of its process is looked
/// up in `/proc/TID/status`, a read that doesn't wait for an exec either.
pub fn process_of(tid: u32) -> Option<u32> {
    match pidfd(tid, 0) {
        Ok(_) => return Some(tid),
        Err(Errno::SRCH) => return None,
        // `tid` isn't the first thread of a process, or the call is forbidden.
        Err(_) => {}
    }
    if let Some(found) = pidfd(tid, PIDFD_THREAD).ok().and_then(|fd| group_of(&fd)) {
        return Some(found);
    }
    let mut text = [0u8; 512];
    let text = proc_file(tid, b"status", &mut text).ok()?;
    let line = text
        .split(|&b| b == b'\n')
        .find_map(|l| l.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The flag by which pidfd_open(2) accepts any thread. Since Linux 6.9.
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;

fn pidfd(pid: u32, flags: u32) -> Result<OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::from_bits_retain(flags))
}

/// Returns the process of a thread, by PIDFD_GET_INFO (since Linux 6.13).
fn group_of(thread: &OwnedFd) -> Option<u32> {
    /// The first version of `struct pidfd_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        pid: u32,
        tgid: u32,
        more: [u32; 10],
    }
    const GET_INFO: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<Info>(0xff, 11);
    let mut info = Info {
        mask: 1,
        ..Info::default()
    };
    // SAFETY: the call reads and writes a `struct pidfd_info` of the size in its number.
    let asked = unsafe {
        let call = rustix::ioctl::Updater::<GET_INFO, Info>::new(&mut info);
        rustix::ioctl::ioctl(thread, call)
    };
    (asked.is_ok() && info.mask & 1 != 0 && info.tgid != 0).then_some(info.tgid)
}

/// Whether the kernel says that the process has ended (no process has this number, or it is a
/// zombie). Doesn't wait. False if the kernel doesn't answer.
pub fn has_ended(pid: u32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    match pidfd(pid, 0) {
        Ok(fd) => {
            let now = Timespec::default();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1)
        }
        // EINVAL, ENOENT: the number now belongs to a thread that isn't the first of its process.
        Err(e) => matches!(e, Errno::SRCH | Errno::INVAL | Errno::NOENT),
    }
}

/// A number that identifies this boot of the node; 0 if it can't be determined.
pub fn boot() -> u64 {
    static BOOT: AtomicU64 = AtomicU64::new(0);
    let known = BOOT.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut text = [0u8; 64];
    let path = c"/proc/sys/kernel/random/boot_id";
    let read = match read_whole(path, &mut text) {
        Err(Errno::MFILE) => beside::read(path, &mut text),
        read => read,
    };
    let Ok(n) = read else { return 0 };
    // The text consists of hexadecimal digits and dashes; the first 16 digits are enough.
    let digits = text[..n].iter().filter_map(|&b| char::from(b).to_digit(16));
    let boot = digits.take(16).fold(0, |all, d| all << 4 | u64::from(d));
    BOOT.store(boot, Relaxed);
    boot
}

/// State in an owner word.
#[inline]
pub fn state_of(word: u64) -> u32 {
    (word >> (TIME_BITS + PID_BITS)) as u32
}

/// Process id in an owner word.
#[inline]
pub fn pid_of(word: u64) -> u32 {
    (word >> TIME_BITS) as u32 & ((1 << PID_BITS) - 1)
}

/// Whether the process in an owner word still runs, as far as the kernel reports: see [`Life`]. A
/// thread that serves others can't distinguish that process from a later one with the same id.
pub fn runs(word: u64) -> bool {
    if is_answering() {
        return !has_ended(pid_of(word));
    }
    match life(pid_of(word)) {
        Life::Runs(started) => word & TIME == 0 || started & TIME == word & TIME,
        Life::Gone => false,
        Life::Unknown(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_times_tell_processes_apart() {
        let runs = |pid| matches!(life(pid), Life::Runs(_));
        assert!(runs(pid()));
        assert_eq!(life((1 << PID_BITS) - 1), Life::Gone);
        assert_eq!(life(0), Life::Gone);
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        assert!(runs(child.id()));
        child.kill().unwrap();
        // Dead but not waited for: a zombie doesn't count as alive.
        for _ in 0..200 {
            if life(child.id()) == Life::Gone {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(life(child.id()), Life::Gone);
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_answers_others_asks_the_kernel_alone() {
        let mut child = std::process::Command::new("sleep")
            .arg("30")
            .spawn()
            .unwrap();
        let word = word_running(child.id()).unwrap();
        std::thread::scope(|s| {
            let answers = s.spawn(|| {
                answer_others();
                assert!(is_answering());
                assert!(runs(word) && runs(own_word().unwrap()) && !is_stopped(child.id()));
                child.kill().unwrap();
                // The child isn't waited for, so it is a zombie.
                let begun = std::time::Instant::now();
                while runs(word) {
                    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
                    std::thread::yield_now();
                }
                child.wait().unwrap();
                assert!(!runs(word));
            });
            answers.join().unwrap();
        });
        assert!(!is_answering());
    }

    #[test]
    fn threads_belong_to_their_process() {
        assert_eq!(process_of(pid()), Some(pid()));
        let tid = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let other = std::thread::spawn(move || (tid(), process_of(tid())));
        let (id, of) = other.join().unwrap();
        assert_ne!(id, pid());
        assert_eq!(of, Some(pid()));
        assert_eq!(process_of(1 << 30), None);
    }

    #[test]
    fn owner_words_keep_state_id_and_time() {
        let w = own_word().unwrap();
        assert_eq!((state_of(w), pid_of(w)), (state::USED, pid()));
        assert!(runs(w));
        assert!(!runs(w ^ 1), "another start time is another process");
        assert_eq!(pid_of(word(state::RESERVED, 4_194_303, 7)), 4_194_303);
    }

    #[test]
    fn an_owner_without_a_start_time_lives_as_long_as_there_is_any_process_with_its_id() {
        assert!(runs(word(state::USED, pid(), 0)));
        assert!(!runs(word(state::USED, (1 << PID_BITS) - 1, 0)));
    }

    #[test]
    fn without_a_descriptor_a_file_of_proc_reads_the_same() {
        let (mut here, mut there) = ([0; 64], [0; 64]);
        let path = c"/proc/sys/kernel/random/boot_id";
        let n = read_whole(path, &mut here).unwrap();
        assert_eq!(beside::read(path, &mut there), Ok(n));
        assert_eq!(here[..n], there[..n]);
        let absent = beside::read(c"/proc/self/no-such-file", &mut there);
        assert_eq!(absent, Err(Errno::NOENT));
        // The child closes only its own descriptors.
        assert!(rustix::io::fcntl_getfd(std::io::stdout()).is_ok());
    }
}

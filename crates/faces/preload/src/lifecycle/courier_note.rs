//! A courier's note: a file that exists while bytes of an ended program may not be in the pool yet.
//!
//! `DIR/couriers/NAMESPACE-PID` exists and is locked while the courier of process PID works
//! ([`crate::lifecycle::courier`]). The courier removes it once all that the process has written is
//! in the pool. If bytes are lost, the file stays. Its text: [`forebay_client::courier_note`].
//!
//! After the parent has waited for the process (wait4, waitid), the parent also waits for the
//! courier, so that `program > /fb/f; cat /fb/f` sees all bytes. A waiting process that isn't this
//! parent ignores the file: the file is about an earlier process with the same number, or the
//! waiting process only traces the program.

use crate::program::messages;
use crate::program::settings;
use forebay_client::courier_note::{self, Text};
use forebay_store::process::{self, Life};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::Timespec;
use std::time::{Duration, Instant};

/// Maximum time that a parent waits for the courier of a child that has ended.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);
/// First and longest pause between two checks of a note.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

fn dir() -> Option<Vec<u8>> {
    let dir = settings::settings()?.dir.to_bytes();
    Some([dir, b"/", courier_note::DIR.as_bytes()].concat())
}

/// Returns the path of the note for process `pid`, a number in this process's PID namespace.
pub fn path(pid: u32) -> Option<Vec<u8>> {
    let namespace = rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino;
    let name = courier_note::name(namespace, pid);
    Some([&dir()?[..], b"/", name.as_bytes()].concat())
}

/// The process that waits for the program: the program's parent at exec.
#[derive(Clone, Copy, Default)]
pub struct Waiter {
    pub pid: u32,
    /// The process's start time, in clock ticks since boot; 0 if unknown.
    pub start: u64,
}

impl Waiter {
    /// Returns the parent of this process.
    pub fn parent() -> Waiter {
        let parent = rustix::process::getppid();
        Waiter::of(parent.map_or(0, |p| p.as_raw_nonzero().get() as u32))
    }

    fn of(pid: u32) -> Waiter {
        let start = match process::life(pid) {
            Life::Runs(start) => start,
            Life::Gone | Life::Unknown(_) => 0,
        };
        Waiter { pid, start }
    }

    fn is_this_process(self) -> bool {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        pid == self.pid && (self.start == 0 || [0, self.start].contains(&Waiter::of(pid).start))
    }

    fn is_gone(self) -> bool {
        match process::life(self.pid) {
            Life::Runs(start) => self.start != 0 && self.start != start,
            Life::Gone => true,
            Life::Unknown(_) => false,
        }
    }
}

/// A note, locked by its courier.
pub struct Note {
    path: Vec<u8>,
    file: OwnedFd,
}

impl Note {
    /// # Errors
    /// Those of mkdir, open, flock and write; EFBIG if the note is larger than this process may make
    /// files.
    pub fn write(path: &[u8], waiter: Waiter) -> Result<Note, Errno> {
        let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        match rustix::fs::mkdir(&path[..end], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        // Removes the note of an earlier process with the same id, for which no process waited.
        let _ = rustix::fs::unlink(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let courier = std::process::id();
        let head = format!("{courier} {} {}\n", waiter.pid, waiter.start);
        if rustix::io::write(&file, head.as_bytes())? < head.len() {
            let _ = rustix::fs::unlink(path);
            return Err(Errno::FBIG);
        }
        Ok(Note {
            path: path.to_vec(),
            file,
        })
    }

    /// Removes the note: all bytes of the process are written. If bytes are lost, the note stays,
    /// with the text `lost`, or without it if the text can't be written.
    pub fn settle(self, lost: &str) {
        if !lost.is_empty() {
            let _ = rustix::io::write(&self.file, lost.as_bytes());
            return;
        }
        let (Ok(ours), Ok(there)) = (
            rustix::fs::fstat(&self.file),
            rustix::fs::stat(&self.path[..]),
        ) else {
            return;
        };
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) {
            let _ = rustix::fs::unlink(&self.path[..]);
        }
    }
}

fn read(file: &OwnedFd) -> Text {
    let mut text = vec![0; courier_note::MAX_BYTES];
    let n = rustix::io::pread(file, &mut text, 0).unwrap_or(0);
    Text::parse(&text[..n])
}

/// Whether this process traces process `pid`, as strace does, which waits for all its children. A
/// traced process doesn't run while its tracer waits for the courier.
fn is_traced_by_us(pid: u32) -> bool {
    tracer_of(pid).is_some_and(|t| t != 0 && t == crate::program::process::own_pid())
}

/// Returns the process that traces process `pid`: 0 if none does, None if unknown.
pub fn tracer_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines().filter_map(|l| l.strip_prefix("TracerPid:"));
    lines.next().and_then(|l| l.trim().parse().ok())
}

/// How a process waits for a child that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It will wait again (WNOWAIT). The note stays, and the last wait prints what it says.
    Again,
    /// It removes the child.
    Last,
    /// Like `Last`, but maybe no process waits for this process itself. So the note stays for
    /// `forebay run`, as one that is reported.
    Supervisor,
}

/// Waits, up to [`SETTLE_TIMEOUT`], until all that the ended child `pid` has written is in the
/// pool. False if bytes are lost or that isn't known; lines on standard error say which.
pub fn await_settled(pid: u32, wait: Wait) -> bool {
    let Some(dir) = dir() else { return true };
    if rustix::fs::access(&dir[..], rustix::fs::Access::EXISTS).is_err() {
        return true;
    }
    let Some(path) = path(pid) else { return true };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = rustix::fs::open(&path[..], flags, Mode::empty()) else {
        return true;
    };
    let (mut pause, longest) = PAUSES;
    let end = Instant::now() + SETTLE_TIMEOUT;
    let text = read(&file);
    let courier = text.courier;
    let waiter = Waiter {
        pid: text.parent,
        start: text.parent_start,
    };
    if !waiter.is_this_process() {
        if waiter.is_gone() {
            let _ = rustix::fs::unlink(&path[..]);
        }
        return true;
    }
    let mut is_first = true;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(e) => {
                messages::write_line(&format!(
                    "can't find out whether all that process {pid} has written is in the pool: \
                     locking {}: {e}",
                    messages::text(&path)
                ));
                return false;
            }
        }
        if std::mem::take(&mut is_first) && is_traced_by_us(courier) {
            return true;
        }
        if Instant::now() >= end {
            messages::write_line(&format!(
                "what process {pid} has written isn't all in the pool yet, {} s after its end, \
                 and may be lost; `forebay status` tells whether a node hangs",
                SETTLE_TIMEOUT.as_secs()
            ));
            return false;
        }
        // A signal may end the pause early; the loop checks again.
        let _ = rustix::thread::nanosleep(&Timespec {
            tv_sec: 0,
            tv_nsec: pause.subsec_nanos().into(),
        });
        pause = (pause * 2).min(longest);
    }
    if rustix::fs::fstat(&file).is_ok_and(|s| s.st_nlink == 0) {
        return true;
    }
    match wait {
        Wait::Again => return false,
        Wait::Last => _ = rustix::fs::unlink(&path[..]),
        Wait::Supervisor => {
            let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
            let to = [&dir[..], b"/", courier_note::REPORTED.as_bytes(), name].concat();
            let _ = rustix::fs::rename(&path[..], &to[..]);
        }
    }
    for sentence in read(&file).sentences(pid).iter() {
        messages::write_line(sentence);
    }
    false
}

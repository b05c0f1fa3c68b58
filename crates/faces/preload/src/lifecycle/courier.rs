//! The courier: a process that carries bytes between files of the pool and a program that doesn't
//! see the pool (static, Go, set-user-ID). The program has one end of a pipe for each file.
//!
//! `inherited.rs` starts it at such a program's exec: `/bin/sh` with this library, which takes over
//! the process before the shell begins ([`run`]). No process waits for the courier, and signals
//! that are meant for the program don't end it. The courier ends when no process has the other end
//! of its pipes any more.
//!
//! - Output is written at the open file description's own offset, because other processes share
//!   that offset.
//! - Input is read ahead, by at most a pipe's size. When no process has the other end any more, the
//!   description's offset is moved back by what the program hasn't read.
//! - If the program has opened a file through the mount, the program's offset becomes the
//!   description's.
//!
//! The courier's note ([`courier_note`](super::courier_note)) is removed when all bytes that were
//! in the pipes at the program's end are written. Later writes of the program's children don't
//! delay this.

use crate::lifecycle::carrier;
use crate::lifecycle::courier_note::{Note, Waiter};
use crate::lifecycle::exit;
use crate::pool;
use crate::program::messages;
use forebay_intercept::raw;
use forebay_posix::{Fs, Parked, Whence};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The environment variable that makes a process a courier. The variable's value is the [`Errand`].
pub const VARIABLE: &CStr = c"FOREBAY_COURIER";

/// The name of a courier's process.
pub const PROCESS_NAME: &CStr = c"forebay-courier";
/// Maximum number of bytes read or written at a time.
const PIECE: usize = 256 << 10;
/// Time after which exec is assumed to have succeeded.
const EXEC_TIMEOUT: Duration = Duration::from_secs(2);
/// First and longest pause between two checks whether a program has read all of its input.
const PAUSES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// How a program is connected with an open file description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// A pipe that the program reads.
    Input,
    /// A pipe that the program writes.
    Output,
    /// The same file, opened through the mount.
    Mounted,
}

/// One open file description, and the courier's descriptor for it.
#[derive(Clone, Copy)]
pub struct Parcel {
    pub way: Way,
    pub fd: RawFd,
    pub parked: Parked,
}

/// The task of a courier.
pub struct Errand {
    /// Pipe to which the courier reports that it is ready: one byte, 0 or an errno.
    pub ready: RawFd,
    /// Pipe that ends when the program has been executed. One byte means that exec has failed: the
    /// courier puts back the input that it has read, and then closes the pipe.
    pub executed: RawFd,
    /// Pidfd of the program's process.
    pub process: RawFd,
    pub waiter: Waiter,
    /// Path of the courier's note.
    pub note: Vec<u8>,
    pub parcels: Vec<Parcel>,
}

impl Errand {
    /// Returns the text for [`VARIABLE`].
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = format!("{} {} {}", self.ready, self.executed, self.process);
        text += &format!(" {} {}", self.waiter.pid, self.waiter.start);
        for p in &self.parcels {
            let way = match p.way {
                Way::Input => 'i',
                Way::Output => 'o',
                Way::Mounted => 'm',
            };
            let [a, b, c, d] = p.parked.to_words();
            text += &format!(" {way}:{}:{a}:{b}:{c}:{d}", p.fd);
        }
        [text.as_bytes(), b" ", &self.note].concat()
    }

    fn from_text(text: &str) -> Option<Errand> {
        let (head, note) = text.split_once(" /")?;
        let mut words = head.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (ready, executed, process) = (number()?, number()?, number()?);
        let waiter = Waiter {
            pid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
        };
        let parcel = |word: &str| {
            let mut parts = word.split(':');
            let way = match parts.next()? {
                "i" => Way::Input,
                "o" => Way::Output,
                "m" => Way::Mounted,
                _ => return None,
            };
            let fd = parts.next()?.parse().ok()?;
            let mut place = [0; 4];
            for p in &mut place {
                *p = parts.next()?.parse().ok()?;
            }
            let parked = Parked::from_words(place);
            Some(Parcel { way, fd, parked })
        };
        Some(Errand {
            ready,
            executed,
            process,
            waiter,
            note: [b"/", note.as_bytes()].concat(),
            parcels: words.map(parcel).collect::<Option<_>>()?,
        })
    }

    /// Returns the program's process id, from the note's name.
    fn pid(&self) -> u32 {
        let name = self.note.rsplit(|&b| b == b'-').next().unwrap_or_default();
        messages::text(name).parse().unwrap_or(0)
    }

    /// Returns the courier's descriptors, which stay open across exec.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let own = [self.ready, self.executed, self.process];
        let parcels = self.parcels.iter().map(|p| p.fd);
        own.into_iter().chain(parcels).collect()
    }
}

/// An open file description that is being served.
struct Served {
    way: Way,
    fd: OwnedFd,
    open: u32,
    /// Input that has been read and doesn't fit into the pipe yet.
    waiting: Vec<u8>,
    /// Number of output bytes that were in the pipe when the program ended, and still are.
    owed: usize,
    /// Whether the file has no more input.
    at_end: bool,
    /// Whether the output has ended, or no process reads the input any more.
    done: bool,
}

/// Carries out the errand. Doesn't return.
pub fn run(text: &CStr) -> ! {
    let errand = text.to_str().ok().and_then(Errand::from_text);
    // The process that started this one waits for its end. So this process forks and ends; the
    // child does the work.
    if let Some(errand) = errand
        // SAFETY: this process has one thread, so the child inherits no held lock.
        && unsafe { libc::fork() } == 0
    {
        work(&errand);
        exit::before_exit();
    }
    // SAFETY: ends the process; none of the program's code in it has run.
    unsafe { libc::_exit(0) }
}

fn work(errand: &Errand) {
    leave_program(&errand.descriptors());
    carrier::rename(PROCESS_NAME);
    // SAFETY: the process inherited the descriptors for this errand; nothing else here owns them.
    let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    let (ready, executed, process) = (own(errand.ready), own(errand.executed), own(errand.process));
    let taken = take(errand);
    let answer = taken
        .as_ref()
        .map_or_else(|e| e.raw_os_error() as u8, |_| 0);
    let answered = rustix::io::write(&ready, &[answer]);
    drop(ready);
    if let (Ok((fs, served, note)), Ok(_)) = (taken, answered) {
        let mut courier = Courier {
            fs,
            served,
            pid: errand.pid(),
            lost: String::new(),
            note: Some(note),
            process: Some(process),
        };
        courier.carry(executed);
        courier.finish();
    }
}

/// Takes over the descriptions from the process that parked them.
fn take(errand: &Errand) -> Result<(&'static Fs, Vec<Served>, Note), Errno> {
    let fs = pool::fs()?;
    lift_file_size_limit();
    let mut served = Vec::new();
    for p in &errand.parcels {
        let table = fs.descriptors();
        let _changing = table.changing()?;
        let open = table.unpark(&p.parked, true).ok_or(Errno::STALE)?;
        // Recorded under this number, the description is released if this process is killed.
        table.set(p.fd, Some(open))?;
        // SAFETY: the process inherited the descriptor for this errand; nothing else here owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(p.fd) };
        if p.way != Way::Mounted {
            rustix::io::ioctl_fionbio(&fd, true)?;
        }
        served.push(Served {
            way: p.way,
            fd,
            open,
            waiting: Vec::new(),
            owed: 0,
            at_end: false,
            done: p.way == Way::Mounted,
        });
    }
    Ok((fs, served, Note::write(&errand.note, errand.waiter)?))
}

/// Lifts this process's limit on file sizes as far as permitted, for the note. Files of the pool
/// keep the program's limit, which the media have read when the pool was opened.
fn lift_file_size_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let set = |current, maximum| {
        let limit = [current, maximum];
        let args = [
            0,
            i64::from(libc::RLIMIT_FSIZE),
            limit.as_ptr() as i64,
            0,
            0,
            0,
        ];
        // SAFETY: the kernel reads a struct rlimit64 from `limit`.
        unsafe { raw(libc::SYS_prlimit64, args) == 0 }
    };
    // Only a privileged process may raise the hard limit.
    if !set(libc::RLIM_INFINITY, libc::RLIM_INFINITY) {
        let hard = limit.maximum.unwrap_or(libc::RLIM_INFINITY);
        set(hard, hard);
    }
}

/// Separates the courier from the program that started it: signals, terminal, directory,
/// descriptors.
fn leave_program(kept: &[RawFd]) {
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGXFSZ,
    ] {
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let none = 0u64;
    let args = [libc::SIG_SETMASK.into(), &raw const none as i64, 0, 8, 0, 0];
    // SAFETY: `none` is a local mask of 8 bytes; the old mask isn't asked for.
    unsafe { raw(libc::SYS_rt_sigprocmask, args) };
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    close_descriptors(kept);
}

/// Closes all descriptors but `kept`. Numbers 0 to 2 become /dev/null, unless they are kept.
pub fn close_descriptors(kept: &[RawFd]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut from = 0;
    for end in kept.into_iter().chain([RawFd::MAX]) {
        if end > from {
            let args = [from.into(), i64::from(end) - 1, 0, 0, 0, 0];
            // SAFETY: the courier's own descriptors aren't in the range.
            unsafe { raw(libc::SYS_close_range, args) };
        }
        from = end.saturating_add(1);
    }
    // Opens /dev/null at numbers 0 to 2, so that they don't get another file: libraries write to
    // them.
    for _ in 0..3 {
        let flags = rustix::fs::OFlags::RDWR;
        if let Ok(null) = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty()) {
            let fd = std::os::fd::IntoRawFd::into_raw_fd(null);
            if fd > 2 {
                // SAFETY: `fd` was just opened here, and nothing else owns it.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
                break;
            }
        }
    }
}

struct Courier {
    fs: &'static Fs,
    served: Vec<Served>,
    /// Process id of the program.
    pid: u32,
    /// Which bytes are lost, and why: one sentence on each line.
    lost: String,
    /// None once all bytes of the program are written.
    note: Option<Note>,
    /// Pidfd of the program; None once the program has ended.
    process: Option<OwnedFd>,
}

impl Courier {
    fn carry(&mut self, executed: OwnedFd) {
        let mut executed = Some(executed);
        let begun = Instant::now();
        let (mut pause, longest) = PAUSES;
        let mut buffer = vec![0; PIECE];
        loop {
            let is_executing = executed.is_some() && begun.elapsed() < EXEC_TIMEOUT;
            let mut moved = false;
            if !is_executing {
                moved |= self.fill();
            }
            let events = self.wait(executed.as_ref(), is_executing, pause);
            if let Some(fd) = &executed
                && events.executed
            {
                // One byte: the program wasn't executed, and it has read and written nothing. If
                // exec took longer than EXEC_TIMEOUT, input has been read ahead. The process that
                // called exec waits for the end of `executed`, and then reads at the offset.
                if rustix::io::read(fd, &mut [0; 1]) == Ok(1) {
                    for i in 0..self.served.len() {
                        self.put_back(i);
                    }
                    return;
                }
                executed = None;
                continue;
            }
            for i in events.outputs {
                moved |= self.take_output(i, &mut buffer);
            }
            for i in events.unread {
                self.put_back(i);
            }
            if events.ended {
                self.process = None;
                for s in self.served.iter_mut().filter(|s| s.way == Way::Output) {
                    s.owed = rustix::io::ioctl_fionread(&s.fd).unwrap_or(0) as usize;
                }
            }
            if self.process.is_none() && self.served.iter().all(|s| s.done || s.owed == 0) {
                self.settle();
            }
            // For a file opened through the mount, the courier waits for the end of the program, to
            // set the offset.
            let waits = self.note.is_some() && self.served.iter().any(|s| s.way == Way::Mounted);
            if self.served.iter().all(|s| s.done) && !waits {
                return;
            }
            pause = if moved {
                PAUSES.0
            } else {
                (pause * 2).min(longest)
            };
        }
    }

    /// Waits for the next events.
    fn wait(&self, executed: Option<&OwnedFd>, is_executing: bool, pause: Duration) -> Events {
        let mut events = Events::default();
        let mut list = Vec::new();
        let mut what = Vec::new();
        let mut add = |fd: BorrowedFd<'_>, flags, meaning| {
            // SAFETY: the descriptor stays open for this call.
            list.push(PollFd::from_borrowed_fd(
                unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) },
                flags,
            ));
            what.push(meaning);
        };
        if let Some(fd) = executed {
            add(fd.as_fd(), PollFlags::IN, Meaning::Executed);
        }
        if let Some(fd) = &self.process {
            add(fd.as_fd(), PollFlags::IN, Meaning::Ended);
        }
        let mut drains = false;
        for (i, s) in self.served.iter().enumerate().filter(|(_, s)| !s.done) {
            match s.way {
                Way::Output => add(s.fd.as_fd(), PollFlags::IN, Meaning::Output(i)),
                Way::Input => {
                    drains |= s.at_end && s.waiting.is_empty();
                    let flags = if is_executing || s.waiting.is_empty() && s.at_end {
                        PollFlags::empty()
                    } else {
                        PollFlags::OUT
                    };
                    add(s.fd.as_fd(), flags, Meaning::Input(i));
                }
                Way::Mounted => {}
            }
        }
        // The kernel doesn't report when a pipe becomes empty, so the courier checks after a pause.
        let timeout = match (drains, is_executing) {
            (true, _) => Some(pause),
            (_, true) => Some(EXEC_TIMEOUT),
            _ => None,
        };
        let timeout = timeout.and_then(|t| t.try_into().ok());
        if poll(&mut list, timeout.as_ref()).is_err() {
            return events;
        }
        for (p, meaning) in list.iter().zip(what) {
            let got = p.revents();
            if got.is_empty() {
                continue;
            }
            match meaning {
                Meaning::Executed => events.executed = true,
                Meaning::Ended => events.ended = true,
                Meaning::Output(i) => events.outputs.push(i),
                Meaning::Input(i) if got.contains(PollFlags::ERR) => events.unread.push(i),
                Meaning::Input(_) => {}
            }
        }
        events
    }

    /// Fills pipes with input. Returns whether any bytes were moved.
    fn fill(&mut self) -> bool {
        let mut moved = false;
        let inputs = self.served.iter_mut();
        for s in inputs.filter(|s| s.way == Way::Input && !s.done) {
            if s.waiting.is_empty() && !s.at_end {
                let mut piece = vec![0; PIECE];
                match self.fs.read(s.open, None, (&mut piece[..]).into()) {
                    Ok(0) => s.at_end = true,
                    Ok(n) => {
                        piece.truncate(n);
                        s.waiting = piece;
                    }
                    Err(e) => {
                        s.at_end = true;
                        let path = visible_path(self.fs, s.open);
                        let pid = self.pid;
                        self.lost += &format!(
                            "process {pid} hasn't got all of its input: {path} can't be read: \
                             {}; run the program again\n",
                            messages::error(e)
                        );
                    }
                }
            }
            if !s.waiting.is_empty() {
                if let Ok(n) = rustix::io::write(&s.fd, &s.waiting) {
                    s.waiting.drain(..n);
                    moved = true;
                }
            } else if rustix::io::ioctl_fionread(&s.fd) == Ok(0) {
                // Closing this end shows the program the end of its input.
                s.done = true;
                close(s);
            }
        }
        moved
    }

    /// Ends an input that no process reads any more: sets the offset to the first unread byte. Does
    /// nothing for an input that has ended, and for other descriptions.
    fn put_back(&mut self, i: usize) {
        let s = &mut self.served[i];
        if s.way != Way::Input || s.done {
            return;
        }
        let in_pipe = rustix::io::ioctl_fionread(&s.fd).unwrap_or(0);
        let left = in_pipe as i64 + s.waiting.len() as i64;
        if left > 0 {
            let _ = self.fs.seek(s.open, Whence::Current, -left);
        }
        s.done = true;
        close(s);
    }

    /// Writes the program's output to the file. Returns whether there was any output.
    fn take_output(&mut self, i: usize, buffer: &mut [u8]) -> bool {
        let s = &mut self.served[i];
        let n = match rustix::io::read(&s.fd, &mut *buffer) {
            Ok(0) => {
                s.done = true;
                close(s);
                return false;
            }
            Ok(n) => n,
            Err(_) => return false,
        };
        s.owed = s.owed.saturating_sub(n);
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            match self.fs.write(s.open, None, rest.into()) {
                Ok(n) if n > 0 => rest = &rest[n..],
                other => {
                    let e = other.err().unwrap_or(Errno::NOSPC);
                    let (pid, path) = (self.pid, visible_path(self.fs, s.open));
                    let advice = match e {
                        Errno::NOSPC => {
                            "make room in the pool (rm, forebay stage out), or start a larger one \
                             with --media; then run"
                        }
                        _ => "run",
                    };
                    self.lost += &format!(
                        "not all that process {pid} has written is in {path}: {}; {advice} the \
                         program again\n",
                        messages::error(e)
                    );
                    // Closing the pipe makes the program's next write fail.
                    s.done = true;
                    close(s);
                    break;
                }
            }
        }
        true
    }

    /// Settles the note: removes it, or records the lost bytes in it. The program has ended, and
    /// its bytes have left the pipes.
    fn settle(&mut self) {
        let Some(note) = self.note.take() else {
            return;
        };
        for s in self.served.iter().filter(|s| s.way == Way::Mounted) {
            if let Ok(at) = rustix::fs::seek(&s.fd, SeekFrom::Current(0)) {
                self.fs.description(s.open).set_offset(at);
            }
        }
        self.fs.buffers().publish_all();
        note.settle(&self.lost);
    }

    fn finish(mut self) {
        self.settle();
        let table = self.fs.descriptors();
        for s in self.served.drain(..) {
            let _changing = table.changing().ok();
            if let Ok(Some(open)) = table.set(s.fd.as_raw_fd(), None) {
                let _ = self.fs.description(open).close();
            }
        }
    }
}

/// Returns the path of an open file as programs see it.
fn visible_path(fs: &Fs, open: u32) -> String {
    let path = fs.path_of_open(open).unwrap_or_default();
    let path = [fs.mount(), &path].concat();
    // A note has one line for each loss.
    messages::text(&path).replace('\n', "?")
}

/// Closes this end of a pipe; the descriptor's number stays in use.
fn close(s: &mut Served) {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    if let Ok(other) = rustix::fs::open("/", flags, rustix::fs::Mode::empty()) {
        let _ = rustix::io::dup2(&other, &mut s.fd);
    }
}

/// The reasons for which a descriptor is ready.
enum Meaning {
    Executed,
    Ended,
    Output(usize),
    Input(usize),
}

/// The events that the courier has to handle.
#[derive(Default)]
struct Events {
    executed: bool,
    ended: bool,
    /// Indices of outputs that have bytes, or have ended.
    outputs: Vec<usize>,
    /// Indices of inputs that no process reads any more.
    unread: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errand_survives_the_environment() {
        let errand = Errand {
            ready: 5,
            executed: 6,
            process: 7,
            waiter: Waiter {
                pid: 8,
                start: u64::MAX,
            },
            note: b"/dev/shm/a b/couriers/1-2".to_vec(),
            parcels: vec![Parcel {
                way: Way::Output,
                fd: 9,
                parked: Parked::from_words([1, u32::MAX, 3, 4]),
            }],
        };
        let text = String::from_utf8(errand.to_text()).unwrap();
        let again = Errand::from_text(&text).unwrap();
        assert_eq!(again.to_text(), errand.to_text());
        assert_eq!(again.descriptors(), [5, 6, 7, 9]);
        for bad in [
            "",
            "1 2 3",
            "1 2 x 4 5 /a",
            "1 2 3 /a",
            "1 2 3 4 5 q:1:2:3:4:5 /a",
        ] {
            assert!(Errand::from_text(bad).is_none(), "{bad}");
        }
    }
}

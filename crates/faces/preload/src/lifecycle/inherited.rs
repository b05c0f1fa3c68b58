//! Pool descriptors inherited by a program that doesn't see the pool (static, Go, set-user-ID;
//! [`static_binary_hint`](super::static_binary_hint)), or that leaves it: Forebay's command line,
//! and programs of another pool ([`environ::leaves_pool`](super::environ::leaves_pool)).
//!
//! To the kernel, pool descriptors are placeholders, on which reads and writes give EBADF. Many
//! programs ignore that error, and would end successfully with their output lost. So at exec such a
//! program gets, under the same numbers:
//! - where the pool is mounted: the file opened through the mount, at the same offset and with the
//!   same flags (but not if other processes share the offset of a file that is only read or only
//!   written);
//! - otherwise: one end of a pipe; a *courier* serves the other end ([`courier`](super::courier)).
//!
//! Where neither is possible for numbers 0 to 2, exec fails with EOPNOTSUPP and a line on standard
//! error. Numbers above 2 are best effort, because most of them are leaked. Two kinds of them stay
//! as they are, with a line on standard error: files open for reading and writing (mostly locks);
//! and files that other processes read at the same offset, because a courier would read ahead of
//! them. Directories and FIFOs stay as they are, too.

use crate::lifecycle::carrier::Carrier;
use crate::lifecycle::courier::{self, Errand, Parcel, Way};
use crate::lifecycle::courier_note::{self, Waiter};
use crate::pool::{self, fds, placeholder};
use crate::program::{mask, messages, results, settings};
use crate::served::cwd;
use forebay_intercept::raw;
use forebay_posix::{Errno, Fs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Maximum time in which a courier must be ready.
const COURIER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of open files that a courier serves for one program.
const MAX_FILES: usize = 16;
/// Preferred size of a pipe for data. Bytes. All pipes of a user together have a soft limit
/// (`/proc/sys/fs/pipe-user-pages-soft`, 64 MiB).
const DATA_PIPE_SIZE: i64 = 256 << 10;

/// The descriptors that stay open across exec and stand for one description.
struct Group {
    open: u32,
    numbers: Vec<RawFd>,
}

/// The descriptors that replace pool descriptors for a program that doesn't see the pool, as
/// numbers, not owned descriptors: a vfork child's memory is freed by its parent, which doesn't
/// have these descriptors.
#[derive(Clone, Default)]
pub struct Inherited {
    replaced: Vec<RawFd>,
    /// The pipe by which the courier sees that exec has succeeded.
    executed: Option<RawFd>,
}

/// Returns the pool descriptors that would stay open across exec. `only`: if given, the one
/// descriptor that is considered.
fn groups(fs: &Fs, only: Option<RawFd>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let end = fs.descriptors().end().min(forebay_store::MAX_FDS) as RawFd;
    for fd in (0..end).filter(|&fd| only.is_none_or(|only| fd == only)) {
        let Some((fs, open)) = fds::pool_file(fd) else {
            continue;
        };
        // SAFETY: F_GETFD takes no pointer.
        let flags = unsafe {
            raw(
                libc::SYS_fcntl,
                [fd.into(), libc::F_GETFD.into(), 0, 0, 0, 0],
            )
        };
        let stays = flags >= 0 && flags & i64::from(libc::FD_CLOEXEC) == 0;
        if !stays || fs.description(open).is_path_only() {
            continue;
        }
        match groups.iter_mut().find(|g| g.open == open) {
            Some(group) => group.numbers.push(fd),
            None => groups.push(Group {
                open,
                numbers: vec![fd],
            }),
        }
    }
    groups
}

/// Whether pool descriptors would stay open across exec.
pub fn any() -> bool {
    pool::open_fs().is_some_and(|fs| !groups(fs, None).is_empty())
}

/// Whether [`replace`] would start a courier.
pub fn needs_courier(only: Option<RawFd>) -> bool {
    let Some(fs) = pool::open_fs() else {
        return false;
    };
    let work = Work::new(fs, false);
    let chosen = |group: &Group| work.choose(group);
    groups(fs, only).iter().any(|group| {
        matches!(
            chosen(group),
            Ok(Chosen::Mounted(_, true) | Chosen::Pipe(_))
        )
    })
}

/// Replaces pool descriptors by descriptors that work in a program that doesn't see the pool.
/// `only`: the one descriptor that is replaced. `is_supervised`: this process's parent has the same
/// descriptors, and doesn't use them. To be called right before exec.
///
/// # Errors
/// EOPNOTSUPP; a line on standard error says why.
pub fn replace(name: &[u8], only: Option<RawFd>, is_supervised: bool) -> Result<Inherited, Errno> {
    let Some(fs) = pool::open_fs() else {
        return Ok(Inherited::default());
    };
    let groups = groups(fs, only);
    if groups.is_empty() {
        return Ok(Inherited::default());
    }
    let mut work = Work::new(fs, is_supervised);
    work.replace(&groups).map_err(|why| {
        for (parcel, _) in &work.parcels {
            fs.descriptors().drop_parked(&parcel.parked);
        }
        let mount = settings::settings().map_or(&b""[..], |s| s.mount);
        messages::write_line(&format!(
            "{}: not executed, since it doesn't see {} and would lose what it reads or writes \
             there: {why}. A pipe helps (`| cat > FILE`), or `forebay exec --with-mount`",
            messages::text(name),
            messages::text(mount),
        ));
        Errno::OPNOTSUPP
    })
}

/// The replacement of a description.
enum Chosen {
    /// The file opened through the mount, and whether the description's offset must follow it.
    Mounted(OwnedFd, bool),
    /// A pipe.
    Pipe(Way),
    /// Nothing: the placeholder stays.
    Placeholder,
}

struct Work {
    fs: &'static Fs,
    /// Number of processes that have this process's descriptors, and count as one user of a
    /// description: this process, and its supervisor.
    holders: u32,
    /// Descriptors for the program, and the numbers at which it is to have them.
    given: Vec<(OwnedFd, Vec<RawFd>)>,
    /// Descriptions for a courier, and the courier's descriptor for each.
    parcels: Vec<(Parcel, OwnedFd)>,
}

impl Work {
    fn new(fs: &'static Fs, is_supervised: bool) -> Work {
        Work {
            fs,
            holders: 1 + u32::from(is_supervised),
            given: Vec::new(),
            parcels: Vec::new(),
        }
    }

    fn replace(&mut self, groups: &[Group]) -> Result<Inherited, String> {
        // The groups are in ascending order of their first numbers: standard input, output and
        // error come first.
        for group in groups {
            let first = group.numbers[0];
            match self.prepare(group) {
                Err(why) if first > 2 => messages::complain(&format!(
                    "descriptor {first} can't be used by a program that doesn't see the pool: {why}"
                )),
                prepared => prepared?,
            }
        }
        let mut inherited = Inherited::default();
        if !self.parcels.is_empty() {
            let executed = self.start_courier().map_err(|e| e.to_string())?;
            inherited.executed = Some(executed.into_raw_fd());
        }
        for (fd, numbers) in &self.given {
            for &number in numbers {
                inherited.replaced.push(number);
                let args = [fd.as_raw_fd().into(), number.into(), 0, 0, 0, 0];
                // SAFETY: dup2 takes no pointer; it replaces only a placeholder of the program.
                if let Err(e) = results::check(unsafe { raw(libc::SYS_dup2, args) }) {
                    inherited.put_back();
                    return Err(format!("descriptor {number}: {e}"));
                }
            }
        }
        Ok(inherited)
    }

    /// Returns what the program gets in place of a description.
    ///
    /// # Errors
    /// The reason why it can get nothing.
    fn choose(&self, group: &Group) -> Result<Chosen, String> {
        let fs = self.fs;
        let description = fs.description(group.open);
        let (flags, is_dir) = (description.flags(), description.is_dir());
        let access = flags & libc::O_ACCMODE;
        let is_shared = description.uses() > self.own_uses(group.open) * self.holders;
        // Whether bytes must pass through a pipe, because several users share the offset.
        let needs_offset =
            is_shared && !is_dir && !(flags & libc::O_APPEND != 0 && access == libc::O_WRONLY);
        if (!needs_offset || access == libc::O_RDWR)
            && let Some(fd) = cwd::open_mounted(fs, group.open)
        {
            return Ok(Chosen::Mounted(fd, needs_offset));
        }
        if is_dir {
            return Ok(Chosen::Placeholder);
        }
        let first = group.numbers[0];
        let writes = group.numbers.iter().any(|n| matches!(n, 1 | 2));
        Ok(Chosen::Pipe(match access {
            libc::O_RDONLY if first <= 2 || !is_shared => Way::Input,
            libc::O_WRONLY => Way::Output,
            libc::O_RDONLY => return Err("another process reads at the same offset".into()),
            _ if first > 2 => return Err("it is open for reading and writing".into()),
            _ if first == 0 && writes => {
                return Err("its input is its output, open for reading and writing".into());
            }
            _ if writes => Way::Output,
            _ => Way::Input,
        }))
    }

    fn prepare(&mut self, group: &Group) -> Result<(), String> {
        let way = match self.choose(group)? {
            Chosen::Mounted(fd, needs_offset) => {
                if needs_offset {
                    let copy = rustix::io::fcntl_dupfd_cloexec(&fd, 3);
                    self.park(Way::Mounted, copy.map_err(|e| e.to_string())?, group)?;
                }
                self.given.push((fd, group.numbers.clone()));
                return Ok(());
            }
            Chosen::Pipe(way) => way,
            Chosen::Placeholder => return Ok(()),
        };
        let (read, write) = pipe().map_err(|e| e.to_string())?;
        let args = [
            write.as_raw_fd().into(),
            libc::F_SETPIPE_SZ.into(),
            DATA_PIPE_SIZE,
            0,
            0,
            0,
        ];
        // If the pipe may not be that large, the usual size suffices.
        // SAFETY: F_SETPIPE_SZ takes no pointer.
        unsafe { raw(libc::SYS_fcntl, args) };
        let (theirs, ours) = match way {
            Way::Input => (read, write),
            _ => (write, read),
        };
        self.park(way, ours, group)?;
        self.given.push((theirs, group.numbers.clone()));
        Ok(())
    }

    /// Returns how many descriptors of this process stand for the description `open`.
    fn own_uses(&self, open: u32) -> u32 {
        let table = self.fs.descriptors();
        let numbers = 0..table.end().min(forebay_store::MAX_FDS) as RawFd;
        numbers.filter(|&fd| table.get(fd) == Some(open)).count() as u32
    }

    fn park(&mut self, way: Way, ours: OwnedFd, group: &Group) -> Result<(), String> {
        if self.parcels.len() == MAX_FILES {
            return Err(format!("more than {MAX_FILES} of its open files lie there"));
        }
        let parked = self.fs.descriptors().park(group.numbers[0]);
        let parked = parked.map_err(|e| e.to_string())?;
        self.fs.buffers().write_back_open(parked.open());
        let fd = ours.as_raw_fd();
        self.parcels.push((Parcel { way, fd, parked }, ours));
        Ok(())
    }

    /// Starts the courier and waits until it has taken over all descriptions. Returns the end of a
    /// pipe: when exec closes it, the courier sees that exec has succeeded.
    fn start_courier(&mut self) -> Result<OwnedFd, Errno> {
        let (is_ready, ready) = pipe()?;
        let (executed, executing) = pipe()?;
        // SAFETY: getpid takes no pointer. (A vfork child's number differs from its parent's.)
        let pid = unsafe { raw(libc::SYS_getpid, [0; 6]) };
        // SAFETY: pidfd_open takes no pointer; the new descriptor is owned by nothing else.
        let process = unsafe {
            let fd = results::check(raw(libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0]))?;
            above_stdio(OwnedFd::from_raw_fd(fd as RawFd))?
        };
        let errand = Errand {
            ready: ready.as_raw_fd(),
            executed: executed.as_raw_fd(),
            process: process.as_raw_fd(),
            waiter: Waiter::parent(),
            note: courier_note::path(pid as u32).ok_or(Errno::NOTCONN)?,
            parcels: self.parcels.iter().map(|(parcel, _)| *parcel).collect(),
        };
        let child = spawn(&errand)?;
        drop(ready);
        let in_time = is_readable_in(&is_ready, COURIER_TIMEOUT);
        if !in_time {
            // SAFETY: no thread has waited for `child` yet, so its number isn't reused.
            unsafe { raw(libc::SYS_kill, [child, libc::SIGKILL.into(), 0, 0, 0, 0]) };
        }
        // SAFETY: as above.
        while unsafe { raw(libc::SYS_wait4, [child, 0, libc::__WALL.into(), 0, 0, 0]) }
            == results::errno(Errno::INTR)
        {}
        let mut answer = [0];
        if !in_time {
            return Err(Errno::TIMEDOUT);
        }
        match rustix::io::read(&is_ready, &mut answer) {
            Ok(1) => {}
            // The courier has ended before it was ready.
            _ => return Err(Errno::NOTCONN),
        }
        match answer[0] {
            0 => {
                self.parcels.clear();
                Ok(executing)
            }
            e => Err(Errno::from_raw_os_error(e.into())),
        }
    }
}

impl Inherited {
    /// Restores the program's pool descriptors after exec has failed. Waits for the courier for up
    /// to [`COURIER_TIMEOUT`].
    pub fn put_back(&self) {
        if let Some(executed) = self.executed {
            // SAFETY: `replace` made the descriptor, and nothing else owns it.
            end_courier(unsafe { OwnedFd::from_raw_fd(executed) });
        }
        let place = pool::open_fs().and_then(|fs| placeholder::descriptor(fs).ok());
        for &number in &self.replaced {
            if let Some(place) = &place {
                // SAFETY: makes the program's descriptor a placeholder again.
                unsafe {
                    raw(
                        libc::SYS_dup2,
                        [place.as_raw_fd().into(), number.into(), 0, 0, 0, 0],
                    )
                };
            }
        }
    }
}

/// Tells the courier that exec has failed, and waits until it has put back the input that it has
/// read. The pipes of the program are still open: without them the courier would end by itself.
fn end_courier(executed: OwnedFd) {
    // The pipe ends when the courier closes its end; a write would raise SIGPIPE after that.
    if !is_readable_in(&executed, Duration::ZERO) {
        let _ = rustix::io::write(&executed, b"x");
        is_readable_in(&executed, COURIER_TIMEOUT);
    }
}

/// Whether `fd` becomes readable, or ends, within `time`.
fn is_readable_in(fd: &OwnedFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let mut list = [PollFd::new(fd, PollFlags::IN)];
        let left = end.saturating_duration_since(Instant::now());
        match poll(&mut list, left.try_into().ok().as_ref()) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|n| n > 0),
        }
    }
}

/// Makes a pipe whose ends aren't at the numbers of standard input, output and error.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [0; 2];
    let args = [ends.as_mut_ptr() as i64, libc::O_CLOEXEC.into(), 0, 0, 0, 0];
    // SAFETY: the kernel writes two numbers to `ends`: new descriptors, owned by nothing else.
    let (read, write) = unsafe {
        results::check(raw(libc::SYS_pipe2, args))?;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    Ok((above_stdio(read)?, above_stdio(write)?))
}

fn above_stdio(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    match fd.as_raw_fd() {
        0..=2 => rustix::io::fcntl_dupfd_cloexec(&fd, 3),
        _ => Ok(fd),
    }
}

/// Starts a courier, by a child that sends no signal when it ends. Returns the child's process id.
fn spawn(errand: &Errand) -> Result<i64, Errno> {
    let task = [courier::VARIABLE.to_bytes(), b"=", &errand.to_text()].concat();
    let carrier = Carrier::new(courier::PROCESS_NAME, &task)?;
    let inherited = errand.descriptors();
    let mask = mask::block_all();
    // SAFETY: the forked child makes only raw system calls before its exec.
    let child = unsafe { raw(libc::SYS_clone, [0; 6]) };
    if child == 0 {
        for fd in inherited {
            // SAFETY: F_SETFD takes no pointer.
            unsafe {
                raw(
                    libc::SYS_fcntl,
                    [fd.into(), libc::F_SETFD.into(), 0, 0, 0, 0],
                )
            };
        }
        carrier.exec();
        // SAFETY: ends the child, which no other process knows.
        unsafe { raw(libc::SYS_exit_group, [127, 0, 0, 0, 0, 0]) };
    }
    mask::set(mask);
    results::check(child)
}

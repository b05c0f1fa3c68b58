//! Locks on files that lie on another node: kept by its daemon, for the processes and descriptions of
//! other nodes.
//!
//! At the home they are locks like those of its own processes, in whose way they are: flock(2) by an
//! open file description of the daemon's, byte ranges by the kernel's own locks on the file's
//! stand-in (see `locks.rs` of the preloaded library). Who has to wait asks again and again, in
//! growing steps up to [`LONGEST`]. Deadlocks over several nodes aren't noticed.

use super::messages::kind;
use crate::{Flock, NodeId, ObjectId, Result, Store};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::Ordering::*;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Instead of a descriptor in a process's table of stand-ins: the locks are kept on another node.
pub const LOCKS_AWAY: u32 = u32::MAX;
/// In a description's `flock`: it may have byte-range locks on another node.
const RANGES: u32 = 1 << 8;
/// Longest step between two questions.
const LONGEST: Duration = Duration::from_millis(5);

/// The owner of the locks of a process.
pub fn owner_process(pid: u32) -> u64 {
    1 << 32 | u64::from(pid)
}

/// The owner of the locks of an open file description.
pub(crate) fn owner_description(open: u32) -> u64 {
    2 << 32 | u64::from(open)
}

/// Type, start and length of a range, as in `struct flock` from the start of the file on.
pub type Range = (u32, i64, i64);

/// Waits in growing steps.
struct Steps(Duration);

impl Steps {
    /// # Errors
    /// EINTR if a signal came.
    fn wait(&mut self) -> Result<()> {
        let step = rustix::thread::Timespec {
            tv_sec: 0,
            tv_nsec: self.0.as_nanos() as _,
        };
        self.0 = (self.0 * 2).min(LONGEST);
        match rustix::thread::nanosleep(&step) {
            rustix::thread::NanosleepRelativeResult::Interrupted(_) => Err(Errno::INTR),
            _ => Ok(()),
        }
    }
}

impl Store {
    /// The home of what a description has open, if it is another node.
    pub fn open_away(&self, open: u32) -> Option<(NodeId, ObjectId)> {
        self.elsewhere.as_ref()?;
        let o = self.open_file(open);
        if o.live.load(Acquire) == 0 {
            // Of a directory or the like only the id is open: its locks are this node's.
            return None;
        }
        let id = ObjectId(o.id.load(Acquire));
        self.object_away(id).map(|home| (home, id))
    }

    pub(crate) fn flock_away(
        &self,
        open: u32,
        home: NodeId,
        id: ObjectId,
        want: Flock,
        wait: bool,
    ) -> Result<()> {
        let place = &self.open_file(open).flock;
        let question = (id, owner_description(open), want as u32);
        let mut steps = Steps(Duration::from_micros(100));
        // Before it is there: it must be found by whoever cleans up behind us.
        place.fetch_or(want as u32, AcqRel);
        while !self.ask::<bool>(home, kind::FLOCK, &question)? {
            if !wait {
                return Err(Errno::AGAIN);
            }
            steps.wait()?;
        }
        Ok(())
    }

    /// fcntl's locks of the file that `open` has open, which is another node's. `owner_pid`: of the
    /// process; None: of the description. Without `set` asks only: what is in the way, with type F_UNLCK
    /// if nothing is.
    ///
    /// # Errors
    /// EAGAIN if something is in the way and `wait` isn't asked for; EINTR.
    pub fn lock_range_away(
        &self,
        open: u32,
        owner_pid: Option<u32>,
        set: bool,
        wait: bool,
        range: Range,
    ) -> Result<Range> {
        let (home, id) = self.open_away(open).ok_or(Errno::INVAL)?;
        let owner = match owner_pid {
            Some(pid) => owner_process(pid),
            None => {
                self.open_file(open).flock.fetch_or(RANGES, AcqRel);
                owner_description(open)
            }
        };
        let mut steps = Steps(Duration::from_micros(100));
        loop {
            let (done, found): (bool, Range) =
                self.ask(home, kind::LOCK, &(id, owner, set, range))?;
            if done {
                return Ok(found);
            }
            if !wait {
                return Err(Errno::AGAIN);
            }
            steps.wait()?;
        }
    }

    /// Gives up all locks that a process has on an object of another node.
    ///
    /// # Errors
    /// EHOSTDOWN.
    pub fn end_process_locks(&self, id: ObjectId, pid: u32) -> Result<()> {
        match self.object_away(id) {
            Some(home) => self.end_locks(home, id, owner_process(pid)),
            None => Ok(()),
        }
    }

    pub(crate) fn end_locks(&self, home: NodeId, id: ObjectId, owner: u64) -> Result<()> {
        self.ask(home, kind::END_LOCKS, &(id, owner))
    }

    /// The empty file on which the kernel keeps the byte-range locks of an object.
    fn lock_file(&self, id: ObjectId) -> Result<OwnedFd> {
        let dir = self
            .control_path
            .parent()
            .ok_or(Errno::NOENT)?
            .join("locks");
        match rustix::fs::mkdir(&dir, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::open(
            dir.join(format!("{:x}", id.0)),
            flags,
            Mode::from_raw_mode(0o600),
        )
    }
}

/// Whose locks: of which node, which owner there, on what.
type Holder = (NodeId, u64, ObjectId);

/// What the daemon keeps for one holder.
#[derive(Default)]
struct Kept {
    /// The description that has the flock(2).
    open: Option<u32>,
    /// The descriptor of the stand-in that has the ranges.
    ranges: Option<OwnedFd>,
}

/// All locks of other nodes on files of this one.
#[derive(Default)]
pub(super) struct Locks(Mutex<HashMap<Holder, Kept>>);

impl Locks {
    fn with<T>(&self, f: impl FnOnce(&mut HashMap<Holder, Kept>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// flock(2); false if another is in the way.
    pub fn flock(&self, store: &Store, holder: Holder, want: u32) -> Result<bool> {
        let want = match want {
            0 => Flock::Unlocked,
            1 => Flock::Shared,
            2 => Flock::Exclusive,
            _ => return Err(Errno::PROTO),
        };
        self.with(|all| {
            let kept = all.entry(holder).or_default();
            let open = match kept.open {
                Some(open) => open,
                None if want == Flock::Unlocked => return Ok(true),
                None => {
                    let (live, held) = store.live_acquire_held(holder.2)?;
                    let use_of = Some((live, Some(held)));
                    let kind = libc::S_IFREG;
                    let open = store
                        .open_create_held(holder.2, kind, use_of, 0, ObjectId::ROOT, b"")
                        .inspect_err(|_| _ = store.live_release(live))?;
                    *kept.open.insert(open)
                }
            };
            match store.flock(open, want, false) {
                Ok(()) => Ok(true),
                Err(Errno::AGAIN) => Ok(false),
                Err(e) => Err(e),
            }
        })
    }

    /// Sets a range, or asks what is in its way.
    pub fn range(
        &self,
        store: &Store,
        holder: Holder,
        set: bool,
        (kind, start, length): Range,
    ) -> Result<(bool, Range)> {
        let known = [libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK];
        let kind = i16::try_from(kind)
            .ok()
            .filter(|k| known.contains(&i32::from(*k)))
            .ok_or(Errno::PROTO)?;
        self.with(|all| {
            let kept = all.entry(holder).or_default();
            let fd = match &kept.ranges {
                Some(fd) => fd,
                None => kept.ranges.insert(store.lock_file(holder.2)?),
            };
            let mut range = libc::flock {
                l_type: kind,
                l_whence: libc::SEEK_SET as i16,
                l_start: start,
                l_len: length,
                l_pid: 0,
            };
            let command = if set {
                libc::F_OFD_SETLK
            } else {
                libc::F_OFD_GETLK
            };
            // SAFETY: a descriptor of ours and a valid struct flock.
            let done = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut range) };
            if done == 0 {
                return Ok((true, (range.l_type as u32, range.l_start, range.l_len)));
            }
            let e = std::io::Error::last_os_error();
            match Errno::from_io_error(&e).unwrap_or(Errno::IO) {
                Errno::AGAIN | Errno::ACCESS => Ok((false, (0, 0, 0))),
                e => Err(e),
            }
        })
    }

    /// Gives up all locks of one holder.
    pub fn end(&self, store: &Store, holder: Holder) -> Result<()> {
        match self.with(|all| all.remove(&holder)) {
            Some(Kept { open: Some(o), .. }) => store.open_release(o),
            _ => Ok(()),
        }
    }

    /// Gives up all locks of a node.
    pub fn gone(&self, store: &Store, node: NodeId) {
        let theirs: Vec<Holder> =
            self.with(|all| all.keys().filter(|h| h.0 == node).copied().collect());
        for holder in theirs {
            // What can't be written back is tried again when all is put in order.
            let _ = self.end(store, holder);
        }
    }
}

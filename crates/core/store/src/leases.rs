//! Leases on open files (fcntl's F_SETLEASE), between the processes of one node.
//!
//! An open file description contains its lease. The live entry of a file with a lease has
//! [`flag::LEASED`], so that opening a file without leases costs one load. A process that opens a
//! file with leases *breaks* those that conflict: the owner of such a lease gets a signal, and has
//! `lease-break-time` seconds to give the lease up or to downgrade it. After `lease-break-time` the
//! lease is removed.
//!
//! No opener is missed: a process that sets a lease records it first and then looks for other
//! openers; an opener makes its description first and then looks for leases.

use crate::ObjectId;
use crate::control_region::{Live, MAX_OPEN, Open, live_flag as flag};
use crate::views::Objects;
use forebay_runtime::atomics::{Ordering::*, fence};
use rustix::io::{Errno, Result};

/// Type of a lease, by the accesses that it protects from: F_RDLCK and F_WRLCK of fcntl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lease {
    None,
    /// No other process opens the file for writing.
    Read,
    /// No other process opens the file.
    Write,
}

impl Lease {
    fn of(bits: u32) -> Lease {
        match bits & 3 {
            0 => Lease::None,
            1 => Lease::Read,
            _ => Lease::Write,
        }
    }
}

/// Bit of [`Open::lease`]: the lease is being broken, and shall become the lease in the bits from
/// `TARGET` on.
const BREAKING: u32 = 1 << 4;
const TARGET: u32 = 2;
/// Time that the owner of a lease has if the kernel's setting can't be read or is 0 (unlimited), so
/// that no opener waits for ever. Seconds.
const BREAK_TIME: u32 = 45;

fn now() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec as u32
}

/// How long the owner of a lease has to give it up. Seconds.
fn break_time() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap_or_default();
    let seconds = text.trim().parse().unwrap_or(0);
    if seconds == 0 { BREAK_TIME } else { seconds }
}

fn may_write(o: &Open) -> bool {
    o.flags.load(Relaxed) as i32 & libc::O_ACCMODE != libc::O_RDONLY
}

impl Live {
    /// Whether a description of the object may have a lease.
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.flags.load(Relaxed) & flag::LEASED != 0
    }
}

impl<'s> Objects<'s> {
    /// The descriptions of an object on this node.
    fn descriptions(self, id: ObjectId) -> impl Iterator<Item = (u32, &'s Open)> {
        let end = self.store.control.header().free_open.end(MAX_OPEN);
        let all = (0..end).map(move |index| (index, self.open_file(index)));
        all.filter(move |(_, o)| o.refs.load(Acquire) > 0 && o.id.load(SeqCst) == id.0)
            .filter(|(_, o)| o.flags.load(Relaxed) as i32 & libc::O_PATH == 0)
    }

    /// The lease of a description; if the lease is being broken: the lease that it shall become.
    pub fn lease(self, open: u32) -> Lease {
        let word = self.open_file(open).lease.load(Acquire);
        Lease::of(if word & BREAKING != 0 {
            word >> TARGET
        } else {
            word
        })
    }

    /// Sets, changes or removes a description's lease. `owner`: the process that gets the signal,
    /// unless another was chosen by F_SETOWN.
    ///
    /// # Errors
    /// EAGAIN: other descriptions of the file conflict with the lease; or there is none to remove.
    pub fn set_lease(self, open: u32, live: u32, want: Lease, owner: i32) -> Result<()> {
        let o = self.open_file(open);
        let before = o.lease.load(Acquire);
        if want == Lease::None {
            return match o.lease.swap(0, AcqRel) & 3 {
                0 => Err(Errno::AGAIN),
                _ => Ok(()),
            };
        }
        // A lease that is being broken can only be downgraded.
        if before & BREAKING != 0 && want > Lease::of(before >> TARGET) {
            return Err(Errno::AGAIN);
        }
        self.live(live).flags.fetch_or(flag::LEASED, SeqCst);
        // Set before the lease is visible: a process that breaks the lease sends the signal to this
        // owner.
        let chosen = |from, to| {
            let set = o.signal_owner.compare_exchange(from, to, AcqRel, Relaxed);
            set.is_ok()
        };
        let own = chosen(0, owner as u32);
        o.lease.store(want as u32, SeqCst);
        fence(SeqCst);
        let id = ObjectId(o.id.load(Relaxed));
        let mut others = self.descriptions(id).filter(|(index, _)| *index != open);
        let refused = match want {
            Lease::Read => may_write(o) || others.any(|(_, other)| may_write(other)),
            _ => others.next().is_some(),
        };
        if refused {
            o.lease.store(before, Release);
            if own {
                chosen(owner as u32, 0);
            }
            return Err(Errno::AGAIN);
        }
        Ok(())
    }

    /// Breaks the leases that conflict with opening the file. `open`: the opener's description, if
    /// there is one yet. Returns whether a conflicting lease is still there: then the caller must
    /// check again in a moment.
    #[cold]
    pub fn break_leases(self, live: u32, open: Option<u32>, writes: bool) -> bool {
        let target = if writes { Lease::None } else { Lease::Read };
        let id = ObjectId(self.live(live).id.load(Relaxed));
        let (mut any, mut waits) = (false, false);
        for (_, o) in self
            .descriptions(id)
            .filter(|(index, _)| Some(*index) != open)
        {
            let word = o.lease.load(SeqCst);
            any |= word & 3 != 0;
            if Lease::of(word) <= target {
                continue;
            }
            waits = true;
            let goes = word & BREAKING != 0;
            if goes && Lease::of(word >> TARGET) <= target {
                if now() >= o.lease_until.load(Acquire) {
                    let to = Lease::of(word >> TARGET) as u32;
                    let _ = o.lease.compare_exchange(word, to, AcqRel, Relaxed);
                }
                continue;
            }
            o.lease_until
                .store(now().saturating_add(break_time()), Release);
            let broken = word & 3 | BREAKING | (target as u32) << TARGET;
            if o.lease
                .compare_exchange(word, broken, AcqRel, Relaxed)
                .is_ok()
                && !goes
            {
                notify_owner(o);
            }
        }
        if !any {
            self.live(live).flags.fetch_and(!flag::LEASED, AcqRel);
            // Another process may have got a lease since the check.
            if self
                .descriptions(id)
                .any(|(_, o)| o.lease.load(SeqCst) & 3 != 0)
            {
                self.live(live).flags.fetch_or(flag::LEASED, AcqRel);
            }
        }
        waits
    }
}

/// Sends the signal that the owner of a lease has chosen. None is sent if there is no owner: to
/// kill(2), 0 would be the caller's own group, and -1 all processes.
fn notify_owner(o: &Open) {
    let owner = o.signal_owner.load(Acquire) as i32;
    if matches!(owner, 0 | -1 | i32::MIN) {
        return;
    }
    let signal = match o.signal.load(Acquire) {
        0 => libc::SIGIO,
        signal => signal as i32,
    };
    // SAFETY: kill accesses no memory of this process. A process that isn't there any more, or
    // another user's, gets no signal.
    unsafe { libc::kill(owner, signal) };
}

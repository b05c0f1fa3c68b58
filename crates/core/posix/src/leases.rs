//! Leases on open files, and waiting for other processes' leases. `store/src/leases.rs` defines
//! leases.

use crate::{Description, Fs};
use forebay_store::controls::Opener;
use forebay_store::leases::Lease;
use rustix::io::{Errno, Result};
use rustix::thread::CapabilitySet;
use std::sync::atomic::Ordering::*;

impl Description<'_> {
    /// fcntl(2) with F_SETLEASE. This process gets the signal, unless F_SETOWN has chosen another.
    ///
    /// # Errors
    /// EACCES for another user's file; EAGAIN: see [`forebay_store::views::Objects::set_lease`];
    /// EINVAL if it isn't a regular file, and in pools of several nodes, where the other nodes
    /// wouldn't know of the lease.
    pub fn set_lease(self, want: Lease) -> Result<()> {
        let fs = self.fs;
        let inode = fs.cluster().namespace().stat(self.id())?;
        let cred = fs.cred();
        if cred.uid() != inode.uid && !cred.can(CapabilitySet::LEASE) {
            return Err(Errno::ACCESS);
        }
        let live = fs.live_of(self.open).map_err(|_| Errno::INVAL)?;
        if fs.store().peers().node_of_several().is_some() {
            return Err(Errno::INVAL);
        }
        let me = rustix::process::getpid().as_raw_nonzero().get();
        fs.store().objects().set_lease(self.open, live, want, me)
    }

    /// fcntl(2) with F_GETLEASE.
    pub fn lease(self) -> Lease {
        self.fs.store().objects().lease(self.open)
    }

    /// Chooses the process that gets the signal when a lease is broken (fcntl's F_SETOWN: a
    /// process, or minus a process group).
    pub fn set_signal_owner(self, owner: i32) {
        self.record().signal_owner.store(owner as u32, Release);
    }

    /// The process that gets the signal when a lease is broken (F_GETOWN).
    pub fn signal_owner(self) -> i32 {
        self.record().signal_owner.load(Acquire) as i32
    }

    /// Chooses the signal that is sent when a lease is broken (F_SETSIG); 0: SIGIO.
    pub fn set_signal(self, signal: u32) {
        self.record().signal.store(signal, Release);
    }

    /// The signal that is sent when a lease is broken (F_GETSIG).
    pub fn signal(self) -> u32 {
        self.record().signal.load(Acquire)
    }
}

impl Fs {
    /// Breaks leases that conflict with opening a file. `open`: the opener's description, if there
    /// is one yet.
    ///
    /// # Errors
    /// ETXTBSY: the opener has to wait for the lease's owner. EAGAIN: the same with
    /// O_NONBLOCK.
    #[inline]
    pub(crate) fn heed_leases(
        &self,
        live: u32,
        open: Option<u32>,
        flags: i32,
        opener: Opener,
    ) -> Result<()> {
        let objects = self.store().objects();
        let heeds = flags & libc::O_PATH == 0 && !opener.is_kept();
        if !objects.live(live).is_leased() || !heeds {
            return Ok(());
        }
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        if !objects.break_leases(live, open, writes) {
            Ok(())
        } else if flags & libc::O_NONBLOCK != 0 {
            Err(Errno::AGAIN)
        } else {
            Err(Errno::TXTBSY)
        }
    }
}

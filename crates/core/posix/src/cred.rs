//! Credentials of a process, and permission checks.
//!
//! The credentials are read at the start, and again when the process has changed them
//! ([`Cred::refresh`]). Each refresh also increments a generation, which makes permissions cached
//! earlier invalid. If the credentials differ between threads ([`Cred::ask_each_time`]), or the
//! process's user namespace has no map yet, each check asks the kernel and nothing is cached. All
//! ids here are those of the pool ([`IdMap`]). A face whose requests the kernel has already checked
//! allows everything ([`Cred::judged`]).

use crate::cache::DirInfo;
use crate::id_map::{IdMap, NO_ID};
use forebay_client::Pool;
use forebay_store::Inode;
use forebay_store::process::thread_ids::{fsgid, fsuid};
use rustix::io::{Errno, Result};
use rustix::process::{getgid, getgroups, getuid};
use rustix::thread::CapabilitySet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write, or to change a directory's entries.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXEC: u32 = 1;

/// Maximum number of supplementary groups of a process; further ones are ignored.
const MAX_GROUPS: usize = 1024;

/// The credentials that the kernel checks for a thread: user, groups, capabilities. The fields are
/// atomics, since other threads may read them while a process changes its credentials.
pub(crate) struct Ids {
    uid: AtomicU32,
    gid: AtomicU32,
    group_count: AtomicU32,
    groups: Box<[AtomicU32]>,
    effective: AtomicU64,
    /// The credentials that access(2) checks: the real user and group, and the capabilities that
    /// are effective for them.
    real: [AtomicU32; 2],
    real_effective: AtomicU64,
    /// Translates the process's ids; null: the process's ids are the pool's. The memory it points
    /// to stays valid.
    map: AtomicPtr<IdMap>,
    /// As `map`, but owned by the credentials of one thread.
    own_map: Option<Box<IdMap>>,
    /// The kernel has checked the request already: everything is allowed.
    judged: bool,
}

impl Ids {
    /// Credentials without any rights, with space for this many groups.
    fn new(groups: usize, judged: bool) -> Ids {
        Ids {
            uid: AtomicU32::new(NO_ID),
            gid: AtomicU32::new(NO_ID),
            group_count: AtomicU32::new(0),
            groups: (0..groups).map(|_| AtomicU32::new(NO_ID)).collect(),
            effective: AtomicU64::new(0),
            real: [AtomicU32::new(NO_ID), AtomicU32::new(NO_ID)],
            real_effective: AtomicU64::new(0),
            map: AtomicPtr::new(std::ptr::null_mut()),
            own_map: None,
            judged,
        }
    }

    /// Reads this thread's credentials from the kernel into `self`.
    fn ask(&self) {
        let map = self.map();
        let user = |own: u32| map.map_or(own, |map| map.acting_user(own));
        let group = |own: u32| map.map_or(own, |map| map.acting_group(own));
        self.uid.store(user(fsuid()), Relaxed);
        self.gid.store(group(fsgid()), Relaxed);
        let mut n = 0;
        let groups = getgroups().unwrap_or_default();
        let known = groups.iter().map(|g| g.as_raw());
        let known = known.filter_map(|g| map.map_or(Some(g), |map| map.group(g)));
        for (place, g) in self.groups.iter().zip(known) {
            place.store(g, Relaxed);
            n += 1;
        }
        self.group_count.store(n, Relaxed);
        let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
        self.real[0].store(user(uid), Relaxed);
        self.real[1].store(group(gid), Relaxed);
        let (effective, permitted) = match rustix::thread::capabilities(None) {
            Ok(sets) => (sets.effective.bits(), sets.permitted.bits()),
            // The capabilities can't be read: root has all of them, as on nearly every system, and
            // other users none.
            Err(_) => [fsuid(), uid]
                .map(|id| if id == 0 { u64::MAX } else { 0 })
                .into(),
        };
        self.effective.store(effective, Relaxed);
        let real = if uid == 0 { permitted } else { 0 };
        self.real_effective.store(real, Relaxed);
    }

    /// Whether the credentials that access(2) checks differ from the effective ones.
    fn real_differ(&self) -> bool {
        let [uid, gid] = [0, 1].map(|n| self.real[n].load(Relaxed));
        let effective = self.real_effective.load(Relaxed);
        !self.judged
            && (uid, gid, effective) != (self.uid(), self.gid(), self.effective.load(Relaxed))
    }

    /// The credentials that access(2) checks.
    fn into_real(self) -> Ids {
        self.uid.store(self.real[0].load(Relaxed), Relaxed);
        self.gid.store(self.real[1].load(Relaxed), Relaxed);
        let effective = self.real_effective.load(Relaxed);
        self.effective.store(effective, Relaxed);
        self
    }

    /// The map that translates the process's ids; None: the process's ids are the pool's.
    pub fn map(&self) -> Option<&IdMap> {
        // SAFETY: the pointer is null, or `Cred::read_map` has leaked the map, so it is never
        // freed.
        let shared = || unsafe { self.map.load(Acquire).as_ref() };
        self.own_map.as_deref().or_else(shared)
    }

    /// Effective user. [`NO_ID`]: a user that the pool doesn't know.
    pub fn uid(&self) -> u32 {
        self.uid.load(Relaxed)
    }

    /// Effective group. [`NO_ID`]: a group that the pool doesn't know.
    pub fn gid(&self) -> u32 {
        self.gid.load(Relaxed)
    }

    /// Whether these are credentials of a user whose requests the kernel has checked
    /// ([`Cred::judged`]).
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// Whether `gid` is the effective group or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        let n = self.group_count.load(Relaxed) as usize;
        self.gid() == gid || self.groups[..n].iter().any(|g| g.load(Relaxed) == gid)
    }

    /// Whether the thread has the capability for all objects of the pool, whatever their owner.
    pub fn can(&self, capability: CapabilitySet) -> bool {
        self.judged || self.map().is_none() && self.has(capability)
    }

    fn has(&self, capability: CapabilitySet) -> bool {
        self.effective.load(Relaxed) & capability.bits() != 0
    }

    /// Whether the thread has the capability for objects of this user and group. In another user
    /// namespace than the pool's, that requires both to be mapped there.
    pub fn can_with(&self, capability: CapabilitySet, uid: u32, gid: u32) -> bool {
        let counts = |map: &IdMap| map.has_user(uid) && map.has_group(gid);
        self.judged || self.has(capability) && self.map().is_none_or(counts)
    }

    /// Whether `want` (a sum of READ, WRITE, EXEC) is allowed on an object with this mode, user and
    /// group.
    pub fn allows(&self, mode: u32, uid: u32, gid: u32, want: u32) -> bool {
        if self.judged {
            return true;
        }
        let bits = if self.uid() == uid {
            mode >> 6
        } else if self.in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        bits & want == want || self.overrides(mode, uid, gid, want)
    }

    /// Whether a capability allows `want`, which the mode doesn't allow.
    fn overrides(&self, mode: u32, uid: u32, gid: u32, want: u32) -> bool {
        let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
        let (search, read) = (CapabilitySet::DAC_READ_SEARCH, CapabilitySet::DAC_OVERRIDE);
        let reads = if is_dir {
            want & WRITE == 0
        } else {
            want == READ
        };
        if reads && self.can_with(search, uid, gid) {
            return true;
        }
        // Nobody may execute a file without any execute bit.
        (want & EXEC == 0 || is_dir || mode & 0o111 != 0) && self.can_with(read, uid, gid)
    }

    /// Checks that `want` is allowed on the directory.
    ///
    /// # Errors
    /// EACCES; EROFS for changing a directory of the view by attributes.
    pub fn check_dir(&self, dir: &DirInfo, want: u32) -> Result<()> {
        if want & WRITE != 0 && dir.id.is_view() {
            return Err(Errno::ROFS);
        }
        if self.allows(dir.mode, dir.uid, dir.gid, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Checks that `want` is allowed on the object.
    ///
    /// # Errors
    /// EACCES.
    pub fn check(&self, inode: &Inode, want: u32) -> Result<()> {
        if self.allows(inode.mode, inode.uid, inode.gid, want) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Whether the thread's user is `uid`, or may act as the owner of that user's objects.
    pub fn owns(&self, uid: u32) -> bool {
        let counts = |map: &IdMap| map.has_user(uid);
        self.judged
            || self.uid() == uid
            || self.has(CapabilitySet::FOWNER) && self.map().is_none_or(counts)
    }
}

/// Credentials of a process; see the module.
pub(crate) struct Cred {
    process: Ids,
    /// Changes whenever the credentials change: cached permissions are valid for one generation.
    generation: AtomicU32,
    /// The threads' credentials may differ from the process's: each check asks the kernel.
    threads_differ: AtomicBool,
    /// The map of the user namespace may still change: each check reads it.
    map_unsettled: AtomicBool,
    pool: Option<Arc<Pool>>,
}

/// A thread's credentials: those of its process, or ones read for the thread.
pub(crate) enum OfThread<'a> {
    Process(&'a Ids),
    Own(Ids),
}

impl Deref for OfThread<'_> {
    type Target = Ids;

    #[inline]
    fn deref(&self) -> &Ids {
        match self {
            OfThread::Process(ids) => ids,
            OfThread::Own(ids) => ids,
        }
    }
}

impl Cred {
    /// The credentials of this process.
    pub fn new(pool: &Arc<Pool>) -> Cred {
        let c = Cred::with(Ids::new(MAX_GROUPS, false), Some(pool.clone()));
        c.read_map();
        c.refresh();
        c
    }

    /// Credentials of a user whose requests the kernel has checked, by that user's and group's ids
    /// in this process's user namespace.
    pub fn judged(pool: &Arc<Pool>, uid: u32, gid: u32) -> Cred {
        let c = Cred::with(Ids::new(0, true), Some(pool.clone()));
        c.read_map();
        let map = c.process.map();
        let (uid, gid) = map.map_or((uid, gid), |m| (m.acting_user(uid), m.acting_group(gid)));
        c.process.uid.store(uid, Relaxed);
        c.process.gid.store(gid, Relaxed);
        c
    }

    fn with(process: Ids, pool: Option<Arc<Pool>>) -> Cred {
        Cred {
            process,
            generation: AtomicU32::new(0),
            threads_differ: AtomicBool::new(false),
            map_unsettled: AtomicBool::new(false),
            pool,
        }
    }

    /// The credentials of the calling thread.
    #[inline]
    pub fn ids(&self) -> OfThread<'_> {
        if self.threads_differ.load(Relaxed) || self.map_unsettled.load(Relaxed) {
            self.ids_of_thread()
        } else {
            OfThread::Process(&self.process)
        }
    }

    #[cold]
    fn ids_of_thread(&self) -> OfThread<'_> {
        if self.map_unsettled.load(Relaxed) && !self.threads_differ.load(Relaxed) {
            self.read_map();
            self.refresh();
            return OfThread::Process(&self.process);
        }
        OfThread::Own(self.current_ids())
    }

    /// The credentials that access(2) checks for the calling thread: the real user's.
    pub fn real_ids(&self) -> OfThread<'_> {
        match self.ids() {
            ids if !ids.real_differ() => ids,
            OfThread::Process(_) => OfThread::Own(self.current_ids().into_real()),
            OfThread::Own(ids) => OfThread::Own(ids.into_real()),
        }
    }

    /// The calling thread's credentials, read from the kernel.
    fn current_ids(&self) -> Ids {
        let mut own = Ids::new(getgroups().map_or(0, |groups| groups.len()), false);
        own.map.store(self.process.map.load(Acquire), Release);
        if self.map_unsettled.load(Relaxed) {
            own.map.store(std::ptr::null_mut(), Release);
            own.own_map = self.map_of_process().map(Box::new);
        }
        own.ask();
        own
    }

    fn map_of_process(&self) -> Option<IdMap> {
        self.pool.as_ref().and_then(|pool| IdMap::of_process(pool))
    }

    /// Reads the map of this process's user namespace. Called again when the process may have
    /// changed its namespace.
    pub fn read_map(&self) {
        let map = self.map_of_process();
        let settled = map.as_ref().is_none_or(IdMap::is_settled);
        self.map_unsettled.store(!settled, Release);
        // While the namespace has no map yet, one unsettled map is reused: each new one would leak.
        if settled || self.process.map().is_none_or(IdMap::is_settled) {
            let map = map.map_or(std::ptr::null_mut(), |map| Box::into_raw(Box::new(map)));
            self.process.map.store(map, Release);
        }
    }

    /// Reads the kernel's credentials again (after setuid(2), for example), in a process with one
    /// thread. From now on all threads have the same credentials.
    pub fn refresh(&self) {
        if self.process.judged {
            return;
        }
        self.process.ask();
        self.threads_differ.store(false, Release);
        self.generation.fetch_add(1, Release);
    }

    /// Makes each check ask the kernel from now on: the credentials depend on the thread.
    /// `with_map`: the user namespace depends on the thread, too.
    pub fn ask_each_time(&self, with_map: bool) {
        self.threads_differ.store(true, Release);
        if with_map {
            self.map_unsettled.store(true, Release);
        }
    }

    /// Whether each check asks the kernel because threads may differ.
    pub fn threads_differ(&self) -> bool {
        self.threads_differ.load(Relaxed)
    }

    /// A number that changes with the credentials. If the credentials depend on the thread, or may
    /// change unnoticed, each call returns a new number.
    pub fn generation(&self) -> u32 {
        if self.threads_differ.load(Relaxed) || self.map_unsettled.load(Relaxed) {
            self.generation.fetch_add(1, AcqRel) + 1
        } else {
            self.generation.load(Acquire)
        }
    }
}

/// The calling thread's umask; 077 if the umask isn't known: files never get more permissions than
/// the program wants.
///
/// Read from /proc: umask(2) can read it only by changing it for a moment, for all threads.
pub fn umask() -> u32 {
    let of = |line: &[u8]| {
        let mask = std::str::from_utf8(line.strip_prefix(b"Umask:")?).ok()?;
        u32::from_str_radix(mask.trim(), 8).ok()
    };
    let mut text = [0u8; 512];
    // A thread may have its own umask.
    let thread = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs();
    let status = forebay_store::process::proc_text(thread, "status", &mut text).unwrap_or_default();
    let mut lines = status.split(|&b| b == b'\n');
    lines.find_map(of).unwrap_or(0o077)
}

//! Leases of file locks, by which a node that is cut off notices that its locks may be lost.
//!
//! The home of a file gives up a node that it can't reach for the pool's lease ([`crate::serve`]).
//! The home then refuses that node's requests about the file. But the home can't refuse accesses to
//! bytes on that node itself (parts of striped and spilled files). So each live entry of another
//! node's file contains the time until which the locks are valid (`lease_until`). Each granted
//! lock, and each reply to RENEW, moves this time to one lease after the moment of the *request*.
//! After `lease_until`, every access to the file by this node's programs returns EIO until all of
//! them have closed the file. An expired lease is never renewed.
//!
//! The home counts from its last *reply* and waits 1/8 of the lease longer. So the clocks of two
//! nodes need not agree; both only have to run at about the same speed.

use crate::peers::messages::List;
use crate::peers::requests::request;
use crate::views::Locks;
use forebay_runtime::atomics::AtomicU64;
use forebay_store::control_region::live_flag as flag;
use forebay_store::live::Chain;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

/// Value of `lease_until` after the home has reported that the locks are lost.
const FENCED: u64 = 1;
/// Maximum number of files in one request.
const MAX_FILES_PER_REQUEST: usize = 500;

/// A home's reply about the locks that a node has on one of the home's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// There are no locks.
    None,
    /// The locks are valid for another lease.
    Held,
    /// The locks were released while the node was out of reach.
    Lost,
}

impl Standing {
    pub(crate) fn code(self) -> u32 {
        self as u32
    }

    fn decode(code: u32) -> Option<Standing> {
        let all = [Standing::None, Standing::Held, Standing::Lost];
        all.into_iter().find(|s| s.code() == code)
    }
}

/// Returns the time in milliseconds, by a clock that also runs while the machine is suspended.
pub(super) fn clock() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

impl<'a> Locks<'a> {
    /// Checks that this node's programs may rely on their locks on an open file of another node.
    /// Succeeds if the programs have no locks on the file.
    ///
    /// # Errors
    /// EIO: the file's home couldn't be reached for the time of the lease. (The errno comes from
    /// [`crate::peers::Peers::fenced`].)
    #[inline]
    pub fn check_lease(&self, index: u32) -> Result<()> {
        let live = self.store().objects().live(index);
        if live.flags.load(Acquire) & flag::REMOTE == 0 {
            return Ok(());
        }
        let until = live.lease_until.load(Acquire);
        if until == 0 || clock() < until {
            Ok(())
        } else {
            self.lease_over(ObjectId(live.id.load(Relaxed)), until)
        }
    }

    /// As [`Locks::check_lease`], for a file that needn't be open.
    pub(super) fn check_lease_of(&self, id: ObjectId) -> Result<()> {
        let until = self.with_lease(id, |word| word.load(Acquire))?;
        if until.is_none_or(|until| until == 0 || clock() < until) {
            Ok(())
        } else {
            self.lease_over(id, until.unwrap_or(FENCED))
        }
    }

    #[cold]
    fn lease_over(&self, id: ObjectId, until: u64) -> Result<()> {
        let Some(home) = self.cluster.remote_home(id) else {
            return Ok(());
        };
        if until != FENCED && !self.store().locks().locks_of(id)?.has_notes() {
            // The file has no locks left.
            self.with_lease(id, |word| {
                let _ = word.compare_exchange(until, 0, AcqRel, Relaxed);
            })?;
            return Ok(());
        }
        Err(self.cluster.other_nodes()?.fenced(home))
    }

    /// Calls `f` with the end of the lease in the live entry of an object of another node, if there
    /// is such an entry.
    fn with_lease<T>(&self, id: ObjectId, f: impl FnOnce(&AtomicU64) -> T) -> Result<Option<T>> {
        let _section = self.store().section()?;
        let chain = Chain::lock(self.store(), id.0)?;
        let live = chain
            .find(id.0)
            .map(|index| self.store().objects().live(index));
        let remote = live.filter(|live| live.flags.load(Acquire) & flag::REMOTE != 0);
        Ok(remote.map(|live| f(&live.lease_until)))
    }

    /// Records that the home has granted a lock in reply to a request of this time ([`clock`]).
    ///
    /// # Errors
    /// As for [`Locks::check_lease`]: earlier locks on the file are lost.
    pub(super) fn lease_from(&self, id: ObjectId, asked_at: u64) -> Result<()> {
        let Some(lease) = self.cluster.other_nodes()?.lease() else {
            return Ok(());
        };
        let until = asked_at + lease.as_millis() as u64;
        let put = |before: u64| {
            // The new time must differ from the stored one: `renew_leases` detects a change by
            // comparing them.
            debug_assert!(
                asked_at <= clock(),
                "a lease counts from a moment that has passed"
            );
            (before == 0 || clock() < before).then(|| until.max(before + 1))
        };
        let done = self.with_lease(id, |word| word.fetch_update(AcqRel, Acquire, put))?;
        match done {
            Some(Err(over)) => self.lease_over(id, over),
            _ => Ok(()),
        }
    }

    /// Returns, by home, the files of other nodes on which programs of this node may have locks,
    /// each with the end of its lease (by `clock`, in milliseconds). Files whose lease has expired
    /// are left out.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn leased(&self) -> Result<BTreeMap<NodeId, Vec<(ObjectId, u64)>>> {
        let mut all: BTreeMap<NodeId, Vec<(ObjectId, u64)>> = BTreeMap::new();
        for id in self.store().locks().noted() {
            let until = self.with_lease(id, |word| word.load(Acquire))?;
            let holds = until.filter(|&until| until != 0 && clock() < until);
            if let (Some(until), Some(home)) = (holds, self.cluster.remote_home(id)) {
                all.entry(home).or_default().push((id, until));
            }
        }
        Ok(all)
    }

    /// Asks a home whether the locks on these files, as [`Locks::leased`] has returned them, are
    /// still valid, and renews their leases.
    ///
    /// # Errors
    /// EHOSTDOWN and other errors of the request: no further lease is renewed.
    pub fn renew_leases(&self, home: NodeId, files: &[(ObjectId, u64)]) -> Result<()> {
        let Some(lease) = self.cluster.other_nodes()?.lease() else {
            return Ok(());
        };
        for some in files.chunks(MAX_FILES_PER_REQUEST) {
            let asked_at = clock();
            let ids = List(some.iter().map(|f| f.0).collect());
            let List(reply): List<u32> = self.cluster.ask(home, request::RENEW, &ids)?;
            for (&(id, before), code) in some.iter().zip(reply) {
                let until = match Standing::decode(code).ok_or(Errno::PROTO)? {
                    Standing::None => 0,
                    Standing::Held => (asked_at + lease.as_millis() as u64).max(before + 1),
                    Standing::Lost => {
                        self.with_lease(id, |word| word.store(FENCED, Release))?;
                        continue;
                    }
                };
                // If a lock was granted meanwhile, `lease_until` has a later time already and isn't
                // changed.
                self.with_lease(id, |word| {
                    let in_time = clock() < before;
                    if in_time {
                        let _ = word.compare_exchange(before, until, AcqRel, Relaxed);
                    }
                })?;
            }
        }
        Ok(())
    }

    /// Returns the state of another node's locks on these files of this node. `lost` returns
    /// whether the node has lost its locks on a file.
    pub(crate) fn standing(
        &self,
        node: NodeId,
        ids: &[ObjectId],
        lost: impl Fn(ObjectId) -> bool,
    ) -> Vec<Standing> {
        let locked = self.store().locks().locked_by(node);
        let of = |id: &ObjectId| match (lost(*id), locked.contains(id)) {
            (true, _) => Standing::Lost,
            (_, true) => Standing::Held,
            _ => Standing::None,
        };
        ids.iter().map(of).collect()
    }
}

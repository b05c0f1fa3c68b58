//! Files with controls: files that only grow, never change again, or belong to one user at a time.
//!
//! The declared controls of a file are a word in its record, mirrored in its live entry
//! (`declared.rs`). For most files the word is 0, and an operation costs only the test for 0.
//!
//! A description that has a file with controls open holds a lock of the sort [`Sort::Use`] in the
//! table of locks of the file's home. So a use is known on all nodes, survives daemons, and ends
//! with its process. The lock's range contains no offsets: it names the user ([`Party`]) and says
//! whether the user writes ([`WRITES`]).
//! - `exclusive`: the lock is exclusive, except towards descriptions of the same party.
//! - `immutable`: each description that writes holds a lock. When the last one is closed, the file
//!   is laminated, unless it is empty. A file whose writer was killed isn't laminated: the file may
//!   be incomplete, and can be written again.
//! - `append`: every change of the file is checked while the file is locked
//!   ([`DeclaredControls::check_change`]).
//!
//! A declaration counts the users that have the file open already: `controls/declare.rs`.
//!
//! [`Sort::Use`]: crate::locks::Sort::Use

mod declare;

pub use crate::declared::*;
pub use declare::{ATTEMPTS, DeclareOutcome, concerns_users};

use crate::ObjectId;
use crate::control_region::live_flag::{DECLARED_LATE, PARTS};
use crate::control_region::open_flag::LAMINATES;
use crate::control_region::{Live, Open};
use crate::errors::CHANGED;
use crate::locks::{InTheWay, Locks, Request};
use crate::records::{ChangeRecords, Need, Records};
use crate::views::DeclaredControls;
use crate::views::Parts;
use forebay_controls::{Mutability, OnViolation, Parallelism, Persistence};
use forebay_runtime::atomics::Ordering::*;
use rustix::io::{Errno, Result};

impl<'s> DeclaredControls<'s> {
    /// Fails with EPERM if the controls of a locked file of this node forbid the change. (The
    /// controls of a striped file are checked where the change begins:
    /// `Declarations::check_striped`.)
    #[inline]
    pub(crate) fn check_change(&self, live: &Live, change: Change) -> Result<()> {
        let word = live.controls.load(Relaxed);
        if word == 0 {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        if id.stripe().is_some() && self.store.remote.is_some() {
            Ok(())
        } else {
            check_word(word, live.size.load(Relaxed), change)
        }
    }

    /// The word of a live file: its declared controls, and [`LAMINATED`].
    #[inline]
    pub fn controls(&self, live: u32) -> u64 {
        self.store.objects().live(live).controls.load(Acquire)
    }

    /// Whether `fsync` of an open file makes its names durable, too, on whatever nodes their
    /// entries lie.
    pub fn is_durable(&self, index: u32) -> bool {
        let word = self.controls(index);
        word != 0 && declared(word).0.resolve().persistence == Persistence::Durable
    }

    /// Records a use of a file of this node, if the file's present controls allow the use.
    /// Otherwise returns the conflicting user. The caller holds the chain of the file's locks
    /// (`locks`).
    ///
    /// # Errors
    /// EPERM: the use would write to a laminated object. ENOLCK.
    pub(crate) fn note_use(
        &self,
        locks: &Locks<'_>,
        request: &Request,
    ) -> Result<Option<InTheWay>> {
        let word = match self.store.objects().live_probe(request.object)? {
            Some(live) => live.controls,
            None => self.store.names().stat_here(request.object)?.controls,
        };
        let (declared, laminated) = declared(word);
        let controls = declared.resolve();
        let was_there = request.end & THERE != 0;
        let its = Request {
            end: request.end & !THERE,
            ..*request
        };
        let immutable = controls.mutability == Mutability::Immutable;
        if laminated && immutable && its.end & WRITES != 0 && !was_there {
            return Err(Errno::PERM);
        }
        let excludes = |other: &User| match controls.parallelism {
            _ if was_there => false,
            Parallelism::Shared => false,
            Parallelism::Process => (other.node, other.party) != (its.owner.node.0, its.start),
            Parallelism::Node => other.node != its.owner.node.0,
        };
        locks.set_use(&its, excludes, controls.on_violation == OnViolation::Report)
    }

    /// Laminates the file of a description that ends, if the description has the flag
    /// [`LAMINATES`]. Must be called after the description's locks were released.
    pub(crate) fn end_use(&self, o: &Open) -> Result<()> {
        if o.flags.load(Acquire) & LAMINATES == 0 {
            return Ok(());
        }
        o.flags.fetch_and(!LAMINATES, AcqRel);
        let id = ObjectId(o.id.load(Acquire));
        match &self.store.remote {
            Some(remote) => remote.written(self.store, id, o.live.load(Acquire).checked_sub(1)),
            None => self.laminate_here(id),
        }
    }

    /// Clears the flag [`LAMINATES`] of description `open` after its process was killed: the end of
    /// the description then doesn't laminate the file.
    pub(crate) fn cut_short(&self, open: u32) {
        self.store
            .objects()
            .open_file(open)
            .flags
            .fetch_and(!LAMINATES, AcqRel);
    }

    /// Laminates a file of this node, unless it is empty or a process has it open for writing.
    ///
    /// # Errors
    /// ENOSPC: no room. EXFULL: processes that may not know the controls have the file open; see
    /// `Stripes::seal`.
    pub fn laminate_here(&self, id: ObjectId) -> Result<()> {
        self.laminate(id, None).map(|_| ())
    }

    /// As [`DeclaredControls::laminate_here`], for the process that holds the file's lease and has
    /// truncated all parts. `seal`: the lease's number, and the number of truncations. Returns
    /// whether the file is laminated: then the lease is given back.
    ///
    /// # Errors
    /// EXFULL: another process has the lease now.
    pub fn seal_here(&self, id: ObjectId, seal: (u64, u64)) -> Result<bool> {
        self.laminate(id, Some(seal))
    }

    fn laminate(&self, id: ObjectId, seal: Option<(u64, u64)>) -> Result<bool> {
        let laminate = |index: u32| {
            let live = self.store.objects().live(index);
            let flags = live.flags.load(Acquire);
            let unsealed = seal.is_none() && flags & DECLARED_LATE != 0 && flags & PARTS != 0;
            if seal.is_some_and(|(lease, _)| !Parts::holds_lease(live, lease)) {
                return Err(CHANGED);
            }
            let (declared, laminated) = declared(live.controls.load(Relaxed));
            let immutable = declared.mutability == Some(Mutability::Immutable);
            if !immutable || laminated || live.size.load(Relaxed) == 0 {
                return Ok(false);
            }
            {
                let locks = self.store.locks().locks_of(id)?;
                if locks.is_used(WRITES) {
                    return Ok(false);
                }
                if unsealed {
                    return Err(CHANGED);
                }
                live.controls.fetch_or(LAMINATED, AcqRel);
            }
            let written =
                self.store
                    .transact(self.store.names().object_set(id), Need::Bytes(0), |w| {
                        w.change_inode(id, |i| {
                            set_controls(i, i.controls | LAMINATED);
                            i.edition
                        })
                    });
            match written {
                // The file was removed meanwhile.
                Err(Errno::NOENT) => Ok(false),
                Err(e) => {
                    live.controls.fetch_and(!LAMINATED, AcqRel);
                    Err(e)
                }
                Ok(edition) => {
                    live.edition.store(edition, Release);
                    if let Some((_, cuts)) = seal {
                        Parts::end_lease_cut(live, cuts);
                    }
                    Ok(true)
                }
            }
        };
        // If the file isn't open, no description has written it: there is nothing to laminate.
        self.store
            .objects()
            .with_live(id, laminate)?
            .unwrap_or(Ok(false))
    }
}

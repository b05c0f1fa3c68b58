//! Controls that are declared for a striped file while it is open, on any nodes.
//!
//! A writing process checks the controls that its node knows; a part's node doesn't check controls.
//! To stop processes that know outdated controls, the file is truncated to its present size. Parts
//! then refuse requests with fewer cuts, and the requesting process fetches the size and the
//! controls from the home. The file is cut in this way when controls are declared, and again before
//! it is laminated; the cut before the lamination and the lamination are one step at the home. A
//! process that opens the file later gets its controls from the home. Files whose controls didn't
//! change while they were open are laminated without these cuts.

use super::*;
use crate::peers::requests::request;
use crate::views::Declarations;

impl<'a> Declarations<'a> {
    /// Makes processes that have the file open on other nodes learn, with their next write, that
    /// controls were declared for it.
    ///
    /// # Errors
    /// EHOSTDOWN: a node can't be reached.
    pub fn notify_writers(&self, id: ObjectId) -> Result<()> {
        if id.is_part() || self.store().remote.is_none() {
            return Ok(());
        }
        if id.stripe().is_none() && !self.cluster.namespace().stat(id)?.is_spread {
            return Ok(());
        }
        let (index, held) = self.cluster.opens().live_acquire_held(id)?;
        if id.stripe().is_none() {
            self.cluster.stripes().learn_spilled(index)?;
        }
        let reply = match self.cluster.stripes().striped(index) {
            Some(f) => self.cluster.stripes().fence(&f, |_, _| Ok(false)),
            None => Ok(()),
        };
        drop(held);
        self.store().objects().live_release(index).and(reply)
    }

    /// Returns the number of a file's truncations, as far as this node knows; 0 if the file isn't
    /// open on this node.
    ///
    /// # Errors
    /// ETIMEDOUT.
    #[doc(hidden)]
    pub fn cuts_of(&self, id: ObjectId) -> Result<u64> {
        let (index, held) = self.cluster.opens().live_acquire_held(id)?;
        let cuts = self.store().objects().live(index).cuts.load(Acquire);
        drop(held);
        self.store().objects().live_release(index).map(|()| cuts)
    }
}

impl<'a> Stripes<'a> {
    /// Makes the other nodes with parts of a file of this node refuse the requests of the node
    /// `lost`. This node has given up `lost`, and refuses these requests already. To make the
    /// others refuse them, cuts the file: `lost` then knows of fewer cuts than the parts.
    ///
    /// # Errors
    /// EHOSTDOWN: one of the nodes with parts can't be reached.
    pub(crate) fn notify_parts_without(&self, id: ObjectId, lost: NodeId) -> Result<()> {
        if self.store().remote.is_none() || !self.cluster.namespace().stat(id)?.is_file() {
            return Ok(());
        }
        let (index, held) = self.cluster.opens().live_acquire_held(id)?;
        let parts = self.store().objects().live(index).flags.load(Acquire) & flag::PARTS != 0;
        let reply = match self.striped(index).filter(|_| parts) {
            Some(f) => {
                let f = Striped {
                    lost: Some(lost),
                    ..f
                };
                // First, check that the nodes with parts can be reached: if the cut failed after
                // the lease was taken, other processes would have to wait until the lease expires.
                self.part_inodes(id, f.lost)
                    .and_then(|_| self.fence(&f, |_, _| Ok(false)))
            }
            None => Ok(()),
        };
        drop(held);
        self.store().objects().live_release(index).and(reply)
    }

    /// Laminates an open file unless a process uses it for writing. Other processes may have it
    /// open without knowing its declared controls.
    pub(crate) fn seal(&self, index: u32) -> Result<()> {
        let f = self.striped(index).ok_or(CHANGED)?;
        self.fence(&f, |lease, cuts| match f.home {
            None => self.store().declared().seal_here(f.id, (lease, cuts)),
            Some(home) => self.cluster.ask(home, request::SEAL, &(f.id, lease, cuts)),
        })
    }

    /// Truncates a file to its present size, so that parts refuse requests with fewer cuts. Between
    /// truncating the parts and the object at the home, calls `end` with the numbers of the lease
    /// and of the truncation. `end` returns true if it has ended both at the home.
    pub(super) fn fence(&self, f: &Striped, end: impl Fn(u64, u64) -> Result<bool>) -> Result<()> {
        self.retry_cut(f, || {
            let lease = self.lease(f)?;
            self.complete_cut(f, lease)?;
            let Known { size, cuts, .. } = lease.known;
            self.cut_parts(f, cuts + 1, size)?;
            match end(lease.number, cuts + 1) {
                Ok(true) => Ok(()),
                ended => self
                    .end_lease(f, lease, cuts + 1, Some(size))
                    .and(ended.map(|_| ())),
            }
        })
    }
}

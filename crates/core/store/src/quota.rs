//! The quota of a pool: how many more files and bytes the programs of this node may store.
//!
//! Each node has a grant (`granted`) and counts its usage (`used`): one file for each inode on the
//! node, and the sizes of regular files whose home is the node. An operation that needs more than
//! is left fails with EDQUOT and changes nothing. The grants of all nodes together never exceed the
//! quota. The origin service (`crates/services/origin/src/quota.rs`) grants, takes back what isn't
//! used, and gets requests from programs whose node has nothing left.
//!
//! Order: a charge adds to `used` first and then reads `granted`; the service changes `granted`
//! first and then reads `used`. So at least one of the two sees the other's change, and a grant
//! that is taken back isn't used. A process that is killed between its charge and its change leaves
//! the charge behind; the next pool of the campaign counts again.
//!
//! Exempt: placeholders of objects of the origin ([`crate::Stub`]); released files, whose size the
//! service changes; and parts of striped files, whose size their home counts. A pool without a
//! quota costs one load.

use crate::control_region::{Live, QuotaState, live_flag as flag};
use crate::{ObjectId, Result, Store};
use forebay_runtime::atomics::{AtomicI64, Ordering::*};
use rustix::io::Errno;

/// Bytes and files, in this order.
pub type Amount = (i64, i64);

/// The grant and usage of this node, in the control region. Every addition to the usage is checked
/// against the grant.
#[derive(Clone, Copy)]
pub struct Quota<'s>(&'s QuotaState);

impl Store {
    /// The quota: this node's grant and usage.
    #[inline]
    pub fn quota(&self) -> Quota<'_> {
        Quota(&self.control.header().quota)
    }
}

/// Adds `n` to the usage, if the grant allows it.
fn take(used: &AtomicI64, granted: &AtomicI64, n: i64) -> Result<()> {
    if n <= 0 {
        return Ok(());
    }
    let before = used.fetch_add(n, SeqCst);
    if before.saturating_add(n) <= granted.load(SeqCst) {
        return Ok(());
    }
    used.fetch_sub(n, SeqCst);
    Err(Errno::DQUOT)
}

impl<'s> Quota<'s> {
    /// Whether the pool has a quota.
    #[inline]
    pub fn is_active(self) -> bool {
        self.0.active.load(Relaxed) != 0
    }

    /// Activates the quota: from now on the pool has one, of which this node is granted nothing
    /// yet.
    pub fn activate(self) {
        self.0.active.store(1, SeqCst);
    }

    /// Marks this region as seen by the service. Returns whether it was marked before.
    pub fn was_seen(self) -> bool {
        self.0.seen.swap(1, SeqCst) != 0
    }

    /// Sets this node's total grant, if one is given. Returns the node's usage.
    pub fn exchange(self, granted: Option<Amount>) -> Amount {
        let state = self.0;
        if let Some((bytes, files)) = granted {
            state.granted_bytes.store(bytes, SeqCst);
            state.granted_files.store(files, SeqCst);
        }
        (state.used_bytes.load(SeqCst), state.used_files.load(SeqCst))
    }

    /// The total grant of this node.
    pub fn granted(self) -> Amount {
        let state = self.0;
        (
            state.granted_bytes.load(Relaxed),
            state.granted_files.load(Relaxed),
        )
    }

    /// Charges the quota for one object that is to be made.
    ///
    /// # Errors
    /// EDQUOT.
    #[inline]
    pub(crate) fn charge_file(self) -> Result<()> {
        if self.is_active() {
            take(&self.0.used_files, &self.0.granted_files, 1)
        } else {
            Ok(())
        }
    }

    /// Takes back a charge, or the usage of an object that has shrunk or was removed.
    #[inline]
    pub(crate) fn credit(self, (bytes, files): Amount) {
        if (bytes, files) != (0, 0) && self.is_active() {
            self.0.used_bytes.fetch_sub(bytes, SeqCst);
            self.0.used_files.fetch_sub(files, SeqCst);
        }
    }

    /// Charges the quota before a file of this node grows from `from` to `to` bytes. The caller has
    /// locked `live`. If the growth then fails, [`Quota::shrinks`] cancels the charge.
    ///
    /// # Errors
    /// EDQUOT: nothing is charged.
    #[inline]
    pub(crate) fn grows(self, live: &Live, from: u64, to: u64) -> Result<()> {
        if to <= from || !self.is_active() || !is_counted(live) {
            return Ok(());
        }
        let state = self.0;
        take(&state.used_bytes, &state.granted_bytes, (to - from) as i64)
    }

    /// Takes back the charge for a file of this node that has shrunk from `from` to `to` bytes. The
    /// caller has locked `live`.
    #[inline]
    pub(crate) fn shrinks(self, live: &Live, from: u64, to: u64) {
        if to < from && self.is_active() && is_counted(live) {
            self.credit(((from - to) as i64, 0));
        }
    }
}

fn is_counted(live: &Live) -> bool {
    let is_exempt = live.flags.load(Relaxed) & (flag::RELEASED | flag::REMOTE) != 0;
    !is_exempt && !ObjectId(live.id.load(Relaxed)).is_part()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_granted_is_refused_and_changes_nothing() {
        let (used, granted) = (AtomicI64::new(0), AtomicI64::new(10));
        assert_eq!(take(&used, &granted, 10), Ok(()));
        assert_eq!(take(&used, &granted, 1), Err(Errno::DQUOT));
        assert_eq!(used.load(SeqCst), 10);
        granted.store(i64::MAX / 2, SeqCst);
        assert_eq!(take(&used, &granted, i64::MAX / 4), Ok(()));
        // When a grant was taken back, more may be used than is granted.
        granted.store(0, SeqCst);
        assert_eq!(take(&used, &granted, 1), Err(Errno::DQUOT));
        assert_eq!(take(&used, &granted, 0), Ok(()));
    }
}

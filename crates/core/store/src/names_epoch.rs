//! The epoch of names: a number that changes whenever a resolved path may have become wrong.
//!
//! The upper 32 bits hold for the whole pool, the lower ones count this node's changes. The epoch
//! never goes back. A directory that is being removed by another node is frozen until a later epoch
//! is known here; no entry may be created in it meanwhile.

use crate::ObjectId;
use crate::views::NamesEpoch;
use forebay_runtime::atomics::Ordering::*;
use rustix::io::{Errno, Result};

impl NamesEpoch<'_> {
    /// The present epoch.
    #[inline]
    pub fn now(self) -> u64 {
        self.header.names_epoch.load(Acquire)
    }

    /// Announces that resolved paths of this node may be wrong.
    #[inline]
    pub(crate) fn bump(self) {
        self.header.names_epoch.fetch_add(1, AcqRel);
    }

    /// Returns ESTALE unless `epoch` is the present one.
    #[inline]
    pub fn check(self, epoch: u64) -> Result<()> {
        if self.now() == epoch {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }

    /// Raises this node's epoch to another node's, if that is later. Only the upper 32 bits count,
    /// which hold for the whole pool.
    pub fn raise(self, theirs: u64) {
        let pools = theirs >> 32 << 32;
        let before = self.header.names_epoch.fetch_max(pools, AcqRel);
        debug_assert!(self.now() >= before, "the epoch of names doesn't go back");
        if before >> 32 < pools >> 32 {
            // The change for which a directory was frozen has ended, whether or not this node got
            // the message.
            self.header.frozen.store(0, Release);
        }
    }

    /// This node's epoch for a request that was made under `theirs`.
    ///
    /// # Errors
    /// ESTALE if one of the two nodes doesn't know of a change.
    pub fn agreed_with(self, theirs: u64) -> Result<u64> {
        self.raise(theirs);
        let here = self.now();
        if here >> 32 == theirs >> 32 {
            Ok(here)
        } else {
            Err(Errno::STALE)
        }
    }

    /// Returns ESTALE while no entry may be created in `dir`.
    pub fn check_frozen(self, dir: ObjectId) -> Result<()> {
        if self.header.frozen.load(Acquire) == dir.0 {
            Err(Errno::STALE)
        } else {
            Ok(())
        }
    }

    /// Ends [`Intents::freeze`].
    ///
    /// [`Intents::freeze`]: crate::views::Intents::freeze
    pub fn thaw(self, epoch: u64) {
        if epoch >> 32 >= self.now() >> 32 {
            self.raise(epoch);
            self.header.frozen.store(0, Release);
        }
    }
}

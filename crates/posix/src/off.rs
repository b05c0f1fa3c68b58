//! Paths whose mode is `off`: they are at the pool's origin only, and programs use the origin's own
//! files.
//!
//! Resolving a path ends with [`Fail::Origin`] at the first name that is at the origin only, or all
//! below it. A directory in which files of the pool may be, too, is in the pool; its other entries
//! have objects there that stand for their names, so that a listing shows all. The origin service
//! makes and removes these objects before a listing begins ([`Fs::show_outer`]).
//!
//! [`Fail::Origin`]: crate::path::Fail::Origin

use crate::rule_cache::RuleCache;
use forebay_client::Pool;
use forebay_client::origin::{Lead, Modes, ModesAt, OriginMode};
use forebay_store::ObjectId;
use rustix::io::Result;

/// The modes of a pool's origin, and what they say about directories. None: the origin isn't
/// behind the directory.
pub(crate) struct Off {
    modes: Modes,
    known: RuleCache<Option<ModesAt>>,
}

impl Off {
    /// Those of a pool of which some paths may be at the origin only.
    pub fn of(pool: &Pool) -> Option<Off> {
        let origin = pool.config().origin.as_ref()?;
        origin.may_be(OriginMode::Off).then(|| Off {
            modes: origin.modes(),
            known: RuleCache::new(),
        })
    }

    /// In a forked child, before anything else: nothing is kept.
    pub fn begin_anew(&self) {
        self.known.begin_anew();
    }

    /// Where the entry `name` of a directory is, in this epoch of names; `find` says what is known
    /// of the directory.
    ///
    /// # Errors
    /// Errors of `find`.
    pub fn lead(
        &self,
        dir: (ObjectId, u64),
        name: &[u8],
        find: impl FnOnce(&Modes) -> Result<Option<ModesAt>>,
    ) -> Result<Lead> {
        let lead = |at: &Option<ModesAt>| match at {
            None => Lead::Pool,
            Some(at) => self.modes.lead(at, name),
        };
        self.known.with(dir, || find(&self.modes), lead)
    }

    /// What is known of the entry `name` of a directory, for comparison.
    ///
    /// # Errors
    /// Errors of `find`.
    pub fn at(
        &self,
        dir: (ObjectId, u64),
        name: &[u8],
        find: impl FnOnce(&Modes) -> Result<Option<ModesAt>>,
    ) -> Result<Option<ModesAt>> {
        let below = |at: &Option<ModesAt>| at.as_ref().map(|at| self.modes.below(at, name));
        self.known.with(dir, || find(&self.modes), below)
    }
}

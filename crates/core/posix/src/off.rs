//! Paths whose mode is `off`: such files are at the pool's origin only, and programs use the
//! origin's own files.
//!
//! Resolving a path ends with [`Fail::Origin`] at the first name that is at the origin only, as all
//! names below that name are then. A directory that may also have files of the pool is in the pool.
//! If an entry of such a directory is at the origin only, the pool has a placeholder object for it,
//! so that a listing shows all names. The origin service makes and removes these objects before a
//! listing begins ([`OriginGate::show_origin_only`]).
//!
//! [`Fail::Origin`]: crate::path::Fail::Origin
//! [`OriginGate::show_origin_only`]: crate::OriginGate

use crate::rule_cache::RuleCache;
use forebay_client::Pool;
use forebay_client::origin::{Lead, Modes, ModesAt, OriginMode};
use forebay_store::ObjectId;
use rustix::io::Result;

/// The modes of a pool's origin, and a cache of the modes in each directory. In the cache, None:
/// the origin doesn't cover the directory.
pub(crate) struct Off {
    modes: Modes,
    known: RuleCache<Option<Known>>,
}

/// The modes that apply in a directory.
struct Known {
    at: ModesAt,
    /// Whether entries of the directory may be at the origin only.
    may_hold_origin_only: bool,
}

impl Off {
    /// The modes of a pool's origin; None if no path can be at the origin only.
    pub fn of(pool: &Pool) -> Option<Off> {
        let origin = pool.config().origin.as_ref()?;
        origin.may_be(OriginMode::Off).then(|| Off {
            modes: origin.modes(),
            known: RuleCache::new(),
        })
    }

    /// Empties the cache. Must be called first in a forked child.
    pub fn begin_anew(&self) {
        self.known.begin_anew();
    }

    /// Calls `f` with the modes that apply in a directory in this epoch of names; with None if the
    /// origin doesn't cover the directory. `path` returns the directory's path if the origin covers
    /// it.
    fn with<T>(
        &self,
        dir: (ObjectId, u64),
        path: impl FnOnce() -> Result<Option<Vec<u8>>>,
        f: impl FnOnce(Option<&Known>) -> T,
    ) -> Result<T> {
        let find = || {
            Ok(path()?.map(|path| {
                let at = self.modes.at(&path);
                Known {
                    may_hold_origin_only: self.modes.may_hold_origin_only(&at),
                    at,
                }
            }))
        };
        self.known.with(dir, find, |known| f(known.as_ref()))
    }

    /// Where the entry `name` of a directory is: in the pool, or at the origin.
    ///
    /// # Errors
    /// Errors of `path`.
    pub fn lead(
        &self,
        dir: (ObjectId, u64),
        name: &[u8],
        path: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<Lead> {
        self.with(dir, path, |known| match known {
            Some(known) if known.may_hold_origin_only => self.modes.lead(&known.at, name),
            Some(_) | None => Lead::Pool,
        })
    }

    /// Whether entries of a directory may be at the origin only.
    ///
    /// # Errors
    /// Errors of `path`.
    pub fn may_hold_origin_only(
        &self,
        dir: (ObjectId, u64),
        path: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<bool> {
        self.with(dir, path, |known| {
            known.is_some_and(|known| known.may_hold_origin_only)
        })
    }

    /// The state of matching the origin's path patterns at the entry `name` of a directory, for
    /// comparison.
    ///
    /// # Errors
    /// Errors of `path`.
    pub fn at(
        &self,
        dir: (ObjectId, u64),
        name: &[u8],
        path: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<ModesAt>> {
        self.with(dir, path, |known| {
            known.map(|known| self.modes.below(&known.at, name))
        })
    }
}

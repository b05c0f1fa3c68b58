//! Locks on paths of the origin: a process that works with a path holds them shared; one that
//! renames a directory holds them exclusively.

use crate::service::Origin;
use forebay_posix::ObjectId;
use rustix::io::{Errno, Result};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// The paths, held.
pub enum Held<'o> {
    Shared(#[expect(dead_code, reason = "it is held, not read")] RwLockReadGuard<'o, ()>),
    Alone(#[expect(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'o, ()>),
}

/// The paths, held, and those of two directories.
pub type TwoPaths<'o> = (Held<'o>, Vec<u8>, Result<Vec<u8>>);

impl Origin {
    /// Holds all paths: no directory is renamed while this exists. A thread holds them once.
    pub fn paths(&self) -> RwLockReadGuard<'_, ()> {
        self.paths.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds all paths, and the path at the origin of a directory of the pool.
    ///
    /// # Errors
    /// ENOENT: it was removed. EXDEV: the origin isn't behind it.
    pub fn path_held(&self, dir: ObjectId) -> Result<(RwLockReadGuard<'_, ()>, Vec<u8>)> {
        let held = self.paths();
        let relative = self.relative_of(dir)?;
        Ok((held, relative))
    }

    /// Holds all paths, with `alone` exclusively, and the paths at the origin of two directories.
    ///
    /// # Errors
    /// ENOENT: the first was removed. EXDEV: the origin isn't behind it. Both for the second,
    /// inside.
    pub fn two_paths_held(
        &self,
        alone: bool,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<TwoPaths<'_>> {
        let held = if alone {
            Held::Alone(self.paths.write().unwrap_or_else(PoisonError::into_inner))
        } else {
            Held::Shared(self.paths())
        };
        let (first, second) = (self.relative_of(one)?, self.relative_of(other));
        Ok((held, first, second))
    }

    /// Holds all paths, if this is the path of the directory.
    pub fn held_at(&self, dir: ObjectId, at: &[u8]) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let held = self.paths();
        match self.relative_of(dir) {
            Ok(relative) if relative == at => Ok(Some(held)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

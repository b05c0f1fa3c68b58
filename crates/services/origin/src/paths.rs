//! The lock on paths of the origin: shared for threads that work with a path, exclusive for a
//! thread that renames a directory.

use crate::service::Origin;
use forebay_posix::ObjectId;
use rustix::io::{Errno, Result};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// A held lock on the paths.
pub enum Held<'o> {
    Shared(#[expect(dead_code, reason = "it is held, not read")] RwLockReadGuard<'o, ()>),
    Alone(#[expect(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'o, ()>),
}

/// A held lock on the paths, and the paths at the origin of two directories.
pub type TwoPaths<'o> = (Held<'o>, Vec<u8>, Result<Vec<u8>>);

impl Origin {
    /// Takes the lock on the paths, shared: no directory is renamed while the guard exists. A
    /// thread must not take it twice.
    pub fn paths(&self) -> RwLockReadGuard<'_, ()> {
        self.paths.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock on the paths, shared. Also returns the path at the origin of `dir`, a
    /// directory of the pool.
    ///
    /// # Errors
    /// ENOENT: the directory was removed. EXDEV: it isn't below the origin's root.
    pub fn path_held(&self, dir: ObjectId) -> Result<(RwLockReadGuard<'_, ()>, Vec<u8>)> {
        let held = self.paths();
        let relative = self.relative_of(dir)?;
        Ok((held, relative))
    }

    /// Takes the lock on the paths, exclusively if `alone`. Also returns the paths at the origin of
    /// two directories.
    ///
    /// # Errors
    /// ENOENT: the first directory was removed. EXDEV: it isn't below the origin's root. The same
    /// errors for the second directory are in the last member of the result.
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

    /// Takes the lock on the paths, shared, if `at` is the directory's path at the origin. None:
    /// the directory was renamed or removed.
    pub fn held_at(&self, dir: ObjectId, at: &[u8]) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let held = self.paths();
        match self.relative_of(dir) {
            Ok(relative) if relative == at => Ok(Some(held)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

//! Paths that change: who works with a path of the origin holds the paths, and who renames a
//! directory waits for them.
//!
//! The origin's name changes or goes first, the pool's a moment later, by the process that has
//! asked. For that time the object counts as *moving*: its old and its new path are unsettled, and
//! nothing is written back by them.

use crate::service::{Moving, Origin};
use forebay_posix::ObjectId;
use rustix::io::{Errno, Result};
use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// How long a process may take to change the pool's name. A process that takes longer has died.
const MOVES: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// The paths, held.
pub enum Held<'o> {
    Shared(#[expect(dead_code, reason = "it is held, not read")] RwLockReadGuard<'o, ()>),
    Alone(#[expect(dead_code, reason = "it is held, not read")] RwLockWriteGuard<'o, ()>),
}

/// The paths, held, and those of two directories.
pub type TwoPaths<'o> = (Held<'o>, Vec<u8>, Result<Vec<u8>>);

impl Origin {
    fn moving(&self) -> MutexGuard<'_, Vec<Moving>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an object begins to move. Whoever calls holds the paths.
    pub fn begins_to_move(&self, moving: Moving) {
        self.moving().push(moving);
    }

    /// Whether a path leads through the old or the new name of an object that moves.
    pub fn is_moving(&self, path: &[u8]) -> bool {
        let mut all = self.moving();
        if all.is_empty() {
            return false;
        }
        all.retain(|m| {
            let has = |(dir, name): &(ObjectId, Vec<u8>)| self.has_name(*dir, name, m.id);
            m.since.elapsed() < MOVES && has(&m.from) && !m.to.as_ref().is_some_and(has)
        });
        all.iter().any(|m| {
            let rest = path.strip_prefix(&m.path[..]);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    }

    /// Whether an object moves away from this name.
    pub fn moves(&self, id: ObjectId, (dir, name): (ObjectId, &[u8])) -> bool {
        let all = self.moving();
        all.iter()
            .any(|m| m.id == id && m.from.0 == dir && m.from.1 == name)
    }

    /// Holds all paths: no directory is renamed while this exists. A thread holds them once.
    pub fn paths(&self) -> RwLockReadGuard<'_, ()> {
        self.paths.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds all paths, and the path at the origin of a directory of the pool.
    ///
    /// # Errors
    /// ENOENT: it is gone. EXDEV: the origin isn't behind it.
    pub fn path_held(&self, dir: ObjectId) -> Result<(RwLockReadGuard<'_, ()>, Vec<u8>)> {
        loop {
            let held = self.paths();
            let relative = self.relative_of(dir)?;
            if !self.is_moving(&relative) {
                return Ok((held, relative));
            }
            drop(held);
            std::thread::sleep(PAUSE);
        }
    }

    /// Holds all paths, with `alone` exclusively, and the paths at the origin of two directories.
    /// Waits while one of them moves.
    ///
    /// # Errors
    /// ENOENT: the first is gone. EXDEV: the origin isn't behind it. Both for the second, inside.
    pub fn two_paths_held(
        &self,
        alone: bool,
        one: ObjectId,
        other: ObjectId,
    ) -> Result<TwoPaths<'_>> {
        loop {
            let held = match alone {
                true => Held::Alone(self.paths.write().unwrap_or_else(PoisonError::into_inner)),
                false => Held::Shared(self.paths()),
            };
            let (first, second) = (self.relative_of(one)?, self.relative_of(other));
            let moves = |path: &Vec<u8>| self.is_moving(path);
            if !moves(&first) && !second.as_ref().is_ok_and(moves) {
                return Ok((held, first, second));
            }
            drop(held);
            std::thread::sleep(PAUSE);
        }
    }

    /// Holds all paths, if this is the path of the directory.
    pub fn held_at(&self, dir: ObjectId, at: &[u8]) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        let held = self.paths();
        match self.relative_of(dir) {
            Ok(relative) if relative == at && !self.is_moving(at) => Ok(Some(held)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

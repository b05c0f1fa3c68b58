//! The vocabulary of semantics: what an application may say about an object's I/O.
//!
//! Six controls, each a small closed set of values with a strict default: what POSIX
//! promises for one file. Pure data, no I/O: rules that attach controls to paths and
//! their enforcement live in higher floors. A pool records the controls it was made
//! with, so that a newer Forebay never weakens an older pool by a changed default.

use serde::{Deserialize, Serialize};

/// When a finished write must be visible to readers elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// As POSIX: the next read sees it, in any process.
    #[default]
    Sequential,
    /// After flush, fsync or close.
    Commit,
    /// Close-to-open.
    Session,
    /// Some time later.
    Eventual,
}

/// Who uses an object at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parallelism {
    /// Anybody.
    #[default]
    Shared,
    /// One process or one node at a time.
    Exclusive,
}

/// How an object changes after its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mutability {
    /// Any byte, any time.
    #[default]
    Overwrite,
    /// Only at its end.
    Append,
    /// Not after its first close (laminated).
    Immutable,
}

/// How often and in which rhythm data is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// Used repeatedly.
    #[default]
    Multiple,
    /// Written once, read once.
    Once,
    /// Comes in bursts with pauses between.
    Bursty,
}

/// What data outlives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Persistence {
    /// Lives as long as the pool.
    #[default]
    Pool,
    /// Lives as long as the process that made it.
    Process,
    /// Survives every process of the node (`files` media).
    Node,
    /// `fsync` means on stable storage.
    Durable,
}

/// What a batch does when one of its operations fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// Stop at the first failure.
    #[default]
    Stop,
    /// Do the others all the same.
    Continue,
    /// Undo what was done.
    Rollback,
}

/// All six controls of an object. The default is strict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Controls {
    pub consistency: Consistency,
    pub parallelism: Parallelism,
    pub mutability: Mutability,
    pub temporality: Temporality,
    pub persistence: Persistence,
    pub failure: Failure,
}

impl Controls {
    /// The guarantees every pool gives today: the defaults. Others exist as words only
    /// and are refused by name, so that nobody relies on what isn't enforced.
    ///
    /// # Errors
    /// Names the first control that this version can't keep.
    pub fn check_supported(&self) -> Result<(), String> {
        if *self == Controls::default() {
            return Ok(());
        }
        Err(format!(
            "controls other than the defaults can't be kept by this version: {self:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_strict_and_supported() {
        let c = Controls::default();
        assert_eq!(c.consistency, Consistency::Sequential);
        assert_eq!(c.parallelism, Parallelism::Shared);
        assert!(c.check_supported().is_ok());
        let weak = Controls {
            consistency: Consistency::Eventual,
            ..c
        };
        assert!(weak.check_supported().is_err());
    }
}

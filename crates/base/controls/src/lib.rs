//! The vocabulary of I/O semantics: what an application may declare for an object.
//!
//! There are seven controls. Each has a small closed set of values; the strict default is what
//! POSIX promises for one file. [`Controls`] has a value for each control, [`Declared`] only the
//! declared values. [`Rules`] declare controls for paths.
//!
//! This crate is pure data, without I/O. `docs/explanation/semantics.md` explains the values. The
//! crates above this one enforce them, and refuse a value that the pool can't keep, so that no user
//! relies on such a value.

mod declared;
mod glob;
mod rules;
mod words;

pub use declared::{Declared, Syntax};
pub use glob::{Pattern, PatternError};
pub use rules::{At, Explanation, MAX_RULES, Origin, Rule, RuleError, Rules};
pub use words::{
    Consistency, Failure, Integrity, MAX_STALENESS_MS, Mutability, OnViolation, Parallelism,
    Persistence, Temporality,
};

use serde::{Deserialize, Serialize};

/// An object's seven controls, and the treatment of violations. The default is strict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Controls {
    /// When other processes see a finished write.
    pub consistency: Consistency,
    /// Which processes may use the object at the same time.
    pub parallelism: Parallelism,
    /// How the object may change after its creation.
    pub mutability: Mutability,
    /// How often, and in which rhythm, the object's data is used.
    pub temporality: Temporality,
    /// Which events the object's data outlives.
    pub persistence: Persistence,
    /// How damage of the object's stored bytes is noticed.
    pub integrity: Integrity,
    /// Reaction of a batch to a failed operation.
    pub failure: Failure,
    /// Treatment of an operation that the controls above rule out.
    pub on_violation: OnViolation,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_strict() {
        let c = Controls::default();
        assert_eq!(c.consistency, Consistency::Sequential);
        assert_eq!(c.parallelism, Parallelism::Shared);
        assert_eq!(c.on_violation, OnViolation::Refuse);
        assert_eq!(c.temporality, Temporality::Multiple);
        assert_eq!(c.persistence, Persistence::Pool);
    }
}

//! The declarations of an object: a value for each control, or none.
//!
//! An object's record stores them as one number ([`Declared::bits`]), 0 without declarations. The
//! written form is `consistency=commit,mutability=append`.

use crate::{
    Consistency, Controls, Failure, Integrity, Mutability, OnViolation, Parallelism, Persistence,
    Temporality,
};
use std::fmt;
use std::str::FromStr;

/// The declared values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    pub consistency: Option<Consistency>,
    pub parallelism: Option<Parallelism>,
    pub mutability: Option<Mutability>,
    pub temporality: Option<Temporality>,
    pub persistence: Option<Persistence>,
    pub integrity: Option<Integrity>,
    pub failure: Option<Failure>,
    pub on_violation: Option<OnViolation>,
}

/// Names of the controls, as they are written and in the order of [`Declared::values`].
pub(crate) const NAMES: [&str; 8] = [
    "consistency",
    "parallelism",
    "mutability",
    "temporality",
    "persistence",
    "integrity",
    "failure",
    "on_violation",
];

pub(crate) fn no_control(name: &str) -> String {
    format!(
        "there is no control \"{name}\"; there are {}",
        NAMES.join(", ")
    )
}

/// An error in a text, and its position (bytes from the start).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syntax {
    pub at: usize,
    pub message: String,
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the index of a value in `all`, counted from 1; 0 for no value.
fn number<T: Copy + PartialEq>(value: Option<T>, all: &[T]) -> u64 {
    value
        .and_then(|v| all.iter().position(|a| *a == v))
        .map_or(0, |at| at as u64 + 1)
}

/// Returns the value with this index in `all`, counted from 1. `Some(None)` for 0; None for an
/// index that is too large.
fn numbered<T: Copy>(number: u64, all: &[T]) -> Option<Option<T>> {
    match number.checked_sub(1) {
        None => Some(None),
        Some(at) => all.get(at as usize).map(|v| Some(*v)),
    }
}

/// First bit and number of bits of each control in [`Declared::bits`]. The bits from [`BOUND_AT`]
/// on contain the bound of `eventual`.
const AT: [(u32, u32); 8] = [
    (0, 3),
    (3, 3),
    (6, 3),
    (9, 3),
    (12, 4),
    (22, 2),
    (16, 3),
    (19, 3),
];
const BOUND_AT: u32 = 32;

impl Declared {
    /// No declarations.
    pub const NOTHING: Declared = Declared {
        consistency: None,
        parallelism: None,
        mutability: None,
        temporality: None,
        persistence: None,
        integrity: None,
        failure: None,
        on_violation: None,
    };

    /// Returns these declarations; for controls not declared here, those of `other`.
    pub fn or(self, other: Declared) -> Declared {
        Declared {
            consistency: self.consistency.or(other.consistency),
            parallelism: self.parallelism.or(other.parallelism),
            mutability: self.mutability.or(other.mutability),
            temporality: self.temporality.or(other.temporality),
            persistence: self.persistence.or(other.persistence),
            integrity: self.integrity.or(other.integrity),
            failure: self.failure.or(other.failure),
            on_violation: self.on_violation.or(other.on_violation),
        }
    }

    /// Returns the declarations that result in these controls: one for each value that isn't the
    /// default.
    pub fn needed_for(controls: &Controls) -> Declared {
        let (all, strict) = (*controls, Controls::default());
        Declared {
            consistency: Some(all.consistency).filter(|c| *c != strict.consistency),
            parallelism: Some(all.parallelism).filter(|p| *p != strict.parallelism),
            mutability: Some(all.mutability).filter(|m| *m != strict.mutability),
            temporality: Some(all.temporality).filter(|t| *t != strict.temporality),
            persistence: Some(all.persistence).filter(|p| *p != strict.persistence),
            integrity: Some(all.integrity).filter(|i| *i != strict.integrity),
            failure: Some(all.failure).filter(|f| *f != strict.failure),
            on_violation: Some(all.on_violation).filter(|v| *v != strict.on_violation),
        }
    }

    /// Returns these declarations without those for controls that `other` declares, too.
    pub fn beside(self, other: &Declared) -> Declared {
        Declared {
            consistency: self.consistency.filter(|_| other.consistency.is_none()),
            parallelism: self.parallelism.filter(|_| other.parallelism.is_none()),
            mutability: self.mutability.filter(|_| other.mutability.is_none()),
            temporality: self.temporality.filter(|_| other.temporality.is_none()),
            persistence: self.persistence.filter(|_| other.persistence.is_none()),
            integrity: self.integrity.filter(|_| other.integrity.is_none()),
            failure: self.failure.filter(|_| other.failure.is_none()),
            on_violation: self.on_violation.filter(|_| other.on_violation.is_none()),
        }
    }

    /// Returns the controls of an object with these declarations: a control that isn't declared has
    /// its default.
    pub fn resolve(self) -> Controls {
        Controls {
            consistency: self.consistency.unwrap_or_default(),
            parallelism: self.parallelism.unwrap_or_default(),
            mutability: self.mutability.unwrap_or_default(),
            temporality: self.temporality.unwrap_or_default(),
            persistence: self.persistence.unwrap_or_default(),
            integrity: self.integrity.unwrap_or_default(),
            failure: self.failure.unwrap_or_default(),
            on_violation: self.on_violation.unwrap_or_default(),
        }
    }

    pub fn is_nothing(&self) -> bool {
        *self == Declared::NOTHING
    }

    /// Encodes the declarations as a number; 0 if there are none. The encoding is part of the
    /// pool's format and of messages.
    pub fn bits(self) -> u64 {
        let (consistency, bound) = match self.consistency {
            None => (0, 0),
            Some(Consistency::Sequential) => (1, 0),
            Some(Consistency::Commit) => (2, 0),
            Some(Consistency::Session) => (3, 0),
            Some(Consistency::Eventual(ms)) => (4, ms),
        };
        let numbers = [
            consistency,
            number(self.parallelism, Parallelism::ALL),
            number(self.mutability, Mutability::ALL),
            number(self.temporality, Temporality::ALL),
            number(self.persistence, Persistence::ALL),
            number(self.integrity, Integrity::ALL),
            number(self.failure, Failure::ALL),
            number(self.on_violation, OnViolation::ALL),
        ];
        let all = numbers.iter().zip(AT).map(|(n, (at, _))| n << at);
        all.fold(u64::from(bound) << BOUND_AT, |sum, n| sum | n)
    }

    /// Decodes [`Declared::bits`]; None for an invalid number.
    pub fn from_bits(bits: u64) -> Option<Declared> {
        let n = |i: usize| bits >> AT[i].0 & ((1 << AT[i].1) - 1);
        let bound = (bits >> BOUND_AT) as u32;
        let declared = Declared {
            consistency: match n(0) {
                0 => None,
                1 => Some(Consistency::Sequential),
                2 => Some(Consistency::Commit),
                3 => Some(Consistency::Session),
                4 if (1..=crate::MAX_STALENESS_MS).contains(&bound) => {
                    Some(Consistency::Eventual(bound))
                }
                _ => return None,
            },
            parallelism: numbered(n(1), Parallelism::ALL)?,
            mutability: numbered(n(2), Mutability::ALL)?,
            temporality: numbered(n(3), Temporality::ALL)?,
            persistence: numbered(n(4), Persistence::ALL)?,
            integrity: numbered(n(5), Integrity::ALL)?,
            failure: numbered(n(6), Failure::ALL)?,
            on_violation: numbered(n(7), OnViolation::ALL)?,
        };
        (declared.bits() == bits).then_some(declared)
    }

    /// Declares `value` for the control `name`.
    ///
    /// # Errors
    /// A text, if there is no such control or value.
    pub fn declare(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn parse<T: FromStr<Err = String>>(value: &str) -> Result<Option<T>, String> {
            value.parse().map(Some)
        }
        match name {
            "consistency" => self.consistency = parse(value)?,
            "parallelism" => self.parallelism = parse(value)?,
            "mutability" => self.mutability = parse(value)?,
            "temporality" => self.temporality = parse(value)?,
            "persistence" => self.persistence = parse(value)?,
            "integrity" => self.integrity = parse(value)?,
            "failure" => self.failure = parse(value)?,
            "on_violation" => self.on_violation = parse(value)?,
            _ => return Err(no_control(name)),
        }
        Ok(())
    }

    /// Removes the declaration of the control `name`.
    ///
    /// # Errors
    /// A text, if there is no such control.
    pub fn unsay(&mut self, name: &str) -> Result<(), String> {
        match name {
            "consistency" => self.consistency = None,
            "parallelism" => self.parallelism = None,
            "mutability" => self.mutability = None,
            "temporality" => self.temporality = None,
            "persistence" => self.persistence = None,
            "integrity" => self.integrity = None,
            "failure" => self.failure = None,
            "on_violation" => self.on_violation = None,
            _ => return Err(no_control(name)),
        }
        Ok(())
    }

    /// Returns each control's name and, if it is declared, its value in the written form.
    pub fn values(&self) -> [(&'static str, Option<String>); 8] {
        let text = [
            self.consistency.map(|v| v.to_string()),
            self.parallelism.map(|v| v.to_string()),
            self.mutability.map(|v| v.to_string()),
            self.temporality.map(|v| v.to_string()),
            self.persistence.map(|v| v.to_string()),
            self.integrity.map(|v| v.to_string()),
            self.failure.map(|v| v.to_string()),
            self.on_violation.map(|v| v.to_string()),
        ];
        let mut text = text.into_iter();
        NAMES.map(|name| (name, text.next().flatten()))
    }
}

impl From<Controls> for Declared {
    fn from(c: Controls) -> Declared {
        Declared {
            consistency: Some(c.consistency),
            parallelism: Some(c.parallelism),
            mutability: Some(c.mutability),
            temporality: Some(c.temporality),
            persistence: Some(c.persistence),
            integrity: Some(c.integrity),
            failure: Some(c.failure),
            on_violation: Some(c.on_violation),
        }
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let declared = self.values().into_iter();
        let declared = declared.filter_map(|(name, value)| value.map(|v| format!("{name}={v}")));
        f.write_str(&declared.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Declared {
    type Err = Syntax;

    /// Parses `consistency=commit,mutability=append`; an empty text declares nothing.
    fn from_str(s: &str) -> Result<Declared, Syntax> {
        let mut declared = Declared::NOTHING;
        let mut at = 0;
        for part in s.split(',').filter(|_| !s.is_empty()) {
            let wrong = |at: usize, message: String| Syntax { at, message };
            let Some((name, value)) = part.split_once('=') else {
                let message = format!("\"{part}\" isn't CONTROL=VALUE");
                return Err(wrong(at, message));
            };
            let (name, value) = (name.trim(), value.trim());
            let known = declared.values().into_iter().find(|(n, _)| *n == name);
            if let Some((_, Some(before))) = known {
                let message = format!("{name} is {before} already");
                return Err(wrong(at, message));
            }
            declared.declare(name, value).map_err(|e| wrong(at, e))?;
            at += part.len() + 1;
        }
        Ok(declared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_text_keep_declarations() {
        let text = "consistency=eventual(500ms),parallelism=exclusive(node),mutability=append,\
                    temporality=once,persistence=durable,integrity=checksum,failure=rollback,on_violation=report";
        let all: Declared = text.parse().unwrap();
        assert_eq!(all.to_string(), text);
        assert_eq!(Declared::from_bits(all.bits()), Some(all));
        let some: Declared = "mutability=immutable".parse().unwrap();
        assert_eq!(Declared::from_bits(some.bits()), Some(some));
        assert_eq!("".parse(), Ok(Declared::NOTHING));
        assert_eq!(Declared::NOTHING.bits(), 0);
        let strict = Declared::from(Controls::default());
        assert_eq!(Declared::from_bits(strict.bits()), Some(strict));
        assert_eq!(strict.resolve(), Declared::NOTHING.resolve());
    }

    #[test]
    fn what_is_needed_and_what_is_left() {
        let text = "parallelism=exclusive(node),mutability=append,failure=rollback";
        let declared: Declared = text.parse().unwrap();
        let needed = Declared::needed_for(&declared.resolve());
        assert_eq!(needed, declared);
        assert_eq!(needed.resolve(), declared.resolve());
        let strict = Controls::default();
        assert!(Declared::needed_for(&strict).is_nothing());
        let of_file = Declared {
            failure: None,
            ..needed
        };
        assert_eq!(needed.beside(&of_file).to_string(), "failure=rollback");
        assert_eq!(needed.beside(&Declared::NOTHING), needed);
        assert!(needed.beside(&Declared::from(strict)).is_nothing());
    }

    #[test]
    fn invalid_bits_are_refused() {
        // An invalid index; a bound without `eventual`; `eventual` without a bound; an unused bit.
        for bits in [
            7,
            1 | 5 << 32,
            4,
            1 << 24,
            3 << 22,
            3 << 6 | 7 << 9,
            u64::MAX,
        ] {
            assert_eq!(Declared::from_bits(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn the_first_declaration_counts() {
        let a: Declared = "mutability=append".parse().unwrap();
        let b: Declared = "mutability=immutable,temporality=once".parse().unwrap();
        assert_eq!(a.or(b).to_string(), "mutability=append,temporality=once");
    }

    #[test]
    fn errors_say_where() {
        let e = "mutability=append,x=1".parse::<Declared>().unwrap_err();
        assert_eq!(e.at, 18);
        assert!(e.message.contains("no control \"x\""), "{e}");
        let e = "mutability=append,mutability=append"
            .parse::<Declared>()
            .unwrap_err();
        assert!(e.message.contains("already"), "{e}");
        assert!("mutability".parse::<Declared>().is_err());
    }
}

//! Predicates over metadata: `project = "mcse" and (step >= 2 or not exists owner)`.
//!
//! ```text
//! any  = all { "or" all }
//! all  = one { "and" one }
//! one  = "not" one | "(" any ")" | "exists" key | key operator value
//! operator = "=" | "!=" | "<" | "<=" | ">" | ">="
//! key  = letter or "_", then letters, digits, "_", ".", "-", ":" ; or anything `in backquotes`
//! value = "text" (with \" and \\) or a number (-3, 2.5, 1e9)
//! ```
//!
//! Values of metadata are texts. A comparison with a text compares byte by byte. A comparison with
//! a number holds only for values that are numbers, by value: `step = 3` finds "3", "03" and "3.0".
//! A missing key matches no comparison: `step != 3` finds records with another step, `not step = 3`
//! also records without a step.
//!
//! [`Predicate::plan`] gives the part of a predicate that an index can answer.

mod parse;
mod plan;

use crate::{Error, Result};
pub use forebay_store::Number;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Key-value metadata of a workspace or a collection.
pub type Meta = BTreeMap<String, String>;

/// The operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
}

/// The operand of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(Number),
}

/// The condition of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate {
    /// All of the predicates hold. An empty list matches everything.
    All(Vec<Predicate>),
    /// One of the predicates holds.
    Any(Vec<Predicate>),
    /// The inner predicate doesn't hold.
    Not(Box<Predicate>),
    /// The key exists.
    Exists(String),
    /// The key exists, and the comparison with its value holds.
    Compare(String, Operator, Value),
}

impl Operator {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Operator::Equal => order.is_eq(),
            Operator::Unequal => order.is_ne(),
            Operator::Less => order.is_lt(),
            Operator::AtMost => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::AtLeast => order.is_ge(),
        }
    }
}

impl Predicate {
    /// Returns the predicate that matches everything.
    pub fn everything() -> Predicate {
        Predicate::All(Vec::new())
    }

    /// Parses a predicate; an empty text matches everything.
    ///
    /// # Errors
    /// EINVAL, with the column of the first error.
    pub fn parse(text: &str) -> Result<Predicate> {
        parse::parse(text)
    }

    /// Returns the predicate `key = "value"`.
    pub fn equal(key: impl Into<String>, value: impl Into<String>) -> Predicate {
        Predicate::Compare(key.into(), Operator::Equal, Value::Text(value.into()))
    }

    /// Whether the predicate matches this metadata.
    pub fn holds(&self, meta: &Meta) -> bool {
        match self {
            Predicate::All(all) => all.iter().all(|one| one.holds(meta)),
            Predicate::Any(any) => any.iter().any(|one| one.holds(meta)),
            Predicate::Not(one) => !one.holds(meta),
            Predicate::Exists(key) => meta.contains_key(key),
            Predicate::Compare(key, ..) => meta.get(key).is_some_and(|v| self.holds_for(v)),
        }
    }

    /// Whether a single comparison holds if its key has the value `value`. `exists` holds for every
    /// value.
    pub fn holds_for(&self, value: &str) -> bool {
        match self {
            Predicate::Compare(_, operator, Value::Text(text)) => {
                operator.holds(value.cmp(text.as_str()))
            }
            Predicate::Compare(_, operator, Value::Number(number)) => {
                Number::read(value).is_some_and(|n| operator.holds(n.compare(*number)))
            }
            _ => true,
        }
    }
}

impl std::str::FromStr for Predicate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Predicate> {
        Predicate::parse(text)
    }
}

/// Formats the predicate as a text that `parse` accepts.
impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, parts: &[Predicate], word| {
            f.write_str("(")?;
            for (n, part) in parts.iter().enumerate() {
                if n > 0 {
                    f.write_str(word)?;
                }
                write!(f, "{part}")?;
            }
            f.write_str(")")
        };
        match self {
            Predicate::All(all) if all.is_empty() => Ok(()),
            Predicate::All(all) => list(f, all, " and "),
            Predicate::Any(any) => list(f, any, " or "),
            Predicate::Not(one) => write!(f, "not {one}"),
            Predicate::Exists(key) => write!(f, "exists `{key}`"),
            Predicate::Compare(key, operator, value) => {
                let sign = match operator {
                    Operator::Equal => "=",
                    Operator::Unequal => "!=",
                    Operator::Less => "<",
                    Operator::AtMost => "<=",
                    Operator::Greater => ">",
                    Operator::AtLeast => ">=",
                };
                write!(f, "`{key}` {sign} ")?;
                match value {
                    Value::Text(text) => {
                        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
                        write!(f, "\"{text}\"")
                    }
                    Value::Number(Number::Whole(n)) => write!(f, "{n}"),
                    // With a point or an exponent, so that the number is parsed as a floating-point
                    // number again.
                    Value::Number(Number::Real(n)) => write!(f, "{n:?}"),
                }
            }
        }
    }
}

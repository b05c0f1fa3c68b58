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
//! Values of metadata are texts. Compared with a text, they are compared byte by byte; compared with a number, only those that
//! are numbers themselves count, by what they are worth: `step = 3` finds "3", "03" and "3.0". What
//! isn't there compares with nothing: `step != 3` finds those whose step is another one, `not step = 3` those
//! without a step as well.
//!
//! [`Predicate::plan`] says what of a predicate an index can answer.

mod parse;

use crate::{Error, Result};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// Key-value metadata of a workspace or a collection.
pub type Meta = BTreeMap<String, String>;

/// How a value is compared.
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

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(Number),
}

/// A number: whole ones are exact, up to 128 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Without a fraction.
    Whole(i128),
    /// Any other, finite.
    Real(f64),
}

/// What a search asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate {
    /// All of these hold. None of them: everything.
    All(Vec<Predicate>),
    /// One of these holds.
    Any(Vec<Predicate>),
    /// This doesn't hold.
    Not(Box<Predicate>),
    /// The key is there.
    Exists(String),
    /// The key is there, and its value compares so.
    Compare(String, Operator, Value),
}

/// What an index has to look up, so that everything that matches is among what it finds.
#[derive(Clone, Debug, PartialEq)]
pub enum Probe<'a> {
    /// What has all these values.
    Equal(Vec<(&'a str, &'a str)>),
    /// What has a value of this key for which the predicate holds.
    Values(&'a str, &'a Predicate),
}

impl Number {
    /// The number that a text is.
    pub fn read(text: &str) -> Option<Number> {
        let first = text.trim_start_matches(['-', '+']).bytes().next();
        if !first.is_some_and(|b| b.is_ascii_digit() || b == b'.') {
            return None;
        }
        if let Ok(whole) = text.parse() {
            return Some(Number::Whole(whole));
        }
        let real: f64 = text.parse().ok()?;
        real.is_finite().then_some(Number::Real(real))
    }

    fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a.cmp(&b),
            // Both are finite.
            (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Number::Whole(a), Number::Real(b)) => whole_to_real(a, b),
            (Number::Real(a), Number::Whole(b)) => whole_to_real(b, a).reverse(),
        }
    }
}

/// Compares exactly: not every whole number is a real one.
fn whole_to_real(whole: i128, real: f64) -> Ordering {
    const END: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if real >= END {
        return Ordering::Less;
    }
    if real < -END {
        return Ordering::Greater;
    }
    let floor = real.floor();
    match whole.cmp(&(floor as i128)) {
        Ordering::Equal if real > floor => Ordering::Less,
        order => order,
    }
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
    /// What holds for everything.
    pub fn everything() -> Predicate {
        Predicate::All(Vec::new())
    }

    /// Reads a predicate; an empty text means everything.
    ///
    /// # Errors
    /// EINVAL, with the column of what isn't understood.
    pub fn parse(text: &str) -> Result<Predicate> {
        parse::parse(text)
    }

    /// `key = "value"`.
    pub fn equal(key: impl Into<String>, value: impl Into<String>) -> Predicate {
        Predicate::Compare(key.into(), Operator::Equal, Value::Text(value.into()))
    }

    /// Whether it holds for this metadata.
    pub fn holds(&self, meta: &Meta) -> bool {
        match self {
            Predicate::All(all) => all.iter().all(|one| one.holds(meta)),
            Predicate::Any(any) => any.iter().any(|one| one.holds(meta)),
            Predicate::Not(one) => !one.holds(meta),
            Predicate::Exists(key) => meta.contains_key(key),
            Predicate::Compare(key, ..) => meta.get(key).is_some_and(|v| self.holds_for(v)),
        }
    }

    /// Whether a single comparison holds for a value of its key; `exists` does for every value.
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

    /// What an index has to look up; None if only a look at everything will do.
    pub fn plan(&self) -> Option<Vec<Probe<'_>>> {
        match self {
            Predicate::All(all) => {
                let mut equal = Vec::new();
                all.iter().for_each(|one| one.equalities(&mut equal));
                if !equal.is_empty() {
                    return Some(vec![Probe::Equal(equal)]);
                }
                // The one that takes the fewest questions.
                all.iter().filter_map(Predicate::plan).min_by_key(Vec::len)
            }
            Predicate::Any(any) => {
                let parts: Option<Vec<_>> = any.iter().map(Predicate::plan).collect();
                parts.map(|parts| parts.into_iter().flatten().collect())
            }
            Predicate::Not(_) => None,
            Predicate::Compare(key, Operator::Equal, Value::Text(text)) => {
                Some(vec![Probe::Equal(vec![(key, text)])])
            }
            Predicate::Exists(key) | Predicate::Compare(key, ..) => {
                Some(vec![Probe::Values(key, self)])
            }
        }
    }

    /// The equalities that hold wherever this does.
    fn equalities<'a>(&'a self, to: &mut Vec<(&'a str, &'a str)>) {
        match self {
            Predicate::All(all) => all.iter().for_each(|one| one.equalities(to)),
            Predicate::Compare(key, Operator::Equal, Value::Text(text)) => to.push((key, text)),
            _ => {}
        }
    }
}

impl std::str::FromStr for Predicate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Predicate> {
        Predicate::parse(text)
    }
}

/// As it can be parsed again.
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
                    // With its point or exponent, so that it stays one.
                    Value::Number(Number::Real(n)) => write!(f, "{n:?}"),
                }
            }
        }
    }
}

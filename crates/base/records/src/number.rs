//! Numbers in the values of attributes, and their comparison.
//!
//! The index is sorted by this comparison, so a change of it is a change of the format.

use std::cmp::Ordering;

/// A number. Whole numbers are exact, up to 128 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A number without a fraction.
    Whole(i128),
    /// Any other finite number.
    Real(f64),
}

impl Number {
    /// Parses a number; None if the text isn't one.
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

    /// Compares two numbers exactly, also a double with a whole number that no double equals.
    pub fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Whole(a), Number::Whole(b)) => a.cmp(&b),
            // Both doubles are finite.
            (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Number::Whole(a), Number::Real(b)) => whole_to_real(a, b),
            (Number::Real(a), Number::Whole(b)) => whole_to_real(b, a).reverse(),
        }
    }

    /// Splits the number into the largest double that isn't larger than the number, and the
    /// remaining difference.
    pub(super) fn split(self) -> (f64, u128) {
        match self {
            Number::Real(real) => (real, 0),
            Number::Whole(whole) => {
                let near = whole as f64;
                let below = match whole_to_real(whole, near) {
                    Ordering::Less => near.next_down(),
                    _ => near,
                };
                // `below` isn't larger than the number itself, so it fits into 128 bits.
                (below, whole.abs_diff(below as i128))
            }
        }
    }
}

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

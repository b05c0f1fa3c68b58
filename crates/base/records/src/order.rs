//! The order of values in the index: numbers by magnitude, then other texts by their bytes.
//!
//! ```text
//! number: 0, then 64 bits: the largest double that isn't larger than the number (all bits inverted
//!         if the double is negative, else the sign inverted, so that bits sort as numbers do),
//!         63 bits: the number minus this double, or the maximum if the difference is larger
//! text:   1, then 127 bits: the beginning of the text
//! ```
//!
//! If one value is smaller than another, its order isn't larger. Several values can have the same
//! order: numbers above 2^115, and texts with the same first 15 bytes. So after a search by order,
//! the values themselves are compared.

use crate::number::Number;
use crate::record::Order;

/// The bit that is set in the order of texts, so that they sort after numbers.
const TEXT: u128 = 1 << 127;

impl Order {
    /// Order of the smallest number.
    pub const FIRST_NUMBER: Order = Order(0);
    /// Order of the largest number.
    pub const LAST_NUMBER: Order = Order(TEXT - 1);
    /// Order of the empty text.
    pub const FIRST_TEXT: Order = Order(TEXT);
    /// The largest order.
    pub const LAST: Order = Order(u128::MAX);

    /// Returns the order of an attribute's value. In a value that isn't UTF-8, each invalid part
    /// counts as a replacement character.
    pub fn of_value(value: &[u8]) -> Order {
        let text = String::from_utf8_lossy(value);
        match Number::read(&text) {
            Some(number) => Order::of_number(number),
            None => Order::of_text(&text),
        }
    }

    /// The order of a number.
    pub fn of_number(number: Number) -> Order {
        let (real, missing) = number.split();
        // Turns a negative zero into a positive one.
        let bits = (real + 0.0).to_bits();
        let sorted = match bits >> 63 {
            0 => bits | 1 << 63,
            _ => !bits,
        };
        let missing = missing.min((1 << 63) - 1);
        Order(u128::from(sorted) << 63 | missing)
    }

    /// The order of a text that isn't a number.
    pub fn of_text(text: &str) -> Order {
        let mut first = [0; 16];
        let n = text.len().min(16);
        first[..n].copy_from_slice(&text.as_bytes()[..n]);
        Order(TEXT | u128::from_be_bytes(first) >> 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> (Number, Order) {
        let number = Number::read(text).unwrap();
        (number, Order::of_value(text.as_bytes()))
    }

    #[test]
    fn places_are_sorted_as_numbers_are() {
        let whole = |n: i128| n.to_string();
        let mut texts: Vec<String> = [
            "-1e308",
            "-1e39",
            "-2.5",
            "-1e-300",
            "-0.0",
            "0",
            "+0",
            "1e-300",
            "0.1",
            "1",
            "01",
            "1.0",
            "1e0",
            "2.5",
            "1e38",
            "1e39",
            "1.7976931348623157e308",
        ]
        .map(String::from)
        .to_vec();
        for shift in [10, 52, 53, 54, 62, 63, 64, 80, 115, 116, 126] {
            for near in -2..=2 {
                texts.push(whole((1 << shift) + near));
                texts.push(whole(-(1 << shift) + near));
                texts.push(format!("{:?}", ((1_i128 << shift) + near) as f64));
            }
        }
        texts.extend([whole(i128::MAX), whole(i128::MIN), whole(i128::MAX - 1)]);
        for a in &texts {
            for b in &texts {
                let ((a, at), (b, bt)) = (number(a), number(b));
                match a.compare(b) {
                    std::cmp::Ordering::Equal => assert_eq!(at, bt, "{a:?} {b:?}"),
                    order => assert!(at.cmp(&bt) == order || at == bt, "{a:?} {b:?}"),
                }
                // Whole numbers of less than 2^115 have different orders.
                let few = |n: Number| matches!(n, Number::Whole(n) if n.unsigned_abs() < 1 << 115);
                assert!(
                    at != bt || a.compare(b).is_eq() || !(few(a) && few(b)),
                    "{a:?} {b:?}"
                );
            }
        }
    }

    #[test]
    fn texts_lie_behind_numbers_and_by_their_beginnings() {
        let texts = [
            "",
            "\u{1}",
            "2026-11-22",
            "2026-11-23",
            "a",
            "aa",
            "ab",
            "é",
            "inf",
            "1e999",
        ];
        for a in texts {
            let at = Order::of_value(a.as_bytes());
            assert!(at >= Order::FIRST_TEXT && at == Order::of_text(a));
            for b in texts {
                assert_eq!(at.cmp(&Order::of_text(b)), a.cmp(b), "{a:?} {b:?}");
            }
        }
        assert!(Order::of_text("aaaaaaaaaaaaaaaaaab") >= Order::of_text("aaaaaaaaaaaaaaaaaaa"));
        assert!(number("9e307").1 <= Order::LAST_NUMBER);
        assert_eq!(Order::of_value(b"a\xffb"), Order::of_text("a\u{fffd}b"));
    }
}

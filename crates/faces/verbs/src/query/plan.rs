//! Plans: the index searches that find all records which a predicate can match.
//!
//! A plan is a list of conjunctions of terms. A record that no conjunction finds doesn't match; one
//! that some conjunction finds may match. An index sorted by [`Order`] answers each term with a
//! range. For a conjunction, the search can go over the range with the fewest entries and check the
//! other terms. At the end, the predicate itself is checked for each record found.

use super::{Operator, Predicate, Value};
use forebay_store::{Term, record::Order};

/// Maximum number of conjunctions that the parts of an `and` may produce. Parts that would exceed
/// it aren't searched for; the predicate checks them on the records found.
const MAX_CONJUNCTIONS: usize = 16;

/// A conjunction: terms that must all hold.
type All = Vec<Term>;

impl Predicate {
    /// Returns the conjunctions to search an index for; None if all records must be read. No
    /// conjunction is empty.
    pub fn plan(&self) -> Option<Vec<Vec<Term>>> {
        match self {
            Predicate::All(all) => {
                let mut plans: Vec<_> = all.iter().filter_map(Predicate::plan).collect();
                plans.sort_by_key(Vec::len);
                let join = |a: Vec<All>, b: Vec<All>| {
                    if a.len() * b.len() > MAX_CONJUNCTIONS {
                        a
                    } else {
                        product(&a, &b)
                    }
                };
                plans.into_iter().reduce(join)
            }
            Predicate::Any(any) => {
                let parts: Option<Vec<_>> = any.iter().map(Predicate::plan).collect();
                parts.map(|parts| parts.into_iter().flatten().collect())
            }
            Predicate::Not(_) => None,
            Predicate::Exists(key) => Some(within(key, &[(Order::FIRST_NUMBER, Order::LAST)])),
            Predicate::Compare(key, operator, Value::Number(number)) => {
                let at = Order::of_number(*number);
                Some(within(
                    key,
                    &[part(*operator, Order::FIRST_NUMBER, at, Order::LAST_NUMBER)],
                ))
            }
            Predicate::Compare(key, Operator::Equal, Value::Text(text)) => {
                Some(vec![vec![Term::Equal(
                    key.clone().into(),
                    text.clone().into(),
                )]])
            }
            Predicate::Compare(key, operator, Value::Text(text)) => {
                let at = Order::of_text(text);
                let texts = part(*operator, Order::FIRST_TEXT, at, Order::LAST);
                // The index sorts numbers by value, but a comparison with a text compares bytes: so
                // all numbers are candidates.
                let numbers = (Order::FIRST_NUMBER, Order::LAST_NUMBER);
                Some(within(key, &[numbers, texts]))
            }
        }
    }
}

fn within(key: &str, ranges: &[(Order, Order)]) -> Vec<All> {
    let term = |(low, high): &(Order, Order)| vec![Term::Within(key.into(), *low, *high)];
    ranges.iter().map(term).collect()
}

/// Returns the range, between `first` and `last`, of the values for which `operator` can hold with
/// the value at `at`. Several values can have the same [`Order`], so the bounds are inclusive.
fn part(operator: Operator, first: Order, at: Order, last: Order) -> (Order, Order) {
    match operator {
        Operator::Equal => (at, at),
        Operator::Unequal => (first, last),
        Operator::Less | Operator::AtMost => (first, at),
        Operator::Greater | Operator::AtLeast => (at, last),
    }
}

/// Returns the conjunction of each element of `a` with each element of `b`. Leaves out conjunctions
/// that can't hold.
fn product(a: &[All], b: &[All]) -> Vec<All> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs.filter_map(|(a, b)| both(a, b)).collect()
}

/// Returns the conjunction of `a` and `b`; None if they exclude each other. A key has one value, so
/// two ranges for one key become their intersection.
fn both(a: &All, b: &All) -> Option<All> {
    let mut all = a.clone();
    for new in b {
        let mut is_new = true;
        for old in &mut all {
            match (old, new) {
                (Term::Within(k, low, high), Term::Within(key, l, h)) if k == key => {
                    (*low, *high) = ((*low).max(*l), (*high).min(*h));
                    if low > high {
                        return None;
                    }
                    is_new = false;
                }
                (Term::Equal(k, value), Term::Equal(key, v)) if k == key => {
                    if value != v {
                        return None;
                    }
                    is_new = false;
                }
                _ => {}
            }
        }
        if is_new {
            all.push(new.clone());
        }
    }
    Some(all)
}

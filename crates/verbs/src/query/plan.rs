//! Plans: the searches of an index that a predicate needs.
//!
//! A plan is a list of conjunctions of terms: what one of them finds may match, what none finds
//! doesn't. An index that is sorted by [`Order`] answers each term by a range; it can go over
//! whichever has the fewest places and check the others. What it finds is compared once more, by
//! the predicate itself.

use super::{Operator, Predicate, Value};
use forebay_store::{Term, record::Order};

/// Conjunctions that the parts of an `and` make together, at most: what would make more only
/// filters.
const MOST: usize = 16;

/// Terms that hold together.
type All = Vec<Term>;

impl Predicate {
    /// What an index has to look up; None if only a look at everything will do. No conjunction is
    /// empty.
    pub fn plan(&self) -> Option<Vec<Vec<Term>>> {
        match self {
            Predicate::All(all) => {
                let mut plans: Vec<_> = all.iter().filter_map(Predicate::plan).collect();
                plans.sort_by_key(Vec::len);
                let join = |a: Vec<All>, b: Vec<All>| match a.len() * b.len() > MOST {
                    true => a,
                    false => product(&a, &b),
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
                // As texts, numbers are sorted in another way.
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

/// The places, of those from `first` to `last`, that compare so with the one at `at`. That one may
/// have neighbours there.
fn part(operator: Operator, first: Order, at: Order, last: Order) -> (Order, Order) {
    match operator {
        Operator::Equal => (at, at),
        Operator::Unequal => (first, last),
        Operator::Less | Operator::AtMost => (first, at),
        Operator::Greater | Operator::AtLeast => (at, last),
    }
}

/// One of `a` and one of `b`, in all ways that are possible.
fn product(a: &[All], b: &[All]) -> Vec<All> {
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    pairs.filter_map(|(a, b)| both(a, b)).collect()
}

/// Both together; None if they exclude each other. A key has one value, so ranges of it become one.
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

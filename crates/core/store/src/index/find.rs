//! Searches by comparison: finds those objects of a directory whose attributes satisfy all given
//! terms.
//!
//! All records of an object lie in one shard, so each shard is searched alone. The search scans the
//! index entries of the term that has the fewest in the shard, and checks the other terms against
//! the objects' attributes. The search finds the rarest term by counting up to a growing bound. A
//! match contains the object's description, so that one request to each node is enough.
//!
//! A reply is a page. The page says where the next page begins, which is the only state of a
//! search.

use super::{OwnedName, USER, hash_of, key_of, known_name};
use crate::codec::{List, Record, Wire, fields};
use crate::record::{Inode, Key, Mark, Order, Word, parse_indexed, parse_key, parse_ordered};
use crate::records::{ReadRecords, Records};
use crate::views::Index;
use crate::{NAME_MAX, ObjectId};
use rustix::io::{Errno, Result};

/// Maximum number of terms of a search that are checked; further terms are taken for true.
pub const TERMS: usize = 64;
/// Maximum number of objects that are examined for one page.
const STEPS: usize = 20_000;
/// Maximum size of a page. Bytes.
pub const BYTES: usize = 40 << 10;
/// Maximum size of the attributes that are returned with an object. Bytes.
const ATTRIBUTES: usize = 8 << 10;
/// Maximum number of objects in one request for descriptions.
pub const DESCRIBED: usize = 512;
/// First bound of the count of each term's index entries. Each further bound is `GROWTH` times as
/// high.
const COUNT: usize = 32;
const GROWTH: usize = 16;
/// All bounds are below this. Terms with more index entries in a shard than the last bound are
/// taken for equally frequent.
const COUNT_MAX: usize = 1 << 17;

/// The condition on an attribute `user.KEY`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// The key has this value.
    Equal(Vec<u8>, Vec<u8>),
    /// The key has a value between these two bounds, both included.
    Within(Vec<u8>, Order, Order),
}

/// A term in messages: the attribute, and the value's hash or its bounds.
#[derive(Clone, Debug)]
pub struct Wanted {
    attribute: Vec<u8>,
    value: std::result::Result<Word, (u64, Order, Order)>,
}

/// An object for which all terms hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Match {
    pub id: ObjectId,
    /// The object's name in the directory.
    pub name: Vec<u8>,
    /// Type bits of its mode.
    pub kind: u32,
    /// Its declared controls: [`crate::controls::declared`].
    pub controls: u64,
    /// Names and values of its user attributes; None if they have more than 8 KiB.
    pub attributes: Option<Attributes>,
}

/// The description of an object: its kind, attributes and names.
#[derive(Clone, PartialEq, Debug)]
pub struct Description {
    pub inode: Inode,
    /// The directory and name under which the object is in the index; None if it isn't indexed.
    pub name: Option<OwnedName>,
    /// Names and values of its user attributes; None if they have more than 8 KiB.
    pub attributes: Option<Attributes>,
}

/// A description, or an errno.
pub type Described = std::result::Result<Description, u32>;

/// Names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a page begins: a shard, the index of the term whose index entries are scanned there, and
/// the key of one of these. `at` None: term and key are still to be chosen.
#[derive(Clone, Debug, Default)]
pub struct Place {
    shard: u64,
    at: Option<(u64, Vec<u8>)>,
}

/// A page of matches.
pub type Page = super::query::Page<Match, Place>;

impl Wire for Order {
    type Owned = Order;

    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Order> {
        u128::take(from).map(Order)
    }
}

fields! {
    Wanted { attribute, value }
}

impl Wire for Match {
    type Owned = Match;

    fn put(&self, to: &mut Vec<u8>) {
        (self.id, self.name.as_slice(), self.kind, self.controls).put(to);
        self.attributes.is_some().put(to);
        if let Some(all) = &self.attributes {
            (all.len() as u32).put(to);
            all.iter()
                .for_each(|(name, value)| (name.as_slice(), value.as_slice()).put(to));
        }
    }
    fn take(from: &mut &[u8]) -> Option<Match> {
        let (id, name, kind, controls) = Wire::take(from)?;
        let attributes: Option<List<_>> = Wire::take(from)?;
        let attributes = attributes.map(|list| list.0);
        Some(Match {
            id,
            name,
            kind,
            controls,
            attributes,
        })
    }
}

fields! {
    Place { shard, at }
}

impl Match {
    /// Approximate size of the description in a message. Bytes.
    fn size(&self) -> usize {
        let attributes = self.attributes.iter().flatten();
        let attributes = attributes.map(|(name, value)| 8 + name.len() + value.len());
        32 + self.name.len() + attributes.sum::<usize>()
    }
}

impl Wanted {
    /// Encodes a term; None if no object can meet it.
    pub fn new(term: &Term) -> Option<Wanted> {
        let (Term::Equal(key, _) | Term::Within(key, ..)) = term;
        let attribute = [USER, key].concat();
        let value = match term {
            Term::Equal(_, value) => Ok(Word::new(key, value)),
            Term::Within(_, low, high) => Err((hash_of(key), *low, *high)),
        };
        Some(Wanted { attribute, value }).filter(Wanted::is_sound)
    }

    fn is_sound(&self) -> bool {
        self.attribute.len() <= NAME_MAX && key_of(&self.attribute).is_some()
    }

    fn holds(&self, value: &[u8]) -> bool {
        match self.value {
            Ok(word) => key_of(&self.attribute).is_some_and(|key| Word::new(key, value) == word),
            Err((_, low, high)) => (low..=high).contains(&Order::of_value(value)),
        }
    }

    /// Returns the key of the term's first index entry.
    fn first(&self) -> Key {
        match self.value {
            Ok(word) => Key::indexed(word, Mark::FIRST),
            Err((key, low, _)) => Key::ordered(key, low, ObjectId(0)),
        }
    }

    /// Returns the object of a record, if the record is an index entry of the term. All index
    /// entries of a term are consecutive.
    fn place(&self, record: &[u8]) -> Option<ObjectId> {
        match self.value {
            Ok(word) => {
                let (of, mark) = parse_indexed(record)?;
                (of == word).then_some(mark.id)
            }
            Err((key, _, last)) => {
                let (of, order, id) = parse_ordered(record)?;
                (of == key && order <= last).then_some(id)
            }
        }
    }

    /// Counts the term's index entries in a shard, up to `most`.
    fn count(&self, records: &impl ReadRecords, most: usize) -> Result<usize> {
        let mut count = 0;
        records.each_attached(&self.first(), |key, _| {
            let is = self.place(key).is_some();
            count += usize::from(is);
            is && count < most
        })?;
        Ok(count)
    }
}

/// Returns the index of the term with about the fewest index entries in a shard. Counts each term's
/// entries up to a growing bound below [`COUNT_MAX`]; if all terms have more, returns 0.
fn rarest(records: &impl ReadRecords, terms: &[Wanted]) -> Result<usize> {
    let mut most = COUNT;
    while terms.len() > 1 && most < COUNT_MAX {
        let mut best = (most, 0);
        for (n, term) in terms.iter().enumerate() {
            best = best.min((term.count(records, best.0)?, n));
        }
        if best.0 < most {
            return Ok(best.1);
        }
        most *= GROWTH;
    }
    Ok(0)
}

/// Returns the description of an object if it is in the directory and meets all terms. The term
/// `led` isn't checked: the object was found by an index entry of this term.
fn matched(
    records: &impl ReadRecords,
    (id, dir): (ObjectId, ObjectId),
    terms: &[Wanted],
    led: usize,
) -> Result<Option<Match>> {
    for (n, term) in terms.iter().enumerate() {
        let value = if n == led {
            continue;
        } else {
            records.attached(&Key::attribute(id, &term.attribute))?
        };
        if !value.is_some_and(|value| term.holds(value)) {
            return Ok(None);
        }
    }
    let name = known_name(records, id)?;
    let Some((_, name)) = name.filter(|(parent, _)| *parent == dir) else {
        return Ok(None);
    };
    let Some((inode, _)) = records.inode(id)? else {
        return Ok(None);
    };
    Ok(Some(Match {
        id,
        name,
        kind: inode.kind(),
        controls: inode.controls,
        attributes: attributes(records, id)?,
    }))
}

/// Returns an object's user attributes; None if they have more than [`ATTRIBUTES`] bytes.
fn attributes(records: &impl ReadRecords, id: ObjectId) -> Result<Option<Attributes>> {
    let (mut all, mut bytes) = (Attributes::new(), 0);
    records.each_attached(&Key::attribute(id, USER), |key, value| {
        match parse_key(key) {
            Some((b'A', of, name)) if of == id && name.starts_with(USER) => {
                bytes += 8 + name.len() + value.len();
                if bytes <= ATTRIBUTES {
                    all.push((name.to_vec(), value.to_vec()));
                }
                bytes <= ATTRIBUTES
            }
            _ => false,
        }
    })?;
    Ok((bytes <= ATTRIBUTES).then_some(all))
}

impl Wire for Description {
    type Owned = Description;

    fn put(&self, to: &mut Vec<u8>) {
        Record(self.inode, Vec::new()).put(to);
        self.name.put(to);
        self.attributes.is_some().put(to);
        if let Some(all) = &self.attributes {
            List(all.clone()).put(to);
        }
    }
    fn take(from: &mut &[u8]) -> Option<Description> {
        let record: Record = Wire::take(from)?;
        let name = Wire::take(from)?;
        let attributes: Option<List<_>> = Wire::take(from)?;
        Some(Description {
            inode: record.0,
            name,
            attributes: attributes.map(|list| list.0),
        })
    }
}

impl<'s> Index<'s> {
    pub fn describe_here(&self, id: ObjectId) -> Result<Description> {
        let inode = self.store.names().stat_here(id)?;
        let records = self.store.records_of(id)?;
        Ok(Description {
            inode,
            name: known_name(&records, id)?,
            attributes: attributes(&records, id)?,
        })
    }

    /// Calls `each` for all objects of this node in the directory that meet these terms.
    ///
    /// # Errors
    /// EIO.
    pub fn all_matching_here(
        &self,
        terms: &[Wanted],
        dir: ObjectId,
        mut each: impl FnMut(Match),
    ) -> Result<()> {
        let mut from = Some(Place::default());
        while let Some(place) = from {
            let page = self.matching_here(terms, dir, place)?;
            page.items.into_iter().for_each(&mut each);
            from = page.next;
        }
        Ok(())
    }

    /// Returns a page of the matches on this node.
    pub fn matching_here(&self, terms: &[Wanted], dir: ObjectId, from: Place) -> Result<Page> {
        let (mut items, mut bytes, mut steps) = (Vec::new(), 0, 0);
        let Place { shard, mut at } = from;
        for shard in shard as usize..self.store.files.count() {
            let records = self.store.records(shard)?;
            let (led, first) = match at.take() {
                // The place may come from another node, so it must be checked that the place's key
                // is one of the index.
                Some((_, key)) if !matches!(key.first(), Some(b'V' | b'R')) => {
                    return Err(Errno::PROTO);
                }
                Some((led, key)) => (led as usize, key),
                None => {
                    let led = rarest(&records, terms)?;
                    (led, terms[led].first().to_vec())
                }
            };
            let term = terms.get(led).ok_or(Errno::PROTO)?;
            let (mut failed, mut next) = (Ok(()), None);
            records.each_attached(&first, |key, _| {
                let Some(id) = term.place(key) else {
                    return false;
                };
                steps += 1;
                let found = match matched(&records, (id, dir), terms, led) {
                    Ok(found) => found,
                    Err(e) => {
                        failed = Err(e);
                        return false;
                    }
                };
                bytes += found.as_ref().map_or(0, Match::size);
                if steps > STEPS || bytes > BYTES {
                    next = Some(key.to_vec());
                    return false;
                }
                items.extend(found);
                true
            })?;
            failed?;
            if let Some(key) = next {
                let at = Some((led as u64, key));
                let next = Some(Place {
                    shard: shard as u64,
                    at,
                });
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: None })
    }

    /// Serves another node's `Search::matching`: returns a page of this node's matches.
    ///
    /// # Errors
    /// EPROTO for terms that no node sends.
    pub fn matching_part(&self, dir: ObjectId, from: Place, terms: &[Wanted]) -> Result<Page> {
        if (1..=TERMS).contains(&terms.len()) && terms.iter().all(Wanted::is_sound) {
            self.matching_here(terms, dir, from)
        } else {
            Err(Errno::PROTO)
        }
    }
}

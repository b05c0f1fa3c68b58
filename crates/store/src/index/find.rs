//! Searching by comparison: which objects of a directory have attributes for which all of these
//! terms hold.
//!
//! Records of an object lie together in a shard, so each shard answers for its own. It goes over
//! the places of the term that has the fewest there, which it finds out by counting up to a bound
//! that grows; the other terms it checks by the attributes themselves. Matches come with all that a
//! search wants to know of them, so that one question to each node is enough.
//!
//! An answer is a page. The place where the next one begins is told along and is all that is known
//! of a search.

use super::{OwnedName, USER, hash_of, key_of, known_name};
use crate::codec::{List, Record, Wire, fields};
use crate::lmdb::Snapshot;
use crate::record::{Inode, Key, Mark, Order, Word, parse_indexed, parse_key, parse_ordered};
use crate::views::Index;
use crate::{NAME_MAX, ObjectId};
use rustix::io::{Errno, Result};

/// Terms of a search that are looked at; the others are taken for true.
pub const TERMS: usize = 64;
/// Objects that are looked at for one page.
const STEPS: usize = 20_000;
/// Bytes of a page.
pub const BYTES: usize = 40 << 10;
/// Bytes of an object's attributes that come with it, at most.
const ATTRIBUTES: usize = 8 << 10;
/// Most objects that one question is about.
pub const DESCRIBED: usize = 512;
/// So many places of each term are counted first, then so many times as many.
const COUNT: usize = 32;
const GROWTH: usize = 16;
/// What has more places in a shard isn't told apart.
const COUNT_MAX: usize = 1 << 17;

/// What must hold for an attribute `user.KEY`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// The key has this value.
    Equal(Vec<u8>, Vec<u8>),
    /// The key has a value from here to there, both included.
    Within(Vec<u8>, Order, Order),
}

/// A term as nodes tell it each other: the attribute, and the value's hash or where it may be.
#[derive(Clone, Debug)]
pub struct Wanted {
    attribute: Vec<u8>,
    value: std::result::Result<Word, (u64, Order, Order)>,
}

/// An object for which all terms hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Match {
    pub id: ObjectId,
    /// In the directory.
    pub name: Vec<u8>,
    /// Type bits of its mode.
    pub kind: u32,
    /// What was said of it: [`crate::controls::declared`].
    pub controls: u64,
    /// Names and values of its user attributes; None if they are many.
    pub attributes: Option<Attributes>,
}

/// What an object is and has.
#[derive(Clone, PartialEq, Debug)]
pub struct Description {
    pub inode: Inode,
    /// The name by which it is in the index, and its directory; None: it isn't there.
    pub name: Option<OwnedName>,
    /// Names and values of its user attributes; None if they are many.
    pub attributes: Option<Attributes>,
}

/// A description, or an errno.
pub type Described = std::result::Result<Description, u32>;

/// Names and values.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Where a page begins: a shard, the number of the term whose places are gone over there, and the
/// key of one of them. None: both are to be chosen.
#[derive(Clone, Debug, Default)]
pub struct Place {
    shard: u64,
    at: Option<(u64, Vec<u8>)>,
}

/// Matches, and where the rest begins.
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
    /// About as many bytes as it takes in a message.
    fn size(&self) -> usize {
        let attributes = self.attributes.iter().flatten();
        let attributes = attributes.map(|(name, value)| 8 + name.len() + value.len());
        32 + self.name.len() + attributes.sum::<usize>()
    }
}

impl Wanted {
    /// None if nothing can have it.
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

    /// The first of its places in the index.
    fn first(&self) -> Key {
        match self.value {
            Ok(word) => Key::indexed(word, Mark::FIRST),
            Err((key, low, _)) => Key::ordered(key, low, ObjectId(0)),
        }
    }

    /// Whose a record is, if it is one of its places. These lie one after the other.
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

    /// Its places in a shard, up to `most`.
    fn count(&self, snapshot: &Snapshot<'_>, most: usize) -> Result<usize> {
        let mut count = 0;
        snapshot.scan(&self.first(), |key, _| {
            let is = self.place(key).is_some();
            count += usize::from(is);
            is && count < most
        })?;
        Ok(count)
    }
}

/// The term with the fewest places in a shard, about.
fn rarest(snapshot: &Snapshot<'_>, terms: &[Wanted]) -> Result<usize> {
    let mut most = COUNT;
    while terms.len() > 1 && most < COUNT_MAX {
        let mut best = (most, 0);
        for (n, term) in terms.iter().enumerate() {
            best = best.min((term.count(snapshot, best.0)?, n));
        }
        if best.0 < most {
            return Ok(best.1);
        }
        most *= GROWTH;
    }
    Ok(0)
}

/// What an object is and has, if it is in the directory and the terms, but for the one that has led
/// to it, hold for it.
fn matched(
    snapshot: &Snapshot<'_>,
    (id, dir): (ObjectId, ObjectId),
    terms: &[Wanted],
    led: usize,
) -> Result<Option<Match>> {
    for (n, term) in terms.iter().enumerate() {
        let value = match n == led {
            true => continue,
            false => snapshot.get(&Key::attribute(id, &term.attribute))?,
        };
        if !value.is_some_and(|value| term.holds(value)) {
            return Ok(None);
        }
    }
    let name = known_name(|from, each| snapshot.scan(from, each), id)?;
    let Some((_, name)) = name.filter(|(parent, _)| *parent == dir) else {
        return Ok(None);
    };
    let Some((inode, _)) = snapshot.get(&Key::inode(id))?.and_then(Inode::decode) else {
        return Ok(None);
    };
    Ok(Some(Match {
        id,
        name,
        kind: inode.kind(),
        controls: inode.controls,
        attributes: attributes(snapshot, id)?,
    }))
}

/// Its user attributes, unless they are many.
fn attributes(snapshot: &Snapshot<'_>, id: ObjectId) -> Result<Option<Attributes>> {
    let (mut all, mut bytes) = (Attributes::new(), 0);
    snapshot.scan(&Key::attribute(id, USER), |key, value| {
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
        let inode = self.names().stat_here(id)?;
        let snapshot = self.snapshot(self.shard_of(id))?;
        Ok(Description {
            inode,
            name: known_name(|from, each| snapshot.scan(from, each), id)?,
            attributes: attributes(&snapshot, id)?,
        })
    }

    /// Tells all objects of this node in the directory for which these terms hold.
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

    /// A page of what lies here.
    pub fn matching_here(&self, terms: &[Wanted], dir: ObjectId, from: Place) -> Result<Page> {
        let (mut items, mut bytes, mut steps) = (Vec::new(), 0, 0);
        let Place { shard, mut at } = from;
        for shard in shard as usize..self.names().shard_count() {
            let snapshot = self.snapshot(shard)?;
            let (led, first) = match at.take() {
                Some((led, key)) => (led as usize, key),
                None => {
                    let led = rarest(&snapshot, terms)?;
                    (led, terms[led].first().to_vec())
                }
            };
            let term = terms.get(led).ok_or(Errno::PROTO)?;
            let (mut failed, mut next) = (Ok(()), None);
            snapshot.scan(&first, |key, _| {
                let Some(id) = term.place(key) else {
                    return false;
                };
                steps += 1;
                let found = match matched(&snapshot, (id, dir), terms, led) {
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

    /// The reply to another node's `Cluster::matching`.
    ///
    /// # Errors
    /// EPROTO for terms that nobody asks for.
    pub fn matching_part(&self, dir: ObjectId, from: Place, terms: &[Wanted]) -> Result<Page> {
        match (1..=TERMS).contains(&terms.len()) && terms.iter().all(Wanted::is_sound) {
            true => self.matching_here(terms, dir, from),
            false => Err(Errno::PROTO),
        }
    }
}

//! Queries the index: which objects have given attributes, and which keys and values occur.
//!
//! Replies are pages, in the order of the index. Each shard and each node contributes a part of a
//! page; items after the end of the shortest part are left to the next page. So no page takes long,
//! whatever the index contains.

use super::{OwnedName, USER, hash_of, key_of, known_name};
use crate::ObjectId;
use crate::codec::{List, Wire, fields};
use crate::record::{Key, Mark, Word, parse_indexed, parse_key};
use crate::records::{ReadRecords, Records};
use crate::views::Index;
use rustix::io::Result;

/// Maximum number of index entries that are examined in one shard for one page, in a query for
/// several attributes.
const STEPS: usize = 4_000;
/// Number of steps to the next record that take about as long as one seek.
const SEEK: usize = 8;
/// Maximum number of hits, keys or values in one message.
const MAX_ITEMS_PER_MESSAGE: usize = 1024;
/// Maximum size of a reply in one message. Bytes.
const BYTES: usize = 40 << 10;

/// An object that has the attributes of the query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The object's place in the index.
    pub mark: Mark,
    /// The object's directory and name.
    pub name: OwnedName,
}

/// A key, or a value of a key: its hash, and its form in a path.
pub type Written = (u64, Vec<u8>);

/// A part of a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T, P> {
    /// The items, in the order of the index.
    pub items: Vec<T>,
    /// Where the rest begins; None if the page is the last.
    pub next: Option<P>,
}

fields! {
    Mark { name, id }
    Word { key, value }
    Hit { mark, name }
}

impl<T: Wire, P: Wire> Wire for Page<T, P> {
    type Owned = Page<T::Owned, P::Owned>;

    fn put(&self, to: &mut Vec<u8>) {
        (self.items.len() as u32).put(to);
        self.items.iter().for_each(|item| item.put(to));
        self.next.put(to);
    }
    fn take(from: &mut &[u8]) -> Option<Page<T, P>> {
        let (items, next): (List<T>, Option<P>) = Wire::take(from)?;
        let items = items.0;
        Some(Page { items, next })
    }
}

impl<T, P: Ord + Copy> Page<T, P> {
    /// Joins pages that begin at the same place: keeps the items before the earliest of their ends.
    pub fn join(pages: Vec<Page<T, P>>, place: impl Fn(&T) -> P) -> Page<T, P> {
        let next = pages.iter().filter_map(|p| p.next).min();
        let mut items: Vec<T> = pages.into_iter().flat_map(|p| p.items).collect();
        items.retain(|item| next.is_none_or(|next| place(item) < next));
        items.sort_by_key(&place);
        Page { items, next }
    }

    /// Shortens the page so that it fits into a message.
    fn fit(mut self, bytes_of: impl Fn(&T) -> usize, place: impl Fn(&T) -> P) -> Page<T, P> {
        let mut bytes = 0;
        let fits = |item: &&T| {
            bytes += bytes_of(item);
            bytes <= BYTES
        };
        let n = self.items.iter().take_while(fits).count();
        if let Some(first) = self.items.get(n) {
            self.next = Some(place(first));
            self.items.truncate(n);
        }
        self
    }
}

impl<'s> Index<'s> {
    /// As `Search::search`, for the objects on this node.
    pub fn search_here(
        &self,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: usize,
    ) -> Result<Page<Hit, Mark>> {
        let shards = self.store.files.count();
        // Up to 8 more than an equal share: `Page::join` drops all items after the earliest end of
        // a shard's page. With larger pages it would drop many.
        let share = most / shards + most.min(8);
        let from = from.max(Mark {
            name: only.unwrap_or(0),
            id: ObjectId(0),
        });
        let pages = (0..shards).map(|shard| self.search_shard(shard, words, from, only, share));
        let pages = pages.collect::<Result<Vec<_>>>()?;
        Ok(Page::join(pages, |hit| hit.mark))
    }

    pub fn search_shard(
        &self,
        shard: usize,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: usize,
    ) -> Result<Page<Hit, Mark>> {
        let records = self.store.records(shard)?;
        let wanted = |mark: Mark| only.is_none_or(|name| name == mark.name);
        let (marks, next) = match words {
            [] => (Vec::new(), None),
            [word] => places(&records, *word, from, most, wanted)?,
            _ => common(&records, words, from, most, wanted)?,
        };
        let mut items = Vec::with_capacity(marks.len());
        for mark in marks {
            let name = known_name(&records, mark.id)?;
            items.extend(name.map(|name| Hit { mark, name }));
        }
        Ok(Page { items, next })
    }

    /// As `Search::written`, for the objects on this node.
    pub fn written_here(
        &self,
        of: Option<u64>,
        from: u64,
        most: usize,
    ) -> Result<Page<Written, u64>> {
        let shards = (0..self.store.files.count()).map(|shard| self.store.records(shard));
        let shards = shards.collect::<Result<Vec<_>>>()?;
        let pages = shards.iter().map(|s| distinct(s, of, from, most));
        let found = Page::join(pages.collect::<Result<_>>()?, |one| one.0);
        // The same value may occur in many shards, but is formatted once.
        let mut items: Vec<Written> = Vec::new();
        for (hash, word, id) in found.items {
            if items.last().is_none_or(|last| last.0 != hash) {
                let text = write(
                    &shards[self.store.files.shard_of(id)],
                    id,
                    word,
                    of.is_some(),
                )?;
                items.extend(text.map(|text| (hash, text)));
            }
        }
        let next = found.next;
        Ok(Page { items, next })
    }

    /// Serves another node's `Search::search`.
    pub fn search_part(
        &self,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: u64,
    ) -> Result<Page<Hit, Mark>> {
        let page = self.search_here(
            words,
            from,
            only,
            (most as usize).min(MAX_ITEMS_PER_MESSAGE),
        )?;
        Ok(page.fit(|hit| 28 + hit.name.1.len(), |hit| hit.mark))
    }

    /// Serves another node's `Search::written`.
    pub fn written_part(
        &self,
        of: Option<u64>,
        from: u64,
        most: u64,
    ) -> Result<Page<Written, u64>> {
        let page = self.written_here(of, from, (most as usize).min(MAX_ITEMS_PER_MESSAGE))?;
        Ok(page.fit(|item| 12 + item.1.len(), |item| item.0))
    }
}

/// Returns the first index entry from `mark` on.
fn first_from(records: &impl ReadRecords, word: Word, mark: Mark) -> Result<Option<(Word, Mark)>> {
    let mut found = None;
    records.each_attached(&Key::indexed(word, mark), |key, _| {
        found = parse_indexed(key);
        false
    })?;
    Ok(found)
}

/// A key or value by its hash, and an object that has it.
type Distinct = (u64, Word, ObjectId);

/// Returns the keys in a shard, or with `of` the values of that key, from a hash on.
fn distinct(
    records: &impl ReadRecords,
    of: Option<u64>,
    from: u64,
    most: usize,
) -> Result<Page<Distinct, u64>> {
    let mut items: Vec<Distinct> = Vec::new();
    let mut next = Some(from);
    while let Some(hash) = next.take_if(|_| items.len() < most) {
        let (key, value) = of.map_or((hash, 0), |key| (key, hash));
        let mut steps = 0;
        records.each_attached(&Key::indexed(Word { key, value }, Mark::FIRST), |key, _| {
            let found = parse_indexed(key).filter(|f| of.is_none_or(|key| key == f.0.key));
            let Some((word, mark)) = found else {
                return false;
            };
            let hash = if of.is_some() { word.value } else { word.key };
            if items.last().is_some_and(|last| last.0 == hash) {
                // If many records have the same value, a seek to the next value is faster.
                steps += 1;
                if steps == SEEK {
                    next = hash.checked_add(1);
                }
                return steps < SEEK;
            }
            if items.len() == most {
                next = Some(hash);
                return false;
            }
            items.push((hash, word, mark.id));
            steps = 0;
            true
        })?;
    }
    Ok(Page { items, next })
}

/// Index entries of a shard, and where the rest begins.
type Places = (Vec<Mark>, Option<Mark>);

/// Returns the index entries of an attribute.
fn places(
    records: &impl ReadRecords,
    word: Word,
    from: Mark,
    most: usize,
    wanted: impl Fn(Mark) -> bool,
) -> Result<Places> {
    let mut marks = Vec::new();
    let mut next = None;
    records.each_attached(&Key::indexed(word, from), |key, _| {
        match parse_indexed(key) {
            Some((of, mark)) if of == word && wanted(mark) => {
                if marks.len() == most {
                    next = Some(mark);
                    return false;
                }
                marks.push(mark);
                true
            }
            _ => false,
        }
    })?;
    Ok((marks, next))
}

/// Returns the marks that are common to the index entries of several attributes. Each attribute in
/// turn seeks its first entry from the present mark on, so that the number of steps is about the
/// number of the rarest attribute's entries.
fn common(
    records: &impl ReadRecords,
    words: &[Word],
    from: Mark,
    most: usize,
    wanted: impl Fn(Mark) -> bool,
) -> Result<Places> {
    let mut marks = Vec::new();
    let (mut at, mut agree) = (from, 0);
    for word in words.iter().cycle().take(STEPS) {
        let found = first_from(records, *word, at)?;
        let Some((_, mark)) = found.filter(|(of, mark)| of == word && wanted(*mark)) else {
            return Ok((marks, None));
        };
        agree = if mark == at { agree + 1 } else { 1 };
        at = mark;
        if agree == words.len() {
            if marks.len() == most {
                break;
            }
            marks.push(at);
            (at, agree) = (at.after(), 0);
        }
    }
    Ok((marks, Some(at)))
}

/// Returns the key of an attribute, or its value, in the form used in paths, taken from an object
/// that has it.
fn write(
    records: &impl ReadRecords,
    id: ObjectId,
    word: Word,
    value: bool,
) -> Result<Option<Vec<u8>>> {
    let mut text = None;
    records.each_attached(&Key::attribute(id, USER), |found, bytes| {
        let Some((b'A', of, name)) = parse_key(found) else {
            return false;
        };
        let Some(key) = key_of(name).filter(|_| of == id) else {
            return false;
        };
        if value && Word::new(key, bytes) == word {
            text = Some(crate::attribute_view::written_value(bytes, word));
        } else if !value && hash_of(key) == word.key {
            text = Some(crate::attribute_view::written_key(key));
        }
        text.is_none()
    })?;
    Ok(text)
}

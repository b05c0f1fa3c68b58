//! Asking the index: which objects have these attributes, and which keys and values there are.
//!
//! Answers come in pages, in the order of the index. Shards and nodes are asked each for a part of
//! a page; what lies behind the end of the shortest part waits for the next page. So no page takes
//! long, whatever is in the index.

use super::{OwnedName, USER, hash_of, key_of, known_name};
use crate::ObjectId;
use crate::codec::{List, Wire, fields};
use crate::lmdb::Snapshot;
use crate::record::{Key, Mark, Word, parse_indexed, parse_key};
use crate::views::Index;
use rustix::io::Result;

/// Places that are looked at in one shard for one page, where several attributes are asked for.
const STEPS: usize = 4_000;
/// Steps from record to record that take about as long as looking for one.
const SEEK: usize = 8;
/// Most hits, keys or values of one message.
const MOST: usize = 1024;
/// Bytes of an answer that one message takes.
const BYTES: usize = 40 << 10;

/// An object that has the attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Its place.
    pub mark: Mark,
    /// Its directory and name.
    pub name: OwnedName,
}

/// A key, or a value of one: its hash, and how it is written in a path.
pub type Written = (u64, Vec<u8>);

/// Some of what was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T, P> {
    /// In order.
    pub items: Vec<T>,
    /// Where the rest begins; None if that was all.
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
    /// Puts pages together that begin at the same place: what lies before the end of each.
    pub fn join(pages: Vec<Page<T, P>>, place: impl Fn(&T) -> P) -> Page<T, P> {
        let next = pages.iter().filter_map(|p| p.next).min();
        let mut items: Vec<T> = pages.into_iter().flat_map(|p| p.items).collect();
        items.retain(|item| next.is_none_or(|next| place(item) < next));
        items.sort_by_key(&place);
        Page { items, next }
    }

    /// Cuts the page so that it fits a message.
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
    /// As `Cluster::search`, of what lies here.
    pub fn search_here(
        &self,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: usize,
    ) -> Result<Page<Hit, Mark>> {
        let shards = self.names().shard_count();
        // A little more than a shard's share, so that the shortest part isn't much shorter than the
        // others.
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
        let snapshot = self.snapshot(shard)?;
        let wanted = |mark: Mark| only.is_none_or(|name| name == mark.name);
        let (marks, next) = match words {
            [] => (Vec::new(), None),
            [word] => places(&snapshot, *word, from, most, wanted)?,
            _ => common(&snapshot, words, from, most, wanted)?,
        };
        let mut items = Vec::with_capacity(marks.len());
        for mark in marks {
            let name = known_name(|from, each| snapshot.scan(from, each), mark.id)?;
            items.extend(name.map(|name| Hit { mark, name }));
        }
        Ok(Page { items, next })
    }

    /// As `Cluster::written`, of what lies here.
    pub fn written_here(
        &self,
        of: Option<u64>,
        from: u64,
        most: usize,
    ) -> Result<Page<Written, u64>> {
        let snapshots = (0..self.names().shard_count()).map(|shard| self.snapshot(shard));
        let snapshots = snapshots.collect::<Result<Vec<_>>>()?;
        let pages = snapshots.iter().map(|s| distinct(s, of, from, most));
        let found = Page::join(pages.collect::<Result<_>>()?, |one| one.0);
        // Most shards have most of them: each is written down once.
        let mut items: Vec<Written> = Vec::new();
        for (hash, word, id) in found.items {
            if items.last().is_none_or(|last| last.0 != hash) {
                let text = write(&snapshots[self.shard_of(id)], id, word, of.is_some())?;
                items.extend(text.map(|text| (hash, text)));
            }
        }
        let next = found.next;
        Ok(Page { items, next })
    }

    /// Answers another node's `Cluster::search`.
    pub fn search_part(
        &self,
        words: &[Word],
        from: Mark,
        only: Option<u64>,
        most: u64,
    ) -> Result<Page<Hit, Mark>> {
        let page = self.search_here(words, from, only, (most as usize).min(MOST))?;
        Ok(page.fit(|hit| 28 + hit.name.1.len(), |hit| hit.mark))
    }

    /// Answers another node's `Cluster::written`.
    pub fn written_part(
        &self,
        of: Option<u64>,
        from: u64,
        most: u64,
    ) -> Result<Page<Written, u64>> {
        let page = self.written_here(of, from, (most as usize).min(MOST))?;
        Ok(page.fit(|item| 12 + item.1.len(), |item| item.0))
    }
}

/// The first record of the index from this place on.
fn first_from(snapshot: &Snapshot<'_>, word: Word, mark: Mark) -> Result<Option<(Word, Mark)>> {
    let mut found = None;
    snapshot.scan(&Key::indexed(word, mark), |key, _| {
        found = parse_indexed(key);
        false
    })?;
    Ok(found)
}

/// A key or value by its hash, and one that has it.
type Distinct = (u64, Word, ObjectId);

/// The keys in a shard, or the values of one, from a hash on.
fn distinct(
    snapshot: &Snapshot<'_>,
    of: Option<u64>,
    from: u64,
    most: usize,
) -> Result<Page<Distinct, u64>> {
    let mut items: Vec<Distinct> = Vec::new();
    let mut next = Some(from);
    while let Some(hash) = next.take_if(|_| items.len() < most) {
        let (key, value) = of.map_or((hash, 0), |key| (key, hash));
        let mut steps = 0;
        snapshot.scan(&Key::indexed(Word { key, value }, Mark::FIRST), |key, _| {
            let found = parse_indexed(key).filter(|f| of.is_none_or(|key| key == f.0.key));
            let Some((word, mark)) = found else {
                return false;
            };
            let hash = if of.is_some() { word.value } else { word.key };
            if items.last().is_some_and(|last| last.0 == hash) {
                // Over many that have the same it is faster to look for the next one.
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

/// Places in a shard, and where the rest begins.
type Places = (Vec<Mark>, Option<Mark>);

/// The places of those that have an attribute.
fn places(
    snapshot: &Snapshot<'_>,
    word: Word,
    from: Mark,
    most: usize,
    wanted: impl Fn(Mark) -> bool,
) -> Result<Places> {
    let mut marks = Vec::new();
    let mut next = None;
    snapshot.scan(&Key::indexed(word, from), |key, _| {
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

/// The places of those that have several: each leads the others on to the next place that it has
/// itself, so that takes about as many steps as the rarest has places.
fn common(
    snapshot: &Snapshot<'_>,
    words: &[Word],
    from: Mark,
    most: usize,
    wanted: impl Fn(Mark) -> bool,
) -> Result<Places> {
    let mut marks = Vec::new();
    let (mut at, mut agree) = (from, 0);
    for word in words.iter().cycle().take(STEPS) {
        let found = first_from(snapshot, *word, at)?;
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

/// The key of an attribute, or its value, as it is written in a path: from an object that has it.
fn write(
    snapshot: &Snapshot<'_>,
    id: ObjectId,
    word: Word,
    value: bool,
) -> Result<Option<Vec<u8>>> {
    let mut text = None;
    snapshot.scan(&Key::attribute(id, USER), |found, bytes| {
        let Some((b'A', of, name)) = parse_key(found) else {
            return false;
        };
        let Some(key) = key_of(name).filter(|_| of == id) else {
            return false;
        };
        if value && Word::new(key, bytes) == word {
            text = Some(crate::view::written_value(bytes, word));
        } else if !value && hash_of(key) == word.key {
            text = Some(crate::view::written_key(key));
        }
        text.is_none()
    })?;
    Ok(text)
}

//! Files that grow on other nodes because their own is full.
//!
//! A file of one node (distribution `local`) has all its chunks at its home as long as there is
//! room. When a write finds none, the home marks the file as *spilled* ([`live_flag::PARTS`] on an
//! id without a chunk size). From then on it is written and read as a striped file of 1 MiB chunks,
//! with the same parts, cuts and leases. What differs is where a chunk lies: not a hash says so but
//! a record of the home, `E id chunk -> node, from`. Bytes of the chunk below `from` lie at the
//! home, the others in that node's part. A chunk without such a record lies at the home.
//!
//! - A chunk is placed when it is first written and the home has no room for it: the writer asks
//!   the home ([`PLACE`]), reserves the chunk on a node with room, and has the home note it
//!   ([`ASSIGN`]). Whoever notes first wins. So what is within a placed chunk has its room:
//!   overwriting never fails for lack of it.
//! - A placement holds until the file is cut below it. Everybody may remember it together with the
//!   number of cuts; a part that was cut since refuses. That a chunk lies at the home is never
//!   remembered: the home is asked each time.
//! - The home never gives pages to a placed chunk from `from` on ([`Store::home_limit`]).
//! - Who knows a file as one of its home's alone asks the home, which refuses with EXFULL once the
//!   file is spilled; then the asker looks again ([`Store::learn_spilled`]).
//! - A file that somebody on its home has mapped isn't spilled: those mappings show the home's
//!   pages.
//!
//! [`live_flag::PARTS`]: crate::control::live_flag::PARTS
//! [`PLACE`]: kind::PLACE
//! [`ASSIGN`]: kind::ASSIGN

use super::*;
use crate::data::pages;
use crate::elsewhere::messages::{List, Part};
use crate::process::Critical;
use crate::record::{Key, parse_key, tail};
use crate::shards::{Need, Write};
use crate::{CHUNK, PAGE};
use forebay_media::CELL_PAGES;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicU64};
use twox_hash::XxHash3_64;

/// Placements that a question tells at most: of so many chunks behind the one asked for.
const AHEAD: u64 = 512;
/// Placements that a process remembers.
const REMEMBERED: usize = 2048;

/// Where a chunk lies that was given to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placed {
    pub node: NodeId,
    /// Bytes of the chunk before this lie at the home; a multiple of a page.
    pub from: u32,
}

impl Placed {
    fn encode(self) -> [u8; 8] {
        (u64::from(self.node.0) << 32 | u64::from(self.from)).to_le_bytes()
    }

    /// What a record says; None if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Placed> {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        let placed = Placed {
            node: NodeId((word >> 32) as u32),
            from: word as u32,
        };
        let sound = u64::from(placed.from) < CHUNK && (placed.from as usize).is_multiple_of(PAGE);
        sound.then_some(placed)
    }
}

impl Part for Placed {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.encode());
    }
    fn take(from: &mut &[u8]) -> Option<Placed> {
        let (bytes, rest) = from.split_first_chunk::<8>()?;
        *from = rest;
        Placed::decode(bytes)
    }
}

/// What the home says of a chunk that is to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Chunk {
    /// It has the pages.
    Home,
    /// That node has it.
    There(Placed),
    /// Nobody has it from this byte on, and the home has no room. With the content of the file, if
    /// that lies in its record.
    Nowhere(u32, Option<Vec<u8>>),
}

impl Part for Chunk {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Chunk::Home => 0u8.put(to),
            Chunk::There(placed) => (1u8, *placed).put(to),
            Chunk::Nowhere(from, content) => {
                (2u8, *from).put(to);
                content.put(to);
            }
        }
    }
    fn take(from: &mut &[u8]) -> Option<Chunk> {
        match u8::take(from)? {
            0 => Some(Chunk::Home),
            1 => Placed::take(from).map(Chunk::There),
            2 => Some(Chunk::Nowhere(u32::take(from)?, Part::take(from)?)),
            _ => None,
        }
    }
}

/// Placements that this process has been told: a place by the hash of file, cuts and chunk. Without
/// a lock: what was read while another thread wrote doesn't have the right sum.
#[derive(Default)]
pub(crate) struct Memory(AtomicPtr<[Remembered; REMEMBERED]>);

#[derive(Default)]
struct Remembered {
    /// File, cuts, chunk, placement.
    words: [AtomicU64; 4],
    sum: AtomicU64,
}

fn sum(words: &[u64; 4]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    XxHash3_64::oneshot_with_seed(0x70_6c_61_63_65, &bytes) | 1
}

impl Memory {
    fn place(&self, key: [u64; 3], make: bool) -> Option<&Remembered> {
        let mut all = self.0.load(Acquire);
        if all.is_null() {
            if !make {
                return None;
            }
            let new: Vec<Remembered> = (0..REMEMBERED).map(|_| Remembered::default()).collect();
            let new: Box<[Remembered; REMEMBERED]> = new.into_boxed_slice().try_into().ok()?;
            let new = Box::into_raw(new);
            match self.0.compare_exchange(all, new, AcqRel, Acquire) {
                Ok(_) => all = new,
                Err(other) => {
                    all = other;
                    // SAFETY: nobody else has seen it.
                    drop(unsafe { Box::from_raw(new) });
                }
            }
        }
        let n = sum(&[key[0], key[1], key[2], 0]) >> 8;
        // SAFETY: it stays as long as this does.
        Some(unsafe { &(*all)[n as usize % REMEMBERED] })
    }

    fn get(&self, key: [u64; 3]) -> Option<Placed> {
        let place = self.place(key, false)?;
        let words = [0, 1, 2, 3].map(|i: usize| place.words[i].load(Acquire));
        let known = words[..3] == key && place.sum.load(Acquire) == sum(&words);
        Placed::decode(&words[3].to_le_bytes()).filter(|_| known)
    }

    fn put(&self, key: [u64; 3], placed: Placed) {
        let Some(place) = self.place(key, true) else {
            return;
        };
        let words = [key[0], key[1], key[2], u64::from_le_bytes(placed.encode())];
        place.sum.store(0, Release);
        for (at, word) in place.words.iter().zip(words) {
            at.store(word, Release);
        }
        place.sum.store(sum(&words), Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all = self.0.load(Acquire);
        if !all.is_null() {
            // SAFETY: it was made by a box; nobody uses it any more.
            drop(unsafe { Box::from_raw(all) });
        }
    }
}

impl Store {
    /// Whether chunks of this file of one node lie on others. Of a file that stands for another
    /// node's: whether this node knows so.
    pub(crate) fn is_spilled(live: &Live) -> bool {
        if live.flags.load(Acquire) & flag::PARTS == 0 {
            return false;
        }
        let id = ObjectId(live.id.load(Relaxed));
        id.stripe().is_none() && !id.is_part()
    }

    // ---- at the home ----

    /// A write has found no room on this node, which is the file's home. Whether others may have
    /// some: then the file is spilled from now on.
    pub(crate) fn spill_here(&self, index: u32) -> Result<bool> {
        let live = self.live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let several = self
            .elsewhere
            .as_deref()
            .is_some_and(|e| e.nodes().len() > 1);
        if !several || id.stripe().is_some() || id.is_part() || self.live_away(index).is_some() {
            return Ok(false);
        }
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let flags = lock.0.flags.load(Acquire);
        if flags & flag::MAPPED != 0 {
            return Ok(false);
        }
        lock.0.flags.fetch_or(flag::PARTS | flag::DIRTY, AcqRel);
        Ok(true)
    }

    /// EXFULL if an open file of this node has chunks on others.
    pub(crate) fn not_spilled(&self, index: u32) -> Result<()> {
        match Store::is_spilled(self.live(index)) {
            true => Err(CHANGED),
            false => Ok(()),
        }
    }

    /// As [`Store::spill_here`], for a process that can find out whether others have room.
    pub(crate) fn spill(&self, index: u32) -> Result<bool> {
        if self.elsewhere.is_none() || self.live_away(index).is_some() {
            return Ok(false);
        }
        if Store::is_spilled(self.live(index)) {
            return Ok(true);
        }
        Ok(!self.roomy_nodes(0).is_empty() && self.spill_here(index)?)
    }

    /// Of a file of this node, which is locked: how many pages of a chunk it may have here.
    pub(crate) fn home_limit(&self, live: &Live, chunk: u64) -> Result<Option<usize>> {
        if !Store::is_spilled(live) {
            return Ok(None);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let snapshot = self.snapshot(self.shard_of(id))?;
        let record = snapshot.get(&Key::placed(id, chunk))?;
        Ok(record
            .and_then(Placed::decode)
            .map(|placed| placed.from as usize / PAGE))
    }

    /// The placements of `count` chunks from `first` on, of a file that was cut so many times.
    pub(crate) fn places_here(
        &self,
        index: u32,
        cuts: u64,
        (first, count): (u64, u64),
    ) -> Result<Vec<(u64, Placed)>> {
        let live = self.live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let mut places = Vec::new();
        self.snapshot(self.shard_of(id))?
            .scan(&Key::placed(id, first), |key, value| {
                let Some((b'E', of, n)) = parse_key(key) else {
                    return false;
                };
                let chunk = n.try_into().map_or(u64::MAX, u64::from_be_bytes);
                if of != id || chunk - first.min(chunk) >= count {
                    return false;
                }
                places.extend(Placed::decode(value).map(|placed| (chunk, placed)));
                true
            })?;
        match live.cuts.load(Acquire) == cuts {
            true => Ok(places),
            false => Err(CHANGED),
        }
    }

    /// A chunk of a spilled file is to be written up to `end`, an offset in it: where, if that is
    /// settled.
    pub(crate) fn place_here(&self, index: u32, cuts: u64, chunk: u64, end: u64) -> Result<Chunk> {
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        if live.cuts.load(Acquire) != cuts {
            return Err(CHANGED);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let record = self.snapshot(self.shard_of(id))?;
        let record = record.get(&Key::placed(id, chunk))?.map(Placed::decode);
        if let Some(placed) = record {
            return placed.map(Chunk::There).ok_or(Errno::IO);
        }
        if chunk == 0
            && let Err(e) = self.promote(index)
        {
            let len = live.size.load(Relaxed) as usize;
            let mut content = vec![0; len];
            let moved = live.moved.load(Relaxed);
            return match e {
                // SAFETY: the vector has so many bytes.
                Errno::NOSPC => unsafe {
                    self.copy_out(index, moved, 0, content.as_mut_ptr(), len)
                        .map(|()| Chunk::Nowhere(0, Some(content)))
                },
                e => Err(e),
            };
        }
        match self.ensure(index, chunk, pages(end)) {
            Ok(_) => Ok(Chunk::Home),
            Err(Errno::NOSPC) => {
                let moved = live.moved.load(Relaxed);
                let map = self.chunk_map(index, chunk, moved, CELL_PAGES)?;
                Ok(Chunk::Nowhere((map.pages() * PAGE) as u32, None))
            }
            Err(e) => Err(e),
        }
    }

    /// Notes where a chunk lies, unless it is noted already; where. `inline`: the content of the
    /// file, of this length, lay in its record and was written there.
    pub(crate) fn assign_here(
        &self,
        index: u32,
        cuts: u64,
        chunk: u64,
        placed: Placed,
        inline: Option<u64>,
    ) -> Result<Placed> {
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        if live.cuts.load(Acquire) != cuts || !Store::is_spilled(live) {
            return Err(CHANGED);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let is_inline = live.flags.load(Acquire) & flag::INLINE != 0;
        let moved = live.moved.load(Relaxed);
        let have = match is_inline {
            true => 0,
            false => self.chunk_map(index, chunk, moved, CELL_PAGES)?.pages() * PAGE,
        };
        let as_told = match inline {
            Some(len) => is_inline && len == live.size.load(Relaxed),
            None => chunk > 0 || !is_inline,
        };
        let (shard, key) = (self.shard_of(id), Key::placed(id, chunk));
        let mut there = None;
        self.write(self.object_set(id), Need::Bytes(4096), |w| {
            there = w.get(shard, &key)?.and_then(Placed::decode);
            if there.is_some() {
                return Ok(());
            }
            if !as_told || have != placed.from as usize {
                return Err(CHANGED);
            }
            w.put(shard, &key, &placed.encode())?;
            if inline.is_some() {
                let none = crate::record::ChunkMap::default().encode();
                self.put_live(w, live, 0, tail::EXTENTS, &none)?;
            }
            // A loss of power must not leave the placement without the mark.
            self.change_inode(w, id, |inode| {
                inode.parent = 1;
                inode.rdev = cuts;
            })
        })?;
        if there.is_none() && inline.is_some() {
            live.moved.fetch_add(1, AcqRel);
            self.set_extents(index, &crate::record::ChunkMap::default())?;
            live.pages.store(0, Relaxed);
            live.flags.fetch_and(!flag::INLINE, AcqRel);
            live.moved.fetch_add(1, AcqRel);
        }
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        Ok(there.unwrap_or(placed))
    }

    /// A spilled file is cut at `size`: placements that have nothing below it go. Locked.
    pub(crate) fn drop_places(&self, live: &Live, size: u64) -> Result<()> {
        if !Store::is_spilled(live) {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let shard = self.shard_of(id);
        let (last, within) = (size / CHUNK, size % CHUNK);
        self.write(self.object_set(id), Need::Removal, |w| {
            let key = Key::placed(id, last);
            let stays = w
                .get(shard, &key)?
                .and_then(Placed::decode)
                .is_some_and(|placed| u64::from(placed.from) < within);
            self.remove_places(w, id, last + u64::from(stays))
        })
    }

    /// In a transaction: removes the placements of chunk `first` and later ones.
    pub(crate) fn remove_places(&self, w: &mut Write<'_>, id: ObjectId, first: u64) -> Result<()> {
        self.remove_range(w, &Key::placed(id, first), |_| ())
    }

    // ---- who asks ----

    /// What came of asking the home of an open file, or of doing it here, where no chunk was known
    /// to lie on another node. If some do, or have to: the file as one of several nodes, by which
    /// it is to be done again.
    pub(crate) fn spilled_by<T>(&self, index: u32, done: &Result<T>) -> Result<Option<Striped>> {
        match done {
            Err(CHANGED) => self.learn_spilled(index)?,
            Err(Errno::NOSPC) if self.spill(index)? => {}
            _ => return Ok(None),
        }
        Ok(self.striped(index))
    }

    /// The home has refused what was asked of it alone: this node knows now that the file is
    /// spilled, if it is.
    ///
    /// # Errors
    /// EHOSTDOWN and the like.
    pub(crate) fn learn_spilled(&self, index: u32) -> Result<()> {
        let live = self.live(index);
        if Store::is_spilled(live) || self.live_away(index).is_none() {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        if !Store::is_spilled(lock.0) {
            // Nothing is known of its size yet.
            lock.0.size.store(0, Release);
            lock.0.cuts.store(0, Release);
            lock.0.flags.fetch_or(flag::PARTS, AcqRel);
        }
        Ok(())
    }

    /// The nodes to be asked for room for a chunk, the best for chunk `n` first: by what they had a
    /// moment ago. Those that had none come last: they may have some by now. All others, if nobody
    /// can tell.
    pub(crate) fn roomy_nodes(&self, n: u64) -> Vec<NodeId> {
        let Ok(others) = self.other_nodes() else {
            return Vec::new();
        };
        let me = others.me();
        let turn = |mut nodes: Vec<NodeId>| {
            let len = nodes.len().max(1);
            nodes.rotate_left(n as usize % len);
            nodes
        };
        let Some(rooms) = self.rooms() else {
            return turn(
                others
                    .nodes()
                    .iter()
                    .copied()
                    .filter(|&o| o != me)
                    .collect(),
            );
        };
        let most = rooms.first().map_or(0, |r| r.1);
        let (much, little): (Vec<_>, Vec<_>) = rooms
            .into_iter()
            .partition(|r| r.1 >= CHUNK && r.1 >= most / 2);
        let nodes = |list: Vec<(NodeId, u64)>| list.into_iter().map(|r| r.0).collect();
        let mut all: Vec<NodeId> = turn(nodes(much));
        all.extend::<Vec<NodeId>>(nodes(little));
        all
    }

    /// As [`Store::spread`], of a spilled file. `make`: what has no place yet gets one.
    pub(super) fn spread_by_room(
        &self,
        f: &Striped,
        cuts: u64,
        (offset, len): (u64, usize),
        make: bool,
    ) -> Result<Vec<Piece>> {
        let me = self.other_nodes()?.me();
        let end = offset + len as u64;
        let (first, behind) = (offset / CHUNK, end.div_ceil(CHUNK));
        let mut places = BTreeMap::new();
        for chunk in first..behind {
            let known = self.placed.get([f.id.0, cuts, chunk]);
            places.extend(known.map(|placed| (chunk, placed)));
        }
        let all_known = places.len() as u64 == behind - first;
        if !make && !all_known {
            let count = behind - first;
            let told = match f.home {
                None => self.places_here(f.index, cuts, (first, count))?,
                Some(home) => {
                    let asked = (f.id, cuts, first, count + AHEAD);
                    let List(told) = self.ask::<List<(u64, Placed)>>(home, kind::PLACES, &asked)?;
                    for &(chunk, placed) in &told {
                        self.placed.put([f.id.0, cuts, chunk], placed);
                    }
                    told
                }
            };
            places.extend(told);
        }
        if make {
            for chunk in first..behind {
                if places.contains_key(&chunk) {
                    continue;
                }
                let end = (end - chunk * CHUNK).min(CHUNK);
                if let Some(placed) = self.place_chunk(f, cuts, chunk, end)? {
                    self.placed.put([f.id.0, cuts, chunk], placed);
                    places.insert(chunk, placed);
                }
            }
        }
        let mut pieces = Vec::with_capacity(len / MAX_BODY + 2);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (chunk, within) = (at / CHUNK, at % CHUNK);
            let placed = places.get(&chunk);
            let (place, until) = match placed {
                Some(p) if within >= u64::from(p.from) && p.node == me => (Place::Part, CHUNK),
                Some(p) if within >= u64::from(p.from) => (Place::On(p.node), CHUNK),
                _ => {
                    let place = f.home.map_or(Place::Object, Place::Home);
                    (place, placed.map_or(CHUNK, |p| u64::from(p.from)))
                }
            };
            let n = (len - done).min(MAX_BODY).min((until - within) as usize);
            pieces.push(Piece {
                place,
                offset: at,
                done,
                len: n,
            });
            done += n;
        }
        Ok(pieces)
    }

    /// Where a chunk lies that is about to be written up to `end`; None: at its home. ENOSPC:
    /// nowhere is room.
    fn place_chunk(&self, f: &Striped, cuts: u64, chunk: u64, end: u64) -> Result<Option<Placed>> {
        loop {
            let told = match f.home {
                None => {
                    self.with_room_of_the_dead(|| self.place_here(f.index, cuts, chunk, end))?
                }
                Some(home) => self.ask(home, kind::PLACE, &(f.id, cuts, chunk, end))?,
            };
            let (from, content) = match told {
                Chunk::Home => return Ok(None),
                Chunk::There(placed) => return Ok(Some(placed)),
                Chunk::Nowhere(from, content) => (from, content),
            };
            let node = self.reserve_chunk(f, cuts, chunk)?;
            if let Some(content) = &content {
                self.write_content(f, cuts, node, content)?;
            }
            let placed = Placed { node, from };
            let inline = content.map(|c| c.len() as u64);
            let noted = match f.home {
                None => self.assign_here(f.index, cuts, chunk, placed, inline),
                Some(home) => self.ask(home, kind::ASSIGN, &(f.id, cuts, chunk, placed, inline)),
            };
            match noted {
                // Others wrote to the chunk meanwhile, or it was cut: which, the next question
                // tells.
                Err(CHANGED) => continue,
                noted => return noted.map(Some),
            }
        }
    }

    /// Reserves a chunk in the part of a node that has room for it.
    fn reserve_chunk(&self, f: &Striped, cuts: u64, chunk: u64) -> Result<NodeId> {
        let others = self.other_nodes()?;
        let home = f.home.unwrap_or(others.me());
        let mut error = Errno::NOSPC;
        for node in self.roomy_nodes(chunk) {
            if node == home {
                continue;
            }
            let reserved = if node == others.me() {
                let reserve = |part| {
                    let range = (chunk * CHUNK, CHUNK);
                    self.with_room_of_the_dead(|| self.room_part(part, cuts, range, false))
                };
                self.own_part(f, true)?.ok_or(Errno::IO).and_then(reserve)
            } else {
                let question = (f.id, cuts, chunk * CHUNK, CHUNK, false);
                self.ask(node, kind::ROOM_PART, &question)
            };
            match reserved {
                Ok(()) => return Ok(node),
                // The next one may have room, or be there.
                Err(e @ (Errno::NOSPC | Errno::HOSTDOWN)) => error = e,
                Err(e) => return Err(e),
            }
        }
        Err(error)
    }

    /// Writes what lay in the file's record to the beginning of the part on `node`.
    fn write_content(&self, f: &Striped, cuts: u64, node: NodeId, content: &[u8]) -> Result<()> {
        if content.is_empty() {
            return Ok(());
        }
        let bytes = (content.as_ptr(), content.len());
        if node == self.other_nodes()?.me() {
            let part = self.own_part(f, true)?.ok_or(Errno::IO)?;
            // SAFETY: a slice.
            return unsafe { self.write_part(part, cuts, 0, bytes) }.map(|_| ());
        }
        let bytes = Bytes::Send(bytes.0, bytes.1);
        // SAFETY: a slice.
        unsafe { self.ask_with::<u64>(node, kind::WRITE_PART, &(f.id, cuts, 0u64), bytes) }
            .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elsewhere::messages::decode;

    #[test]
    fn what_is_remembered_is_that_of_the_file_the_cut_and_the_chunk() {
        let memory = Memory::default();
        let placed = |n: u32| Placed {
            node: NodeId(n),
            from: n % 7 * PAGE as u32,
        };
        assert_eq!(memory.get([1, 0, 5]), None);
        for n in 0..100u32 {
            memory.put([u64::from(n % 3), 1, u64::from(n)], placed(n));
        }
        assert_eq!(memory.get([99 % 3, 1, 99]), Some(placed(99)));
        assert_eq!(memory.get([99 % 3, 2, 99]), None, "it was cut since");
        assert_eq!(memory.get([(99 + 1) % 3, 1, 99]), None, "another file");
    }

    #[test]
    fn placements_as_bytes() {
        let placed = Placed {
            node: NodeId(70_000),
            from: 3 * PAGE as u32,
        };
        assert_eq!(Placed::decode(&placed.encode()), Some(placed));
        for bad in [CHUNK as u32, 5] {
            let bad = Placed {
                from: bad,
                ..placed
            };
            assert_eq!(Placed::decode(&bad.encode()), None);
        }
        let all = [
            Chunk::Home,
            Chunk::There(placed),
            Chunk::Nowhere(4096, None),
            Chunk::Nowhere(0, Some(b"abc".to_vec())),
        ];
        for chunk in all {
            assert_eq!(decode(&encode(&chunk)), Some(chunk));
        }
        assert_eq!(decode::<Chunk>(&[3]), None);
    }
}

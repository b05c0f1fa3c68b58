//! Placements: records at the home of a file that say which of its chunks lie on other nodes.
//!
//! A record `E id chunk -> node, from` says: bytes of the chunk below `from` lie at the home, the
//! others in a part on that node. A file with such records is *spilled* (`live_flag::PARTS` on an
//! id without a chunk size). The home never gives pages to a placed chunk from `from` on
//! ([`Parts::home_limit`]). Of several writers, the first one to record a placement decides: the
//! placement holds until the file is truncated below the chunk. No function here sends requests to
//! other nodes; the crate `cluster` decides where chunks go.

use crate::chunks::pages;
use crate::codec::Wire;
use crate::control_region::{Live, live_flag as flag};
use crate::errors::CHANGED;
use crate::process::Critical;
use crate::record::{Key, parse_key, tail};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::shards::Write;
use crate::views::Parts;
use crate::{CHUNK, NodeId, ObjectId, PAGE, Result};
use forebay_media::CELL_PAGES;
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;

/// Maximum number of chunks after the requested one whose placements one reply contains.
pub const AHEAD: u64 = 512;

/// The placement of a chunk on another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    pub node: NodeId,
    /// Bytes of the chunk before this lie at the home; a multiple of a page.
    pub from: u32,
}

impl Placed {
    pub fn encode(self) -> [u8; 8] {
        (u64::from(self.node.0) << 32 | u64::from(self.from)).to_le_bytes()
    }

    /// Decodes the content of a record; None if it isn't a placement.
    pub fn decode(bytes: &[u8]) -> Option<Placed> {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        let placed = Placed {
            node: NodeId((word >> 32) as u32),
            from: word as u32,
        };
        let sound = u64::from(placed.from) < CHUNK && (placed.from as usize).is_multiple_of(PAGE);
        sound.then_some(placed)
    }
}

impl Wire for Placed {
    type Owned = Placed;

    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.encode());
    }
    fn take(from: &mut &[u8]) -> Option<Placed> {
        let (bytes, rest) = from.split_first_chunk::<8>()?;
        *from = rest;
        Placed::decode(bytes)
    }
}

/// The home's reply about a chunk that is to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// The home has the pages.
    Home,
    /// The node in this placement has the chunk.
    There(Placed),
    /// No node has the bytes of the chunk from this offset on, and the home has no room for them.
    /// The second value is the file's content, if it lies in its record.
    Nowhere(u32, Option<Vec<u8>>),
}

impl Wire for Chunk {
    type Owned = Chunk;

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
            2 => Some(Chunk::Nowhere(u32::take(from)?, Wire::take(from)?)),
            _ => None,
        }
    }
}

impl<'s> Parts<'s> {
    /// Whether chunks of a file that isn't striped lie on other nodes than its home. For a file of
    /// another node: whether this node knows that they do.
    #[inline]
    pub fn is_spilled(live: &Live) -> bool {
        if live.flags.load(Acquire) & flag::PARTS == 0 {
            return false;
        }
        let id = ObjectId(live.id.load(Relaxed));
        id.stripe().is_none() && !id.is_part()
    }

    /// Returns whether other nodes may have room for a file of this node, after a write has found
    /// no room here. If so, the file is spilled from now on.
    pub fn spill_here(&self, index: u32) -> Result<bool> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        if self.store.remote.is_none()
            || id.stripe().is_some()
            || id.is_part()
            || self.store.names().is_live_remote(index)
        {
            return Ok(false);
        }
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let flags = lock.0.flags.load(Acquire);
        if flags & flag::MAPPED != 0 {
            return Ok(false);
        }
        lock.0.flags.fetch_or(flag::PARTS | flag::DIRTY, AcqRel);
        Ok(true)
    }

    /// Fails with EXFULL if an open file of this node has chunks on other nodes.
    pub fn not_spilled(&self, index: u32) -> Result<()> {
        if Parts::is_spilled(self.store.objects().live(index)) {
            Err(CHANGED)
        } else {
            Ok(())
        }
    }

    /// The number of pages of a chunk that may lie at the home; None: no limit. For a file of this
    /// node, locked by the caller.
    pub(crate) fn home_limit(&self, live: &Live, chunk: u64) -> Result<Option<usize>> {
        if !Parts::is_spilled(live) {
            return Ok(None);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let records = self.store.records_of(id)?;
        let record = records.attached(&Key::placed(id, chunk))?;
        Ok(record
            .and_then(Placed::decode)
            .map(|placed| placed.from as usize / PAGE))
    }

    /// The placements of `count` chunks from `first` on. EXFULL if the file wasn't truncated
    /// exactly `cuts` times.
    pub fn places_here(
        &self,
        index: u32,
        cuts: u64,
        (first, count): (u64, u64),
    ) -> Result<Vec<(u64, Placed)>> {
        let live = self.store.objects().live(index);
        let id = ObjectId(live.id.load(Relaxed));
        let mut places = Vec::new();
        self.store
            .records_of(id)?
            .each_attached(&Key::placed(id, first), |key, value| {
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
        if live.cuts.load(Acquire) == cuts {
            Ok(places)
        } else {
            Err(CHANGED)
        }
    }

    /// Returns where a chunk of a spilled file is to be written up to `end`, an offset in the
    /// chunk. If the chunk has no placement, allocates pages at the home.
    pub fn place_here(&self, index: u32, cuts: u64, chunk: u64, end: u64) -> Result<Chunk> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        if live.cuts.load(Acquire) != cuts {
            return Err(CHANGED);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let records = self.store.records_of(id)?;
        let record = records
            .attached(&Key::placed(id, chunk))?
            .map(Placed::decode);
        if let Some(placed) = record {
            return placed.map(Chunk::There).ok_or(Errno::IO);
        }
        if chunk == 0
            && let Err(e) = self.store.content().promote(index)
        {
            let len = live.size.load(Relaxed) as usize;
            let mut content = vec![0; len];
            let moved = live.moved.load(Relaxed);
            return match e {
                // SAFETY: `content` has room for `len` bytes.
                Errno::NOSPC => unsafe {
                    self.store
                        .content()
                        .copy_out(index, moved, 0, content.as_mut_ptr(), len)
                        .map(|()| Chunk::Nowhere(0, Some(content)))
                },
                e => Err(e),
            };
        }
        match self.store.content().ensure(index, chunk, (0, pages(end))) {
            Ok(_) => Ok(Chunk::Home),
            Err(Errno::NOSPC) => {
                let moved = live.moved.load(Relaxed);
                let map = self
                    .store
                    .content()
                    .chunk_map(index, chunk, moved, CELL_PAGES)?;
                Ok(Chunk::Nowhere((map.pages() * PAGE) as u32, None))
            }
            Err(e) => Err(e),
        }
    }

    /// Records the placement of a chunk, unless one is recorded. Returns the chunk's placement.
    /// `inline`: the file's content, of this length, lay in its record and was written to the
    /// placement's node.
    pub fn assign_here(
        &self,
        index: u32,
        cuts: u64,
        chunk: u64,
        placed: Placed,
        inline: Option<u64>,
    ) -> Result<Placed> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        if live.cuts.load(Acquire) != cuts || !Parts::is_spilled(live) {
            return Err(CHANGED);
        }
        let id = ObjectId(live.id.load(Relaxed));
        let is_inline = live.flags.load(Acquire) & flag::INLINE != 0;
        let moved = live.moved.load(Relaxed);
        let have = if is_inline {
            0
        } else {
            self.store
                .content()
                .chunk_map(index, chunk, moved, CELL_PAGES)?
                .pages()
                * PAGE
        };
        let as_told = match inline {
            Some(len) => is_inline && len == live.size.load(Relaxed),
            None => chunk > 0 || !is_inline,
        };
        let key = Key::placed(id, chunk);
        let mut there = None;
        self.store
            .transact(self.store.names().object_set(id), Need::Bytes(4096), |w| {
                there = w.attached(id, &key)?.and_then(Placed::decode);
                if there.is_some() {
                    return Ok(());
                }
                if !as_told || have != placed.from as usize {
                    return Err(CHANGED);
                }
                w.attach(id, &key, &placed.encode())?;
                if inline.is_some() {
                    let none = crate::record::ChunkMap::default().encode();
                    self.store
                        .content()
                        .put_live(w, live, 0, tail::EXTENTS, &none)?;
                }
                // A loss of power must not leave the placement without the inode's mark `is_spread`.
                w.change_inode(id, |inode| {
                    inode.is_spread = true;
                    inode.cuts = cuts;
                })
            })?;
        debug_assert!(
            !live.lock.is_free(),
            "a file that gets a placement is locked"
        );
        if there.is_none() && inline.is_some() {
            live.moved.fetch_add(1, AcqRel);
            self.store
                .objects()
                .set_extents(index, &crate::record::ChunkMap::default())?;
            live.pages.store(0, Relaxed);
            live.flags.fetch_and(!flag::INLINE, AcqRel);
            live.moved.fetch_add(1, AcqRel);
        }
        live.flags.fetch_or(flag::DIRTY, AcqRel);
        Ok(there.unwrap_or(placed))
    }

    /// Removes the placements of chunks beyond `size`, to which a spilled file is truncated.
    /// Locked.
    pub(crate) fn drop_places(&self, live: &Live, size: u64) -> Result<()> {
        if !Parts::is_spilled(live) {
            return Ok(());
        }
        let id = ObjectId(live.id.load(Relaxed));
        let (last, within) = (size / CHUNK, size % CHUNK);
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                let key = Key::placed(id, last);
                let stays = w
                    .attached(id, &key)?
                    .and_then(Placed::decode)
                    .is_some_and(|placed| u64::from(placed.from) < within);
                self.remove_places(w, id, last + u64::from(stays))
            })
    }

    /// In a transaction: removes the placements of chunk `first` and later ones.
    pub(crate) fn remove_places(&self, w: &mut Write<'_>, id: ObjectId, first: u64) -> Result<()> {
        self.store
            .names()
            .remove_range(w, &Key::placed(id, first), |_| ())
    }
}

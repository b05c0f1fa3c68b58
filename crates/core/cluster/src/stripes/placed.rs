//! Spilled files, which grow on other nodes because their home is full.
//!
//! A file of distribution `local` has all its chunks at its home as long as there is room. When a
//! write finds no room, the home marks the file as *spilled* ([`live_flag::PARTS`] on an id without
//! a chunk size). From then on it is read and written as a striped file of 1 MiB chunks, with the
//! same parts, cuts and leases. Only the location of a chunk differs: a record of the home, `E id
//! chunk -> node, from`, contains it. The bytes of the chunk below `from` lie at the home, the
//! others in the part on `node`. A chunk without such a record lies at the home.
//!
//! - A chunk is placed when it is first written and the home has no room for it. The writer asks
//!   the home ([`PLACE`]), reserves the chunk on a node with room, and makes the home record that
//!   node ([`ASSIGN`]). If two writers do so, the first record is valid. All room of a placed chunk
//!   is reserved, so overwriting it never fails with ENOSPC.
//! - A placement holds until the file is cut below it. A placement may be cached with the number of
//!   cuts; a part that was cut since refuses a request with the old number. The fact that a chunk
//!   lies at the home is never cached.
//! - The home never allocates pages for the bytes of a placed chunk from `from` on
//!   (`Parts::home_limit`).
//! - A process that doesn't know yet that the file is spilled sends its requests to the home. The
//!   home refuses them with EXFULL. Then the process marks the file as spilled
//!   ([`Stripes::learn_spilled`]) and repeats the operation.
//! - A file that a process of its home has mapped isn't spilled: those mappings show the home's
//!   pages.
//!
//! [`live_flag::PARTS`]: forebay_store::control_region::live_flag::PARTS
//! [`PLACE`]: request::PLACE
//! [`ASSIGN`]: request::ASSIGN

use super::*;
use crate::peers::messages::List;
use crate::peers::requests::request;
use forebay_store::CHUNK;
use forebay_store::placements::{AHEAD, Chunk, Placed};
use forebay_store::process::Critical;
use forebay_store::views::Parts;
use std::collections::BTreeMap;

impl<'a> Stripes<'a> {
    // ---- at the home ----

    /// Marks a file of this node as spilled (`Parts::spill_here`) if another node may have room.
    /// Returns whether the file is spilled now.
    pub(crate) fn spill(&self, index: u32) -> Result<bool> {
        if self.store().remote.is_none() || self.cluster.opens().remote_live(index).is_some() {
            return Ok(false);
        }
        if Parts::is_spilled(self.store().objects().live(index)) {
            return Ok(true);
        }
        Ok(!self.roomy_nodes(0).is_empty() && self.store().parts().spill_here(index)?)
    }

    // ---- at the requesting process ----

    /// Checks whether `done`, the result of an operation on an open file as an unspilled file,
    /// means that the file is spilled, or must be spilled because its home is full. If so, returns
    /// the spilled file, on which the operation must be repeated.
    pub(crate) fn spilled_by<T>(&self, index: u32, done: &Result<T>) -> Result<Option<Striped>> {
        match done {
            Err(CHANGED) => self.learn_spilled(index)?,
            Err(Errno::NOSPC) if self.spill(index)? => {}
            _ => return Ok(None),
        }
        Ok(self.striped(index))
    }

    /// Marks the live entry of a remote file as spilled, after the home has refused a request for
    /// it as an unspilled file.
    ///
    /// # Errors
    /// Those of locking the live entry.
    pub(crate) fn learn_spilled(&self, index: u32) -> Result<()> {
        let live = self.store().objects().live(index);
        if Parts::is_spilled(live) || self.cluster.opens().remote_live(index).is_none() {
            return Ok(());
        }
        let _critical = Critical::enter();
        let lock = self.store().objects().lock_live(index)?;
        if !Parts::is_spilled(lock.0) {
            // Size 0: the next operation asks the home for the size and the cuts.
            lock.0.size.store(0, Release);
            lock.0.cuts.store(0, Release);
            lock.0.flags.fetch_or(flag::PARTS, AcqRel);
        }
        Ok(())
    }

    /// Returns the nodes to ask for room for chunk `n`, the best first, by the room that they
    /// reported last. Nodes with little room aren't left out, since they may have more by now, but
    /// come last. If no node's room is known, returns all other nodes.
    pub(crate) fn roomy_nodes(&self, n: u64) -> Vec<NodeId> {
        let Ok(others) = self.cluster.other_nodes() else {
            return Vec::new();
        };
        let me = others.this_node();
        let turn = |mut nodes: Vec<NodeId>| {
            let len = nodes.len().max(1);
            nodes.rotate_left(n as usize % len);
            nodes
        };
        let Some(rooms) = self.cluster.room().rooms() else {
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

    /// As [`Stripes::spread`], for a spilled file. `make`: chunks for which the home has no room
    /// are placed on other nodes.
    pub(super) fn spread_by_room(
        &self,
        f: &Striped,
        cuts: u64,
        (offset, len): (u64, usize),
        make: bool,
    ) -> Result<Vec<Piece>> {
        let me = self.cluster.other_nodes()?.this_node();
        let end = offset + len as u64;
        let (first, behind) = (offset / CHUNK, end.div_ceil(CHUNK));
        let mut places = BTreeMap::new();
        for chunk in first..behind {
            let known = self.cluster.placed().get([f.id.0, cuts, chunk]);
            places.extend(known.map(|placed| (chunk, placed)));
        }
        let all_known = places.len() as u64 == behind - first;
        if !make && !all_known {
            let count = behind - first;
            let reply = match f.home {
                None => self
                    .store()
                    .parts()
                    .places_here(f.index, cuts, (first, count))?,
                Some(home) => {
                    let asked = (f.id, cuts, first, count + AHEAD);
                    let List(reply) = self.cluster.ask(home, request::PLACES, &asked)?;
                    for &(chunk, placed) in &reply {
                        self.cluster.placed().put([f.id.0, cuts, chunk], placed);
                    }
                    reply
                }
            };
            places.extend(reply);
        }
        if make {
            for chunk in first..behind {
                if places.contains_key(&chunk) {
                    continue;
                }
                let end = (end - chunk * CHUNK).min(CHUNK);
                if let Some(placed) = self.place_chunk(f, cuts, chunk, end)? {
                    self.cluster.placed().put([f.id.0, cuts, chunk], placed);
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

    /// Returns the placement of a chunk that is about to be written up to `end`; None if the chunk
    /// lies at the file's home. Places the chunk if necessary. ENOSPC if no node has room.
    fn place_chunk(&self, f: &Striped, cuts: u64, chunk: u64, end: u64) -> Result<Option<Placed>> {
        loop {
            let reply = match f.home {
                None => self.store().recovery().with_room_of_the_dead(|| {
                    self.store().parts().place_here(f.index, cuts, chunk, end)
                })?,
                Some(home) => self
                    .cluster
                    .ask(home, request::PLACE, &(f.id, cuts, chunk, end))?,
            };
            let (from, content) = match reply {
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
                None => self
                    .store()
                    .parts()
                    .assign_here(f.index, cuts, chunk, placed, inline),
                Some(home) => {
                    self.cluster
                        .ask(home, request::ASSIGN, &(f.id, cuts, chunk, placed, inline))
                }
            };
            match noted {
                // Another process has written to the chunk meanwhile, or truncated the file: the
                // next request to the home returns the new state.
                Err(CHANGED) => continue,
                noted => return noted.map(Some),
            }
        }
    }

    /// Reserves a chunk in the part of a node that has room for it. Returns that node's id.
    fn reserve_chunk(&self, f: &Striped, cuts: u64, chunk: u64) -> Result<NodeId> {
        let others = self.cluster.other_nodes()?;
        let home = f.home.unwrap_or(others.this_node());
        let mut error = Errno::NOSPC;
        for node in self.roomy_nodes(chunk) {
            if node == home {
                continue;
            }
            let reserved = if node == others.this_node() {
                let reserve = |part| {
                    let range = (chunk * CHUNK, CHUNK);
                    self.store().recovery().with_room_of_the_dead(|| {
                        self.store().parts().room_part(part, cuts, range, false)
                    })
                };
                self.own_part(f, true)?.ok_or(Errno::IO).and_then(reserve)
            } else {
                let arguments = (f.id, cuts, chunk * CHUNK, CHUNK, false);
                self.cluster.ask(node, request::ROOM_PART, &arguments)
            };
            match reserved {
                Ok(()) => return Ok(node),
                // The next node may have room, or be reachable.
                Err(e @ (Errno::NOSPC | Errno::HOSTDOWN)) => error = e,
                Err(e) => return Err(e),
            }
        }
        Err(error)
    }

    /// Writes `content`, the bytes that lay inside the file's record, to the beginning of the part
    /// on `node`.
    fn write_content(&self, f: &Striped, cuts: u64, node: NodeId, content: &[u8]) -> Result<()> {
        if content.is_empty() {
            return Ok(());
        }
        let bytes = (content.as_ptr(), content.len());
        if node == self.cluster.other_nodes()?.this_node() {
            let part = self.own_part(f, true)?.ok_or(Errno::IO)?;
            // SAFETY: `bytes` are those of `content`, which outlives the request.
            return unsafe { self.store().parts().write_part(part, cuts, 0, bytes) }.map(|_| ());
        }
        let bytes = Bytes::Send(bytes.0, bytes.1);
        // SAFETY: `bytes` are those of `content`, which outlives the request.
        unsafe {
            self.cluster
                .ask_with(node, request::WRITE_PART, &(f.id, cuts, 0u64), bytes)
        }
        .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::messages::{decode, encode};
    use forebay_store::PAGE;

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

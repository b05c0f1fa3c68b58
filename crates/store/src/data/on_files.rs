//! Files whose bytes lie on `files` media (`persistence = "node"`), in a pool that has memory, too.
//!
//! Such a file takes pages of `files` media alone, and its content doesn't go into its record, which lies in memory. If those
//! media are full, that is ENOSPC, however much memory is free.
//!
//! Parts of striped files have a word of their own that says just this. Who is about to write to parts tells them
//! before ([`Store::prepare_parts`]), once for all processes of its node as long as the file is open there.
//!
//! What lies in memory when it is said of a file is moved ([`Store::lay_on_files`]): each node moves what it has, for half a
//! second at a time, whoever has the file open, unless it is mapped. A note as on bursts is written in the same commit as
//! the word: should the mover die, the keeper moves the rest, when nobody has the file open (`drain.rs`).

use super::*;
use crate::elsewhere::messages::encode;
use crate::elsewhere::with_open;
use crate::striped::{Striped, has_parts};
use crate::uses::said;
use crate::{NodeId, SetAttr};
use forebay_controls::{Declared, Persistence, Temporality};
use std::time::{Duration, Instant};

/// A node begins nothing more after so long: who has asked it must not take it for dead.
const TURN: Duration = Duration::from_millis(500);

/// The word of a part that lies on `files` media.
fn word_of_part(on: bool) -> u64 {
    let persistence = on.then_some(Persistence::Node);
    let said = Declared {
        persistence,
        ..Declared::NOTHING
    };
    said.bits()
}

impl Store {
    /// Whether the bytes of a file with this word lie on `files` media alone, where there is memory, too.
    #[inline]
    pub fn keeps_on_files(&self, word: u64) -> bool {
        word != 0 && said(word).0.persistence == Some(Persistence::Node) && self.drains()
    }

    /// A commit gives an object this word: a file that mustn't lie in memory from now on is noted for the keeper.
    pub(crate) fn change_place(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let shard = self.shard_of(id);
        let inode = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        let bursty = said(word).0.temporality == Some(Temporality::Bursty);
        match (
            self.keeps_on_files(inode.controls),
            self.keeps_on_files(word),
        ) {
            (false, true) => w.put(shard, &Key::landed(id), &[]),
            (true, false) if !bursty => w.del(shard, &Key::landed(id)).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// It was said of a file that its bytes lie on `files` media, or that they needn't any more (`on`): tells its parts, and
    /// moves what lies in memory.
    ///
    /// # Errors
    /// ENOSPC: those media are full. EBUSY: it is mapped. EHOSTDOWN: a node can't be asked. Some of it may have been moved.
    pub fn lay_on_files(&self, id: ObjectId, on: bool) -> Result<()> {
        let parts = self.elsewhere.is_some() && has_parts(id, &self.stat(id)?);
        let away = self.object_away(id);
        if parts {
            self.tell_parts_place(id, on)?;
        }
        if !on {
            return Ok(());
        }
        self.move_to_files(away, id)?;
        if parts {
            for node in self.part_nodes(id)? {
                self.move_to_files(Some(node), id)?;
            }
            if away.is_some() {
                self.move_to_files(None, id.part())?;
            }
        }
        Ok(())
    }

    /// Has a node, or this one (None), move what it has of a file in memory.
    fn move_to_files(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let mut next = Some(0);
        while let Some(chunk) = next {
            next = match node {
                Some(node) => self.ask(node, kind::TO_FILES, &(id, chunk))?,
                None => with_open(self, id, |live| self.to_files(live, chunk))?,
            };
        }
        Ok(())
    }

    /// Moves what this node has of an open file in memory, from this chunk on, for a while: where to go on.
    ///
    /// # Errors
    /// ENOSPC; EBUSY: it is mapped.
    pub(crate) fn to_files(&self, index: u32, from: u64) -> Result<Option<u64>> {
        let (begun, id) = (Instant::now(), self.live_id(index));
        let mut at = from;
        loop {
            self.with_room_of_the_dead(|| self.chunk_to_files(index, at))?;
            let Some(next) = self.next_chunk(id, at.saturating_add(1))? else {
                self.forget_landed(self.shard_of(id), id)?;
                return Ok(None);
            };
            at = next;
            if begun.elapsed() >= TURN {
                return Ok(Some(at));
            }
        }
    }

    fn chunk_to_files(&self, index: u32, chunk: u64) -> Result<()> {
        let _critical = Critical::enter();
        let lock = self.lock_live(index)?;
        let live = lock.0;
        // Something else may have been said since.
        if !self.keeps_on_files(live.controls.load(Relaxed)) {
            return Ok(());
        }
        if Self::is_mapped(live) {
            let map = self.chunk_map(index, chunk, live.moved.load(Relaxed), CELL_PAGES)?;
            let lies_in_memory = |e: &Extent| self.media().get(e.medium()).is_some_and(is_memory);
            return match map.extents().iter().any(lies_in_memory) {
                true => Err(Errno::BUSY),
                false => Ok(()),
            };
        }
        self.move_chunk(index, chunk).map(|_| ())
    }

    // ---- parts ----

    /// Before something is written to parts of a file: they know where its bytes lie.
    #[inline]
    pub(crate) fn prepare_parts(&self, f: &Striped) -> Result<()> {
        let live = self.live(f.index);
        let word = live.controls.load(Acquire);
        if word == 0 || !self.keeps_on_files(word) || live.flags.load(Acquire) & flag::ON_FILES != 0
        {
            return Ok(());
        }
        self.tell_parts_place(f.id, true)?;
        live.flags.fetch_or(flag::ON_FILES, AcqRel);
        Ok(())
    }

    /// Tells all nodes that may have parts of a file, and this one.
    #[cold]
    fn tell_parts_place(&self, id: ObjectId, on: bool) -> Result<()> {
        let nodes = self.part_nodes(id)?;
        let head = encode(&(id, on));
        let others = self.other_nodes()?;
        let told = others.ask_each(&nodes, kind::PART_ON_FILES, &head);
        told.into_iter().try_for_each(|t| t.map(|_| ()))?;
        match self.object_away(id) {
            Some(_) => self.part_on_files(id, on),
            None => Ok(()),
        }
    }

    /// The bytes of this node's part of a file lie on `files` media from now on, or needn't any more.
    pub(crate) fn part_on_files(&self, id: ObjectId, on: bool) -> Result<()> {
        let (part, word) = (id.part(), word_of_part(on));
        if on {
            self.make_part(id)?;
        }
        match self.stat_part(id)? {
            Some(inode) if inode.controls != word => {
                let set = SetAttr {
                    controls: Some(word),
                    ..SetAttr::default()
                };
                self.set_attr_here(part, &set)
            }
            _ => Ok(()),
        }
    }
}

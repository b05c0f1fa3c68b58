//! Files whose bytes lie on `files` media (`persistence = "node"`), in a pool that has memory, too; and what
//! parts of striped files know of the controls of their file.
//!
//! Such a file takes pages of `files` media alone, and its content doesn't go into its record, which lies in memory. If those
//! media are full, that is ENOSPC, however much memory is free.
//!
//! Parts of striped files have a word of their own that says this, and whether they have checksums (`sums.rs`). Who is about to write to parts tells them
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
use forebay_controls::{Declared, Integrity, Persistence, Temporality};
use std::time::{Duration, Instant};

/// A node begins nothing more after so long: who has asked it must not take it for dead.
const TURN: Duration = Duration::from_millis(500);

/// The word of the parts of a file with this word: what of it they have to keep.
fn word_of_part(word: u64) -> u64 {
    let whole = said(word).0;
    let said = Declared {
        persistence: whole.persistence.filter(|p| *p == Persistence::Node),
        integrity: whole.integrity.filter(|i| *i != Integrity::None),
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

    /// The word of a file was `before` and is `word` now: its parts are told, what must not lie in memory any more is
    /// moved, and what has checksums from now on is sealed.
    ///
    /// # Errors
    /// ENOSPC: `files` media are full. EBUSY: it is mapped. EHOSTDOWN: a node can't be asked. Some of it may have been moved.
    pub fn follow_word(&self, id: ObjectId, before: u64, word: u64) -> Result<()> {
        let moves = self.keeps_on_files(word) && !self.keeps_on_files(before);
        let seals = is_summed(word) && !is_summed(before);
        if word_of_part(before) == word_of_part(word) {
            return Ok(());
        }
        let away = self.object_away(id);
        let parts = self.elsewhere.is_some() && has_parts(id, &self.stat(id)?);
        if parts {
            self.tell_parts(id, word_of_part(word))?;
        }
        if moves {
            self.move_to_files(away, id)?;
        }
        if seals {
            self.seal_file(away, id)?;
        }
        if parts {
            let nodes = self
                .part_nodes(id)?
                .into_iter()
                .map(|node| (Some(node), id));
            for (node, id) in nodes.chain(away.map(|_| (None, id.part()))) {
                if moves {
                    self.move_to_files(node, id)?;
                }
                if seals {
                    self.seal_part(node, id)?;
                }
            }
        }
        Ok(())
    }

    /// Has a file's home, or this node (None), seal it.
    fn seal_file(&self, home: Option<NodeId>, id: ObjectId) -> Result<()> {
        match home {
            Some(home) => self.ask(home, kind::SYNC, &id),
            None => with_open(self, id, |live| self.sync_here(live)),
        }
    }

    /// Has a node, or this one (None), seal its part of a file.
    fn seal_part(&self, node: Option<NodeId>, id: ObjectId) -> Result<()> {
        let sealed = match node {
            Some(node) => self.ask(node, kind::SYNC_PART, &id),
            None => with_open(self, id, |live| self.sync_here(live)),
        };
        // It has none.
        match sealed {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
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

    /// Before something is written to parts of a file: they know what of its controls is theirs.
    #[inline]
    pub(crate) fn prepare_parts(&self, f: &Striped) -> Result<()> {
        let live = self.live(f.index);
        let word = live.controls.load(Acquire);
        if word == 0 || live.flags.load(Acquire) & flag::ON_FILES != 0 {
            return Ok(());
        }
        if self.keeps_on_files(word) || is_summed(word) {
            self.tell_parts(f.id, word_of_part(word))?;
            live.flags.fetch_or(flag::ON_FILES, AcqRel);
        }
        Ok(())
    }

    /// Tells all nodes that may have parts of a file, and this one, the word of its parts.
    #[cold]
    fn tell_parts(&self, id: ObjectId, word: u64) -> Result<()> {
        let nodes = self.part_nodes(id)?;
        let head = encode(&(id, word));
        let others = self.other_nodes()?;
        let told = others.ask_each(&nodes, kind::PART_ON_FILES, &head);
        told.into_iter().try_for_each(|t| t.map(|_| ()))?;
        match self.object_away(id) {
            Some(_) => self.set_part_word(id, word),
            None => Ok(()),
        }
    }

    /// The word of this node's part of a file is this from now on.
    pub(crate) fn set_part_word(&self, id: ObjectId, word: u64) -> Result<()> {
        let part = id.part();
        if word != 0 {
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

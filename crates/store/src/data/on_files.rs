//! Files whose bytes lie on `files` media (`persistence = "node"`), in a pool that has memory, too;
//! and what parts of striped files know of the controls of their file.
//!
//! Such a file takes pages of `files` media alone, and its content doesn't go into its record,
//! which lies in memory. If those media are full, that is ENOSPC, however much memory is free.
//!
//! Parts of striped files have a word of their own that says this, and whether they have checksums
//! (`sums.rs`). Who is about to write to parts tells them before (`Cluster::prepare_parts`), once
//! for all processes of its node as long as the file is open there.
//!
//! What lies in memory when it is said of a file is moved ([`Store::lay_on_files`]): each node
//! moves what it has, for half a second at a time, whoever has the file open, unless it is mapped.
//! A note as on bursts is written in the same commit as the word: should the mover die, the keeper
//! moves the rest, when nobody has the file open (`drain.rs`).

use super::*;
use crate::declared::declared;
use crate::object::SetAttr;
use crate::views::Content;
use crate::views::Mappings;
use forebay_controls::{Declared, Integrity, Persistence, Temporality};
use std::time::{Duration, Instant};

/// A node begins nothing more after so long: who has asked it must not take it for dead.
const TURN: Duration = Duration::from_millis(500);

/// The word of the parts of a file with this word: what of it they have to keep.
pub fn word_of_part(word: u64) -> u64 {
    let whole = declared(word).0;
    let said = Declared {
        persistence: whole.persistence.filter(|p| *p == Persistence::Node),
        integrity: whole.integrity.filter(|i| *i != Integrity::None),
        ..Declared::NOTHING
    };
    said.bits()
}

impl<'s> Content<'s> {
    /// Whether the bytes of a file with this word lie on `files` media alone, where there is
    /// memory, too.
    #[inline]
    pub fn keeps_on_files(&self, word: u64) -> bool {
        word != 0 && declared(word).0.persistence == Some(Persistence::Node) && self.drains()
    }

    /// A commit gives an object this word: a file that mustn't lie in memory from now on is noted
    /// for the keeper.
    pub(crate) fn change_place(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let shard = self.shard_of(id);
        let inode = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        let bursty = declared(word).0.temporality == Some(Temporality::Bursty);
        match (
            self.keeps_on_files(inode.controls),
            self.keeps_on_files(word),
        ) {
            (false, true) => w.put(shard, &Key::landed(id), &[]),
            (true, false) if !bursty => w.del(shard, &Key::landed(id)).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Moves what this node has of an open file in memory, from this chunk on, for a while: where
    /// to go on.
    ///
    /// # Errors
    /// ENOSPC; EBUSY: it is mapped.
    pub fn to_files(&self, index: u32, from: u64) -> Result<Option<u64>> {
        let (begun, id) = (Instant::now(), self.live_id(index));
        let mut at = from;
        loop {
            self.recovery()
                .with_room_of_the_dead(|| self.chunk_to_files(index, at))?;
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
        let lock = self.objects().lock_live(index)?;
        let live = lock.0;
        // Something else may have been said since.
        if !self.keeps_on_files(live.controls.load(Relaxed)) {
            return Ok(());
        }
        if Mappings::is_mapped(live) {
            let map = self.chunk_map(index, chunk, live.moved.load(Relaxed), CELL_PAGES)?;
            let lies_in_memory = |e: &Extent| self.media().get(e.medium()).is_some_and(is_memory);
            return match map.extents().iter().any(lies_in_memory) {
                true => Err(Errno::BUSY),
                false => Ok(()),
            };
        }
        self.move_chunk(index, chunk).map(|_| ())
    }

    /// The word of this node's part of a file is this from now on.
    pub fn set_part_word(&self, id: ObjectId, word: u64) -> Result<()> {
        let part = id.part();
        if word != 0 {
            self.parts().make_part(id)?;
        }
        match self.parts().stat_part(id)? {
            Some(inode) if inode.controls != word => {
                let set = SetAttr {
                    controls: Some(word),
                    ..SetAttr::default()
                };
                self.names().set_attr_here(part, &set)
            }
            _ => Ok(()),
        }
    }
}

//! Files whose bytes lie on `files` media (`persistence = "node"`), in a pool that has memory, too;
//! and the controls words of parts of striped files.
//!
//! Such a file takes pages of `files` media alone. As records lie in memory, the file's content
//! doesn't go into its record. If the `files` media are full, the result is ENOSPC, however much
//! memory is free.
//!
//! A part of a striped file has a controls word, which says whether its bytes must lie on `files`
//! media, and whether it has checksums (`sums.rs`). A node that is about to write to parts has
//! these words set first (`Declarations::prepare_parts`). The node does so once for all its
//! processes, as long as the file is open there.
//!
//! Bytes that lie in memory when the control is declared are moved ([`Content::to_files`]). Each
//! node moves its own bytes, for half a second at a time, even while the file is open, unless it is
//! mapped. A record 'B', as for bursty files, is written in the same commit as the word: if the
//! moving process dies, the keeper moves the rest when no process has the file open (`drain.rs`).

use super::*;
use crate::declared::declared;
use crate::object::SetAttr;
use crate::views::Content;
use crate::views::Mappings;
use forebay_controls::{Declared, Integrity, Persistence, Temporality};
use std::time::{Duration, Instant};

/// Time after which a node begins no further step, so that a process that waits for the reply
/// doesn't take the node for dead.
const MAX_STEP_TIME: Duration = Duration::from_millis(500);

/// The controls word for the parts of a file with controls `word`: the controls that parts must
/// keep.
pub fn word_of_part(word: u64) -> u64 {
    let whole = declared(word).0;
    let controls = Declared {
        persistence: whole.persistence.filter(|p| *p == Persistence::Node),
        integrity: whole.integrity.filter(|i| *i != Integrity::None),
        ..Declared::NOTHING
    };
    controls.bits()
}

impl<'s> Content<'s> {
    /// Whether the bytes of a file with this controls word lie on `files` media alone, in a pool
    /// that has memory, too.
    #[inline]
    pub fn keeps_on_files(&self, word: u64) -> bool {
        word != 0 && declared(word).0.persistence == Some(Persistence::Node) && self.drains()
    }

    /// Records for the keeper that a file must not lie in memory from now on, if `word` says so.
    /// Part of a commit that gives the object this word.
    pub(crate) fn change_place(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let inode = w.inode(id)?;
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        let bursty = declared(word).0.temporality == Some(Temporality::Bursty);
        match (
            self.keeps_on_files(inode.controls),
            self.keeps_on_files(word),
        ) {
            (false, true) => w.attach(id, &Key::landed(id), &[]),
            (true, false) if !bursty => w.detach(id, &Key::landed(id)).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Moves the bytes of an open file that lie in this node's memory, from this chunk on, for a
    /// bounded time. Returns the chunk at which to continue; None: all are moved.
    ///
    /// # Errors
    /// ENOSPC; EBUSY: the file is mapped.
    pub fn to_files(&self, index: u32, from: u64) -> Result<Option<u64>> {
        let (begun, id) = (Instant::now(), self.live_id(index));
        let mut at = from;
        loop {
            self.store
                .recovery()
                .with_room_of_the_dead(|| self.chunk_to_files(index, at))?;
            let Some(next) = self.next_chunk(id, at.saturating_add(1))? else {
                self.forget_landed(id)?;
                return Ok(None);
            };
            at = next;
            if begun.elapsed() >= MAX_STEP_TIME {
                return Ok(Some(at));
            }
        }
    }

    fn chunk_to_files(&self, index: u32, chunk: u64) -> Result<()> {
        let _critical = Critical::enter();
        let lock = self.store.objects().lock_live(index)?;
        let live = lock.0;
        // Other controls may have been declared before the file was locked.
        if !self.keeps_on_files(live.controls.load(Relaxed)) {
            return Ok(());
        }
        if Mappings::is_mapped(live) {
            let map = self.chunk_map(index, chunk, live.moved.load(Relaxed), CELL_PAGES)?;
            let lies_in_memory =
                |e: &Extent| self.store.media().get(e.medium()).is_some_and(is_memory);
            return if map.extents().iter().any(lies_in_memory) {
                Err(Errno::BUSY)
            } else {
                Ok(())
            };
        }
        self.move_chunk(index, chunk).map(|_| ())
    }

    /// Sets the controls word of this node's part of a file.
    pub fn set_part_word(&self, id: ObjectId, word: u64) -> Result<()> {
        let part = id.part();
        if word != 0 {
            self.store.parts().make_part(id)?;
        }
        match self.store.parts().stat_part(id)? {
            Some(inode) if inode.controls != word => {
                let set = SetAttr {
                    controls: Some(word),
                    ..SetAttr::default()
                };
                self.store.names().set_attr_here(part, &set)
            }
            _ => Ok(()),
        }
    }
}

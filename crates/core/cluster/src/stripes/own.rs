//! Mapping the bytes of a striped file that lie on this node: their pages are mapped directly, as
//! those of a local file.
//!
//! Stores through a mapping don't extend this node's part of the file, and reads see the part only
//! up to its end. So the part is extended when pages are mapped, and again after a truncation. The
//! page in which the file ends isn't mapped: other nodes make the file longer without a request to
//! this node, so the bytes behind the old end would not be cleared.

use super::*;
use crate::views::Mappings;
use forebay_media::PAGE;
use forebay_store::mapped::MapPiece;

impl<'a> Mappings<'a> {
    /// Whether `len` bytes of a striped file from `offset` on, in one chunk, can be mapped from
    /// this node's medium directly. `size`: the size of the file.
    pub fn is_own(&self, index: u32, offset: u64, len: u64, size: u64) -> bool {
        let (Some(f), Ok(others)) = (
            self.cluster.stripes().striped(index),
            self.cluster.other_nodes(),
        ) else {
            return false;
        };
        if f.spilled {
            // Bytes of spilled files are mapped through a shadow copy, as bytes on other nodes are.
            return false;
        }
        let node = others.node_of(Slot::of_chunk(f.id, f.chunk.chunk_of(offset)));
        node == others.this_node() && (f.home.is_none() || offset + len <= size)
    }

    /// As [`Mappings::map`], for ranges for which [`Mappings::is_own`] is true.
    ///
    /// # Errors
    /// Those of [`Mappings::map`]; EHOSTDOWN if the home can't be reached.
    pub fn map_own(
        &self,
        index: u32,
        offset: u64,
        len: usize,
        budget: usize,
    ) -> Result<Vec<MapPiece>> {
        self.cluster.locks().check_lease(index)?;
        let f = self.cluster.stripes().striped(index).ok_or(Errno::NODEV)?;
        if f.home.is_none() {
            return self.store().mappings().map_here(index, offset, len, budget);
        }
        let mut fresh = false;
        self.cluster.stripes().retry_cut(&f, || {
            let has_parts =
                self.store().objects().live(index).flags.load(Acquire) & flag::PARTS != 0;
            let wanted = offset + len as u64;
            let mut known = self
                .cluster
                .stripes()
                .known(&f)
                .filter(|k| has_parts && !fresh && k.size >= wanted);
            if known.is_none() {
                known = Some(self.cluster.stripes().look(&f, true)?);
            }
            fresh = true;
            let known = known.ok_or(Errno::IO)?;
            self.cluster.declarations().prepare_parts(&f)?;
            let end = known.size.next_multiple_of(PAGE as u64).min(wanted);
            let part = self
                .cluster
                .stripes()
                .own_part(&f, true)?
                .ok_or(Errno::IO)?;
            self.store().parts().reach(part, known.cuts, end)?;
            self.store().mappings().map_here(
                part,
                offset,
                end.saturating_sub(offset) as usize,
                budget,
            )
        })
    }
}

//! Mapping what lies on this node of a striped file: pages of its segment, as of any file here.
//!
//! A mapping stores within the file, so a part must reach as far as its pages are mapped; reads
//! would take it for shorter otherwise. It is extended when pages are mapped, and again after a
//! cut. The page in which the file ends isn't mapped: other nodes make the file longer without
//! telling the part, so nobody would clear the bytes behind the end.

use super::*;
use crate::Cluster;
use forebay_media::PAGE;
use forebay_store::mapped::MapPiece;

impl<'a> Cluster<'a> {
    /// Whether `len` bytes of a striped file from `offset` on, of one chunk, can be mapped as they
    /// lie here. `size` is the file's.
    pub fn is_own(&self, index: u32, offset: u64, len: u64, size: u64) -> bool {
        let (Some(f), Ok(others)) = (self.striped(index), self.other_nodes()) else {
            return false;
        };
        if f.spilled {
            // Who maps it sees a copy, as of what lies elsewhere.
            return false;
        }
        let node = others.node_of(Slot::of_chunk(f.id, f.chunk.chunk_of(offset)));
        node == others.this_node() && (f.home.is_none() || offset + len <= size)
    }

    /// As [`Cluster::map`], for what [`Cluster::is_own`] says can be.
    ///
    /// # Errors
    /// As there; EHOSTDOWN if the home can't be asked.
    pub fn map_own(
        &self,
        index: u32,
        offset: u64,
        len: usize,
        budget: usize,
    ) -> Result<Vec<MapPiece>> {
        self.check_lease(index)?;
        let f = self.striped(index).ok_or(Errno::NODEV)?;
        if f.home.is_none() {
            return self.mappings().map_here(index, offset, len, budget);
        }
        let mut fresh = false;
        self.stripes().retry_cut(&f, || {
            let told = self.objects().live(index).flags.load(Acquire) & flag::PARTS != 0;
            let wanted = offset + len as u64;
            let mut known = self
                .stripes()
                .known(&f)
                .filter(|k| told && !fresh && k.size >= wanted);
            if known.is_none() {
                known = Some(self.stripes().look(&f, true)?);
            }
            fresh = true;
            let known = known.ok_or(Errno::IO)?;
            self.prepare_parts(&f)?;
            let end = known.size.next_multiple_of(PAGE as u64).min(wanted);
            let part = self.stripes().own_part(&f, true)?.ok_or(Errno::IO)?;
            self.parts().reach(part, known.cuts, end)?;
            self.mappings()
                .map_here(part, offset, end.saturating_sub(offset) as usize, budget)
        })
    }
}

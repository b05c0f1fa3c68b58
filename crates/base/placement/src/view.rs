//! Ids of objects in the view by attributes (`.by`): the view's directories, and the links in them.
//!
//! No node stores these objects, but every node can decode their ids.
//!
//! ```text
//! bit 57     an object in the view
//! bits 54-56 0: a directory; the rest of the id is a hash of its path in the view
//!            1-7: a link in a directory of this depth; the rest is the id of the link's target
//! ```

use crate::{ObjectId, SLOT_BITS};

const VIEW: u64 = 1 << 57;
const DEPTH_AT: u32 = 54;
const DEPTH: u64 = 7 << DEPTH_AT;
/// The bits that are 0 in the id of every stored object.
pub(crate) const BITS: u64 = VIEW | DEPTH;

/// The view's top directory, `.by`.
pub const BY: ObjectId = ObjectId(VIEW | 1 << SLOT_BITS);
/// Maximum depth of directories in the view.
pub const MAX_DEPTH: usize = 7;

impl ObjectId {
    /// The end of the range of sequence numbers that objects can have.
    pub const SEQ_END: u64 = 1 << (DEPTH_AT - SLOT_BITS);

    /// Returns the id of the view's directory whose path has this hash.
    pub fn view_dir(hash: u64) -> ObjectId {
        ObjectId(VIEW | hash & ((1 << DEPTH_AT) - 1))
    }

    /// Returns the id of the link to this object in a directory of the view of depth `depth` (from
    /// 1 on).
    pub fn view_link(self, depth: usize) -> ObjectId {
        ObjectId(self.0 | VIEW | (depth as u64) << DEPTH_AT & DEPTH)
    }

    /// Whether this is an object in the view.
    pub fn is_view(self) -> bool {
        self.0 & VIEW != 0
    }

    /// Returns a link's target and the depth of its directory, if this is the id of a link in the
    /// view.
    pub fn viewed(self) -> Option<(ObjectId, usize)> {
        let depth = (self.0 & DEPTH) >> DEPTH_AT;
        (self.is_view() && depth > 0).then_some((ObjectId(self.0 & !BITS), depth as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkSize, Distribution, Slot};

    #[test]
    fn a_link_knows_its_object_and_a_directory_is_none() {
        let id = ObjectId::new(ObjectId::SEQ_END - 1, Slot(77));
        for d in [
            Distribution::Local,
            Distribution::LocalAll,
            Distribution::Striped(ChunkSize::LEAST),
        ] {
            let id = id.with(d);
            assert!(!id.is_view() && id.viewed().is_none());
            for depth in 1..=MAX_DEPTH {
                let link = id.view_link(depth);
                assert!(link.is_view());
                assert_eq!(link.viewed(), Some((id, depth)));
            }
        }
        for dir in [BY, ObjectId::view_dir(0), ObjectId::view_dir(u64::MAX)] {
            assert!(dir.is_view() && dir.viewed().is_none() && !dir.is_part());
        }
        assert!(!ObjectId::ROOT.is_view());
    }
}

//! The result of a pass of writing back, and the checks that a pass makes for each object.

use crate::side::split;
use forebay_client::controls::Temporality;
use forebay_posix::ObjectId;
use forebay_store::controls::declared;
use forebay_store::{Entry, Inode, OriginMark, OriginState, now};
use rustix::io::Result;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Resolution of time stamps: two writes within this time may get the same one.
pub const TICK: Duration = Duration::from_nanos(forebay_store::TICK as u64);
/// A name of an object: the directory in the pool, and the path at the origin.
pub type Named = (ObjectId, Vec<u8>);

/// All known names of objects with several names, by the object's id.
pub type Linked = HashMap<u64, Vec<Named>>;

/// A callback for each object. The callback gets the directory, the path at the origin, the entry
/// and the inode.
pub type EachObject<'e> = dyn FnMut(ObjectId, &[u8], Entry, &Inode) -> Result<()> + 'e;

/// The result of a pass.
#[derive(Default)]
pub struct Pass {
    /// Number of objects that wait for a later pass, because they changed too recently, or while
    /// they were copied.
    pub young: u64,
    /// Whether the pass has ended early because the origin's server can't be reached.
    pub is_cut_off: bool,
    /// Whether a node of the pool doesn't answer.
    pub misses_node: bool,
    /// Objects that couldn't be written back: path, and reason.
    pub failed: Vec<(Vec<u8>, String)>,
    /// Directories, by path, whose attributes are set at the end of the pass: writing entries into
    /// a directory changes its times.
    pub late: BTreeMap<Vec<u8>, ObjectId>,
    /// Objects with several names, and those of their names that this pass has met.
    pub linked: Linked,
    /// Restricts the pass to files whose declared temporality requires early writing
    /// ([`is_early`]).
    pub only_early: bool,
    /// Time spent writing. The rest of the pass's time was spent walking.
    pub wrote: Duration,
}

impl Pass {
    /// Records that an object, or all entries of a directory, couldn't be written back, since a
    /// node of the pool doesn't answer.
    pub fn misses(&mut self, path: Vec<u8>, why: &str) {
        self.misses_node = true;
        self.failed.push((path, why.to_owned()));
    }

    /// Records that an entry was written into a directory at the origin: the directory's times have
    /// changed, so its attributes are set at the end of the pass.
    pub fn writes_into(&mut self, path: &[u8], dir: ObjectId) {
        self.late.insert(split(path).0.to_vec(), dir);
    }
}

/// Whether a directory made in the pool exists at the origin, too. False for a directory that was
/// announced but couldn't be made there.
pub fn is_made(mark: &OriginMark) -> bool {
    mark.state != OriginState::None && (mark.synced != 0 || mark.print != 0)
}

/// Whether a file is written back before others, and without a lag once no process has it open: its
/// declared temporality is one write, or bursts with pauses between.
pub fn is_early(inode: &Inode) -> bool {
    let temporality = declared(inode.controls).0.temporality;
    inode.is_file() && matches!(temporality, Some(Temporality::Once | Temporality::Bursty))
}

/// Whether an object has changed within `lag`, or within [`TICK`], so that it isn't written back
/// yet.
pub fn is_young(inode: &Inode, lag: Duration) -> bool {
    let age = now().saturating_sub(inode.ctime);
    age < lag.max(TICK).as_nanos() as i64
}

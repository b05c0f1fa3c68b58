//! A pass of writing back: its result, and the questions that it asks of each object.

use crate::side::split;
use forebay_posix::ObjectId;
use forebay_store::{Entry, Inode, OriginMark, OriginState, now};
use rustix::io::Result;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Within this time, a later write may have the same time stamp.
pub const TICK: Duration = Duration::from_nanos(forebay_store::TICK as u64);
/// A name of an object: its directory in the pool, and its path at the origin.
pub type Named = (ObjectId, Vec<u8>);

/// Names of objects that have several, by the object's id.
pub type Linked = HashMap<u64, Vec<Named>>;

/// Called for an object: with its directory, path at the origin, entry, inode.
pub type EachObject<'e> = dyn FnMut(ObjectId, &[u8], Entry, &Inode) -> Result<()> + 'e;

/// The result of a pass.
#[derive(Default)]
pub struct Pass {
    /// Changes that are too young, or that were made while they were copied.
    pub young: u64,
    /// The origin's server can't be reached: the pass has ended early.
    pub is_cut_off: bool,
    /// Objects that couldn't be written back: path, and reason.
    pub failed: Vec<(Vec<u8>, String)>,
    /// Directories that get their attributes at the end of the pass: what is written into them
    /// changes their times.
    pub late: BTreeMap<Vec<u8>, ObjectId>,
    /// Names that this pass has met of objects that have several.
    pub linked: Linked,
}

impl Pass {
    /// Notes that something was written into a directory at the origin, whose times have changed.
    pub fn writes_into(&mut self, path: &[u8], dir: ObjectId) {
        self.late.insert(split(path).0.to_vec(), dir);
    }
}

/// Whether a directory that the pool has made is at the origin, too: one that was announced, but
/// couldn't be made, isn't.
pub fn is_made(mark: &OriginMark) -> bool {
    mark.state != OriginState::None && (mark.synced != 0 || mark.print != 0)
}

/// Whether an object has changed so recently that it waits.
pub fn is_young(inode: &Inode, lag: Duration) -> bool {
    let age = now().saturating_sub(inode.ctime);
    age < lag.max(TICK).as_nanos() as i64
}

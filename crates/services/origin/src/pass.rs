//! A pass of writing back: its result, and the checks that it makes for each object.

use crate::side::split;
use forebay_client::controls::Temporality;
use forebay_posix::ObjectId;
use forebay_store::controls::declared;
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
    /// A node of the pool doesn't answer.
    pub misses_node: bool,
    /// Objects that couldn't be written back: path, and reason.
    pub failed: Vec<(Vec<u8>, String)>,
    /// Directories that get their attributes at the end of the pass: writes into them change their
    /// times.
    pub late: BTreeMap<Vec<u8>, ObjectId>,
    /// Names that this pass has met of objects that have several.
    pub linked: Linked,
    /// Only files are written back whose declared temporality requires it ([`is_early`]).
    pub only_early: bool,
    /// Time that writing has taken. The rest is the walk's.
    pub wrote: Duration,
}

impl Pass {
    /// Records that an object, or all entries of a directory, couldn't be written back, since a
    /// node of the pool doesn't answer.
    pub fn misses(&mut self, path: Vec<u8>, why: &str) {
        self.misses_node = true;
        self.failed.push((path, why.to_owned()));
    }

    /// Records that an entry was written into a directory at the origin, whose times have changed.
    pub fn writes_into(&mut self, path: &[u8], dir: ObjectId) {
        self.late.insert(split(path).0.to_vec(), dir);
    }
}

/// Whether a directory that the pool has made is at the origin, too: one that was announced, but
/// couldn't be made, isn't.
pub fn is_made(mark: &OriginMark) -> bool {
    mark.state != OriginState::None && (mark.synced != 0 || mark.print != 0)
}

/// Whether a file is written back before others, and without a lag once no process has it open: it
/// is written once, or in bursts with pauses between.
pub fn is_early(inode: &Inode) -> bool {
    let temporality = declared(inode.controls).0.temporality;
    inode.is_file() && matches!(temporality, Some(Temporality::Once | Temporality::Bursty))
}

/// Whether an object has changed so recently that it waits.
pub fn is_young(inode: &Inode, lag: Duration) -> bool {
    let age = now().saturating_sub(inode.ctime);
    age < lag.max(TICK).as_nanos() as i64
}

//! The word of a file: what was declared of it, whether it is laminated, and what that allows.
//!
//! Pure: no function here looks at a store. A *party* is for whom a file is open, as `exclusive`
//! tells users apart.

use crate::codec::fields;
use crate::process::{pid_of, process_of};
use crate::record::Inode;
use crate::{NodeId, now};
use forebay_controls::{
    Controls, Declared, Integrity, Mutability, OnViolation, Persistence, Temporality,
};
use rustix::io::{Errno, Result};

/// In the word of a file: it never changes again. No bit of [`Declared::bits`].
pub const LAMINATED: u64 = 1 << 31;
/// In the word of a live file: whoever opens it notes his use, whatever was said of it. In no
/// record.
pub const COUNTED: u64 = 1 << 30;
/// All that is in a word besides [`Declared::bits`].
pub(crate) const OURS: u64 = LAMINATED | COUNTED;

/// In a use: the file may be written by it.
pub const WRITES: u64 = 1;
/// When a use is noted: it has begun before, and isn't judged any more.
pub const THERE: u64 = 2;
/// All that a use can say.
pub(crate) const ALL: u64 = WRITES | THERE;

/// Who opens a file, for `exclusive`: a number that its processes have in common and no others on
/// the node. That of a process of the pool, [`SERVED`], or [`KEPT`].
pub type Party = u64;

/// In a [`Party`]: it isn't a process of the pool, but one that a face serves, by its id.
pub const SERVED: Party = 1 << 63;
/// In a [`Party`]: no program's, but kept for others, on this node.
const KEPT: Party = 1 << 62;

/// For whom a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opener {
    /// The process that opens it.
    #[default]
    Own,
    /// A process that a face serves: the id of one of its threads.
    Served(u32),
    /// No program has it open by that: it is kept open for programs of this node.
    Kept(NodeId),
}

impl Opener {
    /// Whether no program has the file open by that.
    pub fn is_kept(self) -> bool {
        matches!(self, Opener::Kept(_))
    }

    /// The party; `own` is that of the process that opens the file.
    pub(crate) fn party(self, own: impl FnOnce() -> Party) -> Party {
        match self {
            Opener::Own => own(),
            Opener::Served(id) => SERVED | Party::from(id),
            Opener::Kept(node) => KEPT | Party::from(node.0),
        }
    }
}

/// Whether a party is no program, but keeps the file open for others.
pub fn is_kept(party: Party) -> bool {
    party & (KEPT | SERVED) == KEPT
}

/// The number of the node for which it is kept, if it is.
pub(crate) fn kept_for(party: Party) -> Option<u32> {
    is_kept(party).then_some(party as u32)
}

/// The party of a process that a face serves, of whatever thread of it; others are what they are.
pub fn settled(party: Party) -> Party {
    match party & SERVED {
        0 => party,
        _ => SERVED | Party::from(process_of(party as u32).unwrap_or(party as u32)),
    }
}

/// The id of a party's process, as its node knows it.
pub fn pid_of_party(party: Party) -> u32 {
    match party & SERVED {
        0 => pid_of(party),
        _ => party as u32,
    }
}

/// What was said of a file with this word, and whether it is laminated.
pub fn declared(word: u64) -> (Declared, bool) {
    let declared = Declared::from_bits(word & !OURS).unwrap_or_default();
    (declared, word & LAMINATED != 0)
}

/// The word, if it can be one.
pub fn checked(word: u64) -> Option<u64> {
    Declared::from_bits(word & !OURS).map(|_| word & !COUNTED)
}

/// Whether a file with this word goes with the process that made it.
pub fn goes_with_maker(word: u64) -> bool {
    word != 0 && declared(word).0.persistence == Some(Persistence::Process)
}

/// Whether the bytes of a file with this word stay as they are, and are worth copying.
fn may_be_copied(word: u64) -> bool {
    let (declared, laminated) = declared(word);
    let controls = declared.resolve();
    // Copies have no checksums.
    laminated
        && controls.integrity == Integrity::None
        && controls.mutability == Mutability::Immutable
        && controls.on_violation == OnViolation::Refuse
        && controls.temporality == Temporality::Multiple
}

/// Whether this edition of a file may be copied.
pub fn is_last(edition: u64) -> bool {
    edition % 2 == 1
}

/// Sets the word. The edition goes up with it: never the same again, not even after the record was
/// lost and the id given anew.
pub fn set_controls(inode: &mut Inode, word: u64) {
    if inode.controls == word {
        return;
    }
    inode.controls = word;
    let next = (inode.edition + 1).max(now() as u64);
    if may_be_copied(word) {
        inode.edition = next | 1;
    } else if inode.edition != 0 {
        inode.edition = next.next_multiple_of(2);
    }
}

/// What is to be done to a file's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Bytes are written or zeroed from here on; None: at its end.
    From(Option<u64>),
    /// It gets this size.
    Size(u64),
}

/// EPERM if the word of a file of this size rules the change out.
pub fn check_word(word: u64, size: u64, change: Change) -> Result<()> {
    if word == 0 {
        return Ok(());
    }
    let (declared, laminated) = declared(word);
    let controls = declared.resolve();
    if is_allowed(&controls, laminated, size, change)
        || controls.on_violation == OnViolation::Report
    {
        return Ok(());
    }
    Err(Errno::PERM)
}

/// Whether the controls of a file of this size, laminated or not, allow the change.
pub fn is_allowed(controls: &Controls, laminated: bool, size: u64, change: Change) -> bool {
    match controls.mutability {
        Mutability::Overwrite => true,
        Mutability::Immutable => !laminated,
        Mutability::Append => match change {
            Change::From(None) => true,
            Change::From(Some(offset)) => offset == size,
            Change::Size(new) => new >= size,
        },
    }
}

/// One who has a file open, or has mapped it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    pub node: u32,
    pub party: Party,
}

fields! {
    User { node, party }
}

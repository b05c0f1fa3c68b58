//! The controls word of a file: the declared controls, whether the file is laminated, and which
//! changes they allow.
//!
//! All functions here are pure: none reads a store. A file's word lies in its record
//! ([`Inode::controls`]) and in its live entry. The word 0 means that no controls were declared. A
//! *party* is the user for whom a file is open, as the control `exclusive` counts users.

use crate::codec::fields;
use crate::process::{pid_of, process_of};
use crate::record::Inode;
use crate::{NodeId, now};
use forebay_controls::{
    Controls, Declared, Integrity, Mutability, OnViolation, Persistence, Temporality,
};
use rustix::io::{Errno, Result};

/// Bit of the word: the file is laminated. Not one of [`Declared::bits`].
pub const LAMINATED: u64 = 1 << 31;
/// Bit of the word in a live entry, never in a record: every opener records its use, whatever
/// controls are declared.
pub const COUNTED: u64 = 1 << 30;
/// All bits of a word besides [`Declared::bits`].
pub(crate) const OURS: u64 = LAMINATED | COUNTED;

/// Bit of a recorded use: the opener may write the file.
pub const WRITES: u64 = 1;
/// Bit of a recorded use: the use began before the controls were declared, and is never refused.
pub const THERE: u64 = 2;
/// All bits of a recorded use.
pub(crate) const ALL: u64 = WRITES | THERE;

/// The user for whom a file is open, as the control `exclusive` counts users. The number is unique
/// on its node: the owner word of a process of the pool, or a number with [`SERVED`] or
/// [`KEPT_OPEN`] set.
pub type Party = u64;

/// Bit of a [`Party`]: a process that a face serves; the other bits are the process's id.
pub const SERVED: Party = 1 << 63;
/// Bit of a [`Party`]: not a program, but a file kept open for a node; the other bits are the
/// node's number.
const KEPT_OPEN: Party = 1 << 62;

/// The user for whom a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opener {
    /// The process that opens the file.
    #[default]
    Own,
    /// A process that a face serves: the id of one of its threads.
    Served(u32),
    /// The file is kept open for programs of the node with this number. Keeping it open isn't a use
    /// by a program.
    Kept(NodeId),
}

impl Opener {
    /// Whether the file is kept open for a node, rather than used by a program.
    pub fn is_kept(self) -> bool {
        matches!(self, Opener::Kept(_))
    }

    /// The party of this opener; `own` returns the party of the process that opens the file.
    pub(crate) fn party(self, own: impl FnOnce() -> Party) -> Party {
        match self {
            Opener::Own => own(),
            Opener::Served(id) => SERVED | Party::from(id),
            Opener::Kept(node) => KEPT_OPEN | Party::from(node.0),
        }
    }
}

/// Whether the party is a node for which the file is kept open, rather than a program.
pub fn is_kept(party: Party) -> bool {
    party & (KEPT_OPEN | SERVED) == KEPT_OPEN
}

/// The number of the node for which the file is kept open; None if the party is a program.
pub(crate) fn kept_for(party: Party) -> Option<u32> {
    is_kept(party).then_some(party as u32)
}

/// Replaces the id of a served thread by that of its process. Other parties stay as they are.
pub fn settled(party: Party) -> Party {
    match party & SERVED {
        0 => party,
        _ => SERVED | Party::from(process_of(party as u32).unwrap_or(party as u32)),
    }
}

/// The process id of a party. To be called on the party's own node.
pub fn pid_of_party(party: Party) -> u32 {
    match party & SERVED {
        0 => pid_of(party),
        _ => party as u32,
    }
}

/// The declared controls in a word, and whether the file is laminated.
pub fn declared(word: u64) -> (Declared, bool) {
    let declared = Declared::from_bits(word & !OURS).unwrap_or_default();
    (declared, word & LAMINATED != 0)
}

/// The word without [`COUNTED`]; None if it isn't a valid word.
pub fn checked(word: u64) -> Option<u64> {
    Declared::from_bits(word & !OURS).map(|_| word & !COUNTED)
}

/// Whether a file with this word is ephemeral, that is, removed when its creator ends.
pub fn is_ephemeral(word: u64) -> bool {
    word != 0 && declared(word).0.persistence == Some(Persistence::Process)
}

/// Whether the bytes of a file with this word never change again, and may be copied to readers.
fn may_be_copied(word: u64) -> bool {
    let (declared, laminated) = declared(word);
    let controls = declared.resolve();
    // Copies have no checksums, so a file that needs checksums isn't copied.
    laminated
        && controls.integrity == Integrity::None
        && controls.mutability == Mutability::Immutable
        && controls.on_violation == OnViolation::Refuse
        && controls.temporality == Temporality::Multiple
}

/// Whether a file of this edition never changes again, and may be copied.
pub fn is_last(edition: u64) -> bool {
    edition % 2 == 1
}

/// Sets the word and raises the edition. Editions follow the clock: so none occurs twice, even if
/// the record is lost and the id is given to another file.
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

/// A change of a file's bytes that is checked against its controls.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Bytes are written or zeroed from this offset on; None: from the end of the file on.
    From(Option<u64>),
    /// The file gets this size.
    Size(u64),
}

/// Checks a change of a file that has this word and this size.
///
/// # Errors
/// EPERM: the declared controls forbid the change, and violations are refused.
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

/// Whether the size of a file with this word matters to [`check_word`].
pub fn depends_on_size(word: u64) -> bool {
    word != 0 && declared(word).0.resolve().mutability == Mutability::Append
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

/// A user that has a file open or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    pub node: u32,
    pub party: Party,
}

fields! {
    User { node, party }
}

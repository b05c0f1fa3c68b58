//! Ephemeral files: removed when the process that made them ends (`persistence = "process"`).
//!
//! A record 'M' beside such a file's inode, written in the same commit, identifies its *creator*:
//! node, boot, process id and start time. All names of the file are recorded, too ('P', as for the
//! index). So whenever the creator dies, the file's creator and names are known.
//!
//! The keeper of the file's home checks the creators (`Declarations::follow_creators`): those on
//! its own node itself, those on other nodes by one request to each node. If a node can't be
//! reached, the file stays. If the creator has died, the file's names are removed as by unlink,
//! each only if it still leads to that file. The record 'M' is removed with the inode: so a removal
//! that failed is tried again.

pub use crate::object::Creator;

use crate::codec::{decode, encode};
use crate::declared::is_ephemeral;
use crate::object::{Named, NewObject};
use crate::record::Key;
use crate::records::{ChangeRecords, Need, Records};
use crate::shards::Write;
use crate::views::DeclaredControls;
use crate::{ObjectId, process};
use rustix::io::{Errno, Result};

/// Maximum number of creators in one request.
pub const MAX_CREATORS_PER_REQUEST: usize = 1024;
/// How many times a name is looked up again before its file is left for the next round.
pub const TRIES: usize = 20;

/// Whether `value` is a valid record of a creator.
pub(crate) fn is_note(value: &[u8]) -> bool {
    decode::<Creator>(value).is_some()
}

/// The result of `Declarations::follow_creators`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Number of files that were removed, or are no longer ephemeral.
    pub gone: usize,
    /// Number of files whose creators run or can't be reached, and of files that couldn't be
    /// removed yet.
    pub left: usize,
}

impl DeclaredControls<'_> {
    /// The identity, as a creator, of the process `pid` of this node; None: of this process.
    ///
    /// # Errors
    /// ESRCH if there is no such process, or its state can't be determined.
    pub fn creator(&self, pid: Option<u32>) -> Result<Creator> {
        let known = match pid {
            // If this process's slot has its owner word already, /proc isn't read.
            None => process::noted_word(&self.store.control, self.store.process_slot()?),
            Some(_) => None,
        };
        let word = known.or_else(|| process::word_running(pid.unwrap_or_else(process::pid)));
        let node = self.store.peers().node_of_several().unwrap_or(0);
        Ok(Creator::here(node, word.ok_or(Errno::SRCH)?))
    }

    /// If the file that this transaction makes is ephemeral, records its creator and its first
    /// name.
    pub fn record_creator(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        new: &NewObject<'_>,
        name: Option<Named<'_>>,
    ) -> Result<()> {
        if new.mode & crate::S_IFMT != libc::S_IFREG || !is_ephemeral(new.controls) {
            return Ok(());
        }
        let creator = new.creator.ok_or(Errno::OPNOTSUPP)?;
        w.attach(id, &Key::creator(id), &encode(&creator))?;
        match name {
            Some((dir, name)) => w.attach(id, &Key::known_name(id, dir, name), &[]),
            None => Ok(()),
        }
    }

    /// Removes the record of the creator, and the recorded names, if the file isn't ephemeral any
    /// more. Part of the transaction that declares the controls `word` for the file. EOPNOTSUPP if
    /// the file would become ephemeral: the creator must be known when the file is made.
    pub(crate) fn change_creator(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let inode = w.inode(id)?;
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        match (is_ephemeral(inode.controls), is_ephemeral(word)) {
            (false, true) => Err(Errno::OPNOTSUPP),
            (true, false) => {
                w.detach(id, &Key::creator(id))?;
                self.store.index().forget_names(w, id)
            }
            _ => Ok(()),
        }
    }

    /// Whether each of these creators, all on this node, still runs.
    pub fn creators_run(creators: &[Creator]) -> Vec<bool> {
        creators.iter().map(Creator::runs).collect()
    }

    /// Removes the record of the creator of a file that was removed, or is no longer ephemeral.
    pub fn forget_creator(&self, id: ObjectId) -> Result<()> {
        self.store
            .transact(self.store.names().object_set(id), Need::Removal, |w| {
                let inode = w.inode(id)?;
                if inode.is_some_and(|(inode, _)| is_ephemeral(inode.controls)) {
                    Ok(())
                } else {
                    w.detach(id, &Key::creator(id)).map(|_| ())
                }
            })
    }
}

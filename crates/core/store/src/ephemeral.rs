//! Ephemeral files: removed when the process that made them ends (`persistence = "process"`).
//!
//! Such a file has a note beside its inode ('M'), written in the same commit: its *maker*, by node,
//! boot, process id and start time. All its names are noted, too (records 'P', as for the index).
//! So there is no instant at which a death could leave a file that nobody knows the creator of.
//!
//! The keeper of the file's home goes through the notes (`Cluster::follow_creators`): of makers on
//! its own node it looks whether they run, of others it asks their node, in one request for all.
//! Where nobody can be asked, the file stays. A dead maker's file loses its names as by unlink:
//! each only while it leads to that file. The note goes with the inode, so what couldn't be removed
//! is tried again.

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

/// Creators in one request.
pub const MAX_CREATORS_PER_REQUEST: usize = 1024;
/// How many times a name is looked up again before its file is left for the next round.
pub const TRIES: usize = 20;

/// Whether these are the bytes of a note.
pub(crate) fn is_note(value: &[u8]) -> bool {
    decode::<Creator>(value).is_some()
}

/// The result of `Cluster::follow_creators`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Number of files that were removed, or are no longer ephemeral.
    pub gone: usize,
    /// Number of files whose creators run or can't be asked, and of files that couldn't be removed
    /// yet.
    pub left: usize,
}

impl DeclaredControls<'_> {
    /// This process as a creator, or the process of this node with that id.
    ///
    /// # Errors
    /// ESRCH if there is none, or its state can't be determined.
    pub fn creator(&self, pid: Option<u32>) -> Result<Creator> {
        let known = match pid {
            // If this process is noted already, /proc isn't read.
            None => process::noted_word(&self.control, self.process_slot()?),
            Some(_) => None,
        };
        let word = known.or_else(|| process::word_running(pid.unwrap_or_else(process::pid)));
        let node = self.names().node_of_several().unwrap_or(0);
        Ok(Creator::here(node, word.ok_or(Errno::SRCH)?))
    }

    /// In the transaction that makes a file: if it is ephemeral, records its creator and its first
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

    /// In a transaction: other controls are declared for a file. EOPNOTSUPP if it would be
    /// ephemeral from now on: the creator must be known when the file is made.
    pub(crate) fn change_creator(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let inode = w.inode(id)?;
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        match (is_ephemeral(inode.controls), is_ephemeral(word)) {
            (false, true) => Err(Errno::OPNOTSUPP),
            (true, false) => {
                w.detach(id, &Key::creator(id))?;
                self.index().forget_names(w, id)
            }
            _ => Ok(()),
        }
    }

    /// Whether each of these creators, all on this node, still runs.
    pub fn creators_run(creators: &[Creator]) -> Vec<bool> {
        creators.iter().map(Creator::runs).collect()
    }

    /// Forgets the record of a file that was removed, or is no longer ephemeral.
    pub fn forget_creator(&self, id: ObjectId) -> Result<()> {
        self.transact(self.names().object_set(id), Need::Removal, |w| {
            let inode = w.inode(id)?;
            if inode.is_some_and(|(inode, _)| is_ephemeral(inode.controls)) {
                Ok(())
            } else {
                w.detach(id, &Key::creator(id)).map(|_| ())
            }
        })
    }
}

//! Files that go with the process that made them (`persistence = "process"`).
//!
//! Such a file has a note beside its inode ('M'), written in the same commit: its *maker*, by node,
//! boot, process id and start time. All its names are noted, too (records 'P', as for the index).
//! So there is no instant at which a death could leave a file that nobody knows the maker of.
//!
//! The keeper of the file's home goes through the notes (`Cluster::follow_makers`): of makers on
//! its own node it looks whether they run, of others it asks their node, in one question for all.
//! Where nobody can be asked, the file stays. A dead maker's file loses its names as by unlink:
//! each only while it leads to that file. The note goes with the inode, so what couldn't be removed
//! is tried again.

pub use crate::object::Maker;

use crate::codec::{decode, encode};
use crate::declared::goes_with_maker;
use crate::object::{Named, NewObject};
use crate::record::{Inode, Key};
use crate::shards::{Need, Write};
use crate::views::DeclaredControls;
use crate::{ObjectId, process};
use rustix::io::{Errno, Result};

/// Makers in one question.
pub const AT_ONCE: usize = 1024;
/// How often it is looked again what a name leads to, before that is left for the next time.
pub const TRIES: usize = 20;

/// Whether these are the bytes of a note.
pub(crate) fn is_note(value: &[u8]) -> bool {
    decode::<Maker>(value).is_some()
}

/// What `Cluster::follow_makers` has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Files that went, or don't go with their makers any more.
    pub gone: usize,
    /// Files of makers that run or can't be asked for, and such as couldn't go yet.
    pub left: usize,
}

impl DeclaredControls<'_> {
    /// This process as a maker, or the one of this node with that id.
    ///
    /// # Errors
    /// ESRCH if there is none, or nothing can be known of it.
    pub fn maker(&self, pid: Option<u32>) -> Result<Maker> {
        let known = match pid {
            // What is noted of this process needs no look at /proc.
            None => process::noted_word(&self.control, self.process_slot()?),
            Some(_) => None,
        };
        let word = known.or_else(|| process::word_running(pid.unwrap_or_else(process::pid)));
        let node = self.names().node_of_several().unwrap_or(0);
        Ok(Maker::here(node, word.ok_or(Errno::SRCH)?))
    }

    /// In the transaction that makes a file: notes who made it and its first name, if it goes with
    /// its maker.
    pub fn note_maker(
        &self,
        w: &mut Write<'_>,
        id: ObjectId,
        new: &NewObject<'_>,
        name: Option<Named<'_>>,
    ) -> Result<()> {
        if new.mode & crate::S_IFMT != libc::S_IFREG || !goes_with_maker(new.controls) {
            return Ok(());
        }
        let maker = new.maker.ok_or(Errno::OPNOTSUPP)?;
        let shard = self.shard_of(id);
        w.put(shard, &Key::maker(id), &encode(&maker))?;
        match name {
            Some((dir, name)) => w.put(shard, &Key::known_name(id, dir, name), &[]),
            None => Ok(()),
        }
    }

    /// In a transaction: something else is said of a file. EOPNOTSUPP if it would go with a maker
    /// from now on: who that is must be known when it is made.
    pub(crate) fn change_maker(&self, w: &mut Write<'_>, id: ObjectId, word: u64) -> Result<()> {
        let shard = self.shard_of(id);
        let inode = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
        let Some((inode, _)) = inode.filter(|(inode, _)| inode.is_file()) else {
            return Ok(());
        };
        match (goes_with_maker(inode.controls), goes_with_maker(word)) {
            (false, true) => Err(Errno::OPNOTSUPP),
            (true, false) => {
                w.del(shard, &Key::maker(id))?;
                self.index().forget_names(w, id)
            }
            _ => Ok(()),
        }
    }

    /// Of makers on this node, whether each runs.
    pub fn makers_run(makers: &[Maker]) -> Vec<bool> {
        makers.iter().map(Maker::runs).collect()
    }

    /// Forgets the note on a file that is gone, or doesn't go with its maker any more.
    pub fn forget_maker(&self, id: ObjectId) -> Result<()> {
        let shard = self.shard_of(id);
        self.write(self.names().object_set(id), Need::Removal, |w| {
            let inode = w.get(shard, &Key::inode(id))?.and_then(Inode::decode);
            match inode.is_some_and(|(inode, _)| goes_with_maker(inode.controls)) {
                true => Ok(()),
                false => w.del(shard, &Key::maker(id)).map(|_| ()),
            }
        })
    }
}

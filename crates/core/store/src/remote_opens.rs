//! Objects of other nodes: what this store knows about them.
//!
//! A store among several keeps the entries and objects of its own slots. Of other nodes' objects
//! the store keeps no records, only the uses and locks by processes of this node. An entry may name
//! an object of another node. A live entry may stand for one (`REMOTE`), with a number by which the
//! object's home knows the use. When such a use or lock ends on this node, even by the death of its
//! process, [`crate::Remote`] notifies the home. A store alone in its pool has no
//! [`crate::Remote`].

use crate::control_region::live_flag as flag;
use crate::live::Chain;
use crate::process::Critical;
use crate::record::{Entry, Inode};
use crate::views::{Index, Names, Peers};
use crate::{NodeId, ObjectId, Result, Slot};
use rustix::io::Errno;
use std::sync::atomic::Ordering::*;
use std::time::Instant;

/// Value of a use's number while the number isn't known.
pub const UNKNOWN_USE: u64 = u64::MAX;

/// A file that another node keeps open for this one, before this node has a live entry for it. The
/// holder of this value either makes a live entry for the file (`live_acquire_opened`), or notifies
/// the home that the file isn't needed (`close_opened`).
#[derive(Debug)]
pub struct Opened {
    pub home: NodeId,
    pub id: ObjectId,
    /// The number by which both nodes know this use.
    pub number: u64,
    /// Time of the request to the home. This node must make the live entry soon after the reply:
    /// the home ends uses that it finds closed.
    pub asked_at: Instant,
}

impl Peers<'_> {
    /// Whether the object lies on another node.
    #[inline]
    pub fn is_object_remote(self, id: ObjectId) -> bool {
        match self.remote {
            // Each node has its own parts, and views.
            Some(remote) => !id.is_part() && !id.is_view() && !remote.keeps(id.slot()),
            None => false,
        }
    }

    /// Whether the entry `name` of `parent` lies on another node.
    #[inline]
    pub fn is_entry_remote(self, parent: ObjectId, name: &[u8]) -> bool {
        // A store alone in its pool needs no hash.
        self.remote.is_some_and(|remote| {
            !Index::is_in_view(parent, name) && !remote.keeps(Slot::of_entry(parent, name))
        })
    }

    /// This node's number; 0 in a pool of one node.
    #[inline]
    pub fn node(self) -> NodeId {
        self.remote.map_or(NodeId(0), |remote| remote.node())
    }

    /// This node's number; None in a pool of one node.
    #[inline]
    pub fn node_of_several(self) -> Option<u32> {
        self.remote.map(|remote| remote.node().0)
    }
}

impl<'s> Names<'s> {
    /// The attributes of an object of any node, and the tail of its record.
    ///
    /// # Errors
    /// ENOENT; EHOSTDOWN.
    pub(crate) fn inode_of(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        match &self.store.remote {
            Some(remote) => remote.inode_of(self.store, id),
            None => self.inode_tail_here(id),
        }
    }

    /// The entry `name` of `parent`, on whatever node it lies.
    ///
    /// # Errors
    /// EHOSTDOWN; EIO.
    pub(crate) fn entry_of(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        match &self.store.remote {
            Some(remote) => remote.entry_of(self.store, parent, name),
            None => (self.lookup_here(parent, name)).map(|found| found.map(|(entry, _)| entry)),
        }
    }

    /// Path of the directory `dir` from the root of the pool: `/`, `/a/b`.
    ///
    /// # Errors
    /// ENOENT if it has been removed.
    pub(crate) fn path_of(&self, dir: ObjectId) -> Result<Vec<u8>> {
        self.path_by(dir, |id| self.inode_of(id))
    }

    /// As [`Names::path_of`]; `inode_of` returns a directory's inode.
    pub fn path_by(
        &self,
        dir: ObjectId,
        inode_of: impl Fn(ObjectId) -> Result<(Inode, Vec<u8>)>,
    ) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        while at != ObjectId::ROOT {
            let (inode, name) = inode_of(at)?;
            if !inode.is_dir() || names.len() > crate::PATH_MAX {
                return Err(Errno::NOENT);
            }
            names.push(name);
            at = ObjectId(inode.parent);
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Whether a live entry stands for an object of another node.
    pub(crate) fn is_live_remote(&self, index: u32) -> bool {
        self.store.objects().live(index).flags.load(Acquire) & flag::REMOTE != 0
    }

    /// The number of this node's use of another node's object; 0 if the object isn't open on this
    /// node, [`UNKNOWN_USE`] while it is being opened.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn use_of(&self, id: ObjectId) -> Result<u64> {
        let _critical = Critical::enter();
        let chain = Chain::lock(self.store, id.0)?;
        let Some(index) = chain.find(id.0) else {
            return Ok(0);
        };
        let live = self.store.objects().live(index);
        Ok(match live.flags.load(Acquire) & flag::REMOTE {
            0 => UNKNOWN_USE,
            _ => live.ctime.load(Relaxed) as u64,
        })
    }
}

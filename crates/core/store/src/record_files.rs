//! The record files of a store: one LMDB file for each shard, opened when it is first used.

use crate::lmdb::Env;
use crate::records::ShardSet;
use crate::{ObjectId, Slot};
use rustix::io::Result;
use std::path::Path;

/// The record files of a store, by shard. Slots are divided among them.
pub struct RecordFiles {
    envs: Vec<Env>,
}

impl RecordFiles {
    /// The files of `shards` shards in the folder `dir`, with room for `bytes` each. None is opened.
    pub(crate) fn new(dir: &Path, shards: usize, bytes: usize) -> RecordFiles {
        let file = |i| Env::new(dir.join(format!("{i:02}")), bytes);
        RecordFiles {
            envs: (0..shards).map(file).collect(),
        }
    }

    /// The number of shards.
    #[inline]
    pub fn count(&self) -> usize {
        self.envs.len()
    }

    /// The file of a shard.
    #[inline]
    pub(crate) fn of(&self, shard: usize) -> &Env {
        &self.envs[shard]
    }

    /// All files, in the order of shards.
    #[inline]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Env> {
        self.envs.iter()
    }

    /// The shard of an object.
    #[inline]
    pub fn shard_of(&self, id: ObjectId) -> usize {
        id.slot().shard(self.envs.len())
    }

    /// The shard of an entry and of the intent on it. With an empty name: the shard of `parent`,
    /// for an intent on the object itself.
    #[inline]
    pub fn shard_of_entry(&self, parent: ObjectId, name: &[u8]) -> usize {
        if name.is_empty() {
            return self.shard_of(parent);
        }
        Slot::of_entry(parent, name).shard(self.envs.len())
    }

    /// The set of all shards.
    pub(crate) fn all(&self) -> ShardSet {
        (0..self.envs.len()).fold(ShardSet(0), ShardSet::with)
    }

    /// Bytes in use in all record files.
    ///
    /// # Errors
    /// Those of opening the record files.
    pub fn used(&self) -> Result<u64> {
        self.envs.iter().map(Env::used).sum()
    }

    /// Frees the reader slots of this process's idle read transactions, before the process ends or
    /// executes another program. A process that continues takes new slots.
    pub fn end_readers(&self) {
        self.envs.iter().for_each(Env::end_readers);
    }

    /// The record files that this process has open: one bit per shard.
    pub fn open(&self) -> u64 {
        let open = |bits: u64, (i, env): (usize, &Env)| bits | u64::from(env.is_open()) << i;
        self.envs.iter().enumerate().fold(0, open)
    }

    fn open_but(&self, kept: u64) -> impl Iterator<Item = &Env> {
        let all = self.envs.iter().enumerate();
        all.filter_map(move |(i, env)| (kept >> i & 1 == 0 && env.is_open()).then_some(env))
    }

    /// Closes the record files that aren't among `kept`. For a vfork child that has opened these
    /// files, and whose parent has one thread.
    pub fn close_but(&self, kept: u64) {
        self.open_but(kept).for_each(Env::close_for_good);
    }

    /// Forgets the record files that aren't among `kept`: a vfork child had opened them, and was
    /// killed.
    pub fn forget_but(&self, kept: u64) {
        self.open_but(kept).for_each(Env::forget);
    }
}
